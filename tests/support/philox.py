"""The programs' normal random numbers, kernels/philox_normal.h, in NumPy: the same words, and
normals that differ by rounding.
"""

import numpy

_MASK = numpy.uint64(0xFFFFFFFF)


def _philox(counter, key):
    """Philox4x32-10: four arrays. counter: four arrays of words (uint64), key: two words."""
    c0, c1, c2, c3 = (numpy.asarray(word, numpy.uint64) for word in counter)
    k0, k1 = key
    for _ in range(10):
        a, b = c0 * numpy.uint64(0xD2511F53), c2 * numpy.uint64(0xCD9E8D57)
        high = numpy.uint64(32)
        c0, c1, c2, c3 = (
            (b >> high) ^ c1 ^ numpy.uint64(k0),
            b & _MASK,
            (a >> high) ^ c3 ^ numpy.uint64(k1),
            a & _MASK,
        )
        k0, k1 = (k0 + 0x9E3779B9) % 2**32, (k1 + 0xBB67AE85) % 2**32
    return c0, c1, c2, c3


def normals(seed0, seed1, row, count):
    """Elements 0 to count - 1 of a row of the stream (seed0, seed1)."""
    words = [
        int(word)
        for word in _philox([seed0 % 2**32, seed0 >> 32, seed1 % 2**32, seed1 >> 32], (0, 0))
    ]
    i = numpy.arange(count, dtype=numpy.uint64)
    counter = i // numpy.uint64(256) * numpy.uint64(64) + i % numpy.uint64(64)
    x = _philox(
        [counter & _MASK, counter >> numpy.uint64(32), (words[2] + row) % 2**32, words[3]],
        words[:2],
    )
    number = (i // numpy.uint64(64) % numpy.uint64(4)).astype(int)  # of the counter's four normals
    chosen = lambda pair: numpy.where(number < 2, x[pair], x[pair + 2]).astype(float)
    radius = numpy.sqrt(-2 * numpy.log(chosen(0) / 2**32 + 2.0**-33))
    angle = 2 * numpy.pi * chosen(1) / 2**32
    return radius * numpy.where(number % 2 == 0, numpy.cos(angle), numpy.sin(angle))
