"""The state of the VPC that an API shows: the present one, an older one, one without the newest changes, or one that is frozen."""

from __future__ import annotations

import threading
from collections.abc import Callable

from lab.vpc.faults import IMDS, Faults
from lab.vpc.lies import stale
from lab.vpc.store import Store
from lab.vpc.world import World

_LYING = ("DescribeNetworkInterfaces", "DescribeInstances")


class Views:
    """Chooses the state that an API shows, by the faults in force. Thread-safe. After every change of the faults `follow` is
    called."""

    def __init__(self, store: Store, faults: Faults, *, clock: Callable[[], float]) -> None:
        self._store = store
        self._faults = faults
        self._clock = clock
        self._lock = threading.Lock()
        self._frozen: World | None = None

    def world(self, api: str) -> World:
        """Return the state that an API shows now. `api`: the name of the API, or `imds` for instance metadata."""
        with self._lock:
            if api == IMDS and self._frozen is not None:
                return self._frozen
        shown = self._store.world_at(self._faults.lag_s(api))
        lies = self._faults.conditions.describe
        if lies is not None and api in _LYING:
            return stale(shown, self._store.changes(), lies, self._clock())
        return shown

    def follow(self) -> None:
        """Freeze the state that metadata shows, or end that, by the fault `frozen`."""
        is_frozen, now = self._faults.is_frozen(), self._store.world
        with self._lock:
            self._frozen = (self._frozen or now) if is_frozen else None
