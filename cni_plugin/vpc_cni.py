"""One run of the plugin: read the request, check it, make one call, print the answer, exit.

The daemon decides everything about addresses. The plugin guarantees that the runtime gets its answer within the verb's deadline, even
if the daemon does not answer, and that every DEL is done, spooled or reported as failed (I3). Rejected: grpcio, with which a run takes
98 ms instead of 9 (docs/adr/0003); logging, because the daemon logs, and nobody reads a plugin's standard error.
"""

import sys

from cni_plugin import absence, client, cnijson, envelope, errors, request, spool
from cni_plugin.errors import DaemonAway, DaemonLate, PluginError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_plugin._cni import System

PLUGIN_VERSION = "0.1.0"
RUN_DIR = "/run/vpc-ipamd"  # docs/architecture.md, Programs; a tmpfs, so that a reboot empties it
# It may be set in the runtime's own environment (on a node whose /run is elsewhere, or in tests). It gives no privilege: whoever sets
# it has the runtime's privileges and could also name another plugin. The directory is checked like the default one.
RUN_DIR_VARIABLE = "VPC_IPAMD_RUN_DIR"
STDOUT = 1
PIPE_BYTES = 4096  # most bytes of one write: a pipe that polls writable takes PIPE_BUF bytes without blocking (pipe(7))
# Part of each verb's deadline that is left free. Ours: the interpreter starts before our clock begins (10 ms, more under
# load), and printing the error takes time too.
MARGIN_MS = 500
AWAY_RETRY_MS = 50  # ours: 20 tries a second of 0.3 ms each, so a waiting ADD takes less than 1 % of a processor
REFUSED_RETRY_MS = 250  # ours: a daemon that refuses the calls is asked less often, because each try makes it handle a call
LOST_MAX = 2  # ours: if more daemons than this die during one ADD, the ADD fails, because it may be the cause of their deaths
# Longest time for which STATUS asks again before it bridges an absence. Ours: most restarts end within this time, so that nothing is
# bridged, and it is less than the 4.5 s that STATUS has.
STATUS_PATIENCE_MS = 4000
# Highest result of `_late_ms`. Ours: even a busy machine starts a process within seconds. If the process is older, it ran another
# program before it executed vpc-cni, and that time is not a delay of the start.
LATE_MS_MAX = 10000
SPOOL_RESERVE_MS = 3000  # ours: time that a DEL reserves for the lock and two fsyncs on a busy disk

# gRPC status codes (https://github.com/grpc/grpc/blob/master/doc/statuscodes.md). A stopping daemon answers CANCELLED to the
# calls that it drops.
_STATUS_NAMES = (
    "OK CANCELLED UNKNOWN INVALID_ARGUMENT DEADLINE_EXCEEDED NOT_FOUND ALREADY_EXISTS PERMISSION_DENIED RESOURCE_EXHAUSTED "
    "FAILED_PRECONDITION ABORTED OUT_OF_RANGE UNIMPLEMENTED INTERNAL UNAVAILABLE DATA_LOSS UNAUTHENTICATED"
).split()
_MEANS_AWAY = ("CANCELLED", "UNAVAILABLE")
_MEANS_LATE = ("DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED")
_TEXT_BYTES_MAX = 1024  # ours: how much of a status message of the daemon goes into an error


def main() -> None:
    """Run as a process; does not return."""
    if sys.implementation.name == "micropython":
        import _cni as system  # type: ignore[import-not-found,unused-ignore]
    else:
        from cni_plugin import _cni

        system = _cni.System()
    system.leave(run(system))


def run(system: "System") -> int:
    """Serve one invocation. Returns: the exit status, 0 for success, 1 for a CNI error or if nobody reads standard output."""
    started_ms = system.monotonic_ms()
    document, status, limit_ms = answer(system, started_ms=started_ms)
    position = 0
    while position < len(document):
        try:
            wait_ms = started_ms + limit_ms - system.monotonic_ms()
            position += system.write(STDOUT, document[position : position + PIPE_BYTES], wait_ms)
        except OSError as exc:
            if exc.errno != errors.EAGAIN:
                return 1  # standard output is closed or stalled
    return status


