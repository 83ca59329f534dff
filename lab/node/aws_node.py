"""A stand-in for amazon-vpc-cni-k8s on one node: `agent` is its daemon, `plugin` its CNI plugin. Standard library only.

It makes the same objects on the node as amazon-vpc-cni-k8s, so that tests can migrate a node: the file of allocations, the socket, the
conflist, the chains and the wiring of a pod. It also has the same cooldown. It shares no code with our daemon. Its pool consists of
secondary addresses of the primary ENI, which it requests from EC2; it has no other mode and no IPv6. Both programs run as `python
aws_node.py agent|plugin` in the node's own file system. Sources: amazon-vpc-cni-k8s
cmd/routed-eni-cni-plugin/driver/driver.go (SetupPodNetwork),
pkg/networkutils/network.go (updateHostIptablesRules), pkg/ipamd/datastore/data_store.go (CheckpointData, ReadBackingStore),
cmd/aws-vpc-cni/main.go.
"""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

FOLDER = Path("/var/run/aws-node")
CHECKPOINT, SOCKET = FOLDER / "ipam.json", FOLDER / "ipamd.sock"
CONFLIST, PLUGIN = Path("/etc/cni/net.d/10-aws.conflist"), Path("/opt/cni/bin/aws-cni")
NETWORK = "aws-cni"
CONFLIST_TEXT = json.dumps({"cniVersion": "0.4.0", "name": NETWORK, "disableCheck": True, "plugins": [{"type": NETWORK}]})
COOLDOWN_S = 30.0
WANTED = int(os.environ.get("AWS_NODE_ADDRESSES", "14"))  # addresses of the pool; by default those of one ENI of an m5.xlarge
METADATA = "http://169.254.169.254/latest"
MAX_BYTES = 1 << 16
PATH = (
    "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"  # every shell gets this PATH, not the one of the environment
)
TRY_AGAIN_LATER = 11
NAT_CHAINS = """
    -N AWS-SNAT-CHAIN-0
    -A POSTROUTING -m comment --comment "AWS SNAT CHAIN" -j AWS-SNAT-CHAIN-0
    -A AWS-SNAT-CHAIN-0 -d {cidr} -m comment --comment "AWS SNAT CHAIN" -j RETURN
    -A AWS-SNAT-CHAIN-0 ! -o vlan+ -m comment --comment "AWS, SNAT" -m addrtype ! --dst-type LOCAL -j SNAT --to-source {own}
"""


