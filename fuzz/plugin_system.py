"""The seam of the plugin in memory: environment, standard input, run directory, spool, a peer, and a clock that only waits move.

So a run of the plugin costs no process, and a deadline of a minute passes in no time. Each call takes a millisecond of this clock,
so a loop that waits for nothing passes its deadline too.
"""

from __future__ import annotations

import errno
import os
from typing import NoReturn

from cni_plugin._cni import System
from fuzz.target import Case, blob, pieces

ROOT_DIRECTORY, STRANGE_DIRECTORY, OPEN_DIRECTORY = (0o040700, 0), (0o040700, 1234), (0o040777, 0)
FILE, LINK, SOCKET, STRANGE_SOCKET = (0o100600, 0), (0o120777, 0), (0o140600, 0), (0o140600, 1234)
DIRECTORIES = {"good": ROOT_DIRECTORY, "stranger": STRANGE_DIRECTORY, "open": OPEN_DIRECTORY, "file": FILE, "link": LINK}
SOCKETS = {"stranger": STRANGE_SOCKET, "file": FILE, "link": LINK}
CONNECTED, LOCK, ENTRY, DIRECTORY = 10, 11, 12, 13


class MemorySystem(System):
    """The plugin's `System`.

    A case: `env`, `stdin`, `stdin_end` ("eof", "stall" or an errno), `run_dir` (a key of DIRECTORIES or "absent"), `socket` ("good",
    "absent", "full", a key of SOCKETS, or the errno of connect), `peer` (what it sends), `peer_head` (what it sends before that, in a
    read of its own, so that the whole request is sent before `peer` is read), `peer_end` ("eof", "stall" or an errno),
    `spool` ("good", "full", "locked", or "CALL:ERRNO" for a call that fails), `chunk` (bytes per read).
    """

    def __init__(self, case: Case) -> None:
        self.now_ms = 1_000_000
        self.stdout = b""
        self.sent = b""
        self.entries: dict[str, bytes] = {}
        self.connection_count = 0
        self._case = case
        self._chunk = max(1, int(case.get("chunk", 16384)))
        self._stdin = blob(case.get("stdin", b""))
        self._peer = self._head = b""
        self._pieces = pieces(b"")
        failing, _, number = str(case.get("spool", "good")).partition(":")
        self._failing, self._errno = failing, int(number or 0)

    def monotonic_ms(self) -> int:
        """See the seam; likewise below."""
        self.now_ms += 1
        return self.now_ms

    def boottime_ms(self) -> int:
        return self.now_ms

    def read_file(self, path: str, count: int) -> bytes:
        del path, count
        raise OSError(errno.ENOENT, "a daemon that has never served")

    def unique(self) -> str:
        return f"1-{self.now_ms}"

    def env(self, name: str) -> bytes | None:
        found = self._case["env"].get(name)
        return None if found is None else bytes(found)

    def read(self, fd: int, count: int, wait_ms: int) -> bytes:
        if fd == 0:
            data, end = self._stdin, self._case.get("stdin_end", "eof")
        else:
            self._peer = self._peer or next(filter(None, self._pieces), b"")
            data, end = self._head or self._peer, self._case.get("peer_end", "eof")
        if data:
            return self._taken(fd, min(count, self._chunk))
        if end == "stall":
            self.now_ms += max(wait_ms, 0)
            raise OSError(errno.ETIMEDOUT, "timed out")
        if end != "eof":
            raise OSError(int(end), "failed")
        return b""

    def write(self, fd: int, data: bytes, wait_ms: int) -> int:
        self.now_ms += 1
        if fd == 1:
            self.stdout += data
        elif fd == CONNECTED:
            if self._case.get("peer_end") == errno.EPIPE:
                raise OSError(errno.EPIPE, "failed")
            self.sent += data
        else:
            self._fail("write")
            self.entries[self._open] += data
        return len(data)

    def connect(self, path: str) -> int:
        self.connection_count += 1
        kind = self._case.get("socket", "good")
        if kind == "full":
            raise OSError(errno.EAGAIN, "failed")
        if isinstance(kind, int):
            raise OSError(kind, "failed")
        self._head, self._peer, self._pieces = self._case.get("peer_head", b""), b"", pieces(self._case.get("peer", b""))
        self.sent = b""
        return CONNECTED

    def close(self, fd: int) -> None:
        return

    def sleep_ms(self, duration_ms: int) -> None:
        self.now_ms += duration_ms

    def euid(self) -> int:
        return 0

    def lstat(self, path: str) -> tuple[int, int]:
        self.now_ms += 1
        if path.endswith("/ipamd.sock"):
            kind = self._case.get("socket", "good")
            found = SOCKETS.get(kind, SOCKET) if kind != "absent" else None
        elif path.endswith("/spool"):
            found = ROOT_DIRECTORY
        else:
            found = DIRECTORIES.get(self._case.get("run_dir", "good"))
        if found is None:
            raise OSError(errno.ENOENT, "failed")
        return found

    def make_directory(self, path: str) -> None:
        self._fail("make_directory")
        raise OSError(errno.EEXIST, "failed")

    def open_lock(self, path: str) -> int:
        self._fail("open_lock")
        return LOCK

    def open_directory(self, path: str) -> int:
        self._fail("open_directory")
        return DIRECTORY

    def create(self, path: str) -> int:
        self._fail("create")
        self._open = path
        self.entries[path] = b""
        return ENTRY

    def lock_shared(self, fd: int) -> bool:
        self._fail("lock_shared")
        return self._failing != "locked"

    def sync(self, fd: int) -> None:
        self._fail("sync")

    def rename(self, source: str, target: str) -> None:
        self._fail("rename")
        self.entries[target] = self.entries.pop(source)

    def remove(self, path: str) -> None:
        self.entries.pop(path, None)

    def names(self, path: str) -> list[str]:
        self._fail("names")
        return [f"del-{number}" for number in range(256)] if self._failing == "full" else ["del-1", ".tmp-2"]

    def error_text(self, number: int) -> str:
        return os.strerror(number)

    def leave(self, status: int) -> NoReturn:
        raise AssertionError("run() does not leave")

    def _taken(self, fd: int, count: int) -> bytes:
        if fd == 0:
            taken, self._stdin = self._stdin[:count], self._stdin[count:]
        elif self._head:
            taken, self._head = self._head[:count], self._head[count:]
        else:
            taken, self._peer = self._peer[:count], self._peer[count:]
        return taken

    def _fail(self, call: str) -> None:
        self.now_ms += 1
        if call == self._failing:
            raise OSError(self._errno, "failed")
