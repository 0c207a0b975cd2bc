"""Small generated texts for the tests of the enwik8 program."""

import numpy

# Flags of a run on the first 4000 characters of such a text: ten minibatches an epoch.
SMALL = (
    "--units 24 --embedding 8 --batch 8 --sequence 20 --train-characters 1608 "
    "--validation-characters 0 --test-characters 0 --members 3 --t0 1.2 --swa-start 2 "
    "--swa-every 0.5 --epochs 3 --log-every 5"
).split()


def write_text(path, size, symbols=30, seed=0):
    """A text with some order in it: each character depends on the one before."""
    random = numpy.random.RandomState(seed)
    jumps = random.choice([1, 1, 1, 2, 5, 11], size=size)
    tokens = numpy.cumsum(jumps) % symbols
    tokens[:symbols] = numpy.arange(symbols)  # so that all of them occur in the training part
    (tokens + 32 if symbols <= 200 else tokens).astype(numpy.uint8).tofile(path)
    return str(path)
