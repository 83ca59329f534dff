"""The DaemonSet's container run by runc in a lab node: command, mounts, capabilities and seccomp profile together carry a sandbox.

The image's content is the machine's interpreter and this checkout; tests/heavy/test_image.py runs the same with the image itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lab.lab import Lab, missing_requirements
from lab.node import plugin
from lab.node.errors import SandboxError
from lab.node.node import REPOSITORY, Node
from lab.node.process import NodeProcess
from tests.rig import wait_until
from tests.unit.manifests import bundle
from tests.unit.manifests.manifest import container, environment

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.containerd,
    pytest.mark.skipif(bool(missing_requirements(containerd=True)), reason=missing_requirements(containerd=True) or "-"),
]

GRANTED = container()["securityContext"]["capabilities"]["add"]
LOG = "/var/log/ipamd-container.log"
REFERENCE_PLUGINS = REPOSITORY / "build" / "reference-plugins"
MODULE = [sys.executable, "-B", "-m"]


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """One node with containerd and the plugin."""
    with Lab(name=f"bundle-{os.getpid()}", nodes=["node-a"]) as lab:
        made = lab.node("node-a")
        plugin.install(made)
        made.run(["sh", "-c", "echo 1 >/proc/sys/net/ipv4/ip_forward; echo 2 >/proc/sys/net/ipv4/conf/eth0/rp_filter"])
        yield made


def _content() -> list[str]:
    """Directories of the machine that hold an interpreter with its libraries, and the checkout."""
    wanted = {"/usr", "/bin", "/lib", "/lib64", "/etc/ld.so.cache", str(REPOSITORY), str(Path(sys.base_prefix).resolve())}
    whole = [path for path in sorted(wanted) if Path(path).exists()]
    return [path for path in whole if not any(path.startswith(other + "/") for other in whole)]


def _start(node: Node, capabilities: list[str]) -> NodeProcess:
    variables = {
        "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
        "PYTHONPATH": str(REPOSITORY),
        **node.daemon_environment("us-west-2"),
        **environment(),
        "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN": str(REFERENCE_PLUGINS.is_dir()).lower(),
        "VPC_IPAMD_REFERENCE_PLUGINS_DIR": str(REFERENCE_PLUGINS),
    }
    argv = [*MODULE, "ipamd.daemon"]
    return bundle.start(node, argv=argv, environment=variables, capabilities=capabilities, binds=_content(), log=LOG)


def _wait(node: Node, is_so: Callable[[], bool], *, what: str) -> None:
    """Wait for the container; where it does not come to it, its log and status say why."""
    try:
        wait_until(is_so, what=what)
    except AssertionError as error:
        raise AssertionError(f"{error}\n{_status(node).stdout}\n{_log(node)}") from error


def _status(node: Node) -> subprocess.CompletedProcess[str]:
    return node.run([*MODULE, "ipamd.ipamctl.main", "status"], cwd=str(REPOSITORY), check=False)


def _log(node: Node) -> str:
    return node.run(["tail", "-n", "20", LOG], check=False).stdout


def test_the_container_of_the_daemonset_serves_a_sandbox(node: Node) -> None:
    """It becomes ready, gives a sandbox an address, takes it back, and writes the conflist where the node reads it."""
    container_process = _start(node, GRANTED)
    try:
        _wait(node, lambda: _status(node).returncode == 0 or container_process.poll() is not None, what="ready")
        assert container_process.poll() is None, _log(node)
        confined = node.run(
            ["runc", "exec", "ipamd", "sh", "-c", "grep -E '^(CapBnd|Seccomp):' /proc/1/status; touch /here 2>&1"], check=False
        )
        assert "Seccomp:\t2" in confined.stdout
        assert f"{(1 << 12) | (1 << 21):016x}" in confined.stdout  # linux/capability.h: NET_ADMIN is 12, SYS_ADMIN 21
        assert "Read-only file system" in confined.stdout
        sandbox = node.cri.run_sandbox("probe")
        assert node.cri.status(sandbox).address
        node.cri.stop(sandbox)
        node.cri.remove(sandbox)
        assert "vpc-cni" in node.run(["cat", environment()["VPC_IPAMD_CONFLIST_FILE"]]).stdout
    finally:
        bundle.remove(node, container_process)


def test_without_sys_admin_it_says_so_and_serves_nobody(node: Node) -> None:
    """The daemon cannot enter a namespace; status says which capability it needs."""
    container_process = _start(node, [name for name in GRANTED if name != "SYS_ADMIN"])
    try:
        _wait(node, lambda: "CAP_SYS_ADMIN" in _status(node).stdout, what="the status names CAP_SYS_ADMIN")
        assert _status(node).stdout.startswith("NOT READY")
        assert _status(node).returncode == 1
    finally:
        bundle.remove(node, container_process)


def test_without_net_admin_no_sandbox_starts(node: Node) -> None:
    """No link can be made; the runtime is told at once."""
    container_process = _start(node, [name for name in GRANTED if name != "NET_ADMIN"])
    try:
        _wait(node, lambda: "vpc-ipamd" in _status(node).stdout, what="the daemon answers")
        with pytest.raises(SandboxError, match="failed to setup network"):
            node.cri.run_sandbox("probe")
    finally:
        bundle.remove(node, container_process)


def test_both_capabilities_were_taken_away_once() -> None:
    """A third capability in the manifest needs a test here."""
    assert set(GRANTED) == {"NET_ADMIN", "SYS_ADMIN"}
