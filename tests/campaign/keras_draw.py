"""Draws the network of a random program (keras_networks.py), with its members."""

from tests.campaign.keras_networks import OWN, VOCABULARY, Layer, Network

_ACTIVATIONS = [None, "tanh", "relu", "sigmoid", "softplus"]
_PATTERNS = {
    "Dense": ["kernel", "bias"],
    "Conv1D": ["kernel"],
    "Conv2D": ["bias", "kernel|bias"],
    "Embedding": ["embeddings"],
    "GRU": ["recurrent", "bias"],
    "LSTM": ["recurrent_kernel"],
    "Bidirectional": ["forward", "bias"],
    "LayerNormalization": ["gamma"],
    "BatchNormalization": ["gamma", "beta"],
    "GroupNormalization": ["beta"],
    "Attention": ["bias", "query"],
    "Block": ["kernel", "norm"],
}
_ALL = [kind for kind in _PATTERNS if kind != "BatchNormalization"] + ["RMSNormalization"]


class Draw:
    """Layers one after the other, each with a name of its own."""

    def __init__(self, random):
        self.random, self.count = random, 0

    def chance(self, probability):
        return bool(self.random.random() < probability)

    def one(self, values):
        return values[int(self.random.integers(len(values)))]

    def layer(self, kind, **options):
        self.count += 1
        return Layer(kind, f"l{self.count - 1}", options)

    def size(self):
        return int(self.random.integers(1, 5))

    def dense(self, units=None):
        options = {"units": units or self.size(), "activation": self.one(_ACTIVATIONS)}
        if units:
            options["activation"] = None
        if self.chance(0.15):
            options["use_bias"] = False
        if self.chance(0.15):
            options["kernel_regularizer"] = 2.0**-4
        elif self.chance(0.15):
            options["kernel_constraint"] = self.one(["NonNeg", "MaxNorm"])
        elif self.chance(0.1):
            options["lora_rank"] = self.one([1, 2])
        return self.layer("Dense", **options)

    def batch_norm(self):
        options = {"momentum": self.one([0.5, 0.75, 0.9375]), "epsilon": 2.0**-8}
        if self.chance(0.3):
            options[self.one(["scale", "center"])] = False
        return self.layer("BatchNormalization", **options)

    def normalization(self):
        if self.chance(0.6):
            return self.batch_norm()
        kind = self.one(["LayerNormalization", "RMSNormalization"])
        return self.layer(kind, epsilon=2.0**-8)

    def recurrent(self, last):
        kind = self.one(["LSTM", "LSTM", "GRU", "RNN", "Bidirectional"])
        options = {"units": self.size(), "return_sequences": not last}
        if kind == "Bidirectional":
            options["inner"] = self.one(["LSTM", "GRU"])
        return self.layer(kind, **options)

    def vector(self):
        makers = [self.dense, self.normalization, self.block, self.rank1_dense]
        return [self.one(makers)() for _ in range(self.random.integers(1, 4))]

    def block(self):
        return self.layer("Block", units=self.size())

    def rank1_dense(self):
        return self.layer("Rank1Dense", units=self.size(), activation=self.one(_ACTIVATIONS))

    def image(self):
        filters = self.one([2, 4])
        layers = [self.layer("Conv2D", filters=filters, kernel_size=2, padding="same")]
        if self.chance(0.7):
            layers.append(self.normalization())
        elif self.chance(0.5):
            layers.append(self.layer("GroupNormalization", groups=2))
        return [*layers, self.layer("Activation", activation="relu"), self.layer("Flatten")]

    def sequence(self):
        """Of [N, T, C]; the last layer may take the time away."""
        layers = []
        for _ in range(self.random.integers(0, 3)):
            layers.append(self.one([
                self.normalization,
                lambda: self.recurrent(False),
                lambda: self.layer("TimeDistributed", units=self.size(), activation="tanh"),
                lambda: self.layer("Attention", num_heads=1, key_dim=2),
                lambda: self.layer("Conv1D", filters=self.size(), kernel_size=2, padding="same"),
            ])())  # fmt: skip
        if self.chance(0.6):
            pooled = self.layer("GlobalAveragePooling1D")
            layers.append(pooled if self.chance(0.4) else self.recurrent(True))
        return layers

    def tokens(self):
        size = self.size()
        table = self.layer("Embedding", input_dim=VOCABULARY, output_dim=size)
        layers = self.sequence()
        maskable = (
            "LSTM",
            "GRU",
            "RNN",
            "Bidirectional",
            "LayerNormalization",
            "BatchNormalization",
        )
        if layers and all(layer.kind in maskable for layer in layers):
            table.options["mask_zero"] = self.chance(0.5)
        return [table, *layers]


