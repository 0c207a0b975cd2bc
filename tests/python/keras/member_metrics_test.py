"""MemberMetrics: spreads against their definition, figures against collapsed models' own."""

import glob
import math

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.keras
from late_phase.keras import SWA, Epoch, MemberMetrics

# Two replicas for tf.distribute; must be said before TensorFlow starts.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)

K, EPOCHS, START = 3, 4, 2  # in epochs
RANDOM = np.random.default_rng(0)
X, Y = RANDOM.normal(size=(40, 6)).astype("float32"), RANDOM.integers(0, 4, 40)
VALIDATION = RANDOM.normal(size=(30, 6)).astype("float32"), RANDOM.integers(0, 4, 30)
LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


def made(start=None):
    start = start or Epoch(START)
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(5),
            late_phase.keras.BatchNormalization(members=K),
            late_phase.keras.Members(keras.layers.LayerNormalization(), members=K),
            keras.layers.Dropout(0.2),
            late_phase.keras.Dense(4, members=K),
        ]
    )
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.2), members=K, start=start, sigma=0.3
    )
    model.compile(optimizer, LOSS, metrics=["accuracy"])
    return model


def fit(model, *callbacks, **options):
    return model.fit(
        X,
        Y,
        batch_size=8,
        epochs=EPOCHS,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
        **options,
    )


def figures(model, prefix):
    """Of a plain model."""
    model.compile(loss=LOSS, metrics=["accuracy"])
    values = model.evaluate(*VALIDATION, verbose=0, return_dict=True)
    return {f"{prefix}_{name}": value for name, value in values.items()}


def reference_spread(stacks):
    """From the definition, number by number."""
    squares, sizes, count, means = 0.0, 0.0, 0, 0
    for stack in stacks:
        stack = np.float64(stack)
        for row in stack.reshape(len(stack), -1).T:  # the members' values of one number
            mean = math.fsum(row) / len(row)
            squares += math.fsum((x - mean) ** 2 for x in row)
            count += len(row)
            sizes += mean * mean
            means += 1
    return math.sqrt(squares / count) / math.sqrt(sizes / means)


def test_figures_are_those_of_collapsed_models():
    model, swa = made(), SWA(Epoch(START), dataset=X)
    metrics = MemberMetrics(VALIDATION, swa=swa)
    history = fit(model, swa, metrics, validation_data=VALIDATION).history
    expected = figures(late_phase.keras.collapse(model), "val_collapsed")
    for k in range(K):
        expected.update(figures(late_phase.keras.collapse(model, member=k), f"val_member_{k}"))
    with swa.averaged():
        expected.update(figures(late_phase.keras.collapse(model), "val_swa"))
    for name, value in expected.items():
        assert history[name][-1] == pytest.approx(value, rel=1e-5), name
    assert history["val_collapsed_loss"] == pytest.approx(history["val_loss"], rel=1e-6)
    assert len({history[f"val_member_{k}_loss"][-1] for k in range(K)}) == K
    assert np.isnan(history["val_swa_loss"]).tolist() == [True, True, False, False]


def test_spreads_are_their_definition():
    model, metrics = made(), MemberMetrics()
    history = fit(model, metrics).history
    stacks = {
        v.path: v.numpy() for v in model.trainable_variables if hasattr(v, "late_phase_members")
    }
    assert len(stacks) == 6
    assert [value > 0 for value in history["member_spread"]] == [False, True, True, True]
    assert history["member_spread"][-1] == pytest.approx(
        reference_spread(stacks.values()), rel=1e-9
    )
    for path, stack in stacks.items():
        found = metrics.history[f"member_spread/{path}"]
        assert found[-1] == pytest.approx(reference_spread([stack]), rel=1e-9), path
    assert "member_spread" in history and not any("/" in name for name in history)
    assert not any("val" in name for name in metrics.history)


@pytest.mark.parametrize(
    "rows, expected",
    [([[0, 0], [0, 0]], 0.0), ([[1, -1], [-1, 1]], math.inf), ([[2, 0], [4, 0]], 1 / 3)],
)
def test_spread_of_small_arrays(rows, expected):
    assert late_phase.keras.member_metrics.spread([np.array(rows)]) == pytest.approx(expected)


def state(model):
    return [np.array(v.numpy()).tobytes() for v in [*model.variables, *model.optimizer.variables]]


def test_training_does_not_notice():
    alone, model = made(), made()
    swa, other = SWA(Epoch(1), dataset=X), SWA(Epoch(1), dataset=X)
    fit(alone, other)
    fit(model, swa, MemberMetrics(VALIDATION, swa=swa))
    assert state(model) == state(alone)


def test_before_the_start_members_are_the_collapsed_model():
    model, metrics = made(start=100), MemberMetrics(VALIDATION)
    counted = []
    evaluate = model.evaluate
    model.evaluate = lambda **options: counted.append(1) or evaluate(**options)
    with pytest.warns(UserWarning, match="Training ended before `start`"):
        fit(model, metrics)
    for k in range(K):
        assert metrics.history[f"val_member_{k}_loss"] == metrics.history["val_collapsed_loss"]
    assert len(counted) == EPOCHS  # equal members are not evaluated one by one


