"""Compare host routing with the expected state every 30 s, and repair the differences.

Other software on the node (amazon-ec2-net-utils, a firewall's reload) deletes rules and routes, and pods lose their network
without an error anywhere.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from ipaddress import IPv4Address

from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cniresult import recorded_spec
from ipamd.model.eni import MAIN_TABLE, Eni, EniState
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import NOT_REPAIRED, KernelSurvey, duplicate_addresses, stray_rules
from ipamd.model.ledger import LedgerEvent
from ipamd.ports import HostNetwork
from ipamd.service.context import ServiceContext
from ipamd.service.odd_objects import OddObjects
from ipamd.service.pool.enis import EniService
from ipamd.service.reconcile.quarantine import QuarantineService
from ipamd.service.request import Deadline

RECONCILE_INTERVAL_S = 30.0
"""Ours: amazon-vpc-cni-k8s checks only the VPC's CIDRs, also every 30 s; a reconciliation costs milliseconds."""

FIRST_RECONCILE_S = 1.0
"""Repair soon after a start, so that a daemon that restarts every few seconds repairs too (a chaos run found a sandbox without its
route for as long as that lasted). Ours: after the ADDs that waited for the start."""

REPAIR_WAIT_S = 1.0
"""How long a repair waits for an operation on the same sandbox; the next reconciliation tries again. Ours."""

log = logging.getLogger(__name__)


