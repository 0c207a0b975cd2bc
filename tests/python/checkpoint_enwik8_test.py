"""late_phase.checkpoint on runs of tools/latephase train enwik8: the LSTM gives the same figures in
Keras and in the program.
"""

import pathlib
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.checkpoint
import late_phase.keras
from tests.support import enwik8_text, program_runs

BATCH, SEQUENCE, MEMBERS = 8, 20, 3
# Ten minibatches an epoch; T0 at 12, the first SWA sample at 25, the end at 32, in the middle of a
# cycle.
FLAGS = (
    f"--units 24 --embedding 8 --batch {BATCH} --sequence {SEQUENCE} --train-characters 1608 "
    f"--validation-characters 0 --test-characters 0 --members {MEMBERS} --t0 1.2 --sigma 0.5 "
    "--swa-start 2 --swa-every 0.5 --steps 32 --learning-rate 0.02"
).split()


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    return enwik8_text.write_text(tmp_path_factory.mktemp("text") / "text", 4000)


@pytest.fixture(scope="module", params=["float64", "float32"])
def trained(request, tmp_path_factory, text):
    """All three models: the folder, and how far figures may differ."""
    out = tmp_path_factory.mktemp("runs") / request.param
    program_runs.train("enwik8", text, out, "--model", "all", *FLAGS, "--dtype", request.param)
    return out, 1e-12 if request.param == "float64" else 2e-6


