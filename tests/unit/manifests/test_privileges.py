"""The DaemonSet's privileges are enough and not more: the real daemon in a lab node, under exactly what the manifest grants.

A lab node has no kubelet, so the container is imitated: the manifest's capabilities as bounding set, a read-only root file
system, /proc/sys and CRI directory read-only, and only the manifest's writable mounts writable.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator

import pytest

from ipamd.settings import Settings
from lab.lab import Lab, missing_requirements
from lab.node import plugin
from lab.node.cri import RUN_TIMEOUT_S
from lab.node.daemon import DAEMON_LOG, PLUGIN_PATH
from lab.node.errors import SandboxError
from lab.node.node import REPOSITORY, Node
from lab.node.process import NodeProcess
from tests.unit.manifests.manifest import ROOT, container, environment, init_container, mounts

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.containerd,
    pytest.mark.skipif(bool(missing_requirements(containerd=True)), reason=missing_requirements(containerd=True) or "-"),
]

REFERENCE_PLUGINS = ROOT / "build" / "reference-plugins"

AS_A_CONTAINER = """
set -e
for path in $READ_ONLY; do mount --bind $path $path; done
for path in $WRITABLE; do mkdir -p $path; mount --bind $path $path; done
for path in / $READ_ONLY; do mount -o remount,bind,ro $path; done
touch /anywhere 2>/dev/null && { echo "the root file system is writable" >&2; exit 99; }
exec setpriv --bounding-set "$BOUNDING" --inh-caps -all "$@"
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    """One node with containerd and the plugin."""
    with Lab(name=f"manifest-{os.getpid()}", nodes=["node-a"]) as made:
        node = made.node("node-a")
        plugin.install(node)
        for path in REFERENCE_PLUGINS.glob("*"):  # of the image, if they are built here
            node.write_file(f"{Settings().daemon.reference_plugins}/{path.name}", path.read_bytes())
        yield made


def _start(lab: Lab, capabilities: list[str]) -> NodeProcess:
    node, writable = lab.node("node-a"), [mount["mountPath"] for mount in mounts() if not mount.get("readOnly")]
    read_only = [mount["mountPath"] for mount in mounts() if mount.get("readOnly")]
    argv = ["unshare", "--mount", "--propagation", "slave", "sh", "-c", AS_A_CONTAINER, "sh"]
    daemon = ["sh", "-c", f'exec "$@" >>{DAEMON_LOG} 2>&1', "sh", *argv, sys.executable, "-B", "-m", "ipamd.daemon"]
    container_environment = {
        "READ_ONLY": " ".join(["/proc/sys", "/tmp", *read_only]),
        "WRITABLE": " ".join(writable),
        "BOUNDING": ",".join(["-all", *(f"+{name.lower()}" for name in capabilities)]),
        **environment(),
        "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN": str(REFERENCE_PLUGINS.is_dir()).lower(),
    }
    return node.spawn(daemon, env=node.daemon_environment(lab.vpc.region) | container_environment, cwd=str(REPOSITORY))


def _status(node: Node) -> int:
    return node.run([sys.executable, "-m", "ipamd.ipamctl.main", "status"], cwd=str(REPOSITORY), check=False).returncode


def _wait_ready(node: Node, *, seconds: float) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if _status(node) == 0:
            return True
        time.sleep(0.1)  # a real process: there is no clock to fake
    return False


def _sandbox(node: Node, *, timeout_s: float = RUN_TIMEOUT_S) -> None:
    sandbox = node.cri.run_sandbox("probe", timeout_s=timeout_s)
    node.cri.stop(sandbox)
    node.cri.remove(sandbox)


def test_the_granted_privileges_are_enough(lab: Lab) -> None:
    """With the manifest's capabilities and mounts the daemon becomes ready, wires and unwires a sandbox, and lacks nothing."""
    node = lab.node("node-a")
    # what the init container does; the image's interpreter and the plugin are the machine's here
    node.run(["sh", "-c", f"echo 0 >/proc/sys/net/ipv4/conf/eth0/rp_filter; cp {PLUGIN_PATH} /run/vpc-cni"])
    node_init = [str(ROOT / "manifests" / "node-init"), "/run/vpc-cni", "/opt/cni/bin"]
    assert init_container()["command"][0].endswith("/node-init")
    node.run(node_init)
    daemon = _start(lab, container()["securityContext"]["capabilities"]["add"])
    try:
        assert _wait_ready(node, seconds=20), node.run(["tail", "-n", "20", DAEMON_LOG], check=False).stdout
        _sandbox(node)
        status = node.run([sys.executable, "-m", "ipamd.ipamctl.main", "status"], cwd=str(REPOSITORY)).stdout
        assert "degraded" not in status, status
        if REFERENCE_PLUGINS.is_dir():  # put in place, and run, with no more privileges than these
            node.run(["test", "-x", "/opt/cni/bin/portmap"])
            assert "1.1.0" in node.run(["cat", environment()["VPC_IPAMD_CONFLIST_FILE"]]).stdout
        assert "vpc-ipamd" in node.run(["nft", "list", "tables"]).stdout
        assert "last error  none since start" in status, status
    finally:
        daemon.kill()  # its next start does not mind (I5)
        daemon.wait(10)


@pytest.mark.parametrize("absent", container()["securityContext"]["capabilities"]["add"])
def test_each_granted_capability_is_needed(lab: Lab, absent: str) -> None:
    """Without any one of the capabilities no sandbox gets a network."""
    granted = container()["securityContext"]["capabilities"]["add"]
    daemon = _start(lab, [name for name in granted if name != absent])
    try:
        _wait_ready(lab.node("node-a"), seconds=2)
        with pytest.raises(SandboxError):
            _sandbox(lab.node("node-a"), timeout_s=10)  # without SYS_ADMIN nobody answers, and the plugin would wait a minute
    finally:
        daemon.kill()  # its next start does not mind (I5)
        daemon.wait(10)
