"""Host routing of this node's ENIs: only an ENI whose routing is in place gives addresses (I7).

An ENI can be frozen: its link is gone, or another sign says that it is not there. A frozen ENI keeps its sandboxes and gives no
address, and its routing is not set up again until it is thawed. What froze it lives in memory: after a restart the ENI is set up only
if its link is there.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace

from ipamd.core.backoff import Retry, soonest_s
from ipamd.core.context import ServiceContext
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import IpamError, WiringError, log_text
from ipamd.model.growth import Blocked, Refusal
from ipamd.model.ids import EniId, MacAddress
from ipamd.ports import HostNetwork

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


# Retry the host routing of ENIs whose set-up failed, and say why their addresses cannot be given yet.
#
# The addresses of such an ENI are there, and come as soon as the host lets them: another ENI for the same ADDs would only be one
# more that cannot be used. If one ENI alone fails for long, it may be the ENI's fault, and one other takes its place; if several
# fail, it is the node's, and no ENI more will help. An ENI that was in use and was taken away is nobody's fault: it is replaced,
# however many are.


STUCK_AFTER_S = 60.0
"""From then on the addresses of one ENI without host routing are no supply. Ours: twice the interval at which host routing is compared
(ipamd/host/network.py)."""

RETRY_FIRST_S = 2.0
RETRY_MAX_S = 30.0
"""Pauses between two set-ups of one ENI while an ADD waits for it. Ours: waiting for a link takes seconds of the pool's thread."""


@dataclass(slots=True)
class _Unready:
    since_monotonic_s: float
    retry: Retry
    reason: str = "it has not been set up yet"


class HostSetup:
    """Attached ENIs whose host routing is not in place. Used by the pool's thread."""

    def __init__(self, context: ServiceContext, *, routing: EniRouting) -> None:
        self._datastore = context.datastore
        self._clock = context.clock
        self._health = context.health
        self._routing = routing
        self._unready: dict[EniId, _Unready] = {}

    def set_up(self, eni: Eni) -> None:
        """Set up one ENI. A failure is no error of the pool: it is remembered, and tried again."""
        try:
            self._routing.set_up(eni)
        except IpamError as error:
            self._health.record_error(f"host routing of {eni.eni_id}", error)
            log.warning("host routing of %s: %s", eni.eni_id, log_text(error))
            unready = self._note(eni.eni_id)
            unready.reason = log_text(error)
            unready.retry.put_off(now_s=self._clock.monotonic())

    def retry_due(self) -> None:
        """Set up again what is due; for waiting ADDs."""
        for eni in self._unready_enis():
            if self._unready[eni.eni_id].retry.is_due(now_s=self._clock.monotonic()):
                self.set_up(eni)

    def refusal(self) -> Refusal | None:
        """Why addresses that are there cannot be given; None if every ENI is set up."""
        enis = self._unready_enis()
        if not enis:
            return None
        reasons = "; ".join(f"{eni.eni_id}: {self._unready[eni.eni_id].reason}" for eni in enis)
        return Refusal(
            f"host routing of an ENI is not in place: {reasons}",
            "see `ip link`, `ip rule` and the daemon's log on this node; it is tried again by itself",
            self._left_s(),
            kind=Blocked.HOST_ROUTING,
        )

    def has_stuck_eni(self) -> bool:
        """Whether one ENI, and it alone, has not been set up for long. Those that were taken away do not count."""
        taken = self._routing.taken()
        return [self._is_stuck(eni) for eni in self._unready_enis() if eni.eni_id not in taken] == [True]

    def taken_away(self) -> frozenset[EniId]:
        """ENIs that were in use and have been without their link for long: their addresses are no supply."""
        taken = self._routing.taken()
        return frozenset(eni.eni_id for eni in self._unready_enis() if eni.eni_id in taken and self._is_stuck(eni))

    def frozen(self) -> frozenset[EniId]:
        """ENIs that give no address: nothing is asked for on them."""
        return frozenset(self._routing.frozen())

    def next_retry_s(self) -> float | None:
        """Seconds until a set-up is due again; None if all are done."""
        return self._left_s() if self._unready_enis() else None

    def _unready_enis(self) -> list[Eni]:
        enis = [eni for eni in self._datastore.enis() if eni.is_in_pool and not eni.host_ready]
        ids = {eni.eni_id for eni in enis}
        self._unready = {eni_id: one for eni_id, one in self._unready.items() if eni_id in ids}
        for eni in enis:
            self._note(eni.eni_id)
        return enis

    def _is_stuck(self, eni: Eni) -> bool:
        return self._clock.monotonic() - self._unready[eni.eni_id].since_monotonic_s >= STUCK_AFTER_S

    def _note(self, eni_id: EniId) -> _Unready:
        now_s = self._clock.monotonic()
        retry = Retry(first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S, deadline=now_s + RETRY_FIRST_S)
        return self._unready.setdefault(eni_id, _Unready(now_s, retry))

    def _left_s(self) -> float | None:
        now_s = self._clock.monotonic()
        return soonest_s(one.retry.left_s(now_s=now_s) for one in self._unready.values())
