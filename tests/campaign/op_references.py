"""Every op in NumPy and in double precision, from the equations of docs/ops.md.

A reference takes the inputs of a call by name, in double, and its attributes; it returns outputs
and new values of variables by name. Rows or channels with NaN are NaN here too.
"""

import numpy as np

from tests.support import philox


def _sigmoid(z):
    return 0.5 * (1 + np.tanh(0.5 * z))


def _lstm_forward(first, p):
    """`first`: what the input adds to z, [time, batch, 4*units]."""
    u, v = p["u"][p["member"]], p["v"][p["member"]]
    h, c = p["initial_h"], p["initial_c"]
    hs, cells, gates = [], [], []
    for z in first:
        z = z + ((h * u) @ p["recurrent_kernel"]) * v
        i, f, g, o = np.split(z, 4, axis=-1)
        i, f, g, o = _sigmoid(i), _sigmoid(f), np.tanh(g), _sigmoid(o)
        c = f * c + i * g
        h = o * np.tanh(c)
        hs.append(h)
        cells.append(c)
        gates.append(np.concatenate([i, f, g, o], axis=-1))
    shape = (len(first), *h.shape)
    return {
        "h": np.reshape(hs, shape),
        "final_h": h,
        "final_c": c,
        "gates": np.reshape(gates, (*shape[:2], 4 * shape[2])),
        "cells": np.reshape(cells, shape),
    }


def _without_gradient(outputs, attributes):
    if not attributes["is_training"]:
        outputs["gates"] = outputs["cells"] = np.zeros((0, 0, 0))
    return outputs


def rank1_lstm(p, attributes):
    return _without_gradient(_lstm_forward(p["x"] @ p["kernel"] + p["bias"], p), attributes)


def rank1_lstm_tokens(p, attributes):
    return _without_gradient(_lstm_forward(p["table"][p["tokens"]], p), attributes)


def _lstm_backward(p):
    """The gradients of all but the input, and dz [time, batch, 4*units]."""
    u, v, R = p["u"][p["member"]], p["v"][p["member"]], p["recurrent_kernel"]
    dR, du, dv = np.zeros_like(R), np.zeros_like(p["u"]), np.zeros_like(p["v"])
    dh, dc = p["dfinal_h"], p["dfinal_c"]
    dzs = np.zeros_like(p["gates"])
    for t in reversed(range(len(p["h"]))):
        before_h = p["h"][t - 1] if t else p["initial_h"]
        before_c = p["cells"][t - 1] if t else p["initial_c"]
        i, f, g, o = np.split(p["gates"][t], 4, axis=-1)
        dh = dh + p["dh"][t]
        tanh = np.tanh(p["cells"][t])
        dc = dc + dh * o * (1 - tanh**2)
        dz = np.concatenate(
            [dc * g * i * (1 - i), dc * before_c * f * (1 - f), dc * i * (1 - g**2),
             dh * tanh * o * (1 - o)], axis=-1,
        )  # fmt: skip
        dzs[t] = dz
        scaled = dz * v
        product = (before_h * u) @ R
        dR += (before_h * u).T @ scaled
        dv[p["member"]] += (dz * product).sum(axis=0)
        back = scaled @ R.T
        du[p["member"]] += (back * before_h).sum(axis=0)
        dh, dc = back * u, dc * f
    return dzs, {
        "dinitial_h": dh, "dinitial_c": dc, "drecurrent_kernel": dR, "du": du, "dv": dv,
    }  # fmt: skip


def rank1_lstm_grad(p, attributes):
    dz, gradients = _lstm_backward(p)
    flat = dz.reshape(-1, dz.shape[-1])
    x = p["x"].reshape(len(flat), p["x"].shape[-1])
    return gradients | {"dx": dz @ p["kernel"].T, "dkernel": x.T @ flat, "dbias": flat.sum(axis=0)}


def rank1_lstm_tokens_grad(p, attributes):
    dz, gradients = _lstm_backward(p)
    dtable = np.zeros_like(p["table"])
    np.add.at(dtable, p["tokens"].reshape(-1), dz.reshape(-1, dz.shape[-1]))
    return gradients | {"dtable": dtable}


def batch_norm(p, attributes):
    k = p["member"]
    axes = tuple(range(p["x"].ndim - 1))
    n = int(np.prod(p["x"].shape[:-1]))
    mean, variance = p["mean"][k], p["variance"][k]
    running = mean, variance
    if attributes["is_training"] and n:
        momentum = np.float64(np.float32(attributes["momentum"]))  # attributes are float
        mean, variance = p["x"].mean(axis=axes), p["x"].var(axis=axes)
        running = (
            (1 - momentum) * running[0] + momentum * mean,
            (1 - momentum) * running[1] + momentum * variance * n / max(n - 1, 1),
        )
    inv_std = 1 / np.sqrt(variance + np.float64(np.float32(attributes["epsilon"])))
    y = (p["x"] - mean) * inv_std * p["scale"][k] + p["offset"][k]
    if attributes["activation"] == "Relu":
        y = np.where(y <= 0, 0, y)  # NaN stays NaN
    return {
        "y": y, "running_mean": running[0], "running_variance": running[1],
        "saved_mean + saved_mean_rest": mean, "saved_inv_std": inv_std,
    }  # fmt: skip


