"""The table helper: a wrong row fails the test and is named, whatever follows it."""

from __future__ import annotations

import pytest

from tests.table import each_of


def test_wrong_rows_fail_and_are_named() -> None:
    """All of them, also after one that failed, and also where `pytest.raises` saw nothing."""
    tried = []

    @each_of([(1, 1), (1, 2), (3, 0), (4, 4)])
    def check(one: int, other: int) -> None:
        """Says what it promises."""
        tried.append(one)
        if other == 0:
            with pytest.raises(ZeroDivisionError):
                int("1")
        assert one == other

    with pytest.raises(BaseExceptionGroup, match="2 of 4 rows") as failed:
        check()
    assert tried == [1, 1, 3, 4]
    assert [error.__notes__ for error in failed.value.exceptions] == [["row: (1, 2)"], ["row: (3, 0)"]]
    assert (check.__name__, check.__doc__) == ("check", "Says what it promises.")


def test_a_table_without_rows_is_no_test() -> None:
    """It would pass for ever."""
    with pytest.raises(AssertionError, match="without rows"):
        each_of([])
