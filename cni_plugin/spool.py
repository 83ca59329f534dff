"""Keep DELs in files of the run directory while the daemon cannot take them (I3). docs/adr/0011 has the reasons.

Plugin and daemon follow the protocol below, so that no DEL is lost while the daemon starts (the race of
https://github.com/cilium/cilium/issues/22067). The files are in the run directory (default /run/vpc-ipamd: a tmpfs, so a reboot
removes the files, together with the namespaces that they concern):

    spool.lock     0600, created by the first process, never removed; flock: plugins SHARED, the daemon EXCLUSIVE
    spool/         0700, created by the first process
    spool/.tmp-*   an entry that is being written; readers ignore it; a kill -9 may leave one behind
    spool/del-*    a complete serialized ExecRequest (cni.proto) of verb DEL; written, fsynced, then renamed to this name

The plugin, when the daemon does not answer:
(1) takes the lock shared, and retries until the deadline;
(2) connects once more: if the daemon listens now, the plugin releases the lock and makes the call;
(3) else writes the entry under the lock and reports success.
The plugin never waits for an answer under the lock, so the daemon waits for the exclusive lock only as long as a few fsyncs take.

The daemon, at start:
(1) binds and listens, so that connects succeed (grpcio's add_insecure_port listens before start; requests may wait unanswered);
(2) takes the lock exclusively;
(3) applies every `del-*`, removes each once its transaction is on disk, and removes each `.tmp-*` that is more than an hour old;
(4) releases the lock;
(5) only then serves ADD.
So the entry of a plugin that got the lock before (2) is applied, and a plugin that gets the lock after (4) finds a listener.

A running daemon repeats (2) to (4) from time to time if `spool/` is not empty, because a DEL is also spooled when the daemon stalls
beyond the deadline or keeps answering UNAVAILABLE. An entry that cannot be parsed is set aside and reported, not retried. Entries may
be applied in any order, because DELs are idempotent; the daemon begins with the oldest (the monotonic time ends each name).
An entry survives a restart of the daemon, but not a reboot of the node.
"""

from cni_plugin import client, errors
from cni_plugin.errors import DaemonAway, DaemonLate, PluginError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_plugin._cni import System

LOCK_NAME = "spool.lock"
SPOOL_NAME = "spool"
ENTRY_PREFIX = "del-"
TEMPORARY_PREFIX = ".tmp-"
ENTRIES_MAX = 256  # ours: more than twice the sandboxes of a node (110)
LOCK_RETRY_MS = 10  # ours, because an exclusive holder replays for milliseconds; flock has no timeout of its own


def spool_or_connect(system: "System", run_dir: str, request: bytes, *, try_connect: bool, deadline_ms: int) -> int:
    """Write the DEL into the spool, unless the daemon has started meanwhile.

    Args:
        try_connect: whether to connect once more under the lock. False if the daemon listened but did not answer, because then another
            connection does not show that it answers.
    Returns: -1 if the entry was written; otherwise a connected descriptor, which the caller uses and closes.
    Raises: PluginError: the spool is full or locked (11), the disk fails (5), a directory cannot be trusted (191).
    Concurrency: any number of plugins share the lock. Plugins that write at the same time may together exceed ENTRIES_MAX.
    Guards: I3.
    """
    try:
        _own_directory(system, run_dir)
        lock = system.open_lock(run_dir + "/" + LOCK_NAME)
        try:
            while not system.lock_shared(lock):
                if system.monotonic_ms() >= deadline_ms:
                    details = "the lock has been held exclusively until the deadline; ipamd is replaying, or stuck; "
                    details += "the runtime will repeat DEL"
                    message = "DEL could not be spooled: " + run_dir + "/" + LOCK_NAME + " is held"
                    raise PluginError(errors.CODE_TRY_AGAIN, message, details)
                system.sleep_ms(LOCK_RETRY_MS)
            if try_connect:
                try:
                    return client.connect(system, run_dir, deadline_ms=0)  # one attempt: never wait under the lock
                except (DaemonAway, DaemonLate):
                    pass
            _write_entry(system, run_dir + "/" + SPOOL_NAME, request)
            return -1
        finally:
            system.close(lock)
    except OSError as exc:
        cause = system.error_text(exc.errno or 0)
        cause += "; ipamd is away and the DEL could not be kept for it; the runtime will repeat it"
        raise PluginError(errors.CODE_IO, "DEL could not be spooled in " + run_dir, cause) from None


def _own_directory(system: "System", path: str) -> None:
    """Create the directory if it is missing (after a reboot the daemon has perhaps not run yet) and check that it is safe."""
    try:
        system.make_directory(path)
    except OSError as exc:
        if exc.errno != errors.EEXIST:
            raise
    client.check_directory(system, path)


def _write_entry(system: "System", spool: str, request: bytes) -> None:
    _own_directory(system, spool)
    count = len([name for name in system.names(spool) if name.startswith(ENTRY_PREFIX)])
    if count >= ENTRIES_MAX:
        details = str(count) + " DELs wait for ipamd, the cap is " + str(ENTRIES_MAX)
        details += "; start ipamd: it replays them; DEL will be repeated"
        raise PluginError(errors.CODE_TRY_AGAIN, "DEL could not be spooled: " + spool + " is full", details)
    unique = system.unique()
    client.write_file(system, spool + "/" + TEMPORARY_PREFIX + unique, spool + "/" + ENTRY_PREFIX + unique, request)
    directory = system.open_directory(spool)
    try:
        system.sync(directory)
    finally:
        system.close(directory)
