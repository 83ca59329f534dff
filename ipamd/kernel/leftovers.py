"""Find and remove our tables, rules and routes on a node that has gone back to amazon-vpc-cni-k8s.

No daemon of ours maintains these objects any more. An object that a pod of ours still needs stays, and is reported with the reason.
Links of pods stay too, and so do their rules at priorities 512 and 1536: amazon-vpc-cni-k8s uses the same priorities, and removes
these rules with the pod. Every other object is recognised by a name or number that nobody else uses.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import closing

from ipamd.kernel import answers, messages, source_tree, static_default_route, survey, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.nft import Nftables
from ipamd.kernel.repair import route_removal
from ipamd.kernel.traces import TABLE_PREFIX
from ipamd.model import source_rules
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, IpNetwork, family_of
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.kernel_numbers import FROM_SANDBOX_PRIORITY, OWN_RULE, OWN_TABLE, OWN_TABLE_PRIORITY, STRICT_TABLE
from ipamd.model.record import dataclass
from ipamd.model.words import counted

EGRESS_TABLE = f"{TABLE_PREFIX}-egress"

FAMILIES = (IPV4, IPV6)

IP = {IPV4: "ip", IPV6: "ip -6"}
"""The command by which people read a family's rules and routes."""


@dataclass(frozen=True, slots=True)
class Leftover:
    """One object of ours in the kernel, or several of one kind.

    `name`: how reports name it.
    `kept_reason`: a text about the pods that still need it; "" if none does, so that it may be removed.
    `nft_commands`: the nft commands that remove it; "" if it is not in nftables.
    `messages`: the netlink messages that remove it; none if it is in nftables.
    """

    name: str
    kept_reason: str = ""
    nft_commands: str = ""
    messages: tuple[Message, ...] = ()


def find_leftovers(host: HostNetns, nft: Nftables, *, veth_prefix: str) -> list[Leftover]:
    """Find all leftovers in the host's namespace. Changes nothing. Raises: KernelDumpError, WiringError."""
    # libnftables ends the process if it cannot open a netfilter socket. Opening one here raises WiringError instead.
    host.open_netlink(protocol=uapi.NETLINK_NETFILTER).close()
    with host.netlink() as sock:
        surveys = [survey.survey(sock, veth_prefix=veth_prefix, families=(family,)) for family in FAMILIES]
        leftovers = [*_nft_tables(nft, surveys[0].extra)]
        for family, seen in zip(FAMILIES, surveys, strict=True):
            leftovers += _rules(sock, family, seen)
            leftovers += _routes(sock, family, seen)
    return leftovers


def remove_leftovers(host: HostNetns, nft: Nftables, leftovers: Iterable[Leftover]) -> None:
    """Remove everything that no pod needs: nftables in one transaction, then rules, then routes. Raises: WiringError.

    An object that is gone by now is not an error, so the removal may be repeated.
    """
    removable = [leftover for leftover in leftovers if not leftover.kept_reason]
    commands = "".join(leftover.nft_commands for leftover in removable)
    if commands:
        nft.run(commands)
    batch = [message for leftover in removable for message in leftover.messages]
    with host.netlink() as sock:
        sock.carry_out(batch, operation="removal of what we left")


def clean_up(*, veth_prefix: str, is_dry_run: bool) -> list[Leftover]:
    """Find the leftovers in the calling thread's namespace, and remove them unless `is_dry_run`.

    Returns: all leftovers that were found. Raises: KernelDumpError, WiringError.
    """
    with closing(HostNetns()) as host:
        nft = Nftables(host)
        leftovers = find_leftovers(host, nft, veth_prefix=veth_prefix)
        if not is_dry_run:
            remove_leftovers(host, nft, leftovers)
    return leftovers


def _nft_tables(nft: Nftables, extra: Iterable[HostVeth]) -> Iterator[Leftover]:
    """Find our nftables tables. The table for egress is needed while a pod has a link whose packets it translates.

    `extra`: the host veths of extra legs.
    """
    pods = dict.fromkeys(FAMILIES, 0)
    for veth in extra:
        if veth.address is not None and not veth.is_dying:
            pods[family_of(veth.address)] += 1
    needed = {(family.nft, EGRESS_TABLE): count for family, count in pods.items() if count}
    for line in sorted(nft.run("list tables\n").splitlines()):
        words = line.split()
        if len(words) != 3 or not _is_our_table(words[2]):
            continue
        _, family_name, name = words
        count = needed.get((family_name, name), 0)
        reason = f"{counted(count, 'pod')} of ours send by it" if count else ""
        yield Leftover(f"nftables table {family_name} {name}", reason, f"delete table {family_name} {name}\n")


def _is_our_table(name: str) -> bool:
    return name == TABLE_PREFIX or name.startswith(f"{TABLE_PREFIX}-")


