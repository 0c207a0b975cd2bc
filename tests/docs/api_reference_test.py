"""The API reference is what the docstrings say; docstrings are whole, fit their signatures, and
their examples run.

Those of late_phase.checkpoint need a trained run: tests/python/checkpoint_test.py runs them.
"""

import doctest
import inspect

import pytest

from tools.develop import api_reference

NAMES = [
    (f"{module.__name__}.{name}", thing)
    for module in api_reference.MODULES
    for name, thing in api_reference.public(module)
]
ATTRIBUTES = [
    (f"{path}.{name}", attribute)
    for path, thing in NAMES
    if inspect.isclass(thing)
    for name, attribute in api_reference.own_attributes(thing)
]
FUNCTIONS = NAMES + [
    (path, attribute) for path, attribute in ATTRIBUTES if not isinstance(attribute, property)
]
EXAMPLES = [(module.__name__, module) for module in api_reference.MODULES] + NAMES


def test_page_is_what_the_docstrings_say():
    with open(api_reference.PAGE) as page:
        assert page.read() == api_reference.render(), (
            "run tools/latephase python tools/develop/api_reference.py --write"
        )


def test_every_public_name_is_there():
    assert len(NAMES) >= 21 and len(ATTRIBUTES) >= 4
    for module in api_reference.MODULES:
        listed = {
            name
            for name, thing in vars(module).items()
            if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
        }
        assert listed <= set(module.__all__), module.__name__
        for name in module.__all__:
            thing = getattr(module, name)
            assert callable(thing) or f"{module.__name__}.{name}" in module.__doc__


@pytest.mark.parametrize(
    "path, thing", NAMES + ATTRIBUTES, ids=lambda value: value if isinstance(value, str) else ""
)
def test_docstring_has_the_fixed_order(path, thing):
    docstring = inspect.getdoc(thing)
    first, *rest = docstring.split("\n")
    assert first.endswith(".") and not (rest and rest[0]), "the first paragraph is one line"
    titles = list(api_reference.sections(docstring))[1:]
    assert titles == sorted(titles, key=api_reference.SECTIONS.index)
    if (path, thing) in NAMES and not (inspect.isclass(thing) and issubclass(thing, tuple)):
        assert "Example" in titles


@pytest.mark.parametrize(
    "path, thing", FUNCTIONS, ids=lambda value: value if isinstance(value, str) else ""
)
def test_args_are_those_of_the_signature(path, thing):
    args = api_reference.sections(inspect.getdoc(thing)).get("Args", "")
    documented = [
        name for names, text in api_reference.items(args) if names != [""] for name in names
    ]
    parameters = [
        str(p).partition("=")[0]
        for p in inspect.signature(thing).parameters.values()
        if p.name != "self"
    ]
    assert documented == parameters
    assert all(text for names, text in api_reference.items(args) if names != [""])


@pytest.mark.parametrize(
    "path, thing",
    [e for e in EXAMPLES if "checkpoint" not in e[0]],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_examples_run(path, thing, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    example = doctest.DocTestParser().get_doctest(inspect.getdoc(thing), {}, path, None, 0)
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    assert runner.run(example, clear_globs=False).failed == 0, "printed above"
    assert len(example.examples) == inspect.getdoc(thing).count(">>> ")
