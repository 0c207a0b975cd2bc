"""What the templates of a report are given: tables, pictures, sections. Knows nothing about runs.

The HTML itself is in templates/report. Jinja2 escapes every text on its way into a page, so no name
of a run, a setting or a file can become markup.
"""

import base64
import dataclasses
import io

from late_phase_cli import extras, plot_style

jinja2 = extras.need("jinja2", "plots", "a report")


@dataclasses.dataclass
class Cell:
    """A text in a table, and how it is shown: "number", "best", "differs", "start" of a group."""

    text: str
    classes: list = dataclasses.field(default_factory=list)
    anchor: str = None  # of the section that the text links to


@dataclasses.dataclass
class Table:
    """Cells or plain texts. The first `row_heads` of each row are its names."""

    heads: list
    rows: list
    groups: list = ()  # [(text, number of columns)] above the heads, "" for none
    row_heads: int = 1

    def __post_init__(self):
        self.heads, *self.rows = (
            [cell if isinstance(cell, Cell) else Cell(cell) for cell in row]
            for row in (self.heads, *self.rows)
        )


@dataclasses.dataclass
class Picture:
    address: str
    alt: str
    caption: str = ""


@dataclasses.dataclass
class Section:
    """Rendered by the template `kind`.html from `content`; then the evaluation, if any."""

    kind: str
    title: str
    anchor: str
    content: dict = dataclasses.field(default_factory=dict)
    evaluation: object = None


def picture(data, kind, alt, caption=""):
    """`kind`: "png" or "svg+xml". The page holds the picture itself."""
    return Picture(f"data:image/{kind};base64,{base64.b64encode(data).decode()}", alt, caption)


def drawing(figure, alt):
    """A matplotlib figure, sharp at every size. It is closed."""
    data = io.BytesIO()
    try:
        # So that the same runs give the same page.
        with plot_style.pyplot.rc_context({"svg.hashsalt": "late_phase"}):
            figure.savefig(data, format="svg", metadata={"Date": None})
    finally:
        plot_style.pyplot.close(figure)
    return picture(data.getvalue(), "svg+xml", alt)


def render(title, sections):
    """The page."""
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("late_phase_cli", "templates/report"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(title=title, sections=sections)
