"""The paper's controls and baselines as settings of the programs: against stock TensorFlow, and
what each must leave as it is.
"""

import math
import shutil

import numpy
import pytest
import tensorflow as tf

import late_phase.checkpoint
from late_phase_cli import cifar_table, run_table
from tests.program import cifar_equality_test as whole
from tests.support import cifar_files, enwik8_text, program_runs

RATE = 2e-2
# 100 training images, ten minibatches an epoch; T0 at 12.
SMALL = (
    "--network convnet --late-batch-norm true --late-head true --batch 10 --learning-rate 0.02 "
    "--members 3 --t0 1.2 --sigma 0.2 --swa-start -1 --epochs 2 --log-every 4"
).split()
PRESETS = [
    "control-accumulation",
    "control-accumulation-mean",
    "control-frozen-base",
    "control-t0",
    "pretrained",
    "swa-constant",
    "swag",
]

files = whole.files


@pytest.fixture(scope="module")
def small_files(tmp_path_factory):
    return cifar_files.write_cifar(tmp_path_factory.mktemp("cifar"))


def assert_close(found, expected, tolerance=1e-9):
    for name, value in expected.items():
        numpy.testing.assert_allclose(
            found[name], value, atol=tolerance, rtol=tolerance, err_msg=name
        )


def model_of(checkpoint):
    """Weights and running statistics of one network from a checkpoint: rows of members averaged."""
    rows = {
        "head/kernel": 2,
        "head/bias": 1,
        **{
            f"{norm}/{what}": 1
            for norm in whole.NORMS
            for what in ("scale", "offset", "mean", "variance")
        },
    }
    names = [
        *whole.WEIGHTS,
        *(f"{norm}/{what}" for norm in whole.NORMS for what in ("mean", "variance")),
    ]
    return {
        name: checkpoint[name].mean(0)
        if checkpoint[name].ndim > rows.get(name, 4)
        else checkpoint[name]
        for name in names
    }


