"""The networks of random programs: drawn, and built with members or as plain Keras models."""

import dataclasses

import keras

import late_phase.keras

TIME, VOCABULARY = 3, 5


@dataclasses.dataclass
class Layer:
    """One layer as it is drawn.

    `late`: "" for none; "own": its form with members of late_phase.keras, "all": `Members`; or the
    pattern of a `Members`.
    """

    kind: str
    name: str
    options: dict
    late: str = ""
    frozen: bool = False

    def make(self, members):
        """The Keras layer; a plain one if `members` is None."""
        own = members if self.late == "own" else None
        made = _MAKERS[self.kind](self, own)
        made.trainable = not self.frozen
        if members is None or self.late in ("", "own"):
            return made
        weights = None if self.late == "all" else self.late
        return late_phase.keras.Members(made, members=members, weights=weights)

    def __str__(self):
        options = ", ".join(f"{name}={value}" for name, value in self.options.items())
        notes = "".join(f" [{note}]" for note in (self.late, "frozen" * self.frozen) if note)
        return f"{self.kind}({options}){notes}"


@dataclasses.dataclass
class Network:
    """Layers from the input to the heads, and what `convert` is asked to choose, if it is called.

    Attributes:
      inputs: "vector", "image", "sequence", "tokens", or "tied": the head is the table of tokens.
      weights: None: layers are built with their members; else an argument of `convert`.
    """

    inputs: str
    features: int
    trunk: list
    heads: list  # of lists of layers
    losses: list  # of each head "mse" or "classes"
    sequential: bool
    weights: object = None

    def layers(self):
        return [*self.trunk, *(layer for head in self.heads for layer in head)]

    def has_lora(self):
        return any("lora_rank" in layer.options for layer in self.layers())

    def build(self, members=None):
        if self.inputs == "tied":
            model = Tied(self.features, members if self.weights is None else None, name="net")
            model(keras.ops.zeros((1, TIME), dtype="int32"))
            return model
        shape = {
            "vector": (self.features,),
            "image": (4, 3, self.features),
            "sequence": (TIME, self.features),
            "tokens": (TIME,),
        }[self.inputs]
        x = inputs = keras.Input(shape, dtype="int32" if self.inputs == "tokens" else None)
        if self.sequential:
            layers = [layer.make(members) for layer in self.layers()]
            return keras.Sequential([inputs, *layers], name="net")
        for layer in self.trunk:
            x = _applied(layer, x, members)
        outputs = []
        for head in self.heads:
            y = x
            for layer in head:
                y = _applied(layer, y, members)
            outputs.append(y)
        return keras.Model(inputs, outputs if len(outputs) > 1 else outputs[0], name="net")

    def __str__(self):
        trunk = ", ".join(map(str, self.trunk))
        heads = "; ".join(
            f"{', '.join(map(str, head))} -> {loss}" for head, loss in zip(self.heads, self.losses)
        )
        form = "Sequential" if self.sequential else "Functional"
        converted = "" if self.weights is None else f", converted with {name_of(self.weights)}"
        return f"{form} of {self.inputs}[{self.features}]: {trunk} | {heads}{converted}"


def name_of(weights):
    return f"a function: {weights.__doc__}" if callable(weights) else repr(weights)


def _applied(layer, x, members):
    made = layer.make(members)
    return x + made(x, x) if layer.kind == "Attention" else made(x)


@keras.saving.register_keras_serializable("campaign")
class Tied(keras.Model):
    """A table in which tokens are looked up, and whose transpose makes the logits."""

    def __init__(self, size, members, **kwargs):
        super().__init__(**kwargs)
        self.size, self.members = size, members
        self.table = keras.layers.Embedding(VOCABULARY, size, name="l0")
        head = {} if members is None else {"members": members}
        kind = keras.layers.Dense if members is None else late_phase.keras.Dense
        self.head = kind(size, name="l1", **head)

    def call(self, tokens, training=False):
        x = self.head(keras.ops.mean(self.table(tokens), axis=1), training=training)
        return x @ keras.ops.transpose(self.table.embeddings)

    def get_config(self):
        return {**super().get_config(), "size": self.size, "members": self.members}


def _of_own(plain, late):
    """A maker of a layer that has a form with members."""

    def make(layer, members):
        options = {**layer.options, "name": layer.name}
        for name, value in options.items():
            if name.endswith("_regularizer"):
                options[name] = keras.regularizers.L2(value)
            elif name.endswith("_constraint"):
                options[name] = getattr(keras.constraints, value)()
        return plain(**options) if members is None else late(members=members, **options)

    return make


def _of_keras(plain):
    return lambda layer, members: plain(**layer.options, name=layer.name)


def _around(wrapper, inner):
    """A maker of a layer with another one inside, which may be one with members."""

    def make(layer, members):
        options = dict(layer.options)
        kind = inner or options.pop("inner")
        one = Layer(kind, f"{layer.name}_inner", options, layer.late).make(members)
        return wrapper(one, name=layer.name)

    return make


def _of_cell(layer, members):
    """A loop over the steps of a cell."""
    options = {**layer.options}
    returns = {"return_sequences": options.pop("return_sequences")}
    if members is None:
        cell = keras.layers.LSTMCell(**options)
    else:
        cell = late_phase.keras.Rank1LSTMCell(members=members, **options)
    return keras.layers.RNN(cell, name=layer.name, **returns)


def _block(layer, members):
    """A nested model."""
    name, units = layer.name, layer.options["units"]
    return keras.Sequential(
        [
            keras.layers.Dense(units, name=f"{name}_dense"),
            keras.layers.BatchNormalization(name=f"{name}_norm", momentum=0.75),
            keras.layers.Activation("tanh", name=f"{name}_tanh"),
        ],
        name=name,
    )


_L, _P = keras.layers, late_phase.keras
_MAKERS = {
    "Dense": _of_own(_L.Dense, _P.Dense),
    "BatchNormalization": _of_own(_L.BatchNormalization, _P.BatchNormalization),
    "Rank1Dense": _of_own(_L.Dense, _P.Rank1Dense),
    "Conv2D": _of_own(_L.Conv2D, _P.Rank1Conv2D),
    "LSTM": _of_own(_L.LSTM, _P.Rank1LSTM),
    "Bidirectional": _around(_L.Bidirectional, None),
    "TimeDistributed": _around(_L.TimeDistributed, "Dense"),
    "RNN": _of_cell,
    "Block": _block,
    "Attention": _of_keras(_L.MultiHeadAttention),
    **{
        kind: _of_keras(getattr(_L, kind))
        for kind in [
            "Activation", "Conv1D", "Embedding", "Flatten", "GlobalAveragePooling1D", "GRU",
            "GroupNormalization", "LayerNormalization", "RMSNormalization",
        ]
    },
}  # fmt: skip
# Kinds with a form of their own, of which only factors have members.
RANK1 = ("Rank1Dense", "Conv2D", "LSTM", "RNN", "Bidirectional")
OWN = ("Dense", "BatchNormalization", "TimeDistributed", *RANK1)
