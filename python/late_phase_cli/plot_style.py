"""What the plots have in common: drawn without a screen, plain axes, complete files or none.
Imports matplotlib.
"""

from late_phase_cli import extras, files

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
    try:
        with files.replacing(path) as aside:
            figure.savefig(aside, dpi=150, format="png")
    finally:
        pyplot.close(figure)
