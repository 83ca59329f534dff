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

from ipamd.core.context import Service, ServiceContext
from ipamd.core.loop import Loop
from ipamd.eni.book import EniBook, MissingLink
from ipamd.eni.resync import ResyncReason, ResyncScheduler
from ipamd.eni.routing import EniRouting
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel import ChangeKind, HostChange, LinkEvent, LinkEventKind
from ipamd.ports import HostNetwork

REOPEN_S = 0.5
"""Pause before a subscription that ended is opened again. Ours: all links are compared on a clock meanwhile."""

log = logging.getLogger(__name__)


class LinkWatch(Service):
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
        super().__init__(context)
        self._hostnet = hostnet
        self._book = book
        self._routing = routing
        self._resyncs = resyncs
        self._on_change = on_change
        self.loop = Loop("links", self.turn, health=context.health, clock=context.clock, cancel=hostnet.stop_host_events)
        self._lock = threading.Lock()
        self._said = ""

    def turn(self) -> float:
        """Follow the kernel's notifications until they break. Returns: seconds until they are opened again."""
        try:
            for event in self._hostnet.host_events():
                if self.loop.is_stopped:
                    break
                if self.loop.recovered():
                    self._on_change(HostChange(ChangeKind.MISSED))  # while nobody listened
                if isinstance(event, HostChange):
                    self._on_change(event)
                else:
                    self.on_event(event)
        except Exception:
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
            missing = self._missing()
            for eni in (eni for eni in self._datastore.enis() if eni.eni_id in missing):
                link = missing[eni.eni_id]
                if link.back_monotonic_s is None and eni.mac in present:
                    # Also that of an ENI that EC2 found detached: its sandboxes need it.
                    self._book.observe(eni.eni_id, link=replace(link, back_monotonic_s=self._clock.monotonic()))
                    self._resyncs.request(ResyncReason.LINK, f"the link of {eni.eni_id} is there again")
                elif eni.state is EniState.DETACHING and eni.mac not in present:
                    self._book.observe(
                        eni.eni_id, link=replace(link, back_monotonic_s=None)
                    )  # gone again: its next return is news
        return True

    def thaw_confirmed(self) -> None:
        """Thaw the ENIs whose link is back, if a resync since then left no doubt, or metadata has listed them since."""
        recorded, listed = {eni.eni_id: eni for eni in self._datastore.enis()}, self._book.readings()
        confirmed = []
        with self._lock:
            for eni_id, link in self._missing().items():
                eni, since_s = recorded.get(eni_id), link.back_monotonic_s
                if eni is None:
                    self._routing.thaw(eni_id)  # EC2 said that it is gone; whoever believed that cleared up
                elif since_s is not None and eni.state is EniState.ATTACHED:
                    is_listed = eni.mac in listed and self._book.listed_monotonic_s > since_s
                    if is_listed or self._resyncs.is_answered(since_s):
                        self._routing.thaw(eni_id)
                        confirmed.append(eni_id)
        for eni_id in confirmed:
            log.info("the link is there again and the ENI is ours: it gives addresses again eni=%s", eni_id)
            self._routing.set_up_again(eni_id)  # outside the lock: it may wait for the link

    def _missing(self) -> dict[EniId, MissingLink]:
        return {eni_id: facts.link for eni_id, facts in self._book.all().items() if facts.link is not None}

    def _attached(self) -> list[Eni]:
        return [eni for eni in self._datastore.enis() if eni.is_in_pool]

    def _freeze(self, enis: list[Eni], *, gone: MacAddress | None = None) -> None:
        for eni in enis:
            known = self._book.of(eni.eni_id).link
            was_there = eni.host_ready or eni.mac == gone
            is_known = known is not None and known.back_monotonic_s is None and known.was_there >= was_there
            if not is_known or eni.host_ready:  # or the disk refused to freeze it
                self._routing.freeze(eni.eni_id, was_there=was_there)
                self._resyncs.request(ResyncReason.LINK, f"the link of {eni.eni_id} is gone")

    def _say(self, sentence: str) -> None:
        if sentence != self._said and not self.loop.is_stopped:
            self._said = sentence
            log.info("links state=%s", sentence or "compared again")
