"""The programs that `make cluster` builds beforehand, and their start on a node."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lab.node.node import REPOSITORY, Node
from lab.node.process import BASE_ENVIRONMENT, NodeProcess

PROGRAMS = REPOSITORY / "build" / "cluster"
"""Folder of the programs that tools/cluster.sh builds."""

HELM = REPOSITORY / "build" / "heavy" / "helm"
"""The helm that `tools/setup.sh heavy` installs."""

CONTAINERD = REPOSITORY / "build" / "containerd-2"
"""Folder of the containerd that tools/fetch_containerd.sh downloads. Version 2, because this kubelet does not support older ones."""

NAMES = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "coredns")
END_TIMEOUT_S = 20.0


def missing(*, has_helm: bool = True) -> str:
    """Return a sentence with the programs that are not built; "" if all are. `has_helm`: whether helm is needed."""
    wanted = [*(PROGRAMS / name for name in NAMES), CONTAINERD / "containerd"]
    if has_helm:
        wanted.append(HELM)
    lacking = [str(path.relative_to(REPOSITORY)) for path in wanted if not path.exists()]
    return f"not built: {', '.join(lacking)}; `make cluster` builds them" if lacking else ""


def program(name: str) -> str:
    """Return the path of one of NAMES. It is the same on every node, because it is outside of /run, /etc, /opt and /var."""
    return str(PROGRAMS / name)


def log_path(name: str) -> str:
    """Return the path in the node of a program's log."""
    return f"/var/log/{name}.log"


def start(node: Node, name: str, options: Sequence[str]) -> NodeProcess:
    """Start a program in a node, and return at once. Its output goes to its log."""
    environment = {"PATH": f"{PROGRAMS}:{CONTAINERD}:{BASE_ENVIRONMENT['PATH']}"}
    with Path(node.root + log_path(name)).open("ab") as log:
        return node.spawn([program(name), *options], stdout=log, stderr=log, env=environment)


def end(process: NodeProcess | None) -> None:
    """Kill a program, if it runs, and wait for its end."""
    if process is not None and process.poll() is None:
        process.kill()
        process.wait(END_TIMEOUT_S)
