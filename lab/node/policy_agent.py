"""The policy agent of one lab node: start it, kill it, make it slow, silent or forgetful, let policies come, read what it did.

A stand-in of aws-network-policy-agent (`policy_agent_process.py` says what it shares with the real one). What checks the daemon goes
by the agent's record and by the kernel's filters, which are read here from outside; neither knows anything of the daemon.
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
    """One line of the record: what was done, to which pod (`namespace/name`) or link, and when."""

    did: str
    at_monotonic_s: float
    pod: str = ""
    link: str = ""
    ifindex: int = 0
    program: int = 0
    rest: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Filtered:
    """The programs that hang on a link, by direction; 0 for none. `ifindex` tells a link from an earlier one of its name."""

    ingress: int = 0
    egress: int = 0
    ifindex: int = 0

    @property
    def is_whole(self) -> bool:
        """Whether both directions are filtered."""
        return bool(self.ingress and self.egress)


@dataclass(frozen=True)
class PolicyView:
    """What filters a node's pods. `links`: every pod's link, by the kernel. By the agent's own record, indices of links:

    `removed`: it took the filter away itself, and hung up no other. `stale`: it was told to forget the name that it had filtered
    there, so that no policy reaches the programs any more, though the link may still have them.
    """

    links: Mapping[str, Filtered] = field(default_factory=dict)
    removed: frozenset[int] = frozenset()
    stale: frozenset[int] = frozenset()


class PolicyAgent:
    """At most one agent on one node; what it left in the kernel goes with the node. Concurrency: one thread starts and ends it."""

    def __init__(self, node: Node, *, family: Family = IPV4) -> None:
        """Nothing is started yet. `family`: which packets it filters; the others pass, as with the real one."""
        self.node = node
        self.process: NodeProcess | None = None
        self._family = family
        self._orders: dict[str, Any] = {}
        self._seen = 0

    def start(self, *, how: str = "again", gap_s: float = 0.0, wait_s: float = 30.0, wait: bool = True) -> None:
        """Start it.

        Args:
            how: "again": names are forgotten, filters and pins are found. "upgraded": it removes every filter, and hangs up new ones
                `gap_s` later. "forgetful": it removes every filter and pin.
            wait_s: how long it waits for the daemon's socket before it exits.
            wait: return when it serves, as `wait_started` does.
        Raises: NodeError if it runs already, or does not serve.
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
        """Return when the process that was started last serves. Raises: NodeError with what it did and the end of its log."""
        deadline = time.monotonic() + START_TIMEOUT_S
        while not any(entry.did == "started" for entry in self.record()[self._seen :]):
            if not self.is_running or time.monotonic() > deadline:
                log = Path(self.node.root + LOG).read_text(encoding="utf-8")[-2000:]
                raise NodeError(f"{self.node.name}: the policy agent does not serve: {self.record()[self._seen :]}\n{log}")
            time.sleep(POLL_S)

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self.process is not None and self.process.poll() is None

    def kill(self) -> None:
        """`kill -9`, and wait for the end; its socket stays, and nobody listens there."""
        if self.process is not None:
            self.process.kill()
            self.process.wait(END_TIMEOUT_S)

    def restart(self, *, how: str = "again", gap_s: float = 0.0) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start(how=how, gap_s=gap_s)

    def fall_silent(self) -> None:
        """Stop it: it takes connections, and answers nothing until `speak`. Returns when none of its threads runs any more."""
        if self.process is None:
            return
        self.process.send_signal(signal.SIGSTOP)
        threads, deadline = Path(f"/proc/{self.process.pid}/task"), time.monotonic() + END_TIMEOUT_S
        while self.is_running and not all(_is_stopped(one) for one in threads.iterdir()) and time.monotonic() < deadline:
            time.sleep(POLL_S)

    def speak(self) -> None:
        """Let it go on."""
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)

    def order(self, **orders: Any) -> None:
        """Say how it answers from now on: `slow_s`, `refuses` (success=false to Enforce), `refuses_delete`."""
        self._orders |= orders
        path = Path(self.node.root + ORDERS)
        path.parent.mkdir(exist_ok=True)
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(self._orders), encoding="utf-8")
        fresh.replace(path)

    def policy_comes(self, namespace: str, name: str, *, passes: bool) -> bool:
        """A policy for a pod and its replicas arrives, and passes everything or nothing.

        Returns: whether there are maps that it can be written into; the agent remembers it in any case.
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
        """Everything that agents did on this node, oldest first."""
        path = Path(self.node.root + RECORD)
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        return [_entry(json.loads(line)) for line in lines]

    def names(self) -> frozenset[str]:
        """The pods that the present process remembers, as `namespace/name`."""
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
        """What filters this node's pods now; the kernel is read before the record."""
        links = self.links()
        return _judged(links, self.record())

    def filtered(self, link: str) -> Filtered:
        """What filters a link, by the kernel."""
        return self.links().get(link, Filtered())

    def links(self) -> dict[str, Filtered]:
        """The same of every pod's link."""
        found = self.node.netns.call(lambda: tc.links(VETH_PREFIXES))
        return {
            link: Filtered(**{direction: hung.get(hook, 0) for direction, hook in HOOKS.items()}, ifindex=ifindex)
            for link, (ifindex, hung) in found.items()
        }


def _entry(line: dict[str, Any]) -> Entry:
    known = {name: line.pop(name) for name in ("did", "at_monotonic_s", "pod", "link", "ifindex", "program") if name in line}
    return Entry(**known, rest=line)


def _judged(links: Mapping[str, Filtered], record: Iterable[Entry]) -> PolicyView:
    removed: set[int] = set()
    stale: set[int] = set()
    ours: dict[int, int] = {}  # link -> program, as the present process hung it up
    for entry in record:
        match entry.did:
            case "started":
                ours.clear()  # of what it forgot it takes programs away too early by itself
            case "removed":
                removed.add(entry.ifindex)
            case "attached" | "attached again":
                removed.discard(entry.ifindex)
                stale.discard(entry.ifindex)
                ours[entry.ifindex] = entry.program
            case "deleted" if entry.rest.get("is_unpinned"):
                stale |= {ifindex for ifindex, program in ours.items() if program == entry.program}
    return PolicyView(links, frozenset(removed), frozenset(stale))


def _is_stopped(thread: Path) -> bool:
    """The state follows the name, which is in brackets and may have any sign. Source: proc(5), /proc/pid/stat."""
    return (thread / "stat").read_text().rpartition(") ")[2][:1] in ("T", "t")