def accumulated(model, images, gamma, steps):
    """The network trained with gradients that are summed over MEMBERS minibatches from T0 on; also
    the running statistics and the sum so far.
    """
    weights = {name: tf.constant(model[name], tf.float64) for name in whole.WEIGHTS}
    statistics = {
        name: tf.stack([model[name + "/mean"], model[name + "/variance"]]) for name in whole.NORMS
    }
    velocity, gathered = dict.fromkeys(weights, 0), []
    for t in range(steps):
        pixels, labels = images.minibatch(t)
        minibatch = whole.Minibatch()
        with tf.GradientTape() as tape:
            tape.watch(weights)
            loss = tf.reduce_mean(
                tf.nn.sparse_softmax_cross_entropy_with_logits(
                    labels, whole.logits(weights, pixels, minibatch)
                )
            )
        gathered.append(tape.gradient(loss, weights))
        for name, new in minibatch.kept.items():
            statistics[name] = (1 - whole.BATCH_SHARE) * statistics[
                name
            ] + whole.BATCH_SHARE * tf.stack(new)
        late = t >= whole.T0
        if late and len(gathered) < whole.MEMBERS:
            continue
        rate = numpy.interp(t // whole.EPOCH, whole.ANNEAL, (RATE, RATE / 4))
        for name, weight in weights.items():
            gradient = (gamma if late else 1) * sum(
                one[name] for one in gathered
            ) + whole.DECAY * weight
            velocity[name] = whole.MOMENTUM * velocity[name] + gradient
            weights[name] = weight - rate * (gradient + whole.MOMENTUM * velocity[name])
        gathered = []
    return weights, statistics, {name: sum(one[name] for one in gathered) for name in weights}


@pytest.mark.parametrize("gamma", [1, 1 / 3])
def test_accumulation_is_one_update_by_the_sum_of_minibatches(tmp_path, files, gamma):
    run, steps = tmp_path / "run", whole.T0 + 4 * whole.MEMBERS + 2  # ends within a cycle
    flags = (*whole.flags(gamma, RATE, "float64"), "--model", "accumulation", "--swa-start", -1)
    initial = program_runs.initial_checkpoint("cifar", files, run, *flags)
    program_runs.train("cifar", files, run, "--steps", steps, "--resume")
    ours = program_runs.read_checkpoint(run)
    weights, statistics, gathered = accumulated(
        model_of(initial), whole.Images(files), gamma, steps
    )
    assert_close(model_of(ours), weights)
    assert_close(
        model_of(ours),
        {
            f"{name}/{what}": value
            for name, both in statistics.items()
            for what, value in zip(("mean", "variance"), both)
        },
    )
    assert_close(
        {name: ours[name + "/sum"].reshape(value.shape) for name, value in gathered.items()},
        gathered,
    )
    assert all(numpy.abs(value).max() > 0 for value in gathered.values())
    # Without members there is nothing to average or to tell apart.
    assert program_runs.read_results(run)["test"].keys() == {"collapsed"}
    assert (
        (late_phase.checkpoint.keras_model(run).get_layer("head").kernel == ours["head/kernel"])
        .numpy()
        .all()
    )


# Ten minibatches an epoch; T0 at 5.
TEXT = (
    "--units 12 --embedding 8 --batch 8 --sequence 20 --train-characters 1608 "
    "--validation-characters 0 --test-characters 0 --members 3 --t0 0.5 --swa-start -1 --epochs 3"
).split()


@pytest.mark.parametrize(
    "network, control, own", [("base", "accumulation", 6), ("rank1", "rank1-accumulation", 8)]
)
def test_accumulation_of_enwik8_is_the_network_until_t0_and_then_rests_within_cycles(
    tmp_path, network, control, own
):
    text = enwik8_text.write_text(tmp_path / "text", 4000)
    weights = {}
    for model, steps in ((network, 5), (control, 5), (control, 7), (control, 8)):
        run = tmp_path / model
        arguments = ("--resume",) if run.exists() else (*TEXT, "--model", model)
        program_runs.train("enwik8", text, run, *arguments, "--steps", steps)
        weights[model, steps] = program_runs.read_checkpoint(run)
    names = [name.removesuffix("/sum") for name in weights[control, 5] if name.endswith("/sum")]
    assert len(names) == own and weights[network, 5].keys() == weights[control, 5].keys() - {
        name + "/sum" for name in names
    }
    for name in names:
        at_t0 = weights[control, 5][name]
        assert (at_t0 == weights[network, 5][name]).all() and (
            at_t0 == weights[control, 7][name]
        ).all(), name
        assert (at_t0 != weights[control, 8][name]).any(), name
    assert [weights[control, steps][names[0] + "/count"] for steps in (5, 7, 8)] == [5, 5, 6]
    assert ("u" in late_phase.checkpoint.read(tmp_path / control)) == (network == "rank1")
    assert late_phase.checkpoint.keras_model(tmp_path / control)


@pytest.mark.parametrize("network", ["base", "rank1"])
def test_rates_of_enwik8_fall_from_t0_on(tmp_path, network):
    """From the same state a control's step is the network's, times the factor on the rate. T0 is
    step 5.
    """
    text = enwik8_text.write_text(tmp_path / "text", 4000)
    flags = (*TEXT, "--dtype", "float64", "--member-learning-rate", 1e-4)
    plain = {}
    for steps in (5, 6, 7):
        program_runs.train(
            "enwik8",
            text,
            tmp_path / network,
            *(("--resume",) if plain else (*flags, "--model", network)),
            "--steps",
            steps,
        )
        plain[steps] = program_runs.read_checkpoint(tmp_path / network)
    prefix = "" if network == "base" else network + "-"
    # With 7 steps in all the rate falls from 1 at step 5 to 0 at step 7.
    for control, steps, factor in (
        ("lower-rate", 6, 3**-0.5),
        ("lower-rate --late-rate 0.2", 6, 0.2),
        ("decay", 7, 0.5),
    ):
        program_runs.train(
            "enwik8",
            text,
            tmp_path / control.replace(" ", ""),
            *flags,
            "--model",
            *(prefix + control).split(),
            "--steps",
            steps,
        )
        ours = program_runs.read_checkpoint(tmp_path / control.replace(" ", ""))
        names = [name.removesuffix("/m") for name in ours if name.endswith("/m")]
        assert len(names) == (6 if network == "base" else 8)
        for name in names:
            before, after = plain[steps - 1][name], plain[steps][name]
            numpy.testing.assert_allclose(
                ours[name] - before,
                factor * (after - before),
                rtol=1e-9,
                atol=1e-15,
                err_msg=f"{control}: {name}",
            )
            assert (after != before).any(), name


def test_enwik8_starts_from_a_run_with_the_same_characters_alone(tmp_path):
    text, other = (
        enwik8_text.write_text(tmp_path / "text", 4000),
        enwik8_text.write_text(tmp_path / "other", 4000),
    )
    bytes_of_other = numpy.fromfile(other, numpy.uint8)
    (bytes_of_other + 1).tofile(other)
    program_runs.train(
        "enwik8",
        text,
        tmp_path / "trained",
        *TEXT,
        "--model",
        "late-phase",
        "--t0",
        0.2,
        "--steps",
        4,
    )
    trained = program_runs.read_checkpoint(tmp_path / "trained")
    # States that are carried from chunk to chunk stay behind, whatever their size.
    flags = (*TEXT, "--model", "rank1", "--batch", 4, "--pretrained", tmp_path / "trained")
    initial = program_runs.initial_checkpoint("enwik8", text, tmp_path / "run", *flags)
    for name in (name.removesuffix("/sum") for name in trained if name.endswith("/sum")):
        assert (initial[name] == trained[name]).all(), name
    numpy.testing.assert_allclose(initial["u"], trained["u"].mean(0, keepdims=True), atol=1e-6)
    assert not initial["state_h"].any() and trained["state_h"].any()
    refused = program_runs.try_train("enwik8", other, tmp_path / "refused", *flags)
    assert (
        refused.returncode == 2
        and "`vocabulary` must be what it is in the checkpoint" in refused.stderr
    ), refused.stderr


def test_a_frozen_base_keeps_its_bits_while_the_members_learn(tmp_path, files):
    run = tmp_path / "run"
    program_runs.train(
        "cifar",
        files,
        run,
        *whole.flags(1, RATE, "float64"),
        "--freeze-base",
        "true",
        "--steps",
        whole.T0,
    )
    before = program_runs.read_checkpoint(run)
    program_runs.train("cifar", files, run, "--steps", whole.STEPS, "--resume")
    after = program_runs.read_checkpoint(run)
    for name in whole.BASE:
        assert (after[name] == before[name]).all(), name
    for name in whole.LATE:
        for k in range(whole.MEMBERS):
            assert numpy.abs(after[name][k] - before[name][0]).max() > 0.01 * RATE, (name, k)
    # What was before T0 is the run without the setting.
    program_runs.train(
        "cifar", files, tmp_path / "moving", *whole.flags(1, RATE, "float64"), "--steps", whole.T0
    )
    program_runs.assert_same_bits(before, program_runs.read_checkpoint(tmp_path / "moving"))


def test_members_from_the_first_minibatch_on_equal_stock_tensorflow(tmp_path, files, monkeypatch):
    monkeypatch.setattr(whole, "T0", 0)
    run = tmp_path / "run"
    initial = program_runs.initial_checkpoint("cifar", files, run, *whole.flags(1, RATE, "float64"))
    program_runs.train("cifar", files, run, "--steps", whole.STEPS, "--resume")
    reference = whole.Reference(initial, whole.Images(files), 1, RATE)
    for _ in range(whole.STEPS):
        reference.step()
    ours = program_runs.read_checkpoint(run)
    assert_close(
        ours,
        {
            **reference.weights(),
            **{name + "/swa": value for name, value in reference.averages.items()},
        },
    )
    for name in whole.NORMS:
        mean, variance = numpy.stack([running[name] for running in reference.running], 1)
        assert_close(ours, {name + "/mean": mean, name + "/variance": variance})
    # Spawned, each with noise of its own, before the first minibatch: with one minibatch done, the
    # others are still noise alone.
    program_runs.train(
        "cifar", files, tmp_path / "one", *whole.flags(1, RATE, "float64"), "--steps", 1
    )
    rows = program_runs.read_checkpoint(tmp_path / "one")["head/kernel"]
    assert all(
        numpy.abs(rows[k] - initial["head/kernel"][0]).std()
        > 0.1 * whole.SIGMA * initial["head/kernel"][0].std()
        for k in range(3)
    )


def test_members_from_the_first_minibatch_on_are_forked_and_resumed(tmp_path, small_files):
    t0 = (*SMALL, "--t0", 0)
    program_runs.train("cifar", small_files, tmp_path / "all", "--model", "all", *t0)
    network = (*t0, "--model", "late-phase", "--network", "wrn", "--depth", 10, "--width", 1)
    program_runs.train("cifar", small_files, tmp_path / "own", "--model", "late-phase", *t0)
    program_runs.assert_same_bits(
        program_runs.read_checkpoint(tmp_path / "own"),
        program_runs.read_checkpoint(tmp_path / "all" / "late-phase"),
    )
    program_runs.train("cifar", small_files, tmp_path / "whole", *network, "--steps", 9)
    program_runs.assert_resumes_bit_for_bit(tmp_path / "whole", 4, "cifar", small_files, *network)


@pytest.mark.parametrize("model, steps", [("base", 7), ("late-phase", 11)])
def test_a_run_starts_from_the_weights_of_another(tmp_path, files, monkeypatch, model, steps):
    trained, run = tmp_path / "trained", tmp_path / "run"
    program_runs.train(
        "cifar",
        files,
        trained,
        *whole.flags(1, RATE, "float64"),
        "--model",
        model,
        "--steps",
        steps,
    )
    start = model_of(program_runs.read_checkpoint(trained))
    monkeypatch.setattr(whole, "T0", 0)
    initial = program_runs.initial_checkpoint(
        "cifar",
        files,
        run,
        *whole.flags(1, RATE, "float64"),
        "--members",
        whole.MEMBERS,
        "--pretrained",
        trained,
    )
    assert_close(model_of(initial), start, 1e-15)
    assert all((row == initial["bn/mean"][0]).all() for row in initial["bn/mean"])
    # Nothing but the model is taken: slots, averages and sums are those of a fresh run.
    for name, value in initial.items():
        if name.endswith(("/momentum", "/sum", "/swa")) or name in (
            "late_phase/spawned",
            "late_phase/swa_count",
            "epoch_loss",
        ):
            assert not value.any(), name
    shutil.rmtree(trained)
    steps = 8
    program_runs.train("cifar", files, run, "--steps", steps, "--resume")
    reference = whole.Reference(initial, whole.Images(files), 1, RATE)
    reference.running = [
        {name: tf.stack([start[name + "/mean"], start[name + "/variance"]]) for name in whole.NORMS}
    ]
    for _ in range(steps):
        reference.step()
    ours = program_runs.read_checkpoint(run)
    assert_close(ours, reference.weights())
    for name in whole.NORMS:
        mean, variance = numpy.stack([running[name] for running in reference.running], 1)
        assert_close(ours, {name + "/mean": mean, name + "/variance": variance})


@pytest.fixture(scope="module")
def trained(tmp_path_factory, small_files):
    """Both models, three steps each."""
    out = tmp_path_factory.mktemp("runs") / "all"
    program_runs.train(
        "cifar", small_files, out, "--model", "all", *SMALL, "--t0", 0.1, "--steps", 3
    )
    return out


def test_both_models_start_from_another_run_and_are_forked_there(tmp_path, small_files, trained):
    flags = (*SMALL, "--t0", 0, "--steps", 4, "--pretrained", trained / "base")
    result = program_runs.train("cifar", small_files, tmp_path / "all", "--model", "all", *flags)
    assert f"base: starts from the weights in {trained}/base/checkpoint" in result.stderr
    program_runs.train("cifar", small_files, tmp_path / "own", "--model", "late-phase", *flags)
    program_runs.assert_same_bits(
        program_runs.read_checkpoint(tmp_path / "own"),
        program_runs.read_checkpoint(tmp_path / "all" / "late-phase"),
    )
    assert f'pretrained = "{trained}/base"' in (tmp_path / "own" / "config.toml").read_text()
    # Weights that have members there may have none here, and of another type.
    other = program_runs.initial_checkpoint(
        "cifar",
        small_files,
        tmp_path / "other",
        *flags,
        "--model",
        "accumulation",
        "--t0",
        0.1,
        "--dtype",
        "float64",
        "--pretrained",
        trained,
    )
    members = program_runs.read_checkpoint(trained / "late-phase")
    for name in ("head/kernel", "bn0/scale", "bn0/mean", "bn3/variance"):
        assert members[name].shape[0] == 3 and other[name].dtype == numpy.float64
        numpy.testing.assert_allclose(
            other[name].reshape(members[name][0].shape), members[name].mean(0), rtol=1e-6, atol=1e-7
        )


@pytest.mark.parametrize(
    "pretrained, arguments, message",
    [
        (
            "nowhere",
            "",
            "`pretrained` must be the folder of a trained run, with config.toml and checkpoint/. "
            "Received: pretrained=nowhere",
        ),
        (
            "unfinished",
            "",
            "`pretrained` must be the folder of a trained run, with config.toml and checkpoint/",
        ),
        ("text", "", "`pretrained` must be a run of cifar. Received: pretrained="),
        (
            "trained",
            "--network wrn",
            '`pretrained` must be a run with network = "wrn", as this one',
        ),
        ("trained", "--depth 10", "`pretrained` must be a run with depth = 10, as this one"),
        (
            "trained",
            "--dataset cifar100",
            '`pretrained` must be a run with dataset = "cifar100", as this one',
        ),
    ],
)
def test_what_cannot_be_started_from_is_named(
    tmp_path, small_files, trained, pretrained, arguments, message
):
    data = (
        cifar_files.write_cifar(tmp_path / "data", "cifar100", classes=100)
        if "cifar100" in arguments
        else small_files
    )
    folders = {
        "nowhere": "nowhere",
        "unfinished": tmp_path / "unfinished",
        "text": tmp_path / "text",
        "trained": trained,
    }
    for name, program in (("unfinished", "cifar"), ("text", "enwik8")):
        folders[name].mkdir()
        (folders[name] / "config.toml").write_text(f'program = "{program}"\nmodel = "base"\n')
    result = program_runs.try_train(
        "cifar",
        data,
        tmp_path / "run",
        *SMALL,
        "--pretrained",
        folders[pretrained],
        *arguments.split(),
    )
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            "--model accumulation --t0 2",
            "`t0` must be less than `epochs`, or the late phase never begins. Received: t0=2, "
            "epochs=2",
        ),
        (
            "--model late-phase --late-batch-norm false --late-head false",
            "`members` must be 1 if no weight has members",
        ),
        ("--model base --swag-rank 4", "`swag_rank` must be 0 without SWA"),
        (
            "--model late-phase --swag-rank 4 --swa-start 1.5",
            "`swag_rank` must be 0 with members, because SWAG describes one model",
        ),
        (
            "--model base --swag-rank 1 --swa-start 1.5",
            "`swag_rank` must be at least 2, or 0 for no SWAG. Received: swag_rank=1",
        ),
    ],
)
def test_controls_that_make_no_sense_are_refused(tmp_path, small_files, arguments, message):
    result = program_runs.try_train(
        "cifar", small_files, tmp_path / "run", *SMALL, *arguments.split()
    )
    assert result.returncode == 2 and message in result.stderr, result.stderr
    assert not list(tmp_path.iterdir())


