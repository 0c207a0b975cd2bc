"""LSTM layer and cell whose recurrent matrix has rank-1 factors per member; the layer is fused."""

import contextlib

import keras
import tensorflow as tf

import late_phase
from late_phase.keras.members import register
from late_phase.keras.rank1 import Rank1Layer, scaled


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


@contextlib.contextmanager
def _recurrent_kernel_replaced(cell, kernel):
    """Lets a Keras LSTMCell compute with another recurrent kernel, a tensor."""
    attributes = vars(cell)  # past the setter, which looks for weights
    own, attributes["recurrent_kernel"] = cell.recurrent_kernel, kernel
    try:
        yield
    finally:
        attributes["recurrent_kernel"] = own


@register
class Rank1LSTMCell(Rank1Layer, keras.layers.LSTMCell):
    """`keras.layers.LSTMCell` whose recurrent kernel is scaled by a member's rank-1 factors.

    One step of `Rank1LSTM`, with the same weights, for `keras.layers.RNN` and loops of your own.
    `Rank1LSTM` computes a whole sequence in one fused op, and is much faster.

    Example:

    >>> import keras, late_phase.keras
    >>> cell = late_phase.keras.Rank1LSTMCell(4, members=10)
    >>> states = [keras.ops.zeros((2, 4)), keras.ops.zeros((2, 4))]
    >>> output, states = cell(keras.ops.ones((2, 3)), states)
    >>> print(output.shape, cell.u.shape, cell.v.shape)
    (2, 4) (10, 4) (10, 16)

    Args:
      units: the size of the output.
      members: K, the number of members.
      u_initializer, v_initializer: for the factors of one member; all members start equal. With
        ones the cell starts out as Keras's.
      **kwargs: the options of `keras.layers.LSTMCell`.

    Call arguments:
      inputs: [batch, features].
      states: a list of h and c, [batch, units] each.
      training: whether to use the factors of one member.
    """

    plain_class = keras.layers.LSTMCell

    def __init__(self, units, members, u_initializer="ones", v_initializer="ones", **kwargs):
        super().__init__(members, u_initializer, v_initializer, units=units, **kwargs)

    def build(self, input_shape):
        super().build(input_shape)
        self.add_factors(self.units, 4 * self.units)

    def call(self, inputs, states, training=False):
        dtype = self.dtype_for(inputs)
        kernel = scaled(tf.cast(self.recurrent_kernel, dtype), *self.factors(training, dtype))
        with _recurrent_kernel_replaced(self, kernel):
            return super().call(inputs, states, training=training)

    def plain_weights(self, member=None):
        return [
            self.kernel.numpy(),
            self.plain_kernel(self.recurrent_kernel, member),
            *([] if self.bias is None else [self.bias.numpy()]),
        ]


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
      **kwargs: the options of `keras.layers.LSTM`, except `use_cudnn`. States, including
        `stateful`, are as in Keras. With other activations, `unroll`, or `recurrent_dropout` in
        training, and for masked sequences, Keras's loop over the steps replaces the fused op.

    Call arguments:
      inputs: [batch, time, features].
      initial_state: a list of h and c, [batch, units] each, or None for zeros.
      mask: bool [batch, time], True where there is a step; or None.
      training: whether to use the factors of one member.

    Raises:
      ValueError: an option has a value that the layer does not support.
    """

    plain_class = keras.layers.LSTM

    def __init__(self, units, members, u_initializer="ones", v_initializer="ones", **kwargs):
        super().__init__(members, u_initializer, v_initializer, units=units, **kwargs)
        self.require(use_cudnn="auto")
        self.supports_jit = True  # Keras's LSTM does not where there is a GPU, for cuDNN's sake

    def build(self, sequences_shape, initial_state_shape=None):
        super().build(sequences_shape, initial_state_shape)
        self.add_factors(self.units, 4 * self.units)

    def inner_loop(self, sequences, initial_state, mask, training=False):
        """What Keras's LSTM asks for: last output, outputs [batch, time, units], states."""
        dtype = self.dtype_for(sequences)
        mask = next((m for m in tf.nest.flatten(mask) if m is not None), None)
        if mask is not None or not self._is_fused(training):
            recurrent_kernel = tf.cast(self.cell.recurrent_kernel, dtype)
            kernel = scaled(recurrent_kernel, *self.factors(training, dtype))
            with _recurrent_kernel_replaced(self.cell, kernel):
                return keras.layers.RNN.inner_loop(self, sequences, initial_state, mask, training)
        if training and self.dropout:
            sequences = sequences * self.cell.get_dropout_mask(sequences[:, 0])[:, tf.newaxis]
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

    def _is_fused(self, training):
        """Whether the op does what the options ask for."""
        return (
            self.activation is keras.activations.tanh
            and self.recurrent_activation is keras.activations.sigmoid
            and not (training and self.recurrent_dropout)
            and not self.unroll
        )

    def plain_weights(self, member=None):
        cell = self.cell
        return [
            cell.kernel.numpy(),
            self.plain_kernel(cell.recurrent_kernel, member),
            *([] if cell.bias is None else [cell.bias.numpy()]),
        ]
