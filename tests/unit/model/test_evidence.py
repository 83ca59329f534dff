"""The reap rule: a source that does not answer keeps the attachment, and no further source turns keep into reap."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from hypothesis import assume, given
from hypothesis import strategies as st

from ipamd.model.evidence import Evidence, Presence, Verdict, judge

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PRESENCES = st.sampled_from(Presence)
EVIDENCE = st.builds(
    lambda age_s, runtime, lists, absent_s, netns, veth: Evidence(
        attached_at=NOW - timedelta(seconds=age_s),
        runtime=runtime,
        absent_list_count=lists,
        absent_since=NOW - timedelta(seconds=absent_s) if lists else None,
        netns=netns,
        host_veth=veth,
    ),
    st.integers(0, 10_000),
    PRESENCES,
    st.integers(0, 4),
    st.integers(0, 10_000),
    PRESENCES,
    PRESENCES,
)


def dead(*, age_s: int = 301, lists: int = 2) -> Evidence:
    """What every source says about a sandbox that is gone."""
    return Evidence(
        NOW - timedelta(seconds=age_s), Presence.ABSENT, lists, NOW - timedelta(seconds=20), Presence.ABSENT, Presence.ABSENT
    )


def test_what_is_gone_everywhere_is_reaped() -> None:
    """Absent twice, old enough, namespace and veth gone: the rule of docs/architecture.md, Sources, with its reasons."""
    judgement = judge(dead(), now=NOW)
    assert judgement.verdict is Verdict.REAP
    assert len(judgement.reasons) == 3


def test_the_bounds_are_five_minutes_and_two_lists() -> None:
    """One second younger or one list fewer keeps."""
    assert judge(dead(age_s=299), now=NOW).verdict is Verdict.KEEP
    assert judge(dead(lists=1), now=NOW).verdict is Verdict.KEEP


@given(EVIDENCE)
def test_no_unknown_frees_anything(evidence: Evidence) -> None:
    """Whatever the others say, one silent source keeps (I11)."""
    assume(Presence.UNKNOWN in (evidence.runtime, evidence.netns, evidence.host_veth))
    assert judge(evidence, now=NOW).verdict is Verdict.KEEP


@given(EVIDENCE)
def test_what_the_runtime_lists_is_kept(evidence: Evidence) -> None:
    """A listed sandbox is never reaped (I2)."""
    assume(evidence.runtime is Presence.PRESENT)
    assert judge(evidence, now=NOW).verdict is Verdict.KEEP


@given(
    EVIDENCE,
    st.sampled_from(["runtime", "netns", "host_veth", "lists", "age"]),
    st.sampled_from([Presence.PRESENT, Presence.UNKNOWN]),
)
def test_more_reasons_to_keep_never_reap(evidence: Evidence, stronger: str, to: Presence) -> None:
    """Monotone: a source that changes from absent to present or unknown, a younger row, a shorter absence: keep stays keep.

    Unknown and present are both reasons to keep and are not compared: an hour after CRI's last "present" it is a leak, while
    silence still keeps.
    """
    assume(judge(evidence, now=NOW).verdict is Verdict.KEEP)
    assume(getattr(evidence, stronger, None) is not Presence.UNKNOWN)
    values = {name: getattr(evidence, name) for name in Evidence.__dataclass_fields__}
    if stronger in ("runtime", "netns", "host_veth"):
        values[stronger] = to
    elif stronger == "lists":
        values |= {"absent_list_count": 0, "absent_since": None}
    else:
        values["attached_at"] = NOW
    assert judge(Evidence(**values), now=NOW).verdict is Verdict.KEEP


@given(EVIDENCE)
def test_every_verdict_has_reasons(evidence: Evidence) -> None:
    """A verdict without a reason cannot be explained (I14)."""
    assert judge(evidence, now=NOW).reasons


def test_a_leaked_namespace_is_unwired_after_an_hour() -> None:
    """Only the namespace is left, and the runtime has not listed it for an hour: veth first, then address."""
    evidence = Evidence(
        NOW - timedelta(hours=3), Presence.ABSENT, 2, NOW - timedelta(minutes=61), Presence.PRESENT, Presence.PRESENT
    )
    assert judge(evidence, now=NOW).verdict is Verdict.UNWIRE_THEN_REAP
    assert judge(evidence, now=NOW - timedelta(minutes=2)).verdict is Verdict.KEEP
