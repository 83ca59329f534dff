"""The adapter of the port `AwsNode`: its daemon's listener, its file of allocations, its conflist, and our note about them.

Its daemon listens on a Unix socket since a release of 2026, and before on 127.0.0.1:50051, which is asked only while its conflist is
in place or its file is news: nothing here must wait for another program that listens there. Sources: amazon-vpc-cni-k8s pull request
3739; cmd/routed-eni-cni-plugin/cni.go before it (ipamdAddress).
"""

from __future__ import annotations

import json
import logging
import os
import socket
import stat
import struct
import threading
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from ipaddress import ip_address
from pathlib import Path

import grpc

from ipamd.model.aws_node import (
    EGRESS_STATE,
    FILE_MAX_BYTES,
    NETWORK_NAME,
    Allocation,
    Sign,
    egress_file,
    network_name_of,
    parse_checkpoint,
    render_checkpoint,
)
from ipamd.model.errors import ForeignStateError, TakeoverError
from ipamd.model.family import Family, IpAddress
from ipamd.model.record import astuple, dataclass
from ipamd.ports import Clock
from ipamd.settings import TakeoverConfig
from ipamd.settings.settings_file import created

log = logging.getLogger(__name__)


# Does the daemon of amazon-vpc-cni-k8s listen? On its Unix socket whoever accepts counts; a TCP port must say that it is it.
#
# 127.0.0.1:50051 is what many examples of gRPC use, so a listener there is asked by gRPC's health protocol for the service name
# that only this daemon has. Source: amazon-vpc-cni-k8s pkg/ipamd/rpc_handler.go, RunRPCHandler;
# <https://github.com/grpc/grpc/blob/master/doc/health-checking.md>.


HEALTH_METHOD = "/grpc.health.v1.Health/Check"
HEALTH_SERVICE = b"grpc.health.v1.aws-node"

CONNECT_S = 1.0
"""Ours: both listeners are on this node; a connection takes microseconds or is refused."""


