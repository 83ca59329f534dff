"""Take over the sandboxes that amazon-vpc-cni-k8s wired: find the sandbox of each of its host veths, and write our alias on the veth.

A veth with our alias is treated like a veth of ours whose row was lost: kernel and runtime decide whether its sandbox is adopted
(docs/adr/0010, docs/adr/0037). Its routes and rules are not changed. A veth whose sandbox is unknown stays as it is, and its address
is not assigned. Such a veth is checked again with each list of the runtime, because its sandbox may appear in the list, or may have
been deleted.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence

from ipamd.core.context import Service, ServiceContext
from ipamd.migration.handover import OtherDaemon
from ipamd.migration.legs.leg import ExtraLegImport, FirstLegImport, ImportPass, Takeover
from ipamd.model.attachment import pod_veth_name
from ipamd.model.aws_node import Allocation, ImportResult, UnidentifiedVeth
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import ForeignStateError, IpamError, log_text
from ipamd.model.family import IpAddress
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.sandbox import Sandbox
from ipamd.ports.aws_node import AwsNode

CONDITION = "import"

log = logging.getLogger(__name__)


class ImportService(Service):
    """Identifies sandboxes and writes aliases. It writes nothing to the disk, so after a crash the whole import is repeated."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        aws_node: AwsNode,
        kinds: Sequence[FirstLegImport],
        extra: Sequence[ExtraLegImport],
        other: OtherDaemon,
        prefix: str,
    ) -> None:
        """Keep the collaborators.

        Args:
            kinds: the importers of first legs, one for each kind. The first importer that recognises a host veth takes it over.
            extra: the importers of extra legs.
            other: checks for the daemon of amazon-vpc-cni-k8s.
            prefix: the beginning of the names that aws-node gives to host veths.
        """
        super().__init__(context)
        self._kinds = kinds
        self._extra = extra
        self._other = other
        self._aws_node = aws_node
        self._prefix = prefix
        self._allocations: tuple[Allocation, ...] = ()
        self._unnamed: frozenset[int] = frozenset()

    def take_over(self, survey: KernelSurvey, listed: Mapping[str, Sandbox] | None) -> ImportResult:
        """Write our alias on every host veth that has none and whose sandbox can be identified.

        `listed`: the runtime's sandboxes by container ID, None if it did not answer.
        Raises nothing. The result lists as unnamed each veth that could not be taken over. If aws-node's file cannot be read, that is
        reported as an error.
        """
        foreign = _foreign_veths(survey)
        self._allocations = ()
        try:
            if foreign:
                self._allocations = self._aws_node.allocations()
        except ForeignStateError as error:
            self._health.record_error("import", error)
            log.warning("sandboxes are taken over without the file of amazon-vpc-cni-k8s error=%s", log_text(error))
        return self._stamp_all(foreign, survey, listed)

    def retry_unnamed(self, listed: Mapping[str, Sandbox]) -> list[HostVeth]:
        """Look for aws-node's pod, and write our alias on veths whose sandbox could not be identified before.

        aws-node's file is not read again. A veth that cannot be taken over is tried again with the next list.
        `listed`: the runtime's new list, by container ID. Returns: the veths that got our alias. Raises nothing.
        """
        self._other.check_pods(listed.values())
        if not self._unnamed:
            return []
        try:
            survey = self._wiring.survey()
        except IpamError as error:
            log.info("takeover of host veths will be retried error=%s", log_text(error))
            return []
        # Only veths that an earlier import could not identify. Any other veth without our alias may be one of a running ADD, which
        # sets the alias later.
        unnamed_veths = [veth for veth in _foreign_veths(survey) if veth.ifindex in self._unnamed]
        names = {veth.name for veth in unnamed_veths}
        veths = self._stamp_all(unnamed_veths, survey, listed).veths
        return [veth for veth in veths if veth.name in names and veth.key is not None]

    def left_chains(self) -> tuple[Collection[str] | None, bool]:
        """Return the nftables chains of amazon-vpc-cni-k8s that can be removed, because our own rules replace them.

        Returns: the names of these chains, or None if all chains can be removed because every sandbox has been taken over; and whether
            this answer is final, which means that later calls will return nothing else.
        """
        if not self._unnamed:
            return None, True
        attachments = self._datastore.attachments()
        names = list[str]()
        for kind in self._extra:
            names += kind.left_chains(attachments)
        return names, False

    def _stamp_all(self, foreign: list[HostVeth], survey: KernelSurvey, listed: Mapping[str, Sandbox] | None) -> ImportResult:
        """Take over the foreign veths whose sandbox can be identified, and report the others."""
        by_device = _addresses_by_device(survey)
        import_pass = ImportPass(survey, listed, self._allocations)
        unnamed: list[UnidentifiedVeth] = []
        for kind in self._extra:
            kind.find_legs(foreign)
        for veth in foreign:
            addresses = tuple(sorted(by_device.get(veth.name, ()))) or self._diverted_addresses(veth, survey)
            takeover = self._take_over_veth(veth, addresses, import_pass)
            if takeover.reason:
                unnamed.append(UnidentifiedVeth(veth, takeover.addresses, takeover.reason))
        self._record_unnamed(unnamed)
        veths = tuple(import_pass.firsts.get(veth.name, veth) for veth in survey.firsts)
        return ImportResult(veths, unnamed, import_pass.extra, import_pass.uplinks)

    def _take_over_veth(self, veth: HostVeth, addresses: tuple[IpAddress, ...], import_pass: ImportPass) -> Takeover:
        for kind in self._kinds:
            takeover = kind.take_over(veth, addresses, import_pass)
            if takeover is not None:
                return takeover
        return Takeover(addresses, "its purpose is not known")

    def _record_unnamed(self, unnamed: Sequence[UnidentifiedVeth]) -> None:
        """Remember and report the veths whose sandbox is not known. If there is none, forget the allocations that were read from
        aws-node's file, because they are no longer needed.
        """
        self._unnamed = frozenset(unnamed_veth.veth.ifindex for unnamed_veth in unnamed)
        if not unnamed:
            self._allocations = ()
            self._health.report(CONDITION, None)
            return
        links = []
        for unnamed_veth in unnamed:
            addresses = ", ".join(map(str, unnamed_veth.addresses)) or "no address"
            links.append(f"{unnamed_veth.veth.name} ({addresses}): {unnamed_veth.reason}")
        self._health.report(CONDITION, problem(ConditionCode.LINKS_NOT_IMPORTED, links="; ".join(links)))

    def _diverted_addresses(self, veth: HostVeth, survey: KernelSurvey) -> tuple[IpAddress, ...]:
        """Return the address that aws-node's file has for the pod of a veth, if the address is routed to another link.

        That is so if both daemons assigned the address. Returns: () if there is no such address.
        """
        for allocation in self._allocations:
            if not allocation.pod_name or allocation.address not in survey.routes:
                continue
            if pod_veth_name(allocation.pod_namespace, allocation.pod_name, prefix=self._prefix) == veth.name:
                return (allocation.address,)
        return ()


def _foreign_veths(survey: KernelSurvey) -> list[HostVeth]:
    """List the host veths without our alias that are not being deleted."""
    return [veth for veth in survey.firsts if veth.key is None and not veth.is_dying]


def _addresses_by_device(survey: KernelSurvey) -> dict[str, list[IpAddress]]:
    """Map each device to the addresses that are routed through it."""
    by_device: dict[str, list[IpAddress]] = {}
    for address, device in survey.routes.items():
        by_device.setdefault(device, []).append(address)
    return by_device
