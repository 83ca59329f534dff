"""A node of the cluster: the kubelet and kube-proxy on a lab node with containerd 2.

The configuration avoids four problems of the lab:

- The kubelet sets sysctls of the whole kernel. So files of the node are mounted over them.
- If cgroup v2 has no controllers (hybrid machines), the kubelet cannot make cgroups for quality of service. So pods have no limits of
  CPU and memory there.
- Without CAP_SYS_RESOURCE the kubelet may not lower its own OOM score. So `oomScoreAdj` is 0.
- A full disk of the machine must not change a test. So nothing is evicted.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Any

from lab.cluster import programs
from lab.cluster.control_plane import ADDRESSES, FOLDER, ControlPlane
from lab.node import reboot
from lab.node.containerd import SOCKET
from lab.node.node import Node
from lab.node.process import NodeProcess
from lab.vpc.family import family_of
from lab.vpc.model import Eni

KERNEL_SETTINGS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
"""The sysctls that the kubelet would set for the whole machine, with its values. Source: kubernetes
pkg/kubelet/cm/container_manager_linux.go, setupKernelTunables."""

IMPORT_TIMEOUT_S = 180.0


class Worker:
    """The Kubernetes programs of one node. Concurrency: one thread."""

    def __init__(self, node: Node, address: str, *, name: str, max_pods: int, provider_id: str) -> None:
        """Make the object; nothing is started yet.

        Args:
            address: the node's own address, of the cluster's family.
            name: the node's name in Kubernetes.
            max_pods: most pods of the node.
            provider_id: the node's instance, as aws:///ZONE/INSTANCE.
        """
        self.node = node
        self.address = address
        self.name = name
        self.kubelet: NodeProcess | None = None
        self.proxy: NodeProcess | None = None
        self._max_pods = max_pods
        self._provider_id = provider_id
        self._directories = str(programs.CONTAINERD)
        self._proxy_mode = ""

    def prepare(self, control: ControlPlane) -> None:
        """Start containerd 2, and write the configuration of the kubelet and kube-proxy."""
        self.node.start_containerd(self._directories)
        control.join(self.node, self.name)
        for path, value in KERNEL_SETTINGS.items():
            own = f"/run/kernel-settings/{path}"
            self.node.write_file(own, f"{value}\n".encode())
            self.node.run(["mount", "--bind", own, f"/proc/sys/{path}"])
        self.node.write_file(f"{FOLDER}/kubelet.json", json.dumps(self._kubelet_config()).encode())

    def reboot(self, control: ControlPlane, enis: Iterable[Eni], *, forget: Sequence[str] = ()) -> None:
        """Cut the node's power and start all programs again. As after any boot, the kubelet starts the pods.

        Args:
            enis: the ENIs of the node.
            forget: files to remove before the next boot, as patterns of the shell.
        """
        self.kubelet = self.proxy = None
        reboot.reboot(self.node, enis, containerd=str(programs.CONTAINERD))
        if forget:
            self.node.run(["/bin/sh", "-c", f"rm -rf {' '.join(forget)}"])
        self._directories = f"{reboot.PROGRAMS}:{programs.CONTAINERD}"
        self.prepare(control)
        self.start_kubelet()
        self.start_proxy(self._proxy_mode)

    def load_image(self, archive: Path, *, reference: str = "") -> None:
        """Import an image into containerd, as if it had been pulled.

        Args:
            archive: path of the OCI archive, which must be the same in the node.
            reference: name for the image; needed for archives of `tools/image.sh`, which have only the name vpc-ipamd.
        """
        ctr = [str(programs.CONTAINERD / "ctr"), "--namespace", "k8s.io", "images"]
        base = reference.replace(":", "-")
        naming = ["--base-name", base] if reference else []
        self.node.run([*ctr, "import", "--local", *naming, str(archive)], timeout_s=IMPORT_TIMEOUT_S)
        if reference:
            self.node.run([*ctr, "tag", "--force", f"{base}:vpc-ipamd", reference])

    def kill_container(self, container: str, number: signal.Signals) -> None:
        """Send a signal to a container's first process. `container`: its ID in the API server, without the prefix containerd://."""
        ctr = [str(programs.CONTAINERD / "ctr"), "--namespace", "k8s.io", "tasks", "kill", "--signal", number.name, container]
        self.node.run(ctr)

    def start_kubelet(self) -> None:
        """Start the kubelet, which registers the node."""
        options = [f"--config={FOLDER}/kubelet.json", f"--kubeconfig={FOLDER}/kubelet.conf", "--root-dir=/var/lib/kubelet"]
        options += [f"--hostname-override={self.name}", f"--node-ip={self.address}"]
        self.kubelet = programs.start(self.node, "kubelet", options)

    def start_proxy(self, mode: str) -> None:
        """Start kube-proxy, or restart it in another mode. `mode`: nftables or iptables."""
        if self.proxy is not None:
            programs.end(self.proxy)
            self.node.run([programs.program("kube-proxy"), "--cleanup"])
        self.node.write_file(f"{FOLDER}/kube-proxy.json", json.dumps(self._proxy_config(mode)).encode())
        self._proxy_mode = mode
        self.proxy = programs.start(self.node, "kube-proxy", [f"--config={FOLDER}/kube-proxy.json"])

    def ended(self) -> list[str]:
        """List the programs that were started and have ended by themselves."""
        started = {"kubelet": self.kubelet, "kube-proxy": self.proxy, "containerd": self.node.containerd}
        return [
            f"{name} on {self.node.name}"
            for name, process in started.items()
            if process is not None and process.poll() is not None
        ]

    def _kubelet_config(self) -> Mapping[str, Any]:
        controllers = Path(f"{self.node.root}/sys/fs/cgroup/cgroup.controllers").read_text(encoding="ascii").split()
        addresses = ADDRESSES[family_of(ip_address(self.address))]
        has_cgroups = {"cpu", "cpuset", "memory", "pids"} <= set(controllers)
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "cgroupDriver": "cgroupfs",
            "cgroupsPerQOS": has_cgroups,
            "enforceNodeAllocatable": ["pods"] if has_cgroups else [],
            "address": addresses.wildcard,
            "clusterDNS": [addresses.dns],
            "clusterDomain": "cluster.local",
            "containerRuntimeEndpoint": f"unix://{SOCKET}",
            "evictionHard": {
                "memory.available": "0%",
                "nodefs.available": "0%",
                "nodefs.inodesFree": "0%",
                "imagefs.available": "0%",
            },
            "failSwapOn": False,
            "imageGCHighThresholdPercent": 100,
            "localStorageCapacityIsolation": False,
            "makeIPTablesUtilChains": False,
            "maxPods": self._max_pods,
            "oomScoreAdj": 0,
            "providerID": self._provider_id,
            "resolvConf": "",
        }

    def _proxy_config(self, mode: str) -> Mapping[str, Any]:
        # Zeros, with which kube-proxy does not change the table of tracked connections, because it belongs to the whole kernel.
        conntrack = {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"}
        return {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": f"{FOLDER}/kube-proxy.conf"},
            "conntrack": conntrack,
            "hostnameOverride": self.name,
            "mode": mode,
            "oomScoreAdj": 0,
        }
