"""A lab node as amazon-vpc-cni-k8s leaves it: its wiring of pods, its file, its chains and its conflist, made by shell commands.

It shares no code with the daemon. Sources: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go (SetupPodNetwork),
pkg/networkutils/network.go (setupENINetwork, updateHostIptablesRules), pkg/ipamd/datastore/data_store.go (CheckpointData),
cmd/egress-cni-plugin (cni.go, netconf, snat) and cmd/aws-vpc-cni/main.go for IPv4 of pods of IPv6.
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
from lab.vpc.family import IPV4, IPV6, Family, family_of
from lab.vpc.model import Address
from tests.contract.runtime.server import FakeCri
from tests.patience import PATIENCE_S

CHECKPOINT = "/var/run/aws-node/ipam.json"
SOCKET = "/run/aws-node/ipamd.sock"
CONFLIST = "/etc/cni/net.d/10-aws.conflist"
CRI_SOCKET = "/run/fake-cri.sock"
EGRESS_STATE = "/run/cni/v6pd/egress-v4-ipam/aws-cni"
CONFLIST_TEXT = json.dumps({"cniVersion": "0.4.0", "name": "aws-cni", "disableCheck": True, "plugins": [{"type": "aws-cni"}]})


@dataclass(frozen=True)
class Pod:
    """One pod of the other software. `table`: its ENI's route table. `other`: of a pod of IPv6, on v4if0, if it has that."""

    name: str
    address: Address
    table: int
    other: IPv4Address | None = None

    @property
    def family(self) -> Family:
        """That of its address."""
        return family_of(self.address)

    @property
    def container_id(self) -> str:
        """A sandbox ID as CRI has them."""
        return hashlib.sha256(self.name.encode()).hexdigest()

    @property
    def veth(self) -> str:
        """Its host veth."""
        return "eni" + hashlib.sha1(f"default.{self.name}".encode(), usedforsecurity=False).hexdigest()[:11]

    @property
    def egress_veth(self) -> str:
        """The host end of its link for egress; the plugin there leaves the name to chance."""
        return "veth" + hashlib.sha1(self.name.encode(), usedforsecurity=False).hexdigest()[:8]

    @property
    def egress_chain(self) -> str:
        """The chain that translates what it sends by that link."""
        return f"CNI-E4-{hashlib.sha512(f'aws-cni{self.container_id}'.encode()).hexdigest()}"[:28]

    @property
    def netns(self) -> str:
        """Its namespace, as the node sees it."""
        return f"/run/netns/{self.container_id[:13]}"


def pods_on(node: Node, enis: Iterable[object], count: int) -> list[Pod]:
    """Pods over all secondary addresses of a node's ENIs, or from the first one of its /80; every second one of IPv6 has egress."""
    prefixes = [prefix for eni in enis for prefix in eni.ipv6_prefixes]  # type: ignore[attr-defined]
    if prefixes:
        others = [IPV4.egress[2 + number] if number % 2 == 0 else None for number in range(count)]
        return [Pod(f"old-{n}", prefixes[0][n], 254, IPv4Address(other) if other else None) for n, other in enumerate(others)]
    places = [
        (address, 254 if eni.attachment.device_index == 0 else eni.attachment.device_index + 1)  # type: ignore[attr-defined]
        for eni in enis
        for address in eni.secondary_addresses  # type: ignore[attr-defined]
    ]
    assert len(places) >= count, f"{len(places)} addresses for {count} pods"
    return [Pod(f"old-{number}", address, table) for number, (address, table) in enumerate(places[:count])]


def wire(node: Node, pods: Iterable[Pod], *, primary: Address | None = None) -> None:
    """Wire pods as its plugins do, and return when their addresses can be used. `primary`: the node's own, of IPv4, for egress."""
    pods = list(pods)
    lines = ["set -e", "mkdir -p /run/netns"]
    for number, pod in enumerate(pods):
        lines += _links(pod, f"0a:58:00:00:{number // 256:02x}:{number % 256:02x}")
        lines.append(_rule(pod.family, f"to {pod.address} table main prio 512"))
        if pod.table != 254:
            lines.append(_rule(pod.family, f"from {pod.address} table {pod.table} prio 1536"))
        if pod.other is not None:
            lines += _egress(pod, pod.other, primary)
    tentative = "; ".join(f"nsenter --net={pod.netns} ip -6 -o addr show tentative" for pod in pods)
    lines.append(f'for _ in $(seq 100); do [ -n "$({tentative})" ] || break; sleep 0.1; done')
    node.run(["/bin/sh", "-c", "\n".join(lines)], timeout_s=120)


