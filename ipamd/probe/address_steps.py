"""Steps of a probe that assign and unassign addresses and prefixes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from ipaddress import IPv4Network, IPv6Network

from ipamd.model.family import IPV4, IPV6, Family
from ipamd.probe.calls import CallAnswer
from ipamd.probe.subject import NotPossible, OwnEni, ProbeSubject, addresses_of, until_seen

ASSIGN = "AssignPrivateIpAddresses"

UNASSIGN = "UnassignPrivateIpAddresses"


def addresses(subject: ProbeSubject) -> None:
    """Assign one address, and wait until EC2 shows it. Request more addresses than fit on the ENI. Unassign the assigned address, and
    wait until EC2 no longer shows it.
    """
    eni = subject.attached()
    answer = subject.change(ASSIGN, eni.eni_id, "one address", SecondaryPrivateIpAddressCount=1)
    assigned = frozenset(_assigned(answer, "AssignedPrivateIpAddresses", "PrivateIpAddress"))
    if not answer.ok:
        raise NotPossible(f"no address was assigned: {answer}")
    old = assigned & eni.addresses
    new = sorted(assigned - eni.addresses)
    subject.observe("assign-answer", len(assigned) == 1 and not old, f"{len(new)} new and {len(old)} old addresses", answer)
    if not new:
        raise NotPossible("the answer to Assign named no new address")
    eni.addresses |= assigned
    subject.observe("assign-visible", until_seen(subject, _shows(new[0]), since_s=answer.answered_s))
    _report_listed(subject, "assign-metadata", new[:1], subject.listed, answer)
    # `count` more addresses are too many, because the ENI already has some. EC2 must then assign none.
    count = subject.address_limit
    refused = subject.change(ASSIGN, eni.eni_id, f"{count} more addresses", SecondaryPrivateIpAddressCount=count)
    subject.observe("assign-over-limit", refused)
    _unassign(subject, eni, new[0])


def prefix(subject: ProbeSubject) -> None:
    """Assign a prefix to an ENI with single addresses, check its length and that it has no host bits, and unassign it."""
    eni = subject.attached()
    answer = subject.change(ASSIGN, eni.eni_id, "one prefix", Ipv4PrefixCount=1)
    if not answer.ok:
        subject.observe("prefix-answer", None, f"no prefix was assigned: {answer}", answer)
        return
    texts = _assigned(answer, "AssignedIpv4Prefixes", "Ipv4Prefix")
    prefixes = [IPv4Network(text, strict=False) for text in texts]
    subnet = subject.identity.subnet_cidr
    single_count = len(answer.body.get("AssignedPrivateIpAddresses") or ())
    is_right = _is_single_prefix(prefixes, texts, IPV4) and all(prefix.subnet_of(subnet) for prefix in prefixes)
    observed = f"{', '.join(texts) or 'no prefix'} in {subnet}, and {single_count} single addresses"
    subject.observe("prefix-answer", is_right and not single_count, observed, answer)
    if texts:
        subject.change(UNASSIGN, eni.eni_id, ", ".join(texts), Ipv4Prefixes=texts)


def ipv6_prefix(subject: ProbeSubject) -> None:
    """Assign a prefix of IPv6, check it as `prefix` does, wait until EC2 shows it, and unassign it. This needs a subnet with IPv6."""
    eni = subject.attached()
    answer = subject.change("AssignIpv6Addresses", eni.eni_id, "one prefix of IPv6", Ipv6PrefixCount=1)
    texts = [str(text) for text in answer.body.get("AssignedIpv6Prefixes") or ()]
    if not answer.ok or not texts:
        raise NotPossible(f"no prefix of IPv6 was assigned: {answer}")
    prefixes = [IPv6Network(text, strict=False) for text in texts]
    subject.observe("ipv6-prefix-answer", _is_single_prefix(prefixes, texts, IPV6), ", ".join(texts), answer)

    def shows(described: CallAnswer) -> bool:
        for described_eni in described.enis():
            for described_prefix in described_eni.get("Ipv6Prefixes") or ():
                if described_prefix["Ipv6Prefix"] == texts[0]:
                    return True
        return False

    subject.observe("ipv6-prefix-visible", until_seen(subject, shows, since_s=answer.answered_s))
    _report_listed(subject, "ipv6-prefix-metadata", texts, partial(subject.listed, IPV6.prefixes_leaf), answer)
    subject.change("UnassignIpv6Addresses", eni.eni_id, ", ".join(texts), Ipv6Prefixes=texts)


def _assigned(answer: CallAnswer, list_name: str, key: str) -> list[str]:
    """Return the values of `key` in the list `list_name` of the answer. EC2 omits the list if it assigned nothing."""
    return [assigned[key] for assigned in answer.body.get(list_name) or ()]


def _report_listed(
    subject: ProbeSubject, name: str, new: Iterable[str], read: Callable[[], frozenset[str] | None], answer: CallAnswer
) -> None:
    listed_s = subject.await_listed(frozenset(new), read)
    if listed_s is not None:
        subject.observe(name, True, f"seen after {listed_s - answer.answered_s:.1f} s")
    elif read() is None:
        subject.observe(name, None, "not seen within 60 s")
    else:
        subject.observe(name, False, "not seen within 60 s")


def _shows(address: str) -> Callable[[CallAnswer], bool]:
    return lambda answer: any(address in addresses_of(eni) for eni in answer.enis())


def _unassign(subject: ProbeSubject, eni: OwnEni, address: str) -> None:
    answer = subject.change(UNASSIGN, eni.eni_id, address, PrivateIpAddresses=[address])
    if not answer.ok:
        raise NotPossible(f"{address} was not unassigned: {answer}")
    eni.addresses -= {address}
    shows = _shows(address)

    def is_unassigned(described: CallAnswer) -> bool:
        """Whether an answer shows the ENI without the address. An answer without the ENI proves nothing (I11)."""
        return bool(described.enis()) and not shows(described)

    subject.observe("unassign-visible", until_seen(subject, is_unassigned, since_s=answer.answered_s))
    again = subject.change(UNASSIGN, eni.eni_id, f"{address} again", PrivateIpAddresses=[address])
    subject.observe("unassign-again", again)


def _is_single_prefix(prefixes: Sequence[IPv4Network | IPv6Network], texts: Sequence[str], family: Family) -> bool:
    """Whether there is exactly one prefix, of the family's length and written without host bits."""
    has_length = all(prefix.prefixlen == family.prefix_length for prefix in prefixes)
    return len(prefixes) == 1 and has_length and [str(prefix) for prefix in prefixes] == list(texts)
