"""Retry the host routing of ENIs whose set-up failed, and say why their addresses cannot be given yet.

The addresses of such an ENI are there, and come as soon as the host lets them: another ENI for the same ADDs would only be one more
that cannot be used. If one ENI alone fails for long, it may be the ENI's fault, and one other takes its place; if several fail, it is
the node's, and no ENI more will help. An ENI that was in use and was taken away is nobody's fault: it is replaced, however many are.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ipamd.model.blocked import Blocked
from ipamd.model.eni import Eni
from ipamd.model.errors import IpamError, log_text
from ipamd.model.growth import Refusal
from ipamd.model.ids import EniId
from ipamd.service.backoff import Retry, soonest_s
from ipamd.service.context import ServiceContext
from ipamd.service.pool.eni_routing import EniRouting

STUCK_AFTER_S = 60.0
"""From then on the addresses of one ENI without host routing are no supply. Ours: twice the interval at which host routing is compared
(ipamd/service/reconcile/host_network.py)."""

RETRY_FIRST_S = 2.0
RETRY_MAX_S = 30.0
"""Pauses between two set-ups of one ENI while an ADD waits for it. Ours: waiting for a link takes seconds of the pool's thread."""

log = logging.getLogger(__name__)


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
