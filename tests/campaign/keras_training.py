"""A random program on its way: the library's model and optimizer beside the reference.

Every method that trains does so on both sides; `compare` says where they differ.
"""

import dataclasses
import os
import pickle

import keras
import numpy as np
import tensorflow as tf

import late_phase.keras
from tests.campaign import keras_weights
from tests.campaign.keras_networks import TIME, VOCABULARY
from tests.campaign.keras_reference import LOSSES, Reference, Wrong, loss_of

_TOLERANCE = 1e-7  # of doubles, after some dozens of steps
_LORA_TOLERANCE = 1e-3  # Keras keeps LoRA's factors in float
_LARGE = 1e4  # weights beyond this have diverged


class Diverged(Exception):
    """Weights are too large for a comparison to say anything."""


class Interrupted(Exception):
    """What a callback raises."""


class Noted(keras.callbacks.Callback):
    """Rows of the members when they start, by the number of minibatches; then it may interrupt."""

    def __init__(self, training, after=None, rate=None):
        super().__init__()
        self.training, self.after, self.steps, self.rate = training, after, 0, rate
        self.rows = {}

    def on_train_batch_end(self, batch, logs=None):
        self.steps += 1
        self.training.note(self.rows)
        if self.steps == self.after:
            raise Interrupted


class Training:
    """Both sides.

    Attributes:
      model, optimizer: the library's.
      reference: the other side.
      pairs: [(Weight, the model's variable)].
      spawns_first: whether the members are spawned before the first step, or when it builds.
    """

    def __init__(self, program, folder):
        self.program, self.network, self.settings = program, program.network, program.settings
        self.random, self.folder, self.saved = np.random.default_rng(program.key), folder, 0
        self.tolerance = _LORA_TOLERANCE if self.network.has_lora() else _TOLERANCE
        self.plain = self.network.build()
        source = self.network.build(self.settings.members)
        keras_weights.scatter(self._paired(source, None), self.random)
        self.chosen = None
        if self.network.weights is not None:
            self.chosen = keras_weights.choose(self.network, self.plain, source)
        self.model = self._converted(source)
        self.pairs = self._paired(self.model, self.chosen)
        for weight, variable in self.pairs:
            weight.value = variable.numpy()
        self._require_copied(source)
        weights = [weight for weight, _ in self.pairs]
        self.reference = Reference(self.network, self.plain, weights, self.settings)
        self.compile()

    def _converted(self, source):
        if self.network.weights is None:
            return source
        return late_phase.keras.convert(source, self.settings.members, self.network.weights)

    def _paired(self, model, chosen):
        """Pairs, in the order of trained weights."""
        places = {id(v): i for i, v in enumerate(model.trainable_variables)}
        pairs = keras_weights.weights_of(self.network, self.plain, model, chosen)
        return sorted(pairs, key=lambda pair: places.get(id(pair[1]), len(places)))

    def _require_copied(self, source):
        """A new model has the source's weights, in each of its members."""
        of_source = {w.key(): v.numpy() for w, v in self._paired(source, None)}
        for weight, variable in self.pairs:
            value, own = of_source[weight.key()], variable.numpy()
            shape = (self.settings.members,) * weight.late
            if own.shape != (*shape, *(value.shape[len(value.shape) - own.ndim + len(shape) :])):
                raise Wrong(f"{weight.path} has the shape {own.shape}")
            if (own != value).any() or (weight.late and (own != own[:1]).any()):
                raise Wrong(f"{weight.path} is not what it was before `convert`")

    def compile(self):
        """A new optimizer."""
        self.optimizer = self.settings.made()
        self._compile(self.model, self.optimizer)
        self.spawns_first = self.reference.compile()
        if self.program.built_first:
            self.build()

    def resume(self):
        """A new optimizer, for which the members have started: they stay what they are."""
        self.settings = dataclasses.replace(self.settings, start=1)
        self.reference.settings = self.settings
        self.compile()
        self.build()
        self.optimizer.iterations.assign(1)
        self.reference.t = 1

    def build(self):
        """Builds the optimizer, which spawns the members of start=0."""
        self.optimizer.build(self.model.trainable_variables)
        if self.spawns_first:
            self.spawn_now()

    def _compile(self, model, optimizer):
        mode = self.program.mode
        model.compile(
            optimizer,
            [LOSSES[name] for name in self.network.losses],
            run_eagerly=mode == "eager",
            jit_compile=mode == "xla",
            steps_per_execution=self.program.steps_per_execution,
        )

    # What happens to both sides.

    def data(self, count):
        """Inputs and a list of targets."""
        random, network = self.random, self.network
        if network.inputs in ("tokens", "tied"):
            x = random.integers(0, VOCABULARY, (count, TIME)).astype("int32")
            x[:, 0] = 1 + x[:, 0] % (VOCABULARY - 1)  # with a mask, something is left
        else:
            shape = {"vector": (), "image": (4, 3), "sequence": (TIME,)}[network.inputs]
            x = random.normal(size=(count, *shape, network.features))
        y = []
        for loss, output in zip(network.losses, self.reference.outputs(x[:1])):
            shape = (count, *output.shape[1:])
            if loss == "mse":
                y.append(random.normal(size=shape))
            else:
                y.append(random.integers(0, shape[-1], shape[:-1]))
        return x, y

    def batches(self, x, y, size):
        for first in range(0, len(x), size):
            part = slice(first, first + size)
            yield x[part], [one[part] for one in y]

    def note(self, rows):
        """Keeps the rows of members that have just started."""
        step = int(self.optimizer.iterations.numpy())
        if self.settings.members > 1 and self.optimizer.start == step:
            rows[step] = self.rows()

    def rows(self):
        return {id(w): v.numpy() for w, v in self.pairs if w.late}

    def follow(self, batches, rows):
        """The reference takes the steps that the library has taken."""
        for x, y in batches:
            if self.spawns_first:
                self.spawn_unseen()
            if self.reference.step(x, y):
                if self.reference.t in rows:
                    self.reference.spawn(rows[self.reference.t], self.tolerance)
                else:
                    self.spawn_unseen()

    def spawn_now(self):
        """The reference's members start; the library's have."""
        self.reference.spawn(self.rows(), self.tolerance)
        self.spawns_first = False

    def spawn_unseen(self):
        """The reference's members start, and the library's rows have not been seen."""
        rows = self.reference.spawned_rows().items()
        self.reference.spawn({key: value for key, (value, _) in rows})
        self.spawns_first = False
        if self.settings.sigma:
            # Noise is computed in float, and training makes that larger.
            self.tolerance = max(self.tolerance, 1e-4)

    def plan(self, steps, epochs):
        """The start, when `fit` begins."""
        start, reference = self.settings.start, self.reference
        if reference.start is None and self.settings.members > 1:
            if isinstance(start, str):
                reference.start = max(1, round(float(start[:-1]) / 100 * steps * epochs))
            elif isinstance(start, late_phase.keras.Epoch):
                reference.start = start.number * steps

    def fit(self, samples, size, epochs, after=None, callbacks=()):
        """`after`: minibatches after which a callback raises. Returns (x, y)."""
        x, y = self.data(samples)
        batches = list(self.batches(x, y, size)) * epochs
        self.plan(len(batches) // epochs, epochs)
        noted = Noted(self, after)
        options = {"batch_size": size, "epochs": epochs, "shuffle": False, "verbose": 0}
        try:
            self.model.fit(x, _of_fit(y), callbacks=[*callbacks, noted], **options)
        except Interrupted:
            batches = batches[:after]
        self.follow(batches, noted.rows)
        return x, y

    def train_on_batches(self, samples, size):
        x, y = self.data(samples)
        rows = {}
        for one, of_one in self.batches(x, y, size):
            self.model.train_on_batch(one, _of_fit(of_one))
            self.note(rows)
        self.follow(self.batches(x, y, size), rows)

    def loop(self, samples, size, graph):
        """A loop of one's own."""
        x, y = self.data(samples)
        rows, model, optimizer = {}, self.model, self.optimizer

        def step(x, y):
            with tf.GradientTape() as tape:
                loss = loss_of(self.network, model(x, training=True), y)
                loss = optimizer.scale_loss(tf.add_n([loss, *model.losses]))
            gradients = tape.gradient(loss, model.trainable_variables)
            optimizer.apply_gradients(zip(gradients, model.trainable_variables))

        self.build()
        step = tf.function(step, reduce_retracing=True) if graph else step
        for one, of_one in self.batches(x, y, size):
            step(tf.constant(one), [tf.constant(target) for target in of_one])
            self.note(rows)
        self.follow(self.batches(x, y, size), rows)

    def spawn(self):
        self.optimizer.spawn()
        reference = self.reference
        reference.join()
        reference.start = reference.t
        self.spawn_now()
        self.reference.unequal = False

    def save(self, form):
        """Saves all there is, and continues with what is loaded again."""
        self.saved += 1
        path = os.path.join(self.folder, f"saved-{self.saved}")
        if form == "keras":
            self.model.save(path + ".keras")
            model = keras.models.load_model(path + ".keras")
            optimizer = model.optimizer
        elif form == "pickle":
            model = pickle.loads(pickle.dumps(self.model))
            optimizer = model.optimizer
        else:
            model, optimizer = self._fresh()
            if form == "weights":
                self.model.save_weights(path + ".weights.h5")
                model.load_weights(path + ".weights.h5")
            else:
                checkpoint = tf.train.Checkpoint(model=self.model, optimizer=self.optimizer)
                checkpoint.write(path)
                checkpoint = tf.train.Checkpoint(model=model, optimizer=optimizer)
                checkpoint.read(path).assert_consumed()
        self.model, self.optimizer = model, optimizer
        model.run_eagerly = self.program.mode == "eager"
        variables = [variable for _, variable in self._paired(model, self.chosen)]
        self.pairs = [(w, v) for (w, _), v in zip(self.pairs, variables, strict=True)]

    def _fresh(self):
        """A new model of the same kind, and its optimizer, which has its variables."""
        model = self._converted(self.network.build(self.settings.members))
        optimizer = self.settings.made()
        self._compile(model, optimizer)
        optimizer.build(model.trainable_variables)
        return model, optimizer

    def set_rate(self, rate):
        self.optimizer.learning_rate = rate
        self.reference.rate = rate

    def assign(self):
        """Members get rows from elsewhere."""
        for weight, variable in self.pairs:
            if weight.late:
                weight.value = weight.value + self.random.uniform(0, 0.25, weight.value.shape)
                variable.assign(weight.value)
        self.reference.rows_assigned()

    # The comparison.

    def state(self):
        """Every bit of the library's side."""
        variables = [*self.model.variables, *self.optimizer.variables]
        return [(v.path, np.asarray(v).tobytes()) for v in variables]

    def compare(self):
        """Raises Wrong where the two sides differ."""
        reference = self.reference
        for weight, _ in self.pairs:
            if not np.all(np.abs(weight.value) < _LARGE):
                raise Diverged
        for weight, variable in self.pairs:
            self.expect(weight.path, variable.numpy(), weight.value)
        step = int(self.optimizer.iterations.numpy())
        if step != reference.t:
            raise Wrong(f"the optimizer counts {step} minibatches instead of {reference.t}")
        member = int(self.optimizer.member.numpy())
        if member != reference.member():
            raise Wrong(f"the next member is {member} instead of {reference.member()}")
        if reference.start is not None and self.optimizer.start != reference.start:
            raise Wrong(f"start is {self.optimizer.start} instead of {reference.start}")
        self._compare_slots()

    def _compare_slots(self):
        """Whatever the optimizer keeps must be among its variables, whole or as a member's row."""
        kept = [np.asarray(v) for v in self.optimizer.variables]
        rows = [row for one in kept if one.ndim for row in one]
        for name, value in self.reference.slots():
            like = [one for one in kept + rows if one.shape == value.shape]
            # The velocity of momentum is kept with either sign.
            off = [min(np.abs(one - value).max(), np.abs(one + value).max()) for one in like]
            if not any(one <= self.tolerance * (1 + np.abs(value).max()) for one in off):
                raise Wrong(f"{name} is not among the optimizer's variables")

    def expect(self, name, got, wanted):
        got = np.asarray(got)
        if got.shape != np.shape(wanted):
            raise Wrong(f"{name} has the shape {got.shape} instead of {np.shape(wanted)}")
        if got.size and not np.abs(got - wanted).max() <= self.tolerance * (
            1 + np.abs(wanted).max()
        ):
            place = np.unravel_index(np.nanargmax(np.abs(got - wanted)), got.shape)
            raise Wrong(f"{name}{list(map(int, place))} is {got[place]} instead of {wanted[place]}")


def _of_fit(y):
    return y if len(y) > 1 else y[0]
