"""Watches each node's kernel through netlink and keeps the kernel's address ledger (lab/demo/ledger.py).

Uses `ip monitor` in the node's namespace, because its events are complete and ordered, and a loss is reported. Reading from time to
time would miss the short overlaps that matter here.
"""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from lab.demo.ledger import AddressLedger
from lab.node.errors import NodeError
from lab.node.kernel_view import VETH_PREFIX
from lab.node.node import Node
from lab.node.process import NodeProcess
from lab.vpc.model import Address

START_TIMEOUT_S = 30.0
STOP_TIMEOUT_S = 5.0

# `ip -o monitor link route`, iproute2 6.1: "10.0.0.5 dev eni4fbb scope link", "2600::5 dev eni4fbb metric 1024 pref medium",
# "Deleted 7: eni4fbb@NONE: <...>"
_ROUTE = re.compile(r"^(?P<address>[0-9a-f.:]+) dev (?P<link>\S+) (?!.*\btable\b)")
_LINK_GONE = re.compile(r"^Deleted \d+: (?P<link>[^@:\s]+)")


@dataclass(frozen=True)
class RouteMade:
    """The node now sends packets for `address` into `link`."""

    address: Address
    link: str


@dataclass(frozen=True)
class LinkGone:
    """The link was deleted, and every route into it with it."""

    link: str


def parse(line: str) -> RouteMade | LinkGone | None:
    """Read one line of `ip -o monitor link route`; None for what is not about a sandbox's host veth."""
    if (route := _ROUTE.match(line)) and route["link"].startswith(VETH_PREFIX):
        return RouteMade(ip_address(route["address"]), route["link"])
    if (gone := _LINK_GONE.match(line)) and gone["link"].startswith(VETH_PREFIX):
        return LinkGone(gone["link"])
    return None


def _listens(pid: int) -> bool:
    """Whether a process has joined groups of route netlink. `ip monitor` does not say so, and a repeated route announces nothing."""
    try:
        port_id = re.search(r"^NSpid:.*\s(\d+)$", Path(f"/proc/{pid}/status").read_text(encoding="ascii"), re.MULTILINE)
        rows = [line.split() for line in Path(f"/proc/{pid}/net/netlink").read_text(encoding="ascii").splitlines()[1:]]
    except OSError:
        return False
    return port_id is not None and any(row[1] == "0" and row[2] == port_id[1] and int(row[3], 16) for row in rows)


class Observer:
    """Watches nodes until `stop`. Concurrency: one thread per node feeds the ledger."""

    def __init__(self, ledger: AddressLedger) -> None:
        self.ledger = ledger
        self._processes: list[tuple[str, NodeProcess]] = []
        self._threads: list[threading.Thread] = []
        self._lost: list[str] = []

    def watch(self, node: Node) -> None:
        """Start to watch a node; on return its events are seen. What exists already is not, so call it while the node is empty.

        Raises: NodeError if the monitor does not begin to listen.
        """
        reader, writer = os.pipe2(os.O_CLOEXEC)
        try:
            process = node.spawn(["ip", "-o", "monitor", "link", "route"], stdout=writer, stderr=writer)
        except BaseException:
            os.close(reader)
            raise
        finally:
            os.close(writer)
        self._processes.append((node.name, process))
        thread = threading.Thread(target=self._follow, args=(node.name, reader), name=f"observe-{node.name}", daemon=True)
        self._threads.append(thread)
        thread.start()
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _listens(process.pid):
            if process.poll() is not None or time.monotonic() > deadline:
                raise NodeError(f"{node.name}: `ip monitor` does not listen")
            time.sleep(0.01)

    def stop(self) -> None:
        """Stop watching; the ledger is complete afterwards. Idempotent."""
        for name, process in self._processes:
            if process.poll() is not None:
                self._lost.append(f"{name}: the monitor had ended by itself")
            process.kill()
        for thread in self._threads:
            thread.join(STOP_TIMEOUT_S)
        self._processes.clear()
        self._threads.clear()

    @property
    def lost(self) -> list[str]:
        """Why the ledger may not be complete, in words; empty if it is."""
        return list(self._lost)

    def _follow(self, node: str, reader: int) -> None:
        with open(reader, encoding="utf-8", errors="replace") as lines:
            for line in lines:
                event = parse(line)
                if isinstance(event, RouteMade):
                    self.ledger.give(event.address, f"{node}/{event.link}")
                elif isinstance(event, LinkGone):
                    self.ledger.let_go(f"{node}/{event.link}")
                elif "netlink" in line or "No buffer space" in line:
                    self._lost.append(f"{node}: {line.strip()}")
