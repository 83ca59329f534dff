"""The plugin's only interface to the operating system, for CPython. For MicroPython a C module has the same name and functions.

There are few functions, and they use file descriptors, so that the C module stays small. Failures are `OSError` with an `errno`; an
expired wait has the errno ETIMEDOUT. Paths are str; data of pipes and sockets is bytes. Rejected: file and socket objects, because
both implementations would have to behave alike in many details.
This module imports the C modules behind the standard library directly: importing `socket` takes 6 ms, while `_socket`, `select` and
`posix` take almost no time (they are built into Debian's interpreter). `fcntl` is imported only when the spool takes its lock.
`read` and `write` poll first, so that a peer that stalls cannot block the plugin longer than the given wait.
"""

import _socket
import posix
import select
import sys
import time

POLL_IN = 1  # poll(2), which reports hang-up and error in any case
POLL_OUT = 4
ETIMEDOUT = 110


class System:
    """System calls of the plugin. They raise OSError.

    `wait_ms`: longest wait of one call in milliseconds. With 0 or less the call fails if it would have to wait.
    """

    def monotonic_ms(self) -> int:
        """Monotonic clock in milliseconds."""
        return time.monotonic_ns() // 1000000

    def boottime_ms(self) -> int:
        """Milliseconds since the boot, sleep included: the same for every process of this boot (CLOCK_BOOTTIME)."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000000

    def unique(self) -> str:
        """A part of a file name that no other call of this boot returns: pid and monotonic nanoseconds."""
        return "%d-%d" % (posix.getpid(), time.monotonic_ns())

    def env(self, name: str) -> "bytes | None":
        """The undecoded value of an environment variable; None if it is not set."""
        return posix.environ.get(name.encode())

    def read(self, fd: int, count: int, wait_ms: int) -> bytes:
        """1 to `count` bytes, or b"" at end of file."""
        _wait(fd, POLL_IN, wait_ms)
        return posix.read(fd, count)

    def write(self, fd: int, data: bytes, wait_ms: int) -> int:
        """Write a part of `data` without blocking longer than `wait_ms`. Returns: bytes written. Fails with EPIPE, never SIGPIPE."""
        _wait(fd, POLL_OUT, wait_ms)
        return posix.write(fd, data)

    def read_file(self, path: str, count: int) -> bytes:
        """The first `count` bytes of a file, by one read: O_RDONLY|O_NONBLOCK|O_NOFOLLOW|O_CLOEXEC."""
        fd = posix.open(path.encode(), posix.O_RDONLY | posix.O_NONBLOCK | posix.O_NOFOLLOW | posix.O_CLOEXEC)
        try:
            return posix.read(fd, count)
        finally:
            posix.close(fd)

    def connect(self, path: str) -> int:
        """Connect a non-blocking, close-on-exec Unix stream socket. Returns: its descriptor. EAGAIN: the listener's queue is full."""
        sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)  # CPython sets close-on-exec
        try:
            sock.setblocking(False)
            sock.connect(path.encode())
            return sock.detach()
        finally:
            sock.close()  # has no effect once detached

    def close(self, fd: int) -> None:
        """Close a descriptor. This also releases a lock that was taken through it."""
        posix.close(fd)

    def sleep_ms(self, duration_ms: int) -> None:
        """Sleep for this time; a signal does not shorten it."""
        time.sleep(duration_ms / 1000)

    def euid(self) -> int:
        """Effective user ID."""
        return posix.geteuid()

    def lstat(self, path: str) -> "tuple[int, int]":
        """(st_mode, st_uid), links not followed."""
        status = posix.lstat(path.encode())
        return status.st_mode, status.st_uid

    def make_directory(self, path: str) -> None:
        """mkdir with mode 0700."""
        posix.mkdir(path.encode(), 0o700)

    def open_lock(self, path: str) -> int:
        """Open or create a lock file: O_RDWR|O_CREAT|O_NOFOLLOW|O_CLOEXEC, mode 0600."""
        return posix.open(path.encode(), posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC, 0o600)

    def open_directory(self, path: str) -> int:
        """Open a directory, for `sync`."""
        return posix.open(path.encode(), posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)

    def create(self, path: str) -> int:
        """Create a new file: O_WRONLY|O_CREAT|O_EXCL|O_NOFOLLOW|O_CLOEXEC, mode 0600. EEXIST if it is there."""
        flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
        return posix.open(path.encode(), flags, 0o600)

    def lock_shared(self, fd: int) -> bool:
        """flock(LOCK_SH|LOCK_NB). Returns: False if another process holds the lock exclusively."""
        import fcntl

        try:
            fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def sync(self, fd: int) -> None:
        """fsync."""
        posix.fsync(fd)

    def rename(self, source: str, target: str) -> None:
        """Rename atomically, within one directory."""
        posix.rename(source.encode(), target.encode())

    def remove(self, path: str) -> None:
        """unlink."""
        posix.unlink(path.encode())

    def names(self, path: str) -> "list[str]":
        """Entries of a directory without '.' and '..'."""
        return [name.decode("utf-8", "replace") for name in posix.listdir(path.encode())]

    def error_text(self, errno: int) -> str:
        """strerror."""
        return posix.strerror(errno)

    def leave(self, status: int) -> None:
        """End the process now: no finalisers, no atexit."""
        posix._exit(status)


def _wait(fd: int, event: int, wait_ms: int) -> None:
    poller = select.poll()
    poller.register(fd, event)
    if not poller.poll(max(wait_ms, 0)):
        raise OSError(ETIMEDOUT, "timed out")


if sys.platform != "linux":
    raise ImportError("vpc-cni runs on Linux only")
