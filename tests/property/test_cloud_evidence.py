"""No sequence of lagging, partial or doubtful answers makes something absent that a pair of complete answers did not deny."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import (
    LOOK_GAP_S,
    MASS_LOSS_AGE_S,
    RECENT_S,
    CloudEvidence,
    CloudKey,
    Witnesses,
    missing,
    plausibility,
)
from ipamd.model.ids import EniId
from tests.unit.model.test_cloud_evidence import PRIMARY, address, eni_id, mac, recorded, shown

ENI_COUNT, PER_ENI = 4, 3
KNOWN = recorded(ENI_COUNT, per_eni=PER_ENI, wired=6)
KEYS: list[CloudKey] = [*KNOWN.enis, *KNOWN.addresses]
EVERYTHING = tuple(shown(n, *range(2, 2 + PER_ENI)) for n in range(ENI_COUNT))


@dataclass(frozen=True)
class Look:
    """One Describe: so long after the one before, with what it tells and what is recent then."""

    after_s: float
    answer: tuple[DescribedEni, ...]
    recent: frozenset[CloudKey]
    witnesses: Witnesses


@st.composite
def answers(draw: st.DrawFn) -> tuple[DescribedEni, ...]:
    """Any part of the truth: the primary ENI may be missing too."""
    numbers = draw(st.sets(st.integers(0, ENI_COUNT - 1)) | st.just(set(range(ENI_COUNT))))
    kept = {n: draw(st.sets(st.integers(2, 1 + PER_ENI)) | st.just({2, 3, 4})) for n in sorted(numbers)}
    return tuple(shown(n, *last) for n, last in kept.items())


LOOKS = st.lists(
    st.builds(
        Look,
        after_s=st.sampled_from([0.0, 1.0, LOOK_GAP_S - 0.5, LOOK_GAP_S, 60.0, MASS_LOSS_AGE_S]),
        answer=st.just(EVERYTHING) | answers(),
        recent=st.frozensets(st.sampled_from(KEYS), max_size=2),
        witnesses=st.builds(
            Witnesses,
            links=st.none() | st.frozensets(st.sampled_from([mac(n) for n in range(ENI_COUNT)])),
            metadata=st.none() | st.frozensets(st.sampled_from([address(n, m) for n in range(ENI_COUNT) for m in range(1, 5)])),
        ),
    ),
    min_size=1,
    max_size=12,
)


@given(LOOKS)
def test_absent_means_denied_twice_apart_in_time(looks: list[Look]) -> None:
    """What is concluded to be gone was missing, without a break, from two answers with the primary ENI, at least a gap apart, and was
    not recently changed by us; if fewer than two of them were plausible, then for ten minutes and with a witness (I2, I8, I11)."""
    evidence, now_s = CloudEvidence(), 0.0
    runs: dict[CloudKey, list[tuple[float, bool]]] = {key: [] for key in KEYS}  # time and plausibility of each look without it
    for look in looks:
        now_s += look.after_s
        weighed = evidence.weigh(
            look.answer, KNOWN, recent=dict.fromkeys(look.recent, 9.0), witnesses=look.witnesses, now_s=now_s
        )
        if not any(eni.eni_id == PRIMARY for eni in look.answer):
            assert not weighed.absent
            continue
        is_plausible = not plausibility(look.answer, KNOWN, recent=look.recent) or not weighed.implausible
        gone = missing(look.answer, KNOWN) - look.recent
        for key in KEYS:
            runs[key] = [*runs[key], (now_s, is_plausible)] if key in gone else []
        for key in weighed.absent:
            run = runs[key]
            assert len(run) >= 2
            assert run[-1][0] - run[0][0] >= LOOK_GAP_S
            believed = [at for at, plausible in run if plausible]
            if not believed or believed[-1] - believed[0] < LOOK_GAP_S:
                assert run[-1][0] - run[0][0] >= MASS_LOSS_AGE_S
                assert look.witnesses.links is not None or look.witnesses.metadata is not None
        assert not weighed.absent & weighed.doubted


@given(
    lags=st.lists(st.floats(0, RECENT_S - 1), min_size=1, max_size=20),
    pauses=st.lists(st.floats(0, 120), min_size=20, max_size=20),
)
def test_lag_behind_our_own_call_loses_nothing(lags: list[float], pauses: list[float]) -> None:
    """We attached an ENI and an address at second 0; every answer is up to five minutes old: neither is ever doubted or absent."""
    evidence, now_s = CloudEvidence(), 0.0
    ours: frozenset[CloudKey] = frozenset({eni_id(3), address(0, 2)})
    before = (shown(0, 3, 4), *EVERYTHING[1:3])
    for lag_s, pause_s in zip(lags, pauses, strict=False):
        now_s += pause_s
        recent = dict.fromkeys(ours, RECENT_S - now_s) if now_s < RECENT_S else {}
        answer = before if now_s - lag_s < 0 else EVERYTHING
        weighed = evidence.weigh(answer, KNOWN, recent=recent, witnesses=Witnesses(), now_s=now_s)
        assert not (weighed.absent | weighed.doubted) & ours
        assert not weighed.implausible


@given(st.sets(st.sampled_from([eni_id(n) for n in range(1, ENI_COUNT)]), max_size=2))
def test_what_is_really_gone_is_gone_after_two_looks(gone: set[EniId]) -> None:
    """Up to half of the ENIs are detached by hand: the second complete answer settles it, whatever is shown stays."""
    evidence = CloudEvidence()
    answer = [eni for eni in EVERYTHING if eni.eni_id not in gone]
    known = recorded(ENI_COUNT, per_eni=PER_ENI)
    first = evidence.weigh(answer, known, recent={}, witnesses=Witnesses(), now_s=0.0)
    second = evidence.weigh(answer, known, recent={}, witnesses=Witnesses(), now_s=first.again_s or 0.0)
    assert (first.absent, first.doubted) == (frozenset(), gone)
    assert (second.absent, second.doubted) == (gone, frozenset())