def batch_norm_grad(p, attributes):
    k = p["member"]
    axes = tuple(range(p["x"].ndim - 1))
    n = int(np.prod(p["x"].shape[:-1]))
    normal = (p["x"] - (p["saved_mean"] + p["saved_mean_rest"])) * p["saved_inv_std"]
    dz = p["dy"]
    if attributes["activation"] == "Relu":
        dz = np.where(p["scale"][k] * normal + p["offset"][k] <= 0, 0, dz)
    dscale, doffset = np.zeros_like(p["scale"]), np.zeros_like(p["offset"])
    dscale[k], doffset[k] = (dz * normal).sum(axis=axes), dz.sum(axis=axes)
    dx = dz
    if attributes["is_training"] and n:
        dx = dz - (doffset[k] + normal * dscale[k]) / n
    return {
        "dx": dx * p["scale"][k] * p["saved_inv_std"], "dscale": dscale, "doffset": doffset,
    }  # fmt: skip


def softmax_cross_entropy(p, attributes):
    z = p["features"] @ p["kernel"] + p["bias"]
    rows = np.arange(len(z))
    largest = z.max(axis=-1, keepdims=True) if len(z) else z[:, :1]
    exp = np.exp(z - largest)
    total = exp.sum(axis=-1, keepdims=True)
    dlogits = exp / total
    loss = np.log(total[:, 0]) + largest[:, 0] - z[rows, p["labels"]]
    dlogits[rows, p["labels"]] -= 1
    return {"loss": loss, "dlogits": dlogits}


def softmax_cross_entropy_grad(p, attributes):
    dlogits = p["dlogits"] * p["dloss"][:, None]
    return {
        "dfeatures": dlogits @ p["kernel"].T,
        "dkernel": p["features"].T @ dlogits,
        "dbias": dlogits.sum(axis=0),
    }


def _apply(rule, w, slots, g, p, attributes, count):
    """One rule on an array: the new weights, slots and count."""
    lr = p["lr"]
    g = g + p["weight_decay"] * w
    if rule == "Sgd":
        return w - lr * g, {}, None
    if rule == "Momentum":
        in_accum = attributes["lr_in_accum"]
        g, step = (lr * g, 1) if in_accum else (g, lr)
        accum = p["momentum"] * slots["accum"] + g
        moved = g + p["momentum"] * accum if attributes["use_nesterov"] else accum
        return w - step * moved, {"accum": accum}, None
    count = count + 1
    beta1, beta2 = p["beta1"], p["beta2"]
    m = beta1 * slots["m"] + (1 - beta1) * g
    v = beta2 * slots["v"] + (1 - beta2) * g**2
    rate = lr * np.sqrt(1 - beta2**count) / (1 - beta1**count)
    return w - rate * m / (np.sqrt(v) + p["epsilon"]), {"m": m, "v": v}, count


def _slots(p):
    return [name for name in ("accum", "m", "v") if name in p]


def member_apply(rule):
    def reference(p, attributes):
        k = p["member"]
        row = p["grad"] if p["grad"].ndim < p["var"].ndim else p["grad"][k]
        after = {name: p[name].copy() for name in ("var", *_slots(p), "count") if name in p}
        count = p["count"][k] if "count" in p else None
        slots = {name: p[name][k] for name in _slots(p)}
        w, slots, count = _apply(rule, p["var"][k], slots, row, p, attributes, count)
        after["var"][k] = w
        for name, value in slots.items():
            after[name][k] = value
        if count is not None:
            after["count"][k] = count
        return after

    return reference


def base_apply(rule):
    def reference(p, attributes):
        after = {name: p[name] for name in ("var", *_slots(p), "count", "sum") if name in p}
        if p["member"] < p["cycle"] - 1:
            return after | {"sum": p["sum"] + p["grad"]}
        g = p["scale"] * (p["grad"] if p["cycle"] == 1 else p["sum"] + p["grad"])
        slots = {name: p[name] for name in _slots(p)}
        w, slots, count = _apply(rule, p["var"], slots, g, p, attributes, p.get("count"))
        after |= {"var": w, **slots}
        if count is not None:
            after["count"] = count
        if p["cycle"] > 1:
            after["sum"] = np.zeros_like(p["sum"])
        return after

    return reference


def read_member(p, attributes):
    return {"row": p["var"][p["member"]]}


def collapse(p, attributes):
    return {"mean": p["var"].mean(axis=0)}


def spawn(p, attributes):
    first = p["var"][0]
    if p["sigma"] == 0:
        return {"var": np.stack([first] * len(p["var"]))}
    size = first.size
    rms = np.sqrt(np.mean(first**2)) if size else 0.0
    seeds = [int(seed) % 2**64 for seed in p["seed"]]
    noise = [philox.normals(*seeds, k, size).reshape(first.shape) for k in range(len(p["var"]))]
    return {"var": np.stack([first + p["sigma"] * rms * one for one in noise])}


def swa_update(p, attributes):
    if p["count"] == 0:
        return {"average": p["source"]}
    return {"average": p["average"] + (p["source"] - p["average"]) / (float(p["count"]) + 1)}


REFERENCES = {
    "Rank1Lstm": rank1_lstm,
    "Rank1LstmTokens": rank1_lstm_tokens,
    "Rank1LstmGrad": rank1_lstm_grad,
    "Rank1LstmTokensGrad": rank1_lstm_tokens_grad,
    "BatchNorm": batch_norm,
    "BatchNormGrad": batch_norm_grad,
    "SoftmaxCrossEntropy": softmax_cross_entropy,
    "SoftmaxCrossEntropyGrad": softmax_cross_entropy_grad,
    **{f"MemberApply{rule}": member_apply(rule) for rule in ("Sgd", "Momentum", "Adam")},
    **{f"BaseApply{rule}": base_apply(rule) for rule in ("Sgd", "Momentum", "Adam")},
    "ReadMember": read_member,
    "Collapse": collapse,
    "Spawn": spawn,
    "SwaUpdate": swa_update,
}
