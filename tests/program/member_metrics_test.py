"""How far the members are apart, as the programs log it: against NumPy and stock TensorFlow, from
the variables of the checkpoint.
"""

import math

import numpy
import pytest
import tensorflow as tf

from tests.program import enwik8_equality_test as text_reference
from tests.program import network_equality_test as image_reference
from tests.support import cifar_files, enwik8_text, program_runs

MEMBERS = 3  # of both references
NAMES = ("member_spread", "gradient_agreement")


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    # 90 % are training text: streams of EPOCH chunks and the one character that the last needs.
    chunks = text_reference.EPOCH * text_reference.TIME + 1
    size = math.ceil(text_reference.BATCH * chunks / 0.9)
    return enwik8_text.write_text(tmp_path_factory.mktemp("text") / "text", size, symbols=11)


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    per_file = image_reference.IMAGES // 5
    return cifar_files.write_cifar(
        tmp_path_factory.mktemp("cifar"), train_per_file=per_file, test=20
    )


def lines_of(run):
    """{step: the metrics of its line}"""
    lines = [line for line in program_runs.read_metrics(run) if line["kind"] == "members"]
    assert len({line["step"] for line in lines}) == len(lines)
    return {
        line["step"]: {name: line[name] for name in line if name.startswith(NAMES)}
        for line in lines
    }


def spread_of(stacks):
    """Of {name: [K, …]}."""
    rms = lambda values: numpy.sqrt(numpy.mean(numpy.square(values)))
    flat = {name: stack.reshape(len(stack), -1) for name, stack in stacks.items()}
    flat[""] = numpy.concatenate(list(flat.values()), axis=1)
    spreads = {
        name: rms(stack - stack.mean(0)) / rms(stack.mean(0)) for name, stack in flat.items()
    }
    total = spreads.pop("")
    return {"member_spread": total, **{f"member_spread/{name}": x for name, x in spreads.items()}}


def agreement_of(gradients):
    """The mean cosine of all pairs, each computed by itself."""
    vectors = [numpy.concatenate([numpy.ravel(g) for g in one]) for one in gradients]
    norm = numpy.linalg.norm
    cosines = [a @ b / (norm(a) * norm(b)) for i, a in enumerate(vectors) for b in vectors[i + 1 :]]
    assert len(cosines) == MEMBERS * (MEMBERS - 1) / 2
    return numpy.mean(cosines)


# Minibatches that end an epoch and begin the next one, where the network's state is zero; in
# mid-cycle.
@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-4), ("float64", 1e-9)])
@pytest.mark.parametrize("steps", [15, 21, 22])
def test_the_text_network_equals_stock_tensorflow(tmp_path, text, dtype, tolerance, steps):
    flags = text_reference.flags(1, dtype)
    program_runs.train("enwik8", text, tmp_path / "run", *flags, "--steps", steps)
    values = program_runs.read_checkpoint(tmp_path / "run")
    training, _ = text_reference.tokens_of(text)
    batch, time, epoch = text_reference.BATCH, text_reference.TIME, text_reference.EPOCH
    streams = training[: len(training) // batch * batch].reshape(batch, -1).T  # [time, batch]
    assert (len(streams) - 1) // time == epoch

    reference = text_reference.Reference(values, 1, seed=3)
    h, c = values["state_h"], values["state_c"]
    gradients = []
    for k in range(MEMBERS):
        first = (steps + k) % epoch * time
        if first == 0:
            h, c = numpy.zeros_like(h), numpy.zeros_like(c)
        weights = {
            **reference.theta,
            **{name: tf.constant(values[name][k]) for name in reference.factors},
        }
        with tf.GradientTape() as tape:
            tape.watch(weights)
            tokens, labels = (streams[first + i : first + i + time] for i in (0, 1))
            loss, h, c, _ = reference.loss(weights, tokens, labels, h, c)
        found = tape.gradient(loss, [weights[name] for name in text_reference.BASE])
        gradients.append([tf.convert_to_tensor(one) for one in found])
    expected = spread_of({name: values[name] for name in reference.factors})
    expected["gradient_agreement"] = agreement_of(gradients)
    assert lines_of(tmp_path / "run")[steps] == pytest.approx(expected, abs=tolerance)
    # Neither has a value that anything would give.
    assert 0.1 < expected["member_spread"] < 1 and abs(expected["gradient_agreement"]) < 0.999


# Dropout and ShakeDrop draw minibatch by minibatch; the last one of an epoch is smaller.
@pytest.mark.parametrize("case", ["convnet-dropout", "pyramidnet", "hypernetwork", "convnet-all"])
def test_image_networks_equal_stock_tensorflow(tmp_path, images, case):
    steps = image_reference.EPOCH + 2
    flags = (*image_reference.flags_of(case), "--sigma", 0.2, "--steps", steps)
    program_runs.train("cifar", images, tmp_path / "run", *flags)
    values = program_runs.read_checkpoint(tmp_path / "run")
    trained = [name for name in values if name + "/momentum" in values]
    base = [name for name in trained if name + "/sum" in values]
    late = {name: values[name] for name in trained if name not in base}
    expected = spread_of(late)
    data = image_reference.Images(images)

    def gradient(k):
        def draw(layer, shape):
            seed = tf.constant([image_reference.SEED, steps + k + (layer << 40)], tf.int64)
            return tf.random.stateless_uniform(shape, seed, dtype=tf.float32)

        pixels, labels = data.minibatch(steps + k)
        weights = {name: tf.constant(values[name]) for name in base}
        weights |= {name: tf.constant(stack[k]) for name, stack in late.items()}
        statistics = lambda name, x: tf.nn.moments(x, tuple(range(len(x.shape) - 1)))
        with tf.GradientTape() as tape:
            tape.watch(weights)
            logits = image_reference.Network(case, weights, statistics, draw)(pixels)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits)
            loss = tf.reduce_mean(losses)
        return tape.gradient(loss, [weights[name] for name in base])

    if base:
        expected["gradient_agreement"] = agreement_of([gradient(k) for k in range(MEMBERS)])
    assert (case == "convnet-all") == (base == [])
    assert lines_of(tmp_path / "run")[steps] == pytest.approx(expected, abs=1e-9)


