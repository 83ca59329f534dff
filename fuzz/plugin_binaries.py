"""The plugin as programs: the interpreted file, built for the occasion, and `build/vpc-cni` where `make plugin` has made it."""

from __future__ import annotations

import contextlib
import os
import resource
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from cni_plugin.build import build
from fuzz.target import Violation

PYTHON = Path("/usr/bin/python3")
ONE_FILE = Path("build/vpc-cni")
ELF = b"\x7fELF"
INTERPRETED = "vpc-cni-interpreted"
NAMES = ("interpreted", "one file")

WAIT_S = 40.0
"""Ours: no case gives a reason to wait, and a busy machine is given time."""

RESIDENT_BYTES_MAX = 160 << 20
"""Of one plugin process. Ours: an interpreter with the largest configuration has 40 MiB; fork shows the worker's own size too."""


@dataclass(frozen=True)
class Ended:
    """What the runtime sees."""

    status: int
    stdout: bytes
    stderr: bytes


def programs(directory: Path) -> dict[str, Path]:
    """Make what can be run here: name -> path."""
    found = {}
    if PYTHON.exists():
        found["interpreted"] = directory / INTERPRETED
        build(PYTHON, found["interpreted"])
    if ONE_FILE.exists() and ONE_FILE.read_bytes()[:4] == ELF:
        found["one file"] = ONE_FILE.absolute()
    return found


def run(program: Path, env: Mapping[str, bytes], stdin: bytes, *, stdin_kind: str, directory: Path) -> Ended:
    """Run the plugin to its end. Raises: Violation if it is late, or grew."""
    command, source = [str(program)], subprocess.PIPE
    with contextlib.ExitStack() as opened:
        if stdin_kind == "closed":
            command = ["/bin/sh", "-c", 'exec "$0" <&-', *command]
        elif stdin_kind != "pipe":
            source = opened.enter_context(_opened(stdin_kind, stdin, directory))
        process = subprocess.Popen(command, env=dict(env), stdin=source, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd="/")
        try:
            stdout, stderr = process.communicate(stdin if source == subprocess.PIPE else None, timeout=WAIT_S)
        except subprocess.TimeoutExpired:
            raise Violation("late", f"the process did not end within {WAIT_S:.0f} s") from None
        finally:
            process.kill()
            process.wait()
    resident = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * 1024
    if resident > RESIDENT_BYTES_MAX:
        raise Violation("memory", f"a process had {resident >> 20} MiB, {RESIDENT_BYTES_MAX >> 20} are allowed")
    return Ended(process.returncode, stdout, stderr)


@contextlib.contextmanager
def _opened(kind: str, stdin: bytes, directory: Path):  # type: ignore[no-untyped-def]  # a context manager of int
    if kind == "file":
        path = directory / "stdin"
        path.write_bytes(stdin)
    else:
        path = {"directory": directory, "null": Path("/dev/null")}[kind]
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
