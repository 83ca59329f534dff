"""SIGKILL between every two effects of asking the policy agent: after the next start it knows nobody who is gone, and filters who is
there (I21).

The agent is a process of its own, with real filters, that remembers names as the real one does; it survives the daemon.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator

import pytest

from lab.lab import Lab
from lab.node.policy_agent import PolicyAgent
from lab.node.policy_agent_process import host_veth
from tests.rig import Rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

SETTINGS = {"NETWORK_POLICY_ENFORCING_MODE": "strict", "VPC_IPAMD_POD_VETH_NAMES": "true"}
POD, NAME = "web-0", "default/web-0"


AGAIN, NOBODY = "the pod comes again", "nobody comes"

CRASHES = [
    ("policy.owed", NOBODY),
    ("policy.enforced", NOBODY),
    ("policy.enforced", AGAIN),
    ("detach.committed", AGAIN),
    ("policy.due", NOBODY),
    ("policy.forgotten", AGAIN),
]
"""Where the daemon dies, and what happens after its next start."""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One VPC; every crash happens on a node of its own in it."""
    with Lab(name=f"crash-policy-{time.monotonic_ns()}", nodes=[], hosts=["host-a"], containerd=False) as made:
        yield made


def owed(made: Rig) -> int:
    """Names that the agent has not confirmed to have forgotten."""
    return int((made.status() or {"pending_policy_cleanup_count": -1})["pending_policy_cleanup_count"])


@pytest.mark.parametrize(("name", "later"), CRASHES)
def test_a_crash_here_leaves_no_pod_without_its_filter(lab: Lab, name: str, later: str) -> None:
    """Whoever comes afterwards: the pod's next sandbox is filtered, and once it is gone the agent knows no name."""
    is_in_add = name in ("policy.owed", "policy.enforced")
    made = Rig(lab, lab.add_node(f"{name}-{later[0]}".replace(".", "-")), env=SETTINGS)
    agent = PolicyAgent(made.node)
    try:
        agent.start(wait=False)
        made.start()
        wait_until(lambda: any(entry.did == "started" for entry in agent.record()), what="the agent got its mode")
        if not is_in_add:
            assert made.add("first", pod=POD).ok
        made.restart(env={**SETTINGS, "VPC_IPAMD_FAILPOINT": name})
        if not is_in_add:
            assert made.delete("first").ok
        else:
            made.node.make_netns("victim")
            made.lose_add("victim", pod=POD)
        wait_until(lambda: made.daemon is not None and made.daemon.poll() is not None, what=f"death at {name}")
        assert made.daemon is not None
        assert made.daemon.returncode == -signal.SIGKILL, made.log_tail()
        made.start(env=SETTINGS)
        if later == AGAIN:
            assert made.add("again", pod=POD).ok
            assert agent.filtered(host_veth("default", POD, prefix="eni")).is_whole, "I21"
            assert NAME in agent.names()
            made.assert_sound(expected=1)
            assert made.delete("again").ok
        wait_until(lambda: owed(made) == 0 and NAME not in agent.names(), what="the agent was told")
        made.assert_sound(expected=0)
    except BaseException:
        sys.stderr.write(f"--- the daemon's log\n{made.log_tail(60)}\n")
        raise
    finally:
        made.kill()
        agent.kill()
