"""Ask a CNI plugin for its versions: run it, bounded in time and output, and believe nothing that it says without looking.

The one place where the daemon starts a process. `subprocess` uses vfork(2), so that the size of the daemon does not matter.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path

from ipamd.model.cniresult import parse_versions
from ipamd.model.errors import PluginLackingError
from ipamd.model.words import printable

ANSWER_S = 5.0
"""Ours: a plugin of Go needs 10 ms for VERSION; a node that has just booted may need a second to read it from the disk."""

OUTPUT_BYTES_MAX = 65536
SHOWN_MAX = 120
"""Characters of an answer that status shows. Ours."""

NO_INTERPRETER = "the interpreter or loader that it names is not in the daemon's container"

REQUEST = b'{"cniVersion":"1.1.0"}'
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ask_versions(path: Path, *, timeout_s: float = ANSWER_S) -> tuple[str, ...]:
    """Run the plugin with VERSION. Returns: the versions that it speaks.

    Raises: PluginLackingError with what it answered instead, and what to do.
    """
    # Source of the placeholders: github.com/containernetworking/cni pkg/invoke/exec.go; plugins on an old skel demand them.
    environment = {"CNI_COMMAND": "VERSION", "CNI_NETNS": "dummy", "CNI_IFNAME": "dummy", "CNI_PATH": "dummy", "PATH": PATH}
    try:
        output, status = _run(path, environment, timeout_s)
    except OSError as error:
        cause = NO_INTERPRETER if isinstance(error, FileNotFoundError) and path.exists() else error.strerror or error
        raise PluginLackingError(f"{path} cannot be run: {cause}", details=_ADVICE) from error
    if output is None:
        raise PluginLackingError(
            f"{path} gave no answer to VERSION of at most {OUTPUT_BYTES_MAX} bytes within {timeout_s:g} s", details=_ADVICE
        )
    said = printable(output.decode(errors="replace").strip(), most=SHOWN_MAX) or "nothing"
    if status:
        raise PluginLackingError(f"{path} ended with {status} when asked VERSION, and said: {said}", details=_ADVICE)
    try:
        return parse_versions(output)
    except ValueError as error:
        raise PluginLackingError(f"{path} was asked VERSION: {error}; it said: {said}", details=_ADVICE) from error


_ADVICE = "put a plugin there that speaks CNI, for this machine, or do not chain it"


def _run(path: Path, environment: dict[str, str], timeout_s: float) -> tuple[bytes | None, int]:
    """Output, None if it did not end in time or said too much, and exit status; the process group is gone afterwards."""
    reader, writer = os.pipe()
    os.write(writer, REQUEST)  # far less than a pipe holds
    os.close(writer)
    try:
        process = subprocess.Popen(
            [path],
            env=environment,
            cwd="/",
            stdin=reader,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(reader)
    with process:
        assert process.stdout is not None
        deadline_monotonic_s = time.monotonic() + timeout_s
        try:
            output = _read(process.stdout.fileno(), deadline_monotonic_s)
            if output is not None and not _has_ended(process.pid, deadline_monotonic_s):
                output = None
        finally:
            # Its leader is not reaped yet, so the group is the plugin's own, with what it left behind.
            os.killpg(process.pid, signal.SIGKILL)
    return output, process.returncode


def _has_ended(pid: int, deadline_monotonic_s: float) -> bool:
    """Wait for a process's end without reaping it."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(deadline_monotonic_s - time.monotonic(), 0) * 1000))
    finally:
        os.close(descriptor)


def _read(descriptor: int, deadline_monotonic_s: float) -> bytes | None:
    """Everything until the end of the stream; None if it does not come in time, or is too long."""
    output = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (left_s := deadline_monotonic_s - time.monotonic()) > 0 and len(output) <= OUTPUT_BYTES_MAX:
        if not poll.poll(left_s * 1000):
            return None
        chunk = os.read(descriptor, OUTPUT_BYTES_MAX)
        if not chunk:
            return output
        output += chunk
    return None
