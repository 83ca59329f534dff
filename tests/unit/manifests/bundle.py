"""A runc bundle of the DaemonSet's container: what CRI makes of its security context, command and mounts, for a lab node.

The seccomp profile is containerd's own default for exactly these capabilities, asked of the node's containerd. The rest follows the
container runtime interface: dropped and added capabilities in all three sets, `noNewPrivileges` false beside SYS_ADMIN, a read-only
root, masked and read-only parts of /proc, `rslave` for HostToContainer, and the host's network.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from lab.node.node import Node
from lab.node.process import NodeProcess
from tests.unit.manifests.manifest import container, mounts

FOLDER = "/run/bundle"
OF_CONTAINERD = (
    "CHOWN DAC_OVERRIDE FSETID FOWNER MKNOD NET_RAW SETGID SETUID SETFCAP SETPCAP NET_BIND_SERVICE SYS_CHROOT KILL AUDIT_WRITE"
)
"""Capabilities that containerd gives by default; `drop: [ALL]` takes them away."""
MASKED = ("/proc/acpi", "/proc/kcore", "/proc/keys", "/proc/latency_stats", "/proc/timer_list", "/proc/sched_debug", "/proc/scsi")
READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


def seccomp(node: Node, capabilities: Sequence[str]) -> dict[str, Any]:
    """Ask the node's containerd for its default profile. The container that it is asked with is removed again."""
    add = [word for name in capabilities for word in ("--cap-add", f"CAP_{name}")]
    drop = [word for name in OF_CONTAINERD.split() for word in ("--cap-drop", f"CAP_{name}")]
    node.run(["ctr", "containers", "create", "--seccomp", *drop, *add, "--rootfs", "/run", "asked", "/bin/true"])
    try:
        spec = json.loads(node.run(["ctr", "containers", "info", "--spec", "asked"]).stdout)
    finally:
        node.run(["ctr", "containers", "rm", "asked"])
    assert {name.removeprefix("CAP_") for name in spec["process"]["capabilities"]["bounding"]} == set(capabilities)
    profile: dict[str, Any] = spec["linux"]["seccomp"]
    return profile


def start(
    node: Node,
    *,
    argv: Sequence[str],
    environment: Mapping[str, str],
    capabilities: Sequence[str],
    binds: Sequence[str] = (),
    rootfs: str = f"{FOLDER}/rootfs",
    log: str,
) -> NodeProcess:
    """Run the container in the node; the process is runc's, and ends with the container's.

    Args:
        binds: directories of the machine that stand for the image's content, read-only. None with a rootfs that is an image's.
        rootfs: the root, as the node sees it.
        log: file in the node for what the container prints.
    """
    node.run(["mkdir", "-p", f"{rootfs}/var", *(mount["hostPath"]["path"] for mount in mounts())])
    if binds:  # as every image of Debian has it; the runtime names namespaces below it
        node.run(["ln", "-sfn", "/run", f"{rootfs}/var/run"])
    capability_names = [f"CAP_{name}" for name in capabilities]
    context = container()["securityContext"]
    assert context["seccompProfile"] == {"type": "RuntimeDefault"}
    spec = {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": context["runAsUser"], "gid": 0},
            "args": list(argv),
            "env": [f"{name}={value}" for name, value in environment.items()],
            "cwd": "/",
            "capabilities": dict.fromkeys(("bounding", "effective", "permitted"), capability_names),
            "noNewPrivileges": False,
        },
        "root": {"path": rootfs, "readonly": context["readOnlyRootFilesystem"]},
        "mounts": [*_system_mounts(), *(_bind(path, path, read_only=True) for path in binds), *_volume_mounts()],
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "ipc", "mount", "cgroup")],
            "seccomp": seccomp(node, capabilities),
            "maskedPaths": MASKED,
            "readonlyPaths": READ_ONLY,
            "rootfsPropagation": "rslave",
        },
    }
    node.write_file(f"{FOLDER}/config.json", json.dumps(spec).encode())
    return node.spawn(["sh", "-c", f'exec "$@" >>{log} 2>&1', "sh", "runc", "run", "--bundle", FOLDER, "ipamd"])


def remove(node: Node, process: NodeProcess) -> None:
    """Kill the container, as a node does that runs out of patience; its datastore does not mind (I5)."""
    node.run(["runc", "delete", "--force", "ipamd"], check=False)
    process.wait(20)


def _system_mounts() -> list[dict[str, Any]]:
    def one(path: str, kind: str, *options: str) -> dict[str, Any]:
        return {"destination": path, "type": kind, "source": kind, "options": ["nosuid", *options]}

    return [
        one("/proc", "proc", "noexec", "nodev"),
        one("/dev", "tmpfs", "strictatime", "mode=755", "size=65536k"),
        one("/sys", "sysfs", "noexec", "nodev", "ro"),
    ]


def _volume_mounts() -> list[dict[str, Any]]:
    return [
        _bind(
            mount["hostPath"]["path"],
            mount["mountPath"],
            read_only=bool(mount.get("readOnly")),
            propagation="rslave" if mount.get("mountPropagation") == "HostToContainer" else "rprivate",
        )
        for mount in mounts()
    ]


def _bind(source: str, target: str, *, read_only: bool, propagation: str = "rprivate") -> dict[str, Any]:
    options = ["rbind", propagation, "ro" if read_only else "rw"]
    return {"destination": target, "type": "bind", "source": source, "options": options}
