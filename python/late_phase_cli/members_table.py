"""What members add to accumulation on the same network, over many settings: a table of paired
differences, the best first.
"""

import collections
import dataclasses
import math

from late_phase_cli import law_table, paired, text_table

WEIGHTS = ("collapsed", "swa")


@dataclasses.dataclass(frozen=True)
class Added:
    """A late phase compared with accumulation over as many minibatches from the same T0 on."""

    late: object  # a finished run with members
    differences: dict  # weights -> paired.Difference of the test loss

    def row(self):
        cells = [
            f"{self.late.network}: {law_table.setting_text(self.late)}",
            f"{self.late.config['members']}",
            str(self.differences["collapsed"].seeds),
        ]
        for weights in WEIGHTS:
            one = self.differences[weights]
            cells += [one.number(), f"{one.won} of {one.seeds}"]
        return cells


def added(runs):
    """Of every setting that was trained in both ways with the same seeds, the best first."""
    of = {"late-phase": collections.defaultdict(dict), "accumulation": {}}
    for run in runs:
        config = run.config
        key = law_table.network_key(run), *(config[name] for name in ("t0", "members", "gamma"))
        key += (config.get("restart_cycle", False),)
        if run.treatment == "accumulation":
            of["accumulation"].setdefault(key, {}).setdefault(run.seed, run)
        elif run.treatment == "late-phase":
            of["late-phase"][key, config["sigma"]].setdefault(run.seed, run)
    found = []
    for (key, _), late in of["late-phase"].items():
        partners = of["accumulation"].get(key, {})
        differences = {
            weights: paired.difference(
                *(
                    {seed: run.loss(weights, "test") for seed, run in its.items()}
                    for its in (late, partners)
                )
            )
            for weights in WEIGHTS
        }
        if differences["collapsed"]:
            found.append(Added(next(iter(late.values())), differences))
    return sorted(found, key=lambda one: one.differences["collapsed"].mean)


def _sentence(name, one):
    setting = f"K {one.late.config['members']}, {law_table.setting_text(one.late)}"
    return f"{name}: {one.differences['collapsed'].number()} ({setting})"


def render(found):
    """The table as lines of Markdown, and the best and the worst of those with several seeds."""
    heads = ["network and training", "K", "seeds", "members add", "better in", "with SWA"]
    lines = text_table.render([*heads, "better in"], [one.row() for one in found])
    sure = [one for one in found if not math.isnan(one.differences["collapsed"].half_width)]
    if len(sure) > 1:
        lines += [
            "",
            f"Of the {len(sure)} settings with several seeds, {_sentence('best', sure[0])}, "
            f"{_sentence('worst', sure[-1])}; below 0 members gain.",
        ]
    return lines
