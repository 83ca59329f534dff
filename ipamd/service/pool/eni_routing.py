"""Host routing of this node's ENIs: only an ENI whose routing is in place gives addresses (I7).

An ENI can be frozen: its link is gone, or another sign says that it is not there. A frozen ENI keeps its sandboxes and gives no
address, and its routing is not set up again until it is thawed. What froze it lives in memory: after a restart the ENI is set up only
if its link is there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import IpamError, WiringError, log_text
from ipamd.model.ids import EniId, MacAddress
from ipamd.ports import HostNetwork
from ipamd.service.context import ServiceContext

log = logging.getLogger(__name__)


class EniRouting:
    """Sets up, freezes and tears down. Safe from any thread: the state is in the datastore, but for the reasons of `frozen`."""

    def __init__(self, context: ServiceContext, *, hostnet: HostNetwork) -> None:
        self._datastore = context.datastore
        self._demand = context.demand
        self._health = context.health
        self._hostnet = hostnet
        self._frozen: dict[EniId, str] = {}
        self._taken: set[EniId] = set()

    def await_link(self, mac: MacAddress) -> None:
        """Wait, bounded, for the link of an ENI that is being attached: the kernel shows it before EC2, so EC2 is asked once."""
        try:
            self._hostnet.await_link(mac)
        except IpamError as error:
            log.info("the link has not appeared, EC2 is asked instead: %s", log_text(error))

    def links(self) -> frozenset[MacAddress] | None:
        """MAC addresses of the links present now; None if the kernel did not tell."""
        try:
            return self._hostnet.links()
        except IpamError as error:
            log.info("the links are not known: %s", log_text(error))
            return None

    def set_up_all(self) -> list[str]:
        """Set up host routing of every attached ENI; only then are its addresses assignable (I7).

        Returns: one sentence per ENI that could not be set up; the others are set up all the same.
        """
        problems = []
        for eni in self._datastore.enis():
            if not eni.is_in_pool or eni.eni_id in self._frozen:
                continue
            try:
                self.set_up(eni)
            except IpamError as error:
                self._health.record_error(f"host routing of {eni.eni_id}", error)
                problems.append(f"{eni.eni_id}: {log_text(error)}")
        return problems

    def set_up(self, eni: Eni) -> None:
        """Set up host routing of one ENI. Raises: WiringError, also if it is frozen; then its addresses stay unassignable."""
        reason = self._frozen.get(eni.eni_id)
        if reason is not None:
            raise WiringError(f"ENI {eni.eni_id} is frozen: {reason}", details="it is set up when that is over")
        if not eni.is_primary:
            try:
                self._hostnet.setup_eni(eni)
            except IpamError:
                self._mark(eni.eni_id, host_ready=False)
                raise
        if self._mark(eni.eni_id, host_ready=True):
            self._demand.announce_supply()

    def freeze(self, eni_id: EniId, reason: str) -> None:
        """Give no address of this ENI from now on; its sandboxes stay as they are. Idempotent; an unknown ENI is fine."""
        if eni_id not in self._frozen:
            log.warning("ENI %s is frozen: %s", eni_id, reason)
        self._frozen[eni_id] = reason
        self._health.set_condition(f"frozen {eni_id}", f"ENI {eni_id} gives no address: {reason}")
        if self._mark(eni_id, host_ready=False):
            self._taken.add(eni_id)
            self._demand.trigger()

    def thaw(self, eni_id: EniId) -> None:
        """What froze it is over: set its routing up again. A refusal is recorded, and the host network reconciler tries again."""
        if self._frozen.pop(eni_id, None) is None:
            return
        self._taken.discard(eni_id)
        self._health.clear_condition(f"frozen {eni_id}")
        self.set_up_again(eni_id)

    def set_up_again(self, eni_id: EniId) -> None:
        """Set up an ENI that is there again. A refusal is recorded, and the host network reconciler tries again."""
        eni = self._datastore.eni(eni_id)
        if eni is None or not eni.is_in_pool or eni_id in self._frozen:
            return
        try:
            self.set_up(eni)
        except IpamError as error:
            self._health.record_error(f"host routing of {eni_id}", error)
            log.warning("ENI %s is not set up again yet: %s", eni_id, log_text(error))

    def frozen(self) -> Mapping[EniId, str]:
        """The frozen ENIs, with the reason of each."""
        return dict(self._frozen)

    def taken(self) -> frozenset[EniId]:
        """The frozen ENIs that were in use when they were frozen: not the host's set-up failed, somebody took them away."""
        return frozenset(self._taken)

    def tear_down(self, eni: Eni) -> None:
        """Remove the routing of an ENI that is gone for good; what other recorded ENIs need stays."""
        self._frozen.pop(eni.eni_id, None)
        self._taken.discard(eni.eni_id)
        self._health.clear_condition(f"frozen {eni.eni_id}")
        if not eni.managed or eni.is_primary:
            return  # nothing was set up for it
        keep = [other for other in self._datastore.enis() if other.eni_id != eni.eni_id]
        try:
            self._hostnet.teardown_eni(eni, keep=keep)
        except IpamError as error:
            log.warning("routing of absent ENI %s stays behind: %s", eni.eni_id, log_text(error))

    def _mark(self, eni_id: EniId, *, host_ready: bool) -> bool:
        """Change `host_ready` of the recorded ENI; do nothing if it was forgotten while its routing was set up."""
        known = self._datastore.eni(eni_id)
        if known is None or (host_ready and known.host_ready):
            return False  # "not ready" is always written: another thread may be about to commit "ready"
        with self._datastore.transaction() as uow:
            known = self._datastore.eni(eni_id)  # units of work are serialised: nobody changes it before ours ends
            if known is None or (host_ready and (eni_id in self._frozen or known.state is not EniState.ATTACHED)):
                return False
            uow.put_eni(replace(known, host_ready=host_ready))
        return known.host_ready != host_ready
