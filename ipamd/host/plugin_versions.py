"""Ask a CNI plugin for its versions: run it, bounded in time and output, and check its answer.

Besides plugins, the daemon starts only the process that calls EC2 (`ipamd/cloud/child.py`). `subprocess` uses vfork(2), so a start
does not take longer in a large daemon.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from pathlib import Path

from ipamd.model.chain_versions import parse_versions
from ipamd.model.errors import PluginLackingError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.words import printable

ANSWER_S = 5.0
"""Longest time in seconds for an answer. Ours: always enough, because a plugin in Go needs 10 ms for VERSION, and a node that has just
booted may need a second to read the plugin from the disk."""

OUTPUT_BYTES_MAX = 65536
"""The largest number of bytes that are read of a plugin's answer to VERSION. Ours: an answer has about 100 bytes, and a plugin that
writes without an end must not fill the daemon's memory. 64 KiB are what a pipe holds."""

SHOWN_MAX = 120
"""The largest number of characters of an answer that `ipamctl status` shows. Ours: one line."""

NO_INTERPRETER = "the interpreter or loader that it names is not in the daemon's container"

REQUEST = b'{"cniVersion":"1.1.0"}'

PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ask_versions(path: Path, *, timeout_s: float = ANSWER_S) -> tuple[str, ...]:
    """Run a plugin with the command VERSION. Returns: the CNI versions that it has.

    Raises: PluginLackingError, with the unexpected answer and advice, if it cannot be run or does not answer correctly.
    """
    # Plugins that use an old version of the CNI library demand these variables even for VERSION.
    # Source of the values: github.com/containernetworking/cni pkg/invoke/exec.go.
    environment = {"CNI_COMMAND": "VERSION", "CNI_NETNS": "dummy", "CNI_IFNAME": "dummy", "CNI_PATH": "dummy", "PATH": PATH}
    try:
        output, status = _run(path, environment, timeout_s)
    except OSError as error:
        cause = NO_INTERPRETER if isinstance(error, FileNotFoundError) and path.exists() else error.strerror or error
        raise failure(PluginLackingError, FailureCode.PLUGIN_NOT_RUN, path=path, cause=cause, advice=_ADVICE) from error
    if output is None:
        raise failure(
            PluginLackingError,
            FailureCode.PLUGIN_SILENT,
            path=path,
            limit=OUTPUT_BYTES_MAX,
            wait_s=f"{timeout_s:g}",
            advice=_ADVICE,
        )
    quoted = printable(output.decode(errors="replace").strip(), most=SHOWN_MAX) or "nothing"
    if status:
        raise failure(PluginLackingError, FailureCode.PLUGIN_FAILED, path=path, status=status, answer=quoted, advice=_ADVICE)
    try:
        return parse_versions(output)
    except ValueError as error:
        raise failure(
            PluginLackingError, FailureCode.PLUGIN_ANSWER_ODD, path=path, cause=error, answer=quoted, advice=_ADVICE
        ) from error


_ADVICE = "put a plugin there that speaks CNI, for this machine, or do not chain it"


def _run(path: Path, environment: dict[str, str], timeout_s: float) -> tuple[bytes | None, int]:
    """Run a plugin, and then kill its process group. Returns: the output, and the exit status.

    The output is None if it is too long, or if the plugin does not end in time.
    """
    reader, writer = os.pipe()
    os.write(writer, REQUEST)  # does not block, because a pipe holds far more
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
            # The plugin is not reaped yet, so no other process group can have its ID. Its children are killed too.
            os.killpg(process.pid, signal.SIGKILL)
    return output, process.returncode


def _has_ended(pid: int, deadline_monotonic_s: float) -> bool:
    """Wait until a process ends, without reaping it. Returns: False if it does not end in time."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(deadline_monotonic_s - time.monotonic(), 0) * 1000))
    finally:
        os.close(descriptor)


def _read(descriptor: int, deadline_monotonic_s: float) -> bytes | None:
    """Read a stream to its end; None if the end does not come in time, or if the output is too long."""
    output = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while len(output) <= OUTPUT_BYTES_MAX:
        left_s = deadline_monotonic_s - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return None
        chunk = os.read(descriptor, OUTPUT_BYTES_MAX)
        if not chunk:
            return output
        output += chunk
    return None
