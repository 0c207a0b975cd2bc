"""Keras's Dense and BatchNormalization with members. Each lists the Keras options that it has."""

import keras
import numpy as np
import tensorflow as tf

import late_phase
from late_phase.keras.members import (
    MemberLayer,
    along_members,
    array_of,
    join_members,
    register,
    split_members,
)


@register
class Dense(MemberLayer):
    """`keras.layers.Dense` with a row of kernel and bias per member: a network's late-phase head.

    Training uses one member per minibatch, chosen by `LatePhaseOptimizer`; inference uses the mean
    of the members.

    Example:

    >>> import keras, late_phase.keras
    >>> layer = late_phase.keras.Dense(4, members=10)
    >>> print(layer(keras.ops.ones((2, 8))).shape, layer.kernel.shape, layer.bias.shape)
    (2, 4) (10, 8, 4) (10, 4)

    Args:
      units: the size of the output.
      members: K, the number of members.
      activation, use_bias: as in `keras.layers.Dense`.
      kernel_initializer, bias_initializer: for one member; all members start equal.
      kernel_regularizer, bias_regularizer: applied to the weights that a call uses: a member's in
        training, the mean in inference.
      activity_regularizer: as in `keras.layers.Dense`.
      kernel_constraint, bias_constraint: applied to a member after each of its updates.
      **kwargs: the options of every Keras layer: `name`, `dtype`, `trainable`. There is no LoRA and
        no quantization.

    Raises:
      ValueError: `units` or `members` is not a positive integer, or an option is not one of these.
    """

    plain_class = keras.layers.Dense

    def __init__(
        self,
        units,
        members,
        activation=None,
        use_bias=True,
        kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        bias_regularizer=None,
        activity_regularizer=None,
        kernel_constraint=None,
        bias_constraint=None,
        **kwargs,
    ):
        super().__init__(members, activity_regularizer=activity_regularizer, **kwargs)
        if isinstance(units, bool) or not isinstance(units, (int, np.integer)) or units <= 0:
            raise ValueError(f"`units` must be a positive integer. Received: units={units!r}")
        self.units = int(units)
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.input_spec = keras.layers.InputSpec(min_ndim=2)
        self.supports_masking = True

    def build(self, input_shape):
        inputs = input_shape[-1]
        self.kernel = self.add_member_weight(
            (inputs, self.units),
            self.kernel_initializer,
            self.kernel_regularizer,
            self.kernel_constraint,
            name="kernel",
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_member_weight(
                (self.units,),
                self.bias_initializer,
                self.bias_regularizer,
                self.bias_constraint,
                name="bias",
            )
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: inputs})
        self.built = True

    def call(self, inputs, training=False):
        dtype = self.dtype_for(inputs)
        outputs = keras.ops.matmul(inputs, tf.cast(self.row(self.kernel, training), dtype))
        if self.bias is not None:
            outputs = keras.ops.add(outputs, tf.cast(self.row(self.bias, training), dtype))
        return outputs if self.activation is None else self.activation(outputs)

    def call_members(self, inputs):
        dtype = self.dtype_for(inputs)
        x = tf.cast(split_members(inputs, self.members), dtype)  # [K, N, ..., C]
        outputs = tf.einsum("kn...c,kcu->kn...u", x, tf.cast(self.kernel.value, dtype))
        if self.bias is not None:
            outputs = outputs + tf.cast(along_members(self.bias, outputs), dtype)
        outputs = join_members(outputs)
        return outputs if self.activation is None else self.activation(outputs)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], self.units)

    def get_config(self):
        return {
            **super().get_config(),
            "units": self.units,
            "activation": keras.activations.serialize(self.activation or keras.activations.linear),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
            "kernel_regularizer": keras.regularizers.serialize(self.kernel_regularizer),
            "bias_regularizer": keras.regularizers.serialize(self.bias_regularizer),
            "activity_regularizer": keras.regularizers.serialize(self.activity_regularizer),
            "kernel_constraint": keras.constraints.serialize(self.kernel_constraint),
            "bias_constraint": keras.constraints.serialize(self.bias_constraint),
        }


