"""Random bytes, and damaged versions of good ones: what every target's generator is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random

INTERESTING = (
    b"\x00", b"\x01", b"\x7f", b"\x80", b"\xff", b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\x80\x00\x00\x00", b"\x00" * 8,
    b"%", b"%s", b"%00", b"\\", b'"', b"\\u0000", b"\\ud800", b"\n", b"\r\n", b"\x1b[31m", b"../", b"/", b"{", b"[", b"}", b"]",
    b"NaN", b"1e400", b"-0", b"18446744073709551616", b"99999999999999999999999999", b"null", b"\xc3\x28", b"\xed\xa0\x80",
    b"\xf0\x9f\x98\x80", b"\xef\xbb\xbf", b"\xe2\x80\xae", b"<", b">", b"&", b"<!--", b"]]>",
)  # fmt: skip
"""Values at which parsers break: ends of ranges, escapes, control characters, UTF-8 that is none, numbers that do not fit."""

REPEAT_MAX = 300
"""Of one piece within a mutation. Ours: long enough to pass the usual caps of 127 and 255."""


def noise(random: Random, longest: int) -> bytes:
    """0 to `longest` bytes; short ones are more frequent."""
    return random.randbytes(int(longest * random.random() ** 3))


def mutated(random: Random, data: bytes, *, others: Sequence[bytes] = ()) -> bytes:
    """Damage `data` in one to six places; `others` are pieces of the same language to insert or join."""
    for _ in range(1 + int(random.random() ** 2 * 6)):
        data = random.choice(_MUTATIONS)(random, data, others)
    return data


def _place(random: Random, data: bytes) -> tuple[int, int]:
    """Where a piece begins and ends; most pieces are short."""
    start = random.randrange(len(data) + 1)
    return start, min(len(data), start + 1 + int(random.random() ** 3 * 64))


def _flip(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    if not data:
        return data
    at = random.randrange(len(data))
    return data[:at] + bytes([data[at] ^ 1 << random.randrange(8)]) + data[at + 1 :]


def _overwrite(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    value = random.choice(INTERESTING)
    start, _ = _place(random, data)
    return data[:start] + value + data[start + len(value) :]


def _insert(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    start, _ = _place(random, data)
    piece = random.choice(others) if others and random.random() < 0.5 else random.choice(INTERESTING)
    return data[:start] + piece + data[start:]


def _remove(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, end = _place(random, data)
    return data[:start] + data[end:]


def _repeat(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, end = _place(random, data)
    return data[:start] + data[start:end] * random.randint(2, REPEAT_MAX if random.random() < 0.1 else 5) + data[end:]


def _move(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, end = _place(random, data)
    piece, rest = data[start:end], data[:start] + data[end:]
    at = random.randrange(len(rest) + 1)
    return rest[:at] + piece + rest[at:]


def _cut(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, _ = _place(random, data)
    return data[:start]


def _join(random: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    other = random.choice(others) if others else noise(random, 64)
    return data[: random.randrange(len(data) + 1)] + other[random.randrange(len(other) + 1) :]


def _random_bytes(random: Random, data: bytes, _others: Sequence[bytes]) -> bytes:
    start, end = _place(random, data)
    return data[:start] + random.randbytes(end - start) + data[end:]


_MUTATIONS: tuple[Callable[[Random, bytes, Sequence[bytes]], bytes], ...] = (
    _flip, _overwrite, _insert, _remove, _repeat, _move, _cut, _join, _random_bytes,
)  # fmt: skip
