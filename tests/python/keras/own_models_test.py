"""Models with a `call` of one's own, converted, trained, collapsed and averaged as others are."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras

K, START, FEATURES = 3, 4, 6
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(32, FEATURES)).astype("float32")
Y = RANDOM.normal(size=(32, 4)).astype("float32")
layers = keras.layers


def parts():
    """The layers of `Network`, in the order of their calls."""
    body = keras.Sequential([layers.Dense(5, name="inner"), layers.BatchNormalization(name="deep")])
    return {
        "first": layers.Dense(FEATURES, name="first"),
        "norm": layers.BatchNormalization(name="norm"),
        "body": body,
        "scale": layers.LayerNormalization(name="scale"),
        "head": layers.Dense(4, name="head"),
    }


@keras.saving.register_keras_serializable("own_models_test")
class Network(keras.Model):
    """Layers as attributes, in lists, tuples and dicts, one of them twice, and its own weight."""

    def __init__(self, factor=1.0, **kwargs):
        super().__init__(**kwargs)
        own = parts()
        self._later = []  # what is appended is tracked after `head`
        self.head = own["head"]
        self.first, self.same = own["first"], own["first"]
        self._later.append(own["norm"])
        self.pair = (own["body"], {"scale": own["scale"]})
        self.gain = self.add_weight(shape=(FEATURES,), initializer="ones", name="gain")
        self.factor = factor

    def call(self, inputs, training=False):
        x = self.same(self.first(inputs * self.gain))
        x = self._later[0](x, training=training)
        x = self.pair[1]["scale"](self.pair[0](x, training=training))
        return self.head(x) * self.factor

    def get_config(self):
        return {**super().get_config(), "factor": self.factor}

    def train_step(self, data):
        return {**super().train_step(data), "own": 1.0}


class Gain(layers.Layer):
    def build(self, shape):
        self.gain = self.add_weight(shape=shape[1:], initializer="ones", name="gain")

    def call(self, inputs):
        return inputs * self.gain


def functional():
    own, inputs = parts(), keras.Input((FEATURES,))
    x = own["body"](own["norm"](own["first"](own["first"](Gain()(inputs)))))
    return keras.Model(inputs, own["head"](own["scale"](x)) * 2.0)


def by_name(model):
    """Weights by the names of layer and weight; `gain` is the model's own, or that of a layer."""
    names = ["/".join(v.path.split("/")[-2:]) for v in model.weights]
    return {"gain" if "gain" in name else name: v for name, v in zip(names, model.weights)}


def network():
    keras.utils.set_random_seed(1)
    return called(Network(factor=2.0))


def compiled(model, sigma=0.3):
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.05, momentum=0.5), members=K, start=START, sigma=sigma
    )
    model.compile(optimizer, "mse")
    return model


def trained(model, x=X, y=Y, sigma=0.3):
    compiled(model, sigma).fit(x, y, batch_size=4, epochs=2, verbose=0, shuffle=False)
    return model


def outputs(model, x=X):
    return model.predict(x, verbose=0)


def members(model):
    return {v.path for v in model.trainable_variables if hasattr(v, "late_phase_members")}


def same(mine, theirs, tolerance=1e-5):
    np.testing.assert_allclose(mine, theirs, rtol=0, atol=tolerance)


WEIGHTS = ["batch_norm + head", "normalization", "first.*bias + scale/gamma", "inner/kernel"]


@pytest.mark.parametrize("weights", WEIGHTS)
def test_training_is_that_of_a_functional_model(weights):
    own, other = network(), functional()
    for name, variable in by_name(other).items():
        variable.assign(by_name(own)[name])
    same(outputs(own), outputs(other))
    models = [late_phase.keras.convert(m, K, weights=weights) for m in (own, other)]
    assert type(models[0]) is Network and models[0].factor == 2.0
    same(outputs(models[0]), outputs(own))
    for model in models:
        trained(model, sigma=0.0)  # the noise of a weight depends on its place among them
    mine, theirs = map(by_name, models)
    assert mine.keys() == theirs.keys()
    for name, variable in mine.items():
        same(variable, theirs[name])
    stacks = [v for v in models[0].trainable_variables if hasattr(v, "late_phase_members")]
    assert max(np.ptp(v, axis=0).max() for v in stacks) > 1e-3
    plain = [late_phase.keras.collapse(model) for model in models]
    same(outputs(plain[0]), outputs(plain[1]))
    same(outputs(plain[0]), outputs(models[0]))
    both = [late_phase.keras.ensemble(model) for model in models]
    same(outputs(both[0]), outputs(both[1]))


