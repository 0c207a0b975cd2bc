"""What the plots have in common: drawn without a screen, plain axes, files that are whole or not there. Imports matplotlib."""

import os

from late_phase_cli import extras

extras.need("matplotlib", "plots", "drawing plots").use("Agg")
from matplotlib import pyplot  # noqa: E402 (the backend comes first)

BLUE, ORANGE, GREY = "#1f5fa8", "#d9722b", "#777777"


def finish_axes(axes):
    """A quiet grid behind the data, no frame."""
    axes.grid(True, which="both", axis="y", color="#e8e8e8", linewidth=0.6)
    axes.grid(True, axis="x", color="#e8e8e8", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure, path):
    """Written aside, then renamed."""
    aside = f"{path}.part{os.getpid()}"
    try:
        figure.savefig(aside, dpi=150, format="png")
        os.replace(aside, path)
    finally:
        pyplot.close(figure)
        if os.path.exists(aside):
            os.remove(aside)
