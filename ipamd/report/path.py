"""Find why a pod does or does not reach a destination, as far as this node decides about it (`ipamctl path`).

The walk asks the kernel for each decision in the order in which a packet meets the decisions. These are the route inside the pod, then
the route on the node for a packet that comes by the pod's link and has the mark of our rules, then the route of the answer. Our
nftables rules, filters of other software and facts about the ENI are added. No packet is sent and EC2 is not asked. So if the walk
finds no obstacle, the report ends with the parts beyond this node that decide about the packet.
"""

from __future__ import annotations

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cniresult import recorded_spec
from ipamd.model.errors import IpamError, NetnsError, log_text
from ipamd.model.family import IPV4, IpAddress, family_of
from ipamd.model.instance_facts import short_tcp_timeout_s
from ipamd.model.legs import Leg, addresses_of, first_leg, legs_of
from ipamd.model.packet_path import NewConnection, RouteAnswer, RoutedPacket, RouteResult
from ipamd.model.record import replace
from ipamd.model.repairs import NODE
from ipamd.model.wiring_difference import advised_texts
from ipamd.report.legs.explanations import OLDER_THAN_SETTING, setting_of_extra_legs
from ipamd.report.path_beyond import (
    KEEP_SOURCE,
    NO_POLICY,
    beyond,
    cidr_of,
    idle_connections,
    is_link_local,
    policies,
    vpc_service,
)
from ipamd.report.path_messages import PathCause, PathFinding, PathVerdict, by_weight, path_finding
from ipamd.report.path_report import LookupPlace, PathEni, PathKind, PathLookup, PathReport, UnseenPart
from ipamd.report.path_sender import PathSender, PathTarget, read_target, select_sender
from ipamd.report.sources import UNREACHED, Sources

NO_IDENTITY = "instance metadata has not answered, so this node is not known"


def trace_path(sources: Sources, subject: str, destination: str) -> PathReport:
    """Walk the path of a new connection of a pod to `ADDRESS[:PORT]`.

    Raises: InvalidRequestError if the pod is not known, or the destination is not an address. If namespace or kernel cannot be read,
        nothing is raised, and the report has a finding about it.
    """
    target = read_target(destination)
    walk = _PathWalk(sources, select_sender(sources, subject), target)
    try:
        walk.run()
    except NetnsError as error:
        walk.find(PathCause.NAMESPACE_GONE, error=log_text(error))
    except IpamError as error:
        walk.find(PathCause.UNREADABLE, error=log_text(error))
    return walk.report()


