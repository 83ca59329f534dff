"""A real containerd for one lab node, on the default paths, which are the node's own (lab/node/init.py).

Measured traps:

- Without `restrict_oom_score_adj` runc cannot start a sandbox on a machine without CAP_SYS_RESOURCE.
- CRI does not show an imported image until its event handler has seen the image, and RunPodSandbox would fetch it from the network. So
  `start` waits for ImageStatus.
- If cgroup v2 has no cpu controller (hybrid machines), runc cannot write cpu.weight. So CRI is configured to set no limits; each
  sandbox still has a cgroup of its own. containerd 2 has no such setting, so there a script removes the limits from the bundle and
  calls runc.
- If `io.containerd.runtime.v1.linux` (unused) is disabled, the CRI plugin of containerd 1.6 is not loaded either.
- containerd executes the `loopback` plugin for every sandbox before ours, so it must be in the bin directory.
"""

from __future__ import annotations

import shutil
import socket
import time
from collections.abc import Callable
from pathlib import Path

from lab.node import pause
from lab.node.errors import NodeError
from lab.node.process import BASE_ENVIRONMENT, NodeProcess, Spawner

SOCKET = "/run/containerd/containerd.sock"
LOG = "/var/log/containerd.log"
CONFIG_PATH = "/etc/containerd/config.toml"
START_DEADLINE_S = 20.0
POLL_S = 0.01
PLUGIN_DIRECTORIES = ("/usr/lib/cni", "/opt/cni/bin")  # Debian's, and the usual one
CONFIG = f"""
version = 2
disabled_plugins = [
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.native", "io.containerd.internal.v1.restart",
  "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{pause.IMAGE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  disable_hugetlb_controller = true
  disable_cgroup = @disable_cgroup@
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/opt/cni/bin"
    conf_dir = "/etc/cni/net.d"
    max_conf_num = 1
"""

WITHOUT_LIMITS_PATH = "/run/runc-without-limits"
WITHOUT_LIMITS = """#!/bin/sh
previous=
for word in "$@"; do
    [ "$previous" != --bundle ] || sed -i -E 's/"(cpu|memory|pids|unified)":\\{[^}]*\\}/"\\1":{}/g' "$word/config.json"
    previous=$word
done
exec runc "$@"
"""
RUNC_OPTIONS = f"""
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{WITHOUT_LIMITS_PATH}"
"""


def is_installed() -> bool:
    """Whether this machine has the programs that `start` needs."""
    tools = all(shutil.which(tool) for tool in ("containerd", "runc", "ctr"))
    return tools and plugin_binary("loopback") is not None


def plugin_binary(name: str) -> Path | None:
    """Find a standard CNI plugin on this machine. Returns: its path, or None if it is not installed."""
    candidates = (Path(directory, name) for directory in PLUGIN_DIRECTORIES)
    return next((path for path in candidates if path.is_file()), None)


def start(spawner: Spawner, *, root: str, write_file: Callable[[str, bytes, int], None], directory: str = "") -> NodeProcess:
    """Start containerd and return when CRI serves and knows the pause image.

    Args:
        root: the node's root as this process sees it (`/proc/PID/root`).
        write_file: writes a file in the node (path, content, mode).
        directory: directory of another containerd, its shim and ctr, which is searched before the machine's; or several, separated by
            colons.
    Raises: NodeError with the end of containerd's log.
    """
    loopback = plugin_binary("loopback")
    if loopback is None:
        raise NodeError("the `loopback` CNI plugin is missing: apt-get install containernetworking-plugins")
    write_file("/opt/cni/bin/loopback", loopback.read_bytes(), 0o755)
    controllers = Path(f"{root}/sys/fs/cgroup/cgroup.controllers").read_text(encoding="ascii").split()
    config = CONFIG.replace("@disable_cgroup@", "false" if "cpu" in controllers else "true")
    env = {"PATH": f"{directory}:{BASE_ENVIRONMENT['PATH']}"} if directory else {}
    if "cpu" not in controllers and "/containerd/v2" in spawner.run(["containerd", "--version"], env=env).stdout:
        write_file(WITHOUT_LIMITS_PATH, WITHOUT_LIMITS.encode(), 0o755)
        config += RUNC_OPTIONS
    write_file(CONFIG_PATH, config.encode(), 0o644)
    write_file("/run/pause.tar", pause.image_archive(), 0o644)
    process = spawner.spawn(["/bin/sh", "-c", f"exec containerd --config {CONFIG_PATH} >>{LOG} 2>&1"], env=env)
    deadline = time.monotonic() + START_DEADLINE_S
    try:
        _wait(lambda: _listens(root + SOCKET), process, deadline, "serve")
        spawner.run(["ctr", "--namespace", "k8s.io", "images", "import", "/run/pause.tar"], env=env)
        _wait(lambda: _knows_image(root + SOCKET), process, deadline, f"see the image {pause.IMAGE}")
    except NodeError as exc:
        log = spawner.run(["tail", "-n", "5", LOG], check=False).stdout
        process.kill()
        raise NodeError(f"{exc}\n{log}") from exc
    return process


def _wait(claim: Callable[[], bool], process: NodeProcess, deadline: float, what: str) -> None:
    while not claim():
        if process.poll() is not None:
            raise NodeError(f"containerd ended with {process.returncode} before it could {what}")
        if time.monotonic() > deadline:
            raise NodeError(f"containerd did not {what} within {START_DEADLINE_S:.0f} s")
        time.sleep(POLL_S)  # polled, because containerd sends no notification when it listens, or when it has seen an image


def _listens(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as sock:
        return sock.connect_ex(path) == 0


def _knows_image(path: str) -> bool:
    """Whether CRI's ImageStatus shows the pause image. The two protobuf messages are short, so they are encoded by hand."""
    import grpc  # ~75 ms, and only nodes with containerd need it

    spec = _field(pause.IMAGE.encode())
    with grpc.insecure_channel(f"unix:{path}", options=[("grpc.default_authority", "localhost")]) as channel:
        call = channel.unary_unary("/runtime.v1.ImageService/ImageStatus", bytes, bytes)
        try:
            answer: bytes = call(_field(spec), timeout=5, wait_for_ready=True)
        except grpc.RpcError as exc:
            if getattr(exc, "code", lambda: None)() is grpc.StatusCode.UNIMPLEMENTED:
                raise NodeError("containerd serves no CRI: its CRI plugin did not load") from exc
            return False
    return answer[:1] == b"\x0a"  # field 1, the image, is present


def _field(payload: bytes) -> bytes:
    return b"\x0a" + bytes([len(payload)]) + payload