@register
class BatchNormalization(MemberLayer):
    """`keras.layers.BatchNormalization` with a row of weights and statistics per member.

    Scale, offset and moving statistics are [K, channels]. Training normalises by the minibatch, and
    uses and updates the rows of its member, chosen by `LatePhaseOptimizer`; inference uses the mean
    of the members' rows. It runs as one fused op; in stock ops where a mask says which values
    count, or replicas normalise together.

    With members, a row's moving statistics are updated once in K minibatches, so each update moves
    them as far as K of Keras's: by momentum^K. Their mean over the members then covers as many
    minibatches, and follows the weights as closely, as those of Keras's layer. A single member's
    statistics cover a K-th of these minibatches and are noisier:
    `reestimate_batch_norm(ensemble(model), dataset)` estimates them from all of the data.

    Example:

    >>> import keras, late_phase.keras
    >>> layer = late_phase.keras.BatchNormalization(members=10)
    >>> print(layer(keras.ops.ones((2, 5, 5, 3)), training=True).shape)
    (2, 5, 5, 3)
    >>> print(layer.gamma.shape, layer.moving_mean.shape)
    (10, 3) (10, 3)

    Args:
      members: K, the number of members.
      axis, momentum, epsilon, center, scale, beta_initializer, gamma_initializer,
        moving_mean_initializer, moving_variance_initializer: as in
        `keras.layers.BatchNormalization`. There is no `renorm`. The fused op wants the channels
        last: with another `axis`, inputs and outputs are transposed.
      beta_regularizer, gamma_regularizer: applied to the weights that a call uses: a member's in
        training, the mean in inference.
      beta_constraint, gamma_constraint: applied to a member after each of its updates.
      synchronized: whether the replicas of a `tf.distribute` strategy normalise by the statistics
        of their joint minibatch. Otherwise each uses its own; the moving statistics follow the
        replicas' mean in both cases.
      **kwargs: the options of every Keras layer: `name`, `dtype`, `trainable`.

    Raises:
      ValueError: `momentum`, `epsilon` or `axis` is out of range.
    """

    plain_class = keras.layers.BatchNormalization

    def __init__(
        self,
        members,
        axis=-1,
        momentum=0.99,
        epsilon=1e-3,
        center=True,
        scale=True,
        beta_initializer="zeros",
        gamma_initializer="ones",
        moving_mean_initializer="zeros",
        moving_variance_initializer="ones",
        beta_regularizer=None,
        gamma_regularizer=None,
        beta_constraint=None,
        gamma_constraint=None,
        synchronized=False,
        **kwargs,
    ):
        if "renorm" in kwargs:
            raise ValueError(
                "BatchNormalization with members has no `renorm`: its statistics are the members' "
                f"own. Received: renorm={kwargs['renorm']!r}"
            )
        super().__init__(members, **kwargs)
        self.axis = axis
        self.momentum = momentum
        self.epsilon = epsilon
        self.center = center
        self.scale = scale
        self.beta_initializer = keras.initializers.get(beta_initializer)
        self.gamma_initializer = keras.initializers.get(gamma_initializer)
        self.moving_mean_initializer = keras.initializers.get(moving_mean_initializer)
        self.moving_variance_initializer = keras.initializers.get(moving_variance_initializer)
        self.beta_regularizer = keras.regularizers.get(beta_regularizer)
        self.gamma_regularizer = keras.regularizers.get(gamma_regularizer)
        self.beta_constraint = keras.constraints.get(beta_constraint)
        self.gamma_constraint = keras.constraints.get(gamma_constraint)
        self.synchronized = synchronized
        self.supports_masking = True
        if not 0 <= momentum <= 1:
            raise ValueError(f"`momentum` must be in [0, 1]. Received: momentum={momentum!r}")
        if not epsilon > 0:
            raise ValueError(f"`epsilon` must be greater than 0. Received: epsilon={epsilon!r}")

    def build(self, input_shape):
        rank = len(input_shape)
        if not isinstance(self.axis, int) or not -rank <= self.axis < rank or not self.axis % rank:
            raise ValueError(
                "`axis` must be that of the channels, an integer, and not that of the batch. "
                f"Received: axis={self.axis!r}, input shape {tuple(input_shape)}"
            )
        channels = input_shape[self.axis]
        if channels is None:
            raise ValueError(
                "`axis` must be of a known size. "
                f"Received: axis={self.axis}, input shape {tuple(input_shape)}"
            )
        # Half types are normalised by statistics in float.
        dtype = "float64" if self.variable_dtype == "float64" else "float32"

        def weight(name, initializer, *others, trainable=True):
            return self.add_member_weight(
                (channels,), initializer, *others, name=name, trainable=trainable, dtype=dtype
            )

        gamma = (self.gamma_initializer, self.gamma_regularizer, self.gamma_constraint)
        beta = (self.beta_initializer, self.beta_regularizer, self.beta_constraint)
        self.gamma = weight("gamma", *gamma) if self.scale else None
        self.beta = weight("beta", *beta) if self.center else None
        self.moving_mean = weight("moving_mean", self.moving_mean_initializer, trainable=False)
        self.moving_variance = weight(
            "moving_variance", self.moving_variance_initializer, trainable=False
        )
        self.input_spec = keras.layers.InputSpec(ndim=rank, axes={self.axis % rank: channels})
        self.built = True

    def channels_last(self, x):
        """[..., channels], whichever axis they are.

        Args:
          x: inputs.
        """
        return x if self._is_last(x) else keras.ops.moveaxis(x, self.axis, -1)

    def channels_back(self, x):
        """The opposite of `channels_last`.

        Args:
          x: [..., channels].
        """
        return x if self._is_last(x) else keras.ops.moveaxis(x, -1, self.axis)

    def _is_last(self, x):
        return self.axis % len(x.shape) == len(x.shape) - 1

    def call(self, inputs, training=False, mask=None):
        if mask is not None and not self._is_last(inputs):
            raise ValueError(
                "`axis` must be the last for inputs with a mask. "
                f"Received: axis={self.axis} in {self.path}"
            )
        if not inputs.dtype.is_floating:
            inputs = tf.cast(inputs, self.compute_dtype)
        ordered = self.channels_last(inputs)
        x = tf.reshape(ordered, [-1, ordered.shape[-1]])
        # Frozen, it normalises by what it has, as Keras's does.
        if not (self.is_training(training) and self.trainable):
            y = self._fused(x, self._moving_rows(training=False), training=False).y
        elif mask is not None or self._joins_replicas():
            y = self._train_in_stock_ops(x, None if mask is None else tf.reshape(mask, [-1, 1]))
        else:
            y = self._train(x)
        outputs = self.channels_back(tf.reshape(y, tf.shape(ordered)))
        outputs.set_shape(inputs.shape)
        return outputs

    def _fused(self, x, moving, training):
        """The op with this call's rows, of which `moving` are those of mean and variance."""

        def read(weight, otherwise):
            row = otherwise if weight is None else self.row(weight, training)
            return tf.expand_dims(row, 0)

        mean, variance = moving
        return late_phase.raw_ops.late_phase_batch_norm(
            x=x,
            scale=read(self.gamma, tf.ones_like(mean)),
            offset=read(self.beta, tf.zeros_like(mean)),
            mean=tf.expand_dims(mean, 0),
            variance=tf.expand_dims(variance, 0),
            member=tf.constant(0),
            epsilon=self.epsilon,
            is_training=training,
        )

    def _moving_rows(self, training):
        return [self.row(moving, training) for moving in (self.moving_mean, self.moving_variance)]

    def _train(self, x):
        moving = self._moving_rows(training=True)
        result = self._fused(x, moving, training=True)
        # Keras keeps the biased variance. Its rounding here is small beside epsilon, to which it is
        # always added.
        biased = tf.maximum(1 / tf.square(result.saved_inv_std) - self.epsilon, 0)
        self._move_statistics(moving, result.saved_mean, biased)
        return result.y

    def _joins_replicas(self):
        return self.synchronized and tf.distribute.get_strategy().num_replicas_in_sync > 1

    def _train_in_stock_ops(self, x, mask):
        """With the statistics of all replicas, or of what is not masked, [n, 1].

        The fused op sees one replica and all values.
        """
        wide = tf.cast(x, self.moving_mean.dtype)
        mask = tf.ones([tf.shape(wide)[0], 1], wide.dtype) if mask is None else mask
        mask = tf.cast(mask, wide.dtype)

        def total(values):
            if not self._joins_replicas():
                return values
            replicas = tf.distribute.get_replica_context()
            return replicas.all_reduce(tf.distribute.ReduceOp.SUM, values)

        sums, count = total([tf.reduce_sum(wide * mask, axis=0), tf.reduce_sum(mask)])
        mean = tf.math.divide_no_nan(sums, count)
        squares = total(tf.reduce_sum(tf.square(wide - mean) * mask, axis=0))
        variance = tf.math.divide_no_nan(squares, count)
        self._move_statistics(self._moving_rows(training=True), mean, variance)
        scale = 1.0 if self.gamma is None else self.row(self.gamma, training=True)
        offset = 0.0 if self.beta is None else self.row(self.beta, training=True)
        return tf.cast(
            (wide - mean) * (scale * tf.math.rsqrt(variance + self.epsilon)) + offset, x.dtype
        )

    def _move_statistics(self, moving, mean, variance):
        """Moves the rows `moving`, the member's mean and variance, towards a minibatch's.

        A row that only one minibatch of a cycle writes moves as far as with all of them.
        """
        optimizer = self.attached_optimizer()

        def make_momentum():
            late = None if optimizer is None else optimizer.has_members()
            momentum = tf.constant(self.momentum, mean.dtype)
            of_member = tf.constant(self.momentum**self.members, mean.dtype)
            return momentum if late is None else tf.where(late, of_member, momentum)

        momentum = (
            make_momentum()
            if optimizer is None
            else optimizer.in_this_step(("momentum", self.momentum, mean.dtype), make_momentum)
        )
        moved = [
            old * momentum + tf.stop_gradient(batch) * (1 - momentum)
            for old, batch in zip(moving, (mean, variance))
        ]
        self.write_rows(list(zip((self.moving_mean, self.moving_variance), moved)))

    def call_members(self, inputs, mask=None):
        wide = self.moving_mean.dtype
        x = tf.cast(split_members(self.channels_last(inputs), self.members), wide)  # [K, N, ..., C]
        mean, variance = along_members(self.moving_mean, x), along_members(self.moving_variance, x)
        gamma = None if self.gamma is None else along_members(self.gamma, x)
        beta = None if self.beta is None else along_members(self.beta, x)
        outputs = tf.nn.batch_normalization(x, mean, variance, beta, gamma, self.epsilon)
        return self.channels_back(tf.cast(join_members(outputs), self.compute_dtype))

    def compute_output_shape(self, input_shape):
        return input_shape

    def affine_layer(self):
        """Keras's layer that can be the mean of the members' maps: with scale and offset."""
        config = {**self.plain_layer().get_config(), "scale": True, "center": True}
        return self.plain_class.from_config(config)

    def affine_weights(self, of_mean=False):
        """The arrays with which `affine_layer` is the mean of the members' maps, x -> a x + b.

        a_k = gamma_k / sqrt(variance_k + epsilon), b_k = beta_k - mean_k a_k. Statistics are the
        members' mean.

        Args:
          of_mean: with these the layer does what this one does in inference instead.
        """
        mean, variance = (np.float64(v.numpy()) for v in (self.moving_mean, self.moving_variance))
        gamma = np.ones_like(mean) if self.gamma is None else np.float64(self.gamma.numpy())
        beta = np.zeros_like(mean) if self.beta is None else np.float64(self.beta.numpy())
        means = [array_of(rows) for rows in (gamma, beta, mean, variance)]
        if of_mean:
            return means
        slopes = gamma / np.sqrt(variance + self.epsilon)
        slope, offset = array_of(slopes), array_of(beta - mean * slopes)
        _, _, mean, variance = means
        return [slope * np.sqrt(variance + self.epsilon), offset + slope * mean, mean, variance]

    def get_config(self):
        return {
            **super().get_config(),
            "axis": self.axis,
            "momentum": self.momentum,
            "epsilon": self.epsilon,
            "center": self.center,
            "scale": self.scale,
            "beta_initializer": keras.initializers.serialize(self.beta_initializer),
            "gamma_initializer": keras.initializers.serialize(self.gamma_initializer),
            "moving_mean_initializer": keras.initializers.serialize(self.moving_mean_initializer),
            "moving_variance_initializer": keras.initializers.serialize(
                self.moving_variance_initializer
            ),
            "beta_regularizer": keras.regularizers.serialize(self.beta_regularizer),
            "gamma_regularizer": keras.regularizers.serialize(self.gamma_regularizer),
            "beta_constraint": keras.constraints.serialize(self.beta_constraint),
            "gamma_constraint": keras.constraints.serialize(self.gamma_constraint),
            "synchronized": self.synchronized,
        }
