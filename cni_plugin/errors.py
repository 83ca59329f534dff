"""The plugin's errors, in one small tree.

    PluginError   has the CNI code for the runtime; ends the process with an error document
    +- PeerError  the peer on the socket violated HTTP/2, gRPC or the envelope: never retried, never trusted
    DaemonAway    nobody took the request, or the daemon that took it died: ADD waits for the next daemon
    DaemonLate    the daemon has the request and did not answer in time, or has no room for it now
                  After both, a DEL is spooled, and STATUS succeeds for a short time nevertheless

Codes 1-99 are the CNI specification's. 190-199 are the plugin's own; the daemon numbers its errors upwards from 100
(`ipamd/model/errors.py`). The two must not collide, although neither imports the other.
"""

CODE_ENVIRONMENT = 4  # CNI spec: invalid necessary environment variables
CODE_IO = 5  # CNI spec: I/O failure
CODE_CONFIG = 7  # CNI spec: invalid network config
CODE_TRY_AGAIN = 11  # CNI spec: try again later
CODE_NOT_AVAILABLE = 50  # CNI spec 1.1, STATUS: the plugin is not available
CODE_INTERNAL = 190  # ours: a defect of this binary
CODE_UNSAFE_SOCKET = 191  # ours: somebody else may have created the run directory or the socket
CODE_PEER = 192  # ours: the peer does not speak our protocol
CODE_REFUSED = 193  # ours: the daemon ended the call with a gRPC status that a retry would not change
CODE_PROTOCOL_RANGE = 194  # ours: daemon and binary have no envelope version in common

# Linux numbers (asm-generic, the same on x86-64 and arm64). MicroPython's errno lacks several of them.
ENOENT = 2
EAGAIN = 11
EEXIST = 17
EPIPE = 32
ECONNRESET = 104
ETIMEDOUT = 110

# Errors of a path that is not our daemon's: EPERM, EACCES, ENOTDIR, EINVAL, ENAMETOOLONG, ELOOP, ENOTSOCK, EPROTOTYPE (a datagram
# socket), EAFNOSUPPORT. All other errors are temporary: ENFILE, EMFILE, ENOMEM, ENOBUFS, EINTR, ECONNREFUSED and new ones of a kernel.
WRONG_PATH = (1, 13, 20, 22, 36, 40, 88, 91, 97)


class PluginError(Exception):
    """An error for the runtime: CNI code, what failed on which object, and the cause with the next step (I14)."""

    def __init__(self, code: int, message: str, details: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details


class PeerError(PluginError):
    """The bytes from the socket are not an answer of our daemon."""

    def __init__(self, cause: str) -> None:
        super().__init__(CODE_PEER, "the peer on the ipamd socket does not speak the vpc-ipamd protocol", cause)


class DaemonAway(Exception):
    """Nobody serves the socket.

    cause: what shows it, for people.
    is_lost: the daemon went away after it may have received the request.
    """

    def __init__(self, cause: str, is_lost: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_lost = is_lost


class DaemonLate(Exception):
    """The daemon has the request and will not answer in time; `cause` is the observation."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
