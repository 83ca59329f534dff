"""A follower looks after each change, and not because of what its own failing look changed."""

from __future__ import annotations

import threading
import time
from pathlib import Path

from ipamd.core.health import Health
from ipamd.host.files import FileFollower
from tests.fakes.clock import FakeClock
from tests.patience import PATIENCE_S
from tests.rig import wait_until


class Failing(FileFollower):
    """Writes into its own directory and fails, as on a full disk, until it is mended."""

    def __init__(self, path: Path) -> None:
        self.health = Health(FakeClock(), ())
        super().__init__(path, subject="it", health=self.health)
        self._path = path
        self.looks = 0

    def look(self) -> None:
        """Leave a trace, and fail."""
        self.looks += 1
        self._path.with_name("scratch").touch()
        raise OSError("No space left on device")


def test_a_look_that_fails_does_not_wake_itself(tmp_path: Path) -> None:
    """Else a full disk would make it look ten times a second, as long as it is full."""
    follower = Failing(tmp_path / "file")
    thread = threading.Thread(target=follower.run)
    thread.start()
    try:
        wait_until(lambda: bool(follower.health.conditions()), what="the condition")
        time.sleep(1.0)
        assert follower.looks <= 2
    finally:
        follower.stop()
        thread.join(PATIENCE_S)
    assert not thread.is_alive()
