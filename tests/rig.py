"""A lab node with the real daemon and the real plugin in it, and the observer that checks it from outside.

The observer reads the kernel with `ip`, EC2 from the lab's own records and the rows through the socket; it uses no code that it
checks. `assert_sound` is the last step of every test that uses a rig (I1-I9).
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from http.client import HTTPConnection, HTTPException
from ipaddress import IPv4Address, ip_address, ip_interface
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from lab.lab import IPV6_CIDR, Lab
from lab.node.daemon import BYTECODE, PLUGIN_PATH, READY_TIMEOUT_S, RUN_DIR, SHIPPED_PYTHON, Daemon
from lab.node.kernel_view import KernelView, read_kernel
from lab.node.node import Node
from lab.node.preloaded import Preloaded
from lab.node.process import NodeProcess
from lab.vpc.family import IPV4, IPV6, Family, pool_of
from lab.vpc.interfaces import Delays
from lab.vpc.model import Address
from lab.vpc.state import Vpc
from tests.patience import PATIENCE_S

__all__ = ["PLUGIN_PATH", "RUN_DIR", "CniReply", "Rig", "rig", "run_bounded", "wait_until"]

NETWORK = "vpc-ipamd"


@dataclass(frozen=True)
class CniReply:
    """What the plugin answered: exit status and the JSON of its standard output (None if it printed nothing)."""

    status: int
    body: dict[str, Any] | None

    @property
    def ok(self) -> bool:
        """The plugin exited with 0."""
        return self.status == 0

    @property
    def code(self) -> int:
        """The CNI error code; 0 for success."""
        return 0 if self.ok or self.body is None else int(self.body["code"])

    @property
    def address(self) -> IPv4Address:
        """The address of an ADD's result, of a node whose pool is IPv4."""
        address = self.any_address
        assert isinstance(address, IPv4Address)
        return address

    @property
    def any_address(self) -> Address:
        """The address of an ADD's result, of whichever family."""
        assert self.ok, self.body
        assert self.body is not None
        return ip_interface(self.body["ips"][0]["address"]).ip


LONG_PAUSE_S = 0.1
"""Ours: what lasts longer than this is not missed."""


def wait_until(is_so: Callable[[], bool], *, what: str, timeout_s: float = PATIENCE_S, pause_s: float = 0.02) -> float:
    """Look until a thing is so, bounded; returns how many seconds it took.

    The pause between two looks grows with what was waited for, up to `LONG_PAUSE_S`: looks are most of what a test of a daemon costs.
    """
    began = time.monotonic()
    while not is_so():
        waited_s = time.monotonic() - began
        assert waited_s < timeout_s, f"not within {timeout_s} s: {what}"
        time.sleep(max(pause_s, min(waited_s / 4, LONG_PAUSE_S)))
    return time.monotonic() - began


QUICK = {
    "IP_COOLDOWN_PERIOD": "1",
    "VPC_IPAMD_SPARE_ENI_DELAY_SECONDS": "0",
    "VPC_IPAMD_METRICS_ADDRESS": "off",
    "VPC_IPAMD_CRI_SOCKET": "off",
}
"""Settings of every daemon of a rig, unless a test says otherwise: what comes by itself comes at once, and nothing is beside it."""


@cache
def preloaded() -> Preloaded:
    """The one process of this worker that forks daemons."""
    made = Preloaded(SHIPPED_PYTHON | {"PYTHONPYCACHEPREFIX": str(BYTECODE), "PYTHONUNBUFFERED": "1"})
    atexit.register(made.close)
    return made