def test_evaluations_measure_once_there_are_members(tmp_path, text):
    """T0 is 5, where the members are not spawned yet."""
    flags = (*text_reference.flags(1, "float64"), "--evaluate-every", 5 / text_reference.EPOCH)
    program_runs.train("enwik8", text, tmp_path / "run", *flags, "--steps", 22)
    lines = lines_of(tmp_path / "run")
    assert list(lines) == [10, 15, 20, 22]
    keys = {"member_spread", "member_spread/u", "member_spread/v", "gradient_agreement"}
    assert all(line.keys() == keys for line in lines.values())
    tags = program_runs.logged_tags(tmp_path / "run")
    assert {tag for tag in tags if tag.startswith("members/")} == {f"members/{x}" for x in keys}
    # In the middle of training as at the end of a shorter one.
    program_runs.train("enwik8", text, tmp_path / "shorter", *flags, "--steps", 15)
    assert lines_of(tmp_path / "shorter") == {step: lines[step] for step in (10, 15)}
    # A resumed run continues its lines.
    program_runs.train("enwik8", text, tmp_path / "shorter", "--resume", "--steps", 22)
    assert lines_of(tmp_path / "shorter") == lines


@pytest.mark.parametrize("model", ["base", "rank1", "rank1-accumulation"])
def test_without_members_there_is_nothing_to_measure(tmp_path, text, model):
    flags = [*text_reference.flags(1, "float32"), "--evaluate-every", 5 / text_reference.EPOCH]
    flags[flags.index("late-phase")] = model
    program_runs.train("enwik8", text, tmp_path / "run", *flags, "--steps", 11)
    assert lines_of(tmp_path / "run") == {}


def test_training_does_not_notice(tmp_path, text, images):
    """Bit for bit, with evaluations after every step and without any."""
    image_flags = (*image_reference.flags_of("convnet-dropout"), "--sigma", 0.2, "--pad", 4)
    for program, data, flags in (
        ("enwik8", text, text_reference.flags(1, "float32")),
        ("cifar", images, image_flags),
    ):
        ends = []
        for every in (0, 1e-9):
            run = tmp_path / f"{program}-{every}"
            program_runs.train(program, data, run, *flags, "--steps", 12, "--evaluate-every", every)
            ends.append(program_runs.read_checkpoint(run))
            assert len(lines_of(run)) == (1 if every == 0 else 12 - (5 if data == text else 3))
        program_runs.assert_same_bits(*ends)
