"""Tables as text: Markdown."""


def render(heads, rows):
    """The lines of a table; every cell is a text."""
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
