"""Make the case of a finding small: leave out what the same violation does not need."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from fuzz.target import Case


def shrink(case: Case, fails: Callable[[Case], bool], *, tries: int) -> Case:
    """Return a case that still fails, each of whose values is as short as dropping halves, quarters, ... makes it."""
    left = tries
    is_smaller = True
    while is_smaller and left > 0:
        is_smaller = False
        for candidate in _smaller(case):
            left -= 1
            if left <= 0:
                break
            if fails(candidate):
                case, is_smaller = candidate, True
                break
    return case


def _smaller(case: Case) -> Iterator[Case]:
    for key, value in case.items():
        for smaller in _smaller_value(value):
            yield {**case, key: smaller}


def _smaller_value(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for key in value:
            yield {other: kept for other, kept in value.items() if other != key}
        yield from _smaller(value)
    elif isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], bytes) and isinstance(value[1], int):
        if value[1] > 1:
            yield (value[0], value[1] // 2)
        for part in _smaller_value(value[0]):
            yield (part, value[1])
    elif isinstance(value, bytes | str | list):
        yield from _pieces_left_out(value)
        if isinstance(value, list):
            for at, item in enumerate(value):
                for smaller in _smaller_value(item):
                    yield [*value[:at], smaller, *value[at + 1 :]]


def _pieces_left_out(value: Any) -> Iterator[Any]:
    size = len(value) // 2 or len(value)
    while size > 0:
        for start in range(0, len(value), size):
            yield value[:start] + value[start + size :]
        if size > 1 and len(value) // size > 64:
            return
        size //= 2
