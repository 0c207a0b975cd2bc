"""What the op reference (docs/ops.md) says of every op's inputs, as data: shapes, kinds and ranges.

A shape is a text as in the error messages: "[time, batch, 4*units]". A word stands for a size, the
same in all shapes of a call; "K>=1" forbids zero. "..." is any number of sizes, the same wherever
it stands; "grad" of a member update may have the shape of a row or of all rows.
"""

import dataclasses
import math
import re


@dataclasses.dataclass(frozen=True)
class Input:
    name: str
    shape: str
    kind: str = "T"  # T, U (float if T is a half type), int32, int64, or an index or a range below
    variable: bool = False


@dataclasses.dataclass(frozen=True, eq=False)
class Signature:
    op: str  # "MemberApplyAdam"
    inputs: tuple
    attributes: dict = dataclasses.field(default_factory=dict)  # name -> possible values

    @property
    def function(self):
        """The name in late_phase.raw_ops."""
        return "late_phase_" + re.sub(r"(?<!^)(?=[A-Z])", "_", self.op).lower()

    def input(self, name):
        return next(one for one in self.inputs if one.name == name)


RANGES = {  # low, high, and which of the two are excluded
    "rate": (0, math.inf, False, True),
    "fraction": (0, 1, False, True),
    "scale": (0, 1, True, False),
}


def in_range(kind, value):
    low, high, low_open, high_open = RANGES[kind]
    return (value > low if low_open else value >= low) and (
        value < high if high_open else value <= high
    )


def _inputs(*rows):
    return tuple(Input(*row) for row in rows)


def _variables(*names, shape, kind="U"):
    return tuple(Input(name, shape, kind, True) for name in names)


_STATE = (("initial_h", "[batch, units>=1]"), ("initial_c", "[batch, units]"))
_FACTORS = (("u", "[K>=1, units]"), ("v", "[K, 4*units]"), ("member", "[]", "member"))
_DENSE = _inputs(
    ("x", "[time, batch, input]"), *_STATE, ("kernel", "[input, 4*units]"),
    ("recurrent_kernel", "[units, 4*units]"), ("bias", "[4*units]"), *_FACTORS,
)  # fmt: skip
_TOKENS = _inputs(
    ("tokens", "[time, batch]", "token"), ("table", "[vocab, 4*units>=1]"), *_STATE,
    ("recurrent_kernel", "[units, 4*units]"), *_FACTORS,
)  # fmt: skip
_KEPT = _inputs(
    ("h", "[time, batch, units]"), ("gates", "[time, batch, 4*units]"),
    ("cells", "[time, batch, units]"), ("dh", "[time, batch, units]"),
    ("dfinal_h", "[batch, units]"), ("dfinal_c", "[batch, units]"),
)  # fmt: skip
_TRAINING = {"is_training": (True, False)}
_NORM = {"is_training": (True, False), "activation": ("Identity", "Relu"), "data_format": ("NHWC",)}
_ROWS = "[batch, channels] or [batch, height, width, channels]"

_RULES = {
    "Sgd": ((), (), ("lr", "weight_decay")),
    "Momentum": (("accum",), (), ("lr", "momentum", "weight_decay")),
    "Adam": (("m", "v"), ("count",), ("lr", "beta1", "beta2", "epsilon", "weight_decay")),
}
_KINDS = {"momentum": "fraction", "beta1": "fraction", "beta2": "fraction"}
_MOMENTUM = {"use_nesterov": (False, True), "lr_in_accum": (False, True)}


def _update(target, rule):
    slots, counts, hyper = _RULES[rule]
    member = target == "Member"
    shape = "[K>=1, ...]" if member else "[...]"
    return Signature(
        f"{target}Apply{rule}",
        _variables("var", shape=shape, kind="T")
        + _variables(*slots, shape=shape.replace(">=1", ""))
        + _variables(*counts, shape="[K]" if member else "[]", kind="int64")
        + (() if member else _variables("sum", shape=shape))
        + _inputs(("member", "[]", "member" if member else "position"))
        + (() if member else _inputs(("cycle", "[]", "cycle"), ("scale", "[]", "scale")))
        + tuple(Input(name, "[]", _KINDS.get(name, "rate")) for name in hyper)
        + _inputs(("grad", "[...] or [K, ...]" if member else "[...]")),
        _MOMENTUM if rule == "Momentum" else {},
    )