def _links(pod: Pod, mac: str) -> list[str]:
    """A random host MAC, link-scope routes; in IPv6 the kernel's link-local addresses at both ends, and no neighbour on the host."""
    gateway, length, ip = ("fe80::1", 128, "ip -6") if pod.family is IPV6 else ("169.254.1.1", 32, "ip")
    ignored = " ".join(f"net.ipv6.conf.{pod.veth}.{one}" for one in ("accept_ra=0", "accept_redirects=1", "forwarding=0"))
    return [
        f"touch {pod.netns}; unshare --net={pod.netns} ip link set lo up",
        f"ip link add {pod.veth} address {mac} mtu 9001 type veth peer name eth0 netns {pod.netns}",
        *([f"sysctl -qw {ignored}"] if pod.family is IPV6 else []),
        f"ip link set {pod.veth} up",
        f"nsenter --net={pod.netns} sh -ec 'ip link set eth0 mtu 9001 up; {ip} addr add {pod.address}/{length} dev eth0;"
        f" {ip} route add {gateway} dev eth0 scope link; {ip} route add default via {gateway} dev eth0;"
        f" {ip} neigh add {gateway} lladdr {mac} nud permanent dev eth0'",
        f"{ip} route replace {pod.address} dev {pod.veth} scope link",
    ]


def _egress(pod: Pod, other: IPv4Address, primary: Address | None) -> list[str]:
    """A second link with an address of host-local, which keeps a file for it, and a chain that translates what comes from it."""
    gateway, chain = IPV4.egress[1], f"iptables-nft -t nat -A {pod.egress_chain}"
    return [
        f"ip link add {pod.egress_veth} mtu 9001 type veth peer name v4if0 netns {pod.netns}; ip link set {pod.egress_veth} up",
        f"ip addr add {gateway}/32 dev {pod.egress_veth} scope link; ip route add {other} dev {pod.egress_veth} scope link",
        f"nsenter --net={pod.netns} sh -ec 'ip link set v4if0 up; ip addr add {other}/22 dev v4if0;"
        f" ip route del {IPV4.egress} dev v4if0; ip route add {gateway} dev v4if0 scope link src {other};"
        f" ip route add {IPV4.egress} via {gateway} dev v4if0 src {other}; ip route add default via {gateway} dev v4if0'",
        f"mkdir -p {EGRESS_STATE}; printf '{pod.container_id}\\r\\neth0' >{EGRESS_STATE}/{other}",
        f"iptables-nft -t nat -N {pod.egress_chain}; {chain} -d 224.0.0.0/4 -j ACCEPT",
        f"{chain} -j SNAT --to-source {primary} --random-fully",
        f"iptables-nft -t nat -A POSTROUTING -s {other} -j {pod.egress_chain}",
    ]


def unwire(node: Node, pod: Pod) -> None:
    """Its DEL, as far as the node shows it."""
    ip = f"ip {pod.family.option}"
    script = f"ip link del {pod.veth}; {ip} rule del to {pod.address} prio 512; {ip} rule del from {pod.address} prio 1536"
    if pod.other is not None:
        script += f"; ip link del {pod.egress_veth}; rm {EGRESS_STATE}/{pod.other}"
    node.run(["/bin/sh", "-c", script], check=False)


def _rule(family: Family, rule: str) -> str:
    """As its plugin does, a rule that is there already is as good: ours may have put it back meanwhile."""
    ip = f"ip {family.option} rule"
    return f'{ip} add {rule} || [ -n "$({ip} show {rule})" ]'


def write_file(node: Node, pods: Iterable[Pod], *, extra: Iterable[dict[str, object]] = ()) -> None:
    """Write its file of allocations."""
    entries = [
        {
            "networkName": "aws-cni",
            "containerID": pod.container_id,
            "ifName": "eth0",
            f"ipv{pod.address.version}": str(pod.address),
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
    node.run(["/bin/sh", "-ec", script], timeout_s=120)


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
