"""Decide how long STATUS may succeed while the daemon does not serve: I17, docs/adr/0033.

kubelet asks every 5 s, and one failed STATUS makes the node NotReady. A restart of the daemon, or a late answer on an overloaded node,
would therefore take the node out of service. STATUS bridges such an absence: it succeeds although the daemon does not serve. It
bridges at most BRIDGE_MS of all absences within WINDOW_MS, so in a crash loop it fails within a minute.

An absence begins when the daemon last recorded that it served. A daemon that answers late still records this. So if STATUS asked a
late daemon before the last record, the absence begins when STATUS asked. Time in which the daemon is late counts even after STATUS
has begun to fail.

There are two files in the run directory, where only root can write:

    served      written by the daemon: boot ID; CLOCK_BOOTTIME in ms when it last served (ipamd/process/served_mark.py)
    bridged     written by the plugin: boot ID; then one line per absence with its begin and the end of the last STATUS in it

Nothing is bridged if the mark `served` is of another boot, unreadable or not trusted. A damaged `bridged` counts as if a whole minute
had been bridged just now, so nothing is bridged until that minute has left the window. Rejected: to let the plugin record each answer
to STATUS instead, because a daemon also answers when it does not serve ADD.
"""

from cni_plugin import client, errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_plugin._cni import System

MARK_NAME = "served"
BRIDGED_NAME = "bridged"
TEMPORARY_PREFIX = ".bridged-"
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
BRIDGE_MS = 60000  # ours: a restart takes seconds, and a node that cannot run pods must become NotReady within a minute
WINDOW_MS = (
    600000  # ours: twice kubelet's longest pause between two starts (5 min), so a crash loop does not get a new minute each time
)
# Two late answers that are at most this far apart belong to one absence. Ours: kubelet asks again 5 s after an answer, so there is no
# time for a prompt answer between them.
LATE_PAUSE_MS = 9000
# Most bytes of each file. Ours: the line with the boot ID has 37 bytes, and each of the ABSENCES_MAX lines, with a begin and an end in
# ms, has at most 32.
FILE_BYTES_MAX = 4096
# Ours: FILE_BYTES_MAX has room for them. More are not expected, because each absence needs a call of STATUS of its own, and kubelet
# makes about 120 in a window. While the file is full, nothing more is bridged.
ABSENCES_MAX = 100
DIGITS_MAX = 15  # of a time in ms

NEVER_SERVED = "the daemon has not served since the node's boot"


def refusal(system: "System", run_dir: str, *, is_charged: bool, late_since_ms: int = 0) -> str:
    """Return why the present absence may not be bridged; "" if it may.

    Args:
        is_charged: whether the caller bridges this absence now, so that it must be recorded. If False, the absence is not recorded.
            A damaged file `bridged` is rewritten in any case.
        late_since_ms: CLOCK_BOOTTIME when STATUS asked a daemon that has not answered; 0 if no daemon took the call.
    Returns: NEVER_SERVED if there is no mark of this boot; else one sentence. Never raises OSError.
    """
    try:
        boot_id = system.read_file(BOOT_ID_PATH, FILE_BYTES_MAX).strip()
        mark = _lines(system, run_dir + "/" + MARK_NAME)
    except OSError as exc:
        return _unreadable_mark(system, exc)
    if len(mark) == 2 and mark[0] != boot_id:
        return NEVER_SERVED
    bridged = _bridged_lines(system, run_dir)
    now_ms = system.boottime_ms()  # read after the files, so that no time in them is in the future
    served_ms = _served_ms(mark, now_ms)
    if served_ms < 0:
        return "the file " + MARK_NAME + " in the run directory is damaged or not the daemon's"
    absences = _absences(system, run_dir, boot_id, bridged, now_ms=now_ms)
    begin_ms, earlier = _split(absences, min(served_ms, late_since_ms or now_ms), is_late=late_since_ms > 0)
    cause = _used_up(earlier, begin_ms, served_ms, now_ms)
    if not is_charged or (cause and not late_since_ms):
        return cause
    write_error = _charge(system, run_dir, boot_id, earlier, (begin_ms, now_ms))
    return cause or write_error


def _unreadable_mark(system: "System", exc: OSError) -> str:
    """Return why nothing is bridged when the mark or the boot ID cannot be read."""
    if exc.errno == errors.ENOENT:
        return NEVER_SERVED
    return "when the daemon last served is not known: " + system.error_text(exc.errno or 0)


def _served_ms(mark: "list[bytes]", now_ms: int) -> int:
    """Return when the daemon last served, in ms of CLOCK_BOOTTIME; -1 if the mark is malformed. `mark`: lines of the file `served`."""
    if len(mark) != 2:
        return -1
    times = _numbers(mark[1])
    if len(times) != 1 or times[0] > now_ms:
        return -1
    return times[0]


