"""The types of what the files of a run hold. A damaged file, or one that was edited by hand, may
still be TOML or JSON, and have a word where a number should be.
"""

import math


def is_number(value):
    """Finite: a metric that is not is null."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_integer(value):
    return is_number(value) and isinstance(value, int)


def _is_text(value):
    return isinstance(value, str)


def _is_metric(value):
    return value is None or is_number(value)


# name -> (what it must be, in words; whether a value is)
_INTEGER = ("an integer", _is_integer)
_NUMBER = ("a finite number", is_number)
_TEXT = ("text", _is_text)
_METRIC = ("a finite number or null", _is_metric)
_SETTINGS = {
    **dict.fromkeys(("program", "model", "dataset"), _TEXT),
    **dict.fromkeys(("seed", "members", "steps"), _INTEGER),
    **dict.fromkeys(("t0", "swa_start", "epochs"), _NUMBER),
    "swa_every": ("a number > 0", lambda value: is_number(value) and value > 0),
}
_LINE = {"kind": _TEXT, "split": _TEXT, "weights": _TEXT, "step": _INTEGER, "epoch": _NUMBER}
_RESULTS = {
    **dict.fromkeys(("program", "model", "device"), _TEXT),
    **dict.fromkeys(("seed", "steps", "parameters", "peak_bytes", "threads"), _INTEGER),
    **dict.fromkeys(("epochs", "seconds", "items_per_second"), _NUMBER),
}


def _wrong(values, types, others=None):
    """The first value that is not of its type, in words: "" if none."""
    for name, value in values.items():
        text, holds = types.get(name, others or ("anything", lambda _: True))
        if not holds(value):
            return f"`{name}` must be {text}. Received: {name}={value!r:.40}"
    return ""


def wrong_setting(config):
    """What is wrong with the settings of a run: "" if nothing. So with the others."""
    return _wrong(config, _SETTINGS)


def wrong_line(line):
    """Of metrics.jsonl."""
    return _wrong(line, _LINE, _METRIC)


def _wrong_metrics(name, metrics):
    if not isinstance(metrics, dict):
        return f"`{name}` must be metrics. Received: {name}={metrics!r:.40}"
    return _wrong(metrics, {}, _METRIC)


def wrong_result(results):
    """Of results.json, of one run."""
    if not isinstance(results, dict):
        return f"it must be one object. Received: {results!r:.40}"
    wrong = _wrong(results, _RESULTS)
    if not wrong and "train" in results:
        wrong = _wrong_metrics("train", results["train"])
    for split in ("validation", "test"):
        parts = results.get(split, {})
        if not isinstance(parts, dict):
            wrong = wrong or f"`{split}` must be weights. Received: {split}={parts!r:.40}"
            break
        for weights, metrics in parts.items():
            of_members = weights == "members" and isinstance(metrics, list)
            for one in metrics if of_members else [metrics]:
                wrong = wrong or _wrong_metrics(weights, one)
    return wrong