def streams_of(text, run):
    """The test characters, cut as the program cuts them: each stream begins without memory."""
    characters = np.fromfile(text, np.uint8)
    tokens = np.searchsorted(
        late_phase.checkpoint.read(run)["vocabulary"], characters[len(characters) * 19 // 20 :]
    )
    return np.array_split(tokens, min(BATCH, len(tokens) // 2 // SEQUENCE))


def bits_per_character(model, streams):
    losses = []
    for stream in streams:
        logits = model.predict(stream[np.newaxis, :-1], verbose=0)[0].astype(
            np.float64
        )  # [time, vocabulary]
        logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        losses.append(-logs[np.arange(len(stream) - 1), stream[1:]])
    return np.concatenate(losses).mean() / np.log(2)


def bits_of_members(model, streams):
    """Of each one: that of a model whose members are all the same."""
    layer = model.get_layer("lstm")
    stacks = [(variable, variable.numpy()) for variable in (layer.u, layer.v)]
    found = []
    for k in range(MEMBERS):
        for variable, stack in stacks:
            variable.assign(np.broadcast_to(stack[k : k + 1], stack.shape))
        found.append(bits_per_character(model, streams))
    for variable, stack in stacks:
        variable.assign(stack)
    return found


@pytest.mark.parametrize("kind", ["base", "rank1", "late-phase"])
def test_a_model_gives_the_figures_of_the_program(trained, text, kind):
    folder, tolerance = trained
    run = folder / kind
    test, streams = program_runs.read_results(run)["test"], streams_of(text, run)
    for weights in ("collapsed", "swa"):
        model = late_phase.checkpoint.keras_model(run, weights)
        assert bits_per_character(model, streams) == pytest.approx(
            test[weights]["bpc"], rel=tolerance
        ), weights
    assert test["collapsed"]["bpc"] != pytest.approx(test["swa"]["bpc"], rel=1e-3)
    assert test["collapsed"]["bpc"] < 0.95 * np.log2(30)  # it has learnt something
    if kind == "late-phase":
        model = late_phase.checkpoint.keras_model(run)
        members = [member["bpc"] for member in test["members"]]
        assert (
            bits_of_members(model, streams) == pytest.approx(members, rel=tolerance)
            and np.ptp(members) > 1e-3
        )
        assert type(model.get_layer("lstm")) is late_phase.keras.Rank1LSTM
    if kind == "base":
        assert type(model.get_layer("lstm")) is keras.layers.LSTM


def test_of_several_models_the_late_phase_one_is_taken(trained):
    assert late_phase.checkpoint.read(trained[0])["u"].shape == (MEMBERS, 24)


def test_a_collapsed_model_is_plain_and_gives_the_same(trained, text, tmp_path):
    run = trained[0] / "late-phase"
    late_phase.keras.collapse(late_phase.checkpoint.keras_model(run)).save(tmp_path / "plain.keras")
    plain = keras.models.load_model(tmp_path / "plain.keras")
    assert all(type(layer).__module__.startswith("keras.") for layer in plain.layers)
    expected = program_runs.read_results(run)["test"]["collapsed"]["bpc"]
    assert bits_per_character(plain, streams_of(text, run)) == pytest.approx(
        expected, rel=max(trained[1], 1e-6)
    )


def test_saving_what_was_loaded_changes_no_bit(trained, text, tmp_path):
    for kind in ("base", "rank1", "late-phase"):
        run = pathlib.Path(shutil.copytree(trained[0] / kind, tmp_path / kind))
        late_phase.checkpoint.save(late_phase.checkpoint.keras_model(run), run)
        program_runs.assert_same_bits(
            program_runs.read_checkpoint(run), program_runs.read_checkpoint(trained[0] / kind)
        )
        # Nor do those of a training that continues.
        other = shutil.copytree(trained[0] / kind, tmp_path / f"{kind}-other")
        for folder in (run, other):
            program_runs.train("enwik8", text, folder, "--resume", "--steps", 35)
        program_runs.assert_same_bits(
            program_runs.read_checkpoint(run), program_runs.read_checkpoint(other)
        )


def test_what_keras_trains_the_program_evaluates_and_trains_on(trained, text, tmp_path):
    run = pathlib.Path(shutil.copytree(trained[0] / "late-phase", tmp_path / "run"))
    before, streams = program_runs.read_checkpoint(run), streams_of(text, run)
    model = late_phase.checkpoint.keras_model(run)
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.Adam(0.01), members=MEMBERS, start=1
    )
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(1)  # past `start`: the members are those of the run
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for stream in (streams * MEMBERS)[: MEMBERS + 1]:
        with tf.GradientTape() as tape:
            value = loss(stream[np.newaxis, 1:], model(stream[np.newaxis, :-1], training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
    late_phase.checkpoint.save(model, run)
    result = program_runs.run("eval", run, "--data", text, "--threads", 2)
    assert result.returncode == 0, result.stderr
    rows = program_runs.table_rows(result.stdout)
    found = {weights: float(bpc) for weights, bpc in rows}
    results = program_runs.read_results(run)["test"]
    assert found["collapsed"] == pytest.approx(bits_per_character(model, streams), abs=6e-5)
    assert found["collapsed"] < 0.99 * results["collapsed"]["bpc"]  # trained on this very text
    assert [found[f"member-{k}"] for k in range(MEMBERS)] == pytest.approx(
        bits_of_members(model, streams), abs=6e-5
    )
    assert found["swa"] == pytest.approx(results["swa"]["bpc"], abs=6e-5)  # as it was
    after = program_runs.read_checkpoint(run)
    weights = {
        "embedding",
        "kernel",
        "recurrent_kernel",
        "bias",
        "u",
        "v",
        "softmax_kernel",
        "softmax_bias",
    }
    assert {name for name in before if not np.array_equal(before[name], after[name])} == weights
    assert program_runs.run("sample", run, "--prompt", " !", "--length", 10).returncode == 0
    resumed = program_runs.train("enwik8", text, run, "--resume", "--steps", 35)
    assert "resumes at step 32" in resumed.stderr


def test_averages_that_there_are_not_yet_are_refused(tmp_path, text):
    run = tmp_path / "run"
    program_runs.train("enwik8", text, run, *FLAGS, "--model", "rank1", "--steps", 3)
    with pytest.raises(
        ValueError,
        match='`weights` must be "collapsed": SWA has no sample at step 3. '
        "Received: weights='swa'",
    ):
        late_phase.checkpoint.keras_model(run, weights="swa")


def test_a_run_of_another_size_is_refused(trained, tmp_path):
    run = pathlib.Path(shutil.copytree(trained[0] / "late-phase", tmp_path / "run"))
    before = program_runs.read_checkpoint(run)
    rank1 = late_phase.checkpoint.keras_model(trained[0] / "rank1")
    with pytest.raises(
        ValueError,
        match=r"`model` must be the network of the run. Received: u of shape \(1, 24\) instead of "
        r"\(3, 24\)",
    ):
        late_phase.checkpoint.save(rank1, run)
    base = late_phase.checkpoint.keras_model(trained[0] / "base")
    with pytest.raises(ValueError, match="Received: u missing, v missing$"):
        late_phase.checkpoint.save(base, run)
    config = run / "config.toml"
    config.write_text(config.read_text().replace("units = 24", "units = 25"))
    with pytest.raises(
        ValueError,
        match=r"must be of the network in config.toml. Received: bias of shape \(96,\) instead of "
        r"\(100,\)",
    ):
        late_phase.checkpoint.save(
            late_phase.checkpoint.keras_model(trained[0] / "late-phase"), run
        )
    program_runs.assert_same_bits(program_runs.read_checkpoint(run), before)
