"""Runs one random program on the library and on the reference, and says what is wrong."""

import logging
import tempfile
import traceback
import warnings

import keras
import numpy as np
import tensorflow as tf

import late_phase.keras
from tests.campaign import keras_misuse, keras_weights
from tests.campaign.keras_actions import Actions
from tests.campaign.keras_reference import Wrong
from tests.campaign.keras_training import Diverged


def run(program):
    """(what became of it, what is wrong: "" if nothing)."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(program.number)
    tf.get_logger().setLevel(logging.ERROR)
    with (
        warnings.catch_warnings(),
        np.errstate(all="ignore"),
        tempfile.TemporaryDirectory() as folder,
    ):
        warnings.simplefilter("ignore")
        return _judge(program, folder)


def _judge(program, folder):
    done = "made"
    try:
        if _must_be_refused(program):
            return "refused by convert", _refusal(program)
        training = Actions(program, folder)
        training.compare()
        for name, arguments in program.actions:
            done = name
            getattr(training, name)(**arguments)
            training.compare()
    except Diverged:
        return "diverged", ""
    except Wrong as wrong:
        return "wrong", f"{done}: {wrong}"
    except Exception:
        return "wrong", f"{done}: {traceback.format_exc()[-3000:]}"
    return f"{'built' if program.network.weights is None else 'converted'}, {program.mode}", ""


def _must_be_refused(program):
    network = program.network
    if network.weights is None:
        return False
    source = network.build(program.settings.members)
    return keras_weights.choose(network, network.build(), source) is None


def _refusal(program):
    network, members = program.network, program.settings.members
    source = network.build(members)
    before = [v.numpy().tobytes() for v in source.variables]
    complaint = keras_misuse.complaint(
        lambda: late_phase.keras.convert(source, members, network.weights)
    )
    if not complaint and before != [v.numpy().tobytes() for v in source.variables]:
        return "`convert` has refused a model, and changed it"
    return complaint
