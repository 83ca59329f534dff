"""Notice what other hands do to our ENIs, at no EC2 cost, and have EC2 looked at when something differs.

Two free sources say that something may have changed: the kernel's link notifications at once (`links.py`), instance metadata within
a few minutes (`metadata.py`). Neither removes anything. They make a look at EC2 due, which the pool's thread makes between two plans
(`ipamd/eni/resync.py` says why it), and what two looks prove is acted upon there. This loop only keeps the time: the
turns of metadata, second looks, repetitions. While nothing differs EC2 is not called at all (I13). What follows from each
difference: docs/pool.md, Other hands.
"""

from __future__ import annotations

import random

from ipamd.core.agenda import soonest_s
from ipamd.core.context import ServiceContext
from ipamd.eni.links import LinkWatch
from ipamd.eni.metadata import REQUESTS_PER_TURN, MetadataWatch
from ipamd.eni.resync import ResyncScheduler

TURN_S = 60.0
"""Least time between two turns of metadata. Ours: one turn's requests are then the most in any minute; amazon-vpc-cni-k8s compares
once a minute too (pkg/ipamd/ipamd.go, nodeIPPoolReconcileInterval)."""

TURN_JITTER = 0.25
"""Up to this part of a turn is added at random, so that the nodes of a cluster do not ask in step. Ours."""

LINKS_S = 60.0
"""Longest time between two readings of all links: for changes that no notification told, and links whose MAC was changed. Ours."""


class CloudReconciler:
    """Keeps the time for both sources and for the looks at EC2. `run_once` is of the thread that asked EC2 at the start."""

    def __init__(self, context: ServiceContext, *, links: LinkWatch, metadata: MetadataWatch, resyncs: ResyncScheduler) -> None:
        self._clock = context.clock
        self.links = links
        self.metadata = metadata
        self._resyncs = resyncs
        self._turn_deadline = context.clock.monotonic() + _jittered(TURN_S)  # the start has just asked metadata

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
        self._resyncs.trigger_due()

    def pause_s(self) -> float:
        """Seconds until something is due by the clock."""
        turn_s = max(self._turn_deadline - self._clock.monotonic(), 0.0)
        return soonest_s([LINKS_S, turn_s, self._resyncs.wait_s()]) or 0.0


def _jittered(seconds: float) -> float:
    return seconds * random.uniform(1.0, 1.0 + TURN_JITTER)  # noqa: S311  # not for secrets
