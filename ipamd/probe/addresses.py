"""Steps about assigning and unassigning addresses and prefixes."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network

from ipamd.model.eni import PREFIX_LENGTH
from ipamd.probe.calls import Answer
from ipamd.probe.checks import Verdict
from ipamd.probe.subject import METADATA_WAITS_S, NotPossible, OwnEni, Subject, addresses_of, until_seen, verdict_of

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
    _await_metadata(subject, new[0], since_s=answer.answered_s)
    _over_limit(subject, eni)
    _unassign(subject, eni, new[0])


def _look(subject: Subject, eni: OwnEni) -> Callable[[], Answer]:
    return lambda: subject.describe(eni.eni_id)


def _shows(address: str) -> Callable[[Answer], bool]:
    return lambda answer: any(address in addresses_of(entry) for entry in answer.enis())


def _hides(address: str) -> Callable[[Answer], bool]:
    """Make a test that is false for an answer without an ENI: silence shows nothing (I11)."""
    return lambda answer: bool(answer.enis()) and not _shows(address)(answer)


def _await_metadata(subject: Subject, address: str, *, since_s: float) -> None:
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
