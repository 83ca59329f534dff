"""The steps of a probe: about creating an ENI and finding it, client tokens, attaching, addresses and prefixes, detaching, deleting.

Each step asks EC2, the kernel or metadata, and reports what it saw to the subject.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from ipaddress import IPv4Network
from typing import Any

from ipamd.model.eni import PREFIX_LENGTH
from ipamd.probe.calls import Answer
from ipamd.probe.checks import Verdict
from ipamd.probe.subject import (
    LONGEST_S,
    METADATA_WAITS_S,
    RUN_TAG,
    Lag,
    NotPossible,
    OwnEni,
    Subject,
    addresses_of,
    tags_of,
    until_seen,
    verdict_of,
)

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


# Steps about attaching the ENI: what EC2, the kernel and metadata show of it, and when.


ATTACH_WAITS_S = (0.0, 0.5, 1.0, 2.0)
"""Before each try to attach a new ENI that EC2 does not find. Ours: seconds are usual."""


@dataclass(slots=True)
class Sightings:
    """When each source first showed the attached ENI: monotonic, None for never. `entries`: what Describe showed, in order."""

    link_s: float | None = None
    attached_s: float | None = None
    metadata_s: float | None = None
    first_metadata: frozenset[str] = frozenset()
    entries: list[tuple[Answer, Mapping[str, Any] | None]] = field(default_factory=list)


def attach(subject: Subject) -> None:
    """Attach the ENI right after its creation, and watch it appear."""
    eni = subject.eni()
    tries = []
    for wait_s in ATTACH_WAITS_S:
        subject.pause(wait_s)
        tries.append(_attach(subject, eni))
        if not tries[-1].is_gone:
            break
    refusals = "; ".join(str(answer) for answer in tries if not answer.ok)
    subject.find("attach-after-create", len(tries) == 1 and tries[0].ok, refusals or "accepted at the first try", *tries)
    if not tries[-1].ok and not tries[-1].is_lost:
        raise NotPossible(f"the ENI was not attached: {tries[-1]}")
    eni.attachment_id = str(tries[-1].body.get("AttachmentId", ""))
    eni.attach_asked_s = tries[-1].sent_s
    _watch(subject, eni)


def _attach(subject: Subject, eni: OwnEni) -> Answer:
    return subject.change(
        "AttachNetworkInterface",
        eni.eni_id,
        eni.eni_id,
        InstanceId=str(subject.identity.instance_id),
        DeviceIndex=subject.node.device_index,
        NetworkCardIndex=0,
    )


def _watch(subject: Subject, eni: OwnEni) -> None:
    """Look at EC2, links and metadata until EC2 showed the attachment twice; then report it all."""
    seen, terminate = Sightings(), Terminate()

    def look() -> Answer:
        if terminate.is_due:
            terminate.set(subject, eni)
        _look_around(subject, eni, seen)
        answer = subject.describe(eni.eni_id)
        entry = next(iter(answer.enis()), None)
        seen.entries.append((answer, entry))
        terminate.note(eni, entry)
        return answer

    subject.while_waiting = lambda: _look_at_link(subject, eni, seen)
    try:
        lag = until_seen(subject, look, _is_attached, since_s=eni.attach_asked_s)
    finally:
        subject.while_waiting = lambda: None
    subject.find(
        "attach-time",
        lag.seen_s is not None and lag.seen_s < LONGEST_S,
        f"attached after {lag.seen_s:.1f} s" if lag.seen_s is not None else str(lag),
        *lag.answers,
    )
    seen.attached_s = None if lag.seen_s is None else eni.attach_asked_s + lag.seen_s
    _report_visible(subject, eni, seen)
    _report_addresses(subject, eni, seen)
    _report_link(subject, eni, seen)
    terminate.report(subject)
    _await_metadata(subject, eni, seen)


def _is_attached(answer: Answer) -> bool:
    return any((entry.get("Attachment") or {}).get("Status") == "attached" for entry in answer.enis())


def _look_around(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    """Look at links and metadata; neither costs an EC2 call."""
    _look_at_link(subject, eni, seen)
    if seen.metadata_s is None and subject.metadata("interface-id") is not None:
        seen.metadata_s = subject.clock.monotonic()
        seen.first_metadata = frozenset((subject.metadata("local-ipv4s") or "").split())


def _look_at_link(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    if seen.link_s is None and eni.mac in (subject.links() or ()):
        seen.link_s = subject.clock.monotonic()


def _report_visible(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    shown = [entry is not None for _, entry in seen.entries]
    first = shown.index(True) if True in shown else None
    answers = [answer for answer, _ in seen.entries]
    if first is None:
        subject.find("create-visible", False, f"not seen in {len(shown)} looks", *answers)
        return
    after_s = answers[first].answered_s - eni.created_s
    relapses = shown[first:].count(False)
    observed = f"seen {after_s:.1f} s after Create, after {first} looks without it; {relapses} looks after that did not show it"
    subject.find("create-visible", first == 0 and not relapses, observed, *answers)


def _report_addresses(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    shown = [(answer, addresses_of(entry or {})) for answer, entry in seen.entries if entry and _is_attached(answer)]
    if not shown:
        subject.find("attached-addresses", Verdict.UNKNOWN, "the attachment was never shown")
        return
    answer, addresses = shown[0]
    subject.find("attached-addresses", addresses >= eni.addresses, f"{len(addresses)} of {len(eni.addresses)} addresses", answer)


def _report_link(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    if seen.attached_s is None or not subject.sees_links():
        missing = "the attachment was not seen" if seen.attached_s is None else "the node's links are not visible from here"
        subject.find("link-before-attached", Verdict.UNKNOWN, missing)
        return
    attached_s = seen.attached_s - eni.attach_asked_s
    link_s = None if seen.link_s is None else seen.link_s - eni.attach_asked_s
    when = "no link in any look" if link_s is None else f"link after {link_s:.1f} s"
    subject.find(
        "link-before-attached", link_s is not None and link_s <= attached_s, f"{when}, attached after {attached_s:.1f} s"
    )


def _await_metadata(subject: Subject, eni: OwnEni, seen: Sightings) -> None:
    """Wait until metadata lists the ENI with its addresses."""
    complete_s: float | None = None
    for wait_s in METADATA_WAITS_S:
        _look_around(subject, eni, seen)
        if seen.metadata_s is not None and frozenset((subject.metadata("local-ipv4s") or "").split()) >= eni.addresses:
            complete_s = subject.clock.monotonic()
            break
        subject.pause(wait_s)
    if seen.metadata_s is None:
        subject.find("metadata-complete", Verdict.UNKNOWN, "metadata did not list the ENI within 60 s")
        return
    is_whole = seen.first_metadata >= eni.addresses
    when = f"listed after {seen.metadata_s - eni.attach_asked_s:.1f} s with {len(seen.first_metadata)} addresses"
    later = "never complete" if complete_s is None else f"complete after {complete_s - eni.attach_asked_s:.1f} s"
    subject.find("metadata-complete", is_whole, f"{when}, {later}")


class Terminate:
    """DeleteOnTermination: read its default, set it as soon as the attachment is shown, and look whether it is."""

    def __init__(self) -> None:
        self._default: bool | None = None
        self._asked: Answer | None = None
        self._shown: list[bool] = []

    @property
    def is_due(self) -> bool:
        """Whether the default is known, and the change not asked for."""
        return self._default is not None and self._asked is None

    def note(self, eni: OwnEni, entry: Mapping[str, Any] | None) -> None:
        """Read what a look shows."""
        attachment = (entry or {}).get("Attachment") or {}
        if not attachment:
            return
        eni.attachment_id = eni.attachment_id or str(attachment.get("AttachmentId", ""))
        shown = bool(attachment.get("DeleteOnTermination"))
        if self._default is None:
            self._default = shown
        if self._asked is not None:
            self._shown.append(shown)

    def set(self, subject: Subject, eni: OwnEni) -> None:
        """Set it: should the node end now, the ENI goes with it (I9)."""
        value = {"AttachmentId": eni.attachment_id, "DeleteOnTermination": True}
        self._asked = subject.change("ModifyNetworkInterfaceAttribute", eni.eni_id, eni.eni_id, Attachment=value)

    def report(self, subject: Subject) -> None:
        """Record both checks."""
        if self._default is None:
            return
        subject.find("terminate-default", not self._default, str(self._default).lower())
        if self._asked is not None:
            shown = f"; shown in {sum(self._shown)} of {len(self._shown)} looks after it"
            holds = self._asked.ok and bool(self._shown) and all(self._shown)
            unknown = self._asked.ok and not self._shown
            subject.find("terminate-set", Verdict.UNKNOWN if unknown else holds, f"{self._asked}{shown}", self._asked)


def attach_again(subject: Subject) -> None:
    """Attach what is attached already, then try to delete it."""
    eni = subject.attached()
    answer = _attach(subject, eni)
    subject.find("attach-again", answer.is_busy, str(answer), answer)
    delete = subject.change("DeleteNetworkInterface", eni.eni_id, eni.eni_id)
    subject.find("delete-in-use", delete.is_busy, str(delete), delete)
    if delete.ok:
        subject.deleted_ids.add(eni.eni_id)
        subject.current = None


# Steps about assigning and unassigning addresses and prefixes.


ASSIGN = "AssignPrivateIpAddresses"
UNASSIGN = "UnassignPrivateIpAddresses"


def addresses(subject: Subject) -> None:
    """Assign one address, watch it appear, ask for too many, unassign it and watch it go."""
    eni = subject.attached()
    answer = subject.change(ASSIGN, eni.eni_id, "one address", SecondaryPrivateIpAddressCount=1)
    told = frozenset(item["PrivateIpAddress"] for item in answer.body.get("AssignedPrivateIpAddresses") or ())
    if not answer.ok:
        raise NotPossible(f"no address was assigned: {answer}")
    old = told & eni.addresses
    subject.find("assign-answer", len(told) == 1 and not old, f"{len(told - old)} new and {len(old)} old addresses", answer)
    new = sorted(told - eni.addresses)
    if not new:
        raise NotPossible("the answer to Assign named no new address")
    eni.addresses |= told
    lag = until_seen(subject, _look(subject, eni), _shows(new[0]), since_s=answer.answered_s)
    subject.find("assign-visible", verdict_of(lag), str(lag), *lag.answers)
    _await_address(subject, new[0], since_s=answer.answered_s)
    _over_limit(subject, eni)
    _unassign(subject, eni, new[0])


def _look(subject: Subject, eni: OwnEni) -> Callable[[], Answer]:
    return lambda: subject.describe(eni.eni_id)


def _shows(address: str) -> Callable[[Answer], bool]:
    return lambda answer: any(address in addresses_of(entry) for entry in answer.enis())


def _hides(address: str) -> Callable[[Answer], bool]:
    """Make a test that is false for an answer without an ENI: silence shows nothing (I11)."""
    return lambda answer: bool(answer.enis()) and not _shows(address)(answer)


def _await_address(subject: Subject, address: str, *, since_s: float) -> None:
    for wait_s in METADATA_WAITS_S:
        subject.pause(wait_s)
        if address in (subject.metadata("local-ipv4s") or "").split():
            subject.find("assign-metadata", True, f"seen after {subject.clock.monotonic() - since_s:.1f} s")
            return
    is_readable = subject.metadata("interface-id") is not None
    subject.find("assign-metadata", False if is_readable else Verdict.UNKNOWN, "not seen within 60 s")


def _over_limit(subject: Subject, eni: OwnEni) -> None:
    """Ask for as many addresses as an ENI can have, which is too many for one that has some: nothing is to be assigned."""
    count = subject.node.limits.ipv4_per_eni
    answer = subject.change(ASSIGN, eni.eni_id, f"{count} more addresses", SecondaryPrivateIpAddressCount=count)
    subject.find("assign-over-limit", answer.code == "PrivateIpAddressLimitExceeded", str(answer), answer)


def _unassign(subject: Subject, eni: OwnEni, address: str) -> None:
    answer = subject.change(UNASSIGN, eni.eni_id, address, PrivateIpAddresses=[address])
    if not answer.ok:
        raise NotPossible(f"{address} was not unassigned: {answer}")
    eni.addresses -= {address}
    lag = until_seen(subject, _look(subject, eni), _hides(address), since_s=answer.answered_s)
    subject.find("unassign-visible", verdict_of(lag), str(lag), *lag.answers)
    again = subject.change(UNASSIGN, eni.eni_id, f"{address} again", PrivateIpAddresses=[address])
    is_said = again.is_gone or (again.code == "InvalidParameterValue" and "not assigned to interface" in again.message)
    subject.find("unassign-again", is_said, str(again), again)


def prefix(subject: Subject) -> None:
    """Assign a prefix beside single addresses, look at its shape, and unassign it."""
    eni = subject.attached()
    answer = subject.change(ASSIGN, eni.eni_id, "one prefix", Ipv4PrefixCount=1)
    if not answer.ok:
        subject.find("prefix-answer", Verdict.UNKNOWN, f"no prefix was assigned: {answer}", answer)
        return
    told = [IPv4Network(item["Ipv4Prefix"], strict=False) for item in answer.body.get("AssignedIpv4Prefixes") or ()]
    raw = [item["Ipv4Prefix"] for item in answer.body.get("AssignedIpv4Prefixes") or ()]
    singles = len(answer.body.get("AssignedPrivateIpAddresses") or ())
    is_shaped = [str(network) for network in told] == raw and all(network.prefixlen == PREFIX_LENGTH for network in told)
    is_inside = all(network.subnet_of(subject.identity.subnet_cidr) for network in told)
    observed = f"{', '.join(raw) or 'no prefix'} in {subject.identity.subnet_cidr}, and {singles} single addresses"
    subject.find("prefix-answer", len(told) == 1 and is_shaped and is_inside and not singles, observed, answer)
    if raw:
        subject.change(UNASSIGN, eni.eni_id, ", ".join(raw), Ipv4Prefixes=raw)


# Steps about detaching and deleting the ENI: what EC2 and the kernel show of it, and when.


def detach(subject: Subject) -> None:
    """Detach twice, try to delete at once, and watch it go."""
    eni = subject.attached()
    first = subject.change("DetachNetworkInterface", eni.eni_id, eni.eni_id, AttachmentId=eni.attachment_id)
    if not first.ok:
        raise NotPossible(f"the ENI was not detached: {first}")
    again = subject.change("DetachNetworkInterface", eni.eni_id, "again", AttachmentId=eni.attachment_id)
    is_fine = again.ok or again.is_gone or again.code == "IncorrectState"
    subject.find("detach-again", is_fine, str(again), again)
    early = subject.change("DeleteNetworkInterface", eni.eni_id, "while it is being detached")
    subject.find("delete-detaching", early.ok or early.is_busy, str(early), early)
    if early.ok:
        subject.deleted_ids.add(eni.eni_id)
    lag, link_gone_s = _watch_it_go(subject, eni, since_s=first.sent_s)
    observed = f"no attachment after {lag.seen_s:.1f} s" if lag.seen_s is not None else str(lag)
    subject.find("detach-time", lag.seen_s is not None and lag.seen_s < LONGEST_S, observed, *lag.answers)
    _report_link_gone(subject, lag, link_gone_s)
    if early.ok:  # it went faster than we could ask: these looks are those after the deletion
        present_count = sum(not answer.is_gone for answer in lag.answers)
        observed = f"shown in {present_count} of {len(lag.answers)} looks after Delete"
        subject.find("delete-visible", not present_count, observed, *lag.answers)
    if lag.seen_s is not None:
        eni.attachment_id = ""


def _watch_it_go(subject: Subject, eni: OwnEni, *, since_s: float) -> tuple[Lag, float | None]:
    """Look until EC2 shows no attachment.

    Returns: how that came, and after how many seconds the link was gone; None if it was not.
    """
    gone_s: list[float] = []

    def look_at_link() -> None:
        links = subject.links()
        if links is not None and eni.mac not in links:
            gone_s.append(subject.clock.monotonic() - since_s)

    def look() -> Answer:
        look_at_link()
        return subject.describe(eni.eni_id)

    subject.while_waiting = look_at_link
    try:
        lag = until_seen(subject, look, _has_no_attachment, since_s=since_s)
    finally:
        subject.while_waiting = lambda: None
    return lag, min(gone_s, default=None)


def _has_no_attachment(answer: Answer) -> bool:
    return answer.is_gone or (answer.ok and bool(answer.enis()) and not any(entry.get("Attachment") for entry in answer.enis()))


def _report_link_gone(subject: Subject, lag: Lag, gone_s: float | None) -> None:
    if lag.seen_s is None or not subject.sees_links():
        missing = "the attachment did not go" if lag.seen_s is None else "the node's links are not visible from here"
        subject.find("link-gone", Verdict.UNKNOWN, missing)
        return
    when = "link there in every look" if gone_s is None else f"link gone after {gone_s:.1f} s"
    subject.find("link-gone", gone_s is not None and gone_s <= lag.seen_s, f"{when}, attachment after {lag.seen_s:.1f} s")


def delete(subject: Subject) -> None:
    """Delete the ENI, watch it go, and delete it again."""
    eni = subject.eni()
    if eni.attachment_id:
        raise NotPossible("the ENI is attached")
    if eni.eni_id not in subject.deleted_ids:
        answer = subject.change("DeleteNetworkInterface", eni.eni_id, eni.eni_id)
        if not answer.ok:
            raise NotPossible(f"the ENI was not deleted: {answer}")
        subject.deleted_ids.add(eni.eni_id)
        lag = until_seen(subject, lambda: subject.describe(eni.eni_id), _is_gone, since_s=answer.answered_s)
        subject.find("delete-visible", verdict_of(lag), str(lag), *lag.answers)
    again = subject.change("DeleteNetworkInterface", eni.eni_id, "again")
    subject.find("delete-again", again.is_gone, str(again), again)
    subject.current = None


def _is_gone(answer: Answer) -> bool:
    return answer.is_gone
