"""Functions that judge the evidence of a check. Pure. The table in `checks.py` names one function for each check.

A function returns whether the evidence confirms the assumption. The evidence is EC2's answer to a call, the time in which a change
became visible (`Lag`), or a boolean, if the step compared several answers and judged them itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ipamd.probe.calls import CallAnswer
from ipamd.probe.subject import LONGEST_S, Lag

Expect = Callable[[Any], bool]
"""Judges evidence of the kind that the step of the check records."""


def claimed(claim: bool) -> bool:
    """Expect that the step found the assumption confirmed."""
    return claim


def off(flag: bool) -> bool:
    """Expect that a flag in EC2's answer is off."""
    return not flag


def at_once(lag: Lag) -> bool:
    """Expect that every answer showed the change."""
    return lag.is_prompt


def in_time(lag: Lag) -> bool:
    """Expect that the change became visible before the daemon would have given up waiting."""
    return lag.seen_s is not None and lag.seen_s < LONGEST_S


def accepted(answer: CallAnswer) -> bool:
    """Expect that EC2 accepts the call."""
    return answer.ok


def in_use(answer: CallAnswer) -> bool:
    """Expect a refusal because the object is in use."""
    return answer.is_busy


def is_not_found(answer: CallAnswer) -> bool:
    """Expect a refusal because the object is gone."""
    return answer.is_gone


def accepted_or_in_use(answer: CallAnswer) -> bool:
    """Expect success, or a refusal because the object is in use."""
    return answer.ok or answer.is_busy


def accepted_or_ended(answer: CallAnswer) -> bool:
    """Expect success, or a refusal because the attachment is gone or going."""
    return answer.ok or answer.is_gone or answer.code == "IncorrectState"


def not_assigned(answer: CallAnswer) -> bool:
    """Expect a refusal because the address is not on the ENI, in either of EC2's wordings."""
    return answer.is_gone or (answer.code == "InvalidParameterValue" and "not assigned to interface" in answer.message)


def refused_with(code: str) -> Expect:
    """Expect a refusal with a code."""
    return lambda answer: bool(answer.code == code)
