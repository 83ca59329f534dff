"""Take over the sandboxes that amazon-vpc-cni-k8s wired: find out whose each of its host veths is, and write our alias on it.

From then on such a veth is like one of ours whose row was lost: kernel and runtime decide whether it is adopted (docs/adr/0010,
docs/adr/0037). Nothing that carries its packets is changed. A veth whose sandbox nobody can name stays as it is, and its address is
given to nobody; it is looked at again with each list of the runtime, which may name it later, or have deleted it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from ipamd.core.context import Service, ServiceContext
from ipamd.migration.handover import OtherDaemon
from ipamd.model.attachment import POD_IFNAME, AttachRequest, SandboxNames, pod_veth_name
from ipamd.model.aws_node import Allocation, ImportResult, Led, Unnamed, egress_chain, identify, identify_branch, led_to_branch
from ipamd.model.errors import ForeignStateError, IpamError, log_text
from ipamd.model.family import Family, IpAddress
from ipamd.model.ids import AttachmentKey, IfName
from ipamd.model.kernel import HostVeth, KernelSurvey, VlanLink
from ipamd.model.sandbox import Sandbox
from ipamd.model.words import counted
from ipamd.ports import AwsNode, PodFactsSource

CONDITION = "import"

FACTS_S = 2.0
"""For one answer about a pod. Ours, as an ADD's."""

FAILPOINTS = ("import.second", "import.stamped")

log = logging.getLogger(__name__)


