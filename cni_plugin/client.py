"""The connection to the daemon: check that the socket can be trusted, connect, make one call within a deadline.

The plugin runs as root and gives a namespace to whoever answers, so it checks the run directory and the socket before use. Both must
belong to root (or to our own user, in tests), and only the owner may have write permission for the directory. Then nobody else can
have created the socket, nor replace it between the check and the connect. If the directory or the socket is missing, or if the kernel
has no memory or descriptors left, the daemon counts as away, and the path is not reported as unsafe.
"""

from cni_plugin import errors
from cni_plugin.errors import DaemonAway, DaemonLate, PluginError
from cni_plugin.h2 import UnaryCall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_plugin._cni import System

METHOD = "/vpc_ipamd.v1.Cni/Exec"  # proto/vpc_ipamd/v1/cni.proto
SOCKET_NAME = "ipamd.sock"  # docs/architecture.md, Programs
SOCKET_PATH_BYTES_MAX = 107  # unix(7): sun_path has 108 bytes with its NUL
READ_BYTES = 16384  # ours, because an ordinary answer needs only one or two reads, and MicroPython's heap has room for the buffer
RETRY_MS = 10  # ours: pause before another try when the listener's queue is full

_TYPE_MASK, _DIRECTORY, _LINK, _SOCKET, _FILE = 0o170000, 0o040000, 0o120000, 0o140000, 0o100000
_OTHERS_WRITE = 0o022


def check_directory(system: "System", path: str) -> None:
    """Require a directory that belongs to root or to us and that only its owner can write.

    Raises: DaemonAway if it is missing; PluginError (191) that names the problem.
    """
    mode, owner = _mode_and_owner(system, path)
    kind = mode & _TYPE_MASK
    if kind == _LINK:
        raise _unsafe(path, "it is a symbolic link")
    if kind != _DIRECTORY:
        raise _unsafe(path, "it is not a directory")
    if mode & _OTHERS_WRITE:
        raise _unsafe(path, "group or others may write it (mode " + oct(mode & 0o7777) + ", expected 0o700)")
    _check_owner(system, path, owner)


def is_own_file(system: "System", path: str) -> bool:
    """Whether the path is a plain file that belongs to root or to us and that only its owner can write. Raises: OSError."""
    mode, owner = system.lstat(path)
    return mode & _TYPE_MASK == _FILE and not mode & _OTHERS_WRITE and owner in (0, system.euid())


def connect(system: "System", run_dir: str, *, deadline_ms: int) -> int:
    """Connect to the daemon's socket; the caller closes the descriptor.

    Raises: DaemonAway if nobody listens, or the kernel has no memory or descriptors left; DaemonLate if the listener's queue stays
        full; PluginError if the socket cannot be trusted.
    """
    check_directory(system, run_dir)
    path = run_dir + "/" + SOCKET_NAME
    mode, owner = _mode_and_owner(system, path)
    if mode & _TYPE_MASK != _SOCKET:
        raise _unsafe(path, "it is not a socket")
    _check_owner(system, path, owner)
    while True:
        try:
            return system.connect(path)
        except OSError as exc:
            number = exc.errno or 0
            if number != errors.EAGAIN:
                raise _unreachable(system, path, "connect: ", number) from None
        if system.monotonic_ms() >= deadline_ms:
            raise DaemonLate(path + ": its queue of connections stayed full")
        system.sleep_ms(RETRY_MS)


def exchange(system: "System", descriptor: int, request: bytes, *, deadline_ms: int) -> UnaryCall:
    """Make one call on a new connection, and close the connection.

    Returns: the finished call, whatever its gRPC status.
    Raises: DaemonLate at the deadline; DaemonAway if the connection breaks before; PeerError if the peer is not a gRPC server.
    """
    try:
        call = UnaryCall(METHOD, request, timeout_ms=deadline_ms - system.monotonic_ms())
        is_writable = True
        while not call.is_done:
            pending = b""
            if is_writable:
                pending = call.outgoing()
            while pending:
                try:
                    pending = pending[system.write(descriptor, pending, _remaining_ms(system, deadline_ms)) :]
                except OSError as exc:
                    if exc.errno not in (errors.EPIPE, errors.ECONNRESET):
                        raise
                    is_writable, pending = False, b""  # the daemon may have answered before it closed, so continue reading
            data = system.read(descriptor, READ_BYTES, _remaining_ms(system, deadline_ms))
            if not data:
                raise DaemonAway("the daemon closed the connection before it answered", is_lost=True)
            call.receive(data)
        return call
    except OSError as exc:
        number = exc.errno or 0
        if number == errors.ETIMEDOUT:
            raise DaemonLate("the daemon took the connection and did not answer in time") from None
        raise DaemonAway("the connection broke: " + system.error_text(number), is_lost=True) from None
    finally:
        system.close(descriptor)


def write_file(system: "System", temporary: str, target: str, data: bytes) -> None:
    """Write and sync the file `temporary`, then rename it to `target`. Raises: OSError, after `temporary` was removed."""
    descriptor = system.create(temporary)
    try:
        try:
            while data:
                data = data[system.write(descriptor, data, 0) :]
            system.sync(descriptor)
        finally:
            system.close(descriptor)
        system.rename(temporary, target)
    except OSError:
        system.remove(temporary)
        raise


def _remaining_ms(system: "System", deadline_ms: int) -> int:
    """Milliseconds until the deadline. Raises: DaemonLate if it has passed."""
    remaining_ms = deadline_ms - system.monotonic_ms()
    if remaining_ms <= 0:
        raise DaemonLate("the daemon took the connection and did not answer in time")
    return remaining_ms


def _mode_and_owner(system: "System", path: str) -> "tuple[int, int]":
    try:
        return system.lstat(path)
    except OSError as exc:
        if exc.errno == errors.ENOENT:
            raise DaemonAway(path + " does not exist") from None
        raise _unreachable(system, path, "lstat: ", exc.errno or 0) from None


def _unreachable(system: "System", path: str, call: str, number: int) -> Exception:
    """Make the error for a failed system call: PluginError (191) if `number` shows a path that is not our daemon's; else DaemonAway.

    Other failures, such as a lack of memory, descriptors or buffers, do not concern the path, and nothing was sent. The daemon counts
    as absent then: DEL is spooled, and ADD is tried again.
    """
    if number in errors.WRONG_PATH:
        return _unsafe(path, call + system.error_text(number))
    return DaemonAway(path + ": " + call + system.error_text(number))


def _check_owner(system: "System", path: str, owner: int) -> None:
    if owner not in (0, system.euid()):
        raise _unsafe(path, "it belongs to user " + str(owner))


def _unsafe(path: str, cause: str) -> PluginError:
    details = cause + "; nothing was sent; find out who created it, remove it, and restart ipamd"
    return PluginError(errors.CODE_UNSAFE_SOCKET, path + " cannot be trusted", details)
