"""What `collapse` makes of members: their mean, one of them, and three kinds of BatchNorm."""

import keras
import numpy as np
import pytest

import late_phase.keras

K, C = 3, 5

keras.config.set_floatx("float64")

layers = keras.layers
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(1, 2, (40, C))


def scattered(model, seed=1):
    """All weights positive and random, so that rows differ and variances are some."""
    random = np.random.default_rng(seed)
    model.set_weights([random.uniform(0.2, 2, w.shape) for w in model.get_weights()])
    return model


def norm_model(**options):
    norm = late_phase.keras.BatchNormalization(members=K, name="norm", **options)
    return scattered(keras.Sequential([keras.Input((C,)), norm]))


def member_outputs(norm, x):
    """[K, ...]: each member's BatchNormalization, from its definition."""
    arrays = []
    for k in range(K):
        mean, variance = norm.moving_mean.numpy()[k], norm.moving_variance.numpy()[k]
        gamma = 1 if norm.gamma is None else norm.gamma.numpy()[k]
        beta = 0 if norm.beta is None else norm.beta.numpy()[k]
        arrays.append((x - mean) / np.sqrt(variance + norm.epsilon) * gamma + beta)
    return np.stack(arrays)


@pytest.mark.parametrize("scale", [False, True])
@pytest.mark.parametrize("center", [False, True])
def test_affine_is_the_mean_of_the_members_outputs(scale, center):
    model = norm_model(scale=scale, center=center)
    norm = model.layers[0]
    plain = late_phase.keras.collapse(model, batch_norm="affine")
    np.testing.assert_allclose(plain(X), member_outputs(norm, X).mean(axis=0), rtol=0, atol=1e-13)
    assert np.abs(plain(X) - late_phase.keras.collapse(model)(X)).max() > 1e-2  # "mean" is another
    (other,) = plain.layers
    assert type(other) is keras.layers.BatchNormalization
    np.testing.assert_allclose(other.moving_mean, norm.moving_mean.numpy().mean(axis=0), rtol=1e-15)
    np.testing.assert_allclose(
        other.moving_variance, norm.moving_variance.numpy().mean(axis=0), rtol=1e-15
    )


def test_affine_equals_the_mean_where_members_are_equal():
    model = norm_model()
    model.set_weights([w[:1].repeat(K, axis=0) for w in model.get_weights()])
    affine, mean = (late_phase.keras.collapse(model, batch_norm=how) for how in ("affine", "mean"))
    for weight, expected in zip(affine.weights, mean.weights, strict=True):
        np.testing.assert_allclose(weight, expected, rtol=0, atol=1e-12)