def answer(system: "System", *, started_ms: int) -> "tuple[bytes, int, int]":
    """Determine what to print.

    Returns: (document, exit status, the verb's deadline in ms after the start). Never raises.
    """
    verb = "STATUS"  # until the verb is known, because no other verb has a shorter deadline
    config = b""
    try:
        verb = request.read_verb(system)
        deadline_ms = started_ms + request.DEADLINES_MS[verb] - MARGIN_MS
        config = request.read_config(system, deadline_ms=deadline_ms)
        if verb == "VERSION":
            document, status = cnijson.version_document(cnijson.scan_cni_version(config)), 0
        else:
            message = request.encode(system, verb, config, plugin_version=PLUGIN_VERSION)
            document, status = _serve(system, verb, config, message, deadline_ms)
    except PluginError as exc:
        document, status = _error(config, exc), 1
    except BaseException as exc:  # top level: for a defect or a signal the runtime gets a document, not a traceback
        internal = PluginError(errors.CODE_INTERNAL, "vpc-cni failed", type(exc).__name__ + ": " + str(exc))
        document, status = _error(config, internal), 1
    return document, status, request.DEADLINES_MS[verb]


def _serve(system: "System", verb: str, config: bytes, message: bytes, deadline_ms: int) -> "tuple[bytes, int]":
    run_dir = run_directory(system)
    try:
        if verb == "DEL":
            outcome = _delete(system, run_dir, config, message, deadline_ms)
        elif verb == "STATUS":
            outcome = _status(system, run_dir, message, deadline_ms)
        else:
            until_ms = began_ms = 0
            if verb == "ADD":  # an ADD is repeated while no daemon serves; a CHECK or GC fails after one try
                until_ms = deadline_ms
                began_ms = deadline_ms + MARGIN_MS - request.DEADLINES_MS[verb]
            outcome = _ask_patiently(system, run_dir, message, deadline_ms, until_ms=until_ms, began_ms=began_ms)
    except DaemonAway as exc:
        raise _unserved(verb, "ipamd is away", exc.cause) from None
    except DaemonLate as exc:
        raise _unserved(verb, "ipamd is overloaded or stuck", exc.cause) from None
    if outcome is None:
        return b"", 0
    return _printed(outcome, config)


def _printed(answer: bytes, config: bytes) -> "tuple[bytes, int]":
    """Read the daemon's answer. Returns: (document, exit status). Raises: PluginError."""
    reply = envelope.decode_reply(answer)
    if reply.is_error:
        if _is_text(reply.cni_version):
            version = reply.cni_version.decode()
        else:
            version = cnijson.scan_cni_version(config)
        code = reply.code or errors.CODE_PEER  # 0 would read as success
        return cnijson.error_document(version, code, reply.message, reply.details), 1
    if not envelope.PROTOCOL_MIN <= reply.protocol <= envelope.PROTOCOL_MAX:
        details = "it answered in version " + str(reply.protocol) + ", this binary speaks " + str(envelope.PROTOCOL_MIN)
        details += " to " + str(envelope.PROTOCOL_MAX) + "; let the older of the two be upgraded"
        raise PluginError(errors.CODE_PROTOCOL_RANGE, "ipamd and vpc-cni have no protocol version in common", details)
    return reply.result, 0


