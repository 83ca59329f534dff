"""Steps of a probe that create an ENI, find it, and repeat requests with its client token.

Each step calls EC2, and records its observations in the subject.
"""

from __future__ import annotations

from functools import partial

from ipamd.probe.calls import CallAnswer
from ipamd.probe.subject import RUN_TAG, NotPossible, OwnEni, ProbeSubject, addresses_of, tags_of, until_seen

MISSING_ENI_ID = "eni-00000000000000000"
"""A well-formed ID that no ENI has: EC2 draws IDs at random."""


def create(subject: ProbeSubject) -> None:
    """Create the ENI that all further steps use."""
    answer = subject.create(subject.create_params(), "the probe's ENI")
    if not answer.enis():
        raise NotPossible(f"no ENI was created: {answer}")
    described = answer.enis()[0]
    eni_id = described["NetworkInterfaceId"]
    tags = tags_of(described)
    addresses = addresses_of(described)
    if eni_id not in subject.owned_ids:
        describe = partial(subject.describe, eni_id)
        lag = until_seen(subject, lambda answer: bool(answer.enis()), since_s=0.0, ask=describe, enough=1)
        if not any(map(subject.record_owned, lag.answers[-1].enis())):
            raise NotPossible(f"{eni_id} does not carry this run's tag: it is left alone")
    subject.current = OwnEni(eni_id, described["MacAddress"].lower(), addresses, answer.answered_s)
    observed = f"{len(addresses)} addresses with the primary one, {len(tags)} tags"
    subject.observe("create-answer", len(addresses) == 2 and tags.get(RUN_TAG) == subject.run_id, observed, answer)


def replay_token(subject: ProbeSubject) -> None:
    """Send the same request again, and then another one with the same token."""
    eni = subject.eni()
    replay = subject.create(subject.create_params(), "the same token and parameters")
    subject.observe("token-replay", replay.eni_ids() == [eni.eni_id], ", ".join(replay.eni_ids()) or str(replay), replay)
    changed = {**subject.create_params(), "Description": f"vpc-ipamd {subject.run_id}, changed"}
    other = subject.create(changed, "the same token, another description")
    subject.observe("token-mismatch", other, ", ".join(other.eni_ids()))


def replay_after_delete(subject: ProbeSubject) -> None:
    """Send the first request again after its ENI was deleted. The clean-up deletes an ENI that this creates."""
    deleted_ids = sorted(subject.deleted_ids)
    if not deleted_ids:
        raise NotPossible("no ENI of the probe was deleted")
    answer = subject.create(subject.create_params(), "the first token, after the deletion")
    eni_ids = answer.eni_ids()
    holds: bool | None
    if eni_ids:
        holds = eni_ids[0] in deleted_ids
        observed = f"a new ENI, {eni_ids[0]}"
        if holds:
            observed = f"the ID of the deleted ENI, {eni_ids[0]}"
    elif answer.is_lost:
        holds, observed = None, str(answer)
    else:
        holds, observed = True, f"refused: {answer}"
    subject.observe("token-after-delete", holds, observed, answer)


def search(subject: ProbeSubject) -> None:
    """Find the ENI by tag and by instance; list with one missing ID, and without a page size."""
    eni = subject.attached()

    def shows(answer: CallAnswer) -> bool:
        return eni.eni_id in answer.eni_ids()

    for name, listing in (("tag-search", find_by_tag), ("list-by-instance", list_instance)):
        subject.observe(name, until_seen(subject, shows, since_s=eni.created_s, ask=partial(listing, subject), enough=1))
    filters = [{"Name": "attachment.instance-id", "Values": [str(subject.identity.instance_id)]}]
    unpaged = subject.calls.ask_for_enis("the instance, unpaged", Filters=filters)
    subject.observe("list-unpaged", unpaged, f"{unpaged}, {len(unpaged.enis())} ENIs")
    ids = [eni.eni_id, MISSING_ENI_ID]
    missing = subject.calls.ask("DescribeNetworkInterfaces", "the ENI and a missing ID", NetworkInterfaceIds=ids)
    subject.observe("list-missing-id", missing, f"{missing}, {len(missing.enis())} ENIs")


def find_by_tag(subject: ProbeSubject) -> CallAnswer:
    """Search the ENIs with the tag of this run, in the subnet where it creates ENIs."""
    filters = {"subnet-id": str(subject.identity.subnet_id), f"tag:{RUN_TAG}": subject.run_id}
    return subject.calls.list_enis("the tag of this run", filters)


def list_instance(subject: ProbeSubject) -> CallAnswer:
    """List the instance's ENIs as the daemon does."""
    identity = subject.identity
    filters = {"vpc-id": identity.vpc_id, "attachment.instance-id": str(identity.instance_id)}
    return subject.calls.list_enis("the instance", filters)
