"""Host routing on a clock: something else on the node deletes rules sooner or later, and pods must not pay for it (design 8)."""

from __future__ import annotations

import logging
import threading

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import IpamError
from ipamd.model.ledger import LedgerEvent
from ipamd.ports import Clock, Datastore, HostNetwork
from ipamd.service.enis import EniService
from ipamd.service.health import Health, log_text

AUDIT_INTERVAL_S = 30.0
"""Ours: the incumbent looks at VPC CIDRs every 30 s and at nothing else (upstream_reference 2.12); a look costs milliseconds."""

log = logging.getLogger(__name__)


class HostAudit:
    """Compares host routing with what it must be, and repairs it."""

    def __init__(
        self,
        *,
        datastore: Datastore,
        hostnet: HostNetwork,
        enis: EniService,
        health: Health,
        clock: Clock,
    ) -> None:
        self._datastore = datastore
        self._hostnet = hostnet
        self._enis = enis
        self._health = health
        self._clock = clock
        self._stopped = threading.Event()
        self._identity: InstanceIdentity | None = None

    def set_identity(self, identity: InstanceIdentity) -> None:
        """This node became known. Raises: WiringError if its own routing cannot be set up; the audit tries again."""
        self._identity = identity
        self._hostnet.setup_node(identity)

    def run(self) -> None:
        """Thread body: one audit per interval, until `stop`."""
        while not self._stopped.wait(AUDIT_INTERVAL_S):
            try:
                self.audit()
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._health.record_error("host audit", error)
                log.warning("the host audit goes on after an error: %s", log_text(error))

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()

    def audit(self) -> list[str]:
        """Look and repair once; returns one sentence per repair."""
        if self._identity is None:
            return []
        unready = [eni for eni in self._datastore.enis() if eni.managed and not eni.host_ready]
        for eni in unready:
            try:
                self._enis.set_up_host(eni)
            except IpamError as error:
                log.warning("%s", log_text(error))
        enis = [eni for eni in self._datastore.enis() if eni.managed and eni.host_ready]
        repairs = self._hostnet.audit(identity=self._identity, enis=enis)
        self._health.regain("node routing")
        if repairs:
            log.warning("host routing was repaired: %s", "; ".join(repairs))
            with self._datastore.transaction() as uow:
                uow.note(LedgerEvent.REPAIRED, now=self._clock.now(), detail="; ".join(repairs)[:1000])
        return repairs
