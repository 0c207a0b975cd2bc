"""Damage to the bytes of a file, drawn at random: what disks, copies and editors do to them."""

import re

_OTHER_WORDS = (b"null", b"-1", b"0", b"1e999", b"NaN", b'"word"', b"[]", b"{}", b"true", b"")
_MOST = 64  # bytes that are inserted, or lost in the middle


def _flips(draw, data):
    """Bits, in up to three places."""
    changed = bytearray(data)
    places = sorted(draw.sample(range(len(data)), min(draw.choice([1, 1, 2, 3]), len(data))))
    for place in places:
        changed[place] ^= 1 << draw.randrange(8)
    return bytes(changed), f"bits of bytes {places} flipped"


def _overwritten(draw, data):
    """A stretch of zeros, as of a block that never reached the disk, or a byte."""
    begin = draw.randrange(len(data))
    if draw.random() < 0.5:
        end = min(len(data), begin + draw.choice([8, 64, 512, 4096]))
        return data[:begin] + bytes(end - begin) + data[end:], f"zeros in [{begin}, {end})"
    byte = draw.choice(b"0123456789.-e\"',:[]{}\n\0\xff")
    changed = data[:begin] + bytes([byte]) + data[begin + 1 :]
    return changed, f"byte {begin} is now {byte:#04x}"


def _truncated(draw, data):
    end = draw.choice(
        [0, draw.randrange(len(data)), len(data) - 1 - draw.randrange(len(data)) // 8]
    )
    return data[:end], f"cut off after {end} bytes"


def _inserted(draw, data):
    """Random bytes, or a copy of others."""
    place, size = draw.randint(0, len(data)), draw.randint(1, _MOST)
    begin = draw.randrange(len(data))
    more = data[begin : begin + size] if draw.random() < 0.5 else draw.randbytes(size)
    return data[:place] + more + data[place:], f"{len(more)} bytes inserted at {place}"


def _lost(draw, data):
    begin = draw.randrange(len(data))
    end = min(len(data), begin + draw.randint(1, _MOST))
    return data[:begin] + data[end:], f"bytes [{begin}, {end}) lost"


def _swapped(draw, data):
    """Two stretches that do not overlap."""
    size = draw.choice([1, 1, 4, 16, 64, 512])
    size = max(1, min(size, len(data) // 2))
    first = draw.randint(0, max(0, len(data) - 2 * size))
    second = draw.randint(first + size, max(first + size, len(data) - size))
    one, other = slice(first, first + size), slice(second, second + size)
    changed = data[:first] + data[other] + data[one.stop : second] + data[one] + data[other.stop :]
    return changed, f"bytes [{first}, {one.stop}) and [{second}, {other.stop}) swapped"


def _edited(draw, data):
    """A word or number of a text, replaced by another one of it or by something else."""
    words = list(re.finditer(rb'"[^"\n]*"|[-+.\w]+', data))
    if not words:
        return data, ""
    word = draw.choice(words)
    new = draw.choice([draw.choice(words)[0], *_OTHER_WORDS])
    changed = data[: word.start()] + new + data[word.end() :]
    return changed, f"{word[0][:_MOST]!r} at {word.start()} is now {new[:_MOST]!r}"


KINDS = {
    "edited": _edited,
    "flipped": _flips,
    "overwritten": _overwritten,
    "truncated": _truncated,
    "inserted": _inserted,
    "lost": _lost,
    "swapped": _swapped,
}


def draw_damage(draw, data):
    """(kind, the bytes with some damage, what it is in words); never the same bytes."""
    while True:
        kind = draw.choice(list(KINDS))
        changed, text = KINDS[kind](draw, data)
        if changed != data:
            return kind, changed, text
