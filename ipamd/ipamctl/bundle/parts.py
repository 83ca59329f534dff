"""The parts of the support archive: what each file is, and how it is made.

A part that fails is named in the archive and stops no other. None reads an environment, a pod's files or a Kubernetes object.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from ipamd import __version__
from ipamd.ipamctl.verb import Ask

DAY = timedelta(days=1)
METRICS_TIMEOUT_S = 5.0
HISTORY_BYTES = 7 << 20
"""What is kept of the last day: its end. Ours: a little less than a part of the archive may have."""

TAIL_BYTES = 2 << 20
"""What is kept of a log: its end. Ours: some hours at info."""

SYSCTLS = (
    "net/ipv4/ip_forward",
    "net/ipv4/conf/*/forwarding",
    "net/ipv4/conf/*/rp_filter",
    "net/ipv4/conf/*/accept_local",
    "net/ipv4/conf/*/src_valid_mark",
    "net/ipv4/conf/*/proxy_arp",
    "net/ipv4/neigh/default/gc_thresh*",
    "net/ipv6/conf/*/disable_ipv6",
    "net/netfilter/nf_conntrack_max",
    "net/netfilter/nf_conntrack_count",
    "fs/inotify/max_user_*",
)

LOGS = ("/var/log/vpc-ipamd.log", "/var/log/containers/vpc-ipamd-*.log", "/var/log/pods/kube-system_vpc-ipamd-*/*/*.log")
"""Where the daemon's log may lie, if the node's /var/log can be seen: in the lab, and as kubelet names them."""

NO_LOG = "no log of the daemon can be seen from here; add `kubectl -n kube-system logs POD` and, if it has ended, `--previous`"


@dataclass(frozen=True, slots=True)
class Part:
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
        *_kernel_parts(),
        Part(
            "sysctls.txt", "the kernel's settings that routing depends on", lambda: "\n".join(_sysctls(Path("/proc/sys"))) + "\n"
        ),
        Part(
            "files.txt",
            "names, sizes and times of the files in the run and history directories and of CNI's",
            lambda: _files(run_dir, history_dir),
        ),
        Part("log.txt", "the end of the daemon's log", lambda: _log(logs)),
    ]


def _kernel_parts() -> Iterator[Part]:
    from ipamd.kernel import dump

    for name, what, ask in (
        ("links", "links", dump.links),
        ("addresses", "addresses of links", dump.addresses),
        ("rules", "routing rules", dump.rules),
        ("routes", "routes of all tables", dump.routes),
    ):
        yield Part(f"{name}.jsonl", f"{what} of the node's network namespace", lambda ask=ask: _lines(ask()))  # type: ignore[misc]  # bound now
    yield Part("nft.txt", "the nftables ruleset", dump.nft_ruleset)


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


def _lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def _history(directory: Path) -> str:
    from ipamd.history.appender import encode
    from ipamd.history.reader import read_since

    found = read_since(directory, datetime.now(UTC) - DAY)
    if not found.records:
        raise NotThere(found.problem or f"nothing of the last day in {directory}")
    told: list[bytes] = []
    left_bytes = HISTORY_BYTES
    for record in sorted(found.records, key=lambda record: record.at, reverse=True):  # the newest tell of what is wrong now
        told.append(encode(record))
        left_bytes -= len(told[-1])
        if left_bytes < 0:
            break
    problem = found.problem or (f"older ones are left out: {HISTORY_BYTES} bytes are kept" if left_bytes < 0 else "")
    first = json.dumps({"problem": problem}) + "\n" if problem else ""
    return first + b"".join(reversed(told)).decode()


def _metrics(address: str) -> str:
    import urllib.request

    if address == "off":
        raise NotThere("VPC_IPAMD_METRICS_ADDRESS is off")
    host, _, port = address.rpartition(":")
    # No proxy of the environment: the port is this node's own.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(f"http://{host or '127.0.0.1'}:{port}/metrics", timeout=METRICS_TIMEOUT_S) as answer:
        return bytes(answer.read(TAIL_BYTES)).decode("utf-8", "replace")


def _sysctls(root: Path) -> Iterator[str]:
    for pattern in SYSCTLS:
        for path in sorted(root.glob(pattern)):
            try:
                value = path.read_text(errors="replace").strip()
            except OSError as error:
                value = f"({error.strerror})"
            yield f"{path.relative_to(root)} = {value}"


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
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(size - TAIL_BYTES, 0))
        text = file.read(TAIL_BYTES).decode("utf-8", "replace")
    if size <= TAIL_BYTES:
        return text
    # What is left of the first line is left out too: a secret's name may have gone before it.
    return f"({size - TAIL_BYTES} bytes before are left out)\n{text.partition(chr(10))[2]}"
