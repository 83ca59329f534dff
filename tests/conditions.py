"""Problems for tests that are about conditions as such, and what tests ask of conditions: their codes, never their sentences."""

from __future__ import annotations

from ipamd.core.health import Health
from ipamd.model.conditions import ConditionCode, Problem, problem


def failed(cause: object) -> Problem:
    """Work failed for a cause, and is tried again."""
    return problem(ConditionCode.LOOP_FAILED, cause=cause)


def problems(health: Health, subject: str = "") -> tuple[Problem, ...]:
    """The problems of a condition, or of all of them; none if there is no such condition."""
    every = health.conditions_since()
    conditions = [condition for name, condition in every.items() if subject in ("", name)]
    return tuple(each for condition in conditions for each in condition.problems)


def codes(health: Health, subject: str = "") -> set[ConditionCode]:
    """The kinds of the problems of a condition, or of all of them; none if there is no such condition."""
    return {each.code for each in problems(health, subject)}
