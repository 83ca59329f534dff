"""Define the parts of the support archive: the content of each file, and how it is made."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from ipamd import __version__
from ipamd.ipamctl.verb import Ask
from ipamd.kernel import dump

DAY = timedelta(days=1)

METRICS_TIMEOUT_S = 5.0
"""Longest wait for the page of metrics. Ours: the daemon makes it in some tens of milliseconds, so after 5 s it hangs, and the rest of
the archive is made without it."""

HISTORY_BYTES = 7 << 20
"""The largest number of bytes of the last day's history; the newest records are kept. Ours: a little less than the limit of a part of
the archive (PART_BYTES), which would cut off the newest records."""

TAIL_BYTES = 2 << 20
"""The largest number of bytes of a log, or of the page of metrics, that are kept. Of a log these are the last bytes. Ours: some hours
at level info."""

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
"""Patterns of the files in which the daemon's log may be, if the node's /var/log is mounted. The first pattern is that of the
lab, the second and the third are kubelet's."""

NO_LOG = "no log of the daemon can be seen from here; add `kubectl -n kube-system logs POD` and, if it has ended, `--previous`"


class Part(NamedTuple):
    """One file of the archive. `make` returns its text. If it raises an exception, the file is missing and the manifest has the
    exception's text."""

    name: str
    description: str
    make: Callable[[], str]


class NotThere(Exception):
    """Raised by a part that has nothing to collect. The message has the reason or the next step."""


def parts(daemon: Ask, *, run_dir: Path, history_dir: Path, metrics_address: str, logs: tuple[str, ...] = LOGS) -> list[Part]:
    """List all parts, the most useful first, because the limits of the archive cut the last ones.

    Names of pods and sandboxes in the first parts are kept in the text of later parts.

    Args:
        metrics_address: host:port of the Prometheus endpoint, or "off".
    """

    def rpc(name: str, description: str, method: str, **fields: object) -> Part:
        return Part(f"{name}.json", description, lambda: _json(daemon(method, **fields)))

    return [
        Part("versions.json", "versions of vpc-ipamd, Python, libraries and kernel", lambda: _json(versions())),
        rpc("attachments", "which pod has which address", "ListAttachments"),
        Part("history.jsonl", "what happened in the last 24 hours, refused ADDs included", lambda: _history(history_dir)),
        rpc("status", "verdict, stages, pool, runtime, EC2, what is lacking", "GetStatus"),
        rpc("enis", "network interfaces with their addresses counted", "ListEnis"),
        rpc("plan", "what the pool would do now", "Plan"),
        rpc("capacity", "how many pods fit", "Capacity"),
        rpc("config", "settings in force", "GetConfig"),
        rpc("audit", "differences of datastore, kernel and runtime; EC2 is not asked", "Audit", skip_ec2=True),
        Part("metrics.txt", "Prometheus metrics", lambda: _metrics(metrics_address)),
        *_kernel_parts(),
        Part("nft.txt", "the nftables ruleset", dump.nft_ruleset),
        Part("sysctls.txt", "the kernel's settings that routing depends on", lambda: _sysctls(Path("/proc/sys"))),
        Part(
            "files.txt",
            "names, sizes and times of the files in the run and history directories and of CNI's",
            lambda: _files(run_dir, history_dir),
        ),
        Part("log.txt", "the end of the daemon's log", lambda: _log(logs)),
    ]


def _kernel_parts() -> list[Part]:
    dumps = (
        (dump.links, "links"),
        (dump.addresses, "addresses of links"),
        (dump.rules, "routing rules"),
        (dump.routes, "routes of all tables"),
        (dump.neighbours, "neighbour entries"),
    )
    result = []
    for function, subject in dumps:
        result.append(Part(f"{function.__name__}.jsonl", f"{subject} of the node's network namespace", partial(_lines, function)))
    return result


def versions() -> dict[str, Any]:
    """Versions of this program, its libraries, Python and the kernel."""
    from importlib.metadata import PackageNotFoundError, version

    libraries = {}
    for name in ("boto3", "grpcio", "protobuf", "pyroute2", "sqlalchemy", "prometheus_client"):
        try:
            libraries[name] = version(name)
        except PackageNotFoundError:
            libraries[name] = "not installed"
    return {"vpc-ipamd": __version__, "python": sys.version, "libraries": libraries, "kernel": " ".join(platform.uname())}


def _json(answer: object) -> str:
    return json.dumps(answer, indent=2) + "\n"


def _lines(ask: Callable[[], list[dict[str, Any]]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in ask())


def _history(directory: Path) -> str:
    from ipamd.history.encoding import encode
    from ipamd.history.reading import read_since

    history = read_since(directory, datetime.now(UTC) - DAY)
    if not history.records:
        raise NotThere(history.problem or f"nothing of the last day in {directory}")
    data = b"".join(map(encode, sorted(history.records, key=lambda record: record.at)))
    problem = history.problem
    newest = data[-HISTORY_BYTES:]
    if len(data) > HISTORY_BYTES:  # the newest records are about the present problem
        problem = problem or f"older ones are left out: {HISTORY_BYTES} bytes are kept"
        newest = newest.partition(b"\n")[2]
    text = newest.decode()
    if problem:
        text = json.dumps({"problem": problem}) + "\n" + text
    return text


def _metrics(address: str) -> str:
    import urllib.request

    if address == "off":
        raise NotThere("VPC_IPAMD_METRICS_ADDRESS is off")
    host, _, port = address.rpartition(":")
    # Ignore proxies of the environment, because the port is on this node.
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
    """The ends of the three newest logs."""
    import glob

    paths = []
    for pattern in patterns:
        paths += [Path(name) for name in glob.glob(pattern)]  # noqa: PTH207  # absolute patterns
    if not paths:
        raise NotThere(NO_LOG)
    newest = sorted(paths, key=lambda path: path.stat().st_mtime)[-3:]
    return "".join(f"==> {path}\n{_tail(path)}\n" for path in newest)


def _tail(path: Path) -> str:
    from ipamd.settings.settings_file import opened

    with opened(path) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL_BYTES, 0))
        text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    if size <= TAIL_BYTES:
        return text
    # The cut first line is left out too, because the name of a secret may have been in the part before the cut.
    return f"({size - TAIL_BYTES} bytes before are left out)\n{text.partition(chr(10))[2]}"