def test_swag_keeps_the_moments_of_its_samples(tmp_path, small_files):
    # A sample after minibatches 3, 5, 7, …, of which the last three deviations are kept.
    run, rank, network = (
        tmp_path / "run",
        3,
        (
            *SMALL,
            "--model",
            "base",
            "--network",
            "wrn",
            "--depth",
            10,
            "--width",
            1,
            "--dtype",
            "float64",
        ),
    )
    flags = (*network, "--swa-start", 0.1, "--swa-every", 0.2, "--swag-rank", rank)
    samples = []
    for steps in (3, 5, 7, 9, 11):
        program_runs.train(
            "cifar", small_files, run, *(("--resume",) if samples else flags), "--steps", steps
        )
        samples.append(program_runs.read_checkpoint(run))
    ours = samples[-1]
    weights = [name for name in ours if name + "/swa" in ours and name + "/swag_deviations" in ours]
    assert set(weights) >= set(whole.WEIGHTS) and ours["late_phase/swa_count"] == 5
    for name in weights:
        history = numpy.stack([sample[name] for sample in samples])
        assert_close(
            ours,
            {name + "/swa": history.mean(0), name + "/swa_square": (history**2).mean(0)},
            1e-14,
        )
        ring = numpy.zeros((rank, *history.shape[1:]))
        for n in range(len(history)):
            ring[n % rank] = history[n] - history[: n + 1].mean(0)
        assert_close(ours, {name + "/swag_deviations": ring}, 1e-14)
    program_runs.assert_resumes_bit_for_bit(run, 6, "cifar", small_files, *flags)


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_of_controls_train(tmp_path, small_files, trained, preset):
    small = (
        "--dataset",
        "cifar10",
        "--network",
        "convnet",
        "--batch",
        10,
        "--steps",
        3,
        "--evaluate-every",
        0,
    )
    start = (
        ("--pretrained", trained / "base")
        if preset in ("pretrained", "control-frozen-base")
        else ()
    )
    program_runs.train("cifar", small_files, tmp_path / "run", "--preset", preset, *small, *start)
    config, results = run_table.read_run(tmp_path / "run")
    assert (config["epochs"], config["members"], config["width"]) == (20 if start else 200, 10, 10)
    assert all(math.isfinite(run["train"]["loss"]) for run in run_table.runs_of(results))
    assert len(cifar_table.render(config, results)) > 2


