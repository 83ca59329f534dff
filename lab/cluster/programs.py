"""What `make cluster` builds beforehand, and how a node runs one of these programs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.node.node import REPOSITORY, Node
from lab.node.process import BASE_ENVIRONMENT, NodeProcess

PROGRAMS = REPOSITORY / "build" / "cluster"
"""Of tools/cluster.sh."""

HELM = REPOSITORY / "build" / "heavy" / "helm"
"""Of `tools/setup.sh heavy`."""

CONTAINERD = REPOSITORY / "build" / "containerd-2"
"""Of tools/fetch_containerd.sh: this kubelet knows no containerd before 2."""

NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "coredns")
END_TIMEOUT_S = 20.0


def missing(*, has_helm: bool = True) -> str:
    """Say in one sentence what is not built; "" if all is there. Args: has_helm: False where helm is not asked for."""
    wanted = [*(PROGRAMS / name for name in NAMES), CONTAINERD / "containerd"]
    if has_helm:
        wanted.append(HELM)
    lacking = [str(path.relative_to(REPOSITORY)) for path in wanted if not path.exists()]
    return f"not built: {', '.join(lacking)}; `make cluster` builds them" if lacking else ""


def program(name: str) -> str:
    """The path of one of NAMES, which every node sees: it is outside of /run, /etc, /opt and /var."""
    return str(PROGRAMS / name)


def log_path(name: str) -> str:
    """Where a node keeps the log of one of its programs."""
    return f"/var/log/{name}.log"


def start(node: Node, name: str, options: Sequence[str]) -> NodeProcess:
    """Start a program in a node; it writes to its log from then on, and nothing of it is waited for."""
    environment = {"PATH": f"{PROGRAMS}:{CONTAINERD}:{BASE_ENVIRONMENT['PATH']}"}
    with Path(node.root + log_path(name)).open("ab") as log:
        return node.spawn([program(name), *options], stdout=log, stderr=log, env=environment)


def end(process: NodeProcess | None) -> None:
    """End a program, at once, and wait until it is gone."""
    if process is not None and process.poll() is None:
        process.kill()
        process.wait(END_TIMEOUT_S)