class ImportService(Service):
    """Identifies and stamps; records nothing, so it is repeated whole after a crash."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        aws_node: AwsNode,
        other: OtherDaemon,
        prefix: str,
        egress: Family,
        has_branches: bool,
        pod_facts: PodFactsSource | None,
    ) -> None:
        """`egress`: the family that is not the pool's, whatever the settings say: its plugin may have given addresses of it.
        `has_branches`: pods may have branch ENIs; `pod_facts`: who tells their annotations where the runtime does not."""
        super().__init__(context)
        self._has_branches = has_branches
        self._pod_facts = pod_facts
        self._egress = egress
        self._other = other
        self._aws_node = aws_node
        self._prefix = prefix
        self._told: tuple[Allocation, ...] = ()
        self._unnamed: frozenset[int] = frozenset()

    def take_over(self, survey: KernelSurvey, listed: Mapping[str, Sandbox] | None) -> ImportResult:
        """Stamp every host veth without our alias whose sandbox can be named.

        Raises: nothing: a veth that refuses is unnamed, and its file that cannot be read is the last error.
        """
        foreign = [veth for veth in survey.firsts if veth.key is None and not veth.is_dying]
        try:
            self._told = self._aws_node.allocations() if foreign else ()
        except ForeignStateError as error:
            self._told = ()
            self._health.record_error("import", error)
            log.warning("sandboxes are taken over without the file of amazon-vpc-cni-k8s error=%s", log_text(error))
        return self._stamp_all(foreign, survey, listed)

    def look_again(self, listed: Mapping[str, Sandbox]) -> list[HostVeth]:
        """Look for its daemon's pod, and stamp what the start could not name and can be named now, by what its file said then.

        Returns: those that carry our alias now. Raises: nothing; the next list tries again.
        """
        self._other.heed(listed.values())
        if not self._unnamed:
            return []
        try:
            survey = self._wiring.survey()
        except IpamError as error:
            log.info("host veths that are not ours are judged later error=%s", log_text(error))
            return []
        # None but those: a link of an ADD that is under way has no alias for an instant.
        left = [one for one in survey.firsts if one.ifindex in self._unnamed and one.key is None and not one.is_dying]
        names = {one.name for one in left}
        return [one for one in self._stamp_all(left, survey, listed).veths if one.name in names and one.key is not None]

    def left_egress(self) -> tuple[Collection[str] | None, bool]:
        """Say which of the chains by which its plugin translates sandboxes' egress are not needed: those whose sandboxes are ours.

        Returns: their names, None for all; and whether that is final. All go once no sandbox is its any more, because our one rule
        translates for whoever has such an address.
        """
        if not self._unnamed:
            return None, True
        name, family = self._aws_node.network_name(), self._egress
        ours = (one.key.container_id for one in self._datastore.attachments() if one.other_address is not None)
        return [egress_chain(name, container_id, family=family) for container_id in ours], False

    def _stamp_all(self, foreign: list[HostVeth], survey: KernelSurvey, listed: Mapping[str, Sandbox] | None) -> ImportResult:
        routed: dict[str, list[IpAddress]] = {}
        for address, device in survey.routes.items():
            routed.setdefault(device, []).append(address)
        result = ImportResult(())
        stamped: dict[str, HostVeth] = {}
        seconds = self._second_links(foreign)
        for veth in foreign:
            addresses = tuple(sorted(routed.get(veth.name, ()))) or self._led_elsewhere(veth, survey)
            led = led_to_branch(veth, survey)
            if isinstance(led, Led):
                why, addresses = self._take_over_branch(veth, led, listed, stamped, result.vlans), (led.address,)
            else:
                why = led or self._take_over_one(veth, addresses, listed, stamped, seconds, result.egress)
            if why:
                result.unnamed.append(Unnamed(veth, addresses, why))
        result.veths = tuple(stamped.get(veth.name, veth) for veth in survey.firsts)
        self._unnamed = frozenset(one.veth.ifindex for one in result.unnamed)
        if not result.unnamed:
            self._told = ()
        named = "; ".join(
            f"{one.veth.name} ({', '.join(map(str, one.addresses)) or 'no address'}): {one.why}" for one in result.unnamed
        )
        self._health.report(CONDITION, named and f"{CONDITION}: host veths that are not ours, left as they are: {named}")
        return result

    def _second_links(self, foreign: list[HostVeth]) -> dict[str, int]:
        try:
            return dict(self._wiring.second_links(foreign, egress=self._egress))
        except IpamError as error:  # then no sandbox is taken over by halves: those that have one are looked at again
            log.warning("links for egress are taken over later error=%s", log_text(error))
            return dict.fromkeys((one.name for one in foreign), 0)

    def _led_elsewhere(self, veth: HostVeth, survey: KernelSurvey) -> tuple[IpAddress, ...]:
        """The address that its file has for the pod by which a link is named, if packets to it go to another link: both gave it."""
        named = (one for one in self._told if one.pod_name and one.address in survey.routes)
        named = (one for one in named if pod_veth_name(one.pod_namespace, one.pod_name, prefix=self._prefix) == veth.name)
        return tuple(one.address for one in named)[:1]

    def _take_over_branch(
        self,
        veth: HostVeth,
        led: Led,
        listed: Mapping[str, Sandbox] | None,
        stamped: dict[str, HostVeth],
        vlans: dict[str, VlanLink],
    ) -> str:
        """Stamp one veth that leads to a branch ENI, and its VLAN link. Returns: why it was not, "" if it was."""
        if not self._has_branches:
            return f"it has a branch ENI by {led.link.name}: set ENABLE_POD_ENI=true, or delete its pod"
        found = identify_branch(veth.name, led, listed=listed, annotation=self._annotation, prefix=self._prefix)
        if isinstance(found, str):
            return found
        key, eni_id = found
        try:
            stamped[veth.name], vlans[led.link.name] = self._wiring.stamp_branch(veth, led, key=key, eni_id=eni_id)
        except Exception as error:  # noqa: BLE001  # top of the work on one veth: the others must not wait for it
            return log_text(error)
        self._failpoint("import.stamped")
        log.info("imported veth=%s address=%s sandbox=%s eni=%s link=%s", veth.name, led.address, key, eni_id, led.link.name)
        return ""

    def _annotation(self, sandbox: Sandbox) -> str:
        """As it was when the sandbox was begun; if it came later, as whoever knows the pod has it now."""
        if sandbox.branch_annotation or self._pod_facts is None:
            return sandbox.branch_annotation
        key = AttachmentKey(sandbox.container_id, IfName(POD_IFNAME))
        names = SandboxNames(sandbox.pod_namespace, sandbox.pod_name, sandbox.pod_uid)
        return self._pod_facts.facts(AttachRequest(key, "", "", "", "", names), timeout_s=FACTS_S).annotation

    def _take_over_one(
        self,
        veth: HostVeth,
        addresses: tuple[IpAddress, ...],
        listed: Mapping[str, Sandbox] | None,
        stamped: dict[str, HostVeth],
        seconds: Mapping[str, int],
        egress: list[HostVeth],
    ) -> str:
        """Stamp one veth. Returns: why it was not, "" if it was."""
        if len(addresses) != 1:
            return f"main has {counted(len(addresses), 'route')} to a single address through it, not 1"
        (address,) = addresses
        known = next((one for one in self._datastore.attachments() if one.host_veth == veth.name), None)
        if known is not None and known.address == address:
            key, witness = known.key, "its row"
        else:
            found = identify(veth.name, address, allocations=self._told, listed=listed, prefix=self._prefix)
            if isinstance(found, str):
                return found
            key, witness = found
        try:
            if (second := seconds.get(veth.name)) is not None:  # first, so that the sandbox is never recorded without it
                told = self._aws_node.egress_addresses(self._egress).get(key.container_id)
                egress.append(self._wiring.take_second(second, first=veth, key=key, egress=self._egress, told=told))
                self._failpoint("import.second")
            stamped[veth.name] = self._wiring.stamp(veth, key=key, address=address)
        except Exception as error:  # noqa: BLE001  # top of the work on one veth: the others must not wait for it
            return log_text(error)
        self._failpoint("import.stamped")
        log.info("imported veth=%s address=%s sandbox=%s witness=%s", veth.name, address, key, witness)
        return ""
