#!/usr/bin/env python3
"""The Python API reference, docs/api.md, generated from the docstrings.

`tools/latephase python tools/develop/api_reference.py --write` writes the page;
tests/docs/api_reference_test.py checks that it has been.

Docstrings have a fixed order: one line, detail, then the sections Example, Args, Call arguments,
Returns or Yields, Raises.
"""

import inspect
import re
import sys
import textwrap
import types

import late_phase
import late_phase.checkpoint
import late_phase.keras

PAGE = "docs/api.md"
MODULES = (late_phase, late_phase.ops, late_phase.keras, late_phase.checkpoint)
SECTIONS = ("Example", "Args", "Call arguments", "Returns", "Yields", "Raises")
_WIDTH = 100
# Methods by which layers and optimizer work together; users call none of them.
_INTERNAL = {
    *("adopt", "attach", "attached_optimizer", "base_rate", "current_member", "has_members"),
    *("has_planned_start", "in_this_step"),
    *("is_training", "plan", "prepare_rows", "rows", "rows_changed", "dtype_for", "write_rows"),
    *("affine_layer", "affine_weights", "channels_back", "channels_last"),
    *("plain_layer", "plain_weights"),
}
_INTRODUCTION = """# Python API

Made from the docstrings by `tools/latephase python tools/develop/api_reference.py --write`. Guides:
[Keras](keras.md), [a tutorial](tutorial.md), [using the ops](using.md). The ops themselves,
`late_phase.raw_ops`, are in the [op reference](ops.md).
"""


def public(module):
    """(name, object) of a module's functions and classes."""
    return [
        (name, getattr(module, name)) for name in module.__all__ if callable(getattr(module, name))
    ]


def own_attributes(cls):
    """(name, function or property) that a class of late_phase adds to those of Keras for users, if
    it is documented.
    """
    from_outside = {
        name
        for base in cls.__mro__
        if not base.__module__.startswith("late_phase")
        for name in vars(base)
    }
    return [
        (name, attribute)
        for name, attribute in vars(cls).items()
        if isinstance(attribute, (types.FunctionType, property))
        and attribute.__doc__
        and not name.startswith("_")
        and name not in _INTERNAL | from_outside
    ]


def sections(docstring):
    """Title -> text of the sections of a cleaned docstring; "" is what comes before them."""
    texts = re.split(rf"^({'|'.join(SECTIONS)}):\n", docstring, flags=re.M)
    return {
        "": texts[0].strip(),
        **{title: textwrap.dedent(text).strip() for title, text in zip(texts[1::2], texts[2::2])},
    }


def items(section):
    """(names, text) of the entries of Args or Raises: `first, second: what they are`."""
    entries = [" ".join(entry.split()) for entry in re.split(r"\n(?=\S)", section)]
    return [
        (names.split(", "), text) for names, _, text in (entry.partition(": ") for entry in entries)
    ]


def signature(module, name, function):
    text = f"{module}.{name}{inspect.signature(function)}"
    return "\n".join(textwrap.wrap(text, _WIDTH, subsequent_indent="    ", break_on_hyphens=False))


def _fenced(language, text):
    return f"```{language}\n{text}\n```"


def _item(names, text):
    """A list entry, in short lines that are not broken within code."""
    entry = f"- {', '.join(f'`{name}`' for name in names)}: {text}"
    whole = re.sub(r"`[^`]+`", lambda code: code[0].replace(" ", "\0"), entry)
    lines = textwrap.wrap(
        whole, _WIDTH, subsequent_indent="  ", break_on_hyphens=False, break_long_words=False
    )
    return "\n".join(lines).replace("\0", " ")


def _body(docstring):
    """The Markdown of a docstring."""
    blocks = []
    for title, text in sections(docstring).items():
        if title:
            blocks.append(f"**{title}**")
        if title == "Example":
            blocks.append(_fenced("pycon", text))
        elif title in ("Args", "Call arguments", "Raises"):
            blocks.append("\n".join(_item(names, text) for names, text in items(text)))
        else:
            blocks.append(text)
    return "\n\n".join(blocks)


def _attribute(owner, name, attribute):
    parameters = (
        "" if isinstance(attribute, property) else inspect.signature(attribute.__get__(owner))
    )
    return f"#### `{owner}.{name}{parameters}`\n\n{_body(inspect.getdoc(attribute))}"


def render():
    """The page's text."""
    parts = [_INTRODUCTION.strip()]
    for module in MODULES:
        parts += [f"## {module.__name__}", _body(inspect.getdoc(module))]
        for name, thing in public(module):
            parts += [
                f"### {name}",
                _fenced("python", signature(module.__name__, name, thing)),
                _body(inspect.getdoc(thing)),
            ]
            if inspect.isclass(thing):
                parts += [_attribute(name, *attribute) for attribute in own_attributes(thing)]
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        raise SystemExit(__doc__)
    with open(PAGE, "w") as page:
        page.write(render())