@pytest.mark.parametrize(
    "preset, model, set, expected",
    [
        ("control-accumulation", "accumulation", "collapsed", "80.76 ±0.26"),
        ("control-accumulation-mean", "accumulation", "collapsed", "80.34 ±0.28"),
        ("control-t0", "late-phase", "collapsed", "74.38 ±0.71 (its text: 80.26 ±0.42)"),
        ("pretrained", "base", "collapsed", "81.47 ±0.14"),
        ("pretrained", "late-phase", "collapsed", "82.02 ±0.12"),
        ("control-frozen-base", "late-phase", "collapsed", "81.50 ±0.20"),
        ("swa-constant", "late-phase", "swa", "–"),  # the paper has a curve
        ("swag", "base", "swa", "82.46 ±0.09"),
        ("wrn-28-10-cifar100", "late-phase", "collapsed", "82.87 ±0.22"),
    ],
)
def test_tables_hold_the_papers_figures_of_controls(tmp_path, preset, model, set, expected):
    # config.toml of a run has what the preset leaves at its default, too.
    config = {
        "train_images": 0,
        "t0": 120.0,
        "gamma": 1.0,
        **run_table.tomllib.loads(open(f"{program_runs.PRESETS}/cifar-{preset}.toml").read()),
    }
    lines = cifar_table.render(
        config, {"model": model, "test": {set: {"accuracy": 0.5, "nll": 1, "ece": 0}}}
    )
    assert lines[2].endswith(f"| {expected} |") and len(lines) == 3
