"""Steps about creating an ENI, finding it, and client tokens."""

from __future__ import annotations

from typing import Any

from ipamd.probe.calls import Answer
from ipamd.probe.checks import Verdict
from ipamd.probe.subject import RUN_TAG, NotPossible, OwnEni, Subject, addresses_of, tags_of, until_seen, verdict_of

MISSING_ENI_ID = "eni-00000000000000000"
"""Well-formed, and nobody's: EC2 draws IDs at random."""


def create(subject: Subject) -> None:
    """Create the ENI that all further steps use."""
    answer = subject.create(subject.create_params(token(subject)), "the probe's ENI")
    if not answer.ok or not answer.enis():
        raise NotPossible(f"no ENI was created: {answer}")
    entry = answer.enis()[0]
    eni_id, tags = entry["NetworkInterfaceId"], tags_of(entry)
    addresses = addresses_of(entry)
    if eni_id not in subject.owned_ids and not subject.own(_described(subject, eni_id)):
        raise NotPossible(f"{eni_id} does not carry this run's tag: it is left alone")
    subject.current = OwnEni(eni_id, entry["MacAddress"].lower(), addresses, answer.answered_s)
    observed = f"{len(addresses)} addresses with the primary one, {len(tags)} tags"
    subject.find("create-answer", len(addresses) == 2 and tags.get(RUN_TAG) == subject.run_id, observed, answer)


def replay_token(subject: Subject) -> None:
    """Send the same request again, and then another one with the same token."""
    eni = subject.eni()
    same = subject.create(subject.create_params(token(subject)), "the same token and parameters")
    ids = [entry["NetworkInterfaceId"] for entry in same.enis()]
    subject.find("token-replay", ids == [eni.eni_id], ", ".join(ids) or str(same), same)
    changed = {**subject.create_params(token(subject)), "Description": f"vpc-ipamd {subject.run_id}, changed"}
    other = subject.create(changed, "the same token, another description")
    ids = [entry["NetworkInterfaceId"] for entry in other.enis()]
    subject.find("token-mismatch", other.code == "IdempotentParameterMismatch", ", ".join(ids) or str(other), other)


def replay_after_delete(subject: Subject) -> None:
    """Send the first request again after its ENI was deleted. What it creates is deleted by the clean-up."""
    dead = sorted(subject.deleted_ids)
    if not dead:
        raise NotPossible("no ENI of the probe was deleted")
    answer = subject.create(subject.create_params(token(subject)), "the first token, after the deletion")
    ids = [entry["NetworkInterfaceId"] for entry in answer.enis()]
    if answer.is_lost:
        subject.find("token-after-delete", Verdict.UNKNOWN, str(answer), answer)
    elif not ids:
        subject.find("token-after-delete", True, f"refused: {answer}", answer)
    else:
        observed = f"the ID of the deleted ENI, {ids[0]}" if ids[0] in dead else f"a new ENI, {ids[0]}"
        subject.find("token-after-delete", ids[0] in dead, observed, answer)


def search(subject: Subject) -> None:
    """Find the ENI by tag and by instance; list with one missing ID, and without a page size."""
    eni = subject.attached()
    since_s = eni.created_s

    def shows(answer: Answer) -> bool:
        return any(entry["NetworkInterfaceId"] == eni.eni_id for entry in answer.enis())

    lag = until_seen(subject, lambda: find_by_tag(subject), shows, since_s=since_s, enough=1)
    subject.find("tag-search", verdict_of(lag), str(lag), *lag.answers)
    lag = until_seen(subject, lambda: list_instance(subject), shows, since_s=since_s, enough=1)
    subject.find("list-by-instance", verdict_of(lag), str(lag), *lag.answers)
    filters = [{"Name": "attachment.instance-id", "Values": [str(subject.identity.instance_id)]}]
    unpaged = subject.calls.ask("DescribeNetworkInterfaces", "the instance, unpaged", Filters=filters)
    subject.find("list-unpaged", unpaged.ok, f"{unpaged}, {len(unpaged.enis())} ENIs", unpaged)
    ids = [eni.eni_id, MISSING_ENI_ID]
    missing = subject.calls.ask("DescribeNetworkInterfaces", "the ENI and a missing ID", NetworkInterfaceIds=ids)
    is_whole = missing.code == "InvalidNetworkInterfaceID.NotFound"
    subject.find("list-missing-id", is_whole, f"{missing}, {len(missing.enis())} ENIs", missing)


def find_by_tag(subject: Subject) -> Answer:
    """Search the ENIs of this run, in the subnet where it creates them."""
    filters = {"subnet-id": str(subject.identity.subnet_id), f"tag:{RUN_TAG}": subject.run_id}
    return subject.calls.list_enis("the tag of this run", filters)


def list_instance(subject: Subject) -> Answer:
    """List the instance's ENIs as the daemon does."""
    identity = subject.identity
    filters = {"vpc-id": identity.vpc_id, "attachment.instance-id": str(identity.instance_id)}
    return subject.calls.list_enis("the instance", filters)


def token(subject: Subject) -> str:
    """Return the run's client token."""
    return f"vpc-ipamd-{subject.run_id}"


def _described(subject: Subject, eni_id: str) -> dict[str, Any]:
    """Describe a new ENI until EC2 shows it; an empty entry if it does not."""
    lag = until_seen(subject, lambda: subject.describe(eni_id), lambda answer: bool(answer.enis()), since_s=0.0, enough=1)
    found = lag.answers[-1].enis()
    return dict(found[0]) if found else {}
