"""Delete the ENIs that probes created: the ENIs of this run, and the ENIs that former runs on this node left.

An ENI that cannot be deleted is reported with the commands that delete it, so that it is not forgotten (I9).
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from ipamd.probe.calls import Ended
from ipamd.probe.creation_steps import find_by_tag
from ipamd.probe.subject import NODE_TAG, RUN_TAG, LeftOver, NotPossible, ProbeSubject, tags_of

WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Waits in seconds before each try to detach and delete an ENI. Ours: together they are longer than a detach, which takes seconds."""

SEARCH_WAIT_S = 5.0
"""Pause in seconds before the second search by tag. Ours: an ENI whose Create was never answered may be shown late."""

_log = logging.getLogger(__name__)


def clean_up(subject: ProbeSubject) -> list[LeftOver]:
    """Delete every ENI of this run, if one was or may have been created. It raises nothing, and a request to stop does not shorten it.

    Returns: the ENIs that are left or may be left.
    """
    if not subject.owned_ids and not subject.unsettled:
        return []
    subject.say("cleaning up")
    subject.calls.begin_cleanup()
    reasons: dict[str, str] = {}
    try:
        unanswered = list(subject.unsettled)
        for params in unanswered:  # the token makes EC2 answer a replay with the same ENI
            subject.unsettled.remove(params)
            subject.create(params, "settle an unanswered Create")
        _own_tagged(subject)
        _delete_owned(subject, reasons)
        if unanswered:
            subject.pause(SEARCH_WAIT_S)
            _own_tagged(subject)
            _delete_owned(subject, reasons)
    except Exception as error:  # noqa: BLE001  # the ENIs that are left must be named after any failure
        _log.exception("the clean-up was cut short")
        reasons["*"] = f"{type(error).__name__}: {error}"
    left_overs = []
    for eni_id in sorted(_living(subject)):
        left_overs.append(_left_over(subject, eni_id, reasons.get(eni_id) or reasons.get("*", "")))
    if subject.unsettled:
        aws_ec2 = f"aws ec2 --region {subject.identity.region}"
        find = f"{aws_ec2} describe-network-interfaces --filters Name=tag:{RUN_TAG},Values={subject.run_id}"
        left_overs.append(LeftOver("an ENI may exist", "a CreateNetworkInterface was never answered", [find]))
    if left_overs:
        subject.say(f"left behind: {_subjects(left_overs)}")
    else:
        subject.say("nothing is left behind")
    return left_overs


def clear_former(subject: ProbeSubject) -> list[str]:
    """Delete the ENIs that former probes left on this node; a dry run only lists them.

    The caller holds the lock of the node's probes, so no running probe uses these ENIs.
    Returns: their IDs. Raises: Ended if EC2 does not list them (I11), or if one cannot be deleted, because each further run could
    leave one more.
    """
    identity = subject.identity
    filters = {"subnet-id": str(identity.subnet_id), f"tag:{NODE_TAG}": str(identity.instance_id)}
    answer = subject.calls.list_enis("left-overs of former probes", filters)
    if not answer.ok:
        raise Ended(f"EC2 does not tell what former probes left: {answer}")
    former = [eni["NetworkInterfaceId"] for eni in answer.enis() if _is_of_former_run(subject, eni)]
    reason = "left by a former probe; `ipamctl probe aws --run` deletes it"
    subject.left_over = [_left_over(subject, eni_id, reason) for eni_id in former]
    if former and subject.is_real:
        subject.say(f"deleting {len(former)} left over by a former probe")
        subject.left_over = _delete_former(subject, former)
        if subject.left_over:
            names = _subjects(subject.left_over)
            raise Ended(f"{names}, left by a former probe, cannot be deleted, so nothing was created; delete it by hand")
    return former


def _is_of_former_run(subject: ProbeSubject, eni: Mapping[str, Any]) -> bool:
    """Whether the tags name this node and another run. An ENI that is attached to another instance is not ours to delete."""
    instance_id = str(subject.identity.instance_id)
    tags = tags_of(eni)
    is_elsewhere = (eni.get("Attachment") or {}).get("InstanceId") not in (None, instance_id)
    return tags.get(NODE_TAG) == instance_id and tags.get(RUN_TAG, subject.run_id) != subject.run_id and not is_elsewhere


def _delete_former(subject: ProbeSubject, former: Iterable[str]) -> list[LeftOver]:
    """Delete ENIs of former runs. An ENI counts as owned only while this function deletes it.

    Returns: the ENIs that could not be deleted.
    """
    left_overs = []
    for eni_id in former:
        subject.owned_ids.add(eni_id)
        try:
            reason = _remove(subject, eni_id)
        finally:
            subject.owned_ids.discard(eni_id)
        if reason:
            left_overs.append(_left_over(subject, eni_id, reason))
    return left_overs


def _own_tagged(subject: ProbeSubject) -> None:
    """Record every ENI with this run's tag as owned. If EC2 still shows an ENI that was deleted, it will be deleted again."""
    for eni in find_by_tag(subject).enis():
        if subject.record_owned(eni):
            subject.deleted_ids.discard(eni["NetworkInterfaceId"])


def _living(subject: ProbeSubject) -> set[str]:
    return subject.owned_ids - subject.deleted_ids


def _delete_owned(subject: ProbeSubject, reasons: dict[str, str]) -> None:
    for eni_id in sorted(_living(subject)):
        reasons[eni_id] = _remove(subject, eni_id)


def _remove(subject: ProbeSubject, eni_id: str) -> str:
    """Detach and delete one ENI. Returns: why it may still exist; empty if it is gone."""
    answer = None
    absent_count = 0
    for wait_s in WAITS_S:
        subject.pause(wait_s)
        try:
            eni = next(iter(subject.describe(eni_id).enis()), {})
            attachment = eni.get("Attachment") or {}
            if attachment and attachment.get("Status") != "detaching":
                attachment_id = str(attachment.get("AttachmentId", ""))
                answer = subject.change("DetachNetworkInterface", eni_id, AttachmentId=attachment_id)
                if not answer.is_gone:
                    continue
            answer = subject.delete(eni_id)
        except NotPossible as error:
            return str(error)
        absent_count += answer.is_gone
        # A single NotFound may mean that the ENI is too new to be seen. Success of our own call needs no confirmation.
        if answer.ok or absent_count >= 2:
            subject.deleted_ids.add(eni_id)
            return ""
    if answer is None:
        return "not tried"
    return f"{answer.api}: {answer}"


def _subjects(left_overs: Iterable[LeftOver]) -> str:
    return ", ".join(left_over.subject for left_over in left_overs)


def _left_over(subject: ProbeSubject, eni_id: str, reason: str) -> LeftOver:
    """Describe an ENI that is left, with the commands that delete it."""
    aws_ec2 = f"aws ec2 --region {subject.identity.region}"
    query = "--query 'NetworkInterfaces[].Attachment.AttachmentId' --output text"
    return LeftOver(
        eni_id,
        reason or "it was not reached",
        [
            f"{aws_ec2} detach-network-interface --attachment-id "
            f'"$({aws_ec2} describe-network-interfaces --network-interface-ids {eni_id} {query})"',
            f"{aws_ec2} wait network-interface-available --network-interface-ids {eni_id}",
            f"{aws_ec2} delete-network-interface --network-interface-id {eni_id}",
        ],
    )
