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
"""Name of the list of plugins and their SHA-256, beside the plugins in the image. `tools/build_reference_plugins.sh` writes it."""

RECORD_NAME = ".vpc-ipamd-plugins"
"""Name of a list in the node's plugin directory: the plugins that we have put there, in the form of the image's list of checksums."""

SCRATCH = ".{}.vpc-ipamd"
"""Name of a file while it is written; {} is its final name."""

MODE = 0o755

LIST_BYTES_MAX = 65536
"""The largest number of bytes of a list. A longer list is ignored."""

AGAIN_S = 30.0
"""Seconds between two tries to put a plugin in place. Ours: a try on a full disk copies megabytes and removes them again. The
directory is watched, so without a pause each try would cause the next."""

CHUNK_BYTES = 1 << 20

_LINE = re.compile(r"([0-9a-f]{64}) [ *]([a-z0-9][a-z0-9-]{0,63})")


@dataclass(frozen=True, slots=True)
class BundleFailure:
    """A failed try to put a plugin in place.

    `sentence`: why it failed.
    `again_monotonic_s`: time of the next try.
    """

    sentence: str
    again_monotonic_s: float


@dataclass(slots=True)
class PlacedPlugins:
    """The results of `put_in_place`.

    `missing`: a report for each missing plugin that was put in place.
    `replaced`: a report for each plugin from an earlier image that was replaced.
    `problems`: a sentence for each plugin that could not be put in place or replaced.
    """

    missing: list[RepairReport] = field(default_factory=list)
    replaced: list[RepairReport] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Bundle:
    """The plugins of one image. Only one thread may use it at a time."""

    def __init__(self, source: Path, directory: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """`source`: the image's directory, which may be absent. `directory`: the node's plugin directory."""
        self._source = source
        self._directory = directory
        self._monotonic = monotonic
        self._wanted: dict[str, str] = {}
        # Name -> recorded digest of each plugin that we put there from another image; None before the first reading.
        self._outdated: dict[str, str] | None = None
        self._failures: dict[str, BundleFailure] = {}

    @property
    def names(self) -> frozenset[str]:
        """Names of the image's plugins; empty before `put_in_place` has read them."""
        return frozenset(self._wanted)

    def put_in_place(self, *, backed_off: Container[RepairedObject] = ()) -> PlacedPlugins:
        """Put missing plugins in place. The first call also replaces plugins that we put there from an earlier image.

        If one plugin cannot be put in place, the work continues with the next plugin, and the failed one is tried again after AGAIN_S.
        If nothing is missing, a call costs one stat for each plugin.

        `backed_off`: missing plugins that must not be put in place now.
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
        """Put one missing file in place. Returns: False if another program did so first."""
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
        """Replace a file that we put there. `recorded`: its digest. Returns: False if another program has replaced it."""
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
        """Write a copy of an image's plugin beside its final path, and check its digest.

        Returns: the copy's path. Raises: ValueError if the plugin is damaged; OSError.
        """
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
        """Record that we put a file in place. If the daemon dies before this, the file counts as another program's."""
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
    """Read a list: name of a plugin -> its SHA-256 in hexadecimal. Lines of another form are skipped.

    Returns: an empty dictionary if the file is absent or too long.
    """
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
