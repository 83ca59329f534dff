"""The plugin's only interface to the operating system, as a Protocol; for type checkers, never imported at run time.

CPython's implementation is `_cni.py`; MicroPython's is a C module with the same name and functions. There are few functions, all
on file descriptors, so that the C module stays small. Failures are `OSError` with an `errno`; an expired wait is ETIMEDOUT. Paths
are str; data of pipes and sockets is bytes. Rejected: file and socket objects (two implementations that must behave alike).
"""

from __future__ import annotations

from typing import NoReturn, Protocol


class System(Protocol):
    """What the plugin asks of the kernel. `wait_ms` bounds one call; 0 or less means "only if ready at once"."""

    def monotonic_ms(self) -> int:
        """Milliseconds that never go back."""

    def boottime_ms(self) -> int:
        """Milliseconds since the boot, sleep included: the same for every process of this boot (CLOCK_BOOTTIME)."""

    def unique(self) -> str:
        """A file name part that no other process of this boot produces: pid and monotonic nanoseconds."""

    def env(self, name: str) -> bytes | None:
        """One environment variable, undecoded."""

    def read(self, fd: int, count: int, wait_ms: int) -> bytes:
        """1 to `count` bytes, or b"" at end of file."""

    def write(self, fd: int, data: bytes, wait_ms: int) -> int:
        """Write a part of `data` without blocking longer than `wait_ms`; how much was taken. EPIPE, never SIGPIPE."""

    def read_file(self, path: str, count: int) -> bytes:
        """The first `count` bytes of a file, by one read: O_RDONLY|O_NONBLOCK|O_NOFOLLOW|O_CLOEXEC."""

    def connect(self, path: str) -> int:
        """A connected, non-blocking, close-on-exec Unix stream socket. EAGAIN when the listener's queue is full."""

    def close(self, fd: int) -> None:
        """Close; frees any flock held through it."""

    def sleep_ms(self, duration_ms: int) -> None:
        """Sleep."""

    def euid(self) -> int:
        """Effective user ID."""

    def lstat(self, path: str) -> tuple[int, int]:
        """(st_mode, st_uid), links not followed."""

    def make_directory(self, path: str) -> None:
        """mkdir with mode 0700."""

    def open_lock(self, path: str) -> int:
        """Open or create for locking: O_RDWR|O_CREAT|O_NOFOLLOW|O_CLOEXEC, mode 0600."""

    def open_directory(self, path: str) -> int:
        """Open a directory, for `sync`."""

    def create(self, path: str) -> int:
        """Create a new file: O_WRONLY|O_CREAT|O_EXCL|O_NOFOLLOW|O_CLOEXEC, mode 0600. EEXIST if it is there."""

    def lock_shared(self, fd: int) -> bool:
        """flock(LOCK_SH|LOCK_NB); False when somebody holds it exclusively."""

    def sync(self, fd: int) -> None:
        """fsync."""

    def rename(self, source: str, target: str) -> None:
        """Atomically, within one directory."""

    def remove(self, path: str) -> None:
        """unlink."""

    def names(self, path: str) -> list[str]:
        """Entries of a directory without '.' and '..'."""

    def error_text(self, errno: int) -> str:
        """strerror."""

    def leave(self, status: int) -> NoReturn:
        """End the process now: no finalisers, no atexit."""