def test_an_affine_copy_trains_and_is_saved(tmp_path):
    model = keras.Sequential(
        [
            keras.Input((C,)),
            layers.Dense(4),
            late_phase.keras.BatchNormalization(members=K),
            late_phase.keras.Dense(2, members=K),
        ]
    )
    plain = late_phase.keras.collapse(scattered(model), batch_norm="affine")
    plain.compile(keras.optimizers.SGD(0.01), "mse")
    before = plain.evaluate(X, X[:, :2], verbose=0)
    plain.fit(X, X[:, :2], epochs=3, verbose=0)
    assert plain.evaluate(X, X[:, :2], verbose=0) < before
    plain.save(tmp_path / "plain.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "plain.keras")(X), plain(X))


def test_reestimated_has_the_statistics_of_the_data():
    plain = late_phase.keras.collapse(norm_model(), X, batch_norm="reestimated")
    np.testing.assert_allclose(plain.layers[0].moving_mean, X.mean(axis=0), rtol=0, atol=0.5)
    same = late_phase.keras.collapse(norm_model(), X)  # without saying so
    for weight, expected in zip(plain.weights, same.weights, strict=True):
        np.testing.assert_array_equal(weight, expected)


def mixed_model():
    inputs = keras.Input((6, C))
    x = late_phase.keras.Rank1LSTM(4, members=K, return_sequences=True)(inputs)
    x = late_phase.keras.Members(layers.LayerNormalization(), members=K)(x)
    x = late_phase.keras.Members(layers.Dense(4), members=K, weights="bias")(x)
    x = layers.GlobalAveragePooling1D()(x)
    x = late_phase.keras.BatchNormalization(members=K)(late_phase.keras.Rank1Dense(3, members=K)(x))
    return scattered(keras.Model(inputs, late_phase.keras.Dense(2, members=K)(x)))


def test_each_member_is_a_plain_model_of_its_own():
    model, x = mixed_model(), RANDOM.normal(size=(7, 6, C))
    members = [late_phase.keras.collapse(model, member=k) for k in range(K)]
    outputs = [plain(x).numpy() for plain in members]
    np.testing.assert_allclose(
        np.mean(outputs, axis=0), late_phase.keras.ensemble(model)(x), rtol=1e-9, atol=1e-9
    )
    assert np.ptp(outputs, axis=0).min() > 0
    only = mixed_model()
    late = [hasattr(v, "late_phase_members") for v in only.weights]
    for k in range(K):  # the mean of equal members is each of them
        weights = zip(model.get_weights(), late, strict=True)
        only.set_weights([w[k : k + 1].repeat(K, axis=0) if rows else w for w, rows in weights])
        np.testing.assert_allclose(outputs[k], only(x), rtol=1e-9)


@pytest.mark.parametrize(
    "options, message",
    [
        (dict(batch_norm="median"),
         "`batch_norm` must be one of mean, affine, reestimated, or None. "
         "Received: batch_norm='median'"),
        (dict(batch_norm="reestimated"),
         "`dataset` must be given.*Received: batch_norm='reestimated', dataset=None"),
        (dict(batch_norm="affine", dataset=X),
         "and for no other. Received: batch_norm='affine', dataset=given"),
        (dict(batch_norm="affine", member=0), "`member` must be None for batch_norm=\"affine\""),
        (dict(member=K), "`member` must be in \\[0, 3\\).*Received: member=3"),
        (dict(member=-1), "`member` must be in \\[0, 3\\).*Received: member=-1"),
        (dict(member=1.0), "`member` must be an integer, or None. Received: member=1.0"),
    ],
)  # fmt: skip
def test_contradictions_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        late_phase.keras.collapse(norm_model(), **options)


class OwnDense(late_phase.keras.MemberLayer):
    """A Dense layer without activation, written by a user."""

    def build(self, shape):
        self.kernel = self.add_member_weight((shape[-1], self.units), "glorot_uniform", name="k")

    def __init__(self, units, members, **kwargs):
        super().__init__(members, **kwargs)
        self.units = units

    def call(self, inputs, training=False):
        return inputs @ self.row(self.kernel, training)

    def get_config(self):
        return {**super().get_config(), "units": self.units}


class OwnDenseThatCollapses(OwnDense):
    plain_class = keras.layers.Dense
    own_options = ("members", "bias_members")

    def get_config(self):
        return {**super().get_config(), "use_bias": False, "bias_members": 1}


def test_a_layer_of_ones_own_collapses_to_its_plain_class():
    model = keras.Sequential([keras.Input((4,)), OwnDenseThatCollapses(3, members=2)])
    rows = np.random.default_rng(0).normal(size=(2, 4, 3)).astype("float32")
    model.layers[0].set_weights([rows])
    plain = late_phase.keras.collapse(model)
    assert type(plain.layers[0]) is keras.layers.Dense
    [kernel] = plain.get_weights()
    np.testing.assert_allclose(kernel, rows.mean(axis=0), rtol=1e-6)


def test_a_layer_of_ones_own_without_a_plain_class_is_refused():
    model = keras.Sequential([keras.Input((4,)), OwnDense(3, members=2)])
    with pytest.raises(ValueError, match="`plain_class`.*Received: plain_class=None in OwnDense"):
        late_phase.keras.collapse(model)


class Club(keras.layers.Dense):
    """Of one's own, with an attribute that has nothing to do with ours."""

    members = None


def test_only_layers_of_ours_are_asked_for_their_members():
    model = keras.Sequential(
        [keras.Input((4,)), late_phase.keras.Dense(3, members=2), Club(2, name="club")]
    )
    scattered(model)
    one = late_phase.keras.collapse(model, member=1)
    np.testing.assert_array_equal(one.layers[0].kernel, model.layers[0].kernel.numpy()[1])
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3), Club(2, name="club")])
    converted = late_phase.keras.convert(model, members=2)
    assert [getattr(layer, "members", 0) for layer in converted.layers] == [0, 2]
