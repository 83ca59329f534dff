"""One run of the probe: what former ones left, the node, dry runs, the checks in order, and the clean-up in any case.

Default is the dry run: it makes no change. A request to stop (Ctrl-C, SIGTERM, a lost terminal) takes effect before the next call, not
in the middle of one, so no answer is lost by it; the clean-up follows. What SIGKILL leaves is found by the next run, by its tags,
before it looks for a place; while something is left that it cannot delete, it creates nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from typing import Any

from ipamd.cloud.limits import from_ec2, from_table
from ipamd.model.errors import CloudError
from ipamd.probe.calls import Ended
from ipamd.probe.checks import CHECKS, STEPS, Check
from ipamd.probe.cleanup import clean_up, clear_former
from ipamd.probe.steps import MISSING_ENI_ID, list_instance
from ipamd.probe.subject import NotPossible, Permission, Subject

_log = logging.getLogger(__name__)


def run(subject: Subject) -> None:
    """Run the probe. It makes at most CHECK_CALLS + CLEANUP_CALLS calls.

    Raises: CloudError without credentials; then nothing was done. Never for what EC2 answers.
    """
    try:
        inspect(subject, clear_former(subject))
        check_permissions(subject)
        if subject.is_real:
            _take_steps(subject)
    except Ended as error:
        subject.ended = str(error)
    except CloudError as error:
        if not subject.calls.answers:
            raise
        subject.ended = str(error)
    except Exception as error:  # noqa: BLE001  # the report and what is left are worth more than the traceback
        _log.exception("the probe failed")
        subject.ended = f"{type(error).__name__}: {error}"
    finally:
        still_there = [one for one in subject.left_over if one.subject not in subject.deleted_ids]
        subject.left_over = still_there + clean_up(subject)
        if subject.is_real:  # every check has a verdict
            _unknown(subject, CHECKS, subject.ended or "not reached")


def _take_steps(subject: Subject) -> None:
    """Take the steps in order. Raises: Ended."""
    for step, checks in STEPS.items():
        subject.say(step.__name__.replace("_", " "))
        try:
            step(subject)
        except NotPossible as error:
            _unknown(subject, checks, str(error))
        except Ended as error:
            _unknown(subject, checks, str(error))
            raise
        except Exception as error:  # noqa: BLE001  # an answer of a shape never seen must not prevent the other checks
            _log.exception("the probe failed step=%s", step.__name__)
            _unknown(subject, checks, f"{type(error).__name__}: {error}")


def _unknown(subject: Subject, checks: Iterable[Check], why: str) -> None:
    for check in checks:
        if check.name not in subject.findings:
            subject.find(check.name, None, why)


# What the probe must know before it may start: the node's limits, a free place for one more ENI, and what IAM allows.


def inspect(subject: Subject, left_over: Collection[str]) -> None:
    """Ask EC2 for the type's limits and for what is attached: two calls.

    Args:
        left_over: ENIs of former probes. Their places are free, or will be: a Describe that lags may still show them attached.
    Raises: Ended if EC2 does not tell, or no place is free.
    """
    identity, type_name = subject.identity, subject.identity.instance_type
    answer = subject.calls.ask("DescribeInstanceTypes", type_name, InstanceTypes=[type_name])
    told, table = from_ec2(type_name, answer.body), from_table(type_name)
    limits = told or table
    if limits is None:
        raise Ended(f"the limits of {type_name} are not known: {answer}")
    listed = list_instance(subject)
    if str(identity.primary_eni_id) not in listed.eni_ids():
        raise Ended(f"EC2 does not show the primary ENI {identity.primary_eni_id}: {listed}; what is attached is not known")
    attachments = [entry.get("Attachment") for entry in listed.enis() if entry["NetworkInterfaceId"] not in left_over]
    # Places on the default card.
    taken = {int(one.get("DeviceIndex", 0)) for one in attachments if one and not one.get("NetworkCardIndex", 0)}
    free = [index for index in range(1, limits.eni_count) if index not in taken]
    if len(taken) >= limits.eni_count or not free:
        raise Ended(f"no place is free: {len(taken)} of {limits.eni_count} ENIs are attached; use a node with a free place")
    subject.device_index = free[-1]  # the highest: the daemon takes the lowest
    subject.address_limit = limits.ipv4_per_eni
    types = answer.body.get("InstanceTypes") or [{}]
    subject.attachment_limit_type = str(types[0].get("EbsInfo", {}).get("AttachmentLimitType", ""))
    if told is None:
        subject.find("limits-table", None, f"EC2 did not tell: {answer}", answer)
        return
    numbers = f"EC2: {told.eni_count} ENIs with {told.ipv4_per_eni} addresses"
    in_table = f"table: {table.eni_count} with {table.ipv4_per_eni}" if table else "not in the table"
    is_same = table is not None and (told.eni_count, told.ipv4_per_eni) == (table.eni_count, table.ipv4_per_eni)
    kind = subject.attachment_limit_type or "not told"
    subject.find("limits-table", is_same, f"{numbers}; {in_table}; attachment limit type: {kind}", answer)


# Ask EC2 by dry runs which of the probe's calls IAM allows. Nothing is changed.
#
# Calls about an ENI name one that does not exist, so that an endpoint that ignores DryRun changes nothing either. EC2 has no dry
# run of the calls that assign and unassign.
# Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_AssignPrivateIpAddresses.html.


ALLOWED, DENIED, NOT_TOLD = "allowed", "denied", "not told"

DRY_RUN_VERDICTS = {
    "DryRunOperation": ALLOWED,
    "UnauthorizedOperation": DENIED,
    "AccessDenied": DENIED,
    "AccessDeniedException": DENIED,
}
"""By EC2's code; another tells nothing."""

