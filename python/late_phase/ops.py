"""Documented functions around the raw ops."""

import collections

import tensorflow as tf

import late_phase

__all__ = [
    "BatchNormResult",
    "LstmResult",
    "batch_norm",
    "rank1_lstm",
    "rank1_lstm_tokens",
    "softmax_cross_entropy",
]

LstmResult = collections.namedtuple("LstmResult", ["h", "final_h", "final_c"])
LstmResult.__doc__ = """What an LSTM returns: a named tuple.

Args:
  h: [time, batch, units], the output of every step.
  final_h: [batch, units], the last of them.
  final_c: [batch, units], the cell after the last step.
"""

BatchNormResult = collections.namedtuple(
    "BatchNormResult", ["y", "running_mean", "running_variance"]
)
BatchNormResult.__doc__ = """What `batch_norm` returns: a named tuple.

Args:
  y: the result, with the shape of `x`.
  running_mean: [channels], the member's new running mean.
  running_variance: [channels], the member's new running variance.
"""


def _state(given, like, u):
    """The given initial state, or zeros for the batch of `like` and the units of `u` [K, units]."""
    if given is not None:
        return given
    # A tensor of too small a rank has no such size; the op will say what is wrong with it.
    batch, units = (
        0 if t.shape.rank is not None and t.shape.rank < 2 else tf.shape(t)[1] for t in (like, u)
    )
    return tf.zeros([batch, units], u.dtype)


def rank1_lstm(
    x,
    kernel,
    recurrent_kernel,
    bias,
    u,
    v,
    member=0,
    initial_h=None,
    initial_c=None,
    is_training=True,
    name=None,
):
    """An LSTM over a sequence, its recurrent matrix scaled by one member's rank-1 factors.

    The pre-activation is
    `z[t] = x[t] @ kernel + bias + ((h[t-1] * u[member]) @ recurrent_kernel) * v[member]`; gates are
    in Keras's order i, f, g, o, so the weights of `keras.layers.LSTM` fit unchanged. With `u` and
    `v` all ones this is the plain LSTM.

    Example:

    >>> import tensorflow as tf, late_phase
    >>> time, batch, inputs, units, members = 5, 2, 3, 4, 10
    >>> result = late_phase.ops.rank1_lstm(
    ...     x=tf.ones([time, batch, inputs]), kernel=tf.ones([inputs, 4 * units]),
    ...     recurrent_kernel=tf.ones([units, 4 * units]), bias=tf.zeros([4 * units]),
    ...     u=tf.ones([members, units]), v=tf.ones([members, 4 * units]), member=7)
    >>> print(result.h.shape, result.final_c.shape)
    (5, 2, 4) (2, 4)

    Args:
      x: [time, batch, input], of type half, bfloat16, float32 or float64, like all tensors below.
      kernel: [input, 4 * units].
      recurrent_kernel: [units, 4 * units].
      bias: [4 * units].
      u: [K, units], one row per member.
      v: [K, 4 * units], one row per member.
      member: int32 scalar in [0, K): the member whose rows are used. It may be a tensor or a
        variable, so one graph serves all members.
      initial_h: [batch, units], or None for zeros.
      initial_c: [batch, units], or None for zeros.
      is_training: False saves nothing for the gradient and is faster; asking for a gradient is then
        an error.
      name: a name for the operation.

    Returns:
      An `LstmResult` of `h` [time, batch, units], `final_h` and `final_c` [batch, units]. The
      gradients of `u` and `v` are zero outside row `member`.

    Raises:
      tf.errors.InvalidArgumentError: a shape, type or `member` does not fit; the message says
        which.
    """
    x = tf.convert_to_tensor(x)
    u = tf.convert_to_tensor(u, x.dtype)
    out = late_phase.raw_ops.late_phase_rank1_lstm(
        x=x,
        initial_h=_state(initial_h, x, u),
        initial_c=_state(initial_c, x, u),
        kernel=kernel,
        recurrent_kernel=recurrent_kernel,
        bias=bias,
        u=u,
        v=v,
        member=member,
        is_training=is_training,
        name=name,
    )
    return LstmResult(out.h, out.final_h, out.final_c)


def rank1_lstm_tokens(
    tokens,
    table,
    recurrent_kernel,
    u,
    v,
    member=0,
    initial_h=None,
    initial_c=None,
    is_training=True,
    name=None,
):
    """`rank1_lstm` for symbols: row `tokens[t, n]` of `table` replaces `x @ kernel + bias`.

    An embedding followed by the input product is one small product for the whole vocabulary,
    `table = embedding @ kernel + bias`, instead of one per position; its gradient flows through
    `table` as usual.

    Example:

    >>> import tensorflow as tf, late_phase
    >>> vocab, units, members = 205, 4, 10
    >>> embedding, kernel = tf.ones([vocab, 3]), tf.ones([3, 4 * units])
    >>> bias = tf.zeros([4 * units])
    >>> result = late_phase.ops.rank1_lstm_tokens(
    ...     tokens=[[17, 3], [5, 204]], table=embedding @ kernel + bias,
    ...     recurrent_kernel=tf.ones([units, 4 * units]),
    ...     u=tf.ones([members, units]), v=tf.ones([members, 4 * units]))
    >>> print(result.h.shape)
    (2, 2, 4)

    Args:
      tokens: int32 [time, batch], every value in [0, vocab).
      table: [vocab, 4 * units].
      recurrent_kernel: [units, 4 * units].
      u: [K, units], one row per member.
      v: [K, 4 * units], one row per member.
      member: int32 scalar in [0, K).
      initial_h: [batch, units], or None for zeros.
      initial_c: [batch, units], or None for zeros.
      is_training: False saves nothing for the gradient and is faster; asking for a gradient is then
        an error.
      name: a name for the operation.

    Returns:
      An `LstmResult`, as for `rank1_lstm`.

    Raises:
      tf.errors.InvalidArgumentError: a shape, type, token or `member` does not fit; the message
        says which.
    """
    tokens = tf.convert_to_tensor(tokens, tf.int32)
    table = tf.convert_to_tensor(table)
    u = tf.convert_to_tensor(u, table.dtype)
    out = late_phase.raw_ops.late_phase_rank1_lstm_tokens(
        tokens=tokens,
        table=table,
        initial_h=_state(initial_h, tokens, u),
        initial_c=_state(initial_c, tokens, u),
        recurrent_kernel=recurrent_kernel,
        u=u,
        v=v,
        member=member,
        is_training=is_training,
        name=name,
    )
    return LstmResult(out.h, out.final_h, out.final_c)


