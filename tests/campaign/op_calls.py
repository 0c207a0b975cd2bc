"""Random calls of the ops, most of them as documented and some with one fault.

A call is drawn from its number and a seed alone, so that one that goes wrong can be repeated by
itself. `expected` says whether the op must accept it, by the rules of docs/ops.md.
"""

import dataclasses

import numpy as np
import tensorflow as tf

from tests.campaign.op_signatures import RANGES, SIGNATURES, Shapes, in_range

TYPES = {
    "half": np.float16,
    "bfloat16": tf.bfloat16.as_numpy_dtype,
    "float": np.float32,
    "double": np.float64,
}
_SIZES = [0, 1, 1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 33, 64, 65]
_MOST = 20000  # elements of one array; a size beside a zero may be much larger
_HUGE = [2**20 + 1, 2**31 - 1, 2**31, 2**40]
_EXTREME = [-(2**31), -(2**31) + 1, -1, 2**30, 2**31 - 2, 2**31 - 1]
_WILD = [np.inf, -np.inf, 1e-40, 5e-324, 6e-8, 65504.0, 3e38, -3e38, 1.7e308, 0.0, -0.0]
_LONG = [-(2**63), -1, 0, 1, 2**31, 2**53, 2**63 - 1]


def wide(dtype):
    """The type of slots, sums, averages and statistics."""
    return np.float64 if dtype == np.float64 else np.float32


@dataclasses.dataclass
class Call:
    number: int
    signature: object
    dtype: str
    attributes: dict
    values: dict  # name -> array; of a variable, its value
    specials: str  # what the values hold besides random numbers: "", "nan", "wild"
    fault: str = ""  # what is wrong with it, or might be
    same: tuple = ()  # two variables that are one
    handle: tuple = ()  # a variable and what is wrong with its handle
    layout: str = "plain"  # of variables: "held" by a reader, in "copy-on-read" mode

    def __str__(self):
        shapes = ", ".join(
            f"{name} {value.dtype}{list(value.shape)}" + (f" = {value}" if value.size == 1 else "")
            for name, value in self.values.items()
        )
        return (
            f"call {self.number}: {self.signature.op}, {self.dtype}, {shapes}, {self.attributes}, "
            f"values {self.specials or 'random'}, fault: {self.fault or 'none'}, {self.layout}"
        )

    def index(self, name):
        return int(self.values[name])

    def expected(self):
        """Whether the op must accept the call."""
        if self.same or self.handle:
            return False
        shapes = Shapes()
        unused = self.unused()
        for one in self.signature.inputs:
            value = self.values[one.name]
            if one.name in unused:
                continue
            shape = one.shape if one.shape != "as x" else None
            if shape is None:
                if value.shape != self.values["x"].shape:
                    return False
            elif not shapes.match(shape, value.shape):
                return False
        return all(
            self._value_fits(one, shapes.sizes)
            for one in self.signature.inputs
            if one.name not in unused
        )

    def unused(self):
        """Inputs that the op does not look at: the sum in cycles of one."""
        cycle = self.values.get("cycle")
        return {"sum"} if cycle is not None and cycle.shape == () and cycle == 1 else set()

    def _value_fits(self, one, sizes):
        value = self.values[one.name]
        if one.kind in RANGES:
            return in_range(one.kind, float(value))
        if one.kind == "member":
            return 0 <= value < sizes["K"]
        if one.kind == "position":
            return 0 <= value < self.index("cycle")
        if one.kind == "cycle":
            return value >= 1
        if one.kind == "count":
            return value >= 0
        if one.kind in ("token", "label"):
            return bool(((value >= 0) & (value < sizes["vocab"])).all())
        return True