class Agent:
    """Gives addresses to the plugin, one call after another."""

    def __init__(self) -> None:
        """Read the allocations from the file, and keep those whose pod still has its link."""
        FOLDER.mkdir(parents=True, exist_ok=True)
        self._mac = _metadata("mac")
        self._allocations = [entry for entry in _checkpoint() if (Path("/sys/class/net") / _veth_of(entry)).exists()]
        self._freed_at: dict[str, float] = {}
        self._write()

    def serve(self) -> None:
        """Listen, put plugin, chains and conflist into place, and answer until the end of the process."""
        SOCKET.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(SOCKET))
            listener.listen(64)
            self._grow()
            self._put_in_place()
            while True:
                connection, _ = listener.accept()
                with connection:
                    connection.settimeout(10)
                    try:
                        question = json.loads(connection.recv(MAX_BYTES))
                        answer = self._add(question) if question["verb"] == "ADD" else self._delete(question)
                        connection.sendall(json.dumps(answer).encode())
                    except (OSError, ValueError) as error:
                        print(f"aws-node: {error}", file=sys.stderr, flush=True)

    def _add(self, question: dict[str, Any]) -> dict[str, Any]:
        key = question["key"]
        for entry in self._allocations:
            if entry["containerID"] == key:
                return {"address": entry["ipv4"]}
        taken, now = {entry["ipv4"] for entry in self._allocations}, time.monotonic()
        taken |= {one for one, at in self._freed_at.items() if now - at < COOLDOWN_S}
        free = [one for one in self._addresses() if one not in taken]
        if not free:
            return {"error": "no address is free"}
        entry = {
            "networkName": NETWORK,
            "containerID": key,
            "ifName": "eth0",
            "ipv4": free[0],
            "allocationTimestamp": time.time_ns(),
            "metadata": {"k8sPodNamespace": question["namespace"], "k8sPodName": question["name"], "interfacesCount": 1},
        }
        self._allocations.append(entry)
        self._write()
        return {"address": free[0]}

    def _delete(self, question: dict[str, Any]) -> dict[str, Any]:
        for entry in self._allocations:
            if entry["containerID"] == question["key"]:
                self._allocations.remove(entry)
                self._freed_at[entry["ipv4"]] = time.monotonic()
                self._write()
                return {"address": entry["ipv4"]}
        return {"address": ""}

    def _write(self) -> None:
        fresh = CHECKPOINT.with_suffix(".tmp")
        fresh.write_text(json.dumps({"version": "vpc-cni-ipam/1", "allocations": self._allocations}))
        fresh.rename(CHECKPOINT)

    def _addresses(self) -> list[str]:
        return _metadata(f"network/interfaces/macs/{self._mac}/local-ipv4s").split()[1:]

    def _grow(self) -> None:
        lacking = WANTED - len(self._addresses())
        if lacking <= 0:
            return
        eni = _metadata(f"network/interfaces/macs/{self._mac}/interface-id")
        asked = {"Action": "AssignPrivateIpAddresses", "Version": "2016-11-15", "NetworkInterfaceId": eni}
        form = urllib.parse.urlencode(asked | {"SecondaryPrivateIpAddressCount": str(lacking)}).encode()
        urllib.request.urlopen(os.environ["AWS_ENDPOINT_URL_EC2"], form, timeout=10).read()
        for _ in range(100):
            if len(self._addresses()) >= WANTED:
                return
            time.sleep(0.1)

    def _put_in_place(self) -> None:
        Path("/proc/sys/net/ipv4/ip_forward").write_text("1")  # EKS's image: /etc/sysctl.d/99-kubernetes-cri.conf
        cidr = _metadata(f"network/interfaces/macs/{self._mac}/vpc-ipv4-cidr-block")
        for line in NAT_CHAINS.format(cidr=cidr, own=_metadata("local-ipv4")).strip().splitlines():
            verb, rest = line.strip().split(" ", 1)
            shown = {"-A": f"-C {rest}", "-N": f"-n -L {rest}"}[verb]
            _shell(f"iptables-nft -t nat {shown} >/dev/null 2>&1 || iptables-nft -t nat {verb} {rest}")
        for path, text, mode in (
            (PLUGIN, f"#!/bin/sh\nexec {sys.executable} -I -S {Path(__file__).resolve()} plugin\n", 0o755),
            (CONFLIST, CONFLIST_TEXT, 0o644),
        ):
            fresh = path.with_name(f".{path.name}.tmp")
            fresh.write_text(text)
            fresh.chmod(mode)
            fresh.rename(path)


