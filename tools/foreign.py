"""Run a command that may execute another architecture's programs: `foreign.py ARCH COMMAND...` (ARCH as Debian names it).

Where the machine is of that architecture, or has Debian's QEMU (qemu-user-static) registered with binfmt_misc, the command is run
as it is. Elsewhere the command runs in a user namespace with its own binfmt_misc (Linux 6.7 and later), in which QEMU is registered.
So nothing changes for the machine, and nothing is left behind. User ids in the namespace are the same as outside, so files that the
command makes have the same owner as if it ran outside. But in the namespace no device files can be made, and the machine's networks
cannot be changed. Needs root. Needs no Python package.
Source: https://docs.kernel.org/admin-guide/binfmt-misc.html; Linux commit 21ca59b365c0, binfmt_misc: enable sandboxed mounts.
"""

from __future__ import annotations

import ctypes
import os
import platform
import sys
from pathlib import Path

MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Debian's name of an architecture -> the name that the kernel and QEMU use."""

BINFMT = Path("/proc/sys/fs/binfmt_misc")
RULES = Path("/usr/lib/binfmt.d")
"""The folder in which qemu-user-static has, for each architecture, a file with the line that registers QEMU with binfmt_misc."""

CLONE_NEWNS, CLONE_NEWUSER = 0x00020000, 0x10000000
"""Source: linux/sched.h."""

libc = ctypes.CDLL(None, use_errno=True)


def main(argv: list[str]) -> int:
    """Replace this process by the command.

    Returns only if this fails: 2 for a wrong command line, 1 if QEMU cannot be registered or the command cannot be executed.
    """
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
    """Whether QEMU is registered and enabled with flag F: the kernel then keeps its file open, so that it works below any root."""
    try:
        lines = (BINFMT / f"qemu-{machine}").read_text().splitlines()
    except OSError:
        return False
    return lines[0] == "enabled" and any(line.startswith("flags:") and "F" in line for line in lines)


def _enter_namespaces() -> None:
    """Enter a new user namespace and a new mount namespace. Raises: OSError."""
    # A process inside the new user namespace may map only one user id to it. To map all of them a process must be outside. So a child
    # is made first: it stays outside, waits until this process is inside, and then writes the maps.
    reader, writer = os.pipe()
    maps = {name: _identity(Path("/proc/self", name).read_text()) for name in ("uid_map", "gid_map")}
    target = Path(f"/proc/{os.getpid()}")
    child = os.fork()
    if child == 0:
        os.close(writer)
        os.read(reader, 1)  # returns when the parent closes its end of the pipe
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
    """Return an id map for a new namespace that maps each user or group id of the present namespace to itself.

    `text`: the map of the present namespace; each line has the first id inside, the first id outside, and how many ids follow.
    """
    return "".join(f"{inside} {inside} {count}\n" for inside, _, count in (line.split() for line in text.splitlines()))


def _register(rule: bytes) -> None:
    """Mount this user namespace's own binfmt_misc, and register QEMU there by its rule. Raises: OSError."""
    _checked(libc.mount(b"binfmt_misc", bytes(BINFMT), b"binfmt_misc", 0, None), f"mount {BINFMT}")
    (BINFMT / "register").write_bytes(rule)


def _checked(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
