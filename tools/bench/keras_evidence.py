"""tools/latephase python tools/bench/keras_evidence.py --task digits --out FILE: late-phase weights
in Keras beside what else averages.

For every seed, a plain network is trained up to `start`, and each method continues from that state,
with the same minibatches:

    plain           the same optimizer; its trajectory also gives EMA (an option of Keras's
                    optimizers) and SWA
    accumulation    one step per K minibatches, without members: what late-phase does to its base
                    weights. Also with SWA
    rate/10         a tenth of the rate
    cosine          a rate that falls to zero
    late-phase      K members, collapsed. Also with SWA

All networks with BatchNorm are judged with statistics re-estimated from the training data.

Rate, EMA's momentum and K, sigma, gamma are chosen on validation data with seeds of their own, then
five other seeds are judged on test data. The choice is made from the record alone, by
keras_evidence_table.py, which also makes the tables. What FILE already holds is not repeated, so
that an interrupted run can be resumed; states are kept beside it, in FILE.states.
"""

import argparse
import contextlib
import math
import os
import platform
import time

import keras
import numpy as np
import tensorflow as tf

import late_phase.keras
from late_phase_cli import files
from tools.bench import keras_evidence_table, keras_tasks

LOSS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
# What Keras calls an optimizer's moments -> what LatePhaseOptimizer calls those of base weights,
# and their sign: Keras adds SGD's to a weight, the ops subtract it.
_SLOTS = {"SGD": {"momentum": ("accum", -1)}, "Adam": {"momentum": ("m", 1), "velocity": ("v", 1)}}


def _slot(optimizer, variable, name):
    name = f"{variable.path.replace('/', '_')}_{name}"
    (found,) = (one for one in optimizer.variables if one.name == name)
    return found


def train(data, model, epochs, callbacks=()):
    """Trains a compiled model in range(*epochs) of the epochs."""
    index = np.concatenate([data.batches(epoch) for epoch in range(*epochs)])
    model.fit(
        tf.data.Dataset.from_tensor_slices(index).map(data.inputs),
        steps_per_epoch=len(index) // (epochs[1] - epochs[0]),
        initial_epoch=epochs[0],
        epochs=epochs[1],
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )


def compiled(data, model, optimizer, loss_weight=None):
    model.compile(
        optimizer,
        LOSS,
        loss_weights=loss_weight,
        # All steps of an epoch in one call: what happens between them is Python's time, not
        # training's.
        steps_per_execution=len(data.batches(0)),
        jit_compile=False,
    )
    optimizer.build(model.trainable_variables)
    return model


def state_of(model):
    """A plain model and its optimizer, as arrays."""
    optimizer = model.optimizer
    state = {f"weight {i}": value for i, value in enumerate(model.get_weights())}
    for i, variable in enumerate(model.trainable_variables):
        for name in _SLOTS[type(optimizer).__name__]:
            state[f"{name} {i}"] = _slot(optimizer, variable, name).numpy()
    return state | {"step": optimizer.iterations.numpy()}


def start_state(task, data, seed, rate):
    """The state at `start` of a plain training from the first step on."""
    keras.utils.set_random_seed(seed)
    model = compiled(data, task.network(), task.optimizer(rate))
    train(data, model, (0, task.start))
    return state_of(model)


def _restored(task, state):
    """The plain model of a state."""
    model = task.network()
    model.set_weights([state[f"weight {i}"] for i in range(len(model.get_weights()))])
    return model


def fork_plain(task, data, state, rate, loss_weight=None, **options):
    """A plain model with a Keras optimizer that continues from a state; options are the
    optimizer's.
    """
    optimizer = task.optimizer(rate, **options)
    model = compiled(data, _restored(task, state), optimizer, loss_weight)
    for i, variable in enumerate(model.trainable_variables):
        for name in _SLOTS[type(optimizer).__name__]:
            _slot(optimizer, variable, name).assign(state[f"{name} {i}"])
        if optimizer.use_ema:  # Keras would begin with zeros
            _slot(optimizer, variable, "average").assign(variable)
    # Keras counts minibatches here and divides when it accumulates.
    optimizer.variables[0].assign(state["step"] * (options.get("gradient_accumulation_steps") or 1))
    return model


def fork_accumulation(task, data, state, rate, members, gamma):
    """A plain model that takes one step per K minibatches, with the gradients of a late phase's
    base weights.
    """
    # Keras takes the mean of K gradients, a late phase gamma times their sum.
    options = {"loss_weight": members * gamma, "gradient_accumulation_steps": members}
    return fork_plain(task, data, state, rate, **options)


def fork_late_phase(task, data, state, rate, seed, members, sigma, gamma):
    """A model whose members are spawned from a state; the base weights keep their moments."""
    model = late_phase.keras.convert(
        _restored(task, state), members=members, weights=task.late_weights
    )
    base = task.optimizer(rate)
    names = _SLOTS[type(base).__name__]
    optimizer = late_phase.keras.LatePhaseOptimizer(
        base, members=members, start=None, sigma=sigma, base_scale=gamma, seed=seed
    )
    compiled(data, model, optimizer)
    for i, variable in enumerate(model.trainable_variables):
        if hasattr(variable, "late_phase_members"):
            continue
        for name, (ours, sign) in names.items():
            _slot(optimizer, variable, ours).assign(sign * state[f"{name} {i}"])
        if isinstance(base, keras.optimizers.Adam):
            _slot(optimizer, variable, "count").assign(state["step"])
    optimizer.iterations.assign(state["step"])
    optimizer.spawn()
    return model


