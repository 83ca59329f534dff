"""CHECK: compare a sandbox's wiring with its record, and the host's networking with the needs of the sandbox.

CHECK reports every difference at once and repairs nothing: repairs are the work of the host network reconciler. CHECK also fails for a
sandbox whose address somebody has taken away at EC2. Nothing on the node is wrong then, but the sandbox has lost the network that ADD
promised.
"""

from __future__ import annotations

from collections.abc import Callable

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cni_request import AttachRequest
from ipamd.model.cniresult import recorded_spec, result_differences
from ipamd.model.errors import CheckFailedError, UnknownAttachmentError
from ipamd.model.record import dataclass, field
from ipamd.model.routing_difference import RoutingDifference
from ipamd.model.wiring_difference import WiringDifference, advised_texts
from ipamd.ports.kernel import HostNetwork


@dataclass(slots=True)
class _Problems:
    """The problems that one CHECK found.

    `lost`: for each interface to which the VPC delivers no packets, a sentence that says why, and what to do.
    `result`: sentences about differences between the record and the result that the runtime passes.
    `wiring`: differences between the record and the sandbox's own links, routes and rules.
    `host`: differences of the node's networking because of which the sandbox loses packets.
    """

    lost: list[str] = field(default_factory=list)
    result: list[str] = field(default_factory=list)
    wiring: list[WiringDifference] = field(default_factory=list)
    host: list[RoutingDifference] = field(default_factory=list)

    def texts(self) -> list[str]:
        """Return all problems as sentences; [] if there is none."""
        host_texts = [f"host: {difference.advised_text}" for difference in self.host]
        return [*self.lost, *self.result, *advised_texts(self.wiring), *host_texts]


class CheckService(Service):
    """Serves CHECK."""

    def __init__(self, context: ServiceContext, *, hostnet: HostNetwork, identity: Callable[[], InstanceIdentity | None]) -> None:
        """`identity`: returns the instance's identity, None before instance metadata has answered. Without it the node's own routing
        is not compared.
        """
        super().__init__(context)
        self._hostnet = hostnet
        self._identity = identity

    def check_sandbox(self, request: AttachRequest, *, deadline: Deadline) -> None:
        """Compare a sandbox with its record.

        Raises: UnknownAttachmentError if there is no record; CheckFailedError with every difference; KernelDumpError if the kernel
            could not be read; BusyError if another operation on the sandbox goes on until the deadline.
        """
        with self._locks.hold(request.key, "CHECK", deadline):
            attachment = self._datastore.attachment(request.key)
            if attachment is None:
                raise UnknownAttachmentError(
                    f"sandbox {request.key} is not attached", details="DEL it and let the runtime make a new one"
                )
            problems = _Problems()
            for interface in [attachment, *self._datastore.card_interfaces(attachment.key)]:
                self._check_interface(interface, request, problems)
        texts = problems.texts()
        if texts:
            raise CheckFailedError(
                f"sandbox {request.key} differs from {'what EC2 shows' if problems.lost else 'its record'}",
                details="; ".join(texts),
                address=str(attachment.address),
                eni_id=attachment.eni_id,
                lost=problems.lost[0] if problems.lost else "",
                differences=(
                    *(difference.code for difference in problems.wiring),
                    *(difference.code for difference in problems.host),
                ),
            )

    def _check_interface(self, interface: Attachment, request: AttachRequest, problems: _Problems) -> None:
        """Add the problems of one interface to `problems`."""
        lost = self._lost_at_ec2(interface)
        if lost:
            problems.lost.append(lost)
        if request.prev_result is not None:
            problems.result += result_differences(
                request.prev_result, ifname=interface.key.ifname, address=interface.address, netns=request.netns
            )
        problems.wiring += self._wiring.check(recorded_spec(interface, netns=request.netns))
        problems.host += [difference for difference in self._host_problems(interface) if difference not in problems.host]

    def _host_problems(self, attachment: Attachment) -> list[RoutingDifference]:
        """List the faults that keep packets from the sandbox: faults of the node, and of the ENI that has the address.

        Returns: [] also if the ENI of an address of the pool is not recorded, because `_lost_at_ec2` reports that.
        """
        eni = self._datastore.eni(attachment.eni_id)
        if eni is None and attachment.is_of_pool:
            return []
        differences = self._hostnet.differences(identity=self._identity(), enis=[eni] if eni else ())
        return [difference for difference in differences if difference.loses_packets]

    def _lost_at_ec2(self, attachment: Attachment) -> str:
        """Return why the VPC does not deliver packets to this sandbox, and what to do; "" if the records show no such reason.

        CHECK makes no EC2 call. The records say that an address is lost only after two plausible answers of EC2 proved it (I11). So
        CHECK does not fail because one answer lacks an address, nor because EC2 does not answer.
        """
        if attachment.is_unconfirmed:
            return f"it has no network until EC2 confirms {attachment.eni_id}; {attachment.contradiction}"
        if not attachment.is_of_pool:
            if not attachment.contradiction:
                return ""
            return (
                f"EC2 contradicts what its pod was told of {attachment.eni_id}: {attachment.contradiction}; "
                "find out who wrote the pod's annotation, and delete the pod"
            )
        row = self._datastore.address(attachment.address)
        if row is not None and row.is_lost:
            reason = row.lost_reason or "EC2 does not show it"
            return f"{attachment.address} on {attachment.eni_id} is lost: {reason}; delete the pod, its successor gets another address"
        if row is None or self._datastore.eni(attachment.eni_id) is None:
            return f"{attachment.eni_id}, which has its address {attachment.address}, is gone; delete the pod"
        return ""
