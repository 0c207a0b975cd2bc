"""Member and base updates, Spawn, SwaUpdate, Collapse and ReadMember on TensorFlow variables."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

import late_phase

ops = late_phase.raw_ops
TOLERANCE = {np.float64: 1e-13, np.float32: 1e-6}
SHAPE = (3, 5)


class Reference:
    """One update rule in plain double precision."""

    def __init__(self, rule, w, hyper):
        self.rule, self.w, self.hyper = rule, np.array(w, np.float64), hyper
        self.accum, self.m, self.v = (np.zeros_like(self.w) for _ in range(3))
        self.n = 0

    def apply(self, g):
        p = self.hyper
        g = np.asarray(g, np.float64) + p["weight_decay"] * self.w
        if self.rule == "sgd":
            self.w -= p["lr"] * g
        elif self.rule in ("momentum", "nesterov"):
            self.accum = p["momentum"] * self.accum + g
            self.w -= p["lr"] * (
                g + p["momentum"] * self.accum if self.rule == "nesterov" else self.accum
            )
        else:
            self.n += 1
            self.m = p["beta1"] * self.m + (1 - p["beta1"]) * g
            self.v = p["beta2"] * self.v + (1 - p["beta2"]) * g**2
            rate = p["lr"] * np.sqrt(1 - p["beta2"] ** self.n) / (1 - p["beta1"] ** self.n)
            self.w -= rate * self.m / (np.sqrt(self.v) + p["epsilon"])


NAMES = {
    "sgd": [],
    "momentum": ["momentum"],
    "nesterov": ["momentum"],
    "adam": ["beta1", "beta2", "epsilon"],
}


def hyper_parameters(rule, dtype):
    """As the op sees them: rounded to its type."""
    values = {
        "lr": 0.05,
        "momentum": 0.9,
        "beta1": 0.9,
        "beta2": 0.999,
        "epsilon": 1e-8,
        "weight_decay": 0.01,
    }
    return {name: float(dtype(values[name])) for name in ["lr", *NAMES[rule], "weight_decay"]}


def slots(rule, shape, counts, dtype):
    if rule == "sgd":
        return {}
    if rule in ("momentum", "nesterov"):
        return {"accum": tf.Variable(np.zeros(shape, dtype))}
    zeros = np.zeros(shape, dtype)
    return {
        "m": tf.Variable(zeros),
        "v": tf.Variable(zeros),
        "count": tf.Variable(np.zeros(counts, np.int64)),
    }


def call(target, rule, **inputs):
    op = {"sgd": "sgd", "momentum": "momentum", "nesterov": "momentum", "adam": "adam"}[rule]
    if op == "momentum":
        inputs["use_nesterov"] = rule == "nesterov"
    inputs = {k: v.handle if isinstance(v, tf.Variable) else v for k, v in inputs.items()}
    inputs["grad"] = tf.constant(inputs["grad"])  # its type is that of the numbers around it
    getattr(ops, f"late_phase_{target}_apply_{op}")(**inputs)


def assert_near(actual, expected, dtype):
    assert np.max(np.abs(actual - expected)) <= TOLERANCE[dtype] * np.max(np.abs(expected))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", sorted(NAMES))
@pytest.mark.parametrize("members", [1, 2, 10])
def test_member_updates_touch_their_row_only(rule, members, dtype):
    rng = np.random.default_rng(0)
    start = rng.uniform(-1, 1, (members, *SHAPE)).astype(dtype)
    var, state = tf.Variable(start), slots(rule, start.shape, [members], dtype)
    hyper = hyper_parameters(rule, dtype)
    references = [Reference(rule, row, hyper) for row in start]
    for step in range(3 * members + 1):
        member, grad = (step * 3) % members, rng.uniform(-1, 1, SHAPE).astype(dtype)
        before = {name: v.numpy() for name, v in {"var": var, **state}.items()}
        given = grad
        if step % 2:  # the gradient of the whole stack, garbage in the other rows
            given = np.full((members, *SHAPE), np.nan, dtype)
            given[member] = grad
        call("member", rule, var=var, **state, member=member, **hyper, grad=given)
        references[member].apply(grad)
        for name, variable in {"var": var, **state}.items():
            others = np.arange(members) != member
            np.testing.assert_array_equal(variable.numpy()[others], before[name][others])
        assert_near(var.numpy()[member], references[member].w, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("rule", sorted(NAMES))
@pytest.mark.parametrize(
    "members, scale", [(1, 1.0), (1, 0.3), (2, 1.0), (2, 0.5), (10, 1.0), (10, 0.1), (10, 0.3)]
)
def test_base_updates_gather_and_apply_once_per_cycle(rule, members, scale, dtype):
    """Three steps of cycle 1, then cycles of K, the last one left open."""
    rng = np.random.default_rng(1)
    start = rng.uniform(-1, 1, SHAPE).astype(dtype)
    var, total = tf.Variable(start), tf.Variable(np.zeros(SHAPE, dtype))
    state, hyper = slots(rule, SHAPE, [], dtype), hyper_parameters(rule, dtype)
    reference, gathered = Reference(rule, start, hyper), np.zeros(SHAPE)
    schedule = (
        [(0, 1, 1.0)] * 3
        + [(m, members, scale) for _ in range(3) for m in range(members)]
        + [(m, members, scale) for m in range(members // 2)]
    )
    for member, cycle, gamma in schedule:
        gamma = float(dtype(gamma))
        grad = rng.uniform(-1, 1, SHAPE).astype(dtype)
        call(
            "base",
            rule,
            var=var,
            **state,
            sum=total,
            member=member,
            cycle=cycle,
            scale=gamma,
            **hyper,
            grad=grad,
        )
        gathered = gathered + grad
        if member == cycle - 1:
            reference.apply(gamma * gathered)
            gathered = np.zeros(SHAPE)
        assert_near(var.numpy(), reference.w, dtype)
        np.testing.assert_allclose(
            total.numpy(), gathered, rtol=1e-5 if dtype == np.float32 else 1e-13, atol=1e-6
        )


def test_cycle_one_never_touches_the_sum():
    total = tf.Variable(np.full(SHAPE, 7.0))
    call(
        "base",
        "sgd",
        var=tf.Variable(np.ones(SHAPE)),
        sum=total,
        member=0,
        cycle=1,
        scale=1.0,
        lr=0.1,
        weight_decay=0.0,
        grad=np.ones(SHAPE),
    )
    np.testing.assert_array_equal(total, np.full(SHAPE, 7.0))


@pytest.mark.parametrize(
    "rule, slots", [("sgd", ()), ("momentum", ("accum",)), ("adam", ("m", "v"))]
)
def test_cycle_one_needs_no_sum(rule, slots):
    """Whatever is in its place: the updated variable itself, or one of another shape and type."""
    hyper = dict(lr=0.1, weight_decay=0.0)
    hyper.update(
        {"momentum": dict(momentum=0.9), "adam": dict(beta1=0.9, beta2=0.999, epsilon=1e-8)}.get(
            rule, {}
        )
    )
    results = []
    for stand_in in (
        lambda var: tf.Variable(np.zeros(SHAPE)),
        lambda var: var,
        lambda var: tf.Variable(np.zeros(1, np.float32)),
    ):
        var = tf.Variable(np.ones(SHAPE))
        state = {name: tf.Variable(np.zeros(SHAPE)) for name in slots}
        if rule == "adam":
            state["count"] = tf.Variable(np.int64(0))
        call(
            "base",
            rule,
            var=var,
            **state,
            sum=stand_in(var),
            member=0,
            cycle=1,
            scale=1.0,
            **hyper,
            grad=np.full(SHAPE, 0.5),
        )
        results.append(var.numpy())
    assert (
        (results[0] != 1).all()
        and (results[0] == results[1]).all()
        and (results[0] == results[2]).all()
    )


@pytest.mark.parametrize("nesterov", [False, True])
def test_momentum_agrees_with_tensorflow(nesterov):
    rng = np.random.default_rng(2)
    start = rng.uniform(-1, 1, SHAPE).astype(np.float32)
    ours, accum, total = tf.Variable(start), tf.Variable(0 * start), tf.Variable(0 * start)
    theirs, their_accum = tf.Variable(start), tf.Variable(0 * start)
    for _ in range(20):
        grad = rng.uniform(-1, 1, SHAPE).astype(np.float32)
        ops.late_phase_base_apply_momentum(
            var=ours.handle,
            accum=accum.handle,
            sum=total.handle,
            member=0,
            cycle=1,
            scale=1.0,
            lr=0.1,
            momentum=0.9,
            weight_decay=0.0,
            grad=grad,
            use_nesterov=nesterov,
        )
        tf.raw_ops.ResourceApplyMomentum(
            var=theirs.handle,
            accum=their_accum.handle,
            lr=0.1,
            grad=grad,
            momentum=0.9,
            use_nesterov=nesterov,
        )
    assert_near(ours.numpy(), theirs.numpy(), np.float32)


@pytest.mark.parametrize("target", ["base", "member"])
@pytest.mark.parametrize("nesterov", [False, True])
def test_rate_in_accum_agrees_with_keras(target, nesterov):
    rng = np.random.default_rng(2)
    start = rng.uniform(-1, 1, SHAPE).astype(np.float32)
    ours = tf.Variable(start if target == "base" else start[np.newaxis])
    state = {
        "accum": tf.Variable(tf.zeros_like(ours)),
        **({"sum": tf.Variable(tf.zeros_like(ours))} if target == "base" else {}),
    }
    cycle = {"cycle": 1, "scale": 1.0} if target == "base" else {}
    theirs = tf.keras.Variable(start)
    keras = tf.keras.optimizers.SGD(0.1, momentum=0.9, nesterov=nesterov)
    for rate in np.linspace(
        0.1, 0.0, 20, dtype=np.float32
    ):  # with a constant one the two forms are the same
        grad = rng.uniform(-1, 1, SHAPE).astype(np.float32)
        call(
            target,
            "nesterov" if nesterov else "momentum",
            var=ours,
            **state,
            member=0,
            **cycle,
            lr=rate,
            momentum=0.9,
            weight_decay=0.0,
            grad=grad,
            lr_in_accum=True,
        )
        keras.learning_rate = rate
        keras.apply([tf.constant(grad)], [theirs])
    assert_near(tf.reshape(ours, SHAPE).numpy(), theirs.numpy(), np.float32)


def test_adam_agrees_with_tensorflow():
    rng = np.random.default_rng(3)
    start = rng.uniform(-1, 1, SHAPE).astype(np.float32)
    ours, state, total = (
        tf.Variable(start),
        slots("adam", SHAPE, [], np.float32),
        tf.Variable(0 * start),
    )
    theirs, m, v = tf.Variable(start), tf.Variable(0 * start), tf.Variable(0 * start)
    for step in range(1, 21):
        grad = (1e-6 * rng.uniform(-1, 1, SHAPE)).astype(np.float32)  # so small that epsilon counts
        hyper = dict(lr=1e-3, beta1=0.9, beta2=0.999, epsilon=1e-8)
        call(
            "base",
            "adam",
            var=ours,
            **state,
            sum=total,
            member=0,
            cycle=1,
            scale=1.0,
            **hyper,
            weight_decay=0.0,
            grad=grad,
        )
        tf.raw_ops.ResourceApplyAdam(
            var=theirs.handle,
            m=m.handle,
            v=v.handle,
            beta1_power=0.9**step,
            beta2_power=0.999**step,
            grad=grad,
            **hyper,
        )
    assert_near(ours.numpy(), theirs.numpy(), np.float32)
    assert state["count"].numpy() == 20


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16])
def test_half_variables_have_float_slots(dtype):
    var = tf.Variable(tf.ones([2, *SHAPE], dtype))
    accum = tf.Variable(tf.zeros([2, *SHAPE]))
    ops.late_phase_member_apply_momentum(
        var=var.handle,
        accum=accum.handle,
        member=1,
        lr=tf.constant(0.5, dtype),
        momentum=tf.constant(0.5, dtype),
        weight_decay=tf.constant(0.0, dtype),
        grad=tf.ones(SHAPE, dtype),
    )
    np.testing.assert_array_equal(
        tf.cast(var, tf.float32), np.stack([np.ones(SHAPE), np.full(SHAPE, 0.5)])
    )
    np.testing.assert_array_equal(accum[1], np.ones(SHAPE))


def test_a_reader_keeps_what_it_read():
    var = tf.Variable(np.ones((2, *SHAPE)))
    read = var.read_value()
    call("member", "sgd", var=var, member=0, lr=1.0, weight_decay=0.0, grad=np.ones(SHAPE))
    np.testing.assert_array_equal(read, np.ones((2, *SHAPE)))
    np.testing.assert_array_equal(var, np.stack([np.zeros(SHAPE), np.ones(SHAPE)]))


def test_updates_in_a_function_with_a_schedule_trace_once():
    var, lr, member, traces = (
        tf.Variable(np.ones((2, *SHAPE))),
        tf.Variable(0.5, dtype=tf.float64),
        tf.Variable(0),
        [],
    )

    @tf.function
    def step():
        traces.append(1)
        ops.late_phase_member_apply_sgd(
            var=var.handle, member=member, lr=lr, weight_decay=0.0, grad=tf.ones(SHAPE, tf.float64)
        )

    for i in range(4):
        member.assign(i % 2)
        lr.assign(0.5 / (1 + i))
        step()
    np.testing.assert_allclose(var[:, 0, 0], [1 - 0.5 - 0.5 / 3, 1 - 0.25 - 0.125])
    assert len(traces) == 1


def test_spawn_statistics():
    rng = np.random.default_rng(4)
    members, size, sigma = 6, 200_000, 0.35
    start = rng.normal(0.3, 2.0, size).astype(np.float32)
    var = tf.Variable(
        np.concatenate([start[None], np.full((members - 1, size), np.nan, np.float32)])
    )
    ops.late_phase_spawn(var=var.handle, sigma=sigma, seed=tf.constant([1, 2], tf.int64))
    noise = (var.numpy().astype(np.float64) - start) / (
        sigma * np.sqrt(np.mean(start.astype(np.float64) ** 2))
    )
    assert np.all(np.abs(noise.mean(axis=1)) < 4.5 / np.sqrt(size))
    assert np.all(np.abs(noise.var(axis=1) - 1) < 4.5 * np.sqrt(2 / size))
    for a, b in itertools.combinations(noise, 2):
        assert abs(np.mean(a * b)) < 4.5 / np.sqrt(size)
    again = tf.Variable(np.concatenate([start[None], np.zeros((members - 1, size), np.float32)]))
    ops.late_phase_spawn(var=again.handle, sigma=sigma, seed=tf.constant([1, 2], tf.int64))
    np.testing.assert_array_equal(again, var)
    ops.late_phase_spawn(var=again.handle, sigma=sigma, seed=tf.constant([1, 3], tf.int64))
    assert np.any(again.numpy() != var.numpy())


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_spawn_without_noise_copies_exactly(dtype):
    row = np.random.default_rng(5).normal(size=(1, 7))
    var = tf.Variable(tf.cast(np.concatenate([row, np.zeros((3, 7))]), dtype))
    first = tf.cast(var[0], tf.float64).numpy()
    ops.late_phase_spawn(var=var.handle, sigma=0.0, seed=tf.constant([0, 0], tf.int64))
    np.testing.assert_array_equal(tf.cast(var, tf.float64), np.tile(first, (4, 1)))


def test_read_member_and_collapse():
    rows = np.random.default_rng(6).normal(size=(3, *SHAPE))
    var = tf.Variable(rows)
    np.testing.assert_array_equal(
        ops.late_phase_read_member(var=var.handle, member=2, dtype=tf.float64), rows[2]
    )
    np.testing.assert_allclose(
        ops.late_phase_collapse(var=var.handle, dtype=tf.float64), rows.mean(axis=0), rtol=1e-14
    )
    assert ops.late_phase_collapse(var=var.handle, dtype=tf.float64).shape == SHAPE


def test_swa_is_the_mean_of_its_samples():
    samples = np.random.default_rng(7).normal(size=(5, *SHAPE)).astype(np.float32)
    source, average = tf.Variable(samples[0]), tf.Variable(np.full(SHAPE, np.nan, np.float32))
    for n, sample in enumerate(samples):
        source.assign(sample)
        ops.late_phase_swa_update(average=average.handle, source=source.handle, count=n)
    np.testing.assert_allclose(average, samples.mean(axis=0), rtol=1e-5, atol=1e-6)


def good_member():
    return dict(
        var=tf.Variable(np.ones((2, 3))),
        accum=tf.Variable(np.zeros((2, 3))),
        member=1,
        lr=0.1,
        momentum=0.9,
        weight_decay=0.0,
        grad=np.ones(3),
    )


def good_base():
    return dict(
        var=tf.Variable(np.ones(3)),
        accum=tf.Variable(np.zeros(3)),
        sum=tf.Variable(np.zeros(3)),
        member=1,
        cycle=2,
        scale=0.5,
        lr=0.1,
        momentum=0.9,
        weight_decay=0.0,
        grad=np.ones(3),
    )


@pytest.mark.parametrize(
    "target, change, complaint",
    [
        (
            "member",
            {"member": 2},
            r"`member` must be in \[0, 2\), the rows of `var`. Received: member=2",
        ),
        ("member", {"member": -1}, r"Received: member=-1"),
        ("member", {"lr": -0.1}, r"`lr` must be in \[0, inf\). Received: lr=-0.1"),
        ("member", {"lr": float("nan")}, r"`lr` must be in .* Received: lr=nan"),
        ("member", {"lr": float("inf")}, r"`lr` must be in"),
        ("member", {"lr": [0.1]}, r"`lr` must be a scalar. Received: shape=\[1\]"),
        ("member", {"momentum": 1.0}, r"`momentum` must be in \[0, 1\)"),
        ("member", {"weight_decay": -1.0}, r"`weight_decay` must be in \[0, inf\)"),
        (
            "member",
            {"grad": np.ones(4)},
            r"`grad` must have the shape of a row of `var`, \[3\], or of all of it, \[2,3\]. "
            r"Received: shape=\[4\]",
        ),
        (
            "member",
            {"accum": tf.Variable(np.zeros((2, 4)))},
            r"`accum` must have the shape \[2,3\]",
        ),
        (
            "member",
            {"accum": tf.Variable(np.zeros((2, 3), np.float32))},
            r"`accum` must be of type double. Received: type=float",
        ),
        ("member", {"var": tf.Variable(np.ones((0, 3)))}, r"`var` must be \[K>=1, ...\]"),
        (
            "base",
            {"member": 2},
            r"`member` must be in \[0, 2\), the length of `cycle`. Received: member=2",
        ),
        ("base", {"cycle": 0, "member": 0}, r"`cycle` must be at least 1. Received: cycle=0"),
        ("base", {"scale": 0.0}, r"`scale` must be in \(0, 1\]. Received: scale=0"),
        ("base", {"scale": 1.5}, r"`scale` must be in \(0, 1\]"),
        ("base", {"sum": tf.Variable(np.zeros(4))}, r"`sum` must have the shape \[3\]"),
        ("base", {"grad": np.ones((2, 3))}, r"`grad` must have the shape \[3\]"),
    ],
)
def test_bad_input_says_what_is_wrong_and_writes_nothing(target, change, complaint):
    inputs = {**(good_member() if target == "member" else good_base()), **change}
    variables = {name: v for name, v in inputs.items() if isinstance(v, tf.Variable)}
    before = {name: v.numpy() for name, v in variables.items()}
    with pytest.raises(tf.errors.InvalidArgumentError, match=complaint):
        call(target, "momentum", **inputs)
    for name, variable in variables.items():
        np.testing.assert_array_equal(variable, before[name])


def test_good_inputs_are_good():
    call("member", "momentum", **good_member())
    call("base", "momentum", **good_base())


def test_one_variable_in_two_places_is_refused():
    inputs = good_base()
    inputs["accum"] = inputs["var"]
    with pytest.raises(tf.errors.InvalidArgumentError, match="variables must differ"):
        call("base", "momentum", **inputs)


def test_uninitialised_variable_is_refused():
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        var = tf.compat.v1.get_variable("theta", shape=[2, 3], use_resource=True)
        update = ops.late_phase_member_apply_sgd(
            var=var.handle, member=0, lr=0.1, weight_decay=0.0, grad=np.ones(3, np.float32)
        )
        with pytest.raises(
            tf.errors.FailedPreconditionError,
            match="LatePhase>MemberApplySgd: `var` must be an initialised variable",
        ):
            session.run(update)


@pytest.mark.parametrize(
    "sigma, complaint",
    [
        (-0.1, r"`sigma` must be in \[0, inf\). Received: sigma=-0.1"),
        (float("nan"), "`sigma` must be"),
    ],
)
def test_spawn_refuses_a_bad_sigma(sigma, complaint):
    var = tf.Variable(np.ones((2, 3)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=complaint):
        ops.late_phase_spawn(var=var.handle, sigma=sigma, seed=tf.constant([0, 0], tf.int64))
    np.testing.assert_array_equal(var, np.ones((2, 3)))


def test_concurrent_readers_never_see_a_torn_row():
    """Rows move from all a to all b at once; a reader in another thread sees one or the other."""
    import threading

    size = 1 << 18
    var = tf.Variable(np.zeros((1, size), np.float32))
    torn, stop = [], threading.Event()

    def read():
        while not stop.is_set():
            row = ops.late_phase_read_member(var=var.handle, member=0, dtype=tf.float32).numpy()
            if row.min() != row.max():
                torn.append((row.min(), row.max()))

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(100):
        call(
            "member",
            "sgd",
            var=var,
            member=0,
            lr=1.0,
            weight_decay=0.0,
            grad=np.full(size, -1, np.float32),
        )
    stop.set()
    thread.join()
    assert not torn
    np.testing.assert_array_equal(var, np.full((1, size), 100, np.float32))
