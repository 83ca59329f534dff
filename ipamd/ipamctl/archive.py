"""The parts of the support archive: what each file is, and how it is made.

A part that fails is named in the archive and stops no other. None reads an environment, a pod's files or a Kubernetes object.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import platform
import sys
import tarfile
import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple

from ipamd import __version__
from ipamd.ipamctl.verb import Ask
from ipamd.kernel import dump
from ipamd.model.redaction import without_secrets
from ipamd.model.words import printable

DAY = timedelta(days=1)
METRICS_TIMEOUT_S = 5.0
HISTORY_BYTES = 7 << 20
"""What is kept of the last day: its end. Ours: a little less than a part of the archive may have."""

TAIL_BYTES = 2 << 20
"""What is kept of a log: its end. Ours: some hours at info."""

SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv[46]/conf/*/forwarding",
    "net/ipv4/conf/*/rp_filter",
    "net/ipv4/conf/*/accept_local",
    "net/ipv4/conf/*/src_valid_mark",
    "net/ipv4/conf/*/proxy_arp",
    "net/ipv[46]/neigh/default/gc_thresh*",
    "net/ipv6/conf/*/disable_ipv6",
    "net/ipv6/conf/*/accept_ra",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_count",
    "fs/inotify/max_user_*",
)

LOGS = ("/var/log/vpc-ipamd.log", "/var/log/containers/vpc-ipamd-*.log", "/var/log/pods/kube-system_vpc-ipamd-*/*/*.log")
"""Where the daemon's log may lie, if the node's /var/log can be seen: in the lab, and as kubelet names them."""

NO_LOG = "no log of the daemon can be seen from here; add `kubectl -n kube-system logs POD` and, if it has ended, `--previous`"


class Part(NamedTuple):
    """One file of the archive. `make` returns its text; any exception is its problem."""

    name: str
    what: str
    make: Callable[[], str]


class NotThere(Exception):
    """There is nothing to collect; the message says what to do."""


def parts(daemon: Ask, *, run_dir: Path, history_dir: Path, metrics_address: str, logs: tuple[str, ...] = LOGS) -> list[Part]:
    """All parts, the most telling first: the archive's bound leaves out the last.

    Args:
        metrics_address: host:port of the Prometheus endpoint, or "off".
    """

    def rpc(name: str, what: str, method: str, **fields: object) -> Part:
        return Part(f"{name}.json", what, lambda: _json(daemon(method, **fields)))

    return [
        Part("versions.json", "versions of vpc-ipamd, Python, libraries and kernel", lambda: _json(versions())),
        rpc("status", "verdict, stages, pool, runtime, EC2, what is lacking", "GetStatus"),
        rpc("enis", "network interfaces with their addresses counted", "ListEnis"),
        rpc("attachments", "which pod has which address", "ListAttachments"),
        rpc("plan", "what the pool would do now", "Plan"),
        rpc("capacity", "how many pods fit", "Capacity"),
        rpc("config", "settings in force", "GetConfig"),
        rpc("audit", "differences of datastore, kernel and runtime; EC2 is not asked", "Audit", skip_ec2=True),
        Part("history.jsonl", "what happened in the last 24 hours, refused ADDs included", lambda: _history(history_dir)),
        Part("metrics.txt", "Prometheus metrics", lambda: _metrics(metrics_address)),
        *(
            Part(f"{ask.__name__}.jsonl", f"{what} of the node's network namespace", partial(_lines, ask))
            for ask, what in (
                (dump.links, "links"),
                (dump.addresses, "addresses of links"),
                (dump.rules, "routing rules"),
                (dump.routes, "routes of all tables"),
                (dump.neighbours, "neighbour entries"),
            )
        ),
        Part("nft.txt", "the nftables ruleset", dump.nft_ruleset),
        Part("sysctls.txt", "the kernel's settings that routing depends on", lambda: _sysctls(Path("/proc/sys"))),
        Part(
            "files.txt",
            "names, sizes and times of the files in the run and history directories and of CNI's",
            lambda: _files(run_dir, history_dir),
        ),
        Part("log.txt", "the end of the daemon's log", lambda: _log(logs)),
    ]


def versions() -> dict[str, Any]:
    """Versions of what runs here."""
    from importlib.metadata import PackageNotFoundError, version

    found = {}
    for name in ("boto3", "grpcio", "protobuf", "pyroute2", "sqlalchemy", "prometheus_client"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = "not installed"
    return {"vpc-ipamd": __version__, "python": sys.version, "libraries": found, "kernel": " ".join(platform.uname())}


def _json(answer: object) -> str:
    return json.dumps(answer, indent=2) + "\n"


def _lines(ask: Callable[[], list[dict[str, Any]]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in ask())


def _history(directory: Path) -> str:
    from ipamd.history import encode, read_since

    found = read_since(directory, datetime.now(UTC) - DAY)
    if not found.records:
        raise NotThere(found.problem or f"nothing of the last day in {directory}")
    data = b"".join(map(encode, sorted(found.records, key=lambda record: record.at)))
    problem, kept = found.problem, data[-HISTORY_BYTES:]
    if len(data) > HISTORY_BYTES:  # the newest tell of what is wrong now
        problem = problem or f"older ones are left out: {HISTORY_BYTES} bytes are kept"
        kept = kept.partition(b"\n")[2]
    first = json.dumps({"problem": problem}) + "\n" if problem else ""
    return first + kept.decode()


def _metrics(address: str) -> str:
    import urllib.request

    if address == "off":
        raise NotThere("VPC_IPAMD_METRICS_ADDRESS is off")
    host, _, port = address.rpartition(":")
    # No proxy of the environment: the port is this node's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{host or '127.0.0.1'}:{port}/metrics", timeout=METRICS_TIMEOUT_S) as answer:
        return bytes(answer.read(TAIL_BYTES)).decode("utf-8", "replace")


def _sysctls(root: Path) -> str:
    lines = []
    for pattern in SYSCTLS:
        for path in sorted(root.glob(pattern)):
            try:
                value = path.read_text(errors="replace").strip()
            except OSError as error:
                value = f"({error.strerror})"
            lines.append(f"{path.relative_to(root)} = {value}\n")
    return "".join(lines)


def _files(run_dir: Path, history_dir: Path) -> str:
    lines = []
    for directory in (run_dir, run_dir / "spool", history_dir, Path("/etc/cni/net.d"), Path("/opt/cni/bin")):
        try:
            entries = sorted(directory.iterdir())
        except OSError as error:
            lines.append(f"{directory}: {error.strerror}")
            continue
        for path in entries:
            status = path.lstat()
            at = datetime.fromtimestamp(status.st_mtime, UTC).isoformat(timespec="seconds")
            lines.append(f"{path} {status.st_mode:o} {status.st_uid} {status.st_size} {at}")
    return "\n".join(lines) + "\n"


def _log(patterns: tuple[str, ...]) -> str:
    import glob

    found = [Path(name) for pattern in patterns for name in glob.glob(pattern)]  # noqa: PTH207  # absolute patterns
    if not found:
        raise NotThere(NO_LOG)
    return "".join(f"==> {path}\n{_tail(path)}\n" for path in sorted(found, key=lambda path: path.stat().st_mtime)[-3:])


def _tail(path: Path) -> str:
    from ipamd.settings.settings_file import opened

    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL_BYTES, 0))
        text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    if size <= TAIL_BYTES:
        return text
    # What is left of the first line is left out too: a secret's name may have gone before it.
    return f"({size - TAIL_BYTES} bytes before are left out)\n{text.partition(chr(10))[2]}"


# Make every part within its time and size, take the secrets out, and put them into one archive with a list of what is in it.


PART_S = 15.0
"""For one part. Ours: an audit of a node with 660 sandboxes takes a second or two."""

TOTAL_S = 60.0
PART_BYTES = 8 << 20
TOTAL_BYTES = 48 << 20
"""Before compression, which makes a tenth of it."""

README = """\
vpc-ipamd: state of one node, for support. MANIFEST.json lists the files, and what failed.