def is_anothers(path: str) -> bool:
    """Whether another process than this one accepts connections on a Unix socket; one that is too busy to does exist.

    The kernel says who listens; of a process in another PID namespace it says 0. An earlier process of ours does not listen any
    more: this one has its lock. Source: unix(7), SO_PEERCRED.
    """
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        sock.settimeout(CONNECT_S)
        try:
            sock.connect(path)
        except (TimeoutError, BlockingIOError):
            return True
        except (OSError, ValueError):
            return False
        pid, _, _ = struct.unpack("3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(pid) != os.getpid()


def is_its_daemon(address: tuple[str, int], *, timeout_s: float = CONNECT_S) -> bool:
    """Whether its daemon listens on a TCP address. One that takes a connection and does not answer in time counts as it (I11)."""
    try:
        socket.create_connection(address, timeout_s).close()
    except TimeoutError:
        return True
    except OSError:
        return False
    request = bytes((10, len(HEALTH_SERVICE))) + HEALTH_SERVICE  # HealthCheckRequest.service = 1
    with grpc.insecure_channel(f"{address[0]}:{address[1]}", options=[("grpc.enable_http_proxy", 0)]) as channel:
        try:
            channel.unary_unary(HEALTH_METHOD, request_serializer=bytes, response_deserializer=bytes)(request, timeout=timeout_s)
        except grpc.RpcError as error:
            status: grpc.Call = error  # type: ignore[assignment]  # at run time every RpcError of a call carries code and details
            return status.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    return True


# Read and write small files that others read too: bounded, atomic, durable, and never written through a stranger's link.


Version = list[int]
"""Inode and time of a file, as the note has them: which content it is, without reading it. Both daemons replace the file by a rename,
so another content has another inode or time."""


def read_bounded(path: Path, *, most: int) -> bytes | None:
    """The content, at most one byte more than `most`; None without a file. Raises: OSError, also for anything but a file."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except (FileNotFoundError, NotADirectoryError):
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
            raise OSError(0, "it is no regular file", str(path))
        return stream.read(most + 1)


def replace(path: Path, content: bytes, *, mode: int, announce: Callable[[Version], None] = lambda _: None) -> None:
    """Write a file durably: a reader sees the whole old one or the whole new one.

    `announce` is told which version it will be, when all of it is on the disk and before it takes its place. Raises: OSError.
    """
    scratch = path.with_name(f".{path.name}.vpc-ipamd-tmp")
    with created(scratch, mode) as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
        status = os.fstat(stream.fileno())
    announce([status.st_ino, status.st_mtime_ns])
    scratch.replace(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Make renames and removals in a directory durable. Raises: OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _done_or_refused(what: str, *, advice: str = "") -> Iterator[None]:
    """Name what could not be done to a file. Raises: TakeoverError for an OSError within."""
    try:
        yield
    except OSError as error:
        raise TakeoverError(what, details=f"{error.strerror or ''}{advice}") from error


NOTE_NAME = "aws-node.json"
NOTE_MAX_BYTES = 4096
CONFLIST_MAX_BYTES = 1024 * 1024
EXPORTED_SUFFIX = ".vpc-ipamd-exported"
SAVED_SUFFIX = ".vpc-ipamd-saved"
"""Runtimes load files that end in .conf, .conflist or .json. Source: github.com/containernetworking/cni libcni/conf.go, ConfFiles;
github.com/containerd/go-cni opts.go, loadFromConfDir."""

TCP_ADDRESS = ("127.0.0.1", 50051)


class FileAwsNode:
    """Implements `AwsNode`. Safe from any thread: each call looks anew; an export is one thread's work."""

    def __init__(self, config: TakeoverConfig, *, run_dir: Path, conflist: Path, clock: Clock, boot_id: str) -> None:
        self._clock = clock
        self._boot_id = boot_id
        self._checkpoint = config.checkpoint
        self._socket = config.daemon_socket
        self._egress = config.egress_state
        self._note = run_dir / NOTE_NAME
        self._datastore = run_dir / "state.db"
        self._ours = conflist
        self._exported = conflist.with_name(conflist.name + EXPORTED_SUFFIX)
        self._changing = threading.Lock()
        self._seen: _Seen | None = None
        self._theirs = config.conflist_beside(conflist)
        self._saved = self._theirs.with_name(self._theirs.name + SAVED_SUFFIX)

    def listener(self) -> str:
        if self._socket == "off":
            return ""
        if is_anothers(self._socket):
            return self._socket
        if (self.has_conflist() or self._is_news()) and is_its_daemon(TCP_ADDRESS):
            return f"{TCP_ADDRESS[0]}:{TCP_ADDRESS[1]}"
        return ""

    def last_sign(self, *, pod: str = "") -> Sign | None:
        note, now_s, listener = self._read_note(), self._clock.monotonic(), self.listener()
        lasting = f"it serves {listener}" if listener else f"its pod {pod} runs" if pod else ""
        seen = self._seen
        match note.get("seen"):
            case [self._boot_id, float() as at_s, str(what), list(of)] if seen is None or at_s >= seen.at_s:
                seen = _Seen(self._boot_id, at_s, what, of)
        version = self._version()
        if lasting:
            seen = _Seen(self._boot_id, now_s, lasting, [] if seen is None else seen.version)
        elif version is not None and version not in (*_known(note), [] if seen is None else seen.version):
            # Monotonic seconds are those of the boot. A file from the future was written by a clock that was set back since: now.
            written_s = now_s - max(self._clock.now().timestamp() - version[1] / 1e9, 0.0)
            if written_s >= (0.0 if seen is None else seen.at_s):
                seen = _Seen(self._boot_id, written_s, f"it wrote {self._checkpoint}", version)
        if seen is None:
            return None
        self._seen = seen  # the note may not be written now, or be damaged later
        self._change_note(seen=list(astuple(seen)))
        return Sign(seen.what, 0.0 if lasting else max(now_s - seen.at_s, 0.0))

    def allocations(self) -> tuple[Allocation, ...]:
        try:
            raw = read_bounded(self._checkpoint, most=FILE_MAX_BYTES)
        except OSError as error:
            raise ForeignStateError(f"{self._checkpoint} cannot be read", details=error.strerror or str(error)) from error
        if raw is None:
            return ()
        try:
            return parse_checkpoint(raw)
        except ForeignStateError as error:
            raise ForeignStateError(f"{self._checkpoint} cannot be used: {error.message}", details=error.details) from error

    def has_run_since(self) -> bool:
        now = self._version()
        if now is None:
            return False
        known = _known(self._read_note())
        if known:
            return now not in known
        # Never noted: without rows all is new; and a file that is older than the rows says nothing that they do not know.
        written = [one.stat().st_mtime_ns for one in self._datastore.parent.glob("state.db*") if one.is_file()]
        return not written or now[1] > max(written)

    def finish(self) -> None:
        self._change_note(version=self._version() or [], next=None)

    @property
    def is_exporting(self) -> bool:
        return bool(self._read_note().get("exporting")) or self._exported.exists()

    def begin_export(self) -> None:
        self._change_note(exporting=True)
        with _done_or_refused(f"{self._exported} cannot be written"):
            replace(self._exported, b"`ipamctl export --undo` removes this file\n", mode=0o644)

    def end_export(self) -> None:
        with _done_or_refused(f"{self._exported} cannot be removed"):
            self._exported.unlink(missing_ok=True)
        self._change_note(exporting=None)

    def write(self, allocations: Iterable[Allocation], *, routed: Container[IpAddress]) -> str:
        allocations = tuple(allocations)
        content = render_checkpoint(allocations, network_name=self.network_name())
        with _done_or_refused(f"{self._egress} cannot be written", advice=": mount it into the daemon's pod"):
            self._write_egress(allocations, routed)

        def announce(version: Version) -> None:
            # Before the rename: a process that dies between both must not take what it wrote for the other's.
            self._change_note(next=version)

        advice = f": mount {self._checkpoint.parent} into the daemon's pod"
        with _done_or_refused(f"{self._checkpoint} cannot be written", advice=advice):
            self._checkpoint.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace(self._checkpoint, content, mode=0o600, announce=announce)
        self._change_note(version=self._read_note().get("next"), next=None)
        return str(self._checkpoint)

    def egress_addresses(self, family: Family) -> Mapping[str, IpAddress]:
        folder, found = self._egress / EGRESS_STATE[family] / self.network_name(), dict[str, IpAddress]()
        try:
            for address in _addresses_in(folder):
                raw = read_bounded(folder / str(address), most=NOTE_MAX_BYTES) or b""
                found[raw.decode("ascii", "replace").partition("\r\n")[0].strip()] = address
        except OSError as error:
            log.warning("what its plugin for egress gave is not known path=%s error=%s", error.filename, error.strerror)
        return found

    def _write_egress(self, allocations: Iterable[Allocation], routed: Container[IpAddress]) -> None:
        """Make the files those of the sandboxes that live. What is no address of the range is its plugin's own. Raises: OSError."""
        for family, name in EGRESS_STATE.items():
            folder = self._egress / name / self.network_name()
            has = [(one.other_address, one.key) for one in allocations if one.other_address is not None]
            wanted = {address: key for address, key in has if address in family.egress.network}
            for address in _addresses_in(folder):
                if address in family.egress.network and address not in wanted and address not in routed:
                    (folder / str(address)).unlink(missing_ok=True)
            for address, key in wanted.items():
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
                replace(folder / str(address), egress_file(key), mode=0o600)

    def has_conflist(self) -> bool:
        return self._theirs.is_symlink() or self._theirs.is_file()  # a setting may name a directory

    def save_conflist(self) -> str:
        return f"{self._theirs} was renamed to {self._saved.name}" if self._rename(self._theirs, self._saved) else ""

    def restore_conflist(self) -> str:
        if self.has_conflist():
            return ""
        return f"{self._saved} was renamed to {self._theirs.name}" if self._rename(self._saved, self._theirs) else ""

    def remove_our_conflist(self) -> str:
        with _done_or_refused(f"{self._ours} cannot be removed"):
            try:
                self._ours.unlink()
            except FileNotFoundError:
                return ""
            sync_directory(self._ours.parent)
        return f"{self._ours} was removed"

    def network_name(self) -> str:
        for path in (self._theirs, self._saved):
            try:
                raw = read_bounded(path, most=CONFLIST_MAX_BYTES)
            except OSError as error:
                log.warning("the network's name is not known path=%s error=%s", path, error.strerror)
                continue
            if raw is not None:
                return network_name_of(raw)
        return NETWORK_NAME

    def _rename(self, source: Path, target: Path) -> bool:
        with _done_or_refused(f"{source} cannot be renamed to {target.name}"):
            try:
                source.rename(target)
            except FileNotFoundError:
                return False
            sync_directory(target.parent)
        return True

    def _is_news(self) -> bool:
        """Whether its daemon may have written its file since we read or wrote it."""
        try:
            return self.has_run_since()
        except ForeignStateError:
            return True

    def _version(self) -> Version | None:
        """The version of its file; None without one. Raises: ForeignStateError."""
        try:
            status = self._checkpoint.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ForeignStateError(f"{self._checkpoint} cannot be looked at", details=error.strerror or "") from error
        return [status.st_ino, status.st_mtime_ns]

    def _read_note(self) -> dict[str, object]:
        """Our note; a damaged one counts as none, so that its file is looked at again."""
        try:
            note = json.loads(read_bounded(self._note, most=NOTE_MAX_BYTES) or b"{}")
        except (OSError, ValueError, RecursionError) as error:
            log.warning("a note cannot be used path=%s error=%s", self._note, error)
            return {}
        return note if isinstance(note, dict) else {}

    def _change_note(self, **parts: object) -> None:
        """Change parts of our note, from any thread: a look and an export change others. None removes one."""
        with _done_or_refused(f"{self._note} cannot be written"), self._changing:
            note = self._read_note()
            changed = {name: part for name, part in (note | parts).items() if part is not None}
            if changed != note:
                replace(self._note, json.dumps(changed).encode() + b"\n", mode=0o600)


def _addresses_in(folder: Path) -> Iterator[IpAddress]:
    """The addresses that are names of files. Raises: OSError."""
    if folder.is_dir():
        for path in list(folder.iterdir()):
            with suppress(ValueError):
                yield ip_address(path.name)


def _known(note: Mapping[str, object]) -> list[object]:
    """The versions of its file that we read or wrote."""
    return [note[name] for name in ("version", "next") if name in note]


@dataclass(frozen=True, slots=True)
class _Seen:
    """The last sign, as the note has it. `at_s`: monotonic; `version`: of its file, if that was the sign, or was one before."""

    boot_id: str
    at_s: float
    what: str
    version: Version
