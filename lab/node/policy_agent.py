"""The policy agent of one lab node: start it, kill it, make it slow, silent or forgetful, send policies, read its actions.

The agent is a stand-in for aws-network-policy-agent. `policy_agent_process.py` describes its likeness to the real one. Tests and chaos
runs check the daemon by two sources that are independent of it: the record that the agent writes of its actions, and the filters in
the kernel, which this module reads from outside the node.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.fabric import bpf, tc
from lab.node.errors import NodeError
from lab.node.node import REPOSITORY, Node
from lab.node.policy_agent_process import HOOKS, ORDERS, RECORD, VETH_PREFIXES, map_pin, pod_identifier
from lab.node.process import NodeProcess
from lab.vpc.family import IPV4, IPV6, Family

MODULE = "lab.node.policy_agent_process"
LOG = "/var/log/npa.log"
START_TIMEOUT_S = 40.0
END_TIMEOUT_S = 10.0
POLL_S = 0.01


@dataclass(frozen=True)
class Entry:
    """One line of the agent's record: an action, its time, and the pod (`namespace/name`) or link that it concerned.

    did: the action, such as "attached"; `policy_agent_process.py` writes them.
    program: the kernel's ID of the ingress program; 0 for none.
    rest: the further fields of the line.
    """

    did: str
    at_monotonic_s: float
    pod: str = ""
    link: str = ""
    ifindex: int = 0
    program: int = 0
    rest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Filtered:
    """The filters of a pod's link.

    ingress, egress: the kernel's ID of the program that filters this direction, as the pod sees it; 0 for none.
    ifindex: the link's index, by which a caller can distinguish it from an earlier link of the same name.
    """

    ingress: int = 0
    egress: int = 0
    ifindex: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether both directions have a filter."""
        return bool(self.ingress and self.egress)


@dataclass(frozen=True)
class PolicyView:
    """The filters of a node's pods.

    links: name of each pod's link -> its filters, as the kernel reports them.
    removed: indices of links from which the agent removed the filter without attaching another, by the agent's record.
    stale: indices of links whose pod name the agent had to forget, by its record. The link may still have its programs, but no
        policy reaches them any more.
    """

    links: Mapping[str, Filtered] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()
    stale: frozenset[int] = frozenset()


