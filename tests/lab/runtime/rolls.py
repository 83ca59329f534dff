"""A node's daemon restarted again and again under load, asked as kubelet asks a real runtime."""

from __future__ import annotations

from bench.rolls import roll
from lab.node.kubelet import KubeletOnCri
from tests.lab.runtime.conftest import rig_with, run_sandbox
from tests.rig import wait_until

AWAY_S = 3.0
STATUS_S = 1.0
SANDBOX_S = 1.0
POOL = {"MINIMUM_IP_TARGET": "18", "WARM_IP_TARGET": "1", "IP_COOLDOWN_PERIOD": "2", "VPC_IPAMD_CRI_SOCKET": ""}


def assert_not_noticed(version: str, *, rolls: int) -> None:
    """Restart by SIGTERM and by kill -9 in turn: NetworkReady at each look, and each sandbox starts and ends at its first call.

    The loop is kubelet's, but asks 5 times as often, and starts sandboxes twice as often. The time without a socket is the true one.
    """
    with rig_with(version, env=POOL) as made:
        lasting = run_sandbox(made, "lasting")
        with KubeletOnCri(made.node, status_s=STATUS_S, sandbox_s=SANDBOX_S) as kubelet:
            wait_until(lambda: len(kubelet.of("DEL")) > 1, what="the node lives")
            absences = [roll(made.driver, number, away_s=AWAY_S, rest_s=SANDBOX_S) for number in range(rolls)]
        assert [call for call in kubelet.calls if not call.is_ok] == []
        assert min(absences) >= AWAY_S
        adds = kubelet.of("ADD")
        assert len(kubelet.of("STATUS")) > rolls
        assert len(kubelet.of("DEL")) == len(adds) > rolls
        longest = max(call.seconds for call in adds)
        assert longest > 1, "a sandbox was started while the daemon was away"
        assert made.node.cri.status(lasting).is_ready
        made.node.cri.stop(lasting)
        made.node.cri.remove(lasting)
        made.assert_sound(expected=0)
