"""Run a command that may execute another architecture's programs: `foreign.py ARCH COMMAND...` (ARCH as Debian names it).

Where the machine is of that architecture, or has Debian's QEMU (qemu-user-static) registered with binfmt_misc, the command is run
as it is. Elsewhere it gets a user namespace with a binfmt_misc of its own (Linux 6.7 and later), in which QEMU is registered: nothing
changes for the machine, and nothing is left behind. Users have the same numbers in it, so files belong to whom they would belong
outside; but device files cannot be made in it, and networks of the machine cannot be changed. Needs root, and no package of Python.
Source: https://docs.kernel.org/admin-guide/binfmt-misc.html; Linux commit 21ca59b365c0, binfmt_misc: enable sandboxed mounts.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name -> the kernel's and QEMU's."""

BINFMT = Path("/proc/sys/fs/binfmt_misc")
RULES = Path("/usr/lib/binfmt.d")
"""Where qemu-user-static has the line that registers each of its programs."""

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
"""Source: linux/sched.h."""

libc = ctypes.CDLL(None, use_errno=True)


def main(argv: list[str]) -> int:
    """Become the command; returns only if that fails: 2 for a wrong call, 1 where QEMU cannot be registered."""
    if len(argv) < 2 or argv[0] not in MACHINES:
        print(f"usage: foreign.py {'|'.join(MACHINES)} COMMAND...", file=sys.stderr)
        return 2
    machine, command = MACHINES[argv[0]], argv[1:]
    if platform.machine() != machine and not _is_registered(machine):
        rule = RULES / f"qemu-{machine}.conf"
        if not rule.exists():
            return _cannot(f"no {rule}: Debian's package qemu-user-static has it")
        try:
            _enter_namespaces()
            _register(rule.read_bytes().strip())
        except OSError as error:
            return _cannot(
                f"QEMU cannot be registered in a user namespace ({error}). It takes root and Linux 6.7 or later; elsewhere"
                " have the machine register it (Debian: binfmt-support beside qemu-user-static)"
            )
    try:
        os.execvp(command[0], command)
    except OSError as error:
        return _cannot(f"{command[0]}: {error}")


def _cannot(reason: str) -> int:
    print(f"foreign: {reason}", file=sys.stderr)
    return 1


def _is_registered(machine: str) -> bool:
    """Whether every program finds QEMU, also below another root: the kernel has it open (flag F)."""
    try:
        lines = (BINFMT / f"qemu-{machine}").read_text().splitlines()
    except OSError:
        return False
    return lines[0] == "enabled" and any(line.startswith("flags:") and "F" in line for line in lines)


def _enter_namespaces() -> None:
    """Enter a user and a mount namespace of our own. Raises: OSError."""
    # Only a process outside may map other users than one; a child that waits for us to be inside is one.
    reader, writer = os.pipe()
    maps = {name: _identity(Path("/proc/self", name).read_text()) for name in ("uid_map", "gid_map")}
    target = Path(f"/proc/{os.getpid()}")
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # ends when the other side closes it
        try:
            for name, text in maps.items():
                (target / name).write_text(text)
        except OSError as error:
            os._exit(error.errno or 1)
        os._exit(0)
    try:
        _checked(libc.unshare(CLONE_NEWUSER | CLONE_NEWNS), "unshare")
    finally:
        os.close(writer)
        os.close(reader)
        _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise OSError(code, os.strerror(code), "uid_map, gid_map")


def _identity(text: str) -> str:
    """A map of each number that is known here to itself. `text`: lines of first number inside, outside, and count."""
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in (line.split() for line in text.splitlines()))


def _register(rule: bytes) -> None:
    """Mount this namespace's own list of formats, and write the rule to it. Raises: OSError."""
    _checked(libc.mount(b"binfmt_misc", bytes(BINFMT), b"binfmt_misc", 0, None), f"mount {BINFMT}")
    (BINFMT / "register").write_bytes(rule)


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
