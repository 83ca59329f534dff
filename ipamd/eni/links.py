"""Freeze an ENI as soon as its link is gone, and thaw it when the link is there again and somebody else still shows the ENI.

A link that goes is the first sign, within milliseconds and at no EC2 cost, that an ENI was detached or taken away. It is no proof
that EC2 released its addresses, so nothing is removed: new sandboxes get none of them, and a look at EC2 is due. A link that is only
down stays in the list of links: the host network reconciler raises it. The list decides, an event only says when to read it. A list
without the primary ENI's link is of another namespace, or of a host that changed MACs: nothing is concluded from it (I11). What else
the kernel announces is handed to the host network reconciler.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import replace

from ipamd.core.context import ServiceContext
from ipamd.core.loop import Loop
from ipamd.eni.book import EniBook, MissingLink
from ipamd.eni.resync import LookReason, ResyncScheduler
from ipamd.eni.routing import EniRouting
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import ChangeKind, HostChange, LinkEvent, LinkEventKind
from ipamd.ports import HostNetwork

REOPEN_S = 0.5
"""Pause before a subscription that ended is opened again. Ours: all links are compared on a clock meanwhile."""

FROZEN = "other hands: its link is gone; EC2 is asked whether it is detached"
"""Why an ENI is frozen. Seen by people, in `ipamctl status`."""

log = logging.getLogger(__name__)


class LinkWatch:
    """Compares the recorded ENIs with the links of the host's namespace. `turn` is the loop's, the rest for any thread."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        hostnet: HostNetwork,
        book: EniBook,
        routing: EniRouting,
        resyncs: ResyncScheduler,
        on_change: Callable[[HostChange], None],
    ) -> None:
        """`on_change` is told of everything else that the kernel announces (`HostNetworkReconciler.on_change`)."""
        self._datastore = context.datastore
        self._clock = context.clock
        self._hostnet = hostnet
        self._book = book
        self._routing = routing
        self._resyncs = resyncs
        self._on_change = on_change
        self._was_broken = False
        self.loop = Loop("links", self.turn, health=context.health, clock=context.clock, cancel=hostnet.stop_host_events)
        self._lock = threading.Lock()
        self._said = ""

    def turn(self) -> float:
        """Follow the kernel's notifications until they break. Returns: seconds until they are opened again."""
        try:
            for event in self._hostnet.host_events():
                if self.loop.is_stopped:
                    break
                self.loop.recovered()
                if self._was_broken:
                    self._was_broken = False
                    self._on_change(HostChange(ChangeKind.MISSED))  # while nobody listened
                if isinstance(event, HostChange):
                    self._on_change(event)
                else:
                    self.on_event(event)
        except Exception:
            self._was_broken = True
            self._on_change(HostChange(ChangeKind.MISSED))
            raise
        return REOPEN_S

    def on_event(self, event: LinkEvent) -> None:
        """Compare at once if the event concerns a recorded ENI, or may hide one that does."""
        if event.mac and all(eni.mac != event.mac for eni in self._datastore.enis()):
            return
        if event.mac and event.kind is LinkEventKind.SEEN:
            self._on_change(HostChange(ChangeKind.LINK))  # down, or with another MTU
        gone = event.mac if event.kind is LinkEventKind.GONE else None
        if not self.compare(gone=gone) and gone is not None:
            with self._lock:  # the list could not be read; the event alone is enough to be careful
                self._freeze([eni for eni in self._attached() if eni.mac == gone])

    def compare(self, *, gone: MacAddress | None = None) -> bool:
        """Look for the ENIs' links; freeze those whose link is gone.

        Args:
            gone: a link that the kernel has announced to be gone: it was there, also if its ENI was never set up.
        Returns: whether what was found is of use.
        """
        with self._lock:
            attached = self._attached()
            try:
                present = self._hostnet.links([eni.mac for eni in self._datastore.enis()])
            except IpamError as error:
                self._say(f"the links are read again: {log_text(error)}")
                return False
            if any(eni.is_primary and eni.mac not in present for eni in attached):
                self._say("the primary ENI's link is not among them: nothing is concluded")
                return False
            self._say("")
            self._freeze([eni for eni in attached if eni.mac not in present], gone=gone)
            self._ask_about_links_back(present)
        return True

    def thaw_confirmed(self, is_shown: Callable[[MacAddress, float], bool]) -> None:
        """Thaw the ENIs whose link is back, if a look at EC2 since then left no doubt, or metadata shows them.

        Args:
            is_shown: whether metadata has shown a MAC since a monotonic time.
        """
        recorded = {eni.eni_id: eni for eni in self._datastore.enis()}
        with self._lock:
            for eni_id in self._missing().keys() - recorded.keys():
                self._put(eni_id, None)  # EC2 said that it is gone; whoever believed that cleared up
            confirmed = [
                recorded[eni_id] for eni_id, one in self._missing().items() if self._is_confirmed(recorded[eni_id], one, is_shown)
            ]
            for eni in confirmed:
                self._put(eni.eni_id, None)
        for eni in confirmed:
            log.info("the link of ENI %s is there again and the ENI is ours: it gives addresses again", eni.eni_id)
            self._routing.thaw(eni.eni_id)  # outside the lock: it may wait for the link
            with self._lock:
                if self._book.of(eni.eni_id).link is not None:  # gone again meanwhile, and thawed over it
                    self._routing.freeze(eni.eni_id, FROZEN)

    def _missing(self) -> dict[EniId, MissingLink]:
        return {eni_id: facts.link for eni_id, facts in self._book.all().items() if facts.link is not None}

    def _put(self, eni_id: EniId, link: MissingLink | None) -> None:
        self._book.observe(eni_id, link=link)

    def _is_confirmed(self, eni: Eni, missing: MissingLink, is_shown: Callable[[MacAddress, float], bool]) -> bool:
        """Whether the link of a frozen ENI is back, and EC2 or metadata has shown the ENI since."""
        if missing.ticket is None or eni.state is not EniState.ATTACHED:
            return False
        return self._resyncs.is_answered(missing.ticket) or is_shown(eni.mac, missing.back_monotonic_s)

    def _ask_about_links_back(self, present: frozenset[MacAddress]) -> None:
        """Have EC2 asked for each link that is there again, also for that of an ENI that EC2 found detached: its sandboxes need it.
        The lock is held."""
        missing = self._missing()
        for eni in (eni for eni in self._datastore.enis() if eni.eni_id in missing):
            link = missing[eni.eni_id]
            if link.ticket is None and eni.mac in present:
                if link.added is not None:
                    self._book.remember_added(link.added)
                ticket = self._resyncs.request(LookReason.LINK, f"the link of {eni.eni_id} is there again")
                self._put(eni.eni_id, replace(link, ticket=ticket, back_monotonic_s=self._clock.monotonic()))
            elif eni.state is EniState.DETACHING and eni.mac not in present:
                self._put(eni.eni_id, replace(link, ticket=None))  # it has gone again: its next return is news

    def _attached(self) -> list[Eni]:
        return [eni for eni in self._datastore.enis() if eni.is_in_pool]

    def _freeze(self, enis: list[Eni], *, gone: MacAddress | None = None) -> None:
        for eni in enis:
            missing = self._book.of(eni.eni_id).link
            was_there = eni.host_ready or eni.mac == gone
            added = self._book.forget_added(eni.eni_id) if was_there else None
            if missing is None or missing.ticket is not None:
                self._resyncs.request(LookReason.LINK, f"the link of {eni.eni_id} is gone")
                self._routing.freeze(eni.eni_id, FROZEN)
                self._put(eni.eni_id, MissingLink(added))  # last: if the disk refused, the next comparison freezes it
            elif added is not None:
                self._put(eni.eni_id, replace(missing, added=added))
                self._resyncs.request(LookReason.LINK, f"the link of {eni.eni_id} is gone")  # the last one took it for lag

    def _say(self, sentence: str) -> None:
        if sentence != self._said and not self.loop.is_stopped:
            self._said = sentence
            log.info("links: %s", sentence or "compared again")
