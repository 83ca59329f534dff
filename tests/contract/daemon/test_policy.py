"""The daemon as a process and a policy agent as another: what each asks the other, and what a pod's life is like without it (I21)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from ipamd.policy.hook import WAIT_S
from lab.node.policy_agent import PolicyAgent
from lab.node.policy_agent_process import host_veth
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

SETTINGS = {"NETWORK_POLICY_ENFORCING_MODE": "Strict", "VPC_IPAMD_POD_VETH_NAMES": "true"}


@dataclass(frozen=True)
class Filtering:
    """A node whose daemon asks the agent that runs on it."""

    made: Rig
    agent: PolicyAgent

    def owed(self) -> int:
        """Names that the agent has not confirmed to have forgotten."""
        status = self.made.status()
        assert status is not None
        return int(status["pending_policy_cleanup_count"])

    def lacks(self) -> list[str]:
        """Subjects of conditions about the agent."""
        status = self.made.status()
        assert status is not None
        return [one["subject"] for one in status["conditions"] if "policy" in one["subject"]]


@pytest.fixture(scope="module")
def filtering() -> Iterator[Filtering]:
    """One for the module; each test removes what it attached. The agent starts first, and waits for the daemon's answer."""
    with rig(env=SETTINGS, start=False) as made:
        agent = PolicyAgent(made.node)
        agent.start(wait=False)
        made.start()
        wait_until(lambda: any(entry.did == "started" for entry in agent.record()), what="the agent got its mode")
        yield Filtering(made, agent)
        agent.kill()
        made.assert_sound(expected=0)


def test_a_pods_life(filtering: Filtering) -> None:
    """Filtered in both directions before its ADD is answered, forgotten after its DEL; so is the name's next sandbox."""
    made, agent = filtering.made, filtering.agent
    link = host_veth("default", "web-0", prefix="eni")
    for sandbox in ("first", "second"):
        assert made.add(sandbox, pod="web-0").ok
        assert agent.filtered(link).is_whole
        assert "default/web-0" in agent.names()
        assert made.delete(sandbox).ok
    wait_until(lambda: "default/web-0" not in agent.names() and not filtering.owed(), what="the agent was told")


def test_a_life_without_it(filtering: Filtering) -> None:
    """ADD is refused with 11 and its cause, DEL and STATUS do not fail, and what was missed is made up for; nothing is left over."""
    made, agent = filtering.made, filtering.agent
    assert made.add("kept", pod="kept-0").ok
    agent.kill()
    began = time.monotonic()
    refused = made.add("without", pod="without-0")
    assert time.monotonic() - began > WAIT_S
    assert refused.code == 11
    assert refused.body is not None
    assert "the network policy agent does not answer" in refused.body["msg"] + refused.body["details"]
    assert made.delete("without").ok
    assert made.delete("kept").ok
    assert made.cni("STATUS", "", netns="", ifname="", version="1.1.0").ok
    assert filtering.lacks() == ["policy agent"]
    assert filtering.owed() == 2
    made.restart()
    agent.start()
    wait_until(lambda: not filtering.owed(), what="made up for", timeout_s=3 * PATIENCE_S)
    assert filtering.lacks() == []
    made.assert_sound(expected=0)


def test_it_refuses(filtering: Filtering) -> None:
    """Success=false fails the ADD, whose address cools; the pod's next sandbox is filtered."""
    made, agent = filtering.made, filtering.agent
    agent.order(refuses=True)
    refused = made.add("refused", pod="refused-0")
    agent.order(refuses=False)
    assert refused.code == 11
    assert made.delete("refused").ok
    assert made.add("again", pod="refused-0").ok
    assert agent.filtered(host_veth("default", "refused-0", prefix="eni")).is_whole
    assert made.delete("again").ok
    wait_until(lambda: not filtering.owed(), what="the agent was told")


def test_a_run_directory_that_is_gone(filtering: Filtering) -> None:
    """No file tells that a daemon has run in this boot, and no link is left: its nftables do, so the successor is filtered."""
    made, agent = filtering.made, filtering.agent
    link = host_veth("default", "gone-0", prefix="eni")
    assert made.add("before", pod="gone-0").ok
    assert agent.filtered(link).is_whole
    made.kill()
    made.node.remove_netns("before")
    made.node.run(["/bin/sh", "-c", "rm -rf /run/vpc-ipamd/* /run/vpc-ipamd/.[!.]*"])
    made.start()
    assert made.add("after", pod="gone-0").ok
    assert agent.filtered(link).is_whole
    assert made.delete("after").ok
    wait_until(lambda: not filtering.owed(), what="the agent was told")