class Rig:
    """One node of a lab, its daemon and its plugin."""

    def __init__(
        self,
        lab: Lab,
        node: Node,
        *,
        env: Mapping[str, str] | None = None,
        module: str = "ipamd.daemon",
        is_executed: bool = False,
    ) -> None:
        """`is_executed`: Python is executed at each start, as where it is shipped; else the daemon is forked (`preloaded`)."""
        self.lab = lab
        self.node = node
        self.env = QUICK | dict(env or {})
        self.driver = Daemon(
            node, region=lab.vpc.region, settings=self.env, module=module, by=None if is_executed else preloaded()
        )
        self.driver.install_plugin()

    @property
    def daemon(self) -> NodeProcess | None:
        """The daemon's newest process; None before the first start."""
        return self.driver.process

    def start(self, *, wait: bool = True, env: Mapping[str, str] | None = None) -> None:
        """Start the daemon; with `wait` return when it is ready."""
        self.driver.start(env=env)
        if wait:
            self.wait_ready()

    def wait_ready(self, timeout_s: float = READY_TIMEOUT_S) -> float:
        """Wait until ADD is served and the conflist is written; returns seconds."""
        return self.driver.wait_ready(timeout_s)

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self.driver.kill()

    def restart(self, *, env: Mapping[str, str] | None = None) -> None:
        """kill -9 and start again, until ready."""
        self.driver.restart(env=env)
        self.wait_ready()

    def client(self, question: Callable[[Any], dict[str, Any]]) -> dict[str, Any] | None:
        """Ask the daemon over its socket, in this process; None when it is away."""
        return self.driver.ask(question)

    def status(self) -> dict[str, Any] | None:
        """GetStatus, or None."""
        return self.driver.status()

    def pool(self) -> dict[str, Any]:
        """The pool's figures."""
        status = self.status()
        assert status is not None
        return dict(status["pool"])

    @property
    def family(self) -> Family:
        """That of the daemon's pool."""
        return self.driver.family

    def attachments(self) -> dict[str, Address]:
        """Container ID -> address, as the daemon has it."""
        rows = self.driver.rows()
        assert rows is not None
        return {container_id: ip_address(address) for container_id, address in rows.items()}

    def cni(
        self,
        verb: str,
        container_id: str,
        *,
        netns: str | None = None,
        ifname: str = "eth0",
        pod: str = "",
        uid: str = "",
        version: str = "1.0.0",
        conf: Mapping[str, Any] | None = None,
        raw_conf: bytes | None = None,
        timeout_s: float = 70.0,
    ) -> CniReply:
        """Execute the plugin as a runtime does. `netns` None: the sandbox's own by name; "" for none. `pod`: its name, or the ID.
        `uid`: the pod's, if it is told."""
        document = {"cniVersion": version, "name": NETWORK, "type": "vpc-cni"} | dict(conf or {})
        done = self.node.run(
            [PLUGIN_PATH],
            env=_environment(verb, container_id, netns=netns, ifname=ifname, pod=pod, uid=uid),
            stdin_bytes=raw_conf if raw_conf is not None else json.dumps(document).encode(),
            timeout_s=timeout_s,
            check=False,
        )
        body = json.loads(done.stdout) if done.stdout.strip() else None
        return CniReply(done.returncode, body)

    def lose_add(self, container_id: str, *, pod: str = "", conf: Mapping[str, Any] | None = None) -> None:
        """An ADD whose daemon dies under it: it waits for the next one, and its runtime gives up before."""
        reader, writer = os.pipe()
        document = {"cniVersion": "1.0.0", "name": NETWORK, "type": "vpc-cni"} | dict(conf or {})
        os.write(writer, json.dumps(document).encode())
        os.close(writer)
        try:
            plugin = self.node.spawn([PLUGIN_PATH], env=_environment("ADD", container_id, pod=pod), stdin=reader)
        finally:
            os.close(reader)
        try:
            wait_until(lambda: self.daemon is not None and self.daemon.poll() is not None, what="the daemon's death in ADD")
            assert plugin.poll() is None, "an ADD that has lost its daemon waits for the next (I17)"
        finally:
            plugin.send_signal(signal.SIGKILL)
            plugin.wait(PATIENCE_S)

    def add(self, name: str, **options: Any) -> CniReply:
        """Make a namespace and ADD it."""
        self.node.make_netns(name)
        return self.cni("ADD", name, **options)

    def delete(self, name: str, **options: Any) -> CniReply:
        """DEL, and remove the namespace as a runtime does."""
        reply = self.cni("DEL", name, **options)
        if reply.ok:
            self.node.remove_netns(name)
        return reply

    def page(self, url: str, *, timeout_s: float = PATIENCE_S) -> tuple[int, str]:
        """Ask for a page of HTTP inside the node, without a process there. Returns: the status, 0 if nobody answers, and the text."""
        return self.node.netns.call(lambda: _page(url, timeout_s))

    def log_tail(self, lines: int = 30) -> str:
        """The end of the daemon's log."""
        return self.driver.log_tail(lines)

    def kernel(self) -> KernelView:
        """What the node's kernel holds, read from outside."""
        return read_kernel(self.node)

    def kernel_addresses(self, kernel: KernelView | None = None) -> dict[str, list[str]]:
        """Host veth -> addresses its route in main leads to it, links that are down left out. Args: kernel: as it was read, or now."""
        kernel = kernel or self.kernel()
        found: dict[str, list[str]] = {veth.name: [] for veth in kernel.veths if veth.is_up}
        for address, device in kernel.host_routes.items():
            if device in found:
                found[device].append(address)
        return found

    def rule_addresses(self) -> set[str]:
        """Addresses with a rule 512 or 1536."""
        return _rule_addresses(self.kernel())

    def ec2_addresses(self) -> dict[IPv4Address, str]:
        """Secondary addresses EC2 has on this node's ENIs -> ENI."""
        return {
            address: eni.eni_id
            for eni in self.lab.vpc.enis_of(self.node.instance_id)
            for address in (*eni.secondary_addresses, *(a for prefix in eni.prefixes for a in prefix))
        }

    def eni_of(self, address: Address) -> str | None:
        """The ENI of this node on which EC2 has a sandbox's address; None if there is none."""
        enis = self.lab.vpc.enis_of(self.node.instance_id)
        return next((eni.eni_id for eni in enis if any(address in one for one in pool_of(eni, self.family))), None)

    def _has_no_stray_eni(self) -> bool:
        """Whether every ENI that this node's daemon made is attached."""
        ours = [eni for eni in self.lab.vpc.enis() if eni.description == f"aws-K8S-{self.node.instance_id}"]
        return all(eni.attachment is not None for eni in ours)

    def _found(self) -> list[dict[str, Any]]:
        """What the audit finds, but for what ends by itself."""
        answer = self.client(lambda client: client.ask("Audit"))
        assert answer is not None
        return [found for found in answer["findings"] if found["severity"] != "pending"]

    def _found_at_last(self) -> list[dict[str, Any]]:
        """What the audit still finds once nothing is about to be repaired: at once, after a start for example, all may not be yet."""
        found = self._found()
        deadline = time.monotonic() + PATIENCE_S
        while any(each["severity"] == "difference" for each in found) and time.monotonic() < deadline:
            time.sleep(LONG_PAUSE_S)
            found = self._found()
        return found

    def assert_sound(self, *, expected: int | None = None) -> None:
        """I1-I9 from outside: rows, kernel and EC2 tell the same story about every address."""
        wait_until(lambda: self.is_swept(), what="dying links deleted")
        rows = self.attachments()
        assert len(set(rows.values())) == len(rows), "I1: one address has one attachment"
        if expected is not None:
            assert len(rows) == expected, f"{len(rows)} attachments, expected {expected}: {rows}"
        kernel = self.kernel()
        wired = self.kernel_addresses(kernel)
        recorded = sorted(map(str, rows.values()))
        routed = sorted(address for addresses in wired.values() for address in addresses)
        assert recorded == routed, f"recorded: {recorded}; with a route to a sandbox: {routed}"
        assert all(len(addresses) == 1 for addresses in wired.values()), wired
        egress = _egress_addresses(kernel)
        assert set(egress) <= set(rows), "I4, I5: what a sandbox has for egress goes with it"
        assert len(set(egress.values())) == len(egress), "I1: so has one sandbox what another one has"
        assert _rule_addresses(kernel) == {*map(str, rows.values()), *egress.values()}
        assert all(self.eni_of(address) for address in rows.values()), "I7: every assigned address is on an ENI of this node"
        # The pool may be between CreateNetworkInterface and AttachNetworkInterface right now; a leaked ENI stays as it is.
        wait_until(self._has_no_stray_eni, what="I9: every ENI we made is attached or gone")
        assert self._found_at_last() == []

    def is_swept(self) -> bool:
        """Whether every link that a DEL marked is deleted."""
        status = self.status()
        return status is not None and status["veths_pending_deletion_count"] == 0


