"""What random programs do besides training: averages, copies, and wrong uses."""

import keras
import numpy as np

import late_phase.keras
from tests.campaign import keras_misuse
from tests.campaign.keras_reference import Wrong
from tests.campaign.keras_training import Training

_DECAYS = {
    "equal": lambda t: 1 - t,
    "cosine": lambda t: (1 + np.cos(np.pi * t)) / 2,
    "1-sqrt": lambda t: 1 - np.sqrt(t),
}


class Actions(Training):
    """The actions of a program, by name."""

    def fit_with_swa(self, samples, size, epochs, by_epochs, start, every, window, weights):
        epoch = late_phase.keras.Epoch
        reference, taken = self.reference, []
        begin = start if by_epochs else reference.t + start
        callback = late_phase.keras.SWA(
            epoch(start) if by_epochs and start else begin,
            frequency=epoch(every) if by_epochs else every,
            window=window, weights=weights, dataset=self.data(4)[0],
        )  # fmt: skip
        follow, steps = self.follow, -(-samples // size)

        def sampling(batches, rows):
            for batch in batches:
                follow([batch], rows)
                done = reference.t - first
                position = done // steps if by_epochs else reference.t
                at_end = done % steps == 0 or not by_epochs
                if at_end and position > begin and (position - begin) % every == 0:
                    taken.append({id(w): w.value.copy() for w in reference.weights})

        first, self.follow = reference.t, sampling
        try:
            self.fit(samples, size, epochs, callbacks=[callback])
        finally:
            del self.follow
        self._compare_average(callback, taken, window, weights)

    def _compare_average(self, callback, taken, window, weights):
        if not taken:
            return self.refused(
                "averaged() without a sample", lambda: callback.averaged().__enter__()
            )
        used = taken[-window:] if window else taken
        parts = np.full(len(used), 1 / len(used))
        if window:
            decay, n = _DECAYS[weights], len(used)
            parts = [decay(j / n) - decay((j + 1) / n) for j in range(n)]
        elif weights != "equal":
            parts = [(1 - weights) * weights ** (len(used) - 1 - j) for j in range(len(used))]
            parts[0] = weights ** (len(used) - 1)
        before = self.state()
        with callback.averaged():
            for weight, variable in self.pairs:
                if weight.kind == "trained":
                    wanted = sum(p * one[id(weight)] for p, one in zip(parts, used))
                    self.expect(f"the average of {weight.path}", variable.numpy(), wanted)
        self.require_unchanged(before, "an average was lent")

    def copies(self):
        """Inference, and all that is made of the members."""
        before, K, model, reference = (
            self.state(),
            self.settings.members,
            self.model,
            self.reference,
        )
        x, _ = self.data(3)
        mean = reference.outputs(x)
        self._expect_outputs("inference", model(x), mean)
        if self.network.inputs != "tied":  # a class of its own is not cloned
            clone = keras.models.clone_model(model)
            clone.set_weights(model.get_weights())
            self._expect_outputs("a clone", clone(x), mean)
        self._expect_collapsed("the mean", x, mean)
        self._expect_collapsed("its own statistics", x, reference.reestimated_outputs(x), dataset=x)
        affine = reference.affine_outputs(x)
        if affine is not None:
            self._expect_collapsed("the members' maps", x, affine, batch_norm="affine")
        of_members = [reference.outputs(x, k) for k in range(K)]
        k = int(self.random.integers(K))
        self._expect_collapsed(f"member {k}", x, of_members[k], member=k)
        means = [np.mean(heads, axis=0) for heads in zip(*of_members)]
        self._expect_outputs("the ensemble", late_phase.keras.ensemble(model)(x), means)
        self.require_unchanged(before, "copies were made")

    def _expect_collapsed(self, name, x, wanted, **options):
        collapsed = late_phase.keras.collapse(self.model, **options)
        for layer in collapsed._flatten_layers():
            if isinstance(layer, late_phase.keras.MemberLayer):
                raise Wrong(f"{layer.path} has members after `collapse`")
        self._expect_outputs(f"a model collapsed to {name}", collapsed(x), wanted)

    def _expect_outputs(self, name, got, wanted):
        got = got if isinstance(got, (list, tuple)) else [got]
        for one, other in zip(keras.tree.flatten(got), wanted, strict=True):
            self.expect(f"the output of {name}", one, other)

    def require_unchanged(self, before, what):
        for (path, old), (_, new) in zip(before, self.state(), strict=True):
            if old != new:
                raise Wrong(f"{path} has changed when {what}")

    def misuse(self, number):
        name, wrong = keras_misuse.draw(self, number)
        self.refused(name, wrong)

    def refused(self, name, wrong):
        """Does something wrong, which must be an error and leave everything as it is."""
        before = self.state()
        complaint = keras_misuse.complaint(wrong)
        if complaint:
            raise Wrong(f"{name}: {complaint}")
        self.require_unchanged(before, f"there was an error: {name}")
