"""Draws what MemberMetrics has measured. Imports matplotlib."""

from matplotlib.figure import Figure  # not pyplot, which would choose how a notebook draws

_MEMBER, _COLLAPSED, _SWA = "#9bb8d9", "#1f5fa8", "#d9722b"


def draw(history, metric):
    """The figure: a validation metric of all, unless `metric` is None, above the spreads."""
    epochs = history["epoch"]
    if not epochs:
        raise ValueError("There must be an epoch to draw: train first. Received: no epochs")
    figure = Figure(figsize=(6.4, 5.8 if metric else 3.2), layout="constrained")
    axes = list(figure.subplots(2 if metric else 1, sharex=True, squeeze=False)[:, 0])
    if metric:
        _draw_metric(axes[0], history, metric)
    _draw_spreads(axes[-1], history)
    axes[-1].set_xlabel("epoch")
    for one in axes:
        one.grid(True, color="#e8e8e8", linewidth=0.6)
        one.set_axisbelow(True)
        one.spines[["top", "right"]].set_visible(False)
        one.legend(frameon=False, fontsize=8.5)
    return figure


def _draw_metric(axes, history, metric):
    if f"val_collapsed_{metric}" not in history:
        known = [
            n.removeprefix("val_collapsed_") for n in history if n.startswith("val_collapsed_")
        ]
        raise ValueError(f"`metric` must be one of {', '.join(known)}. Received: metric={metric!r}")
    k = 0
    while f"val_member_{k}_{metric}" in history:
        label = "members" if k == 0 else None
        values = history[f"val_member_{k}_{metric}"]
        axes.plot(history["epoch"], values, color=_MEMBER, linewidth=0.9, label=label)
        k += 1
    lines = (("collapsed", _COLLAPSED, "collapsed"), ("swa", _SWA, "SWA"))
    for name, colour, label in lines:
        values = history.get(f"val_{name}_{metric}")
        if values:
            axes.plot(history["epoch"], values, color=colour, marker=".", label=label)
    axes.set_ylabel(f"validation {metric}")


def _draw_spreads(axes, history):
    single = [name for name in history if name.startswith("member_spread/")]
    for i, name in enumerate(single):
        label = "of single weights" if i == 0 else None
        axes.plot(history["epoch"], history[name], color=_MEMBER, linewidth=0.9, label=label)
    axes.plot(
        history["epoch"], history["member_spread"], color=_COLLAPSED, marker=".", label="of all"
    )
    axes.set_ylabel("spread of the members")
