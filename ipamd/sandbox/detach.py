"""Take a sandbox's address back: quick, idempotent and final (I3, I4).

Order of effects: remove host route and rules, mark the link as dying (docs/performance.md), then one transaction that moves
the address to cooling and leaves a tombstone, then the reply. `cooldown` deletes the link, and the address is not assignable before
the link is deleted. DEL makes no EC2 call (I12).
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.address import AddressState
from ipamd.model.attachment import POD_IFNAME, Attachment, WiringSpec, veth_name
from ipamd.model.errors import IpamError, log_text
from ipamd.model.family import IpAddress
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.legs import first_alone
from ipamd.model.record import replace
from ipamd.model.uplink import Uplink
from ipamd.ports.datastore import Datastore
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.hooks import PolicyEnforcement

log = logging.getLogger(__name__)

FAILPOINTS = ("detach.retired", "detach.committed", "detach.tombstoned")
"""The failpoints of DEL: one between every two of its effects."""


class DetachService(Service):
    """Serves DEL, and the operations that act like one: GC, replay of spooled DELs, reap."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        cooldown: Cooldown,
        veth_prefix: str,
        is_source_checked: Callable[[], bool],
        is_named_by_pod: bool = False,
        policy: PolicyEnforcement | None = None,
    ) -> None:
        """Keep the collaborators of DEL.

        Args:
            is_source_checked: returns whether our nftables rules drop packets that a sandbox sends from an address that is not routed
                to it. If they do, DEL leaves the link up, which is faster than taking it down.
            is_named_by_pod: links are named after pods. A DEL does not contain the pod's name, so it searches for a link without a row
                by the link's alias.
            policy: records which pods the network policy agent has to forget. Maintenance calls the agent later, so no DEL waits for
                it; None if no setting requires the agent.
        """
        super().__init__(context)
        self._cooldown = cooldown
        self._veth_prefix = veth_prefix
        self._is_named_by_pod = is_named_by_pod
        self._is_source_checked = is_source_checked
        self._policy = policy

    def detach_sandbox(
        self,
        key: AttachmentKey,
        *,
        deadline: Deadline,
        steps: StepTimer,
        reason: str,
        event: LedgerEvent = LedgerEvent.UNASSIGNED,
    ) -> bool:
        """Detach one interface of one sandbox. An interface that is unknown or detached already is not an error.

        With a pod's first interface, the interfaces of further network cards are detached, before the first one. If a crash interrupts
        the DEL, a repeated DEL finds the remaining ones, because the first one is still recorded.

        Args:
            reason: the request (DEL, GC) or the reasons of the verdict, for the ledger.
            event: the event for the ledger; `reaped` if no runtime requested the DEL.
        Returns: whether an attachment was there.
        Raises: BusyError if another operation holds the lock of the key until the deadline; WiringError, KernelDumpError,
            DatastoreError. After each of these the attachment of `key` is still recorded, and a retry is safe.
        """
        with self._locks.hold(key, "REAP" if event is LedgerEvent.REAPED else reason, deadline):
            for further in reversed(self._datastore.card_interfaces(key)):
                self.detach_sandbox(further.key, deadline=deadline, steps=steps, reason=reason, event=event)
            attachment = self._datastore.attachment(key)
            if attachment is None:
                with steps.step("leftover"):
                    attachment = self._detach_unrecorded(key)
            if attachment is None:
                return False
            steps.attachment = attachment
            wiring = attachment.wiring
            with steps.step("retire"):
                host_veth = self._retire(attachment, wiring)
                self._forget_inside(attachment)
            self._failpoint("detach.retired")
            with steps.step("commit"), self._datastore.transaction() as uow:
                uow.unassign(key, cooldown=self._cooldown.period, reason=reason, event=event)
                if self._policy is not None:
                    self._policy.record_pod(uow, attachment)
                uow.put_tombstone(key)
            self._failpoint("detach.committed")
            self._cooldown.start_after_delete(wiring, host_veth=host_veth)
            return True

    def _retire(self, attachment: Attachment, wiring: WiringSpec) -> str:
        """Mark the sandbox's links for deletion.

        Returns: the present name of its host veth. It differs from the record after an interrupted renaming, or if other software
        renamed the link.
        """
        is_source_checked = self._is_source_checked()
        marked = self._wiring.mark_for_deletion(wiring, is_source_checked=is_source_checked, owner=attachment.key)
        is_own_link = marked.key == attachment.key if marked else not self._is_named_by_pod
        if is_own_link:
            return attachment.host_veth
        name = attachment.host_veth
        for veth in self._wiring.survey().firsts:
            if veth.key == attachment.key and veth.address == attachment.address:
                name = veth.name
                break
        # The first call has marked the links of extra legs: their names do not depend on the name of the host veth.
        first_only = first_alone(replace(wiring, host_veth=name))
        self._wiring.mark_for_deletion(first_only, is_source_checked=is_source_checked)
        return name

    def _forget_inside(self, attachment: Attachment) -> None:
        """Remove the routing rule that a further interface (Multus's `net1`) leaves in its sandbox, which may go on running.

        A failure is not an error of the DEL: a rule that remains points to an empty table and changes no packet's route.
        """
        if attachment.key.ifname == POD_IFNAME or not attachment.netns:
            return
        try:
            self._wiring.forget_inside(
                netns=attachment.netns,
                identity=attachment.netns_identity,
                ifname=attachment.key.ifname,
                address=attachment.address,
            )
        except IpamError as error:
            log.info("a routing rule was not removed from a sandbox sandbox=%s error=%s", attachment.key, log_text(error))

    def _detach_unrecorded(self, key: AttachmentKey) -> Attachment | None:
        """Handle the DEL of a key without a row: write a tombstone, and remove the wiring that a crash may have left.

        Returns: None; or the row of the sandbox if it was adopted in the meantime (an adoption takes no sandbox lock). If a row is
            returned, nothing was written or removed.
        """
        if not self._datastore.is_tombstoned(key):
            with self._datastore.transaction() as uow:
                # Read again inside the unit of work: no adoption can run now, and the tombstone forbids later ones.
                adopted = self._datastore.attachment(key)
                if adopted is not None:
                    return adopted
                uow.put_tombstone(key)
        self._failpoint("detach.tombstoned")
        self._remove_unrecorded(veth_name(key, prefix=self._veth_prefix), key)
        # Search by alias too if the link may be named after its pod: by our setting, or by amazon-vpc-cni-k8s, which always does that.
        # The address of a link of amazon-vpc-cni-k8s is quarantined until its sandbox is identified.
        if self._is_named_by_pod or self._datastore.addresses(state=AddressState.QUARANTINED):
            survey = self._wiring.survey()
            for veth in survey.firsts:
                if veth.key == key:
                    self._remove_unrecorded(veth.name, key, *leftover_uplink(veth, survey, self._datastore))
        return None

    def _remove_unrecorded(
        self, host_veth: str, key: AttachmentKey, address: IpAddress | None = None, uplink: Uplink | None = None
    ) -> None:
        """Remove the wiring of a sandbox without a row.

        An address of the pool cools even if the pool has no row of it, because EC2 may show the address later and make it assignable
        (I8). An address of an uplink does not cool; only its tracked connections are deleted.
        """
        address = self._wiring.remove_leftover(host_veth=host_veth, address=address, key=key, uplink=uplink)
        if address and uplink is None:
            self._cooldown.start_after_leftover(address)
        elif address:
            self._cooldown.delete_connections_soon(address)


def leftover_uplink(veth: HostVeth, survey: KernelSurvey, datastore: Datastore) -> tuple[IpAddress | None, Uplink | None]:
    """Return the address and the uplink to remove together with a veth that no row has.

    Both are None if the veth leads to no uplink, or if the pod's next sandbox has the uplink now (I2).
    """
    link = survey.uplink_of(veth)
    if link is None or any(attachment.address == link.address for attachment in datastore.attachments()):
        return None, None
    return link.address, link.uplink
