"""The steps of a probe: about creating an ENI and finding it, client tokens, attaching, addresses and prefixes, detaching, deleting.

Each step asks EC2, the kernel or metadata, and reports what it saw to the subject.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from ipaddress import IPv4Network, IPv6Network

from ipamd.model.family import IPV4, IPV6
from ipamd.probe.calls import Answer
from ipamd.probe.subject import LONGEST_S, RUN_TAG, Lag, NotPossible, OwnEni, Subject, addresses_of, tags_of, until_seen

MISSING_ENI_ID = "eni-00000000000000000"
"""Well-formed, and nobody's: EC2 draws IDs at random."""


def create(subject: Subject) -> None:
    """Create the ENI that all further steps use."""
    answer = subject.create(subject.create_params(), "the probe's ENI")
    if not answer.enis():
        raise NotPossible(f"no ENI was created: {answer}")
    entry = answer.enis()[0]
    eni_id, tags, addresses = entry["NetworkInterfaceId"], tags_of(entry), addresses_of(entry)
    if eni_id not in subject.owned_ids:
        lag = until_seen(subject, lambda shown: bool(shown.enis()), since_s=0.0, look=lambda: subject.describe(eni_id), enough=1)
        if not any(map(subject.own, lag.answers[-1].enis())):
            raise NotPossible(f"{eni_id} does not carry this run's tag: it is left alone")
    subject.current = OwnEni(eni_id, entry["MacAddress"].lower(), addresses, answer.answered_s)
    observed = f"{len(addresses)} addresses with the primary one, {len(tags)} tags"
    subject.find("create-answer", len(addresses) == 2 and tags.get(RUN_TAG) == subject.run_id, observed, answer)


def replay_token(subject: Subject) -> None:
    """Send the same request again, and then another one with the same token."""
    eni = subject.eni()
    same = subject.create(subject.create_params(), "the same token and parameters")
    subject.find("token-replay", same.eni_ids() == [eni.eni_id], ", ".join(same.eni_ids()) or str(same), same)
    changed = {**subject.create_params(), "Description": f"vpc-ipamd {subject.run_id}, changed"}
    other = subject.create(changed, "the same token, another description")
    is_refused = other.code == "IdempotentParameterMismatch"
    subject.find("token-mismatch", is_refused, ", ".join(other.eni_ids()) or str(other), other)


def replay_after_delete(subject: Subject) -> None:
    """Send the first request again after its ENI was deleted. What it creates is deleted by the clean-up."""
    dead = sorted(subject.deleted_ids)
    if not dead:
        raise NotPossible("no ENI of the probe was deleted")
    answer = subject.create(subject.create_params(), "the first token, after the deletion")
    holds, observed = None if answer.is_lost else True, str(answer) if answer.is_lost else f"refused: {answer}"
    for eni_id in answer.eni_ids()[:1]:
        holds = eni_id in dead
        observed = f"the ID of the deleted ENI, {eni_id}" if holds else f"a new ENI, {eni_id}"
    subject.find("token-after-delete", holds, observed, answer)


def search(subject: Subject) -> None:
    """Find the ENI by tag and by instance; list with one missing ID, and without a page size."""
    eni = subject.attached()

    def shows(answer: Answer) -> bool:
        return eni.eni_id in answer.eni_ids()

    for name, look in (("tag-search", find_by_tag), ("list-by-instance", list_instance)):
        subject.find_prompt(name, until_seen(subject, shows, since_s=eni.created_s, look=partial(look, subject), enough=1))
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


# Steps about attaching the ENI: what EC2, the kernel and metadata show of it, and when.


ATTACH_WAITS_S = (0.0, 0.5, 1.0, 2.0)
"""Before each try to attach a new ENI that EC2 does not find. Ours: seconds are usual."""


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
    _watch_it_come(subject, eni, asked_s=tries[-1].sent_s)


def _attach(subject: Subject, eni: OwnEni) -> Answer:
    return subject.change(
        "AttachNetworkInterface",
        eni.eni_id,
        InstanceId=str(subject.identity.instance_id),
        DeviceIndex=subject.device_index,
        NetworkCardIndex=0,
    )


