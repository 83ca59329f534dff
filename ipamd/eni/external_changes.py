"""Notice what other hands do to our ENIs, at no EC2 cost, and have EC2 looked at when something differs.

Two free sources say that something may have changed: the kernel's link notifications at once (`links.py`), instance metadata within
a few minutes (`metadata.py`). Neither removes anything. They make a look at EC2 due, which the pool's thread makes between two plans
(`ipamd/eni/resync.py` says why it), and what two looks prove is acted upon there. This loop only keeps the time: the
turns of metadata, second looks, repetitions. While nothing differs EC2 is not called at all (I13). What follows from each
difference: docs/architecture.md, Other hands.
"""

from __future__ import annotations

import logging
import random
import threading

from ipamd.core.backoff import soonest_s
from ipamd.core.context import ServiceContext
from ipamd.eni.links import LinkWatch
from ipamd.eni.metadata import REQUESTS_PER_TURN, MetadataWatch
from ipamd.eni.resync import CloudLook
from ipamd.model.errors import log_text

TURN_S = 60.0
"""Least time between two turns of metadata. Ours: one turn's requests are then the most in any minute; amazon-vpc-cni-k8s compares
once a minute too (pkg/ipamd/ipamd.go, nodeIPPoolReconcileInterval)."""

TURN_JITTER = 0.25
"""Up to this part of a turn is added at random, so that the nodes of a cluster do not ask in step. Ours."""

ERROR_PAUSE_S = 5.0
"""Pause after an unexpected error. Ours: a defect must not make the loop spin."""

LINKS_S = 60.0
"""Longest time between two readings of all links: for changes that no notification told, and links whose MAC was changed. Ours."""

log = logging.getLogger(__name__)


class CloudReconciler:
    """Keeps the time for both sources and for the looks at EC2. `run` and `run_links` are thread bodies."""

    def __init__(self, context: ServiceContext, *, links: LinkWatch, metadata: MetadataWatch, look: CloudLook) -> None:
        self._clock = context.clock
        self._health = context.health
        self.links = links
        self.metadata = metadata
        self._look = look
        self._stopped = threading.Event()
        self._turn_deadline = context.clock.monotonic() + _jittered(TURN_S)  # the start has just asked metadata

    def run(self) -> None:
        """Thread body: do what is due, until `stop`."""
        while not self._stopped.is_set():
            try:
                self.run_once()
            except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                self._health.record_error("other hands", error)
                log.warning("looking for other hands continues after an error: %s", log_text(error))
                self._stopped.wait(ERROR_PAUSE_S)
            self._look.wait_changed(self.pause_s())

    def run_links(self) -> None:
        """Thread body: follow the kernel's link notifications, until `stop`."""
        self.links.run()

    def stop(self) -> None:
        """End `run` and `run_links`."""
        self._stopped.set()
        self.links.stop()
        self._look.wake()

    def run_once(self) -> None:
        """Do everything that is due."""
        self.links.compare()
        if self._clock.monotonic() >= self._turn_deadline:
            self._turn_deadline = self._clock.monotonic() + TURN_S
            request_count = self.metadata.take_turn()
            pause_s = TURN_S * max(1.0, request_count / REQUESTS_PER_TURN)
            self._turn_deadline = self._clock.monotonic() + _jittered(pause_s)
        elif self.metadata.is_different:
            self.metadata.evaluate()  # what EC2 said since may have ended a difference
        self.links.thaw_confirmed(self.metadata.was_shown)
        self._look.trigger_due()

    def pause_s(self) -> float:
        """Seconds until something is due by the clock."""
        turn_s = max(self._turn_deadline - self._clock.monotonic(), 0.0)
        return soonest_s([LINKS_S, turn_s, self._look.wait_s()]) or 0.0


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1.0, 1.0 + TURN_JITTER)  # noqa: S311  # not for secrets
