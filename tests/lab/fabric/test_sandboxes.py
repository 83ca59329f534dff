"""Nodes run a real containerd with real runc sandboxes, and processes that the lab can hold and kill."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from lab.fabric.ping import ping
from lab.lab import Lab
from lab.node import containerd, pause
from lab.node.errors import NodeError, SandboxError
from lab.node.node import Node
from tests.lab.fabric.conftest import eventually
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]
CONFLIST = {
    "cniVersion": "0.4.0",
    "name": "test",
    "plugins": [{"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.99.0.0/24"}}],
}


@pytest.fixture(scope="module")
def node() -> Iterator[Node]:
    """A node with containerd and Debian's ptp and host-local plugins."""
    with Lab(name=f"cri-{time.monotonic_ns()}", nodes=["node-a"]) as lab:
        found = lab.node("node-a")
        install_ptp(found)
        yield found


def install_ptp(node: Node) -> None:
    """Give a node a network for sandboxes that needs no daemon, and wait until CRI has seen it."""
    for name in ("ptp", "host-local"):
        binary = containerd.plugin_binary(name)
        assert binary is not None
        node.install(binary, f"/opt/cni/bin/{name}")
    node.write_file("/etc/cni/net.d/10-test.conflist", json.dumps(CONFLIST).encode())

    def runs() -> bool:
        try:
            sandbox = node.cri.run_sandbox("probe")
        except SandboxError as exc:
            if "cni plugin not initialized" not in str(exc):
                raise
            return False
        node.cri.remove(sandbox)
        return True

    assert eventually(runs)


def test_sandbox_lives_and_goes(node: Node) -> None:
    """A sandbox is listed, has an address that answers, stays listed as not ready when stopped, and is gone when removed."""
    sandbox = node.cri.run_sandbox("web", namespace="shop", uid="u-1", attempt=2)
    (listed,) = node.cri.list()
    assert (listed.sandbox_id, listed.name, listed.namespace, listed.uid) == (sandbox, "web", "shop", "u-1")
    assert (listed.attempt, listed.is_ready) == (2, True)
    status = node.cri.status(sandbox)
    assert status.address is not None
    assert status.netns_path.startswith("/var/run/netns/")
    assert all(ping(node.netns_path(), targets=[status.address]).values())
    assert all(ping(node.netns_path(sandbox), targets=["10.99.0.1"]).values())
    node.cri.stop(sandbox)
    assert [each.is_ready for each in node.cri.list()] == [False]
    node.cri.remove(sandbox)
    assert node.cri.list() == []
    with pytest.raises(SandboxError, match="not found"):
        node.cri.status(sandbox)


def test_sandboxes_start_at_once(node: Node) -> None:
    """Ten sandboxes asked for at the same time all come up, each with an address of its own."""
    with ThreadPoolExecutor(max_workers=10) as pool:
        sandboxes = list(pool.map(node.cri.run_sandbox, [f"many-{number}" for number in range(10)]))
        addresses = {node.cri.status(sandbox).address for sandbox in sandboxes}
        assert len(addresses) == 10
        list(pool.map(node.cri.stop, sandboxes))
        list(pool.map(node.cri.remove, sandboxes))
    assert node.cri.list() == []
    assert not [name for name in node.netns.interfaces() if name.startswith("veth")]


def test_containerd_can_be_killed_and_started_again(node: Node) -> None:
    """Sandboxes survive kill -9 of containerd, and the new one lists them."""
    sandbox = node.cri.run_sandbox("survivor")
    assert node.containerd is not None
    node.containerd.kill()
    assert node.containerd.wait(PATIENCE_S) == -signal.SIGKILL
    node.start_containerd()
    assert eventually(lambda: [each.sandbox_id for each in node.cri.list()] == [sandbox])
    node.cri.stop(sandbox)
    node.cri.remove(sandbox)


