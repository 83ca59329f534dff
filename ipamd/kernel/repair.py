"""Put right what something else on the node changed of one wired sandbox, object by object and without a dump of the whole node.

Additions ask the kernel to refuse what exists, so an object that was there all the time is neither touched nor counted. A link is
ours if it is a veth of the recorded name whose alias or MAC is this sandbox's: one of both may have been changed. The datastore says
who owns the address, so a route that leads elsewhere is replaced, unless it leads to another sandbox's veth (I1). A missing link
cannot be restored: the sandbox must be created again. A sandbox's own side is its own: `checks` names what differs there.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace

from ipamd.kernel import checks, messages, records, survey, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import WiringSpec, decode_alias
from ipamd.model.kernel import KernelSurvey, Repaired, RepairedObject, RepairKind


@dataclass(slots=True)
class SandboxRepair:
    """The repair of one sandbox: sends each change at once, and keeps a sentence of those that changed something.

    `held`: objects that are left as they are.
    """

    sock: NetlinkSocket
    spec: WiringSpec
    held: Collection[RepairedObject]
    sentences: list[str] = field(default_factory=list)

    def make(self, kind: RepairKind, changes: Iterable[tuple[Message, str]]) -> bool:
        """Make changes of one kind, each with its sentence. A refusal becomes a sentence. Returns: whether any changed something."""
        thing = RepairedObject(kind, str(self.spec.address))
        made = False
        for message, sentence in () if thing in self.held else changes:
            (outcome,) = self.sock.request([message])
            if outcome.errno == 0:
                self.sentences.append(Repaired(sentence, thing))
                made = True
            elif outcome.is_refused:
                self.sentences.append(f"{message.step} failed: {outcome.cause}")
        return made

    def host_side(self, seen: KernelSurvey) -> None:
        """Restore link, route and rules in the host's namespace; `seen` names rules to other tables.

        Raises: KernelDumpError, WiringError.
        """
        spec = self.spec
        link = checks.find_link(self.sock, spec.host_veth)
        if link is None or link.group == uapi.DYING_GROUP:
            self.sentences.append(f"host link {spec.host_veth} of {spec.key} is missing: not repaired")
            return
        doubt = _doubt(link, spec)
        if doubt:
            self.sentences.append(f"host link {link.name} {doubt}: not repaired")
            return
        self.make(RepairKind.LINK, _link_changes(link, spec))
        self._route(link)
        self._rules(seen)

    def _route(self, link: records.Link) -> None:
        spec = self.spec
        through_it = survey.routes_of(self.sock, table=uapi.RT_TABLE_MAIN, index=link.index)
        if any(one.destination == spec.address and one.length == 32 and one.metric == 0 and not one.via for one in through_it):
            return
        add = messages.add_route(spec.address, index=link.index, step=f"add route {spec.address} dev {link.name}")
        exists = replace(add, tolerated=messages.PRESENT)
        if self.make(RepairKind.ROUTE, [(exists, f"route {spec.address} dev {link.name} was missing: added")]):
            return
        # Of routes without a metric the kernel has one for each destination: the one that was in the way.
        for other in survey.routes_of(self.sock, table=uapi.RT_TABLE_MAIN):
            if other.destination == spec.address and other.length == 32 and other.metric == 0:
                self._take_back(link, other)

    def _take_back(self, link: records.Link, other: records.Route) -> None:
        spec = self.spec
        elsewhere = checks.find_link(self.sock, other.index)
        name = elsewhere.name if elsewhere else f"link {other.index}"
        claim = decode_alias(elsewhere.alias) if elsewhere is not None and elsewhere.index != link.index else None
        if claim is not None and claim[1] == spec.address:
            self.sentences.append(f"{spec.address} of {spec.key} is routed through {name} of {claim[0]}: not repaired")
            return
        put = messages.add_route(
            spec.address, index=link.index, is_replaced=True, step=f"replace route {spec.address} dev {link.name}"
        )
        self.make(RepairKind.ROUTE, [(put, f"route {spec.address} led through {name}, not {link.name}: replaced")])

    def _rules(self, seen: KernelSurvey) -> None:
        spec = self.spec
        to_main, from_sandbox = dataplane.TO_SANDBOX_PRIORITY, dataplane.FROM_SANDBOX_PRIORITY
        added = messages.add_rule(to_main, table=uapi.RT_TABLE_MAIN, destination=spec.address)
        wanted = [(added, f"rule {to_main} to {spec.address} was missing: added")]
        if spec.route_table != uapi.RT_TABLE_MAIN:
            added = messages.add_rule(from_sandbox, table=spec.route_table, source=spec.address)
            wanted.append((added, f"rule {from_sandbox} from {spec.address} lookup {spec.route_table} was missing: added"))
        for table in dict.fromkeys(seen.from_rules.get(spec.address, ())):
            if table != spec.route_table:
                stale = messages.delete_rule(from_sandbox, table=table, source=spec.address)
                wanted.append((stale, f"rule {from_sandbox} from {spec.address} looked up table {table}: removed"))
        self.make(RepairKind.RULE, wanted)


def _doubt(link: records.Link, spec: WiringSpec) -> str:
    """Why a link of the recorded name may be another sandbox's; "" if its alias or its MAC proves that it is this one's."""
    identity = decode_alias(link.alias)
    if link.kind != uapi.VETH_KIND:
        return f"is of kind {link.kind or 'hardware'}, not a veth of {spec.key}"
    if identity is not None and identity != (spec.key, spec.address):
        return f"says {identity[0]} with {identity[1]}, not {spec.key}"
    if identity is None and link.mac != (spec.mac("host") or link.mac):
        return f"has neither alias nor MAC of {spec.key}"
    return ""


def _link_changes(link: records.Link, spec: WiringSpec) -> Iterable[tuple[Message, str]]:
    who, mac = f"host link {link.name} of {spec.key}", spec.mac("host")
    # The alias first: while it and the MAC are wrong at once nothing proves whose link it is.
    if link.alias != spec.alias:
        yield messages.change_link(link.index, step=f"name {link.name}", alias=spec.alias), f"{who} had alias {link.alias!r}: set"
    if mac and link.mac != mac:
        yield messages.change_link(link.index, step=f"set MAC of {link.name}", mac=mac), f"{who} had MAC {link.mac}: set to {mac}"
    if spec.is_mtu_known and link.mtu != spec.mtu:
        change = messages.change_link(link.index, step=f"set MTU of {link.name}", mtu=spec.mtu)
        yield change, f"{who} had MTU {link.mtu}: set to {spec.mtu}"
    if not link.is_up:
        yield messages.change_link(link.index, step=f"raise {link.name}", is_up=True), f"{who} was down: raised"