def test_a_copy_is_a_plain_model_of_the_class(tmp_path):
    """With the weights in their order, its own weight among them, and what it can be saved as."""
    plain = network()
    model = trained(late_phase.keras.convert(plain, K))
    assert model.fit(X, Y, verbose=0).history["own"] == [1.0]
    collapsed = late_phase.keras.collapse(model)
    assert type(collapsed) is Network and not members(collapsed)
    assert list(by_name(collapsed)) == list(by_name(plain))
    assert [type(x) for x in collapsed.layers] == [type(x) for x in plain.layers]
    same(collapsed.gain, model.gain, 0)
    assert np.abs(collapsed.gain - 1.0).max() > 1e-3
    collapsed.save(tmp_path / "model.keras")
    same(outputs(keras.models.load_model(tmp_path / "model.keras")), outputs(model))
    each = [outputs(late_phase.keras.collapse(model, member=k)) for k in range(K)]
    assert np.ptp(each, axis=0).max() > 1e-3
    same(outputs(late_phase.keras.ensemble(model)), np.mean(each, axis=0), 1e-4)
    late_phase.keras.reestimate_batch_norm(late_phase.keras.ensemble(model), X)


def test_it_is_converted_twice_and_frozen_layers_stay_frozen():
    plain = network()
    plain.pair[0].trainable = False
    model = late_phase.keras.convert(plain, K, weights="norm/")
    first = members(model)
    model = late_phase.keras.convert(trained(model), K, weights="head")
    assert first < members(model) and isinstance(model.head, late_phase.keras.Dense)
    frozen = model.pair[0].get_weights()
    trained(model)
    for weight, before in zip(model.pair[0].get_weights(), frozen, strict=True):
        same(weight, before, 0)
    same(outputs(late_phase.keras.collapse(model)), outputs(model))
    with pytest.raises(ValueError, match="converted already.*Received: head with members=3"):
        late_phase.keras.convert(model, K, weights="head")


@pytest.mark.parametrize("by", ["save_weights", "checkpoint"])
def test_weights_are_saved_alone(by, tmp_path):
    model = trained(late_phase.keras.convert(network(), K, weights="normalization + head"))
    with pytest.raises(ValueError, match="use `save_weights`.*Received: Network"):
        model.save(tmp_path / "model.keras")
    other = compiled(late_phase.keras.convert(network(), K, weights="normalization + head"))
    if by == "save_weights":
        model.save_weights(tmp_path / "of.weights.h5")
        other.load_weights(tmp_path / "of.weights.h5")
    else:
        path = tf.train.Checkpoint(model=model).save(tmp_path / "checkpoint")
        tf.train.Checkpoint(model=other).restore(path).assert_existing_objects_matched()
    # Of a model's layers in lists and dicts, Keras tells tf.train.Checkpoint nothing.
    layers_of = [m if by == "save_weights" else m.head for m in (other, model)]
    for mine, theirs in zip(*(one.weights for one in layers_of), strict=True):
        same(mine, theirs, 0)


class Tokens(keras.Model):
    """Of two inputs, one of which must be integers, and two outputs."""

    def __init__(self):
        super().__init__()
        self.table = layers.Embedding(9, FEATURES)
        self.first, self.second = layers.Dense(3), layers.Dense(2)

    def call(self, inputs, training=False):
        x = keras.ops.mean(self.table(inputs["tokens"]), axis=1)
        x = x + keras.ops.sum(keras.ops.one_hot(inputs["kind"], FEATURES), axis=1)
        return {"a": keras.ops.softmax(self.first(x)), "b": layers.ReLU()(self.second(x))}


def test_several_inputs_and_heads():
    keras.utils.set_random_seed(2)
    x = {"tokens": RANDOM.integers(0, 9, (32, 5)), "kind": RANDOM.integers(0, FEATURES, (32, 1))}
    y = {"a": RANDOM.random((32, 3)), "b": RANDOM.random((32, 2))}
    model = Tokens()
    model(x)
    model = late_phase.keras.convert(model, K, weights="head")
    assert len(members(model)) == 4 and not hasattr(model.table.embeddings, "late_phase_members")
    trained(model, x, y)
    for change in (late_phase.keras.collapse, late_phase.keras.ensemble):
        found = outputs(change(model), x)
        assert found.keys() == {"a", "b"} and found["a"].shape == (32, 3)
    collapsed = outputs(late_phase.keras.collapse(model), x)
    for name, expected in outputs(model, x).items():
        same(collapsed[name], expected)


class Made(keras.Model):
    """Makes a layer with members itself, and uses TensorFlow in its call."""

    def __init__(self):
        super().__init__()
        self.first = layers.Dense(5)
        self.head = late_phase.keras.Dense(4, members=K)

    def call(self, inputs, training=False):
        return self.head(tf.nn.relu(self.first(inputs)), training=training)


def test_members_that_a_class_makes_are_collapsed(tmp_path):
    model = trained(Made())
    plain = late_phase.keras.collapse(model)
    assert type(plain.head) is layers.Dense and type(plain) is Made
    same(outputs(plain), outputs(model))
    each = [outputs(late_phase.keras.collapse(model, member=k)) for k in range(K)]
    same(outputs(late_phase.keras.ensemble(model)), np.mean(each, axis=0))
    with pytest.raises(ValueError, match="not those that its constructor makes"):
        plain.save(tmp_path / "model.keras")
    with pytest.raises(ValueError, match="The head is found in a class of your own if its `call`"):
        late_phase.keras.convert(model, K, weights="head")


def called(model):
    model(X)
    return model


