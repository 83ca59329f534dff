"""Run the probe: delete ENIs of former runs, check the node, make dry runs, take the steps in order, and always clean up.

The default is a dry run, which changes nothing. A request to stop (Ctrl-C, SIGTERM, a lost terminal) takes effect before the next
call, so that no answer is lost, and the clean-up follows. After SIGKILL the next run finds the ENIs by their tags, before it
searches a free device index. A run creates nothing while there is an ENI of a former run that it cannot delete.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from itertools import groupby
from operator import attrgetter

from ipamd.model.errors import CloudError
from ipamd.probe.calls import Ended
from ipamd.probe.checks import CHECKS, Ask, Check
from ipamd.probe.cleanup import clean_up, clear_former
from ipamd.probe.permissions import check_permissions
from ipamd.probe.preconditions import inspect
from ipamd.probe.subject import NotPossible, ProbeResult, ProbeSubject

_log = logging.getLogger(__name__)


def run(subject: ProbeSubject) -> None:
    """Run the probe. It makes at most CHECK_CALLS + CLEANUP_CALLS calls.

    Raises: CloudError without credentials, before any call. A refusal by EC2 raises nothing; `subject` has it.
    """
    try:
        inspect(subject, clear_former(subject))
        _judge(subject, [check for check in CHECKS if check.ask is None])
        check_permissions(subject)
        if subject.is_real:
            _take_steps(subject)
    except Ended as error:
        subject.ended = str(error)
    except CloudError as error:
        if not subject.calls.answers:
            raise
        subject.ended = str(error)
    except Exception as error:  # noqa: BLE001  # a defect must not prevent the clean-up and the report
        _log.exception("the probe failed")
        subject.ended = f"{type(error).__name__}: {error}"
    finally:
        _finish(subject)


def _finish(subject: ProbeSubject) -> None:
    """Delete the ENIs of the probe, and give a verdict to every check that has none."""
    still_there = [left_over for left_over in subject.left_over if left_over.subject not in subject.deleted_ids]
    subject.left_over = still_there + clean_up(subject)
    if subject.is_real:
        _report_unknown(subject, CHECKS, subject.ended or "not reached")


def _take_steps(subject: ProbeSubject) -> None:
    """Take the steps in the order of the table. Raises: Ended."""
    for ask, checks in groupby(CHECKS, key=attrgetter("ask")):
        if ask is not None:
            _take_step(subject, ask, list(checks))


def _take_step(subject: ProbeSubject, ask: Ask, checks: Iterable[Check]) -> None:
    """Take one step, and judge its checks. A check without an observation is recorded as unknown. Raises: Ended."""
    name = getattr(ask, "__name__", str(ask))
    subject.say(name.replace("_", " "))
    try:
        try:
            ask(subject)
        finally:
            _judge(subject, checks)
    except NotPossible as error:
        _report_unknown(subject, checks, str(error))
    except Ended as error:
        _report_unknown(subject, checks, str(error))
        raise
    except Exception as error:  # noqa: BLE001  # an answer of an unknown shape must not prevent the other checks
        _log.exception("the probe failed step=%s", name)
        _report_unknown(subject, checks, f"{type(error).__name__}: {error}")


def _report_unknown(subject: ProbeSubject, checks: Iterable[Check], reason: str) -> None:
    """Record as unknown each check that has no outcome yet."""
    for check in checks:
        if check.name not in subject.findings:
            subject.findings[check.name] = ProbeResult("unknown", reason, [])


def _judge(subject: ProbeSubject, checks: Iterable[Check]) -> None:
    """Judge the observations of the checks by their `expect`, and record the results. Checks without an observation are left out."""
    for check in checks:
        observation = subject.observations.get(check.name)
        if observation is None:
            continue
        if observation.evidence is None:
            verdict = "unknown"
        elif check.expect(observation.evidence):
            verdict = "holds"
        else:
            verdict = "does not hold"
        numbers = [answer.number for answer in observation.answers]
        subject.findings[check.name] = ProbeResult(verdict, observation.observed, numbers)