def test_another_containerd_is_found_first(tmp_path: Path) -> None:
    """A containerd given by its directory is the one that runs, with its own shim."""
    for name in ("containerd", "containerd-shim-runc-v2", "ctr"):
        found = shutil.which(name)
        assert found is not None
        shutil.copy(found, tmp_path / name)
    with Lab(name=f"cri-{time.monotonic_ns()}", nodes=["node-a"], containerd=tmp_path) as lab:
        node = lab.node("node-a")
        assert node.containerd is not None
        assert os.readlink(f"/proc/{node.containerd.pid}/exe") == str(tmp_path / "containerd")


def test_process_is_held_by_its_pid_on_the_machine(node: Node) -> None:
    """A spawned process can be seen, killed and waited for from outside, and is in the node's namespaces."""
    process = node.spawn(["sleep", "100"])
    assert Path(f"/proc/{process.pid}/cmdline").read_bytes() == b"sleep\x00100\x00"
    for kind in ("net", "mnt", "pid", "uts", "ipc", "cgroup"):
        assert os.readlink(f"/proc/{process.pid}/ns/{kind}") == os.readlink(f"/proc/{node.pid}/ns/{kind}")
        assert os.readlink(f"/proc/{process.pid}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    assert process.wait(PATIENCE_S) == -signal.SIGKILL


def test_run_collects_output_and_failure(node: Node) -> None:
    """Output, exit codes, missing programs and time-outs are told."""
    assert node.run(["hostname"]).stdout == "node-a\n"
    assert node.run(["cat"], stdin_bytes=b"x" * 200_000).stdout == "x" * 200_000
    assert node.run(["sh", "-c", "exit 3"], check=False).returncode == 3
    with pytest.raises(NodeError, match=r"cannot start no-such-program: .*No such file"):
        node.run(["no-such-program"])
    with pytest.raises(NodeError, match="was killed"):
        node.run(["sleep", "100"], timeout_s=0.1)
    with pytest.raises(NodeError, match="ended with 1"):
        node.run(["false"])


def test_nodes_files_are_its_own(node: Node) -> None:
    """What a node writes on the default paths of CNI and containerd is not on the machine."""
    node.write_file("/etc/cni/net.d/99-only-here", b"x")
    node.write_file("/var/lib/only-here", b"x")
    for path in ("/etc/cni/net.d/99-only-here", "/var/lib/only-here", "/run/.lab"):
        assert not Path(path).exists()
    node.run(["rm", "/etc/cni/net.d/99-only-here", "/var/lib/only-here"])


def test_pause_program_waits_and_ends_on_sigterm(tmp_path: Path) -> None:
    """The hand-written program runs on this machine, does nothing, and exits 0 on SIGTERM."""
    program = tmp_path / "pause"
    program.write_bytes(pause.pause_program())
    program.chmod(0o755)
    with subprocess.Popen([program]) as process:
        try:
            assert eventually(lambda: _awaits_a_signal(process.pid))
            process.terminate()
            assert process.wait(PATIENCE_S) == 0
        finally:
            process.kill()


@pytest.mark.parametrize(("machine", "number"), [("x86_64", 62), ("aarch64", 183)])
def test_pause_program_is_a_whole_elf(machine: str, number: int) -> None:
    """For both machines the headers agree with the file: one segment of its size, entry behind the data."""
    program = pause.pause_program(machine)
    assert program[:5] == b"\x7fELF\x02"
    assert int.from_bytes(program[18:20], "little") == number
    entry = int.from_bytes(program[24:32], "little")
    assert int.from_bytes(program[64 + 32 : 64 + 40], "little") == len(program)
    assert entry == pause.BASE + pause.HEADERS_BYTES + len(pause.DATA)
    assert pause.image_archive(machine) == pause.image_archive(machine)


def _awaits_a_signal(pid: int) -> bool:
    number = {"x86_64": "128", "aarch64": "137"}[os.uname().machine]  # rt_sigtimedwait; SigBlk is empty during it
    return Path(f"/proc/{pid}/syscall").read_text(encoding="ascii").split()[0] == number