def made(call, constructor=lambda self: None):
    class Other(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = layers.Dense(4)
            constructor(self)

    Other.call = call
    return called(Other())


class Required(keras.Model):
    """Without a config of its own, which Keras does not make here either."""

    def __init__(self, units):
        super().__init__()
        self.head = layers.Dense(units)

    def call(self, inputs, training=False):
        return self.head(inputs)


def plain_call(self, inputs, training=False):
    return self.head(inputs)


def call_that_reads_the_kernel(self, x, training=False):
    return x @ self.head.kernel if self.head.built else self.head(x)


def with_two_inputs():
    class Two(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = layers.Dense(4)

        def call(self, inputs, others, training=False):
            return self.head(inputs) + others

    model = Two()
    model(X, Y)
    return model


@pytest.mark.parametrize(
    "make, weights, message",
    [
        (lambda: made(lambda self, inputs: self.head(inputs)), "head",
         "must have an argument `training`.*Received: Other"),
        (lambda: called(Required(4)), "head", "must have a `get_config`.*Received: Required: "),
        (lambda: made(call_that_reads_the_kernel), "kernel",
         "must only call the layers.*Received: Other"),
        (lambda: made(plain_call, lambda self: self.add_weight(name="own")), "own",
         "Chosen weights must be of layers.*Received: .*own"),
        (with_two_inputs, "kernel",
         r"all inputs as its first argument.*Received: Two, call\(inputs, others"),
        (lambda: Network(), "head",
         "`model` must be a Keras model that is built.*Received: Network"),
        (lambda: layers.Dense(2), "head", "`model` must be a Keras model.*Received: Dense"),
        (lambda: made(plain_call), "nowhere", "which chooses none"),
    ],
)  # fmt: skip
def test_what_cannot_be_converted_is_said_at_once(make, weights, message):
    with pytest.raises(ValueError, match=message):
        late_phase.keras.convert(make(), K, weights=weights)


@keras.saving.register_keras_serializable("own_models_test")
class Block(layers.Layer):
    """Makes layers without names of their own: in a copy they have others."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense, self.norm = layers.Dense(5), layers.BatchNormalization()

    def call(self, inputs, training=False):
        return keras.ops.relu(self.norm(self.dense(inputs), training=training))


class Blocks(keras.Model):
    def __init__(self):
        super().__init__()
        self.blocks = [Block(), Block()]
        self.head = layers.Dense(4)

    def call(self, inputs, training=False):
        for block in self.blocks:
            inputs = block(inputs, training=training)
        return self.head(inputs)


def functional_blocks():
    inputs = keras.Input((FEATURES,))
    return keras.Model(inputs, layers.Dense(4)(Block()(Block()(inputs))))


def around_blocks():
    inputs = keras.Input((FEATURES,))
    return keras.Model(inputs, Blocks()(inputs))


@pytest.mark.parametrize("make", [lambda: called(Blocks()), functional_blocks, around_blocks])
@pytest.mark.parametrize("weights", ["batch_norm", "dense.*bias", lambda v: v.name == "gamma"])
def test_blocks_of_layers_without_names(make, weights):
    keras.utils.set_random_seed(3)
    plain = make()
    model = late_phase.keras.convert(plain, K, weights=weights)
    same(outputs(model), outputs(plain))
    trained(model)
    assert members(model)
    each = [outputs(late_phase.keras.collapse(model, member=k)) for k in range(K)]
    assert np.ptp(each, axis=0).max() > 1e-3
    same(outputs(late_phase.keras.ensemble(model)), np.mean(each, axis=0), 1e-4)
    same(outputs(late_phase.keras.collapse(model)), outputs(model))


def test_a_block_of_layers_without_names_is_saved_with_its_members(tmp_path):
    model = late_phase.keras.convert(functional_blocks(), K, weights=lambda v: v.name == "gamma")
    trained(model).save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for mine, theirs in zip(loaded.weights, model.weights, strict=True):
        assert hasattr(mine, "late_phase_members") == hasattr(theirs, "late_phase_members")
        same(mine, theirs, 0)


class Weighted(keras.Model):
    """Without a config of its own, for which Keras takes the default of `weight`."""

    def __init__(self, weight=1.0, **kwargs):
        super().__init__(**kwargs)
        self.head, self.weight = layers.Dense(4), weight

    def call(self, inputs, training=False):
        return self.head(inputs)

    def compute_loss(self, *args, **kwargs):
        return self.weight * super().compute_loss(*args, **kwargs)


def test_values_that_only_training_needs_are_copied():
    model = late_phase.keras.convert(called(Weighted(weight=0.0)), K, weights="head")
    before = model.head.bias.numpy()
    trained(model, sigma=0.0)
    assert model.weight == 0.0 and late_phase.keras.collapse(model).weight == 0.0
    same(model.head.bias, before, 0)


def test_layers_that_the_constructor_does_not_make_are_named():
    model = network()
    model.pair[1]["other"] = model.head
    with pytest.raises(
        ValueError, match="must make all its layers in the constructor.*Network with .*pair/1/other"
    ):
        late_phase.keras.convert(model, K, weights="head")
