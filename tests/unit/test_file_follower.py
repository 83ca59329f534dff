"""A follower looks after each change, and not because of what its own failing look changed."""

from __future__ import annotations

import time
from pathlib import Path

from ipamd.core.backoffs import Backoffs
from ipamd.core.deadline import SystemClock
from ipamd.core.health import Health
from ipamd.host.files import FileFollowers, FollowedFile
from tests.loops import running
from tests.rig import wait_until


class Failing(FollowedFile):
    """Writes into its own directory and fails, as on a full disk, until it is mended."""

    def __init__(self, path: Path) -> None:
        super().__init__(path.parent, subject="it")
        self._path = path
        self.looks = 0

    def check(self) -> None:
        """Leave a trace, and fail."""
        self.looks += 1
        self._path.with_name("scratch").touch()
        raise OSError("No space left on device")


class Working(FollowedFile):
    """Counts its looks."""

    looks = 0

    def check(self) -> None:
        """Count."""
        self.looks += 1


def test_a_look_that_fails_wakes_neither_itself_nor_keeps_the_others(tmp_path: Path) -> None:
    """Else a full disk would make it look ten times a second, as long as it is full; and a drain hook would wait for it."""
    health = Health(SystemClock(), ())
    followers = FileFollowers(health=health, clock=SystemClock(), backoffs=Backoffs(SystemClock()))
    failing, working = Failing(tmp_path / "file"), Working(tmp_path, subject="other")
    with running(followers.loop):
        for file in (failing, working):
            followers.follow(file)
        wait_until(lambda: bool(health.conditions()), what="the condition")
        time.sleep(0.5)
        looks = working.looks
        (tmp_path / "changed").touch()
        wait_until(lambda: working.looks > looks, what="a look of the other")
        time.sleep(0.5)
    assert failing.looks == 1
    assert health.conditions() == ["it: OSError: No space left on device; retried"]
