"""Put plugins of our image into the node's plugin directory where they are missing. Files of other software are never replaced."""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import BinaryIO

from ipamd.model.record import dataclass, field
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind, RepairReport
from ipamd.settings.settings_file import content_of, created

SUMS_NAME = "SHA256SUMS"
"""Beside the plugins in the image: what `tools/build_reference_plugins.sh` built."""

RECORD_NAME = ".vpc-ipamd-plugins"

SCRATCH = ".{}.vpc-ipamd"

MODE = 0o755

LIST_BYTES_MAX = 65536

AGAIN_S = 30.0
"""Time between two tries to put a plugin in place. A try copies megabytes into a directory that is watched, and on a full disk removes
them again: without a pause each try would cause the next. Ours."""

CHUNK_BYTES = 1 << 20

_LINE = re.compile(r"([0-9a-f]{64}) [ *]([a-z0-9][a-z0-9-]{0,63})")


@dataclass(frozen=True, slots=True)
class BundleFailure:
    """Why a plugin could not be put in place, and when it is tried again."""

    sentence: str
    again_monotonic_s: float


@dataclass(slots=True)
class PlacedPlugins:
    """The plugins that were put in place, those that were replaced, and the failures, one sentence each."""

    missing: list[RepairReport] = field(default_factory=list)
    replaced: list[RepairReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Bundle:
    """The plugins of one image. One thread at a time."""

    def __init__(self, source: Path, directory: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`source`: the image's directory, which may be absent. `directory`: the node's plugin directory."""
        self._source = source
        self._directory = directory
        self._monotonic = monotonic
        self._wanted: dict[str, str] = {}
        self._outdated: dict[str, str] | None = None  # name -> recorded digest of a file of ours from another image
        self._failures: dict[str, BundleFailure] = {}

    @property
    def names(self) -> frozenset[str]:
        """Return the plugins of the image, as `put_in_place` read them."""
        return frozenset(self._wanted)

    def put_in_place(self, *, backed_off: Container[RepairedObject] = ()) -> PlacedPlugins:
        """Put missing plugins in place, and once replace ours from an earlier image. Cost if nothing is missing: one stat each.

        A plugin that cannot be put in place does not stop the others, and is tried again after AGAIN_S. `backed_off`: missing plugins
        that are not put in place now.
        """
        placed = PlacedPlugins()
        try:
            self._wanted = self._wanted or _read_list(self._source / SUMS_NAME)
            if self._outdated is None:
                recorded = _read_list(self._directory / RECORD_NAME)
                self._outdated = {
                    name: recorded[name] for name, digest in self._wanted.items() if recorded.get(name, digest) != digest
                }
        except OSError as error:
            placed.problems.append(_sentence(error))
            return placed
        for name in self._wanted:
            try:
                self._place(name, self._outdated, placed, backed_off)
            except (OSError, ValueError) as error:
                self._failures[name] = BundleFailure(_sentence(error), self._monotonic() + AGAIN_S)
            if name in self._failures:
                placed.problems.append(self._failures[name].sentence)
        return placed

    def _place(self, name: str, outdated: dict[str, str], placed: PlacedPlugins, backed_off: Container[RepairedObject]) -> None:
        target = self._directory / name
        is_missing = not os.path.lexists(target)
        if is_missing or name in outdated:
            if name in self._failures and self._monotonic() < self._failures[name].again_monotonic_s:
                return
            plugin = RepairedObject(RepairKind.PLUGIN, str(target))
            if is_missing:
                if plugin not in backed_off and self._put(name):
                    placed.missing.append(RepairReport(RepairCode.ADDED, plugin, str(target)))
            elif self._replace(name, outdated[name]):
                placed.replaced.append(RepairReport(RepairCode.FILE_UPDATED, plugin, str(target)))
            outdated.pop(name, None)
        self._failures.pop(name, None)

    def _put(self, name: str) -> bool:
        """Place one file; False if another program was first."""
        self._directory.mkdir(parents=True, exist_ok=True)
        scratch = self._copy(name)
        try:
            os.link(scratch, self._directory / name)  # unlike a rename, it never replaces
        except FileExistsError:
            return False
        finally:
            scratch.unlink()
        self._record(name)
        return True

    def _replace(self, name: str, recorded: str) -> bool:
        """Replace one file of ours; False if it is not ours any more."""
        target = self._directory / name
        if target.is_symlink() or not target.is_file():
            return False
        with target.open("rb") as stream:
            if hashlib.file_digest(stream, "sha256").hexdigest() != recorded:
                return False
        self._copy(name).replace(target)
        self._record(name)
        return True

    def _copy(self, name: str) -> Path:
        """Write a whole, checked copy beside its place. Returns: its path. Raises: ValueError if it is damaged."""
        scratch = self._directory / SCRATCH.format(name)
        digest = hashlib.sha256()
        try:
            with (self._source / name).open("rb") as source, _create(scratch, MODE) as copy:
                while chunk := source.read(CHUNK_BYTES):
                    digest.update(chunk)
                    copy.write(chunk)
                copy.flush()
                os.fsync(copy.fileno())
            if digest.hexdigest() != self._wanted[name]:
                raise ValueError(f"{self._source / name} is damaged: its SHA-256 is not that of {SUMS_NAME}")
        except (OSError, ValueError):
            scratch.unlink(missing_ok=True)
            raise
        return scratch

    def _record(self, name: str) -> None:
        """Record a file that we put there. If the daemon dies before this, the file counts as another program's."""
        record = self._directory / RECORD_NAME
        recorded = _read_list(record) | {name: self._wanted[name]}
        scratch = record.with_name(SCRATCH.format(RECORD_NAME.lstrip(".")))
        with _create(scratch, 0o644) as stream:
            stream.write("".join(f"{digest}  {plugin}\n" for plugin, digest in sorted(recorded.items())).encode())
        scratch.replace(record)


def _create(path: Path, mode: int) -> BinaryIO:
    stream = created(path, mode)
    os.fchmod(stream.fileno(), mode)  # whatever the umask is
    return stream


def _read_list(path: Path) -> dict[str, str]:
    """Map names to SHA-256 in hexadecimal. Lines of any other form, and a file that is absent or too long, are ignored."""
    try:
        content = content_of(str(path))
    except FileNotFoundError:
        return {}
    if len(content) > LIST_BYTES_MAX:
        return {}
    matches = (_LINE.fullmatch(line) for line in content.decode(errors="replace").splitlines())
    return {match[2]: match[1] for match in matches if match}


def _sentence(error: OSError | ValueError) -> str:
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}"
    return str(error)
