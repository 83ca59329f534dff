"""A policy agent that remembers pods by name, as the real one does, and a pod that runs without a filter because of that."""

from __future__ import annotations

from collections.abc import Callable

from ipamd.model.errors import PolicyAgentRefusedError, PolicyAgentSilentError
from ipamd.model.ids import PodName
from tests.fakes.clock import FakeClock


class FakePolicyAgent:
    """Implements `PolicyAgent`. `calls`: what it was asked; `known`: whom it remembers; `filters`: how many it attached.

    `is_silent` and `refuses` (a call's name) make calls fail, `slow_s` makes each take so long on the fake clock, `meanwhile` runs in
    the middle of one. `unfiltered`: pods that it answered for and attached nothing to; `stripped`: whose filter it took while it knew
    a sandbox of that name to have one.
    """

    def __init__(self, clock: FakeClock) -> None:
        self.calls: list[str] = []
        self.timeouts_s: list[float] = []
        self.interface_counts: list[int] = []
        self.modes: set[str] = set()
        self.known: set[PodName] = set()
        self.filters = 0
        self.unfiltered: list[PodName] = []
        self.is_silent = False
        self.refuses = ""
        self.slow_s = 0.0
        self.meanwhile: Callable[[], None] = lambda: None
        self._clock = clock

    def enforce(self, pod: PodName, *, mode: str, timeout_s: float, interface_count: int = 1) -> None:
        """See the port."""
        self._take("enforce", timeout_s, is_patient=True)
        self.modes.add(mode)
        self.interface_counts.append(interface_count)
        if pod in self.known:
            self.unfiltered.append(pod)
        else:
            self.known.add(pod)
            self.filters += 1

    def forget(self, pod: PodName, *, timeout_s: float, is_patient: bool) -> None:
        """See the port."""
        self._take("forget", timeout_s, is_patient=is_patient)
        self.known.discard(pod)

    def _take(self, call: str, timeout_s: float, *, is_patient: bool) -> None:
        self.timeouts_s.append(timeout_s)
        self.meanwhile()
        if self.is_silent or self.slow_s > timeout_s:
            self._clock.advance(timeout_s if is_patient or not self.is_silent else 0.0)
            raise PolicyAgentSilentError("the network policy agent does not answer")
        self._clock.advance(self.slow_s)
        self.calls.append(call)
        if self.refuses == call:
            raise PolicyAgentRefusedError(f"the network policy agent refused {call}")