SIGNATURES = (
    Signature("Rank1Lstm", _DENSE, _TRAINING),
    Signature("Rank1LstmTokens", _TOKENS, _TRAINING),
    Signature("Rank1LstmGrad", tuple(i for i in _DENSE if i.name != "bias") + _KEPT),
    Signature("Rank1LstmTokensGrad", _TOKENS + _KEPT),
    Signature(
        "BatchNorm",
        _inputs(
            ("x", _ROWS), ("scale", "[K>=1, channels]", "U"), ("offset", "[K, channels]", "U"),
            ("mean", "[K, channels]", "U"), ("variance", "[K, channels]", "variance"),
            ("member", "[]", "member"),
        ),
        _NORM | {"epsilon": (1e-5, 1e-3, 1.0), "momentum": (0.0, 0.1, 1.0)},
    ),
    Signature(
        "BatchNormGrad",
        _inputs(
            ("x", _ROWS), ("scale", "[K>=1, channels]", "U"), ("offset", "[K, channels]", "U"),
            ("member", "[]", "member"), ("saved_mean", "[channels]", "U"),
            ("saved_mean_rest", "[channels]", "rest"), ("saved_inv_std", "[channels]", "variance"),
            ("dy", "as x"),
        ),
        _NORM,
    ),
    Signature(
        "SoftmaxCrossEntropy",
        _inputs(
            ("features", "[n, units]"), ("kernel", "[units, vocab>=1]"), ("bias", "[vocab]"),
            ("labels", "[n]", "label"),
        ),
    ),
    Signature(
        "SoftmaxCrossEntropyGrad",
        _inputs(
            ("features", "[n, units]"), ("kernel", "[units, vocab>=1]"),
            ("dlogits", "[n, vocab]"), ("dloss", "[n]"),
        ),
    ),
    *(_update(target, rule) for target in ("Member", "Base") for rule in _RULES),
    Signature(
        "ReadMember", _variables("var", shape="[K>=1, ...]", kind="T")
        + _inputs(("member", "[]", "member")),
    ),
    Signature("Collapse", _variables("var", shape="[K>=1, ...]", kind="T")),
    Signature(
        "Spawn", _variables("var", shape="[K>=1, ...]", kind="T")
        + _inputs(("sigma", "[]", "rate"), ("seed", "[2]", "int64")),
    ),
    Signature(
        "SwaUpdate", _variables("average", shape="[...]")
        + _variables("source", shape="[...]", kind="T") + _inputs(("count", "[]", "count")),
    ),
)  # fmt: skip


class Shapes:
    """The sizes that words stand for in a call."""

    def __init__(self, sizes=None):
        self.sizes = dict(sizes or {})

    def resolve(self, shape):
        """The sizes of a shape, all of whose words are known."""
        sizes = []
        for word in re.findall(r"[^\[\], ]+", shape):
            name = word.partition(">=")[0]
            if name == "...":
                sizes.extend(self.sizes["..."])
                continue
            factor, star, rest = name.partition("*")
            sizes.append(int(factor) * self.sizes[rest] if star else
                         int(name) if name.isdigit() else self.sizes[name])  # fmt: skip
        return tuple(sizes)

    def match(self, shape, sizes):
        """Whether an input may have these sizes; remembers what they say of the words."""
        alternatives = shape.split(" or ")
        if "..." in shape:
            return any(self._match_open(one, sizes) for one in alternatives)
        fitting = [one for one in alternatives if len(_words(one)) == len(sizes)]
        return bool(fitting) and all(
            self._match_size(word, size) for word, size in zip(_words(fitting[0]), sizes)
        )

    def _match_open(self, shape, sizes):
        words = _words(shape)[:-1]  # before "..."
        if len(sizes) < len(words):
            return False
        rest = tuple(sizes[len(words) :])
        if self.sizes.get("...", rest) != rest:
            return False
        if not all(self._match_size(word, size) for word, size in zip(words, sizes)):
            return False
        self.sizes["..."] = rest
        return True

    def _match_size(self, word, size):
        name, _, least = word.partition(">=")
        if name.isdigit():
            return int(name) == size
        factor, star, rest = name.partition("*")
        if star:
            if size % int(factor):
                return False
            name, size = rest, size // int(factor)
        return size >= int(least or 0) and self.sizes.setdefault(name, size) == size


def _words(shape):
    return re.findall(r"[^\[\], ]+", shape)
