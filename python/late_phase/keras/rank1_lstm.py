"""The LSTM layer whose recurrent matrix has rank-1 factors per member, on the fused op."""

import keras
import tensorflow as tf

import late_phase
from late_phase.keras.members import register
from late_phase.keras.rank1 import Rank1Layer


def _lstm(x, kernel, recurrent_kernel, bias, u, v, initial_h, initial_c, is_training=True):
    """With one row of factors: u [units] and v [4 * units]."""
    return late_phase.ops.rank1_lstm(
        x,
        kernel,
        recurrent_kernel,
        bias,
        u[tf.newaxis],
        v[tf.newaxis],
        initial_h=initial_h,
        initial_c=initial_c,
        is_training=is_training,
    )


@tf.custom_gradient
def _inference(*inputs):
    """`_lstm` which saves nothing for a gradient, and runs the op again if one is asked for."""

    def gradient(*of_outputs):
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            outputs = _lstm(*inputs)
        return tape.gradient(outputs, inputs, of_outputs)

    return _lstm(*inputs, is_training=False), gradient


@register
class Rank1LSTM(Rank1Layer, keras.layers.LSTM):
    """`keras.layers.LSTM` whose recurrent kernel is scaled by a member's rank-1 factors.

    The pre-activation is `x[t] @ kernel + bias + ((h[t-1] * u[k]) @ recurrent_kernel) * v[k]`. The
    kernels and the bias are shared by all members. Training uses the factors of one member per
    minibatch, chosen by `LatePhaseOptimizer`; inference uses the mean of the members' factors. One
    fused op computes the whole sequence.

    Example:

    >>> import keras, late_phase.keras
    >>> layer = late_phase.keras.Rank1LSTM(4, members=10, return_sequences=True)
    >>> print(layer(keras.ops.ones((2, 5, 3))).shape, layer.u.shape, layer.v.shape)
    (2, 5, 4) (10, 4) (10, 16)

    Args:
      units: the size of the output.
      members: K, the number of members.
      u_initializer, v_initializer: for the factors of one member; all members start equal. With
        ones the layer starts out as Keras's.
      **kwargs: the options of `keras.layers.LSTM`, of which `activation`, `recurrent_activation`,
        `recurrent_dropout`, `unroll` and `use_cudnn` must have their defaults. States, including
        `stateful`, are as in Keras.

    Call arguments:
      inputs: [batch, time, features].
      initial_state: a list of h and c, [batch, units] each, or None for zeros.
      training: whether to use the factors of one member.

    Raises:
      ValueError: an option has a value that the layer does not support, or there is a mask.
    """

    plain_class = keras.layers.LSTM

    def __init__(self, units, members, u_initializer="ones", v_initializer="ones", **kwargs):
        super().__init__(members, u_initializer, v_initializer, units=units, **kwargs)
        self._only_member = None  # whose factors a call uses, in call_members
        self.require(
            activation=keras.activations.tanh, recurrent_activation=keras.activations.sigmoid, recurrent_dropout=0, unroll=False,
            use_cudnn="auto",
        )  # fmt: skip

    def build(self, sequences_shape, initial_state_shape=None):
        super().build(sequences_shape, initial_state_shape)
        self.add_factors(self.units, 4 * self.units)

    def call_members(self, sequences, initial_state=None):
        if self.stateful:
            raise ValueError(
                f"A pass over all members has no states to keep. Received: stateful=True in {self.path}"
            )
        states = (
            [None] * self.members
            if initial_state is None
            else zip(*(tf.split(state, self.members) for state in initial_state))
        )
        outputs = []
        for k, (part, state) in enumerate(zip(tf.split(sequences, self.members), states)):
            self._only_member = k
            try:
                outputs.append(
                    self.call(part, initial_state=None if state is None else list(state))
                )
            finally:
                self._only_member = None
        return tf.nest.map_structure(lambda *parts: tf.concat(parts, axis=0), *outputs)

    def factors(self, training, dtype):
        if self._only_member is None:
            return super().factors(training, dtype)
        return [tf.cast(factor.value[self._only_member], dtype) for factor in (self.u, self.v)]

    def inner_loop(self, sequences, initial_state, mask, training=False):
        """What Keras's LSTM asks for: last output, outputs [batch, time, units], states."""
        if any(m is not None for m in tf.nest.flatten(mask)):
            raise ValueError(
                f"Rank1LSTM takes no mask: the sequences of a batch are of one length. Received: a mask for {self.path}"
            )
        if training and self.dropout:
            sequences = sequences * self.cell.get_dropout_mask(sequences[:, 0])[:, tf.newaxis]
        dtype = self.dtype_for(sequences)
        x = tf.cast(tf.transpose(sequences, [1, 0, 2]), dtype)  # [time, batch, features]
        if self.go_backwards:
            x = tf.reverse(x, [0])
        bias = tf.zeros([4 * self.units], dtype) if self.cell.bias is None else self.cell.bias
        weights = [
            tf.cast(weight, dtype)
            for weight in (self.cell.kernel, self.cell.recurrent_kernel, bias)
        ]
        lstm = _lstm if training else _inference
        h, final_h, final_c = lstm(
            x,
            *weights,
            *self.factors(training, dtype),
            *(tf.cast(state, dtype) for state in initial_state),
        )
        return final_h, tf.transpose(h, [1, 0, 2]), [final_h, final_c]

    def plain_weights(self):
        cell = self.cell
        return [
            cell.kernel.numpy(),
            self.plain_kernel(cell.recurrent_kernel),
            *([] if cell.bias is None else [cell.bias.numpy()]),
        ]
