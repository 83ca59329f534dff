"""The adapter of the port `AwsNode`: listener, file of allocations and conflist of amazon-vpc-cni-k8s, and our note about them.

The daemon of amazon-vpc-cni-k8s (aws-node) has listened on a Unix socket since a release of 2026. Earlier releases listen on
127.0.0.1:50051. Another program may use that port, and our daemon must not wait for the answer of such a program. So the port is
tried only while aws-node's conflist is in place or its file of allocations has changed. Sources: amazon-vpc-cni-k8s pull request 3739;
cmd/routed-eni-cni-plugin/cni.go before that pull request (ipamdAddress).
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Container, Iterable, Mapping
from pathlib import Path

from ipamd.host.conflist import former_list
from ipamd.migration.legs.extra_state import ExtraLegState
from ipamd.migration.listener import is_aws_node, is_served_by_another
from ipamd.migration.shared_files import Version, _done_or_refused, read_bounded, replace, sync_directory
from ipamd.model.aws_node import (
    FILE_MAX_BYTES,
    NETWORK_NAME,
    Allocation,
    DaemonSign,
    network_name_of,
    parse_checkpoint,
    render_checkpoint,
)
from ipamd.model.errors import ForeignStateError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.family import Family, IpAddress
from ipamd.model.record import astuple, dataclass
from ipamd.ports.process import Clock
from ipamd.settings import TakeoverConfig

log = logging.getLogger(__name__)


def _is_absent(path: Path) -> bool:
    """Whether a path does not exist. Raises: OSError if the path cannot be examined."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    return False


def _remove(path: Path) -> bool:
    """Remove a file. Returns: whether it existed. Raises: OSError."""
    try:
        path.unlink()
    except OSError:
        # The error does not show whether the file exists: on a read-only file system it is EROFS in both cases.
        if _is_absent(path):
            return False
        raise
    return True


NOTE_NAME = "aws-node.json"

NOTE_MAX_BYTES = 4096
"""The largest size of our note that is read. Ours: the note has a few short fields."""

CONFLIST_MAX_BYTES = 1024 * 1024
"""The largest size of a conflist that is read. Ours: a conflist has some KB; the limit only keeps a wrong file out of memory."""

EXPORTED_SUFFIX = ".vpc-ipamd-exported"

SAVED_SUFFIX = ".vpc-ipamd-saved"
"""End of the name that aws-node's conflist has while our conflist is used. Runtimes do not load a file of such a name: they load files
that end in .conf, .conflist or .json. Source: github.com/containernetworking/cni libcni/conf.go, ConfFiles;
github.com/containerd/go-cni opts.go, loadFromConfDir."""

TCP_ADDRESS = ("127.0.0.1", 50051)

OFF = "off"
"""Value of VPC_IPAMD_AWS_NODE_SOCKET with which the daemon looks neither for aws-node's listener nor for its pod. Then only a write of
aws-node's file shows that aws-node runs."""


