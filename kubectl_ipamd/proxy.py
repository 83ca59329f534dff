"""Reach the API server through one `kubectl proxy` on a Unix socket.

kubectl authenticates once for all requests, in the way that the operator's kubeconfig asks for. The proxy passes only requests that
read, so no defect here can change the cluster. The socket is in a directory that only the operator can enter.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from kubectl_ipamd.errors import CommandLineError, NoAnswerError
from kubectl_ipamd.kubectl import Kubectl, last_words

START_S = 20.0
"""Longest wait for the socket. Ours: kubectl takes a tenth of a second; with a slow disk, or if `kubectl` is a script that first looks
for the right version, a few seconds. 20 s are enough for both."""

END_S = 5.0
"""Longest wait for kubectl's end after SIGTERM, before SIGKILL. Ours: kubectl ends at once, unless it hangs."""

PAUSE_S = 0.02
"""Pause between two looks for the socket. Ours: short beside the tenth of a second that kubectl takes, because each command waits for
it."""

CHANGING_METHODS = "POST,PUT,PATCH,DELETE"


@contextmanager
def api_socket(kubectl: Kubectl) -> Iterator[Path]:
    """Run `kubectl proxy` and yield the path of its socket. Raises: NoAnswerError if kubectl does not serve."""
    if not hasattr(socket, "AF_UNIX"):
        raise CommandLineError("this system has no Unix sockets: use Linux, macOS or WSL")
    with tempfile.TemporaryDirectory(prefix="ipamd-") as folder:
        path, log = Path(folder) / "api", Path(folder) / "log"
        process = _started(kubectl, path, log)
        try:
            _wait_for(path, process, log)
            yield path
        finally:
            _end(process)


def _started(kubectl: Kubectl, path: Path, log: Path) -> subprocess.Popen[bytes]:
    words = ("proxy", f"--unix-socket={path}", f"--reject-methods={CHANGING_METHODS}")
    with log.open("wb") as stream:
        try:
            # In a session of its own, for two reasons: Ctrl-C then signals this program only, which ends kubectl in order. And
            # `kubectl` may be a script that starts the real kubectl: the signal to the process group (_end) reaches both.
            return subprocess.Popen(
                kubectl.command(*words), stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
            )
        except OSError as error:
            raise NoAnswerError(f"{kubectl.program} cannot be started: {error.strerror}") from error


def _wait_for(path: Path, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + START_S
    while not _takes_connections(path):
        if process.poll() is not None:
            raise NoAnswerError(f"`kubectl proxy` ended with status {process.returncode}: {last_words(log.read_bytes())}")
        if time.monotonic() > deadline:
            raise NoAnswerError(f"`kubectl proxy` does not serve within {START_S:.0f} s: {last_words(log.read_bytes())}")
        time.sleep(PAUSE_S)


def _takes_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(path))
        except OSError:
            return False
    return True


def _end(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(END_S)
