"""Run real daemons of Debian packages on a lab node, beside ours: systemd-networkd, NetworkManager, firewalld, Docker.

The daemons run in the node's network and process namespaces, without systemd as process 1. Their programs are in a separate Debian
root that `tools/setup.sh heavy` makes with mmdebstrap. The packages are not installed on the machine itself, because such a daemon
would take over the machine's network at the machine's next boot.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.node.errors import NodeError
from lab.node.node import REPOSITORY, Node
from lab.node.process import NodeProcess

DEBIAN_ROOT = REPOSITORY / "build" / "heavy" / "neighbours"
SCRIPT = Path(__file__).with_name("neighbour.sh")
COMMAND_TIMEOUT_S = 60.0
END_TIMEOUT_S = 30.0


class Neighbour:
    """One daemon of another project on one node. Use it as a context: at its end the daemon is killed. Concurrency: one thread."""

    def __init__(self, node: Node, argv: Sequence[str], *, files: Mapping[str, str]) -> None:
        """Write the files; the daemon is not started yet.

        Args:
            argv: the daemon in the Debian root, with its arguments.
            files: path below /, such as `etc/systemd/networkd.conf` -> content.
        """
        self._node = node
        self._argv = list(argv)
        self._folder = Path(tempfile.mkdtemp(prefix="neighbour-"))
        self._log = self._folder / "log"
        self._process: NodeProcess | None = None
        (self._folder / "files" / "etc").mkdir(parents=True)
        for path, content in files.items():
            place = self._folder / "files" / path
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(content)

    def __enter__(self) -> Neighbour:
        """Start the daemon."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """End the daemon and remove its files."""
        self.stop()
        shutil.rmtree(self._folder)

    @property
    def log(self) -> str:
        """The text that the daemon wrote to standard output and standard error, over all its runs."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def start(self) -> None:
        """Start the daemon. It finds the files that its last run left in its root and in /run.

        Raises: NodeError if it cannot be executed.
        """
        argv = ["unshare", "--mount", "sh", str(SCRIPT), str(DEBIAN_ROOT), str(self._folder), *self._argv]
        with self._log.open("ab") as log:
            self._process = self._node.spawn(argv, stdout=log, stderr=log)

    def stop(self) -> None:
        """End the daemon as systemd does: with SIGTERM, and after END_TIMEOUT_S with SIGKILL. Idempotent."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_TIMEOUT_S)
        self._process = None

    def restart(self) -> None:
        """End the daemon and start it again."""
        self.stop()
        self.start()

    def run(self, *argv: str) -> str:
        """Run a command in the root and the namespaces of the daemon. Returns: its output.

        Raises: NodeError if the command fails, or the daemon has ended.
        """
        if self._process is None or self._process.poll() is not None:
            raise NodeError(f"{self._argv[0]} has ended: {self.log[-2000:]}")
        enter = ["nsenter", "--target", str(self._process.pid), "--mount", "--net", "--pid", "--ipc", "--root", "--wd=/"]
        done = subprocess.run(
            [*enter, *argv],
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
            cwd="/",
            stdin=subprocess.DEVNULL,
        )
        if done.returncode:
            raise NodeError(f"{' '.join(argv)} ended with {done.returncode}: {done.stderr or done.stdout}")
        return done.stdout

    def answers(self, *argv: str) -> bool:
        """Whether a command in the root and the namespaces of the daemon succeeds, such as a client that calls the daemon."""
        try:
            self.run(*argv)
        except NodeError:
            return False
        return True