def plugin() -> int:
    """Serve one CNI call: get the address from the agent, and wire the pod or undo that. Returns: the exit status."""
    config = json.loads(sys.stdin.read() or "{}")
    verb, version = os.environ["CNI_COMMAND"], config.get("cniVersion", "0.4.0")
    if verb not in ("ADD", "DEL"):
        print(json.dumps({"cniVersion": version, "supportedVersions": ["0.4.0"]}) if verb == "VERSION" else "")
        return 0
    words = dict(word.split("=", 1) for word in os.environ.get("CNI_ARGS", "").split(";") if "=" in word)
    names = words.get("K8S_POD_NAMESPACE", ""), words.get("K8S_POD_NAME", "")
    question = {"verb": verb, "key": os.environ["CNI_CONTAINERID"], "namespace": names[0], "name": names[1]}
    try:
        answer = _ask(question)
        if "error" in answer:
            raise OSError(answer["error"])
        veth, address = _veth(*names), answer["address"]
        if verb == "ADD":
            _wire(veth, address, os.environ["CNI_NETNS"])
        else:
            _unwire(veth, address)
    except (OSError, ValueError, subprocess.CalledProcessError) as error:
        detail = getattr(error, "stderr", "") or ""
        print(json.dumps({"cniVersion": version, "code": TRY_AGAIN_LATER, "msg": f"aws-cni: {error} {detail}"}))
        return 1
    interfaces = [{"name": veth}, {"name": "eth0", "sandbox": os.environ.get("CNI_NETNS", "")}]
    ips = [{"version": "4", "address": f"{address}/32", "interface": 1}]
    print(json.dumps({"cniVersion": version, "interfaces": interfaces, "ips": ips}) if verb == "ADD" else "")
    return 0


def _wire(veth: str, address: str, netns: str) -> None:
    mac = "0a:58:" + ":".join(f"{int(part):02x}" for part in address.split("."))
    _shell(f"""
        ip link del {veth} 2>/dev/null
        set -e
        ip link add {veth} address {mac} mtu 9001 type veth peer name eth0 netns {Path(netns).name}
        ip link set {veth} up
        nsenter --net={netns} sh -ec 'ip link set lo up; ip link set eth0 mtu 9001 up; ip addr add {address}/32 dev eth0
            ip route add 169.254.1.1 dev eth0 scope link; ip route add default via 169.254.1.1 dev eth0
            ip neigh add 169.254.1.1 lladdr {mac} nud permanent dev eth0'
        ip route replace {address} dev {veth} scope link
        ip rule del to {address} prio 512 2>/dev/null || true
        ip rule add to {address} table main prio 512
    """)


def _unwire(veth: str, address: str) -> None:
    rules = f"ip rule del to {address} prio 512; ip rule del from {address} prio 1536; " if address else ""
    _shell(f"{{ {rules} ip link del {veth}; }} 2>/dev/null; true")


def _ask(question: dict[str, Any]) -> dict[str, Any]:
    with socket.socket(socket.AF_UNIX) as sock:
        sock.settimeout(20)
        sock.connect(str(SOCKET))
        sock.sendall(json.dumps(question).encode())
        answer: dict[str, Any] = json.loads(sock.recv(MAX_BYTES))
    return answer


def _checkpoint() -> list[dict[str, Any]]:
    try:
        document = json.loads(CHECKPOINT.read_text())
    except FileNotFoundError:
        return []
    allocations: list[dict[str, Any]] = document["allocations"] or []
    return allocations


def _veth(namespace: str, name: str) -> str:
    return "eni" + hashlib.sha1(f"{namespace}.{name}".encode(), usedforsecurity=False).hexdigest()[:11]


def _veth_of(entry: dict[str, Any]) -> str:
    names = entry["metadata"]
    return _veth(names["k8sPodNamespace"], names["k8sPodName"])


def _metadata(path: str) -> str:
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    asking = urllib.request.Request(f"{METADATA}/api/token", method="PUT", headers=headers)
    with urllib.request.urlopen(asking, timeout=10) as token:
        headers = {"X-aws-ec2-metadata-token": token.read().decode()}
    with urllib.request.urlopen(urllib.request.Request(f"{METADATA}/meta-data/{path}", headers=headers), timeout=10) as answer:
        text: str = answer.read().decode()
    return text


def _shell(script: str) -> None:
    """Raises: CalledProcessError."""
    subprocess.run(["/bin/sh", "-c", script], check=True, text=True, capture_output=True, env={"PATH": PATH})


def main(argv: list[str]) -> int:
    """Run the agent until it is killed, or with the argument `plugin` serve one CNI call. Returns: the exit status."""
    if argv == ["plugin"]:
        return plugin()
    Agent().serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
