"""One part of the check, in a process of its own: it may crash or hang, as a faulty kernel can.

python -m late_phase.check facts | ops DEVICE FIRST | steps DEVICE RUN ROUNDS

What it finds are lines of JSON on standard output, as soon as they are known.
"""

import json
import os
import sys


def parts(part, *arguments):
    """The messages of a part."""
    if part == "facts":
        from late_phase.check import facts

        yield facts.facts()
        return
    device, *rest = arguments
    if part == "ops":
        from late_phase.check import ops

        yield from ops.messages(device, int(rest[0]))
    else:
        from late_phase.check import keras_steps

        yield from keras_steps.messages(device, rest[0], int(rest[1]))
    from late_phase.check import facts

    yield {"peak_bytes": facts.peak_bytes(device)}


def main(arguments):
    # Whatever libraries print goes to standard error.
    output = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for message in parts(*arguments):
        print(json.dumps(message), file=output, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