class _PathWalk:
    """The state of one walk: its lookups and its findings."""

    def __init__(self, sources: Sources, sender: PathSender, target: PathTarget) -> None:
        self._sources = sources
        self._paths = sources.paths
        self._sender = sender
        self._target = target
        self._lookups: list[PathLookup] = []
        self._findings: list[PathFinding] = []
        self._leg: Leg | None = None  # the leg by which the packet leaves the pod
        self._source = sender.bound
        self._seen_as: IpAddress | None = None
        self._eni: PathEni | None = None

    def find(self, cause: PathCause, **fields: object) -> None:
        """Add a finding."""
        common = {"pod": self._sender.name, "destination": self._target.address, "target": self._target}
        self._findings.append(path_finding(cause, **(common | fields)))

    def _commands(self, answer: RouteAnswer) -> str:
        """Return the commands that show the rule and the route table that decided about a packet."""
        command = "ip -6"
        if self._target.address.version == 4:
            command = "ip"
        if not answer.table:
            return f"`{command} rule`"
        return f"`{command} rule`, `{command} route show table {answer.table}`"

    def run(self) -> None:
        """Follow the packet out of the pod and across the node, and collect findings.

        Raises: NetnsError, WiringError, KernelDumpError.
        """
        if self._sender.is_host_network:
            self._cross_node(RoutedPacket(self._target.address, self._source, port=self._target.port))
            return
        self._find_known_defects()
        leg = self._leave_pod()
        if leg is not None:
            self._leg = leg
            self._find_filters(leg)
            packet = RoutedPacket(self._target.address, self._source, leg.host_veth, port=self._target.port)
            self._cross_node(packet)

    def _find_known_defects(self) -> None:
        """Add findings about a lost address or ENI, a contradiction by EC2, and changed wiring of the pod.

        The cause UNREACHED is left out, because this method and the walk find the reasons for it themselves.
        """
        addresses = {attachment.address for attachment in self._sender.attachments}
        for interface in self._sources.without_network():
            if interface.address in addresses and interface.cause != UNREACHED:
                self.find(PathCause.NO_NETWORK, reason=interface.cause)
        for attachment in self._sender.attachments:
            if attachment.must_be_cut_off:
                self.find(PathCause.NO_NETWORK, reason=attachment.contradiction)
            differences = self._sources.wiring.check(recorded_spec(attachment))
            if differences:
                self.find(PathCause.WIRING_DIFFERS, differences="; ".join(advised_texts(differences)))

    def _leave_pod(self) -> Leg | None:
        """Look the route up inside the pod. Returns: the leg by which the packet leaves; None if it does not leave by a leg."""
        attachment = self._sender.attachments[0]
        packet = RoutedPacket(self._target.address, self._source, port=self._target.port)
        answer = self._paths.inside(attachment.netns, packet)
        self._lookups.append(PathLookup(LookupPlace.POD, packet, answer))
        if answer.result is RouteResult.LOCAL:
            self.find(PathCause.ITSELF)
            return None
        if not answer.is_sent:
            self._find_refusal_in_pod(answer)
            return None
        for attachment in self._sender.attachments:
            for leg in legs_of(recorded_spec(attachment)):
                if leg.ifname == answer.link:
                    self._source = answer.source or leg.address
                    return leg
        self.find(PathCause.FOREIGN_INTERFACE, link=answer.link)
        return None

    def _find_refusal_in_pod(self, answer: RouteAnswer) -> None:
        family = family_of(self._target.address)
        for attachment in self._sender.attachments:
            for address in addresses_of(attachment):
                if family_of(address) is family:
                    self.find(PathCause.POD_REFUSES, error=answer.error)
                    return
        name = "IPv4" if family is IPV4 else "IPv6"
        self.find(PathCause.NO_FAMILY, family=name, setting=setting_of_extra_legs(family))

    def _cross_node(self, packet: RoutedPacket) -> None:
        """Look the route up on the node, with the mark that our rules give the packet, and judge the result.

        The kernel sets the mark before it looks up the route, and translates the source address after that.
        """
        identity = self._sources.identity()
        if identity is None:
            self.find(PathCause.UNREADABLE, error=NO_IDENTITY)
            return
        is_for_node = self._paths.on_node(RoutedPacket(packet.destination)).result is RouteResult.LOCAL
        connection = NewConnection(packet.source, packet.destination, packet.incoming, is_for_node=is_for_node)
        packet = replace(packet, mark=self._paths.translation(connection, identity).mark)
        answer = self._paths.on_node(packet)
        self._lookups.append(PathLookup(LookupPlace.NODE, packet, answer))
        self._source = answer.source or packet.source
        if answer.result is RouteResult.DROPPED_BY_SOURCE:
            self.find(PathCause.REVERSE_PATH, incoming=packet.incoming, source=packet.source, rule=_rule_words(answer))
            return
        if answer.result is RouteResult.REFUSED:
            self.find(PathCause.NODE_REFUSES, rule=_rule_words(answer), commands=self._commands(answer), error=answer.error)
            return
        translation = self._paths.translation(replace(connection, source=self._source, outgoing=answer.link), identity)
        if translation.is_rejected:
            self.find(PathCause.LOCAL_RANGE)
        self._seen_as = translation.source or self._source
        self._judge_exit(answer, is_translated=translation.source is not None)
        self._judge_answer(packet, answer)

    def _judge_exit(self, answer: RouteAnswer, *, is_translated: bool) -> None:
        """Add a finding about where the packet goes: the node itself, a pod on it, an ENI, or a foreign link."""
        rule = _rule_words(answer)
        if answer.result is RouteResult.LOCAL:
            self.find(PathCause.NODE, rule=rule)
            return
        for attachment in self._sources.datastore.attachments():
            if answer.link in (leg.host_veth for leg in legs_of(attachment.wiring)):
                self.find(PathCause.POD_ON_NODE, pod=attachment.sandbox_name or attachment.key, link=answer.link)
                return
        self._eni = self._eni_of(answer.link)
        if self._eni is None:
            self.find(PathCause.FOREIGN_LINK, link=answer.link, rule=rule)
            return
        owner = self._owner_of_source(is_translated=is_translated)
        if owner not in ("", self._eni.eni_id):
            commands = self._commands(answer)
            self.find(PathCause.SOURCE_CHECK, eni=self._eni.eni_id, source=self._seen_as, owner=owner, commands=commands)
        self._find_exit(self._eni, is_translated=is_translated)

    def _find_exit(self, eni: PathEni, *, is_translated: bool) -> None:
        """Add the finding that the packet leaves by an ENI: to a service of AWS, to a link-local address that nothing beyond the node
        is known to have, or to any other destination.
        """
        identity = self._sources.identity()
        service = vpc_service(self._target.address, identity.vpc_cidrs if identity else ())
        if service is not None:
            self.find(PathCause.VPC_SERVICE, link=eni.link, eni=eni.eni_id, service=service.name, mend=service.mend)
            return
        if is_link_local(self._target.address):
            self.find(PathCause.NO_AGENT, link=eni.link, eni=eni.eni_id)
            return
        seen, mend = f"and the other side sees {self._seen_as}", ""
        if is_translated:
            seen = f"but the other side sees the node's address {self._seen_as}, not the pod's"
            mend = KEEP_SOURCE.format(seen_as=self._seen_as, cidr=cidr_of(self._target.address))
        setting = self._outdated_setting()
        if setting:
            seen += "; " + OLDER_THAN_SETTING.format(setting=setting)
        self.find(PathCause.LEAVES, link=eni.link, eni=eni.eni_id, seen=seen, mend=mend)

    def _outdated_setting(self) -> str:
        """Return the setting whose present value does not apply to the pod's SNAT, because the pod is older; "" if there is none."""
        choice = self._sources.snat_choice
        settings = [choice.outdated_setting(attachment) for attachment in self._sender.attachments]
        return next(filter(None, settings), "")

    def _eni_of(self, link: str) -> PathEni | None:
        """Return the ENI of a link; None for a foreign link. The ENI may be the branch ENI of a pod."""
        for attachment in self._sender.attachments:
            uplink = first_leg(attachment.wiring).uplink
            if uplink and uplink.link == link:
                return PathEni(attachment.eni_id, link)
        enis, identity = self._sources.datastore.enis(), self._sources.identity()
        names = self._paths.eni_links([eni.mac for eni in enis])
        eni = next((eni for eni in enis if names.get(eni.mac) == link), None)
        if eni is None:
            return None
        groups = self._sources.groups_of(eni.eni_id)
        if eni.is_primary and identity is not None:
            groups = identity.security_group_ids
        return PathEni(eni.eni_id, link, eni.device_index, eni.network_card, eni.subnet_id, groups)

    def _owner_of_source(self, *, is_translated: bool) -> str:
        """Return the ENI that has the source address which EC2 sees; "" if it is not known."""
        enis = self._sources.datastore.enis()
        if is_translated:
            return next((eni.eni_id for eni in enis if eni.is_primary), "")
        for attachment in self._sender.attachments:
            if attachment.address == self._seen_as:
                return attachment.eni_id
        return next((eni.eni_id for eni in enis if eni.primary_address == self._seen_as), "")

    def _judge_answer(self, packet: RoutedPacket, answer: RouteAnswer) -> None:
        """Look up the route of the packet with which the destination answers, and judge it.

        That packet is sent to the pod's address, because connection tracking restores this address before the route is looked up.
        Nothing is judged if the source address is not known.
        `packet`, `answer`: the packet on its way out, and the node's route for it.
        """
        if self._source is None:
            return
        incoming = answer.link
        if answer.result is RouteResult.LOCAL:
            incoming = ""
        back = RoutedPacket(self._source, packet.destination, incoming)
        answer_back = self._paths.on_node(back)
        self._lookups.append(PathLookup(LookupPlace.ANSWER, back, answer_back))
        rule = _rule_words(answer_back)
        if answer_back.result is RouteResult.DROPPED_BY_SOURCE:
            self.find(PathCause.ANSWER_REVERSE_PATH, link=incoming, rule=rule)
        elif answer_back.result is RouteResult.REFUSED:
            self.find(PathCause.ANSWER_REFUSED, rule=rule, commands=self._commands(answer_back), error=answer_back.error)
        elif self._is_diverted(packet, answer_back, incoming):
            fields = {"link": answer_back.link, "expected": packet.incoming or "a process", "rule": rule}
            self.find(PathCause.ANSWER_DIVERTED, commands=self._commands(answer_back), **fields)

    def _is_diverted(self, packet: RoutedPacket, answer_back: RouteAnswer, incoming: str) -> bool:
        """Whether the answer takes another link than the link by which the packet came.

        If a process of the node sent the packet: whether the answer does not go to the node itself.
        `incoming`: the link by which the answer comes to the node; "" if the node itself answers.
        """
        if not packet.incoming:
            return answer_back.result is not RouteResult.LOCAL
        is_by_uplink_alone = self._leg is not None and not self._leg.is_in_shared_tables
        if is_by_uplink_alone and not incoming:
            return False  # the node reaches such a pod only through the VPC, so its answer takes that way too
        return answer_back.link != packet.incoming

    def _find_filters(self, leg: Leg) -> None:
        """Add filters of other software that drop, or may drop, packets of this pod."""
        for problem in self._paths.filters({leg.address}):
            if problem.subject.startswith(NODE) or problem.subject in (str(leg.address), leg.host_veth):
                cause = PathCause.MAY_BE_FILTERED
                if problem.loses_packets:
                    cause = PathCause.FILTERED
                self.find(cause, what=problem.text, mend=problem.mend)

    def report(self) -> PathReport:
        """Make the report of the findings.

        If the packet is not dropped here, the report lists the parts beyond this node that decide about the packet.
        """
        findings = tuple(by_weight(self._findings))
        sandbox, policy_mode = "", NO_POLICY
        if not self._sender.is_host_network:
            sandbox = self._sender.attachments[0].key.container_id
            policy_mode = self._sources.settings.now.policy.mode
        unseen: tuple[UnseenPart, ...] = ()
        if findings[0].verdict is not PathVerdict.DROPPED:
            unseen = tuple(self._unseen(policy_mode))
        return PathReport(
            pod=self._sender.name,
            sandbox=sandbox,
            kind=self._kind(),
            source=self._source,
            destination=self._target.address,
            port=self._target.port,
            findings=findings,
            lookups=tuple(self._lookups),
            eni=self._eni,
            translated=self._seen_as is not None and self._seen_as != self._source,
            seen_as=self._seen_as,
            policy_mode=policy_mode,
            unseen=unseen,
        )

    def _kind(self) -> str:
        if self._sender.is_host_network:
            return PathKind.HOST_NETWORK
        if self._leg is None:
            return PathKind.UNKNOWN
        return self._leg.kind

    def _unseen(self, mode: str) -> list[UnseenPart]:
        parts = list(policies(mode, self._sender.name))
        identity = self._sources.identity()
        if self._eni is not None and self._seen_as is not None and identity is not None:
            translated = self._seen_as != self._source
            cidrs = identity.vpc_cidrs
            parts += beyond(self._eni, self._target, seen_as=self._seen_as, translated=translated, vpc_cidrs=cidrs)
            parts += self._idle_connections(identity)
        return parts

    def _idle_connections(self, identity: InstanceIdentity) -> list[UnseenPart]:
        """Return the part that forgets idle connections soon, if this node's security groups do."""
        limits = self._sources.pool.limits
        if limits is None or vpc_service(self._target.address, identity.vpc_cidrs) is not None:
            return []
        timeout_s = short_tcp_timeout_s(limits, self._sources.tracking_of(identity.primary_eni_id))
        return [idle_connections(timeout_s)] if timeout_s else []


def _rule_words(answer: RouteAnswer) -> str:
    """Name the rule that decided, in the words of `ip rule`, or else the route table."""
    if answer.rule is not None:
        return f"rule {answer.rule}: {answer.rule_text}"
    if answer.table:
        return f"table {answer.table}"
    return "by no rule that is known"
