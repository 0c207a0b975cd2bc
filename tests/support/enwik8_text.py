"""Small generated texts for the tests of the enwik8 program."""

import numpy


def write_text(path, size, symbols=30, seed=0):
    """A text with some order in it: each character depends on the one before."""
    random = numpy.random.RandomState(seed)
    jumps = random.choice([1, 1, 1, 2, 5, 11], size=size)
    tokens = numpy.cumsum(jumps) % symbols
    tokens[:symbols] = numpy.arange(symbols)  # so that all of them occur in the training part
    (tokens + 32 if symbols <= 200 else tokens).astype(numpy.uint8).tofile(path)
    return str(path)
