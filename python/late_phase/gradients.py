"""Gradients of the ops for Python graphs and tapes: each only calls its Grad op.

The C++ ones are in ops/*_grad.cc.
"""

import tensorflow as tf

import late_phase


def _require_training(op):
    if not op.get_attr("is_training"):
        raise ValueError(
            f"{op.type}: `is_training` must be True for a gradient, because nothing is saved "
            "otherwise. Received: is_training=False"
        )


def _lstm_grad(grad_op, op, inputs, dh, dfinal_h, dfinal_c):
    """What the gradient op returns. `inputs`: those of `op` that it takes, by name."""
    _require_training(op)
    h, _, _, gates, cells = op.outputs
    saved = {"h": h, "gates": gates, "cells": cells}
    return grad_op(**inputs, **saved, dh=dh, dfinal_h=dfinal_h, dfinal_c=dfinal_c)


_STATES = ("initial_h", "initial_c")
_FACTORS = ("u", "v", "member")


@tf.RegisterGradient("LatePhase>Rank1Lstm")
def _rank1_lstm_grad(op, dh, dfinal_h, dfinal_c, dgates, dcells):
    del dgates, dcells  # for this function only; nothing else may use them
    names = ("x", *_STATES, "kernel", "recurrent_kernel", "bias", *_FACTORS)
    inputs = dict(zip(names, op.inputs))
    del inputs["bias"]
    grad_op = late_phase.raw_ops.late_phase_rank1_lstm_grad
    return [*_lstm_grad(grad_op, op, inputs, dh, dfinal_h, dfinal_c), None]


@tf.RegisterGradient("LatePhase>Rank1LstmTokens")
def _rank1_lstm_tokens_grad(op, dh, dfinal_h, dfinal_c, dgates, dcells):
    del dgates, dcells
    names = ("tokens", "table", *_STATES, "recurrent_kernel", *_FACTORS)
    inputs = dict(zip(names, op.inputs))
    grad_op = late_phase.raw_ops.late_phase_rank1_lstm_tokens_grad
    return [None, *_lstm_grad(grad_op, op, inputs, dh, dfinal_h, dfinal_c), None]


@tf.RegisterGradient("LatePhase>SoftmaxCrossEntropy")
def _softmax_cross_entropy_grad(op, dloss, ddlogits):
    del ddlogits  # as above
    features, kernel, bias, labels = op.inputs
    del bias, labels
    grad = late_phase.raw_ops.late_phase_softmax_cross_entropy_grad(
        features=features, kernel=kernel, dlogits=op.outputs[1], dloss=dloss
    )
    return [*grad, None]


@tf.RegisterGradient("LatePhase>BatchNorm")
def _batch_norm_grad(op, dy, *unused_grads):  # the running statistics are constants to gradients
    x, scale, offset, mean, variance, member = op.inputs
    del mean, variance
    _, _, _, saved_mean, saved_mean_rest, saved_inv_std = op.outputs
    grad = late_phase.raw_ops.late_phase_batch_norm_grad(
        x=x,
        scale=scale,
        offset=offset,
        member=member,
        saved_mean=saved_mean,
        saved_mean_rest=saved_mean_rest,
        saved_inv_std=saved_inv_std,
        dy=dy,
        is_training=op.get_attr("is_training"),
        activation=op.get_attr("activation"),
        data_format=op.get_attr("data_format"),
    )
    return [*grad, None, None, None]


@tf.RegisterGradient("LatePhase>BatchNormGrad")
@tf.RegisterGradient("LatePhase>Rank1LstmGrad")
@tf.RegisterGradient("LatePhase>Rank1LstmTokensGrad")
@tf.RegisterGradient("LatePhase>SoftmaxCrossEntropyGrad")
def _no_second_order(op, *unused_grads):
    raise NotImplementedError(f"{op.type}: second-order gradients are not available.")
