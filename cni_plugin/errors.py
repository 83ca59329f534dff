"""The plugin's errors. PluginError is an answer to the runtime; DaemonAway and DaemonLate are caught within the plugin.

    PluginError   has the CNI code for the runtime, and ends the process with an error document
    +- PeerError  the peer on the socket violated HTTP/2, gRPC or the envelope; the call is never retried
    DaemonAway    no daemon took the request, or the daemon that took it died; ADD waits for the next daemon
    DaemonLate    the daemon has the request and did not answer in time, or has no room for it now

After DaemonAway and DaemonLate a DEL is spooled, and STATUS nevertheless succeeds for a short time.

Codes 1-99 are the CNI specification's. 190-199 are the plugin's own; the daemon numbers its errors upwards from 100
(`ipamd/model/errors.py`). The two ranges must not overlap, although neither program imports the other.
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

# Error numbers of Linux (asm-generic, the same on x86-64 and arm64). MicroPython's module errno lacks several of them.
ENOENT = 2
EAGAIN = 11
EEXIST = 17
EPIPE = 32
ECONNRESET = 104
ETIMEDOUT = 110

# Errors of a path that is not our daemon's: EPERM, EACCES, ENOTDIR, EINVAL, ENAMETOOLONG, ELOOP, ENOTSOCK, EPROTOTYPE (a datagram
# socket), EAFNOSUPPORT. All other errors count as temporary, such as ENFILE, EMFILE, ENOMEM, ENOBUFS, EINTR and ECONNREFUSED.
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
    """No daemon serves the socket.

    cause: the observation in words, for people.
    is_lost: whether the daemon went away after it may have received the request.
    """

    def __init__(self, cause: str, is_lost: bool = False) -> None:
        super().__init__(cause)
        self.cause = cause
        self.is_lost = is_lost


class DaemonLate(Exception):
    """The daemon listens, but does not answer in time or has no room for the request. `cause`: the observation in words."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
