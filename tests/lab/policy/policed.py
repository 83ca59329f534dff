"""A node whose pods are filtered by a policy agent, and pods that say whether they are heard."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from lab.fabric import talk
from lab.node.policy_agent import Entry, Filtered, PolicyAgent
from lab.node.policy_agent_process import host_veth
from lab.vpc.family import IPV4, Family
from lab.vpc.model import Address
from tests.patience import PATIENCE_S
from tests.rig import CniReply, Rig, rig, wait_until

STRICT = {"NETWORK_POLICY_ENFORCING_MODE": "strict", "VPC_IPAMD_POD_VETH_NAMES": "true"}
UNHEARD_S = 0.3
"""Packets on the lab take milliseconds, and a host's neighbours are permanent."""


@dataclass
class Policed:
    """One node, its daemon, its policy agent, and every sandbox that it had: its address, its pod."""

    rig: Rig
    agent: PolicyAgent
    servers: talk.Servers
    addresses: dict[str, Address] = field(default_factory=dict)
    pods: dict[str, str] = field(default_factory=dict)

    def add(self, pod: str) -> tuple[str, CniReply]:
        """ADD of a new sandbox of a pod, which answers whoever asks it; one that is refused has no namespace any more."""
        sandbox = f"{pod}-s{len(self.pods)}"
        self.pods[sandbox] = pod
        reply = self.rig.add(sandbox, pod=pod)
        if reply.ok:
            self.addresses[sandbox] = reply.any_address
            self.servers.add(sandbox, self.rig.node.netns_path(f"/run/netns/{sandbox}"), address=reply.any_address)
        else:
            self.rig.node.remove_netns(sandbox)
        return sandbox, reply

    def run(self, pod: str) -> str:
        """The same of one whose ADD succeeds. Returns: the sandbox."""
        sandbox, reply = self.add(pod)
        assert reply.ok, reply.body
        return sandbox

    def run_and_die(self, pod: str) -> None:
        """An ADD under which the daemon dies, and whose runtime gives up; its namespace goes."""
        sandbox = f"{pod}-s{len(self.pods)}"
        self.pods[sandbox] = pod
        self.rig.node.make_netns(sandbox)
        self.rig.lose_add(sandbox, pod=pod)
        self.rig.node.remove_netns(sandbox)

    def delete(self, sandbox: str) -> float:
        """Its DEL, which succeeds. Returns: the seconds that took."""
        began = time.monotonic()
        reply = self.rig.cni("DEL", sandbox, pod=self.pods[sandbox])
        took_s = time.monotonic() - began
        assert reply.ok, reply.body
        return took_s

    def remove(self, sandbox: str) -> float:
        """DEL, and its namespace goes."""
        took_s = self.delete(sandbox)
        self.rig.node.remove_netns(sandbox)
        return took_s

    def lose(self, sandbox: str) -> None:
        """Its namespace dies with its link, and no DEL comes. The servers' sockets would keep it."""
        self.rig.node.run(["ip", "link", "del", link(self.pods[sandbox])])
        self.rig.node.remove_netns(sandbox)

    def is_heard(self, sandbox: str, *, expected: bool = True) -> bool:
        """Whether a host of the VPC hears it, that asks for a moment only if no answer is expected."""
        timeout_s = PATIENCE_S if expected else UNHEARD_S
        heard = talk.ask(self.rig.lab.hosts["host-a"].path, self.addresses[sandbox], timeout_s=timeout_s)
        return heard is not None and heard.by == sandbox

    def filtered(self, pod: str) -> Filtered:
        """What filters a pod's link, by the kernel."""
        return self.agent.filtered(link(pod))

    def did(self, pod: str) -> list[Entry]:
        """What the agent did about a pod, oldest first."""
        return [entry for entry in self.agent.record() if entry.pod == f"default/{pod}"]

    def assert_policed(self, sandbox: str) -> None:
        """A pod that must be filtered is: in strict mode nobody hears it until its policy comes, and then it is heard."""
        pod = self.pods[sandbox]
        assert self.filtered(pod).is_whole, self.did(pod)
        assert not self.is_heard(sandbox, expected=False)
        assert self.agent.policy_comes("default", pod, passes=True), "no policy reaches its filter"
        assert self.is_heard(sandbox)

    def await_forgotten(self, pod: str) -> None:
        """What is owed is paid."""
        wait_until(lambda: f"default/{pod}" not in self.agent.names(), what=f"the agent forgets {pod}", timeout_s=120)


def link(pod: str) -> str:
    """The name of a pod's host veth."""
    return host_veth("default", pod, prefix="eni")


@contextmanager
def policed(*, env: Mapping[str, str] | None = None, family: Family = IPV4) -> Iterator[Policed]:
    """A rig in strict mode with an agent; everything is gone afterwards."""
    with rig(env=STRICT | dict(env or {}), family=family, start=False) as made, talk.Servers() as servers:
        agent = PolicyAgent(made.node, family=family)
        made.start(wait=False)
        agent.start(wait=False)
        made.wait_ready()
        agent.wait_started()
        yield Policed(made, agent, servers)
