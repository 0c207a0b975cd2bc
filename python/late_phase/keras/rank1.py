"""Keras layers whose kernel is scaled by rank-1 factors, W_k = (u_k v_kᵀ) ∘ kernel.

The LSTM is in rank1_lstm.py.

Kernel and bias are base weights, which all members share. The factors, u over the inputs and v over
the outputs, are the late-phase weights: a member costs inputs + outputs numbers, where it costs
their product in `late_phase.keras.Dense`.
"""

import keras
import numpy as np
import tensorflow as tf

from late_phase.keras.members import (
    MemberLayer,
    activations_named,
    along_members,
    array_of,
    join_members,
    register,
    split_members,
)


def scaled(kernel, u, v):
    """kernel [..., in, out] ∘ (u vᵀ), of u [in] and v [out]: arrays or tensors."""
    return kernel * u[:, None] * v


class Rank1Layer(MemberLayer):
    """A Keras layer with factors [K, in] and [K, out] for a kernel. The first of the bases."""

    own_options = ("members", "u_initializer", "v_initializer")

    def __init__(self, members, u_initializer, v_initializer, **kwargs):
        super().__init__(members, **kwargs)
        self.u_initializer = keras.initializers.get(u_initializer)
        self.v_initializer = keras.initializers.get(v_initializer)

    def require(self, **options):
        """Refuses what only `plain_class` can do: each option must have the given value."""
        for name, value in options.items():
            received = getattr(self, name)
            if received != value:
                value, received = (getattr(x, "__name__", repr(x)) for x in (value, received))
                raise ValueError(
                    f"`{name}` must be {value} in {type(self).__name__}. "
                    f"Received: {name}={received}"
                )

    def add_factors(self, inputs, outputs):
        self.u = self.add_member_weight((inputs,), self.u_initializer, name="u")
        self.v = self.add_member_weight((outputs,), self.v_initializer, name="v")

    def set_weights(self, weights):
        """Takes the arrays of `get_weights`; or those of Keras's layer, with factors of one."""
        are_factors = [variable is self.u or variable is self.v for variable in self.weights]
        if len(weights) == are_factors.count(False):
            of_plain = iter(weights)
            weights = [
                np.ones(variable.shape) if is_factor else next(of_plain)
                for variable, is_factor in zip(self.weights, are_factors)
            ]
        super().set_weights(weights)

    def factors(self, training, dtype):
        """u [in] and v [out] of this call."""
        return [tf.cast(self.row(factor, training), dtype) for factor in (self.u, self.v)]

    def enable_lora(self, *args, **kwargs):
        raise ValueError(
            f"{type(self).__name__} has no LoRA: its members share the kernel. "
            f"Received: enable_lora of {self.path}"
        )

    def times(self, x, factor):
        """Each member's part of x [K*N, ..., C] times its row of a factor [K, C]."""
        x = split_members(x, self.members)
        return join_members(x * tf.cast(along_members(factor, x), x.dtype))

    def plain_kernel(self, kernel, member):
        """The array of a kernel with a member's factors in it, or the mean ones."""
        return scaled(
            kernel.numpy().astype(np.float64),
            *(array_of(factor.numpy(), member) for factor in (self.u, self.v)),
        )

    def _with_bias(self, outputs):
        outputs = outputs if self.bias is None else keras.ops.add(outputs, self.bias)
        return outputs if self.activation is None else self.activation(outputs)

    def plain_weights(self, member=None):
        bias = [] if self.bias is None else [self.bias.numpy()]
        return [self.plain_kernel(self.kernel, member), *bias]

    def get_config(self):
        with activations_named(self):
            config = super().get_config()
        return {
            **config,
            "u_initializer": keras.initializers.serialize(self.u_initializer),
            "v_initializer": keras.initializers.serialize(self.v_initializer),
        }