WITHOUT_DRY_RUN = tuple(f"{verb}{what}Addresses" for what in ("PrivateIp", "Ipv6") for verb in ("Assign", "Unassign"))

NEEDED = frozenset({"CreateNetworkInterface", "DetachNetworkInterface", "DeleteNetworkInterface"})
"""Without these a probe could not clean up, so it does not start."""

MISSING_ATTACHMENT_ID = "eni-attach-00000000000000000"


def check_permissions(subject: Subject) -> None:
    """Make one dry run for each call that has one. Raises: Ended if a probe could not clean up."""
    instance_id = str(subject.identity.instance_id)
    attachment = {"AttachmentId": MISSING_ATTACHMENT_ID, "DeleteOnTermination": True}
    runs: tuple[tuple[str, dict[str, Any]], ...] = (
        ("AttachNetworkInterface", {"NetworkInterfaceId": MISSING_ENI_ID, "InstanceId": instance_id, "DeviceIndex": 1}),
        ("DeleteNetworkInterface", {"NetworkInterfaceId": MISSING_ENI_ID}),
        ("DetachNetworkInterface", {"AttachmentId": MISSING_ATTACHMENT_ID}),
        ("ModifyNetworkInterfaceAttribute", {"NetworkInterfaceId": MISSING_ENI_ID, "Attachment": attachment}),
    )
    answers = [subject.create({**subject.create_params(suffix="-dry"), "DryRun": True}, "dry run")]
    answers += [subject.calls.ask(api, "dry run", **params, DryRun=True) for api, params in runs]
    for answer in answers:
        verdict = DRY_RUN_VERDICTS.get(answer.code, NOT_TOLD)
        told = "the endpoint ignores DryRun" if answer.ok else str(answer)
        subject.permissions.append(Permission(answer.api, verdict, told))
    subject.permissions += [Permission(api, NOT_TOLD, "EC2 has no dry run of it") for api in WITHOUT_DRY_RUN]
    denied = [one.action for one in subject.permissions if one.verdict == DENIED and one.action in NEEDED]
    if denied:
        raise Ended(f"IAM denies {', '.join(denied)}: a probe could not clean up, so nothing was created")
