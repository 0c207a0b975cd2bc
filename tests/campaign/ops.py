"""Calls every op at random, and checks each call against the reference.

tools/test //tests/campaign:ops --test_arg=--calls=1000000 --test_arg=--seed=1 --test_output=all
"""

import sys

from tests.campaign import workers

_RACES = 500  # every so many calls are a race of threads for one variable


def _is_race(number):
    return number % _RACES == _RACES - 1


def _describe(options, number):
    from tests.campaign import op_calls, op_races

    make = op_races.Race if _is_race(number) else op_calls.make
    return str(make(options.seed, number))


def _run(options, number):
    from tests.campaign import op_calls, op_races, op_trial

    if _is_race(number):
        race = op_races.Race(options.seed, number)
        return "races of threads", str(race), race.run()
    call = op_calls.make(options.seed, number)
    kind = f"{call.signature.op} {'accepted' if call.expected() else 'refused'}"
    return kind, str(call), op_trial.run(call, op_trial.FORMS[options.form])


CAMPAIGN = workers.Campaign(
    "calls", 1_000_000, ["-m", "tests.campaign.ops"], __doc__, _run, _describe
)
CAMPAIGN.add_flag(
    "form", choices=["eager", "function"], default="eager",
    help="how the ops are called; function: by tf.function with unknown shapes (%(default)s)",
)  # fmt: skip

if __name__ == "__main__":
    sys.exit(CAMPAIGN.main())
