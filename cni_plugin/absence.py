"""How long STATUS may say "yes" while the daemon does not serve: I17, docs/adr/0033.

kubelet asks every 5 s, and one failure makes the node NotReady, so that a restart of the daemon would show on the node, and an answer
that an overloaded node has late. Both are bridged for a short time instead, counted from when the daemon last served by its own word:
at most BRIDGE_MS in WINDOW_MS, all absences together, so that a crash loop fails STATUS within a minute. A daemon that is late leaves
its mark all the same: lateness is counted from when STATUS asked, if that is earlier, and goes on being counted once it is refused.
Two files below the run directory, where only root can write:

    served      by the daemon: boot ID, CLOCK_BOOTTIME in ms of its last sign of service (ipamd/ready_marks.py)
    bridged     by us: boot ID, then a line for each absence: its begin and the end of the last STATUS in it

A mark of another boot, or one that cannot be read or trusted, bridges nothing. Damage to our own file counts as a used-up minute, so
that it ends by itself. Rejected: a mark by each STATUS of ours (no word of a daemon that answers and does not serve).
"""

from cni_plugin import client, errors

TYPE_CHECKING = False
if TYPE_CHECKING:
    from cni_plugin._cni import System

MARK_NAME = "served"
LEDGER_NAME = "bridged"
TEMPORARY_PREFIX = ".bridged-"
BOOT_ID_PATH = "/proc/sys/kernel/random/boot_id"
BRIDGE_MS = 60000  # ours: a restart takes seconds, a node that cannot run pods must say so within a minute
WINDOW_MS = 600000
LATE_PAUSE_MS = 9000  # ours: kubelet asks 5 s after an answer, so between two late ones that are closer there was none in time
FILE_BYTES_MAX = 4096  # of either file; a line has at most 32
ABSENCES_MAX = 100
DIGITS_MAX = 15

NEVER_SERVED = "the daemon has not served since the node's boot"


def refusal(system: "System", run_dir: str, *, is_charged: bool, late_since_ms: int = 0) -> str:
    """Say why the present absence may not be bridged; "" if it may.

    Args:
        is_charged: it is bridged now, and counts. False only asks.
        late_since_ms: when STATUS asked a daemon that has not answered, by the boot's clock; 0 if nobody was there.
    Returns: NEVER_SERVED where there is no mark of this boot; else one sentence. Never raises OSError.
    """
    try:
        boot_id = system.read_file(BOOT_ID_PATH, FILE_BYTES_MAX).strip()
        served = _lines(system, run_dir + "/" + MARK_NAME)
    except OSError as exc:
        if exc.errno == errors.ENOENT:
            return NEVER_SERVED
        return "when the daemon last served is not known: " + system.error_text(exc.errno or 0)
    if len(served) == 2 and served[0] != boot_id:
        return NEVER_SERVED
    bridged = []  # type: list[bytes] | None  # None: there is no file of ours yet
    try:
        bridged = _lines(system, run_dir + "/" + LEDGER_NAME)
    except OSError as exc:
        if exc.errno == errors.ENOENT:
            bridged = None
    now_ms = system.boottime_ms()  # after the files: daemon and other STATUS write the time too, and none may be to come
    times = _numbers(served[1]) if len(served) == 2 else []
    if len(times) != 1 or times[0] > now_ms:
        return "the file " + MARK_NAME + " in the run directory is damaged or not the daemon's"
    begin_ms = min(times[0], late_since_ms or now_ms)
    others = []
    for begin, end in _absences(system, run_dir, boot_id, bridged, now_ms=now_ms):
        if end >= begin_ms - (LATE_PAUSE_MS if late_since_ms else 0):
            begin_ms = min(begin, begin_ms)  # the present one
        else:
            others.append((begin, end))
    used_ms = now_ms - begin_ms + sum([end - begin for begin, end in others])
    cause = ""
    if used_ms >= BRIDGE_MS or len(others) >= ABSENCES_MAX:
        cause = "it last served " + str((now_ms - times[0]) // 1000) + " s ago by its own word, and " + str(used_ms // 1000)
        cause += " s without it or its answers within " + str(WINDOW_MS // 60000) + " min are more than the "
        cause += str(BRIDGE_MS // 1000) + " s that are passed over"
    if is_charged and len(others) < ABSENCES_MAX and (late_since_ms or not cause):
        problem = _keep(system, run_dir, boot_id, others + [(begin_ms, now_ms)])  # noqa: RUF005  # MicroPython has no unpacking there
        return cause or problem
    return cause


def _absences(
    system: "System", run_dir: str, boot_id: bytes, lines: "list[bytes] | None", *, now_ms: int
) -> "list[tuple[int, int]]":
    """All within the window; one of BRIDGE_MS if the file is damaged, which is then replaced by one that says so for WINDOW_MS."""
    if lines is None or (lines and lines[0] != boot_id and len(lines[0]) == len(boot_id)):
        return []
    found = []
    is_damaged = not lines
    for line in lines[1:]:
        times = _numbers(line)
        if len(times) != 2 or not times[0] <= times[1] <= now_ms:
            is_damaged = True
        elif times[1] > now_ms - WINDOW_MS:
            found.append((max(times[0], now_ms - WINDOW_MS), times[1]))
    if is_damaged:
        found = [(now_ms - BRIDGE_MS, now_ms)]
        _keep(system, run_dir, boot_id, found)
    return found


def _keep(system: "System", run_dir: str, boot_id: bytes, absences: "list[tuple[int, int]]") -> str:
    """Write the file anew, by a rename. Returns: why it could not be written; what is not counted is not bridged."""
    text = "".join([str(max(begin_ms, 0)) + " " + str(end_ms) + "\n" for begin_ms, end_ms in absences])
    temporary = run_dir + "/" + TEMPORARY_PREFIX + system.unique()
    try:
        client.write_file(system, temporary, run_dir + "/" + LEDGER_NAME, boot_id + b"\n" + text.encode())
        return ""
    except OSError as exc:
        return "the absence cannot be counted: " + system.error_text(exc.errno or 0)


def _lines(system: "System", path: str) -> "list[bytes]":
    """Lines of a file that only root, or we, can have written; none of any other. Raises: OSError, ENOENT if it is missing."""
    if not client.is_own_file(system, path):
        return []
    content = system.read_file(path, FILE_BYTES_MAX + 1)
    if len(content) > FILE_BYTES_MAX or content[-1:] != b"\n":
        return []
    return content[:-1].split(b"\n")


def _numbers(line: bytes) -> "list[int]":
    """Whole numbers of a line; none if there is anything else in it."""
    words = line.split(b" ")
    for word in words:
        if len(word) > DIGITS_MAX or not word.isdigit():
            return []
    return [int(word.decode()) for word in words]
