"""What can go wrong between the runtime and the daemon, in one small tree.

    PluginError   carries the CNI code that the runtime shall see; ends the process with an error document
    +- PeerError  the peer on the socket broke HTTP/2, gRPC or the envelope: never retried, never trusted
    DaemonAway    nobody took the request, or the one who took it died: ADD says "try again", DEL is spooled
    DaemonLate    somebody has the request and did not answer in time, or said that it cannot now: the same, other words

Codes 1-99 are the CNI specification's. 190-199 are the plugin's own: at the far end of "ours", because the daemon numbers its
errors upwards from 100 (`ipamd/model/errors.py`) and the two must not collide although they import nothing of each other.
"""

CODE_ENVIRONMENT = 4  # CNI spec: invalid necessary environment variables
CODE_IO = 5  # CNI spec: I/O failure
CODE_CONFIG = 7  # CNI spec: invalid network config
CODE_TRY_AGAIN = 11  # CNI spec: try again later
CODE_NOT_AVAILABLE = 50  # CNI spec 1.1, STATUS: the plugin is not available
CODE_INTERNAL = 190  # ours: a defect of this binary
CODE_UNSAFE_SOCKET = 191  # ours: run directory or socket could belong to somebody else
CODE_PEER = 192  # ours: the peer does not speak our protocol
CODE_REFUSED = 193  # ours: the daemon ended the call with a gRPC status that no retry mends
CODE_PROTOCOL_RANGE = 194  # ours: daemon and binary have no envelope version in common

# Linux numbers (asm-generic, the same on x86-64 and arm64). Written down because MicroPython's errno lacks several.
ENOENT = 2
EAGAIN = 11
EEXIST = 17
EPIPE = 32
ECONNRESET = 104
ETIMEDOUT = 110
ECONNREFUSED = 111


class PluginError(Exception):
    """An answer to the runtime: CNI code, what failed on which object, and why with the next step (I14)."""

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
    """Nobody serves the socket; `cause` says how we know."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause


class DaemonLate(Exception):
    """The daemon has the request and will not answer it in time; `cause` says how we know."""

    def __init__(self, cause: str) -> None:
        super().__init__(cause)
        self.cause = cause