class _Maker:
    def __init__(self, seed, number):
        self.random = np.random.default_rng([seed, number])
        self.number = number

    def chance(self, share):
        return self.random.random() < share

    def pick(self, values):
        return values[self.random.integers(len(values))]

    def call(self):
        signature = self.pick(SIGNATURES)
        name = self.pick(list(TYPES))
        shapes = self.shapes(signature)
        attributes = {key: self.pick(values) for key, values in signature.attributes.items()}
        specials = self.pick(["", "", "", "", "nan", "wild"])
        call = Call(self.number, signature, name, attributes, {}, specials)
        for one in signature.inputs:
            call.values[one.name] = self.value(call, one, shapes)
        call.layout = self.pick(["plain", "plain", "held", "copy-on-read"])
        if self.chance(0.3):
            self.spoil(call, shapes)
        return call

    def shapes(self, signature):
        """Sizes for all words; now and then one of them is zero and another one huge."""
        text = " ".join(one.shape for one in signature.inputs)
        names = [
            name
            for name in ("time", "batch", "input", "units", "K", "vocab", "channels", "height",
                         "width", "n")
            if name in text
        ]  # fmt: skip
        sizes = {name: int(self.pick(_SIZES)) for name in names}
        if "time" in sizes:
            sizes["time"] %= 10
        for name in ("K", "units", "vocab"):
            if name in sizes and f"{name}>=1" in text:
                sizes[name] = max(1, sizes[name])
        if "vocab" in sizes and "4*units>=1" in text:
            sizes["units"] = max(1, sizes["units"])
        sizes["..."] = [int(self.pick(_SIZES)) for _ in range(self.random.integers(0, 5))]
        shapes = Shapes(sizes)
        sizes = shapes.sizes
        while self.too_large(signature, shapes):
            largest = max(names + ["..."], key=lambda key: np.max(sizes[key], initial=0))
            if largest == "...":
                sizes["..."] = [max(1, size // 2) if size else 0 for size in sizes["..."]]
            else:
                sizes[largest] = max(1, sizes[largest] // 2)
        self.huge(signature, shapes)
        return shapes

    def too_large(self, signature, shapes):
        return any(
            np.prod([float(size) for size in shapes.resolve(shape)]) > _MOST
            for one in signature.inputs
            for shape in self.alternatives(one)
        )

    def alternatives(self, one):
        return [] if one.shape == "as x" else one.shape.split(" or ")

    def huge(self, signature, shapes):
        """A size far beyond memory, where another one makes the array empty."""
        if "..." in " ".join(one.shape for one in signature.inputs) and self.chance(0.05):
            shapes.sizes["..."] = [0, int(self.pick(_HUGE))]

    def value(self, call, one, shapes):
        alternatives = self.alternatives(one)
        shape = (
            call.values["x"].shape
            if not alternatives
            else shapes.resolve(alternatives[self.random.integers(len(alternatives))])
        )
        narrow = TYPES[call.dtype]
        if one.kind in RANGES:
            return np.asarray(self.hyper(one.kind), narrow)
        if one.kind in ("U", "variance", "rest"):
            return self.numbers(call, one, shape, wide(narrow))
        if one.kind == "T":
            return self.numbers(call, one, shape, narrow)
        return self.integers(call, one, shape, shapes.sizes)

    def hyper(self, kind):
        if kind == "fraction":
            return self.pick([0.0, 0.5, 0.875, 0.9, 0.99])
        return self.pick([0.125, 0.5, 1.0] if kind == "scale" else [0.0, 1e-3, 0.05, 0.5, 1.0])

    def numbers(self, call, one, shape, dtype):
        values = self.random.normal(size=shape)
        if one.kind == "variance" or one.name == "v" and one.variable:
            values = np.abs(values) + 0.01
        elif one.kind == "rest":
            values = values * 1e-9
        elif one.name == "recurrent_kernel":  # a step must not magnify the rounding of the last
            values = values * 0.3 / np.sqrt(max(1, shape[0]))
        elif one.name == "gates":
            values = 0.5 + 0.4 * np.tanh(values)
        if call.specials and values.size and one.kind in ("T", "U") and self.chance(0.5):
            special = {"nan": [np.nan], "wild": _WILD}[call.specials]
            places = self.random.integers(values.size, size=self.random.integers(1, 4))
            values.reshape(-1)[places] = self.pick(special)
        with np.errstate(over="ignore"):
            return values.astype(dtype)

    def integers(self, call, one, shape, sizes):
        if one.kind == "member":
            return np.asarray(self.random.integers(sizes["K"]), np.int32)
        if one.kind == "position":  # before `cycle`, which follows
            return np.asarray(self.random.integers(4), np.int32)
        if one.kind == "cycle":
            return np.asarray(call.values["member"] + self.random.integers(1, 4), np.int32)
        if one.kind in ("token", "label"):
            return self.random.integers(max(1, sizes["vocab"]), size=shape, dtype=np.int32)
        if one.kind == "count":
            return np.asarray(self.pick([0, 0, 1, 2, 10, 10**9, 2**53, 2**63 - 1]), np.int64)
        if one.name == "seed":
            return np.asarray([self.pick(_LONG), self.random.integers(2**62)], np.int64)
        return self.random.integers(0, 20, size=shape, dtype=np.int64)  # Adam's counts

    # --- faults

    def spoil(self, call, shapes):
        kinds = [self.spoil_shape, self.spoil_rank, self.spoil_number]
        variables = [one for one in call.signature.inputs if one.variable]
        if variables:
            kinds += [self.spoil_handle, self.spoil_alias]
        self.pick(kinds)(call)

    def any_input(self, call):
        return self.pick(call.signature.inputs)

    def spoil_shape(self, call):
        one = self.any_input(call)
        value = call.values[one.name]
        if not value.ndim:
            return self.spoil_rank(call)
        shape = list(value.shape)
        axis = self.random.integers(value.ndim)
        shape[axis] = int(self.pick([0, 1, shape[axis] + 1, max(0, shape[axis] - 1), 2]))
        if np.prod([float(size) for size in shape]) <= 4 * _MOST:
            call.values[one.name] = np.resize(value, shape).astype(value.dtype)
            call.fault = f"`{one.name}` is {shape}"
        return None

    def spoil_rank(self, call):
        one = self.any_input(call)
        value = call.values[one.name]
        if value.ndim and self.chance(0.5):
            changed = value.reshape(-1) if value.ndim > 1 else value.reshape(-1)[:1].sum()
        else:
            changed = value[None]
            while changed.ndim < 5 and self.chance(0.3):
                changed = changed[None]
        call.values[one.name] = np.asarray(changed, value.dtype)
        call.fault = f"`{one.name}` is {list(np.shape(changed))}"

    def spoil_number(self, call):
        """A scalar, a token or a label out of its range, or just at its end."""
        kinds = (*RANGES, "member", "position", "cycle", "token", "label", "count")
        inputs = [one for one in call.signature.inputs if one.kind in kinds]
        if not inputs:
            return self.spoil_shape(call)
        one = self.pick(inputs)
        value = call.values[one.name]
        if one.kind in RANGES:
            new = self.pick([-1.0, -1e-6, np.nan, np.inf, -np.inf, 1.0, 1.5, 0.0])
        elif one.kind == "count":
            new = self.pick([-1, -(2**63)])
        else:
            new = self.pick([*_EXTREME, int(np.max(value, initial=0)) + 1, 1000])
        if value.size:
            changed = value.copy()
            changed.reshape(-1)[self.random.integers(value.size)] = new
            call.values[one.name] = changed
            call.fault = f"`{one.name}` holds {new}"
        return None

    def spoil_handle(self, call):
        unused = call.unused()
        one = self.pick(
            [one for one in call.signature.inputs if one.variable and one.name not in unused]
        )
        what = self.pick(["uninitialised", "another type", "no variable", "another container"])
        call.fault = f"the handle of `{one.name}` is of {what}"
        if what != "another container":  # which is as good as any
            call.handle = (one.name, what)
        else:
            call.layout = "another container"

    def spoil_alias(self, call):
        unused = call.unused()
        variables = [
            one.name for one in call.signature.inputs if one.variable and one.name not in unused
        ]
        if len(variables) < 2:
            return self.spoil_handle(call)
        first, second = self.random.choice(len(variables), 2, replace=False)
        call.same = (variables[min(first, second)], variables[max(first, second)])
        call.fault = f"`{call.same[0]}` and `{call.same[1]}` are one variable"
        return None


def make(seed, number):
    return _Maker(seed, number).call()
