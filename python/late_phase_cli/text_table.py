"""Tables as text: Markdown."""


def render(heads, rows):
    """The lines of a table; cells are strings."""
    return [
        "| " + " | ".join(heads) + " |",
        "|" + "---|" * len(heads),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]