def softmax_cross_entropy(features, kernel, bias, labels, name=None):
    """The loss of a linear classifier, `-log(softmax(features @ kernel + bias)[label])`, per row.

    Values and gradients are those of
    `tf.nn.sparse_softmax_cross_entropy_with_logits(labels, features @ kernel + bias)`, without the
    logits in between. Logits of any size are safe, and `-inf` in `bias` switches a class off.

    Example:

    >>> import tensorflow as tf, late_phase
    >>> features, kernel, bias = tf.ones([2, 3]), tf.zeros([3, 4]), tf.zeros([4])
    >>> loss = late_phase.ops.softmax_cross_entropy(features, kernel, bias, labels=[0, 3])
    >>> print(loss.numpy().round(4), "= log 4")
    [1.3863 1.3863] = log 4

    Args:
      features: [n, units], of type half, bfloat16, float32 or float64, like `kernel` and `bias`.
      kernel: [units, vocab].
      bias: [vocab].
      labels: int32 [n], every value in [0, vocab).
      name: a name for the operation.

    Returns:
      The loss of each row, [n], in nats.

    Raises:
      tf.errors.InvalidArgumentError: a shape, type or label does not fit; the message says which.
    """
    return late_phase.raw_ops.late_phase_softmax_cross_entropy(
        features=features, kernel=kernel, bias=bias, labels=labels, name=name
    ).loss


def batch_norm(
    x,
    scale,
    offset,
    mean,
    variance,
    member=0,
    epsilon=1e-5,
    momentum=0.1,
    is_training=True,
    activation="Identity",
    data_format="NHWC",
    name=None,
):
    """Batch normalisation with one member's weights and statistics, and the activation after it.

    `y = activation(scale[member] * (x - m) / sqrt(v + epsilon) + offset[member])`, channel by
    channel. In training, `m` and `v` are the mean and variance of this batch, and the member's
    running statistics move towards them by `momentum`; in inference they are `mean[member]` and
    `variance[member]`. The op writes no variable: it returns the member's new statistics, for the
    caller to store in row `member`.

    Example:

    >>> import tensorflow as tf, late_phase
    >>> members, channels = 10, 3
    >>> mean = tf.Variable(tf.zeros([members, channels]))
    >>> variance = tf.Variable(tf.ones([members, channels]))
    >>> result = late_phase.ops.batch_norm(
    ...     x=[[1.0, 2.0, 3.0], [3.0, 6.0, 3.0]], scale=tf.ones([members, channels]),
    ...     offset=tf.zeros([members, channels]),
    ...     mean=mean, variance=variance, member=7, activation="Relu")
    >>> print(result.y.numpy().round(3).tolist())
    [[0.0, 0.0, 0.0], [1.0, 1.0, 0.0]]
    >>> _ = mean[7].assign(result.running_mean), variance[7].assign(result.running_variance)
    >>> print(mean[7].numpy().round(3), variance[7].numpy().round(3))
    [0.2 0.4 0.3] [1.1 1.7 0.9]

    Args:
      x: [batch, channels] or [batch, height, width, channels], of type half, bfloat16, float32 or
        float64.
      scale: [K, channels], one row per member; float32 if `x` has a half type, else of the type of
        `x`; the same goes for the next three.
      offset: [K, channels].
      mean: [K, channels], the running means.
      variance: [K, channels], the running variances.
      member: int32 scalar in [0, K): the member whose rows are used. It may be a tensor or a
        variable, so one graph serves all members.
      epsilon: added to the variance; greater than 0.
      momentum: the weight of this batch in the running statistics, in [0, 1]:
        `new = (1 - momentum) * old + momentum * batch`.
      is_training: whether to normalise by the statistics of this batch, or by the running ones.
      activation: "Identity" or "Relu".
      data_format: "NHWC", or "NCHW" for [batch, channels, height, width], which the GPU supports
        and the CPU refuses.
      name: a name for the operation.

    Returns:
      A `BatchNormResult` of `y`, with the shape and type of `x`, and the member's `running_mean`
      and `running_variance` [channels] after this batch; the variance is the unbiased one, over n -
      1. In inference the rows are returned unchanged. Gradients flow from `y` to `x`, `scale` and
      `offset`; those of the latter two are zero outside row `member`.

    Raises:
      tf.errors.InvalidArgumentError: a shape, type, attribute or `member` does not fit; the message
        says which.
    """
    x = tf.convert_to_tensor(x)
    out = late_phase.raw_ops.late_phase_batch_norm(
        x=x,
        scale=scale,
        offset=offset,
        mean=mean,
        variance=variance,
        member=member,
        epsilon=epsilon,
        momentum=momentum,
        is_training=is_training,
        activation=activation,
        data_format=data_format,
        name=name,
    )
    return BatchNormResult(out.y, out.running_mean, out.running_variance)