In it: addresses, names of pods and namespaces, sandbox IDs, ENI, subnet and instance IDs, MAC addresses, settings, the daemon's log,
routes, rules, links, nftables and metrics of this node.
Not in it: environments, tokens, pods' files or traffic. Text that looks like a credential (keys, tokens, authorization headers,
passwords, credentials in URLs, long words of letters and digits) was replaced by [redacted]; a secret without a known form may remain,
so look before you send it on.
"""


class Collected(NamedTuple):
    """One file of the archive as the list tells it; `problem` is "" if it is whole."""

    name: str
    what: str
    bytes: int
    ms: float
    problem: str


def collect(
    parts: Sequence[Part], out: IO[bytes], *, part_s: float = PART_S, total_s: float = TOTAL_S, at_s: float
) -> list[Collected]:
    """Write the archive (tar, gzip) to `out`.

    Args:
        at_s: time of the files, seconds since the epoch.
    Returns: what became of each part, in order. Raises: OSError if the archive cannot be written.
    """
    deadline, left_bytes = time.monotonic() + total_s, TOTAL_BYTES
    collected: list[Collected] = []
    with gzip.GzipFile(fileobj=out, mode="wb", mtime=at_s) as packed, tarfile.open(fileobj=packed, mode="w|") as archive:
        _put(archive, "README.txt", README.encode(), at_s)
        for part in parts:
            began = time.monotonic()
            left_s = min(part_s, deadline - began)
            most = min(PART_BYTES, left_bytes)
            data, problem = _made(part, most, left_s) if left_s > 0 else (b"", "left out: the time is up")
            left_bytes -= len(data)
            if data:
                _put(archive, part.name, data, at_s)
            ms = round((time.monotonic() - began) * 1000, 1)
            collected.append(Collected(part.name, part.what, len(data), ms, problem))
        _put(archive, "MANIFEST.json", (json.dumps([one._asdict() for one in collected], indent=2) + "\n").encode(), at_s)
    return collected


def _made(part: Part, most_bytes: int, timeout_s: float) -> tuple[bytes, str]:
    """Make one part without its secrets in a thread of its own, left behind if it hangs. Returns: its text, and its problem."""
    done: list[tuple[bytes, str]] = []

    def make() -> None:
        try:
            data = part.make().encode("utf-8", "replace")
            problem = f"cut: it has {len(data)} bytes, {most_bytes} are kept" if len(data) > most_bytes else ""
            # Cut, then taken out: what is cut off costs no time.
            clean = without_secrets(data[:most_bytes].decode("utf-8", "ignore")).encode()
            done.append((clean[:most_bytes], problem))
        except Exception as error:  # noqa: BLE001  # no part may stop the others
            done.append((b"", without_secrets(printable(f"{type(error).__name__}: {error}"))))

    thread = threading.Thread(target=make, name=part.name, daemon=True)
    thread.start()
    thread.join(timeout_s)
    return done[0] if done else (b"", f"left out: it took more than {timeout_s:.0f} s")


def _put(archive: tarfile.TarFile, name: str, data: bytes, at_s: float) -> None:
    entry = tarfile.TarInfo(f"vpc-ipamd-bundle/{name}")
    entry.size, entry.mtime, entry.mode = len(data), int(at_s), 0o600
    archive.addfile(entry, io.BytesIO(data))