@register
class Rank1Dense(Rank1Layer, keras.layers.Dense):
    """`keras.layers.Dense` whose kernel is scaled by a member's rank-1 factors.

    `outputs = activation(((inputs * u[k]) @ kernel) * v[k] + bias)`. Kernel and bias are shared by
    all members. Training uses the factors of one member per minibatch, chosen by
    `LatePhaseOptimizer`; inference uses the mean of the members' factors.

    Example:

    >>> import keras, late_phase.keras
    >>> layer = late_phase.keras.Rank1Dense(4, members=10)
    >>> print(layer(keras.ops.ones((2, 8))).shape, layer.kernel.shape, layer.u.shape, layer.v.shape)
    (2, 4) (8, 4) (10, 8) (10, 4)

    Args:
      units: the size of the output.
      members: K, the number of members.
      u_initializer, v_initializer: for the factors of one member; all members start equal. With
        ones the layer starts out as Keras's.
      **kwargs: the options of `keras.layers.Dense`, except LoRA and quantization.

    Raises:
      ValueError: an option has a value that the layer does not support.
    """

    plain_class = keras.layers.Dense

    def __init__(self, units, members, u_initializer="ones", v_initializer="ones", **kwargs):
        super().__init__(members, u_initializer, v_initializer, units=units, **kwargs)
        self.require(lora_rank=None, lora_alpha=None, quantization_config=None)

    def build(self, input_shape):
        super().build(input_shape)
        self.add_factors(input_shape[-1], self.units)

    def call(self, inputs, training=False):
        u, v = self.factors(training, self.dtype_for(inputs))
        if isinstance(inputs, tf.SparseTensor):  # cannot be scaled along one axis
            return self._with_bias(
                keras.ops.matmul(inputs, scaled(tf.cast(self.kernel, u.dtype), u, v))
            )
        return self._with_bias(keras.ops.matmul(keras.ops.multiply(inputs, u), self.kernel) * v)

    def call_members(self, inputs):
        x = tf.cast(inputs, self.dtype_for(inputs))
        return self._with_bias(
            self.times(keras.ops.matmul(self.times(x, self.u), self.kernel), self.v)
        )


@register
class Rank1Conv2D(Rank1Layer, keras.layers.Conv2D):
    """`keras.layers.Conv2D` whose kernel is scaled by a member's rank-1 factors, per channel.

    `outputs = activation(conv(inputs * u[k], kernel) * v[k] + bias)`. Kernel and bias are shared by
    all members. Training uses the factors of one member per minibatch, chosen by
    `LatePhaseOptimizer`; inference uses the mean of the members' factors.

    Example:

    >>> import keras, late_phase.keras
    >>> layer = late_phase.keras.Rank1Conv2D(4, 3, members=10)
    >>> print(layer(keras.ops.ones((2, 9, 9, 3))).shape, layer.kernel.shape)
    (2, 7, 7, 4) (3, 3, 3, 4)
    >>> print(layer.u.shape, layer.v.shape)
    (10, 3) (10, 4)

    Args:
      filters: the number of output channels.
      kernel_size: an integer, or a tuple of two: height and width of the window.
      members: K, the number of members.
      u_initializer, v_initializer: for the factors of one member; all members start equal. With
        ones the layer starts out as Keras's.
      **kwargs: the options of `keras.layers.Conv2D`, except `groups`, LoRA and channels first.

    Raises:
      ValueError: an option has a value that the layer does not support.
    """

    plain_class = keras.layers.Conv2D

    def __init__(
        self, filters, kernel_size, members, u_initializer="ones", v_initializer="ones", **kwargs
    ):
        super().__init__(
            members,
            u_initializer,
            v_initializer,
            filters=filters,
            kernel_size=kernel_size,
            **kwargs,
        )
        self.require(groups=1, lora_rank=None, lora_alpha=None, data_format="channels_last")

    def build(self, input_shape):
        super().build(input_shape)
        self.add_factors(input_shape[-1], self.filters)

    def call(self, inputs, training=False):
        dtype = self.dtype_for(inputs)
        # A minibatch has one member, and its kernel is much smaller than its images.
        kernel = scaled(tf.cast(self.kernel, dtype), *self.factors(training, dtype))
        return self._with_bias(self.convolution_op(tf.cast(inputs, dtype), kernel))

    def call_members(self, inputs):
        dtype = self.dtype_for(inputs)
        x = self.convolution_op(
            self.times(tf.cast(inputs, dtype), self.u), tf.cast(self.kernel, dtype)
        )
        return self._with_bias(self.times(x, self.v))
