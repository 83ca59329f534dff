"""`_cni` for MicroPython's stock unix port, through its ffi: lets the tests run the whole plugin on the other runtime.

Not what is installed: there `_cni` is a C module frozen into a port of our own. x86-64 glibc only (struct stat, errno).
"""

import os
import struct

import ffi
import uctypes

_libc = ffi.open("libc.so.6")
_read = _libc.func("l", "read", "iPL")
_write = _libc.func("l", "write", "iPL")
_poll = _libc.func("i", "poll", "Pli")
_socket = _libc.func("i", "socket", "iii")
_connect = _libc.func("i", "connect", "iPi")
_close = _libc.func("i", "close", "i")
_usleep = _libc.func("i", "usleep", "i")
_geteuid = _libc.func("i", "geteuid", "")
_getpid = _libc.func("i", "getpid", "")
_lstat = _libc.func("i", "lstat", "sP")
_mkdir = _libc.func("i", "mkdir", "si")
_open = _libc.func("i", "open", "sii")
_flock = _libc.func("i", "flock", "ii")
_fsync = _libc.func("i", "fsync", "i")
_rename = _libc.func("i", "rename", "ss")
_unlink = _libc.func("i", "unlink", "s")
_strerror = _libc.func("s", "strerror", "i")
_exit = _libc.func("v", "_exit", "i")
_getenv = _libc.func("P", "getenv", "s")
_strlen = _libc.func("l", "strlen", "P")
_clock = _libc.func("i", "clock_gettime", "iP")
_errno = _libc.func("P", "__errno_location", "")
_signal = _libc.func("P", "signal", "ii")
_signal(13, 1)  # SIGPIPE, SIG_IGN

O_NOFOLLOW, O_CLOEXEC, O_DIRECTORY = 0o400000, 0o2000000, 0o200000


def _check(result):
    if result < 0:
        raise OSError(struct.unpack("i", uctypes.bytearray_at(_errno(), 4))[0])
    return result


def _nanoseconds():
    buffer = bytearray(16)
    _clock(1, buffer)
    seconds, nanoseconds = struct.unpack("qq", buffer)
    return seconds * 1000000000 + nanoseconds


def monotonic_ms():
    return _nanoseconds() // 1000000


def unique():
    return str(_getpid()) + "-" + str(_nanoseconds())


def env(name):
    pointer = _getenv(name)
    return bytes(uctypes.bytearray_at(pointer, _strlen(pointer))) if pointer else None


def read(fd, count, wait_ms):
    _wait(fd, 1, wait_ms)
    buffer = bytearray(count)
    return bytes(buffer[: _check(_read(fd, buffer, count))])


def write(fd, data, wait_ms):
    _wait(fd, 4, wait_ms)
    return _check(_write(fd, data, len(data)))


def connect(path):
    fd = _check(_socket(1, 1 | 0o4000 | O_CLOEXEC, 0))
    address = struct.pack("H", 1) + path.encode() + b"\x00"
    try:
        _check(_connect(fd, address, len(address)))
    except OSError:
        _close(fd)
        raise
    return fd


def close(fd):
    _check(_close(fd))


def sleep_ms(duration_ms):
    _usleep(duration_ms * 1000)


def euid():
    return _geteuid()


def lstat(path):
    buffer = bytearray(144)
    _check(_lstat(path, buffer))
    return struct.unpack("II", buffer[24:32])


def make_directory(path):
    _check(_mkdir(path, 0o700))


def open_lock(path):
    return _check(_open(path, 2 | 0o100 | O_NOFOLLOW | O_CLOEXEC, 0o600))


def open_directory(path):
    return _check(_open(path, O_DIRECTORY | O_CLOEXEC, 0))


def create(path):
    return _check(_open(path, 1 | 0o100 | 0o200 | O_NOFOLLOW | O_CLOEXEC, 0o600))


def lock_shared(fd):
    try:
        _check(_flock(fd, 1 | 4))
    except OSError as exc:
        if exc.errno != 11:
            raise
        return False
    return True


def sync(fd):
    _check(_fsync(fd))


def rename(source, target):
    _check(_rename(source, target))


def remove(path):
    _check(_unlink(path))


def names(path):
    return [entry[0] for entry in os.ilistdir(path)]


def error_text(errno):
    return _strerror(errno)


def leave(status):
    _exit(status)


def _wait(fd, event, wait_ms):
    if _check(_poll(struct.pack("ihh", fd, event, 0), 1, max(wait_ms, 0))) == 0:
        raise OSError(110)