def network(random, converted):
    """A Network; with `converted` plain but for layers that only late_phase.keras has."""
    draw = Draw(random)
    inputs = draw.one(["vector"] * 4 + ["image", "sequence", "tokens", "tokens", "tied"])
    if inputs == "tied":
        layers = [draw.layer("Embedding"), draw.layer("Dense")]
        layers[1].late = "" if converted else "own"
        made = Network(inputs, draw.size() + 1, layers[:1], [layers[1:]], ["classes"], False)
    else:
        trunk, heads, losses = getattr(draw, inputs)(), [], []
        for _ in range(draw.one([1, 1, 2, 3])):
            before = [draw.dense()] if draw.chance(0.2) else []
            losses.append(draw.one(["mse", "classes"]))
            heads.append([*before, draw.dense(draw.size() + (losses[-1] == "classes"))])
            if losses[-1] == "mse" and draw.chance(0.2):
                heads[-1].append(draw.layer("Activation", activation="tanh"))
        sequential = len(heads) == 1 and draw.chance(0.5)
        sequential = sequential and all(layer.kind != "Attention" for layer in trunk)
        made = Network(inputs, draw.size() + 1, trunk, heads, losses, sequential)
        _choose(draw, made, converted)
    if converted:
        made.weights = weights(draw, made)
    return made


def _choose(draw, made, converted):
    """Which layers are built with members, and which are frozen."""
    for layer in made.layers():
        if "lora_rank" in layer.options:  # which layers with members of their own do not have
            layer.late = "" if converted else draw.one(["", "all", "lora"])
        elif layer.kind in OWN and draw.chance(0.1 if converted else 0.4):
            if converted and layer.kind in ("Dense", "BatchNormalization", "TimeDistributed"):
                continue
            if layer.options.get("inner") != "GRU":
                layer.late = "own"
        elif not converted and layer.kind in _ALL and draw.chance(0.3):
            layer.late = "all"
        elif not converted and layer.kind in _PATTERNS and draw.chance(0.3):
            layer.late = _pattern(draw, layer)
        elif layer in made.trunk and layer.kind in ("Dense", "Conv2D", "Embedding", "LSTM"):
            layer.frozen = draw.chance(0.1)
    if not converted and not any(layer.late for layer in made.layers()):
        next(layer for layer in reversed(made.heads[0]) if layer.kind == "Dense").late = "all"


def _pattern(draw, layer):
    pattern = draw.one(_PATTERNS[layer.kind])
    options = layer.options
    lacks = {"gamma": not options.get("scale", True), "beta": not options.get("center", True)}
    lacks["bias"] = not options.get("use_bias", True)
    return "" if lacks.get(pattern) else pattern


def _in_bias(variable):
    """biases"""
    return "bias" in variable.path


def _in_first(variable):
    """all of the first layer"""
    return "l0" in variable.path.split("/")


def weights(draw, made):
    """What `convert` is asked to choose; sometimes that is nothing."""
    if made.has_lora() and draw.chance(0.5):
        return draw.one(["lora", "head + lora"])
    return draw.one([
        "batch_norm + head",
        "head",
        ["head"],
        "normalization + head",
        ["batch_norm + head", "bias"],
        "batch_norm",
        "kernel",
        "bias|gamma",
        "l0/",
        "l1 + head",
        ["gamma", "beta"],
        "recurrent",
        _in_bias,
        _in_first,
    ])  # fmt: skip