def _watch_it_come(subject: Subject, eni: OwnEni, *, asked_s: float) -> None:
    """Look at EC2, links and metadata until EC2 showed the attachment twice; then report it all."""
    link_s: list[float] = []
    listed: list[tuple[float, frozenset[str]]] = []
    terminates: list[bool] = []  # as the looks show it: first its default, then what was set
    set_terminate: list[Answer] = []

    def look_at_link() -> None:
        if not link_s and eni.mac in (subject.macs() or ()):
            link_s.append(subject.calls.clock.monotonic() - asked_s)

    def look_at_metadata() -> frozenset[str] | None:
        found = subject.listed()
        if found is not None and not listed:
            listed.append((subject.calls.clock.monotonic() - asked_s, found))
        return found

    def look() -> Answer:
        if terminates and not set_terminate:  # should the node end now, the ENI goes with it (I9)
            value = {"AttachmentId": eni.attachment_id, "DeleteOnTermination": True}
            set_terminate.append(subject.change("ModifyNetworkInterfaceAttribute", eni.eni_id, Attachment=value))
        if not listed:
            look_at_metadata()
        answer = subject.describe(eni.eni_id)
        for entry in answer.enis():
            if attachment := entry.get("Attachment"):
                eni.attachment_id = eni.attachment_id or str(attachment.get("AttachmentId", ""))
                terminates.append(bool(attachment.get("DeleteOnTermination")))
        return answer

    lag = until_seen(subject, _is_attached, since_s=asked_s, look=look, meanwhile=look_at_link)
    _report_time(subject, "attach-time", "attached", lag)
    _report_shown(subject, eni, lag.answers)
    _report_link(subject, "link-before-attached", next(iter(link_s), None), lag.seen_s)
    if terminates:
        subject.find("terminate-default", not terminates[0], str(terminates[0]).lower())
    for answer in set_terminate:
        shown = terminates[1:]
        holds = None if answer.ok and not shown else answer.ok and all(shown)
        subject.find("terminate-set", holds, f"{answer}; shown in {sum(shown)} of {len(shown)} looks after it", answer)
    complete_s = subject.await_listed(eni.addresses, look_at_metadata)
    if not listed:
        subject.find("metadata-complete", None, "metadata did not list the ENI within 60 s")
        return
    ((first_s, first),) = listed
    later = "never complete" if complete_s is None else f"complete after {complete_s - asked_s:.1f} s"
    observed = f"listed after {first_s:.1f} s with {len(first)} addresses, {later}"
    subject.find("metadata-complete", first >= eni.addresses, observed)


def _is_attached(answer: Answer) -> bool:
    return any((entry.get("Attachment") or {}).get("Status") == "attached" for entry in answer.enis())


def _report_time(subject: Subject, name: str, change: str, lag: Lag) -> None:
    observed = str(lag) if lag.seen_s is None else f"{change} after {lag.seen_s:.1f} s"
    subject.find(name, lag.seen_s is not None and lag.seen_s < LONGEST_S, observed, *lag.answers)


def _report_shown(subject: Subject, eni: OwnEni, answers: list[Answer]) -> None:
    """Report when the looks showed the ENI, and with how many addresses they showed it attached."""
    shown = [bool(answer.enis()) for answer in answers]
    observed, is_prompt = f"not seen in {len(shown)} looks", all(shown)
    if any(shown):
        first = shown.index(True)
        relapses = shown[first:].count(False)
        observed = (
            f"seen {answers[first].answered_s - eni.created_s:.1f} s after Create, after {first} looks without it; "
            f"{relapses} looks after that did not show it"
        )
    subject.find("create-visible", is_prompt, observed, *answers)
    for answer in answers:
        if _is_attached(answer):
            addresses = addresses_of(answer.enis()[0])
            whole = f"{len(addresses)} of {len(eni.addresses)} addresses"
            subject.find("attached-addresses", addresses >= eni.addresses, whole, answer)
            return
    subject.find("attached-addresses", None, "the attachment was never shown")


LINK_WORDS = {
    "link-before-attached": ("no link in any look", "link", "attached", "the attachment was not seen"),
    "link-gone": ("link there in every look", "link gone", "attachment", "the attachment did not go"),
}