def _bridged_lines(system: "System", run_dir: str) -> "list[bytes] | None":
    """Lines of the file `bridged`, the plugin's record of absences: [] if it is damaged or cannot be read, None if it is missing."""
    try:
        return _lines(system, run_dir + "/" + BRIDGED_NAME)
    except OSError as exc:
        return None if exc.errno == errors.ENOENT else []


def _split(absences: "list[tuple[int, int]]", begin_ms: int, *, is_late: bool) -> "tuple[int, list[tuple[int, int]]]":
    """Separate the present absence from the earlier absences.

    Args:
        absences: (begin, end) of each recorded absence, the present one included if an earlier STATUS recorded it.
        begin_ms: when the present absence began, as far as this STATUS can see.
        is_late: whether the daemon answers late; then LATE_PAUSE_MS may lie between two records of one absence.
    Returns: when the present absence began; the earlier absences.
    """
    pause_ms = 0
    if is_late:
        pause_ms = LATE_PAUSE_MS
    earlier = []
    for begin, end in absences:
        if end >= begin_ms - pause_ms:
            begin_ms = min(begin, begin_ms)
        else:
            earlier.append((begin, end))
    return begin_ms, earlier


def _used_up(earlier: "list[tuple[int, int]]", begin_ms: int, served_ms: int, now_ms: int) -> str:
    """Return a sentence if the absences use up BRIDGE_MS or fill the file; else ""."""
    used_ms = now_ms - begin_ms + sum([end - begin for begin, end in earlier])
    if used_ms < BRIDGE_MS and len(earlier) < ABSENCES_MAX:
        return ""
    cause = "it last served " + str((now_ms - served_ms) // 1000) + " s ago, and within " + str(WINDOW_MS // 60000)
    cause += " min it was absent or late for " + str(used_ms // 1000) + " s, of which STATUS bridges at most "
    return cause + str(BRIDGE_MS // 1000) + " s"


def _charge(system: "System", run_dir: str, boot_id: bytes, earlier: "list[tuple[int, int]]", present: "tuple[int, int]") -> str:
    """Record the present absence, (begin, end). Returns: why it could not be written; "" if it was, or if the file is full."""
    if len(earlier) >= ABSENCES_MAX:
        return ""  # the file is full, and `_used_up` bridges nothing more until the window has moved on
    return _write(system, run_dir, boot_id, earlier + [present])  # noqa: RUF005  # MicroPython has no unpacking there


def _absences(
    system: "System", run_dir: str, boot_id: bytes, lines: "list[bytes] | None", *, now_ms: int
) -> "list[tuple[int, int]]":
    """Parse the absences within the window; [] if there is no file, or if the file is of another boot.

    A damaged file counts as one absence of BRIDGE_MS that ends now. The file is rewritten with it, so that the damage is counted once.
    """
    if lines is None or (lines and lines[0] != boot_id and len(lines[0]) == len(boot_id)):
        return []
    absences = []
    is_damaged = not lines
    for line in lines[1:]:
        times = _numbers(line)
        if len(times) != 2 or not times[0] <= times[1] <= now_ms:
            is_damaged = True
        elif times[1] > now_ms - WINDOW_MS:
            absences.append((max(times[0], now_ms - WINDOW_MS), times[1]))
    if is_damaged:
        absences = [(now_ms - BRIDGE_MS, now_ms)]
        _write(system, run_dir, boot_id, absences)
    return absences


def _write(system: "System", run_dir: str, boot_id: bytes, absences: "list[tuple[int, int]]") -> str:
    """Replace the file `bridged`, by a rename. Returns: why it could not be written, so that STATUS must fail; "" if it was."""
    text = "".join([str(max(begin_ms, 0)) + " " + str(end_ms) + "\n" for begin_ms, end_ms in absences])
    temporary = run_dir + "/" + TEMPORARY_PREFIX + system.unique()
    try:
        client.write_file(system, temporary, run_dir + "/" + BRIDGED_NAME, boot_id + b"\n" + text.encode())
        return ""
    except OSError as exc:
        return "the absence cannot be counted: " + system.error_text(exc.errno or 0)


def _lines(system: "System", path: str) -> "list[bytes]":
    """Lines of a file that only root or our user can have written; [] for any other file, or one that is too long or cut off.

    Raises: OSError, with ENOENT if the file is missing.
    """
    if not client.is_own_file(system, path):
        return []
    content = system.read_file(path, FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX or content[-1:] != b"\n":
        return []
    return content[:-1].split(b"\n")


def _numbers(line: bytes) -> "list[int]":
    """Whole numbers of a line; [] if it has anything else."""
    words = line.split(b" ")
    for word in words:
        if len(word) > DIGITS_MAX or not word.isdigit():
            return []
    return [int(word.decode()) for word in words]