def _delete(system: "System", run_dir: str, config: bytes, message: bytes, deadline_ms: int) -> "bytes | None":
    """Make a DEL. Returns: the daemon's reply, or None if the DEL is spooled (I3). Raises: PluginError."""
    call_deadline_ms = deadline_ms - SPOOL_RESERVE_MS
    is_away = False
    try:
        return _ask(system, client.connect(system, run_dir, deadline_ms=call_deadline_ms), message, call_deadline_ms)
    except DaemonAway:
        is_away = True
    except DaemonLate:
        pass
    request.check_spoolable(config)
    spool_deadline_ms = max(deadline_ms, system.monotonic_ms())
    descriptor = spool.spool_or_connect(system, run_dir, message, try_connect=is_away, deadline_ms=spool_deadline_ms)
    if descriptor < 0:
        return None
    try:
        return _ask(system, descriptor, message, call_deadline_ms)
    except (DaemonAway, DaemonLate):  # the daemon is gone again, or starts slowly; a running daemon reads the spool too
        spool.spool_or_connect(system, run_dir, message, try_connect=False, deadline_ms=spool_deadline_ms)
    return None


def _status(system: "System", run_dir: str, message: bytes, deadline_ms: int) -> "bytes | None":
    """Make a STATUS. Returns: the daemon's reply, or None for a success that bridges a short absence or lateness of the daemon (I17).

    Raises: DaemonAway, DaemonLate.
    """
    asked_ms = system.boottime_ms()
    reply, unserved = _ask_for_status(system, run_dir, message, deadline_ms)
    if not _is_absent(reply):
        return reply
    late_since_ms = 0
    if isinstance(unserved, DaemonLate):
        late_since_ms = asked_ms
    refusal = absence.refusal(system, run_dir, is_charged=True, late_since_ms=late_since_ms)
    if refusal == absence.NEVER_SERVED and reply is not None:
        # No daemon has served since the boot, so there is no begin of an absence to count from. The starting daemon itself limits for
        # how long STATUS succeeds (`STATUS_GRACE_S` in ipamd/core/health.py).
        return reply
    if refusal:
        unserved.cause += "; " + refusal
        raise unserved
    return None


def _ask_for_status(
    system: "System", run_dir: str, message: bytes, deadline_ms: int
) -> "tuple[bytes | None, DaemonAway | DaemonLate]":
    """Ask the daemon. If it is absent and the absence may be bridged, retry for STATUS_PATIENCE_MS. Returns: as `_try`."""
    reply, unserved = _try(system, run_dir, message, deadline_ms, until_ms=0)
    if not _is_absent(reply) or absence.refusal(system, run_dir, is_charged=False):
        return reply, unserved
    until_ms = min(system.monotonic_ms() + STATUS_PATIENCE_MS, deadline_ms)
    while _is_absent(reply) and system.monotonic_ms() < until_ms:
        pause_ms = AWAY_RETRY_MS
        if isinstance(unserved, DaemonLate):
            pause_ms = REFUSED_RETRY_MS
        system.sleep_ms(pause_ms)
        reply, unserved = _try(system, run_dir, message, deadline_ms, until_ms=until_ms)
    return reply, unserved


def _is_absent(reply: "bytes | None") -> bool:
    """Whether no daemon serves: there is no reply, or it is from a daemon that is still starting."""
    return reply is None or envelope.decode_reply(reply).is_starting


def _try(
    system: "System", run_dir: str, message: bytes, deadline_ms: int, *, until_ms: int
) -> "tuple[bytes | None, DaemonAway | DaemonLate]":
    """Ask the daemon.

    Returns: the reply or None, and an error. If there is no reply, the error is the reason. If there is a reply, the caller raises the
        error only if the reply shows that the daemon is still starting.
    """
    try:
        return _ask_patiently(system, run_dir, message, deadline_ms, until_ms=until_ms), DaemonAway("it does not take ADD yet")
    except (DaemonAway, DaemonLate) as exc:
        return None, exc


