"""Runs random Keras programs, and compares each with the reference.

    tools/test //tests/campaign:keras --test_arg=--programs=10000 --test_arg=--seed=1 \
        --test_output=all
"""

import sys

from tests.campaign import workers

_EACH = 250  # programs of one process, which TensorFlow lets grow


def _describe(options, number):
    from tests.campaign import keras_programs

    return str(keras_programs.Program(options.seed, number))


def _run(options, number):
    from tests.campaign import keras_programs, keras_trial

    program = keras_programs.Program(options.seed, number)
    kind, complaint = keras_trial.run(program)
    return kind, str(program), complaint


CAMPAIGN = workers.Campaign(
    "programs",
    10_000,
    ["-m", "tests.campaign.keras_campaign"],
    __doc__,
    _run,
    _describe,
    each=_EACH,
)

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
