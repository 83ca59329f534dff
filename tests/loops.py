"""Run the daemon's loops in threads for the time of a block."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from ipamd.core.loop import Loop
from tests.patience import PATIENCE_S


@contextmanager
def running(*loops: Loop) -> Iterator[None]:
    """Run the loops; they end when they are told to."""
    threads = [threading.Thread(target=loop.run, daemon=True) for loop in loops]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for loop in loops:
            loop.stop()
        for thread in threads:
            thread.join(PATIENCE_S)
        assert not any(thread.is_alive() for thread in threads)
