"""Whether a pass by the clock must read all links, addresses, routes and rules: not while the kernel announces no change of them.

Reading them is the dearest part of a pass, and the kernel announces whatever it could find. So on a node to which nothing happens only
one of SURVEY_TURNS passes reads them, as a net, and with them the settings of host veths, which are not announced and are a second
line only (docs/adr/0021). Other sysctls, nftables and the filters of other software are compared each time.
"""

from __future__ import annotations

import threading

from ipamd.model.kernel import ChangeKind, HostChange, KernelSurvey

SURVEYED = frozenset(
    {ChangeKind.LINK, ChangeKind.VETH_GONE, ChangeKind.ADDRESS, ChangeKind.ROUTE, ChangeKind.RULE, ChangeKind.MISSED}
)
"""What is read, or may be; nftables, which kube-proxy changes every second, is not among it."""

SURVEY_TURNS = 4
"""Passes by the clock of which one reads the sandboxes' wiring in any case: with one pass each 30 s every two minutes. Ours: the
announcements have been tested for all that a survey shows, so this guards against what nobody thought of."""


class Silence:
    """`heard` from any thread; the rest from the thread that makes the passes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._was_heard = False
        self._is_in_order = False
        self._left_out = 0

    def heard(self, change: HostChange) -> None:
        """The kernel announced a change, or may have without being heard."""
        if change.kind in SURVEYED:
            with self._lock:
                self._was_heard = True

    def may_leave_out(self) -> bool:
        """Whether a pass may do without a survey: all was in order at the last one, nothing was announced since, it is recent."""
        with self._lock:
            was_heard, self._was_heard = self._was_heard, False  # what comes during the survey is for the next one
        if was_heard:
            self._is_in_order = False
        if not self._is_in_order or self._left_out + 1 >= SURVEY_TURNS:
            return False
        self._left_out += 1
        return True

    def surveyed(self, survey: KernelSurvey, *, is_odd: bool) -> None:
        """A survey was made; `is_odd`: something had to be repaired, or is not as it should be and is waited for."""
        self._is_in_order, self._left_out = survey.is_whole and not is_odd, 0
