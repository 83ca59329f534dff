"""Delete what a probe created: this run's ENIs, and those that a former run on this node left behind.

An ENI that cannot be deleted is named with the commands that delete it; none is forgotten (I9).
"""

from __future__ import annotations

import logging

from ipamd.probe.calls import Ended
from ipamd.probe.steps import find_by_tag
from ipamd.probe.subject import NODE_TAG, RUN_TAG, LeftOver, NotPossible, Subject, tags_of

WAITS_S = (0.0, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Before each try to delete one ENI. Ours: a detach takes seconds."""

SEARCH_WAIT_S = 5.0
"""Before the second search by tag. Ours: an ENI whose Create was never answered may be shown late."""

_log = logging.getLogger(__name__)


def clean_up(subject: Subject) -> list[LeftOver]:
    """Delete every ENI of this run, if any was or may have been created. Returns: what is left, or may be.

    Never raises for what EC2 answers. Concurrency: a request to stop does not shorten it.
    """
    if not subject.owned_ids and not subject.unsettled:
        return []
    subject.say("cleaning up")
    subject.calls.begin_cleanup()
    why: dict[str, str] = {}
    try:
        was_lost = list(subject.unsettled)
        for params in was_lost:  # the token makes a replay give the same ENI
            subject.unsettled.remove(params)
            subject.create(params, "settle an unanswered Create")
        _search(subject)
        _delete_owned(subject, why)
        if was_lost:
            subject.pause(SEARCH_WAIT_S)
            _search(subject)
            _delete_owned(subject, why)
    except Exception as error:  # noqa: BLE001  # whatever fails, what is left must be named
        _log.exception("the clean-up was cut short")
        why["*"] = f"{type(error).__name__}: {error}"
    left = [_named(subject, eni_id, why.get(eni_id) or why.get("*", "")) for eni_id in sorted(_living(subject))]
    if subject.unsettled:
        region = f"aws ec2 --region {subject.identity.region}"
        find = f"{region} describe-network-interfaces --filters Name=tag:{RUN_TAG},Values={subject.run_id}"
        left.append(LeftOver("an ENI may exist", "a CreateNetworkInterface was never answered", [find]))
    subject.say("nothing is left behind" if not left else f"left behind: {', '.join(one.subject for one in left)}")
    return left


def clear_former(subject: Subject) -> list[str]:
    """Delete what former probes left behind on this node; a dry run only names it.

    The caller holds the lock that a running probe holds, so none of it is in use. Returns: the ENIs that they left. Raises: Ended if
    EC2 does not tell what was left (I11), or something cannot be deleted: each run would leave one more.
    """
    identity = subject.identity
    filters = {"subnet-id": str(identity.subnet_id), f"tag:{NODE_TAG}": str(identity.instance_id)}
    answer = subject.calls.list_enis("left-overs of former probes", filters)
    if not answer.ok:
        raise Ended(f"EC2 does not tell what former probes left: {answer}")
    former = []
    for entry in answer.enis():
        node, run_id = tags_of(entry).get(NODE_TAG), tags_of(entry).get(RUN_TAG, subject.run_id)
        is_here = (entry.get("Attachment") or {}).get("InstanceId") in (None, str(identity.instance_id))
        if node == str(identity.instance_id) and run_id != subject.run_id and is_here:
            former.append(entry["NetworkInterfaceId"])
    why = "left by a former probe; `ipamctl probe aws --run` deletes it"
    subject.left_over = [_named(subject, eni_id, why) for eni_id in former]
    if former and subject.is_real:
        subject.say(f"deleting {len(former)} left over by a former probe")
        left = []
        for eni_id in former:
            subject.owned_ids.add(eni_id)
            try:
                reason = _remove(subject, eni_id)
            finally:
                subject.owned_ids.discard(eni_id)
            if reason:
                left.append(_named(subject, eni_id, reason))
        subject.left_over = left
        if left:
            names = ", ".join(one.subject for one in left)
            raise Ended(f"{names}, left by a former probe, cannot be deleted, so nothing was created; delete it by hand")
    return former


def _search(subject: Subject) -> None:
    """Own every ENI that carries this run's tag; one that counts as deleted and still shows is deleted again."""
    for entry in find_by_tag(subject).enis():
        if subject.own(entry):
            subject.deleted_ids.discard(entry["NetworkInterfaceId"])


def _living(subject: Subject) -> set[str]:
    return subject.owned_ids - subject.deleted_ids


def _delete_owned(subject: Subject, why: dict[str, str]) -> None:
    for eni_id in sorted(_living(subject)):
        why[eni_id] = _remove(subject, eni_id)


def _remove(subject: Subject, eni_id: str) -> str:
    """Detach and delete one ENI. Returns: why it is still there; empty if it is gone."""
    answer, absent_count = None, 0
    for wait_s in WAITS_S:
        subject.pause(wait_s)
        try:
            entry = next(iter(subject.describe(eni_id).enis()), {})
            attachment = entry.get("Attachment") or {}
            if attachment and attachment.get("Status") != "detaching":
                attachment_id = str(attachment.get("AttachmentId", ""))
                answer = subject.change("DetachNetworkInterface", eni_id, AttachmentId=attachment_id)
                if not answer.is_gone:
                    continue
            answer = subject.delete(eni_id)
        except NotPossible as error:
            return str(error)
        absent_count += answer.is_gone
        # One NotFound may be of an ENI too new to be seen; our own call's success needs no second.
        if answer.ok or absent_count >= 2:
            subject.deleted_ids.add(eni_id)
            return ""
    return f"{answer.api}: {answer}" if answer else "not tried"


def _named(subject: Subject, eni_id: str, why: str) -> LeftOver:
    region = f"aws ec2 --region {subject.identity.region}"
    query = "--query 'NetworkInterfaces[].Attachment.AttachmentId' --output text"
    return LeftOver(
        eni_id,
        why or "it was not reached",
        [
            f"{region} detach-network-interface --attachment-id "
            f'"$({region} describe-network-interfaces --network-interface-ids {eni_id} {query})"',
            f"{region} wait network-interface-available --network-interface-ids {eni_id}",
            f"{region} delete-network-interface --network-interface-id {eni_id}",
        ],
    )