def _report_link(subject: Subject, name: str, link_s: float | None, eni_s: float | None) -> None:
    """Report whether the link changed no later than EC2 showed the change."""
    never, link, change, missing = LINK_WORDS[name]
    if eni_s is None or subject.macs() is None:
        subject.find(name, None, missing if eni_s is None else "the node's links are not visible from here")
        return
    when = never if link_s is None else f"{link} after {link_s:.1f} s"
    subject.find(name, link_s is not None and link_s <= eni_s, f"{when}, {change} after {eni_s:.1f} s")


def attach_again(subject: Subject) -> None:
    """Attach what is attached already, then try to delete it."""
    eni = subject.attached()
    answer = _attach(subject, eni)
    subject.find("attach-again", answer.is_busy, str(answer), answer)
    delete = subject.delete(eni.eni_id)
    subject.find("delete-in-use", delete.is_busy, str(delete), delete)
    if delete.ok:
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
    old, new = told & eni.addresses, sorted(told - eni.addresses)
    subject.find("assign-answer", len(told) == 1 and not old, f"{len(new)} new and {len(old)} old addresses", answer)
    if not new:
        raise NotPossible("the answer to Assign named no new address")
    eni.addresses |= told
    subject.find_prompt("assign-visible", until_seen(subject, _shows(new[0]), since_s=answer.answered_s))
    _report_listed(subject, "assign-metadata", new[:1], subject.listed, answer)
    # As many as an ENI can have are too many for one that has some: nothing is to be assigned.
    count = subject.address_limit
    refused = subject.change(ASSIGN, eni.eni_id, f"{count} more addresses", SecondaryPrivateIpAddressCount=count)
    subject.find("assign-over-limit", refused.code == "PrivateIpAddressLimitExceeded", str(refused), refused)
    _unassign(subject, eni, new[0])


def _report_listed(
    subject: Subject, name: str, new: Iterable[str], look: Callable[[], frozenset[str] | None], answer: Answer
) -> None:
    listed_s = subject.await_listed(frozenset(new), look)
    if listed_s is None:
        subject.find(name, None if look() is None else False, "not seen within 60 s")
    else:
        subject.find(name, True, f"seen after {listed_s - answer.answered_s:.1f} s")


def _shows(address: str) -> Callable[[Answer], bool]:
    return lambda answer: any(address in addresses_of(entry) for entry in answer.enis())


def _unassign(subject: Subject, eni: OwnEni, address: str) -> None:
    answer = subject.change(UNASSIGN, eni.eni_id, address, PrivateIpAddresses=[address])
    if not answer.ok:
        raise NotPossible(f"{address} was not unassigned: {answer}")
    eni.addresses -= {address}
    shows = _shows(address)
    # An answer without an ENI shows nothing (I11).
    lag = until_seen(subject, lambda told: bool(told.enis()) and not shows(told), since_s=answer.answered_s)
    subject.find_prompt("unassign-visible", lag)
    again = subject.change(UNASSIGN, eni.eni_id, f"{address} again", PrivateIpAddresses=[address])
    is_said = again.is_gone or (again.code == "InvalidParameterValue" and "not assigned to interface" in again.message)
    subject.find("unassign-again", is_said, str(again), again)


def prefix(subject: Subject) -> None:
    """Assign a prefix beside single addresses, look at its shape, and unassign it."""
    eni = subject.attached()
    answer = subject.change(ASSIGN, eni.eni_id, "one prefix", Ipv4PrefixCount=1)
    if not answer.ok:
        subject.find("prefix-answer", None, f"no prefix was assigned: {answer}", answer)
        return
    raw = [item["Ipv4Prefix"] for item in answer.body.get("AssignedIpv4Prefixes") or ()]
    told = [IPv4Network(text, strict=False) for text in raw]
    singles = len(answer.body.get("AssignedPrivateIpAddresses") or ())
    is_shaped = [str(network) for network in told] == raw and all(network.prefixlen == IPV4.prefix_length for network in told)
    is_inside = all(network.subnet_of(subject.identity.subnet_cidr) for network in told)
    observed = f"{', '.join(raw) or 'no prefix'} in {subject.identity.subnet_cidr}, and {singles} single addresses"
    subject.find("prefix-answer", len(told) == 1 and is_shaped and is_inside and not singles, observed, answer)
    if raw:
        subject.change(UNASSIGN, eni.eni_id, ", ".join(raw), Ipv4Prefixes=raw)


