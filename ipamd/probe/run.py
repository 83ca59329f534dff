"""One run of the probe: what former ones left, the node, dry runs, the checks in order, and the clean-up in any case.

Default is the dry run: it makes no change. A request to stop (Ctrl-C, SIGTERM, a lost terminal) takes effect before the next call, not
in the middle of one, so no answer is lost by it; the clean-up follows. What SIGKILL leaves is found by the next run, by its tags,
before it looks for a place; while something is left that it cannot delete, it creates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudError
from ipamd.ports import Clock
from ipamd.probe import steps
from ipamd.probe.calls import Answer, Calls, CallsUsedUp, Stopped
from ipamd.probe.checks import CHECKS, Verdict
from ipamd.probe.cleanup import LeftOver, clean_up, delete_former, former_enis, named_former
from ipamd.probe.node import DENIED, NEEDED, Permission, Refused, inspect, permissions
from ipamd.probe.subject import Finding, Node, NotPossible, Sources, Subject

Step = Callable[[Subject], None]

STEPS: tuple[tuple[Step, tuple[str, ...]], ...] = (
    (steps.create, ("create-answer",)),
    (
        steps.attach,
        (
            "attach-after-create", "create-visible", "attach-time", "link-before-attached", "attached-addresses",
            "metadata-complete", "terminate-default", "terminate-set",
        ),
    ),
    (steps.search, ("tag-search", "list-by-instance", "list-unpaged", "list-missing-id")),
    (steps.replay_token, ("token-replay", "token-mismatch")),
    (steps.attach_again, ("attach-again", "delete-in-use")),
    (
        steps.addresses,
        ("assign-answer", "assign-visible", "assign-metadata", "assign-over-limit", "unassign-visible", "unassign-again"),
    ),
    (steps.prefix, ("prefix-answer",)),
    (steps.detach, ("detach-again", "delete-detaching", "detach-time", "link-gone")),
    (steps.delete, ("delete-visible", "delete-again")),
    (steps.replay_after_delete, ("token-after-delete",)),
)  # fmt: skip
"""In order, each with the checks that it answers; `limits-table` is answered before the first."""

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Outcome:
    """Everything that a run found. `ended`: why it ended early; empty if it did not."""

    run_id: str
    is_real: bool
    at: datetime
    identity: InstanceIdentity
    node: Node | None = None
    permissions: tuple[Permission, ...] = ()
    findings: Mapping[str, Finding] = field(default_factory=dict)
    answers: list[Answer] = field(default_factory=list)
    left_over: tuple[LeftOver, ...] = ()
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Tools:
    """What a run works with. `say`: takes progress for people; `tags`: what every ENI carries besides the probe's own tags."""

    calls: Calls
    sources: Sources
    clock: Clock
    sleep: Callable[[float], None]
    tags: Mapping[str, str]
    say: Callable[[str], None]


def run(tools: Tools, identity: InstanceIdentity, *, is_real: bool) -> Outcome:
    """Run the probe. It holds at most CHECK_CALLS + CLEANUP_CALLS calls.

    Args:
        is_real: whether to create an ENI and check; otherwise only dry runs are made.
    Raises: CloudError without credentials; then nothing was done. Never for what EC2 answers.
    """
    outcome = Outcome("", is_real, tools.clock.now(), identity, answers=tools.calls.answers)
    subject = Subject(tools.calls, tools.sources, identity, tools.clock, tools.sleep, tools.tags)
    outcome.run_id, outcome.findings = subject.run_id, subject.findings
    try:
        left_over = _clear_former(subject, outcome, tools.say)
        outcome.node, limits_answer = inspect(tools.calls, identity, left_over)
        subject.inspected = outcome.node
        _check_limits(subject, limits_answer)
        _check_permissions(subject, outcome)
        if is_real:
            _check_all(subject, tools.say)
    except (Refused, Stopped, CallsUsedUp) as error:
        outcome.ended = str(error)
    except CloudError as error:
        if not outcome.answers:
            raise
        outcome.ended = str(error)
    except Exception as error:  # noqa: BLE001  # the report and what is left are worth more than the traceback
        _log.exception("the probe failed")
        outcome.ended = f"{type(error).__name__}: {error}"
    finally:
        still_there = tuple(one for one in outcome.left_over if one.subject not in subject.deleted_ids)
        outcome.left_over = still_there + _end(subject, tools.say)
        _complete(subject, outcome)
    return outcome


