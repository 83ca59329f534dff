"""Restarts of the daemon under load on a real containerd: no condition of the node changes, and no pod needs a second try (I17).

containerd 1.7 tells NetworkReady by its configuration alone; 2.1 asks the plugin's STATUS for it, each time.
"""

from __future__ import annotations

import pytest

from tests.lab.runtime.conftest import rig_with
from tests.lab.runtime.rolls import POOL, assert_not_noticed
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]


@pytest.mark.parametrize("version", [pytest.param("1.7", marks=pytest.mark.heavy), "2"])
def test_restarts_under_load_change_no_condition(version: str) -> None:
    """One SIGTERM, one kill -9; eight restarts are in tests/heavy/test_rolls_on_containerd.py."""
    assert_not_noticed(version, rolls=2)


@pytest.mark.parametrize("version", ["2"])
def test_a_daemon_that_does_not_come_back_shows(version: str) -> None:
    """The other side of it: without a daemon the node is NotReady once the minute that is bridged is used up."""
    with rig_with(version, env=POOL) as made:
        wait_until(lambda: made.node.cri.network_problem() == "", what="ready")
        made.kill()
        mark = made.driver.run_dir / "served"
        boot_id, served_ms = mark.read_text().split()
        mark.write_text(f"{boot_id}\n{int(served_ms) - 61_000}\n")
        assert "vpc-ipamd" in made.node.cri.network_problem(timeout_s=120)
        made.start()
        wait_until(lambda: made.node.cri.network_problem(timeout_s=120) == "", what="a daemon that serves again")