class _Last(keras.callbacks.Callback):
    """The weights at the end of the last epoch, in whose place `fit` puts the average of EMA."""

    def on_epoch_end(self, epoch, logs=None):
        self.weights = self.model.get_weights()


def _judged(task, data, model, split, has_statistics=False):
    """The metrics of a model; of one with members, those of the collapsed model."""
    if any(hasattr(variable, "late_phase_members") for variable in model.trainable_variables):
        model = late_phase.keras.collapse(model)
    if data.training is not None and not has_statistics:
        late_phase.keras.reestimate_batch_norm(model, data.training)
    return keras_tasks.metrics(model, data.splits[split], task.loss_in_bits)


def run_method(task, data, state, seed, split, method, settings):
    """The metrics of a method, and of whatever else its trajectory gives: {name: metrics}."""
    rate, late = settings["rate"], (task.start, task.epochs)
    swa = late_phase.keras.SWA(late_phase.keras.Epoch(task.start), dataset=data.training)
    last, callbacks = _Last(), []
    if method == "plain":
        options = {"use_ema": True, "ema_momentum": settings["ema_momentum"]}
        model = fork_plain(task, data, state, rate, **options)
    elif method == "rate/10":
        model = fork_plain(task, data, state, rate / 10)
    elif method == "cosine":
        model = fork_plain(task, data, state, rate)

        def falling(epoch, _):
            return (
                rate / 2 * (1 + math.cos(math.pi * (epoch - late[0] + 0.5) / (late[1] - late[0])))
            )

        callbacks = [keras.callbacks.LearningRateScheduler(falling)]
    elif method == "accumulation":
        model = fork_accumulation(task, data, state, rate, settings["members"], settings["gamma"])
    elif method == "late-phase":
        choice = {name: settings[name] for name in ("members", "sigma", "gamma")}
        model = fork_late_phase(task, data, state, rate, seed, **choice)
    else:
        raise ValueError(f"There is no such method. Received: method={method!r}")
    train(data, model, late, [swa, last, *callbacks])
    found = {}
    if method == "plain":
        found["EMA"] = _judged(task, data, model, split)
        model.set_weights(last.weights)
    found[method] = _judged(task, data, model, split)
    if method in ("plain", "accumulation", "late-phase"):
        with swa.averaged():
            name = "SWA" if method == "plain" else f"{method} + SWA"
            # SWA has re-estimated the statistics already.
            found[name] = _judged(task, data, model, split, has_statistics=True)
    return found


class Record:
    """The results in FILE, and the states beside it."""

    def __init__(self, path, task):
        self._path, self._task = path, task
        self._record = {
            "task": task.describe(),
            "versions": f"Keras {keras.__version__}, TensorFlow {tf.__version__}",
            "python": platform.python_version(),
            "runs": [],
        }
        if os.path.exists(path):
            found = files.read_json(path)
            if found.get("task") != self._record["task"]:
                raise SystemExit(
                    "keras_evidence: --out must be a new file, or one of the same task. "
                    f"Received: {path}, of {found.get('task')}"
                )
            self._record = found
        os.makedirs(f"{path}.states", exist_ok=True)

    runs = property(lambda self: self._record["runs"])

    def state(self, data, seed, rate):
        """The state at `start`, trained if it is not there yet."""
        path = f"{self._path}.states/{rate:g}-{seed}.npz"
        if not os.path.exists(path):
            begin = time.perf_counter()
            state = start_state(self._task, data, seed, rate)
            with files.replacing(path) as aside, open(aside, "wb") as file:
                np.savez(file, **state)
            print(f"{seed=} {rate=} start, {time.perf_counter() - begin:.0f} s", flush=True)
        with np.load(path) as file:
            return dict(file)

    def require(self, split, seed, method, settings):
        """Runs a method, unless the record has it already."""
        key = {"split": split, "seed": seed, "method": method, "settings": settings}
        if any(key.items() <= run.items() for run in self.runs):
            return
        keras.backend.clear_session()
        data = self._task.data(seed)
        state = self.state(data, seed, settings["rate"])
        begin = time.perf_counter()
        found = run_method(self._task, data, state, seed, split, method, settings)
        seconds = round(time.perf_counter() - begin, 1)
        self.runs.append({**key, "figures": found, "seconds": seconds})
        files.write_json(self._path, self._record)
        print(f"{seed=} {method} {settings}: {found}, {seconds} s", flush=True)


def collect(task, path):
    """Chooses settings, then tests them; all into the record at `path`."""
    record, table = Record(path, task), keras_evidence_table
    for stage in table.STAGES:
        for settings in table.candidates(task.describe(), record.runs, stage):
            for seed in task.choosing_seeds:
                record.require("validation", seed, stage.method, settings)
    chosen = table.chosen(task.describe(), record.runs)
    for seed in task.test_seeds:
        for method in table.METHODS:
            record.require("test", seed, method, table.settings_of(method, chosen))
    return files.read_json(path)


def main(arguments=None):
    parser = argparse.ArgumentParser(
        prog="tools/latephase python tools/bench/keras_evidence.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--task", required=True, choices=sorted(keras_tasks.tasks()))
    parser.add_argument("--out", required=True, metavar="FILE", help="the record, to be continued")
    parser.add_argument("--data", metavar="PATH", help="enwik8, as `train enwik8` takes it")
    options = parser.parse_args(arguments)
    with contextlib.suppress(RuntimeError):  # set already
        tf.config.threading.set_intra_op_parallelism_threads(1)
        tf.config.threading.set_inter_op_parallelism_threads(1)
    record = collect(keras_tasks.tasks(options.data)[options.task], options.out)
    print("\n".join(keras_evidence_table.render(record)))


if __name__ == "__main__":
    main()
