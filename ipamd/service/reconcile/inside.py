"""Put back what sandboxes lost inside of their namespaces, some at each pass, in turn: nothing announces what happens there."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from contextlib import suppress

from ipamd.model.cniresult import recorded_spec
from ipamd.model.errors import IpamError
from ipamd.model.ids import AttachmentKey
from ipamd.model.repair import RepairedObject
from ipamd.service.context import ServiceContext
from ipamd.service.request import Deadline

INSIDE_PER_PASS = 16
"""Sandboxes that each pass by the clock compares from inside, in turn: all 110 of a node in less than four minutes. Ours: it means
entering each one's namespace, some 0.4 ms; the kernel of the host tells nothing."""

REPAIR_WAIT_S = 1.0
"""How long a repair waits for an operation on the same sandbox; it has its turn again later. Ours."""


class InsideRepairs:
    """Used by one thread."""

    def __init__(self, context: ServiceContext) -> None:
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._locks = context.locks
        self._clock = context.clock
        self._last: AttachmentKey | None = None

    def take_turn(self, *, held: Collection[RepairedObject]) -> list[str]:
        """Repair some sandboxes, going on where the last turn ended. Returns: one sentence per repair."""
        keys = sorted(one.key for one in self._datastore.attachments())
        start = bisect_right(keys, self._last) if self._last is not None else 0
        repairs: list[str] = []
        for key in (keys[start:] + keys[:start])[:INSIDE_PER_PASS]:
            self._last = key
            with suppress(IpamError), self._locks.hold(key, "REPAIR", Deadline.after(self._clock, REPAIR_WAIT_S)):
                attachment = self._datastore.attachment(key)
                if attachment is not None:
                    repairs += self._wiring.repair_inside(recorded_spec(attachment), held=held)
        return repairs
