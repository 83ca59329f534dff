"""The daemon and plugins of amazon-vpc-cni-k8s on a lab node, from a folder with its built programs.

The settings are those of its release's manifest, with three differences: its log is in the node's /var/log; it does not search for
leaked ENIs, as our daemon does not here; and its network policy agent, which is another program, is not called in ADD and DEL. Its
requests to the API server are answered by `api_server`.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lab.node.errors import NodeError
from lab.node.node import REPOSITORY, Node
from lab.node.process import NodeProcess

AGENT, PLUGIN, EGRESS_PLUGIN = "aws-k8s-agent", "aws-cni", "egress-cni"
PROGRAMS = (AGENT, PLUGIN, EGRESS_PLUGIN)
"""The programs in the folder. They have the same names in the image of amazon-vpc-cni-k8s."""

PORTMAP = "/usr/lib/cni/portmap"
FOLDER = "/opt/theirs"
SOCKET = "/run/aws-node/ipamd.sock"
LOGS = "/var/log/aws-routed-eni"
KUBECONFIG = "/etc/bench/kubeconfig.json"
API_PORT = 18080
MAX_PODS = 737  # max-pods of the largest node that is measured
END_TIMEOUT_S = 20.0

SETTINGS = {
    "AWS_VPC_K8S_CNI_LOG_FILE": f"{LOGS}/ipamd.log",
    "AWS_VPC_K8S_CNI_LOGLEVEL": "DEBUG",
    "AWS_VPC_K8S_CNI_RANDOMIZESNAT": "prng",
    "AWS_VPC_K8S_CNI_VETHPREFIX": "eni",
    "AWS_VPC_ENI_MTU": "9001",
    "DISABLE_LEAKED_ENI_CLEANUP": "true",
    "ENABLE_IPv4": "true",
    "ENABLE_IPv6": "false",
    "ENABLE_SUBNET_DISCOVERY": "true",
    "WARM_ENI_TARGET": "1",
    "WARM_PREFIX_TARGET": "1",
    "KUBECONFIG": KUBECONFIG,
    "MY_POD_NAME": "aws-node-bench",
}


class TheirDaemon:
    """The daemon of amazon-vpc-cni-k8s on one node, at most one process. Concurrency: one thread."""

    def __init__(self, node: Node, *, programs: Path, region: str, settings: Mapping[str, str]) -> None:
        """Install the programs, and start the stand-in for the API server. Raises: NodeError."""
        self._node = node
        self._environment = node.daemon_environment(region) | SETTINGS | dict(settings)
        self._process: NodeProcess | None = None
        for name in PROGRAMS:
            node.install(programs / name, f"{FOLDER}/{name}")
        node.run(["mkdir", "-p", LOGS, str(Path(SOCKET).parent)])
        node.write_file(KUBECONFIG, _kubeconfig().encode())
        api = ["--node", node.name, "--max-pods", str(MAX_PODS), "--port", str(API_PORT)]
        node.spawn([sys.executable, "-m", "bench.beside.api_server", *api], cwd=str(REPOSITORY))

    @property
    def pid(self) -> int:
        """The process ID in the machine's PID namespace. Raises: NodeError if the daemon was not started."""
        if self._process is None:
            raise NodeError(f"{self._node.name}: {AGENT} was not started")
        return self._process.pid

    def start(self) -> None:
        """Start the process; returns at once."""
        with Path(f"{self._node.root}{LOGS}/output.log").open("ab") as log:
            self._process = self._node.spawn([f"{FOLDER}/{AGENT}"], env=self._environment, cwd=FOLDER, stdout=log, stderr=log)

    def restart(self) -> float:
        """`kill -9`, and start again as soon as the old process is gone. Returns: the monotonic time of the kill."""
        killed_at = time.monotonic()
        if self._process is not None:
            self._process.kill()
            self._process.wait(END_TIMEOUT_S)
        self.start()
        return killed_at


def plugins() -> list[tuple[str, dict[str, Any]]]:
    """Return path and entry of each plugin in its conflist, with the values that its image writes on an IPv4 node."""
    log = {"pluginLogFile": f"{LOGS}/plugin.log", "pluginLogLevel": "DEBUG"}
    egress_ipam = {
        "type": "host-local",
        "ranges": [[{"subnet": "fd00::ac:00/118"}]],
        "routes": [{"dst": "::/0"}],
        "dataDir": "/run/cni/v4pd/egress-v6-ipam",
    }
    egress = {"type": EGRESS_PLUGIN, "mtu": "9001", "enabled": "false", "randomizeSNAT": "prng", "nodeIP": ""}
    return [
        (f"{FOLDER}/{PLUGIN}", {"type": PLUGIN, "vethPrefix": "eni", "mtu": "9001", "podSGEnforcingMode": "strict", **log}),
        (f"{FOLDER}/{EGRESS_PLUGIN}", {**egress, "ipam": egress_ipam, **log}),
        (PORTMAP, {"type": "portmap", "snat": True}),
    ]


def missing_programs(folder: Path) -> str:
    """Return a sentence about the programs that the folder lacks; "" if it has all."""
    absent = [name for name in PROGRAMS if not (folder / name).is_file()]
    return f"{folder} has no {', '.join(absent)}" if absent else ""


def _kubeconfig() -> str:
    server = f"http://127.0.0.1:{API_PORT}"
    return (
        '{"apiVersion": "v1", "kind": "Config", "current-context": "bench", "users": [],'
        f'"clusters": [{{"name": "bench", "cluster": {{"server": "{server}"}}}}],'
        '"contexts": [{"name": "bench", "context": {"cluster": "bench", "user": ""}}]}'
    )