def _check_limits(subject: Subject, answer: Answer) -> None:
    told, table = subject.node.limits, subject.node.table
    if told.source != "ec2":
        subject.find("limits-table", Verdict.UNKNOWN, f"EC2 did not tell: {answer}", answer)
        return
    numbers = f"EC2: {told.eni_count} ENIs with {told.ipv4_per_eni} addresses"
    in_table = f"table: {table.eni_count} with {table.ipv4_per_eni}" if table else "not in the table"
    is_same = table is not None and (told.eni_count, told.ipv4_per_eni) == (table.eni_count, table.ipv4_per_eni)
    kind = subject.node.attachment_limit_type or "not told"
    subject.find("limits-table", is_same, f"{numbers}; {in_table}; attachment limit type: {kind}", answer)


def _clear_former(subject: Subject, outcome: Outcome, say: Callable[[str], None]) -> frozenset[str]:
    """Delete what former probes left on this node; a dry run only names it. Returns: the ENIs that they left.

    Raises: Refused if EC2 does not tell what was left, or something cannot be deleted: each run would leave one more.
    """
    former = former_enis(subject)
    outcome.left_over = named_former(subject, former)
    if former and outcome.is_real:
        say(f"deleting {len(former)} left over by a former probe")
        outcome.left_over = delete_former(subject, former)
        if outcome.left_over:
            names = ", ".join(one.subject for one in outcome.left_over)
            raise Refused(f"{names}, left by a former probe, cannot be deleted, so nothing was created; delete it by hand")
    return frozenset(entry["NetworkInterfaceId"] for entry in former)


def _check_permissions(subject: Subject, outcome: Outcome) -> None:
    """Ask what IAM allows. Raises: Refused if a probe could not clean up."""
    outcome.permissions = permissions(subject)
    denied = [one.action for one in outcome.permissions if one.verdict == DENIED and one.action in NEEDED]
    if denied:
        raise Refused(f"IAM denies {', '.join(denied)}: a probe could not clean up, so nothing was created")


def _check_all(subject: Subject, say: Callable[[str], None]) -> None:
    """Take the steps in order. Raises: Stopped, CallsUsedUp."""
    for step, names in STEPS:
        say(step.__name__.replace("_", " "))
        try:
            step(subject)
        except NotPossible as error:
            _unknown(subject, names, str(error))
        except (Stopped, CallsUsedUp) as error:
            _unknown(subject, names, str(error))
            raise
        except Exception as error:  # noqa: BLE001  # an answer of a shape never seen must not prevent the other checks
            _log.exception("the probe failed in %s", step.__name__)
            _unknown(subject, names, f"{type(error).__name__}: {error}")


def _unknown(subject: Subject, names: tuple[str, ...], why: str) -> None:
    for name in names:
        if name not in subject.findings:
            subject.find(name, Verdict.UNKNOWN, why)


def _end(subject: Subject, say: Callable[[str], None]) -> tuple[LeftOver, ...]:
    """Clean up, if anything was or may have been created."""
    if not subject.owned_ids and not subject.unsettled:
        return ()
    say("cleaning up")
    left = clean_up(subject)
    say("nothing is left behind" if not left else f"left behind: {', '.join(one.subject for one in left)}")
    return left


def _complete(subject: Subject, outcome: Outcome) -> None:
    """Every check of a real run has a verdict."""
    if outcome.is_real:
        _unknown(subject, tuple(check.name for check in CHECKS), outcome.ended or "not reached")
