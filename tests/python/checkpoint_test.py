"""late_phase.checkpoint: what the C++ program trained gives the same figures in Keras, and what
Keras trained the same in the program.

Images, and all that concerns files; tests/python/checkpoint_enwik8_test.py has the LSTM.
"""

import doctest
import os
import pathlib
import shutil
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import late_phase.checkpoint
import late_phase.keras
from tests.support import cifar_files, program_runs

# 75 training images: eight minibatches an epoch. T0 at 10, the end at 24, in the middle of a cycle.
IMAGES, START, STEPS, MEMBERS = 75, 10, 24, 3
CIFAR = (
    f"--validation-images 25 --batch 10 --learning-rate 0.02 --members {MEMBERS} --t0 1.25 "
    "--sigma 0.2 --swa-start 2 --swa-every 0.5 --epochs 3"
).split()
# In double precision figures agree to many digits, so that nothing can hide behind rounding.
RUNS = {
    "convnet": "--network convnet --model late-phase --dtype float64 --late-batch-norm true "
        "--late-head true",
    "convnet-float32": "--network convnet --model late-phase --dtype float32 "
    "--late-batch-norm true "
        "--late-head false",
    "convnet-base": "--network convnet --model base --dtype float64",
    "convnet-head": "--network convnet --model late-phase --dtype float64 --late-batch-norm false "
        "--late-head true --dataset cifar100",
    "wrn": "--network wrn --depth 16 --width 2 --model late-phase --dtype float64 "
        "--late-batch-norm true --late-head true --t0 0.25 --swa-start -1 --steps 4",
    "wrn-base": "--network wrn --depth 10 --width 1 --model base --dtype float64 --steps 4",
    "convnet-rank1": "--network convnet --model late-phase --dtype float64 "
    "--late-rank1 true --late-head true "
        "--dropout 0.3",
    "wrn-rank1": "--network wrn --depth 10 --width 1 --model late-phase "
    "--dtype float64 --late-rank1 true "
        "--t0 0.25 --swa-start -1 --steps 6",
    "before-t0": "--network convnet --model late-phase --dtype float64 --late-batch-norm true "
        f"--late-head true --steps {START}",
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cifar")
    return {
        name: cifar_files.write_cifar(
            folder / name, name, 100 if name == "cifar100" else 20, test=20, classes=classes
        )
        for name, classes in (("cifar10", 10), ("cifar100", 100))
    }


@pytest.fixture(scope="module")
def trained(tmp_path_factory, files):
    """A function, name of a run -> its folder."""
    folders = {}

    def train(name):
        if name not in folders:
            folders[name] = tmp_path_factory.mktemp("runs") / name
            program_runs.train(
                "cifar", data_of(name, files), folders[name], *CIFAR, *RUNS[name].split()
            )
        return folders[name]

    return train


@pytest.fixture
def run(trained, tmp_path):
    """The run `convnet`, to be changed."""
    return pathlib.Path(shutil.copytree(trained("convnet"), tmp_path / "run"))


def data_of(name, files):
    return files["cifar100" if "cifar100" in RUNS[name] else "cifar10"]


def images_of(folder):
    """The test images as the network sees them, and their labels."""

    def records(names, labels):
        parts = [
            np.fromfile(os.path.join(folder, name), np.uint8).reshape(-1, labels + 3 * 32 * 32)
            for name in names
        ]
        images = np.concatenate(parts)
        return images[:, labels:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1) / 255, images[
            :, labels - 1
        ].astype(int)

    if os.path.exists(os.path.join(folder, "train.bin")):
        (training, _), (test, labels) = records(["train.bin"], 2), records(["test.bin"], 2)
    else:
        (training, _), (test, labels) = (
            records([f"data_batch_{i}.bin" for i in range(1, 6)], 1),
            records(["test_batch.bin"], 1),
        )
    training = training[:IMAGES]
    return (test - training.mean((0, 1, 2))) / training.std((0, 1, 2)), labels


def figures(model, data):
    images, labels = data
    # Keras would round arrays of doubles to float, but not datasets.
    logits = model.predict(tf.data.Dataset.from_tensor_slices(images).batch(16), verbose=0).astype(
        np.float64
    )
    logs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return {
        "accuracy": (logits.argmax(axis=1) == labels).mean(),
        "nll": -logs[np.arange(len(labels)), labels].mean(),
    }


def figures_of_members(model, data):
    """Of each one: that of a model whose members are all the same."""
    stacks = [
        (variable, variable.numpy())
        for variable in model.weights
        if hasattr(variable, "late_phase_members")
    ]
    found = []
    for k in range(MEMBERS if stacks else 0):
        for variable, stack in stacks:
            variable.assign(np.broadcast_to(stack[k : k + 1], stack.shape))
        found.append(figures(model, data))
    for variable, stack in stacks:
        variable.assign(stack)
    return found


def same(figures, documented, rel):
    return figures["accuracy"] == documented["accuracy"] and figures["nll"] == pytest.approx(
        documented["nll"], rel=rel
    )


def evaluate(run, files):
    """NLL of what `tools/latephase eval` finds in a run, to the four digits that it prints."""
    result = program_runs.run("eval", run, "--data", files, "--threads", 2)
    assert result.returncode == 0, result.stderr
    rows = program_runs.table_rows(result.stdout)
    return {row[0]: float(row[2]) for row in rows}


@pytest.mark.parametrize("name", RUNS)
def test_a_model_gives_the_figures_of_the_program(trained, files, name):
    run, data = trained(name), images_of(data_of(name, files))
    test = program_runs.read_results(run)["test"]
    rel = 1e-5 if "float32" in name else 1e-10
    model = late_phase.checkpoint.keras_model(run)
    assert same(figures(model, data), test["collapsed"], rel)
    assert {variable.dtype for variable in model.weights} == {
        "float32" if "float32" in name else "float64"
    }
    if "members" in test:
        members = figures_of_members(model, data)
        assert all(
            same(found, documented, rel)
            for found, documented in zip(members, test["members"], strict=True)
        )
        assert len({member["nll"] for member in members}) == MEMBERS
    assert ("members" in test) == (name not in ("convnet-base", "wrn-base", "before-t0"))


def test_a_base_model_is_of_kerass_own_layers(trained):
    for name in ("convnet-base", "wrn-base"):
        layers = late_phase.checkpoint.keras_model(trained(name)).layers
        assert all(type(layer).__module__.startswith("keras.") for layer in layers)


def test_a_collapsed_model_is_plain_and_gives_the_same(trained, files, tmp_path):
    data = images_of(files["cifar10"])
    model = late_phase.checkpoint.keras_model(trained("wrn"))
    late_phase.keras.collapse(model).save(tmp_path / "plain.keras")
    plain = keras.models.load_model(tmp_path / "plain.keras")
    assert all(type(layer).__module__.startswith("keras.") for layer in plain.layers)
    np.testing.assert_allclose(
        plain.predict(data[0], verbose=0), model.predict(data[0], verbose=0), rtol=1e-7, atol=1e-8
    )


def test_a_model_has_the_initial_values_and_batch_norm_of_the_program(trained):
    model = keras.models.clone_model(late_phase.checkpoint.keras_model(trained("wrn")))
    norm = model.get_layer("group1_block0_bn1")
    assert (norm.epsilon, norm.momentum) == (1e-5, 0.9)
    kernel = model.get_layer("group2_block1_conv0").kernel.numpy()
    assert (
        kernel.std() == pytest.approx(np.sqrt(2 / (9 * 128)), rel=0.02)
        and np.abs(kernel).max() > 3 * kernel.std()
    )


def test_all_variables_can_be_read(trained):
    run = trained("convnet")
    variables = late_phase.checkpoint.read(run)
    stored = program_runs.read_checkpoint(run)
    program_runs.assert_same_bits(
        variables,
        {name: stored[name] for name in stored if not name.startswith("late_phase_checkpoint/")},
    )
    assert variables["late_phase/step"] == STEPS and variables["bn0/scale"].shape == (MEMBERS, 6)
    for folder in (run / "checkpoint", program_runs.checkpoint_folders(run)[0]):
        program_runs.assert_same_bits(late_phase.checkpoint.read(folder), variables)


def test_of_several_models_the_late_phase_one_is_taken(tmp_path, files):
    out = tmp_path / "all"
    program_runs.train(
        "cifar",
        files["cifar10"],
        out,
        *CIFAR,
        *RUNS["convnet"].split(),
        "--model",
        "all",
        "--seeds",
        2,
        "--steps",
        11,
    )
    taken = program_runs.read_checkpoint(out / "seed-0" / "late-phase")
    assert np.array_equal(
        late_phase.checkpoint.read(out)["bn0/scale"], taken["bn0/scale"]
    ) and taken["bn0/scale"].shape == (3, 6)
    shutil.rmtree(out / "seed-0" / "late-phase")
    assert late_phase.checkpoint.read(out)["bn0/scale"].shape == (1, 6)


def test_saving_what_was_loaded_changes_no_bit(run, trained, files):
    late_phase.checkpoint.save(late_phase.checkpoint.keras_model(run), run)
    program_runs.assert_same_bits(
        program_runs.read_checkpoint(run), program_runs.read_checkpoint(trained("convnet"))
    )
    assert os.listdir(run / "checkpoint") == [f"step-{STEPS:012}"]
    # Nor do those of a training that continues.
    for folder in (run, shutil.copytree(trained("convnet"), run.parent / "other")):
        program_runs.train("cifar", files["cifar10"], folder, "--resume", "--steps", STEPS + 3)
    program_runs.assert_same_bits(
        program_runs.read_checkpoint(run), program_runs.read_checkpoint(run.parent / "other")
    )


@pytest.mark.parametrize("name", ["convnet", "wrn-base"])
def test_what_keras_trains_the_program_evaluates_and_trains_on(trained, files, tmp_path, name):
    run = pathlib.Path(shutil.copytree(trained(name), tmp_path / "run"))
    before = program_runs.read_checkpoint(run)
    data = images_of(files["cifar10"])
    model = late_phase.checkpoint.keras_model(run)
    members = 1 if "base" in name else MEMBERS
    optimizer = late_phase.keras.LatePhaseOptimizer(
        keras.optimizers.SGD(0.01, momentum=0.9), members=members, start=1
    )
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    optimizer.build(model.trainable_variables)
    optimizer.iterations.assign(1)  # past `start`: the members are those of the run
    for _ in range(2):
        model.fit(
            *data, batch_size=10, epochs=1, shuffle=False, verbose=0
        )  # two minibatches: four in all, of which one ends a cycle
    late_phase.checkpoint.save(model, run)
    found = evaluate(run, files["cifar10"])
    assert found["collapsed"] == pytest.approx(figures(model, data)["nll"], abs=6e-5)
    assert (
        found["collapsed"] < 0.99 * program_runs.read_results(run)["test"]["collapsed"]["nll"]
    )  # trained on these very images
    for k, member in enumerate(figures_of_members(model, data)):
        assert found[f"member-{k}"] == pytest.approx(member["nll"], abs=6e-5)
    after = program_runs.read_checkpoint(run)
    changed = {key for key in before if not np.array_equal(before[key], after[key])}
    slots = ("momentum", "sum", "swa")
    weights = {
        key
        for key in before
        if "/" in key and not key.startswith("late_phase") and key.split("/")[-1] not in slots
    }
    assert changed == weights
    assert {key: value.dtype for key, value in before.items()} == {
        key: value.dtype for key, value in after.items()
    }
    steps = int(before["late_phase/step"])
    resumed = program_runs.train("cifar", files["cifar10"], run, "--resume", "--steps", steps + 3)
    assert (
        f"resumes at step {steps}" in resumed.stderr
        and program_runs.read_results(run)["steps"] == steps + 3
    )


def test_before_t0_there_is_one_member(trained, files, tmp_path):
    run = pathlib.Path(shutil.copytree(trained("before-t0"), tmp_path / "run"))
    rows = program_runs.read_checkpoint(run)["bn0/scale"]
    assert not (rows == rows[0]).all()  # the program leaves the others as they are until T0
    model = late_phase.checkpoint.keras_model(run)
    scale = model.get_layer("bn0").gamma
    assert (scale.numpy() == rows[0]).all()
    scale.assign(scale * 1.5)
    late_phase.checkpoint.save(model, run)
    assert evaluate(run, files["cifar10"]) == {
        "collapsed": pytest.approx(figures(model, images_of(files["cifar10"]))["nll"], abs=6e-5)
    }
    scale.assign(scale * np.array([[1.0], [1.0], [1.1]]))
    with pytest.raises(
        ValueError,
        match=f"members of `model` must be equal.*at step {START}.* different members in bn0/scale",
    ):
        late_phase.checkpoint.save(model, run)


def test_docstring_examples_run(run, tmp_path, monkeypatch):
    (tmp_path / "runs").mkdir()
    shutil.move(run, tmp_path / "runs" / "cifar-convnet")
    monkeypatch.chdir(tmp_path)
    failed, tried = doctest.testmod(late_phase.checkpoint)
    assert failed == 0 and tried >= 10


def test_the_documented_example_does_what_it_says(run, files, tmp_path):
    data = images_of(files["cifar10"])
    before = figures(late_phase.checkpoint.keras_model(run), data)
    subprocess.run(
        [sys.executable, "docs/examples/keras_checkpoint.py", run, tmp_path / "plain.keras"],
        check=True,
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert same(figures(keras.models.load_model(tmp_path / "plain.keras"), data), before, 1e-7)
    after = figures(late_phase.checkpoint.keras_model(run), data)
    assert after["accuracy"] == before["accuracy"] and after["nll"] != pytest.approx(
        before["nll"], rel=1e-3
    )
    assert evaluate(run, files["cifar10"])["collapsed"] == pytest.approx(after["nll"], abs=6e-5)


def test_the_package_alone_does_not_bring_keras_models():
    program = (
        "import sys, late_phase; print([m for m in sys.modules if "
        "m.startswith(('late_phase.keras', 'late_phase.checkpoint'))])"
    )
    process = subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout == "[]\n"


@pytest.mark.parametrize(
    "weights, message",
    [
        ("swa", '`weights` must be "collapsed" for a network with BatchNorm'),
        ("member-1", '`weights` must be "collapsed" or "swa". Received: weights=\'member-1\''),
    ],
)
def test_weights_that_there_are_not_are_refused(trained, weights, message):
    with pytest.raises(ValueError, match=message):
        late_phase.checkpoint.keras_model(trained("convnet"), weights)


def test_a_model_of_another_network_is_refused(run, trained):
    before = program_runs.read_checkpoint(run)
    plain = late_phase.keras.collapse(late_phase.checkpoint.keras_model(run))
    for model, message in (
        (
            late_phase.checkpoint.keras_model(trained("wrn-base")),
            "bn0/mean missing, bn0/offset missing.* and [0-9]+ more",
        ),
        (
            keras.Sequential([*plain.layers, keras.layers.Dense(3, name="more")]),
            "more/bias unexpected, more/kernel unexpected",
        ),
        (plain, r"bn0/mean of shape \(6,\) instead of \(3, 6\)"),
        (
            late_phase.keras.convert(plain, members=2),
            r"bn0/mean of shape \(2, 6\) instead of \(3, 6\)",
        ),
    ):
        with pytest.raises(
            ValueError, match=f"`model` must be the network of the run. Received: .*{message}"
        ):
            late_phase.checkpoint.save(model, run)
    model = late_phase.checkpoint.keras_model(run)
    model.get_layer("conv1").bias.assign(np.full(16, np.nan))
    with pytest.raises(
        ValueError, match="`conv1/bias` must be finite to be saved. Received: inf or NaN"
    ):
        late_phase.checkpoint.save(model, run)
    program_runs.assert_same_bits(program_runs.read_checkpoint(run), before)


def test_a_converted_model_can_be_saved(run, files):
    plain = late_phase.keras.collapse(late_phase.checkpoint.keras_model(run))
    late_phase.checkpoint.save(late_phase.keras.convert(plain, members=MEMBERS), run)
    found = evaluate(run, files["cifar10"])
    assert found["member-0"] == found["member-2"] == found["collapsed"]


def test_a_run_keeps_its_precision(run, files):
    config = (run / "config.toml").read_text()
    (run / "config.toml").write_text(config.replace('dtype = "float64"', 'dtype = "float32"'))
    model = late_phase.checkpoint.keras_model(run)
    assert {weight.dtype for weight in model.weights} == {"float32"}
    (run / "config.toml").write_text(config)
    late_phase.checkpoint.save(model, run)
    assert late_phase.checkpoint.read(run)["conv0/kernel"].dtype == np.float64
    assert evaluate(run, files["cifar10"])["collapsed"] == pytest.approx(
        figures(model, images_of(files["cifar10"]))["nll"], abs=6e-5
    )


def test_a_process_killed_while_saving_leaves_one_whole_checkpoint(
    run, trained, files, monkeypatch
):
    """Killed before each of its acts on the disk."""
    old = program_runs.read_checkpoint(run)
    model = late_phase.checkpoint.keras_model(run)
    model.get_layer("conv0").bias.assign(np.arange(6.0))
    acts = []
    for module, name in (
        (os, "fsync"),
        (shutil, "rmtree"),
        (pathlib.Path, "rename"),
        (pathlib.Path, "mkdir"),
    ):
        do = getattr(module, name)

        def act(*arguments, _do=do, _name=name, **options):
            if len(acts) == killed_at:
                raise KeyboardInterrupt
            acts.append(_name)
            return _do(*arguments, **options)

        monkeypatch.setattr(module, name, act)
    states = []
    for killed_at in range(100):
        acts.clear()
        states.append(pathlib.Path(f"{run}-{killed_at}"))
        os.system(f"cp -r {run} {states[-1]}")
        try:
            late_phase.checkpoint.save(model, states[-1])
            break
        except KeyboardInterrupt:
            pass
    monkeypatch.undo()
    assert acts == [
        "rmtree",
        "mkdir",
        "fsync",
        "fsync",
        "fsync",
        "rename",
        "fsync",
        "rmtree",
        "rename",
        "fsync",
    ]
    for killed_at, state in enumerate(states):
        renamed = killed_at >= acts.index("rename") + 1
        bias = late_phase.checkpoint.read(state)["conv0/bias"]
        assert np.array_equal(bias, np.arange(6.0) if renamed else old["conv0/bias"])
    # The program reads, and resumes from, the state between the two renames; the next save cleans
    # up.
    between = states[acts.index("rename") + 1]
    assert sorted(os.listdir(between / "checkpoint")) == [f"step-{STEPS:012}", f"step-{STEPS:012}+"]
    os.unlink(between / "checkpoint" / f"step-{STEPS:012}" / "state.index")  # half removed
    assert evaluate(between, files["cifar10"])["collapsed"] == pytest.approx(
        figures(model, images_of(files["cifar10"]))["nll"], abs=6e-5
    )
    for state in (states[4], between, states[acts.index("rename") + 3]):
        late_phase.checkpoint.save(model, state)
        assert os.listdir(state / "checkpoint") == [f"step-{STEPS:012}"]
        assert np.array_equal(late_phase.checkpoint.read(state)["conv0/bias"], np.arange(6.0))


def _flip_a_byte(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage, error, message",
    [
        (
            lambda run, step: shutil.rmtree(run),
            FileNotFoundError,
            "`run` must be the folder of a run, with config.toml and checkpoint/",
        ),
        (
            lambda run, step: (run / "config.toml").unlink(),
            FileNotFoundError,
            "`run` must be the folder of a run, with config.toml",
        ),
        (
            lambda run, step: (run / "config.toml").write_text("model ="),
            ValueError,
            "config.toml must be as the program wrote it",
        ),
        (
            lambda run, step: (run / "config.toml").write_text('seeds = 1\nmodel = "base"'),
            ValueError,
            "config.toml must have `program`",
        ),
        (
            lambda run, step: shutil.rmtree(run / "checkpoint"),
            FileNotFoundError,
            "There must be a checkpoint",
        ),
        (
            lambda run, step: step.rename(step.parent / ".incomplete"),
            FileNotFoundError,
            "There must be a checkpoint",
        ),
        (
            lambda run, step: os.truncate(step / "state.data-00000-of-00001", 100000),
            ValueError,
            "The checkpoint must be complete",
        ),
        (
            lambda run, step: os.truncate(step / "state.index", 100),
            ValueError,
            "The checkpoint must be complete",
        ),
        (
            lambda run, step: _flip_a_byte(step / "state.data-00000-of-00001"),
            ValueError,
            "The checkpoint must be complete",
        ),
        (
            lambda run, step: (step / "state.index").unlink(),
            ValueError,
            "The checkpoint must be complete",
        ),
        (
            lambda run, step: (step / "state.data-00000-of-00001").unlink(),
            ValueError,
            "The checkpoint must be complete",
        ),
        (
            lambda run, step: tf.train.Checkpoint(v=tf.Variable(1)).write(str(step / "state")),
            ValueError,
            "must be one that tools/latephase train wrote",
        ),
    ],
)
def test_what_is_missing_or_damaged_is_named(run, damage, error, message):
    model = late_phase.checkpoint.keras_model(run)
    damage(run, pathlib.Path(program_runs.checkpoint_folders(run)[0]))
    for use in (
        late_phase.checkpoint.keras_model,
        lambda run: late_phase.checkpoint.save(model, run),
    ):
        with pytest.raises(error, match=message) as raised:
            use(run)
        assert str(run) in str(raised.value)


@pytest.mark.parametrize(
    "was, now, message",
    [
        ('network = "convnet"', 'network = "wrn"', r"config.toml. Received: .*bn/mean missing"),
        (
            'dataset = "cifar10"',
            'dataset = "cifar100"',
            r"config.toml. Received: head/bias of shape \(3, 10\) instead of \(3, 100\)",
        ),
        (
            "late_head = true",
            "late_head = false",
            r"config.toml. Received: head/bias of shape \(3, 10\) instead of \(10,\)",
        ),
        ('program = "cifar"', 'program = "enwik8"', "vocabulary missing"),
        (
            'program = "cifar"',
            'program = "nqp"',
            "must be a run of `tools/latephase train .*program='nqp'",
        ),
        (
            'network = "convnet"',
            'network = "pyramidnet"',
            "`network` must be convnet or wrn to be built in Keras. Received: network='pyramidnet'",
        ),
        (
            'model = "late-phase"',
            'model = "batch-ensemble"',
            "`model` must be base or late-phase to be built in Keras. Received: model='batch-",
        ),
        (
            "hypernetwork = false",
            "hypernetwork = true",
            "`hypernetwork` must be false in a run that is built in Keras",
        ),
        (
            "late_all = false",
            "late_all = true",
            "`late_all` must be false in a run that is built in Keras",
        ),
        ("late_rank1 = false", "late_rank1 = true", "config.toml. Received: .*conv0/u missing"),
    ],
)
def test_a_config_of_another_network_is_refused(run, was, now, message):
    config = run / "config.toml"
    assert was in config.read_text()
    config.write_text(config.read_text().replace(was, now))
    with pytest.raises(ValueError, match=message):
        late_phase.checkpoint.keras_model(run)
