"""The one verdict: its table row by row, and what must hold for every evidence (I2, I11)."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ipamd.model.evidence import Evidence, Presence, Record, SandboxVerdict, judge

PRESENT, ABSENT, UNKNOWN = Presence.PRESENT, Presence.ABSENT, Presence.UNKNOWN
KEEP, REAP, UNWIRE, ADOPT, QUARANTINE = SandboxVerdict
FREEING = (REAP, UNWIRE)
WITNESSES = ("runtime", "netns", "host_veth")
HELD = (Record.QUARANTINED, Record.MISSING)

DEAD = Evidence(Record.RECORDED, ABSENT, ABSENT, ABSENT, absent_look_count=2, absent_age_s=20.0, age_s=301.0)
"""A recorded sandbox of which every witness says that it is gone."""

LEFT_BEHIND = replace(DEAD, age_s=21.0, is_netns_proven_gone=True, links=ABSENT)
"""A recorded sandbox that is young, and proven gone: its runtime gave it up when a chained plugin failed."""

LEAKED = replace(DEAD, netns=PRESENT, host_veth=PRESENT, absent_age_s=3600.0, age_s=3700.0)
"""A recorded sandbox that the runtime has forgotten for an hour; namespace and veth are there."""

WIRED = Evidence(Record.QUARANTINED, ABSENT, PRESENT, PRESENT, absent_look_count=1)
"""A live veth without a record, whose sandbox the last list lacks."""

EVIDENCE = st.builds(
    Evidence,
    record=st.sampled_from(Record),
    runtime=st.sampled_from(Presence),
    netns=st.sampled_from(Presence),
    host_veth=st.sampled_from(Presence),
    absent_look_count=st.integers(0, 4),
    absent_age_s=st.sampled_from([0.0, 20.0, 3599.0, 3600.0, 1e6]),
    age_s=st.sampled_from([0.0, 299.0, 300.0, 1e6]),
    is_declared_gone=st.booleans(),
    is_runtimes_own=st.booleans(),
    is_netns_proven_gone=st.booleans(),
    links=st.sampled_from(Presence),
)

TABLE = [
    ("gone everywhere", DEAD, REAP),
    ("one second too young", replace(DEAD, age_s=299.0), KEEP),
    ("one list too few", replace(DEAD, absent_look_count=1), KEEP),
    ("the runtime lists it", replace(DEAD, runtime=PRESENT), KEEP),
    ("the runtime is silent", replace(DEAD, runtime=UNKNOWN), KEEP),
    ("its namespace is there", replace(DEAD, netns=PRESENT), KEEP),
    ("its namespace is not known", replace(DEAD, netns=UNKNOWN), KEEP),
    ("its veth is there", replace(DEAD, host_veth=PRESENT), KEEP),
    ("its veth is not known", replace(DEAD, host_veth=UNKNOWN), KEEP),
    ("GC lacks it, and so does one list", replace(DEAD, absent_look_count=0, is_declared_gone=True), REAP),
    ("GC lacks it, and it is young", replace(DEAD, age_s=61.0, is_declared_gone=True), KEEP),
    ("GC lacks it, its namespace is there", replace(DEAD, netns=PRESENT, is_declared_gone=True), KEEP),
    ("GC lacks it, its veth is there", replace(DEAD, host_veth=PRESENT, is_declared_gone=True), KEEP),
    ("GC lacks it, CRI lists it", replace(DEAD, runtime=PRESENT, is_declared_gone=True), KEEP),
    ("young, and proven gone", LEFT_BEHIND, REAP),
    ("proven gone, but in one list", replace(LEFT_BEHIND, absent_look_count=1), KEEP),
    ("proven gone, but GC stands for a list", replace(LEFT_BEHIND, absent_look_count=1, is_declared_gone=True), KEEP),
    ("proven gone, but the runtime lists it", replace(LEFT_BEHIND, runtime=PRESENT), KEEP),
    ("proven gone, but the runtime is silent", replace(LEFT_BEHIND, runtime=UNKNOWN), KEEP),
    ("proven gone, but outside CRI", replace(LEFT_BEHIND, is_runtimes_own=False), KEEP),
    ("young, its path absent where no mount appears", replace(LEFT_BEHIND, is_netns_proven_gone=False), KEEP),
    ("young, its namespace is there", replace(LEFT_BEHIND, netns=PRESENT), KEEP),
    ("young, its namespace is not known", replace(LEFT_BEHIND, netns=UNKNOWN), KEEP),
    ("young, its veth is there", replace(LEFT_BEHIND, host_veth=PRESENT), KEEP),
    ("young, another link is there", replace(LEFT_BEHIND, links=PRESENT), KEEP),
    ("young, its links are not known", replace(LEFT_BEHIND, links=UNKNOWN), KEEP),
    ("forgotten for an hour", LEAKED, UNWIRE),
    ("forgotten for less than an hour", replace(LEAKED, absent_age_s=3599.0), KEEP),
    ("forgotten for an hour, in one list", replace(LEAKED, absent_look_count=1), KEEP),
    ("forgotten for an hour, made anew", replace(LEAKED, age_s=10.0), KEEP),
    ("forgotten, namespace unknown", replace(LEAKED, netns=UNKNOWN), KEEP),
    ("outside CRI, alive", replace(LEAKED, is_runtimes_own=False), KEEP),
    ("outside CRI, alive, and GC lacks it", replace(LEAKED, is_runtimes_own=False, is_declared_gone=True), KEEP),
    ("outside CRI, gone", replace(DEAD, is_runtimes_own=False), REAP),
    ("quarantined, not listed", WIRED, KEEP),
    ("quarantined, the runtime is silent", replace(WIRED, runtime=UNKNOWN), KEEP),
    ("quarantined, listed", replace(WIRED, runtime=PRESENT), ADOPT),
    ("quarantined, no veth any more", replace(WIRED, netns=ABSENT, host_veth=ABSENT), REAP),
    ("quarantined, no veth, runtime silent", replace(WIRED, runtime=UNKNOWN, netns=ABSENT, host_veth=ABSENT), REAP),
    ("quarantined, the kernel silent", replace(WIRED, netns=UNKNOWN, host_veth=UNKNOWN), KEEP),
    ("quarantined, forgotten for an hour", replace(WIRED, absent_look_count=2, absent_age_s=3600.0), UNWIRE),
    ("no row, listed", replace(WIRED, record=Record.MISSING, runtime=PRESENT), ADOPT),
    ("no row, not listed", replace(WIRED, record=Record.MISSING), QUARANTINE),
    ("no row, the runtime is silent", replace(WIRED, record=Record.MISSING, runtime=UNKNOWN), QUARANTINE),
    ("no row, forgotten for an hour", replace(WIRED, record=Record.MISSING, absent_look_count=2, absent_age_s=3600.0), UNWIRE),
    ("an ADD died", replace(WIRED, record=Record.NEVER_PROMISED), UNWIRE),
    ("an ADD died, the runtime is silent", replace(WIRED, record=Record.NEVER_PROMISED, runtime=UNKNOWN), UNWIRE),
    ("an ADD died, the runtime lists it", replace(WIRED, record=Record.NEVER_PROMISED, runtime=PRESENT), ADOPT),
    ("its DEL was done", replace(WIRED, record=Record.DELETED), UNWIRE),
    ("its DEL was done, and it is listed", replace(WIRED, record=Record.DELETED, runtime=PRESENT), UNWIRE),
]


@pytest.mark.parametrize(("evidence", "verdict"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_the_table(evidence: Evidence, verdict: SandboxVerdict) -> None:
    """Each row of the table in the module and in docs/datastore.md, with its bounds."""
    assert judge(evidence).verdict is verdict


@given(EVIDENCE)
def test_no_unknown_frees_a_recorded_sandbox(evidence: Evidence) -> None:
    """Whatever the others say, one silent witness keeps (I11)."""
    assume(UNKNOWN in (evidence.runtime, evidence.netns, evidence.host_veth))
    assert judge(replace(evidence, record=Record.RECORDED)).verdict is KEEP


@given(EVIDENCE, st.sampled_from(HELD))
def test_no_unknown_frees_what_is_wired_for_somebody(evidence: Evidence, record: Record) -> None:
    """A silent kernel keeps a held address; a silent runtime keeps it as long as anything is wired (I11)."""
    if evidence.host_veth is not ABSENT and UNKNOWN in (evidence.runtime, evidence.host_veth):
        assert judge(replace(evidence, record=record)).verdict not in FREEING


@given(EVIDENCE)
def test_what_the_runtime_lists_is_never_freed(evidence: Evidence) -> None:
    """A listed sandbox is kept or adopted while it is wired, unless its own DEL was done (I2)."""
    assume(evidence.record is not Record.DELETED)
    assume(evidence.record is Record.RECORDED or evidence.host_veth is not ABSENT)
    assert judge(replace(evidence, runtime=PRESENT)).verdict not in FREEING


@given(EVIDENCE, st.sampled_from(WITNESSES))
def test_a_witness_that_says_present_never_turns_keep_into_freeing(evidence: Evidence, witness: str) -> None:
    """Monotone: whoever was kept is kept when one more witness says that something is there (I2).

    From absent: from unknown the silence itself was the reason, and an hour after CRI's last word a thing that is there is a leak.
    """
    assume(judge(evidence).verdict not in FREEING)
    assume(getattr(evidence, witness) is not UNKNOWN)
    assert judge(replace(evidence, **{witness: PRESENT})).verdict not in FREEING


@given(EVIDENCE, st.sampled_from(WITNESSES))
def test_a_witness_that_falls_silent_never_turns_keep_into_freeing(evidence: Evidence, witness: str) -> None:
    """Losing a source is no evidence (I11). The remainder of an ADD that died needs no other source than a whole datastore (I5)."""
    assume(evidence.record is not Record.NEVER_PROMISED)
    assume(judge(evidence).verdict not in FREEING)
    assert judge(replace(evidence, **{witness: UNKNOWN})).verdict not in FREEING


@given(EVIDENCE)
def test_younger_or_shorter_absent_is_never_freed_instead(evidence: Evidence) -> None:
    """A younger row, fewer lists, a shorter absence, no declaration, an owner outside CRI: kept stays kept."""
    assume(judge(evidence).verdict not in FREEING)
    weaker = [
        {"age_s": 0.0},
        {"absent_look_count": 0, "absent_age_s": 0.0},
        {"absent_age_s": 0.0},
        {"is_declared_gone": False},
        {"is_runtimes_own": False},
        {"is_netns_proven_gone": False},
        {"links": PRESENT},
        {"links": UNKNOWN},
    ]
    for change in weaker:
        assert judge(replace(evidence, **change)).verdict not in FREEING  # type: ignore[arg-type]


@given(EVIDENCE)
def test_a_young_sandbox_is_reaped_only_with_every_proof(evidence: Evidence) -> None:
    """Before five minutes each of the proofs is needed: none stands for another (I2, I11)."""
    young = replace(evidence, record=Record.RECORDED, age_s=299.0)
    if judge(young).verdict in FREEING:
        assert judge(young).verdict is REAP
        assert (young.runtime, young.netns, young.host_veth, young.links) == (ABSENT,) * 4
        assert young.absent_look_count >= 2
        assert young.is_netns_proven_gone
        assert young.is_runtimes_own


@given(EVIDENCE)
def test_a_living_thing_outside_cri_is_never_freed(evidence: Evidence) -> None:
    """Its namespace or veth is there, and CRI never knew it: kept, whatever the hour (docs/adr/0001)."""
    assume(PRESENT in (evidence.netns, evidence.host_veth))
    assert judge(replace(evidence, record=Record.RECORDED, is_runtimes_own=False)).verdict is KEEP


@given(EVIDENCE)
def test_gc_alone_frees_nothing_that_is_there(evidence: Evidence) -> None:
    """The list of valid attachments can only name absence: with namespace or veth there, it changes no verdict (I2)."""
    assume(PRESENT in (evidence.netns, evidence.host_veth))
    with_list, without = (judge(replace(evidence, is_declared_gone=value)).verdict for value in (True, False))
    assert with_list is without


@given(EVIDENCE)
def test_every_verdict_has_reasons(evidence: Evidence) -> None:
    """A verdict without a reason cannot be explained (I14)."""
    judgement = judge(evidence)
    assert judgement.reasons
    assert judgement.text


@given(EVIDENCE)
def test_verdicts_fit_the_record(evidence: Evidence) -> None:
    """Only what has no record is adopted or quarantined."""
    if judge(evidence).verdict in (ADOPT, QUARANTINE):
        assert evidence.record not in (Record.RECORDED, Record.DELETED)
