"""The table of operations is whole: every state is reached and left, every failpoint is in it, and no answer is without a row."""

from __future__ import annotations

import pytest

from ipamd.eni.operations import FAILPOINTS, TABLE, Row, State, Then
from ipamd.eni.steps import Steps
from ipamd.model.errors import CloudDeniedError, CloudError, CloudNotFoundError, ThrottledError

BEGINNINGS = {State.ASKED, State.UNANSWERED, State.UNREPEATABLE, State.FOUND, State.HELD}
BESIDE_THE_TABLE = {"growth.intent-opened", "growth.intent-closed", "growth.marked", "growth.host-ready", "release.intent-opened"}


def unanswered() -> CloudError:
    """An error that says nothing about what happened."""
    return CloudError("connection reset")


def refused(kind: type[CloudError] = CloudError) -> CloudError:
    """EC2 answered, and did nothing."""
    error = kind("refused")
    error.may_have_happened = False
    return error


@pytest.mark.parametrize("operation", TABLE, ids=str)
def test_every_state_leads_to_the_end(operation: object) -> None:
    """From each state where a run may begin; and what is in the table is reached."""
    rows = TABLE[operation]  # type: ignore[index]
    reached = set()
    for begun in BEGINNINGS & rows.keys():
        state, steps = begun, 0
        while state is not State.DONE:
            reached.add(state)
            state, steps = rows[state].then, steps + 1
            assert steps < len(State)
    assert reached == rows.keys()


def test_every_row_is_carried_out() -> None:
    """The engine has a method for each."""
    assert all(callable(getattr(Steps, f"_{row.call}")) for rows in TABLE.values() for row in rows.values())


def test_every_failpoint_has_its_place() -> None:
    """Those that are in no row belong to the log of intents and to what comes after the table."""
    placed = {row.failpoint for rows in TABLE.values() for row in rows.values()} - {""}
    assert placed | BESIDE_THE_TABLE == set(FAILPOINTS)
    assert not placed & BESIDE_THE_TABLE


@pytest.mark.parametrize(
    ("error", "field"),
    [
        (refused(), "refused"),
        (refused(CloudDeniedError), "refused"),
        (refused(CloudNotFoundError), "not_found"),
        (refused(ThrottledError), "throttled"),
        (unanswered(), "silence"),
    ],
)
def test_every_answer_has_its_column(error: CloudError, field: str) -> None:
    """Silence is no refusal (I11), and neither is throttling."""
    row = Row("look", State.DONE, **{field: Then.GONE})  # type: ignore[arg-type]
    assert row.on(error) is Then.GONE
    assert [row.on(other) for other in (refused(), unanswered()) if other.may_have_happened != error.may_have_happened] == [
        Then.WAIT
    ]


@pytest.mark.parametrize("operation", TABLE, ids=str)
def test_silence_ends_nothing(operation: object) -> None:
    """I9, I11: no intent is closed and nothing undone because of an answer that was lost."""
    assert {row.silence for row in TABLE[operation].values()} <= {Then.WAIT, Then.GIVE_UP}  # type: ignore[index]