def test_other_callbacks_see_the_figures(tmp_path):
    model = made()
    stop = keras.callbacks.EarlyStopping("member_spread", mode="min", patience=1)
    table = keras.callbacks.CSVLogger(tmp_path / "log.csv")
    fit(model, MemberMetrics(VALIDATION), stop, table)
    assert stop.stopped_epoch == START - 1  # as spreads are least before
    header, *rows = (tmp_path / "log.csv").read_text().splitlines()
    assert "val_member_2_accuracy" in header and len(rows) == START


def events(folder):
    """[(tag, step, value)] of TensorBoard's files."""
    found = []
    for path in glob.glob(f"{folder}/events*"):
        for record in tf.data.TFRecordDataset(path):
            event = tf.compat.v1.Event.FromString(record.numpy())
            for value in event.summary.value:
                assert value.metadata.plugin_data.plugin_name == "scalars"
                found.append((value.tag, event.step, float(tf.make_ndarray(value.tensor))))
    return found


def test_tensorboard_has_all_of_it(tmp_path):
    metrics = MemberMetrics(VALIDATION, log_dir=tmp_path)
    fit(made(), metrics)
    expected = [
        (name, step, pytest.approx(value, rel=1e-6))
        for name, values in metrics.history.items()
        if name != "epoch"
        for step, value in enumerate(values)
    ]
    assert sorted(events(tmp_path)) == sorted(expected, key=lambda one: one[:2])
    assert len(expected) == EPOCHS * (1 + 2 * (K + 1) + 6)


def test_frequency():
    model, metrics = made(), MemberMetrics(frequency=Epoch(2))
    history = fit(model, metrics).history
    assert metrics.history["epoch"] == [2, 4] and len(history["member_spread"]) == 2


def test_a_dataset_is_what_its_arrays_are():
    data = tf.data.Dataset.from_tensor_slices(VALIDATION).batch(32)
    histories = []
    for validation in (data, VALIDATION):
        metrics = MemberMetrics(validation)
        fit(made(), metrics)
        histories.append({k: v for k, v in metrics.history.items() if k.startswith("val_")})
    assert histories[0] == histories[1]


def test_two_replicas():
    """Statistics are each replica's own, and come back to each."""
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model, alone = made(), made()
    metrics = MemberMetrics(VALIDATION)
    fit(model, metrics)
    fit(alone)

    def copies(model):
        local = model.distribute_strategy.experimental_local_results
        return [copy.numpy().tobytes() for v in model.variables for copy in local(v.value)]

    assert copies(model) == copies(alone)
    assert len({metrics.history[f"val_member_{k}_loss"][-1] for k in range(K)}) == K


def test_plot(tmp_path):
    model, swa = made(), SWA(Epoch(START), dataset=X)
    metrics = MemberMetrics(VALIDATION, swa=swa)
    with pytest.raises(ValueError, match="There must be an epoch to draw"):
        metrics.plot()
    fit(model, swa, metrics)
    figure = metrics.plot(metric="accuracy")
    above, below = figure.axes
    lines = [line.get_ydata() for line in above.lines]
    kinds = [*(f"member_{k}" for k in range(K)), "collapsed", "swa"]
    names = [f"val_{kind}_accuracy" for kind in kinds]
    for line, name in zip(lines, names, strict=True):
        np.testing.assert_array_equal(line, metrics.history[name])
    assert [text.get_text() for text in above.get_legend().texts] == ["members", "collapsed", "SWA"]
    np.testing.assert_array_equal(below.lines[-1].get_ydata(), metrics.history["member_spread"])
    assert len(below.lines) == 7
    assert metrics.plot(tmp_path / "members.png") is None
    assert (tmp_path / "members.png").read_bytes()[1:4] == b"PNG"
    with pytest.raises(ValueError, match="`metric` must be one of .*loss.*Received: metric='auc'"):
        metrics.plot(metric="auc")


def test_plot_of_spreads_alone():
    metrics = MemberMetrics()
    fit(made(), metrics)
    assert len(metrics.plot().axes) == 1


def without_members():
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4)])
    model.compile("sgd", LOSS)
    return model


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: MemberMetrics(swa=SWA(0)),
         "`validation_data` must be given.*Received: validation_data=None"),
        (lambda: MemberMetrics(VALIDATION, swa=3),
         "`swa` must be a late_phase.keras.SWA, or None. Received: swa=3"),
        (lambda: MemberMetrics(frequency=5),
         "`frequency` must be a late_phase.keras.Epoch. Received: frequency=5"),
        (lambda: fit(without_members(), MemberMetrics()), "must have trained weights with members"),
    ],
)  # fmt: skip
def test_wrong_use_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
