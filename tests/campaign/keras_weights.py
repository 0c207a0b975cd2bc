"""The weights of a network as the reference keeps them, and which of them have members.

A weight is base or late (with members), or a statistic of BatchNormalization, of which each member
may have its own. Which is which follows from the drawn network and from what `convert` documents.
"""

import dataclasses
import re

import keras
import numpy as np

from tests.campaign.keras_networks import RANK1


@dataclasses.dataclass
class Weight:
    """One array, [...], or [K, ...] if it is late.

    Attributes:
      place: in the weights of the plain model; None: a rank-1 factor, which that has not.
      target: of a factor the place of the kernel that it scales.
      kind: "trained", "frozen" or "statistic".
      momentum: of a statistic.
    """

    name: str
    path: str
    place: int | None
    kind: str
    late: bool
    value: np.ndarray = None
    target: int | None = None
    momentum: float = 0.0
    l2: float = 0.0
    constraint: str = ""

    def key(self):
        """What identifies it in every model of a network; paths of factors differ."""
        return self.place, self.target, self.name

    def row(self, k):
        """A member's row, or the mean of all; of a base weight itself."""
        if not self.late:
            return self.value
        return self.value.mean(axis=0) if k is None else self.value[k]

    def constrained(self, w):
        if self.constraint == "NonNeg":
            return np.maximum(w, 0)
        if self.constraint == "MaxNorm":
            norms = np.sqrt(np.sum(w * w, axis=0, keepdims=True))
            return w * np.clip(norms, 0, 2) / (1e-7 + norms)
        return w


def choose(network, plain, source):
    """The places of weights that `convert` gives members, and of their own statistics.

    None if it must refuse, because something in `weights` chooses nothing, or a weight of a layer
    of `source`, the model to be converted, that has members already.
    """
    weights, paths = network.weights, [weight.path for weight in plain.weights]
    parts = [weights] if not isinstance(weights, list) else weights
    names = [n for part in parts for n in ([part] if callable(part) else part.split(" + "))]
    norms = [i for i, path in enumerate(paths) if _layer_of(plain, i) == "BatchNormalization"]
    chosen, anything = set(), False
    for name in names:
        found = set()
        if name == "head":
            heads = [next(x for x in reversed(head) if x.kind == "Dense") for head in network.heads]
            found = {i for i, p in enumerate(paths) if any(x.name in p.split("/") for x in heads)}
        elif name in ("batch_norm", "normalization"):
            found = set(norms)
            if name == "normalization":
                kinds = ("LayerNormalization", "RMSNormalization", "GroupNormalization")
                found |= {i for i in range(len(paths)) if _layer_of(plain, i) in kinds}
        else:
            found = {i for i in _trained(plain) if _matches(name, plain.weights[i])}
            has_members = [v for v in source.trainable_weights if _was_built_late(network, v)]
            if not found or any(_matches(name, v) for v in has_members):
                return None
        chosen |= found
        anything = anything or bool(found)
    if network.inputs == "tied" and 0 in chosen:
        return None  # the table, which `call` uses without calling its layer
    chosen -= set(range(len(paths))) - set(_trained(plain)) - set(norms)
    # A BatchNormalization all of whose trained weights are chosen has members as a whole.
    for i in norms:
        own = {j for j in norms if _folder(paths[j]) == _folder(paths[i])}
        trained = own & set(_trained(plain))
        if trained and trained <= chosen:
            chosen |= own
        elif trained:
            chosen -= own - trained
    return chosen if anything else None


def _matches(name, variable):
    return name(variable) if callable(name) else re.search(name, variable.path)


def _trained(plain):
    """The places of trained weights."""
    return [i for i, weight in enumerate(plain.weights) if weight.trainable]


def _folder(path):
    return path.rpartition("/")[0]


def _layer_of(plain, place):
    """The class of the layer that a weight is of."""
    variable = plain.weights[place]
    owner = [
        layer
        for layer in plain._flatten_layers()
        if any(v is variable for v in layer._trainable_variables + layer._non_trainable_variables)
    ]
    return type(owner[0]).__name__


def _was_built_late(network, variable):
    names = variable.path.split("/")
    return any(layer.late and layer.name in names for layer in network.layers())


def _is_late(network, variable):
    """Whether a weight was built with members, or is a statistic of each."""
    names = variable.path.split("/")
    for layer in network.layers():
        if layer.name in names and layer.late == "own":
            return layer.kind not in RANK1  # of which only the factors are late
        if layer.name in names and layer.late:
            return variable.trainable and bool(
                layer.late == "all" or re.search(layer.late, variable.path)
            )
    return False


def weights_of(network, plain, library, chosen):
    """[(Weight, the variable of the library's model)], without values.

    Args:
      network: as drawn.
      plain: its plain model.
      library: its model with members.
      chosen: what `choose` gave; None if the model was not converted.
    """
    trained = {id(v) for v in plain.trainable_weights}
    factors = [v for v in library.weights if v.name in ("u", "v")]
    others = [v for v in library.weights if v.name not in ("u", "v")]
    if len(others) != len(plain.weights):
        raise AssertionError(f"{len(others)} weights instead of {len(plain.weights)}")
    pairs, targets = [], []
    for place, (own, variable) in enumerate(zip(plain.weights, others)):
        late = _is_late(network, own) or place in (chosen or ())
        kind = "trained" if id(own) in trained else "frozen"
        if own.name in ("moving_mean", "moving_variance"):
            kind = "statistic"
        weight = Weight(own.name, own.path, place, kind, late)
        _add_options(network, weight)
        pairs.append((weight, variable))
        if _is_scaled(network, own):
            targets.append(place)
    for number, variable in enumerate(factors):
        target = targets[number // 2]
        frozen = pairs[target][0].kind == "frozen"
        weight = Weight(variable.name, variable.path, None, "trained", True, target=target)
        weight.kind = "frozen" if frozen else "trained"
        pairs.append((weight, variable))
    return pairs


def _is_scaled(network, variable):
    """Whether a weight is a kernel that factors scale."""
    names = variable.path.split("/")
    for layer in network.layers():
        if layer.name in names and layer.late == "own" and layer.kind in RANK1:
            recurrent = layer.kind in ("LSTM", "RNN", "Bidirectional")
            return variable.name == ("recurrent_kernel" if recurrent else "kernel")
    return False


def _add_options(network, weight):
    names = weight.path.split("/")
    for layer in network.layers():
        if layer.name in names:
            if weight.name == "kernel":
                weight.l2 = layer.options.get("kernel_regularizer", 0.0)
                weight.constraint = layer.options.get("kernel_constraint", "")
            weight.momentum = layer.options.get("momentum", 0.75)  # as in a block


def scatter(pairs, random):
    """Gives all weights values of their own, and all members the same."""
    for weight, variable in pairs:
        low = 0.4 if weight.name in ("gamma", "moving_variance", "u", "v") else -0.8
        shape = variable.shape[1:] if weight.late else variable.shape
        value = random.uniform(low, 0.9, shape)
        variable.assign(np.stack([value] * variable.shape[0]) if weight.late else value)


def batch_norms(plain):
    return [x for x in plain._flatten_layers() if isinstance(x, keras.layers.BatchNormalization)]
