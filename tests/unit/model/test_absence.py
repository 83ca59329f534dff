"""Successive looks count only when they are apart in time, and one sight starts over."""

from __future__ import annotations

from ipamd.model.absences import Absences

GAP_S = 10.0


def test_looks_that_follow_too_soon_count_as_one() -> None:
    """A burst of lists is one look."""
    absences: Absences[str] = Absences(gap_s=GAP_S)
    for now_s in (0.0, 3.0, 9.9):
        absences.record_answer(["a"], now_s=now_s)
    assert absences.count("a") == 1
    absences.record_answer(["a"], now_s=10.0)
    assert absences.count("a") == 2


def test_the_gap_is_measured_from_the_last_look_that_counted() -> None:
    """A look that is not counted does not push the next one away; the age runs on."""
    absences: Absences[str] = Absences(gap_s=GAP_S)
    for now_s in (0.0, 10.0, 19.0):
        absences.record_answer(["a"], now_s=now_s)
    assert absences.count("a") == 2
    assert absences.age_s("a", now_s=19.0) == 19.0


def test_an_object_that_is_seen_starts_over() -> None:
    """One sight ends the succession."""
    absences: Absences[str] = Absences(gap_s=GAP_S)
    absences.record_answer(["a", "b"], now_s=0.0)
    absences.record_answer(["b"], now_s=10.0)
    assert (absences.count("a"), absences.count("b")) == (0, 2)
    absences.record_answer(["a", "b"], now_s=20.0)
    assert (absences.count("a"), absences.age_s("a", now_s=25.0)) == (1, 5.0)
