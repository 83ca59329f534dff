"""An idle node with sandboxes on a real runtime, watched for longer than the daemon's slowest usual loop: not one log line."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.contract.daemon.test_quiet import probe, quiet_log
from tests.lab.runtime.conftest import DIRECTORIES, rig_with, run_sandbox

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.containerd,
]

IDLE_S = 100.0
"""Longer than a turn of metadata and a list of the runtime (60 s each), and three looks at host, conflist and plugins (30 s)."""

STATUS_S = 5.0
"""As kubelet asks."""

SANDBOXES = 5


def test_no_log_line_at_idle() -> None:
    """STATUS by containerd 2.1 every 5 s, probes as often, and five sandboxes."""
    if not os.access(Path(DIRECTORIES["2"]) / "containerd", os.X_OK):
        pytest.skip("containerd 2 is not here: `tools/fetch_containerd.sh 2`")
    with rig_with("2", env={"VPC_IPAMD_HEALTH_ADDRESS": "127.0.0.1:61677"}) as made:
        sandboxes = [run_sandbox(made, f"pod-{number}") for number in range(SANDBOXES)]
        before = quiet_log(made, made.driver.run_dir / "served")
        until = time.monotonic() + IDLE_S
        while time.monotonic() < until:
            assert made.node.cri.network_problem(timeout_s=120) == ""
            assert probe(made, "/healthz", "/readyz") == [200, 200]
            time.sleep(STATUS_S)
        assert made.driver.log_text()[len(before) :] == ""
        for sandbox in sandboxes:
            made.node.cri.stop(sandbox)
            made.node.cri.remove(sandbox)
        made.assert_sound(expected=0)
