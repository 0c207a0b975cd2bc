"""The pieces of a report: tables, figures and the page around them, as HTML that needs nothing from elsewhere. Knows nothing of runs.

Every function takes plain text and returns HTML; nothing that is not escaped here gets onto the page.
"""

import base64
import html
import io

from late_phase_cli import plot_style

STYLE = """
:root { color-scheme: light dark; --text: #1d2733; --quiet: #5b6875; --line: #d9dfe5; --ground: #ffffff; --card: #f6f8fa; --best: #0b6b3a;
  --differs: #fff3cf; --link: #1f5fa8; }
@media (prefers-color-scheme: dark) { :root { --text: #dfe5ec; --quiet: #97a3b0; --line: #343d47; --ground: #14191f; --card: #1c232b;
  --best: #6fd39b; --differs: #4a3d12; --link: #7db4ee; } }
* { box-sizing: border-box; }
body { margin: 0 auto; max-width: 80rem; padding: 2rem 1.5rem 4rem; background: var(--ground); color: var(--text);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", "DejaVu Sans", sans-serif; }
h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.25rem; margin: 2.6rem 0 .7rem; padding-top: .8rem; border-top: 1px solid var(--line); overflow-wrap: anywhere; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; overflow-wrap: anywhere; }
p { max-width: 48rem; margin: .5rem 0; }
.quiet { color: var(--quiet); }
a { color: var(--link); }
nav ul { columns: 18rem; padding-left: 1.1rem; margin: .8rem 0; }
nav li { overflow-wrap: anywhere; break-inside: avoid; }
.wide { overflow-x: auto; margin: .6rem 0 1rem; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .84rem; }
th, td { padding: .28rem .42rem; text-align: left; vertical-align: top; border-bottom: 1px solid var(--line); }
thead th { font-weight: 600; color: var(--quiet); vertical-align: bottom; }
thead th.group { border-left: 1px solid var(--line); text-align: center; color: var(--text); }
.start { border-left: 1px solid var(--line); }
th.number, td.number { text-align: right; }
td.number, tbody th { white-space: nowrap; }
tbody th { font-weight: 500; }
tbody th.name { white-space: normal; overflow-wrap: anywhere; min-width: 10.5rem; max-width: 22rem; }
.best { font-weight: 700; color: var(--best); }
.differs { background: var(--differs); }
figure { margin: 1rem 0; break-inside: avoid; }
figure img { display: block; max-width: 100%; height: auto; background: #ffffff; border: 1px solid var(--line); border-radius: 6px; }
figcaption { color: var(--quiet); font-size: .85rem; margin-top: .3rem; overflow-wrap: anywhere; }
.beside { display: flex; flex-wrap: wrap; gap: 0 2rem; align-items: flex-start; }
.beside > * { flex: 0 1 auto; max-width: 100%; }
.beside figure { width: 34.5rem; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(7.5rem, 1fr)); gap: .6rem 1rem; margin: .8rem 0; }
dt { color: var(--quiet); font-size: .8rem; }
dd { margin: 0; font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }
details { margin: .6rem 0; }
summary { cursor: pointer; color: var(--link); }
pre { background: var(--card); border: 1px solid var(--line); border-radius: 6px; padding: .8rem 1rem; overflow-x: auto; font-size: .82rem;
  line-height: 1.45; columns: 20rem; white-space: pre-wrap; overflow-wrap: anywhere; }
@media print { :root { color-scheme: light; --text: #000000; --quiet: #444444; --line: #bbbbbb; --ground: #ffffff; --card: #ffffff;
  --best: #000000; --differs: #eeeeee; --link: #000000; }
  .beside { break-inside: avoid; }
  body { max-width: none; padding: 0; font-size: 9.5pt; } nav, summary { display: none; } .wide { overflow: visible; }
  details::details-content { content-visibility: visible; } h2, h3 { break-after: avoid; } tr { break-inside: avoid; }
  th, td { padding: .15rem .4rem; } }
"""


def escape(text):
    return html.escape(str(text), quote=True)


def element(name, text, **attributes):
    """An element with a text; `class_` stands for class."""
    written = "".join(f' {key.rstrip("_")}="{escape(value)}"' for key, value in attributes.items() if value)
    return f"<{name}{written}>{escape(text)}</{name}>"


def section(level, title, anchor, *content):
    return f"<section id=\"{escape(anchor)}\">\n" + element(f"h{level}", title) + "\n" + "\n".join(content) + "\n</section>"


def link(anchor, text):
    return f'<a href="#{escape(anchor)}">{escape(text)}</a>'


class Cell:
    """A text in a table, and what is to be seen of it: "number", "best", "differs", "start" (of a group of columns)."""

    def __init__(self, text, *classes, anchor=None):
        self.text, self.classes, self.anchor = text, classes, anchor

    def html(self, name):
        classes = " ".join(dict.fromkeys(self.classes + ("name",) * (self.anchor is not None)))
        text = link(self.anchor, self.text) if self.anchor else escape(self.text)
        return f"<{name}" + (f' class="{classes}"' if classes else "") + f">{text}</{name}>"


def table(heads, rows, groups=(), row_heads=1):
    """Rows of Cells or texts, the first `row_heads` of each are its names. `groups`: [(text, columns)] above the heads, "" for none."""
    def row(cells, names):
        cells = [cell if isinstance(cell, Cell) else Cell(cell) for cell in cells]
        return "<tr>" + "".join(cell.html("th" if i < names else "td") for i, cell in enumerate(cells)) + "</tr>"

    above = "".join(f'<th colspan="{columns}"' + (' class="group"' if text else "") + f">{escape(text)}</th>" for text, columns in groups)
    head = (f"<tr>{above}</tr>\n" if above else "") + row(heads, len(heads)).replace("_", "_<wbr>")  # the names of settings are long
    return ('<div class="wide"><table>\n<thead>\n' + head + "\n</thead>\n<tbody>\n" + "\n".join(row(cells, row_heads) for cells in rows) +
            "\n</tbody></table></div>")


def facts(pairs):
    """Names with a value each."""
    return "<dl>" + "".join(f"<div>{element('dt', name)}{element('dd', value)}</div>" for name, value in pairs) + "</dl>"


def details(title, *content):
    return f"<details>{element('summary', title)}\n" + "\n".join(content) + "\n</details>"


def image(data, kind, alt, caption=""):
    """`kind`: "png" or "svg+xml"."""
    coded = base64.b64encode(data).decode()
    return (f'<figure><img src="data:image/{kind};base64,{coded}" alt="{escape(alt)}">' +
            (element("figcaption", caption) if caption else "") + "</figure>")


def drawing(figure, alt, caption=""):
    """A matplotlib figure, sharp at every size. It is closed."""
    data = io.BytesIO()
    try:
        with plot_style.pyplot.rc_context({"svg.hashsalt": "late_phase"}):  # the same page for the same runs
            figure.savefig(data, format="svg", metadata={"Date": None})
    finally:
        plot_style.pyplot.close(figure)
    return image(data.getvalue(), "svg+xml", alt, caption)


def side_by_side(*parts):
    """Where the page is wide enough."""
    return '<div class="beside">' + "\n".join(parts) + "</div>"


def contents(entries):
    """[(anchor, text)]"""
    return "<nav><ul>" + "".join(f"<li>{link(anchor, text)}</li>" for anchor, text in entries) + "</ul></nav>"


def page(title, *content):
    return ('<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n' +
            element("title", title) + f"\n<style>{STYLE}</style>\n</head>\n<body>\n" + "\n".join(content) + "\n</body>\n</html>\n")
