"""Put the plugins that come with our image into the node's plugin directory: where one is missing, never over somebody else's.

A file is ours if its content is what `.vpc-ipamd-plugins` in that directory says we wrote there; ours are replaced by those of a
later image, others are left alone, whatever their version. The record has the format of sha256sum(1), and stays when we go.
"""

from __future__ import annotations

import hashlib
import os
import re
import time
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from ipamd.model.kernel import Repaired, RepairedObject, RepairKind

SUMS_NAME = "SHA256SUMS"
"""Beside the plugins in the image: what `tools/build_reference_plugins.sh` built."""

RECORD_NAME = ".vpc-ipamd-plugins"
SCRATCH = ".{}.vpc-ipamd"
MODE = 0o755
LIST_BYTES_MAX = 65536

AGAIN_S = 30.0
"""Between two tries to put one plugin in place. Each copies megabytes into a directory that is watched, where a full disk removes
them again: without a pause one try would cause the next. Ours."""

CHUNK_BYTES = 1 << 20
_LINE = re.compile(r"([0-9a-f]{64}) [ *]([a-z0-9][a-z0-9-]{0,63})")


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something could not be put in place, and when it is tried again."""

    sentence: str
    again_monotonic_s: float


@dataclass(slots=True)
class Placed:
    """What was put in place, what was replaced, and what could not be; one sentence each."""

    missing: list[Repaired] = field(default_factory=list)
    replaced: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class Bundle:
    """The plugins of one image. One thread at a time."""

    def __init__(self, source: Path, directory: Path, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        """Args: source: of the image, may be absent; directory: the node's."""
        self._source = source
        self._directory = directory
        self._monotonic = monotonic
        self._wanted: dict[str, str] = {}
        self._outdated: dict[str, str] | None = None
        self._failures: dict[str, Failure] = {}

    @property
    def names(self) -> frozenset[str]:
        """What comes with the image, as it was read by `put_in_place`."""
        return frozenset(self._wanted)

    def put_in_place(self, *, but: Container[RepairedObject] = ()) -> Placed:
        """Put what is missing in place, and once replace our own of an earlier image. Cost, if there is nothing to do: one stat each.

        What cannot be put in place keeps nothing else from it, and is tried again after AGAIN_S. `but`: what is left alone, because
        it is fought over.
        """
        placed = Placed()
        try:
            self._wanted = self._wanted or _read_list(self._source / SUMS_NAME)
            if self._outdated is None:
                self._outdated = self._find_outdated()
        except OSError as error:
            placed.problems.append(_sentence(error))
            return placed
        for name in self._wanted:
            try:
                self._see_to(name, self._outdated, placed, but)
            except (OSError, ValueError) as error:
                self._failures[name] = Failure(_sentence(error), self._monotonic() + AGAIN_S)
            if name in self._failures:
                placed.problems.append(self._failures[name].sentence)
        return placed

    def _see_to(self, name: str, outdated: dict[str, str], placed: Placed, but: Container[RepairedObject]) -> None:
        target = self._directory / name
        is_missing = not os.path.lexists(target)
        if is_missing or name in outdated:
            if name in self._failures and self._monotonic() < self._failures[name].again_monotonic_s:
                return
            thing = RepairedObject(RepairKind.PLUGIN, str(target))
            if is_missing:
                if thing not in but and self._put(name):
                    placed.missing.append(Repaired(f"{target} was missing: put in place", thing))
            elif self._replace(name, outdated[name]):
                placed.replaced.append(f"{target} was of an earlier image: replaced")
            outdated.pop(name, None)
        self._failures.pop(name, None)

    def _find_outdated(self) -> dict[str, str]:
        """Name -> recorded content of what we put there from another image."""
        recorded = _read_list(self._directory / RECORD_NAME)
        return {name: recorded[name] for name, digest in self._wanted.items() if recorded.get(name, digest) != digest}

    def _put(self, name: str) -> bool:
        """Place one file; False if somebody else was first."""
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
        if target.is_symlink() or not target.is_file() or _digest(target) != recorded:
            return False
        self._copy(name).replace(target)
        self._record(name)
        return True

    def _copy(self, name: str) -> Path:
        """Write a whole, checked copy beside its place. Returns: its path. Raises: ValueError if it is damaged."""
        scratch = self._directory / SCRATCH.format(name)
        scratch.unlink(missing_ok=True)  # of a daemon that was killed, or a stranger's link
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
        """Write down what we put there. A crash before it leaves a file that counts as somebody else's."""
        record = self._directory / RECORD_NAME
        recorded = _read_list(record) | {name: self._wanted[name]}
        scratch = record.with_name(SCRATCH.format(RECORD_NAME.lstrip(".")))
        scratch.unlink(missing_ok=True)
        with _create(scratch, 0o644) as stream:
            stream.write("".join(f"{digest}  {each}\n" for each, digest in sorted(recorded.items())).encode())
        scratch.replace(record)


def _create(path: Path, mode: int) -> BinaryIO:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    os.fchmod(descriptor, mode)  # whatever the umask is
    return os.fdopen(descriptor, "wb")


def _read_list(path: Path) -> dict[str, str]:
    """Name -> SHA-256 in hexadecimal. Lines of any other form, and a file that is absent or too long, say nothing."""
    try:
        with path.open("rb") as stream:
            content = stream.read(LIST_BYTES_MAX + 1)
    except FileNotFoundError:
        return {}
    if len(content) > LIST_BYTES_MAX:
        return {}
    found = (_LINE.fullmatch(line) for line in content.decode(errors="replace").splitlines())
    return {line[2]: line[1] for line in found if line}


def _sentence(error: OSError | ValueError) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


def _digest(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