def _page(url: str, timeout_s: float) -> tuple[int, str]:
    parts = urlsplit(url)
    assert parts.hostname is not None
    connection = HTTPConnection(parts.hostname, parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except (OSError, HTTPException):
        return 0, ""
    finally:
        connection.close()


def _egress_addresses(kernel: KernelView) -> dict[str, str]:
    """Container ID -> its address for egress, by the links that have one and the routes that lead to them."""
    found = {container_id: veth.address for container_id, veth in kernel.wired_for_egress.items()}
    ways = {address: kernel.host_routes.get(address) for address in found.values()}
    assert ways == {veth.address: veth.name for veth in kernel.wired_for_egress.values()}
    return found


def _rule_addresses(kernel: KernelView) -> set[str]:
    """Addresses with a rule 512 or 1536."""
    return {*kernel.to_rules, *kernel.from_rules}


def _environment(
    verb: str, container_id: str, *, netns: str | None = None, ifname: str = "eth0", pod: str = "", uid: str = ""
) -> dict[str, str]:
    """What a runtime gives the plugin; `netns` None: the sandbox's own by name; "" for none."""
    env = {
        "CNI_COMMAND": verb,
        "CNI_CONTAINERID": container_id,
        "CNI_NETNS": f"/run/netns/{container_id}" if netns is None else netns,
        "CNI_IFNAME": ifname,
        "CNI_PATH": "/opt/cni/bin",
        "CNI_ARGS": f"K8S_POD_NAMESPACE=default;K8S_POD_NAME={pod or container_id}" + (f";K8S_POD_UID={uid}" if uid else ""),
    }
    return {name: value for name, value in env.items() if value}


@contextmanager
def rig(
    *,
    env: Mapping[str, str] | None = None,
    instance_type: str = "m5.large",
    containerd: bool = False,
    containerd_directory: str = "",
    attach_delay_s: float = 0.0,
    start: bool = True,
    name: str = "",
    module: str = "ipamd.daemon",
    family: Family = IPV4,
    is_executed: bool = False,
) -> Iterator[Rig]:
    """A lab with one node and one host, the daemon in it (or `module` in its place); everything is gone afterwards.

    Args:
        family: of the daemon's pool. With IPv6 the subnets have both, and the node a default route of each.
        is_executed: as `Rig` takes it.
    """
    label = name or f"rig-{time.monotonic_ns()}"
    with Lab(
        name=label,
        nodes=["node-a"],
        hosts=["host-a"],
        instance_type=instance_type,
        containerd=Path(containerd_directory) if containerd_directory else containerd,
        vpc=Vpc(delays=Delays(attach_s=attach_delay_s), ipv6_cidr=IPV6_CIDR if family is IPV6 else ""),
    ) as lab:
        settings = ({"VPC_IPAMD_CRI_SOCKET": ""} if containerd else {}) | family.settings | dict(env or {})
        made = Rig(lab, lab.node("node-a"), env=settings, module=module, is_executed=is_executed)
        if start:
            made.start()
        try:
            yield made
        except BaseException:
            sys.stderr.write(f"--- the daemon's log\n{made.log_tail(60)}\n")
            raise


def run_bounded(argv: list[str], timeout_s: float) -> subprocess.CompletedProcess[str]:
    """Run a command of the machine with a bound on time."""
    return subprocess.run(argv, timeout=timeout_s, check=False, text=True, capture_output=True)
