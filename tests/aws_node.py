"""A lab node as amazon-vpc-cni-k8s leaves it: its wiring of pods, its file, its chains and its conflist, made by shell commands.

It shares no code with the daemon. Sources: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go (SetupPodNetwork),
pkg/networkutils/network.go (setupENINetwork, updateHostIptablesRules), pkg/ipamd/datastore/data_store.go (CheckpointData).
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address
from pathlib import Path

from ipamd.pb import cri_pb2
from lab.node.node import Node
from lab.node.process import NodeProcess
from tests.contract.runtime.server import FakeCri
from tests.patience import PATIENCE_S

CHECKPOINT = "/var/run/aws-node/ipam.json"
SOCKET = "/run/aws-node/ipamd.sock"
CONFLIST = "/etc/cni/net.d/10-aws.conflist"
CRI_SOCKET = "/run/fake-cri.sock"
CONFLIST_TEXT = json.dumps({"cniVersion": "0.4.0", "name": "aws-cni", "disableCheck": True, "plugins": [{"type": "aws-cni"}]})


@dataclass(frozen=True)
class Pod:
    """One pod of the other software: `table` is its ENI's route table."""

    name: str
    address: IPv4Address
    table: int

    @property
    def container_id(self) -> str:
        """A sandbox ID as CRI has them."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    @property
    def veth(self) -> str:
        """Its host veth."""
        return "eni" + hashlib.sha1(f"default.{self.name}".encode(), usedforsecurity=False).hexdigest()[:11]

    @property
    def netns(self) -> str:
        """Its namespace, as the node sees it."""
        return f"/run/netns/{self.container_id[:13]}"


def pods_on(node: Node, enis: Iterable[object], count: int) -> list[Pod]:
    """Pods over all secondary addresses of a node's ENIs, as many as are asked for."""
    places = [
        (address, 254 if eni.attachment.device_index == 0 else eni.attachment.device_index + 1)  # type: ignore[attr-defined]
        for eni in enis
        for address in eni.secondary_addresses  # type: ignore[attr-defined]
    ]
    assert len(places) >= count, f"{len(places)} addresses for {count} pods"
    return [Pod(f"old-{number}", address, table) for number, (address, table) in enumerate(places[:count])]


def wire(node: Node, pods: Iterable[Pod]) -> None:
    """Wire pods as its plugin does: a random host MAC, link-scope routes, rules 512 and 1536."""
    lines = ["set -e", "mkdir -p /run/netns"]
    for number, pod in enumerate(pods):
        mac = f"0a:58:00:00:{number // 256:02x}:{number % 256:02x}"
        lines += [
            f"touch {pod.netns}; unshare --net={pod.netns} ip link set lo up",
            f"ip link add {pod.veth} address {mac} mtu 9001 type veth peer name eth0 netns {pod.netns}",
            f"ip link set {pod.veth} up",
            f"nsenter --net={pod.netns} sh -ec 'ip link set eth0 mtu 9001 up; ip addr add {pod.address}/32 dev eth0;"
            " ip route add 169.254.1.1 dev eth0 scope link; ip route add default via 169.254.1.1 dev eth0;"
            f" ip neigh add 169.254.1.1 lladdr {mac} nud permanent dev eth0'",
            f"ip route replace {pod.address} dev {pod.veth} scope link",
            _rule(f"to {pod.address} table main prio 512"),
        ]
        if pod.table != 254:
            lines.append(_rule(f"from {pod.address} table {pod.table} prio 1536"))
    node.run(["/bin/sh", "-c", "\n".join(lines)], timeout_s=120)


def _rule(rule: str) -> str:
    """As its plugin does, a rule that is there already is as good: ours may have put it back meanwhile."""
    return f'ip rule add {rule} || [ -n "$(ip rule show {rule})" ]'


