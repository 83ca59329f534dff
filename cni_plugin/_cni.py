"""CPython's stand-in for MicroPython's C module `_cni`; `seam.py` says what each function promises.

It calls the extension modules under the standard library directly: `socket` alone costs 6 ms to import, `_socket`, `select` and
`posix` next to nothing (built into Debian's interpreter). `fcntl` is only needed to spool and is imported then.
Waiting is always poll before read or write, so that a peer that stalls costs at most its wait.
"""

import posix
import sys
import time

import _socket
import select

POLL_IN = 1  # poll(2); hang-up and error are always reported
POLL_OUT = 4
ETIMEDOUT = 110


def monotonic_ms() -> int:
    return time.monotonic_ns() // 1000000


def unique() -> str:
    return "%d-%d" % (posix.getpid(), time.monotonic_ns())


def env(name: str) -> "bytes | None":
    return posix.environ.get(name.encode())


def read(fd: int, count: int, wait_ms: int) -> bytes:
    _wait(fd, POLL_IN, wait_ms)
    return posix.read(fd, count)


def write(fd: int, data: bytes, wait_ms: int) -> int:
    _wait(fd, POLL_OUT, wait_ms)
    return posix.write(fd, data)


def connect(path: str) -> int:
    sock = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)  # CPython sets close-on-exec
    try:
        sock.setblocking(False)
        sock.connect(path.encode())
        return sock.detach()
    finally:
        sock.close()  # nothing once detached


def close(fd: int) -> None:
    posix.close(fd)


def sleep_ms(duration_ms: int) -> None:
    time.sleep(duration_ms / 1000)


def euid() -> int:
    return posix.geteuid()


def lstat(path: str) -> "tuple[int, int]":
    found = posix.lstat(path.encode())
    return found.st_mode, found.st_uid


def make_directory(path: str) -> None:
    posix.mkdir(path.encode(), 0o700)


def open_lock(path: str) -> int:
    return posix.open(path.encode(), posix.O_RDWR | posix.O_CREAT | posix.O_NOFOLLOW | posix.O_CLOEXEC, 0o600)


def open_directory(path: str) -> int:
    return posix.open(path.encode(), posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)


def create(path: str) -> int:
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    return posix.open(path.encode(), flags, 0o600)


def lock_shared(fd: int) -> bool:
    import fcntl

    try:
        fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def sync(fd: int) -> None:
    posix.fsync(fd)


def rename(source: str, target: str) -> None:
    posix.rename(source.encode(), target.encode())


def remove(path: str) -> None:
    posix.unlink(path.encode())


def names(path: str) -> "list[str]":
    return [name.decode("utf-8", "replace") for name in posix.listdir(path.encode())]


def error_text(errno: int) -> str:
    return posix.strerror(errno)


def leave(status: int) -> None:
    posix._exit(status)


def _wait(fd: int, event: int, wait_ms: int) -> None:
    poller = select.poll()
    poller.register(fd, event)
    if not poller.poll(max(wait_ms, 0)):
        raise OSError(ETIMEDOUT, "timed out")


if sys.platform != "linux":
    raise ImportError("vpc-cni runs on Linux only")
