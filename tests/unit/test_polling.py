"""The queues of the server and of the runtime's stream do not wake each other: none waits by a set of descriptors that all share."""

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import os, sys
from pathlib import Path
from ipamd import daemon
os.environ |= {"VPC_IPAMD_MAX_CONCURRENT_REQUESTS": "no number"}
path = Path(sys.argv.pop())
assert daemon.main() == daemon.EXIT_SETTINGS
from ipamd.rpc.server import UnixServer
server = UnixServer(path, max_rpcs=2, max_connections=2, max_request_bytes=100, advice="", add=lambda _: None)
server.start()
open_now = [os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if os.path.islink(f"/proc/self/fd/{name}")]
print("anon_inode:[eventfd]" in open_now, "anon_inode:[eventpoll]" in open_now)
server.stop(0)
"""


def test_grpc_waits_without_epoll(tmp_path: Path) -> None:
    """As the daemon's process begins, before its settings are read; two queues that share a set wake up twice as often."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "s")], capture_output=True, text=True, timeout=120, check=True
    )
    assert done.stdout.split() == ["True", "False"]