class PolicyAgent:
    """At most one agent process on one node. Its filters in the kernel vanish with the node.

    Concurrency: one thread starts and ends the process.
    """

    def __init__(self, node: Node, *, family: Family = IPV4) -> None:
        """Make the object; no process is started yet. `family`: the packets that the agent filters; all others pass, as with the real
        agent."""
        self.node = node
        self.process: NodeProcess | None = None
        self._family = family
        self._orders: dict[str, Any] = {}
        self._seen = 0

    def start(self, *, how: str = "again", gap_s: float = 0.0, wait_s: float = 30.0, wait: bool = True) -> None:
        """Start the agent.

        Args:
            how: the agent's start. "again": it does not remember pod names, but finds the filters and pinned programs of the last
                process. "upgraded": it removes every filter, and attaches new ones after `gap_s`. "forgetful": it removes every
                filter and pin, and attaches no new ones.
            wait_s: how long the agent waits for the daemon's socket before it exits.
            wait: whether to return only when the agent serves, as `wait_started` does.
        Raises: NodeError if an agent runs already, or the new one does not serve.
        """
        if self.is_running:
            raise NodeError(f"a policy agent runs on {self.node.name} already")
        self._seen = len(self.record())
        options = [f"--start={how}", f"--gap-s={gap_s}", f"--wait-s={wait_s}", *(["--ipv6"] if self._family is IPV6 else [])]
        with Path(self.node.root + LOG).open("ab") as log:
            argv = [sys.executable, "-m", MODULE, *options]
            self.process = self.node.spawn(argv, cwd=str(REPOSITORY), stdout=log, stderr=log)
        if wait:
            self.wait_started()

    def wait_started(self) -> None:
        """Return when the process that was started last serves. Raises: NodeError with its record and the end of its log."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not any(entry.did == "started" for entry in self.record()[self._seen :]):
            if not self.is_running or time.monotonic() > deadline:
                log = Path(self.node.root + LOG).read_text(encoding="utf-8")[-2000:]
                raise NodeError(f"{self.node.name}: the policy agent does not serve: {self.record()[self._seen :]}\n{log}")
            time.sleep(POLL_S)

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """`kill -9`, and wait for the end. The socket's file stays, so connections to it are refused."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(END_TIMEOUT_S)

    def restart(self, *, how: str = "again", gap_s: float = 0.0) -> None:
        """Kill the agent and start it again. The arguments are those of `start`."""
        self.kill()
        self.start(how=how, gap_s=gap_s)

    def fall_silent(self) -> None:
        """Stop the process by SIGSTOP: the kernel still accepts connections for it, but no request is answered until `speak`.

        Returns when all of its threads are stopped.
        """
        if self.process is None:
            return
        self.process.send_signal(signal.SIGSTOP)
        threads, deadline = Path(f"/proc/{self.process.pid}/task"), time.monotonic() + END_TIMEOUT_S
        while self.is_running and not all(_is_stopped(thread) for thread in threads.iterdir()) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def speak(self) -> None:
        """Continue the process after `fall_silent`."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def order(self, **orders: Any) -> None:
        """Set how the agent answers from now on. An order stays until it is set again.

        Orders: `slow_s` (delay of each answer), `refuses` (EnforceNpToPod answers success=false), `refuses_delete` (DeletePodNp
        answers success=false), `policies` (pod identifier -> "allow" or "deny").
        """
        self._orders |= orders
        path = Path(self.node.root + ORDERS)
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self._orders), encoding="utf-8")
        fresh.replace(path)

    def policy_comes(self, namespace: str, name: str, *, passes: bool) -> bool:
        """Send a policy for a pod and its replicas, which passes all packets or none.

        Returns: whether the agent has maps for this pod, into which the policy was written. If it has none, it uses the policy when
            such a pod comes.
        """
        identifier = pod_identifier(namespace, name)
        policies = self._orders.get("policies", {}) | {identifier: "allow" if passes else "deny"}
        self.order(policies=policies)
        state = bpf.PodState.DEFAULT_ALLOW if passes else bpf.PodState.DEFAULT_DENY
        try:
            maps = [bpf.pinned(self.node.root + map_pin(identifier, direction)) for direction in HOOKS]
        except FileNotFoundError:
            return False
        for fd in maps:
            bpf.set_state(fd, state)
            os.close(fd)
        return True

    def record(self) -> list[Entry]:
        """All actions of agent processes on this node, oldest first."""
        path = Path(self.node.root + RECORD)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [_entry(json.loads(line)) for line in lines]

    def names(self) -> frozenset[str]:
        """The pods that the last started agent process remembers, as `namespace/name`."""
        known: set[str] = set()
        for entry in self.record():
            if entry.did == "started":
                known.clear()
            elif entry.did == "attached":
                known.add(entry.pod)
            elif entry.did == "deleted":
                known.discard(entry.pod)
        return frozenset(known)

    def view(self) -> PolicyView:
        """Return the filters of this node's pods now. The kernel is read before the record."""
        links = self.links()
        return _judged(links, self.record())

    def filtered(self, link: str) -> Filtered:
        """Return the filters of a link, as the kernel reports them."""
        return self.links().get(link, Filtered())

    def links(self) -> dict[str, Filtered]:
        """Return the name of each pod's link, with its filters."""
        links = self.node.netns.call(lambda: tc.links(VETH_PREFIXES))
        return {
            link: Filtered(**{direction: programs.get(hook, 0) for direction, hook in HOOKS.items()}, ifindex=ifindex)
            for link, (ifindex, programs) in links.items()
        }


def _entry(line: dict[str, Any]) -> Entry:
    known = {name: line.pop(name) for name in ("did", "at_monotonic_s", "pod", "link", "ifindex", "program") if name in line}
    return Entry(**known, rest=line)


def _judged(links: Mapping[str, Filtered], record: Iterable[Entry]) -> PolicyView:
    removed: set[int] = set()
    stale: set[int] = set()
    attached: dict[int, int] = {}  # index of a link -> ID of the ingress program that the last started process attached to it
    for entry in record:
        match entry.did:
            case "started":
                # A restarted agent does not remember earlier names. So it may unpin programs that links of such names still use,
                # which is its own fault and not the daemon's.
                attached.clear()
            case "removed":
                removed.add(entry.ifindex)
            case "attached" | "attached again":
                removed.discard(entry.ifindex)
                stale.discard(entry.ifindex)
                attached[entry.ifindex] = entry.program
            case "deleted" if entry.rest.get("is_unpinned"):
                stale |= {ifindex for ifindex, program in attached.items() if program == entry.program}
    return PolicyView(links, frozenset(removed), frozenset(stale))


def _is_stopped(thread: Path) -> bool:
    """Whether a thread is stopped. In /proc/pid/stat its state follows its name, which is in brackets and may contain any character,
    also brackets (proc(5))."""
    return (thread / "stat").read_text().rpartition(") ")[2][:1] in ("T", "t")