def _ask_patiently(
    system: "System", run_dir: str, message: bytes, deadline_ms: int, *, until_ms: int, began_ms: int = 0
) -> bytes:
    """Make the call; while no daemon takes it, retry until `until_ms`. Returns, raises: as `_ask`.

    An ADD may be sent twice, because the daemon answers a repetition with the stored result.

    Args:
        began_ms: monotonic time at which `run` began, if the call may wait until its deadline; else 0. The process started before
            `run`. So before the first wait `until_ms` and `deadline_ms` are reduced by the age that the process had at `began_ms`.
    """
    lost_count = 0
    while True:
        is_refused = False
        try:
            descriptor = client.connect(system, run_dir, deadline_ms=deadline_ms)
            is_refused = True
            return _ask(system, descriptor, message, deadline_ms)
        except DaemonAway as exc:
            if began_ms:
                until_ms = deadline_ms = deadline_ms - _late_ms(system, began_ms)
                began_ms = 0
            lost_count += exc.is_lost
            pause_ms = AWAY_RETRY_MS
            if is_refused:
                pause_ms = REFUSED_RETRY_MS
            if lost_count > LOST_MAX or system.monotonic_ms() + pause_ms >= until_ms:
                raise
        system.sleep_ms(pause_ms)


def _late_ms(system: "System", began_ms: int) -> int:
    """Age of the process at `began_ms`; 0 if it cannot be read. Only a call that waits reads it, because reading opens a file."""
    try:
        # proc(5): after the name in parentheses comes the state, and 19 fields after the state comes the start of the process, in
        # hundredths of a second since the boot.
        made_ticks = system.read_file("/proc/self/stat", PIPE_BYTES).split(b") ")[-1].split()[19]
        age_ms = system.boottime_ms() - int(made_ticks.decode()) * 10
    except OSError:
        return 0
    return min(max(age_ms - (system.monotonic_ms() - began_ms), 0), LATE_MS_MAX)


def _ask(system: "System", descriptor: int, message: bytes, deadline_ms: int) -> bytes:
    """Make one call. Returns: the reply's bytes. Raises: DaemonAway, DaemonLate, PluginError, by gRPC status."""
    call = client.exchange(system, descriptor, message, deadline_ms=deadline_ms)
    if call.status == 0:
        return call.reply
    name = str(call.status)
    if call.status < len(_STATUS_NAMES):
        name = _STATUS_NAMES[call.status]
    cause = "gRPC status " + name + _excerpt(call.status_message[:_TEXT_BYTES_MAX])
    if name in _MEANS_AWAY:
        raise DaemonAway(cause)
    if name in _MEANS_LATE:
        raise DaemonLate(cause)
    raise PluginError(errors.CODE_REFUSED, "ipamd refused the call", cause + "; its log has the rest")


def _excerpt(text: bytes) -> str:
    """Return a status message as the end of a sentence; "" if there is no message."""
    if not text:
        return ""
    if _is_text(text):
        return ": " + text.decode()
    return ": " + repr(text)


def run_directory(system: "System") -> str:
    """The run directory, from RUN_DIR_VARIABLE if set. Raises: PluginError (4)."""
    value = system.env(RUN_DIR_VARIABLE)
    if not value:
        return RUN_DIR
    if value[:1] != b"/" or len(value) + 1 + len(client.SOCKET_NAME) > client.SOCKET_PATH_BYTES_MAX or not _is_text(value):
        cause = "it must be an absolute path in UTF-8 and leave room for a socket (107 bytes in all)"
        raise PluginError(errors.CODE_ENVIRONMENT, "environment variable " + RUN_DIR_VARIABLE + " is invalid", cause)
    return value.decode()


def _unserved(verb: str, daemon_state: str, cause: str) -> PluginError:
    code = errors.CODE_TRY_AGAIN
    if verb == "STATUS":
        code = errors.CODE_NOT_AVAILABLE
    message = verb + " is not served now: " + daemon_state
    return PluginError(code, message, cause + "; see the state and log of the vpc-ipamd pod of this node")


def _error(config: bytes, exc: PluginError) -> bytes:
    return cnijson.error_document(cnijson.scan_cni_version(config), exc.code, exc.message.encode(), exc.details.encode())


def _is_text(data: bytes) -> bool:
    """Whether the bytes are non-empty UTF-8."""
    try:
        return len(data.decode()) > 0
    except UnicodeError:
        return False


if __name__ == "__main__":
    main()
