"""Host routing on a clock: something else on the node deletes rules sooner or later, and pods must not pay for it (design 8)."""

from __future__ import annotations

import logging
import threading

from ipamd.model.attachment import Attachment, WiringSpec
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cniresult import wired_mtu
from ipamd.model.eni import MAIN_TABLE, Eni, EniState
from ipamd.model.errors import BusyError, CloudError, IpamError, log_text
from ipamd.model.kernel import duplicate_addresses
from ipamd.model.ledger import LedgerEvent
from ipamd.ports import Clock, Datastore, HostNetwork, Metadata, Wiring
from ipamd.service.health import Health
from ipamd.service.locks import KeyLocks
from ipamd.service.pool.enis import EniService
from ipamd.service.reconcile.quarantine import QuarantineService
from ipamd.service.request import Deadline

RECONCILE_INTERVAL_S = 30.0
"""Ours: the incumbent looks at VPC CIDRs every 30 s and at nothing else (upstream_reference 2.12); a look costs milliseconds."""

IDENTITY_INTERVAL_S = 300.0
"""Between two looks at instance metadata. Ours: VPC CIDRs change by an operator's hand; the incumbent asks every 30 s."""

FIRST_RECONCILE_S = 1.0
"""What was taken while we were away is put back at once, and a daemon that is restarted every few seconds repairs too (a chaos
run found a sandbox without its route for as long as it was). Ours: after the ADDs that waited for us."""

REPAIR_WAIT_S = 1.0
"""How long a repair waits for an operation on the same sandbox; the next audit comes anyway. Ours."""

log = logging.getLogger(__name__)


class HostNetworkReconciler:
    """Compares host routing with what it must be, and repairs it."""

    def __init__(
        self,
        *,
        datastore: Datastore,
        hostnet: HostNetwork,
        metadata: Metadata,
        wiring: Wiring,
        quarantine: QuarantineService,
        enis: EniService,
        locks: KeyLocks,
        health: Health,
        clock: Clock,
    ) -> None:
        self._datastore = datastore
        self._hostnet = hostnet
        self._metadata = metadata
        self._wiring = wiring
        self._quarantine_service = quarantine
        self._enis = enis
        self._locks = locks
        self._health = health
        self._clock = clock
        self._stopped = threading.Event()
        self._identity: InstanceIdentity | None = None
        self._identity_at = clock.monotonic()
        self._said: list[str] = []

    def set_identity(self, identity: InstanceIdentity) -> None:
        """This node became known. Raises: WiringError if its own routing cannot be set up; the audit tries again."""
        self._identity = identity
        self._hostnet.setup_node(identity)

    def run(self) -> None:
        """Thread body: one audit soon after the start, then one per interval, until `stop`."""
        pause_s = FIRST_RECONCILE_S
        while not self._stopped.wait(pause_s):
            pause_s = RECONCILE_INTERVAL_S
            try:
                self.reconcile()
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._health.record_error("host audit", error)
                log.warning("the host audit goes on after an error: %s", log_text(error))

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()

    def _reconcile_node(self, identity: InstanceIdentity, enis: list[Eni]) -> list[str]:
        """The node's and its ENIs' part; whatever becomes of it, the sandboxes have their turn."""
        try:
            repairs = self._hostnet.reconcile(identity=identity, enis=enis)
        except IpamError as error:
            repairs = [f"could not be repaired: {log_text(error)}"]
        refused = [sentence for sentence in repairs if "could not be repaired" in sentence]
        if refused:
            self._health.set_condition("node routing", f"node routing: {'; '.join(refused)}")
        else:
            self._health.clear_condition("node routing")
        return repairs

    def _refresh_identity(self) -> None:
        """The VPC may have got another CIDR, which changes what is reached without SNAT: ask metadata, which is no EC2 call."""
        if self._clock.monotonic() - self._identity_at < IDENTITY_INTERVAL_S:
            return
        self._identity_at = self._clock.monotonic()
        try:
            self._identity = self._metadata.identity()
        except CloudError as error:
            log.info("instance metadata is asked again in %.0f s: %s", IDENTITY_INTERVAL_S, log_text(error))

    def _repair_sandboxes(self) -> list[str]:
        """Put back routes and rules of attached sandboxes.

        One survey tells who is damaged; each of those is looked at again under its own lock, so that a DEL which runs meanwhile
        is never undone (I4).
        """
        survey = self._wiring.survey()
        wired = {veth.name for veth in survey.veths if veth.is_up and not veth.is_dying}
        repairs: list[str] = []
        for attachment in self._datastore.attachments():
            is_whole = (
                attachment.host_veth in wired
                and survey.routes.get(attachment.address) == attachment.host_veth
                and attachment.address in survey.to_rules
                and survey.from_rules.get(attachment.address, ())
                == (() if attachment.route_table == MAIN_TABLE else (attachment.route_table,))
            )
            if is_whole:
                continue
            try:
                with self._locks.hold(attachment.key, "REPAIR", Deadline.after(self._clock, REPAIR_WAIT_S)):
                    if self._datastore.attachment(attachment.key) == attachment:
                        repairs += self._wiring.repair([self._spec(attachment)])
            except BusyError as error:
                log.info("sandbox %s is looked at by the next audit: %s", attachment.key, log_text(error))
        return repairs

    def _spec(self, attachment: Attachment) -> WiringSpec:
        return WiringSpec(
            key=attachment.key,
            address=attachment.address,
            route_table=attachment.route_table,
            host_veth=attachment.host_veth,
            netns=attachment.netns,
            mtu=wired_mtu(attachment.result, attachment.host_veth),
        )

    def reconcile(self) -> list[str]:
        """Look and repair once; returns one sentence per repair."""
        if self._identity is None:
            return []
        self._refresh_identity()
        attached = [eni for eni in self._datastore.enis() if eni.managed and eni.state is EniState.ATTACHED]
        for eni in (eni for eni in attached if not eni.host_ready):
            try:
                self._enis.set_up_eni_routing(eni)
            except IpamError as error:
                log.warning("%s", log_text(error))
        enis = [eni for eni in self._datastore.enis() if eni.managed and eni.host_ready and eni.state is EniState.ATTACHED]
        repairs = self._reconcile_node(self._identity, enis)
        repairs += self._repair_sandboxes()
        self._quarantine_service.resolve_gone()
        if not duplicate_addresses(self._wiring.survey()):
            self._health.clear_condition("duplicates")
        if repairs != self._said:
            # The same sentences again are something that cannot be repaired: it was said, and is not written every 30 s.
            self._said = repairs
            if repairs:
                log.warning("host routing: %s", "; ".join(repairs))
                with self._datastore.transaction() as uow:
                    uow.note(LedgerEvent.REPAIRED, detail="; ".join(repairs)[:1000])
        return repairs