class FileAwsNode:
    """Implements `AwsNode`. Safe from any thread, because each call reads the files again, but only one thread may export."""

    def __init__(self, config: TakeoverConfig, *, run_dir: Path, conflist: Path, clock: Clock, boot_id: str) -> None:
        self._clock = clock
        self._boot_id = boot_id
        self._checkpoint = config.checkpoint
        self._socket = config.daemon_socket
        self._extra_state = ExtraLegState(config, network_name=self.network_name)
        self._note = run_dir / NOTE_NAME
        self._datastore = run_dir / "state.db"
        self._ours = conflist
        self._exported = conflist.with_name(conflist.name + EXPORTED_SUFFIX)
        self._changing = threading.Lock()
        self._last_sign: _LastSign | None = None
        self._theirs = config.conflist_beside(conflist)
        self._saved = self._theirs.with_name(self._theirs.name + SAVED_SUFFIX)

    def listener(self) -> str:
        if self._socket == OFF:
            return ""
        if is_served_by_another(self._socket):
            return self._socket
        if (self.has_conflist() or self._may_have_changed()) and is_aws_node(TCP_ADDRESS):
            return f"{TCP_ADDRESS[0]}:{TCP_ADDRESS[1]}"
        return ""

    def last_sign(self, *, pod: str = "") -> DaemonSign | None:
        note = self._read_note()
        now_s = self._clock.monotonic()
        listener = self.listener()
        present = ""  # the reason why aws-node counts as present now; "" if it does not
        if listener:
            present = f"it serves {listener}"
        elif pod and self._socket != OFF:
            present = f"its pod {pod} runs"
        last_seen = self._last_seen(note)
        version = self._version()
        if present:
            last_seen = _LastSign(self._boot_id, now_s, present, _version_of(last_seen))
        elif version is not None and version not in _handled_versions(note):
            last_seen = self._sign_of_file(version, last_seen, now_s=now_s)
        if last_seen is None:
            return None
        self._last_sign = last_seen  # kept in memory too, because the note may fail to be written, or may be damaged later
        self._change_note(seen=list(astuple(last_seen)))
        age_s = 0.0
        if not present:
            age_s = max(now_s - last_seen.at_s, 0.0)
        return DaemonSign(last_seen.text, age_s)

    def _last_seen(self, note: Mapping[str, object]) -> _LastSign | None:
        """Return the last sign of aws-node: the later of the signs in memory and in the note.

        A sign of another boot does not count. Returns: None if there is no sign of this boot.
        """
        seen = self._last_sign
        match note.get("seen"):
            case [self._boot_id, float() as at_s, str(text), list(version)] if seen is None or at_s >= seen.at_s:
                return _LastSign(self._boot_id, at_s, text, version)
        return seen

    def _sign_of_file(self, version: Version, last_seen: _LastSign | None, *, now_s: float) -> _LastSign | None:
        """Return the last sign of aws-node if its file has a version that we have neither taken over nor written.

        Returns: `last_seen` if it is later than the write of the file, or already has this version; otherwise a sign for the write.
            None if the file was written before this boot and there is no other sign.
        """
        if version == _version_of(last_seen):
            return last_seen
        # Monotonic seconds count from the boot. If the file's time is in the future, the clock was set back, and the write counts as
        # now.
        written_s = now_s - max(self._clock.now().timestamp() - version[1] / 1e9, 0.0)
        last_sign_s = 0.0 if last_seen is None else last_seen.at_s
        if written_s < last_sign_s:
            return last_seen
        return _LastSign(self._boot_id, written_s, f"it wrote {self._checkpoint}", version)

    def allocations(self) -> tuple[Allocation, ...]:
        try:
            raw = read_bounded(self._checkpoint, most=FILE_MAX_BYTES)
        except OSError as error:
            raise failure(
                ForeignStateError, FailureCode.NODE_FILE_UNREADABLE, path=self._checkpoint, cause=error.strerror or str(error)
            ) from error
        if raw is None:
            return ()
        try:
            return parse_checkpoint(raw)
        except ForeignStateError as error:
            fields = {"path": self._checkpoint, "problem": error.message, "cause": error.details}
            raise failure(ForeignStateError, FailureCode.NODE_FILE_WRONG, **fields) from error

    def has_run_since(self) -> bool:
        version = self._version()
        if version is None:
            return False
        handled_versions = _handled_versions(self._read_note())
        if handled_versions:
            return version not in handled_versions
        # Our note has no version. If we have no rows, all of the file is new to us. If the file is older than our rows, they include
        # its addresses.
        rows_written = [path.stat().st_mtime_ns for path in self._datastore.parent.glob("state.db*") if path.is_file()]
        return not rows_written or version[1] > max(rows_written)

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
            _remove(self._exported)
        self._change_note(exporting=None)

    def write(self, allocations: Iterable[Allocation], *, routed: Container[IpAddress]) -> str:
        allocations = tuple(allocations)
        content = render_checkpoint(allocations, network_name=self.network_name())
        self._extra_state.write(allocations, routed=routed)

        def announce(version: Version) -> None:
            # Recorded before the rename, so that after a crash the next process recognises the content as ours.
            self._change_note(next=version)

        advice = f": mount {self._checkpoint.parent} into the daemon's pod"
        with _done_or_refused(f"{self._checkpoint} cannot be written", advice=advice):
            self._checkpoint.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
            replace(self._checkpoint, content, mode=0o600, announce=announce)
        self._change_note(version=self._read_note().get("next"), next=None)
        return str(self._checkpoint)

    def extra_addresses(self, family: Family) -> Mapping[str, IpAddress]:
        return self._extra_state.addresses(family)

    def has_conflist(self) -> bool:
        # `exists` is not enough, because a setting may name a directory.
        return self._theirs.is_symlink() or self._theirs.is_file()

    def save_conflist(self) -> str:
        if not self._rename(self._theirs, self._saved):
            return ""
        return f"{self._theirs} was renamed to {self._saved.name}"

    def restore_conflist(self) -> str:
        if self.has_conflist() or not self._rename(self._saved, self._theirs):
            return ""
        return f"{self._saved} was renamed to {self._theirs.name}"

    def remove_our_conflist(self) -> str:
        with _done_or_refused(f"{self._ours} cannot be removed"):
            was_there = _remove(self._ours)
            _remove(former_list(self._ours))
            if not was_there:
                return ""
            sync_directory(self._ours.parent)
        return f"{self._ours} was removed"

    def network_name(self) -> str:
        for path in (self._theirs, self._saved):
            try:
                raw = read_bounded(path, most=CONFLIST_MAX_BYTES)
            except OSError as error:
                log.warning("network name of amazon-vpc-cni-k8s not readable path=%s error=%s", path, error.strerror)
                continue
            if raw is not None:
                return network_name_of(raw)
        return NETWORK_NAME

    def _rename(self, source: Path, target: Path) -> bool:
        with _done_or_refused(f"{source} cannot be renamed to {target.name}"):
            try:
                source.rename(target)
            except OSError:  # EROFS on a read-only file system, even if there is no file (see `_remove`)
                if _is_absent(source):
                    return False
                raise
            sync_directory(target.parent)
        return True

    def _may_have_changed(self) -> bool:
        """Whether aws-node may have written its file since we read or wrote it."""
        try:
            return self.has_run_since()
        except ForeignStateError:
            return True

    def _version(self) -> Version | None:
        """Return the version of aws-node's file; None if there is no file. Raises: ForeignStateError."""
        try:
            status = self._checkpoint.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise failure(
                ForeignStateError, FailureCode.NODE_FILE_UNSEEN, path=self._checkpoint, cause=error.strerror or ""
            ) from error
        return [status.st_ino, status.st_mtime_ns]

    def _read_note(self) -> dict[str, object]:
        """Read our note. A damaged note counts as empty, so that aws-node's file is read again."""
        try:
            note = json.loads(read_bounded(self._note, most=NOTE_MAX_BYTES) or b"{}")
        except (OSError, ValueError, RecursionError) as error:
            log.warning("note about amazon-vpc-cni-k8s not usable path=%s error=%s", self._note, error)
            return {}
        if not isinstance(note, dict):
            return {}
        return note

    def _change_note(self, **parts: object) -> None:
        """Change parts of our note. The value None removes a part. Safe from any thread: a check and an export change different parts.

        Raises: TakeoverError.
        """
        with _done_or_refused(f"{self._note} cannot be written"), self._changing:
            note = self._read_note()
            changed = {name: part for name, part in (note | parts).items() if part is not None}
            if changed != note:
                replace(self._note, json.dumps(changed).encode() + b"\n", mode=0o600)


def _version_of(sign: _LastSign | None) -> Version:
    """Return the version of aws-node's file that is a part of a sign; [] if the sign is None or has no version."""
    if sign is None:
        return []
    return sign.version


def _handled_versions(note: Mapping[str, object]) -> list[object]:
    """Return the versions of aws-node's file that we have taken over or written."""
    return [note[name] for name in ("version", "next") if name in note]


@dataclass(frozen=True, slots=True)
class _LastSign:
    """The last sign that aws-node ran: it served a socket, its pod ran, or it wrote its file. The fields are written into the note.

    `boot_id`: the boot in which the sign was seen.
    `at_s`: the time of the sign, in seconds of the monotonic clock.
    `text`: a description of the sign, for people.
    `version`: the version of aws-node's file, if this sign or an earlier one was a write of that file; else [].
    """

    boot_id: str
    at_s: float
    text: str
    version: Version
