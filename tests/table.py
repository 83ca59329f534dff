"""A table as one test: every row is tried, and each that fails is named with its error.

For rows that need no fixture and take less than pytest takes for a test of its own (milliseconds, twice as many with workers).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def each_of(rows: Iterable[Any], *, name: Callable[[Any], str] = repr) -> Callable[[Callable[..., None]], Callable[[], None]]:
    """Turn a check of one row into a test of all; a tuple is given as arguments, anything else as the only one."""
    tried = list(rows)
    assert tried, "a table without rows shows nothing"

    def decorate(check: Callable[..., None]) -> Callable[[], None]:
        def test() -> None:
            wrong: list[BaseException] = []
            for row in tried:
                try:
                    check(*(row if isinstance(row, tuple) else (row,)))
                except (Exception, pytest.fail.Exception) as error:  # noqa: BLE001  # raised below; `pytest.raises` fails with the latter
                    error.add_note(f"row: {name(row)}")
                    wrong.append(error)
            if wrong:
                raise BaseExceptionGroup(f"{len(wrong)} of {len(tried)} rows", wrong)

        test.__name__, test.__doc__, test.__module__ = check.__name__, check.__doc__, check.__module__
        return test

    return decorate