def write_file(node: Node, pods: Iterable[Pod], *, extra: Iterable[dict[str, object]] = ()) -> None:
    """Write its file of allocations."""
    entries = [
        {
            "networkName": "aws-cni",
            "containerID": pod.container_id,
            "ifName": "eth0",
            "ipv4": str(pod.address),
            "allocationTimestamp": 1_700_000_000_000_000_000,
            "metadata": {"k8sPodNamespace": "default", "k8sPodName": pod.name, "interfacesCount": 1},
        }
        for pod in pods
    ]
    document = {"version": "vpc-cni-ipam/1", "allocations": [*entries, *extra]}
    node.run(["mkdir", "-p", "/var/run/aws-node"])
    node.write_file(CHECKPOINT, json.dumps(document).encode())


def write_conflist(node: Node) -> None:
    """Put its conflist where runtimes find it."""
    node.write_file(CONFLIST, CONFLIST_TEXT.encode())


def chains(node: Node, *, tool: str = "iptables-nft") -> None:
    """Its SNAT and marks, as it makes them with iptables."""
    primary = "10.0.0.10"
    script = f"""
    {tool} -t nat -N AWS-SNAT-CHAIN-0
    {tool} -t nat -A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0
    {tool} -t nat -A AWS-SNAT-CHAIN-0 -d 10.0.0.0/16 -m comment --comment "AWS SNAT CHAIN" -j RETURN
    {tool} -t nat -A AWS-SNAT-CHAIN-0 ! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL \
      -j SNAT --to-source {primary} --random-fully
    {tool} -t nat -N AWS-CONNMARK-CHAIN-0
    {tool} -t nat -A PREROUTING -i eni+ -m comment --comment "AWS, outbound connections" -j AWS-CONNMARK-CHAIN-0
    {tool} -t nat -A PREROUTING -m comment --comment "AWS, CONNMARK" -j CONNMARK --restore-mark --mask 0x80
    {tool} -t nat -A AWS-CONNMARK-CHAIN-0 -d 10.0.0.0/16 -m comment --comment "AWS CONNMARK CHAIN, VPC CIDR" -j RETURN
    {tool} -t nat -A AWS-CONNMARK-CHAIN-0 -m comment --comment "AWS, CONNMARK" -j CONNMARK --set-xmark 0x80/0x80
    {tool} -t mangle -A PREROUTING -i eth0 -m comment --comment "AWS, primary ENI" -m addrtype --dst-type LOCAL \
      --limit-iface-in -j CONNMARK --set-mark 0x80/0x80
    {tool} -t mangle -A PREROUTING -i eni+ -m comment --comment "AWS, primary ENI" -j CONNMARK --restore-mark --mask 0x80
    """
    node.run(["/bin/sh", "-ec", script], timeout_s=60)


_AGENT = """
import os, pathlib, socket, sys
path = pathlib.Path(sys.argv[1])
path.parent.mkdir(parents=True, exist_ok=True)
path.unlink(missing_ok=True)
sock = socket.socket(socket.AF_UNIX)
sock.bind(str(path))
sock.listen(16)
print("listening", flush=True)
while True:
    sock.accept()[0].close()
"""


class Agent:
    """Its daemon's process on a node: it listens while it runs, and a SIGKILL leaves its socket behind, as the real one."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._process: NodeProcess | None = None

    def start(self) -> None:
        """Return when it listens."""
        reading, writing = os.pipe()
        with open(reading, "rb") as said:
            try:
                self._process = self._node.spawn([sys.executable, "-c", _AGENT, SOCKET], stdout=writing)
            finally:
                os.close(writing)
            assert said.readline() == b"listening\n"

    def kill(self) -> None:
        """SIGKILL, and wait for the end."""
        if self._process is not None:
            self._process.kill()
            self._process.wait(PATIENCE_S)
            self._process = None


class Runtime(FakeCri):
    """A CRI server on the node's own socket, with pods of any name."""

    def __init__(self, node: Node) -> None:
        super().__init__(str(Path(node.root + CRI_SOCKET)))

    def run_pod(self, container_id: str, name: str, *, namespace: str = "default") -> None:
        """List a pod's sandbox from now on."""
        self.sandboxes[container_id] = cri_pb2.PodSandbox(
            id=container_id,
            metadata=cri_pb2.PodSandboxMetadata(name=name, namespace=namespace, uid="uid"),
            state=cri_pb2.SANDBOX_READY,
        )

    def stop_pod(self, container_id: str) -> None:
        """List it no more."""
        del self.sandboxes[container_id]
