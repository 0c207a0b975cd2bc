"""std::mt19937_64 seeded by a std::seed_seq, from the C++ standard: the numbers that the programs
draw minibatches with.
"""

_MASK32 = 2**32 - 1


def _seed_seq(words, n):
    """std::seed_seq::generate: n words of 32 bits from those given."""
    s = len(words)
    t = 11 if n >= 623 else 7 if n >= 68 else 5 if n >= 39 else 3 if n >= 7 else (n - 1) // 2
    p = (n - t) // 2
    q, m = p + t, max(s + 1, n)
    b = [0x8B8B8B8B] * n
    mixed = lambda x: x ^ (x >> 27)
    for k in range(m):
        r1 = 1664525 * mixed(b[k % n] ^ b[(k + p) % n] ^ b[(k - 1) % n]) & _MASK32
        r2 = r1 + (s if k == 0 else k % n + (words[k - 1] if k <= s else 0)) & _MASK32
        b[(k + p) % n] = b[(k + p) % n] + r1 & _MASK32
        b[(k + q) % n] = b[(k + q) % n] + r2 & _MASK32
        b[k % n] = r2
    for k in range(m, m + n):
        r3 = 1566083941 * mixed(b[k % n] + b[(k + p) % n] + b[(k - 1) % n] & _MASK32) & _MASK32
        r4 = r3 - k % n & _MASK32
        b[(k + p) % n] ^= r3
        b[(k + q) % n] ^= r4
        b[k % n] = r4
    return b


def mt19937_64(words):
    """The engine's numbers, without end."""
    halves = _seed_seq(words, 624)
    x = [low | high << 32 for low, high in zip(halves[::2], halves[1::2])]
    if x[0] >> 31 == 0 and not any(x[1:]):
        x[0] = 2**63
    while True:
        for i in range(312):
            y = (x[i] & ~0x7FFFFFFF) | (x[(i + 1) % 312] & 0x7FFFFFFF)
            x[i] = x[(i + 156) % 312] ^ (y >> 1) ^ (0xB5026F5AA96619E9 if y & 1 else 0)
        for z in x:
            z ^= (z >> 29) & 0x5555555555555555
            z ^= (z << 17) & 0x71D67FFFEDA60000
            z ^= (z << 37) & 0xFFF7EEE000000000
            yield z ^ (z >> 43)


def shuffled(count, draws):
    """0 to count - 1 in the order in which the programs visit an epoch's images, by numbers that
    `draws` yields.
    """
    order = list(range(count))
    for left in range(count, 1, -1):
        other = next(draws) % left
        order[left - 1], order[other] = order[other], order[left - 1]
    return order