def ipv6_prefix(subject: Subject) -> None:
    """Assign a prefix of IPv6, look at its shape, watch it appear, and unassign it. A subnet without IPv6 tells nothing."""
    eni = subject.attached()
    answer = subject.change("AssignIpv6Addresses", eni.eni_id, "one prefix of IPv6", Ipv6PrefixCount=1)
    raw = [str(text) for text in answer.body.get("AssignedIpv6Prefixes") or ()]
    if not answer.ok or not raw:
        raise NotPossible(f"no prefix of IPv6 was assigned: {answer}")
    told = [IPv6Network(text, strict=False) for text in raw]
    is_shaped = [str(network) for network in told] == raw and all(network.prefixlen == IPV6.prefix_length for network in told)
    subject.find("ipv6-prefix-answer", len(told) == 1 and is_shaped, ", ".join(raw), answer)

    def shows(look: Answer) -> bool:
        return any(raw[0] == item["Ipv6Prefix"] for entry in look.enis() for item in entry.get("Ipv6Prefixes") or ())

    subject.find_prompt("ipv6-prefix-visible", until_seen(subject, shows, since_s=answer.answered_s))
    _report_listed(subject, "ipv6-prefix-metadata", raw, partial(subject.listed, IPV6.prefixes_leaf), answer)
    subject.change("UnassignIpv6Addresses", eni.eni_id, ", ".join(raw), Ipv6Prefixes=raw)


# Steps about detaching and deleting the ENI: what EC2 and the kernel show of it, and when.


def detach(subject: Subject) -> None:
    """Detach twice, try to delete at once, and watch it go."""
    eni = subject.attached()
    first = subject.change("DetachNetworkInterface", eni.eni_id, AttachmentId=eni.attachment_id)
    if not first.ok:
        raise NotPossible(f"the ENI was not detached: {first}")
    again = subject.change("DetachNetworkInterface", eni.eni_id, "again", AttachmentId=eni.attachment_id)
    is_fine = again.ok or again.is_gone or again.code == "IncorrectState"
    subject.find("detach-again", is_fine, str(again), again)
    early = subject.delete(eni.eni_id, "while it is being detached")
    subject.find("delete-detaching", early.ok or early.is_busy, str(early), early)
    link_gone_s: list[float] = []

    def look_at_link() -> None:
        if not link_gone_s and eni.mac not in (subject.macs() or (eni.mac,)):
            link_gone_s.append(subject.calls.clock.monotonic() - first.sent_s)

    lag = until_seen(subject, _has_no_attachment, since_s=first.sent_s, meanwhile=look_at_link)
    _report_time(subject, "detach-time", "no attachment", lag)
    _report_link(subject, "link-gone", next(iter(link_gone_s), None), lag.seen_s)
    if early.ok:  # it went faster than we could ask: these looks are those after the deletion
        present_count = sum(not answer.is_gone for answer in lag.answers)
        observed = f"shown in {present_count} of {len(lag.answers)} looks after Delete"
        subject.find("delete-visible", not present_count, observed, *lag.answers)
    if lag.seen_s is not None:
        eni.attachment_id = ""


def _has_no_attachment(answer: Answer) -> bool:
    return answer.is_gone or (answer.ok and bool(answer.enis()) and not any(entry.get("Attachment") for entry in answer.enis()))


def delete(subject: Subject) -> None:
    """Delete the ENI, watch it go, and delete it again."""
    eni = subject.eni()
    if eni.attachment_id:
        raise NotPossible("the ENI is attached")
    if eni.eni_id not in subject.deleted_ids:
        answer = subject.delete(eni.eni_id)
        if not answer.ok:
            raise NotPossible(f"the ENI was not deleted: {answer}")
        lag = until_seen(subject, lambda told: told.is_gone, since_s=answer.answered_s)
        subject.find_prompt("delete-visible", lag)
    again = subject.change("DeleteNetworkInterface", eni.eni_id, "again")
    subject.find("delete-again", again.is_gone, str(again), again)
    subject.current = None