def _rules(sock: NetlinkSocket, family: Family, seen: KernelSurvey) -> Iterator[Leftover]:
    """Find our rules of the kinds that amazon-vpc-cni-k8s does not make, and therefore would never remove.

    They are the rule to `OWN_TABLE`, the rule to `STRICT_TABLE` (by which nftables checks sources in strict mode), rules from whole
    prefixes (FROM_SANDBOX_PRIORITY), and rules in buckets with the `goto` rules that lead to them (`ipamd/model/source_rules.py`). If
    the export was not complete, a pod of ours may lack a rule of its own, and then needs one of these.
    """
    strict = [veth for veth in seen.uplinked if not veth.is_dying]
    rules = survey.rules_of(sock, family)
    if family is IPV4:
        yield from _bucket_rules(rules, seen)
    for rule in rules:
        prefix = survey.from_prefix(rule)
        if (rule.priority, rule.table) == (OWN_TABLE_PRIORITY, OWN_TABLE):
            change = messages.delete_rule(OWN_TABLE_PRIORITY, table=OWN_TABLE, family=family)
            yield Leftover(f"{IP[family]} {OWN_RULE}", _without_rule(seen, family), messages=(change,))
        elif rule.table == STRICT_TABLE:
            change = messages.delete_rule(
                rule.priority, table=STRICT_TABLE, mark=rule.mark, incoming=rule.incoming, family=family
            )
            yield Leftover(f"{IP[family]} rule {rule.priority} lookup {STRICT_TABLE}", _needed_by(strict), messages=(change,))
        elif prefix is not None:
            users = [veth for veth in seen.veths if _needs_prefix_rule(veth, prefix, seen)]
            change = messages.delete_rule(rule.priority, table=rule.table, source=prefix)
            yield Leftover(
                f"{IP[family]} rule {rule.priority} from {prefix} lookup {rule.table}", _needed_by(users), messages=(change,)
            )


def _bucket_rules(rules: Collection[answers.PolicyRule], seen: KernelSurvey) -> Iterator[Leftover]:
    """Find the rules in buckets, each of which selects a single source address, and the `goto` rules that lead to the buckets.

    No pod needs a `goto` rule, because packets go the same way without it (`source_tree`).
    """
    skips = tuple(source_tree.skip_removals(rules))
    if skips:
        first, last = source_rules.JUMP_PRIORITY, source_rules.END_PRIORITY
        yield Leftover(f"{IP[IPV4]} rules {first} to {last}: {counted(len(skips), 'goto')}", messages=skips)
    # Pods without a rule at FROM_SANDBOX_PRIORITY, the only priority that amazon-vpc-cni-k8s uses for such rules.
    needing: dict[IpAddress, list[HostVeth]] = {}
    for veth in seen.veths:
        if veth.address is not None and not veth.is_dying and not _has_common_rule(veth.address, seen):
            needing.setdefault(veth.address, []).append(veth)
    for rule in source_tree.bucket_rules(rules):
        users = needing.get(rule.source, []) if rule.source else []
        change = messages.delete_rule(rule.priority, table=rule.table, source=rule.source)
        name = f"{IP[IPV4]} rule {rule.priority} from {rule.source} lookup {rule.table}"
        yield Leftover(name, _needed_by(users), messages=(change,))


def _has_common_rule(address: IpAddress, seen: KernelSurvey) -> bool:
    return any(place.priority == FROM_SANDBOX_PRIORITY for place in seen.rule_places.get(address, ()))


def _routes(sock: NetlinkSocket, family: Family, seen: KernelSurvey) -> Iterator[Leftover]:
    """Find our route tables, and the second default route of IPv6 (`static_default_route`)."""
    strict = [veth for veth in seen.uplinked if not veth.is_dying]
    reasons = {OWN_TABLE: _without_rule(seen, family), STRICT_TABLE: _needed_by(strict)}
    for table, reason in reasons.items():
        routes = survey.routes_of(sock, table=table, family=family)
        removals = tuple(route_removal(route, f"delete route {route.destination} of table {table}") for route in routes)
        if removals:
            yield Leftover(f"{IP[family]} route table {table}: {counted(len(routes), 'route')}", reason, messages=removals)
    if family is IPV6:
        for repair in static_default_route.removals(survey.routes_of(sock, table=uapi.RT_TABLE_MAIN, family=IPV6)):
            if repair.change is not None:
                yield Leftover(f"{IP[IPV6]} {repair.target}", messages=(repair.change,))


def _without_rule(seen: KernelSurvey, family: Family) -> str:
    """Return a text about the pods of a family that only `OWN_TABLE` reaches; "" if there is none.

    Such a pod has no rule of its own (TO_SANDBOX_PRIORITY), or no route in table main.
    """
    return _needed_by(
        veth
        for veth in seen.veths
        if not veth.is_dying
        and veth.address is not None
        and family_of(veth.address) is family
        and (veth.address not in seen.to_rules or veth.address not in seen.routes)
    )


def _needed_by(veths: Iterable[HostVeth]) -> str:
    """Return a text about the pods that need an object, by their host veths; "" if there is none."""
    names = sorted(veth.name for veth in veths)
    if not names:
        return ""
    return f"{counted(len(names), 'pod')} of ours need it, first {names[0]}"


def _needs_prefix_rule(veth: HostVeth, prefix: IpNetwork, seen: KernelSurvey) -> bool:
    """Whether a living pod has an address of the prefix, and no rule of its own."""
    if veth.is_dying or veth.address is None or veth.address.version != prefix.version:
        return False
    return veth.address in prefix and not seen.from_rules.get(veth.address)