class HostNetworkReconciler:
    """Compares host routing with the expected state, and repairs it."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        hostnet: HostNetwork,
        quarantine: QuarantineService,
        enis: EniService,
        identity: Callable[[], InstanceIdentity | None],
    ) -> None:
        self._datastore = context.datastore
        self._hostnet = hostnet
        self._identity = identity
        self._wiring = context.wiring
        self._quarantine_service = quarantine
        self._enis = enis
        self._locks = context.locks
        self._health = context.health
        self._clock = context.clock
        self._stopped = threading.Event()
        self._said: list[str] = []
        self._strays: frozenset[IPv4Address] = frozenset()
        self._odd = OddObjects(context.health, work="repair of sandboxes")

    def set_up_node(self, identity: InstanceIdentity) -> None:
        """Set up the node's own routing. Raises: WiringError; the next reconciliation tries again."""
        self._hostnet.setup_node(identity)

    def confine(self) -> list[str]:
        """Put in place what confines sandboxes; a refusal is a condition, and ends with it. Returns: one sentence per repair."""
        try:
            repairs = self._hostnet.confine_sandboxes()
        except IpamError as error:
            repairs = [f"{NOT_REPAIRED}: {log_text(error)}"]
        refused = [sentence for sentence in repairs if NOT_REPAIRED in sentence]
        if refused:
            self._health.set_condition("confinement", f"confinement: {'; '.join(refused)}")
        else:
            self._health.clear_condition("confinement")
        return repairs

    def run(self) -> None:
        """Thread body: reconcile soon after the start, then once per interval, until `stop`."""
        pause_s = FIRST_RECONCILE_S
        while not self._stopped.wait(pause_s):
            pause_s = RECONCILE_INTERVAL_S
            try:
                self.reconcile()
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._health.record_error("host network", error)
                log.warning("the host network reconciler continues after an error: %s", log_text(error))

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()

    def _reconcile_node(self, identity: InstanceIdentity, enis: list[Eni]) -> list[str]:
        """Repair the routing of the node and its ENIs; a failure here does not stop the repair of the sandboxes."""
        try:
            repairs = self._hostnet.reconcile(identity=identity, enis=enis)
        except IpamError as error:
            repairs = [f"{NOT_REPAIRED}: {log_text(error)}"]
        refused = [sentence for sentence in repairs if NOT_REPAIRED in sentence]
        if refused:
            self._health.set_condition("node routing", f"node routing: {'; '.join(refused)}")
        else:
            self._health.clear_condition("node routing")
        return repairs

    def _repair_sandboxes(self) -> list[str]:
        """Restore routes and rules of attached sandboxes.

        One survey finds the damaged ones; each is checked again under its lock, so a concurrent DEL is never undone (I4).
        A sandbox that refuses is named in a condition, and does not stop the others.
        """
        survey = self._wiring.survey()
        wired = {veth.name for veth in survey.veths if veth.is_up and not veth.is_dying}
        repairs: list[str] = []
        tables = {
            eni.eni_id: eni.route_table for eni in self._datastore.enis() if eni.state is EniState.ATTACHED and eni.host_ready
        }
        attachments = self._datastore.attachments()
        moved = {one.key: tables[one.eni_id] for one in attachments if tables.get(one.eni_id, one.route_table) != one.route_table}
        damaged = [one for one in attachments if one.key in moved or not _is_whole(one, survey, wired)]
        self._odd.keep_only(str(attachment.key) for attachment in damaged)
        for attachment in damaged:
            with (
                self._odd.skip(str(attachment.key)),
                self._locks.hold(attachment.key, "REPAIR", Deadline.after(self._clock, REPAIR_WAIT_S)),
            ):
                if self._datastore.attachment(attachment.key) == attachment:
                    repairs += self._wiring.repair([recorded_spec(self._in_its_table(attachment, moved))])
        return repairs

    def _in_its_table(self, attachment: Attachment, moved: Mapping[AttachmentKey, int]) -> Attachment:
        """Record the table of the sandbox's ENI if that is another one now; the record comes first, because DEL goes by it."""
        if attachment.key not in moved:
            return attachment
        with self._datastore.transaction() as uow:
            return uow.move_table(attachment.key, route_table=moved[attachment.key])

    def _remove_stray_rules(self) -> list[str]:
        """Remove rules that lead nowhere and that nobody owns: a sandbox's namespace went before its DEL, and its row was lost.

        Only those of the pass before, too: an ADD adds its rules before its row is stored.
        """
        strays = stray_rules(self._wiring.survey(), {eni.subnet_cidr for eni in self._datastore.enis()})
        unowned = frozenset(address for address in strays if not self._has_owner(address))
        seen_twice, self._strays = unowned & self._strays, unowned
        repairs = []
        for address in sorted(seen_twice):
            with self._odd.skip(str(address)):
                self._wiring.remove_leftover(host_veth=None, address=address)
                repairs.append(f"rules of {address} led nowhere: removed")
        return repairs

    def _has_owner(self, address: IPv4Address) -> bool:
        row = self._datastore.address(address)
        return row is not None and (row.is_in_use or row.state is AddressState.QUARANTINED)

    def reconcile(self) -> list[str]:
        """Compare and repair once; returns one sentence per repair."""
        repairs = self.confine()
        identity = self._identity()
        if identity is not None:
            repairs += self._reconcile_routing(identity)
        if repairs != self._said:
            # The same sentences again mean a damage that cannot be repaired: it is logged and recorded only once.
            self._said = repairs
            if repairs:
                log.warning("host routing: %s", "; ".join(repairs))
                with self._datastore.transaction() as uow:
                    uow.note(LedgerEvent.REPAIRED, detail="; ".join(repairs)[:1000])
        return repairs

    def _reconcile_routing(self, identity: InstanceIdentity) -> list[str]:
        """Compare and repair what depends on which node this is."""
        attached = [eni for eni in self._datastore.enis() if eni.is_in_pool]
        self._enis.forget_unused()  # the last sandbox of an ENI that is gone may have left since
        frozen = self._enis.routing.frozen()
        for eni in (eni for eni in attached if not eni.host_ready and eni.eni_id not in frozen):
            try:
                self._enis.routing.set_up(eni)
            except IpamError as error:
                log.warning("%s", log_text(error))
        enis = [eni for eni in self._datastore.enis() if eni.gives_addresses]
        repairs = self._reconcile_node(identity, enis)
        repairs += self._repair_sandboxes()
        repairs += self._remove_stray_rules()
        self._quarantine_service.resolve(None)
        if not duplicate_addresses(self._wiring.survey()):
            self._health.clear_condition("duplicates")
        return repairs


def _is_whole(attachment: Attachment, survey: KernelSurvey, wired: set[str]) -> bool:
    """Whether link, route and rules of a sandbox are what they must be."""
    tables = () if attachment.route_table == MAIN_TABLE else (attachment.route_table,)
    return (
        attachment.host_veth in wired
        and survey.routes.get(attachment.address) == attachment.host_veth
        and attachment.address in survey.to_rules
        and survey.from_rules.get(attachment.address, ()) == tables
    )
