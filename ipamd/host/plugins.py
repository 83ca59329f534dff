"""Put the plugins that come with our image into the node's plugin directory: where one is missing, never over somebody else's.

A file is ours if its content is what `.vpc-ipamd-plugins` in that directory says we wrote there; ours are replaced by those of a
later image, others are left alone, whatever their version. The record has the format of sha256sum(1), and stays when we go.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Container
from pathlib import Path
from typing import BinaryIO

from ipamd.model.cniresult import SUPPORTED_VERSIONS, common_versions, limits, parse_versions
from ipamd.model.errors import PluginLackingError, log_text
from ipamd.model.kernel import Repaired, RepairedObject, RepairKind
from ipamd.model.record import dataclass, field
from ipamd.model.words import printable
from ipamd.ports import Clock
from ipamd.settings.settings_file import content_of, created

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
        self._outdated: dict[str, str] | None = None  # name -> recorded content of what we put there from another image
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
                recorded = _read_list(self._directory / RECORD_NAME)
                self._outdated = {
                    name: recorded[name] for name, digest in self._wanted.items() if recorded.get(name, digest) != digest
                }
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
        """Write down what we put there. A crash before it leaves a file that counts as somebody else's."""
        record = self._directory / RECORD_NAME
        recorded = _read_list(record) | {name: self._wanted[name]}
        scratch = record.with_name(SCRATCH.format(RECORD_NAME.lstrip(".")))
        with _create(scratch, 0o644) as stream:
            stream.write("".join(f"{digest}  {each}\n" for each, digest in sorted(recorded.items())).encode())
        scratch.replace(record)


def _create(path: Path, mode: int) -> BinaryIO:
    stream = created(path, mode)
    os.fchmod(stream.fileno(), mode)  # whatever the umask is
    return stream


def _read_list(path: Path) -> dict[str, str]:
    """Name -> SHA-256 in hexadecimal. Lines of any other form, and a file that is absent or too long, say nothing."""
    try:
        content = content_of(str(path))
    except FileNotFoundError:
        return {}
    if len(content) > LIST_BYTES_MAX:
        return {}
    found = (_LINE.fullmatch(line) for line in content.decode(errors="replace").splitlines())
    return {line[2]: line[1] for line in found if line}


def _sentence(error: OSError | ValueError) -> str:
    return f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else str(error)


# Ask a CNI plugin for its versions: run it, bounded in time and output, and believe nothing that it says without looking.
#
# The one place where the daemon starts a process. `subprocess` uses vfork(2), so that the size of the daemon does not matter.


ANSWER_S = 5.0
"""Ours: a plugin of Go needs 10 ms for VERSION; a node that has just booted may need a second to read it from the disk."""

OUTPUT_BYTES_MAX = 65536
SHOWN_MAX = 120
"""Characters of an answer that status shows. Ours."""

NO_INTERPRETER = "the interpreter or loader that it names is not in the daemon's container"

REQUEST = b'{"cniVersion":"1.1.0"}'
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


def ask_versions(path: Path, *, timeout_s: float = ANSWER_S) -> tuple[str, ...]:
    """Run the plugin with VERSION. Returns: the versions that it speaks.

    Raises: PluginLackingError with what it answered instead, and what to do.
    """
    # Source of the placeholders: github.com/containernetworking/cni pkg/invoke/exec.go; plugins on an old skel demand them.
    environment = {"CNI_COMMAND": "VERSION", "CNI_NETNS": "dummy", "CNI_IFNAME": "dummy", "CNI_PATH": "dummy", "PATH": PATH}
    try:
        output, status = _run(path, environment, timeout_s)
    except OSError as error:
        cause = NO_INTERPRETER if isinstance(error, FileNotFoundError) and path.exists() else error.strerror or error
        raise PluginLackingError(f"{path} cannot be run: {cause}", details=_ADVICE) from error
    if output is None:
        raise PluginLackingError(
            f"{path} gave no answer to VERSION of at most {OUTPUT_BYTES_MAX} bytes within {timeout_s:g} s", details=_ADVICE
        )
    said = printable(output.decode(errors="replace").strip(), most=SHOWN_MAX) or "nothing"
    if status:
        raise PluginLackingError(f"{path} ended with {status} when asked VERSION, and said: {said}", details=_ADVICE)
    try:
        return parse_versions(output)
    except ValueError as error:
        raise PluginLackingError(f"{path} was asked VERSION: {error}; it said: {said}", details=_ADVICE) from error


_ADVICE = "put a plugin there that speaks CNI, for this machine, or do not chain it"


def _run(path: Path, environment: dict[str, str], timeout_s: float) -> tuple[bytes | None, int]:
    """Output, None if it did not end in time or said too much, and exit status; the process group is gone afterwards."""
    reader, writer = os.pipe()
    os.write(writer, REQUEST)  # far less than a pipe holds
    os.close(writer)
    try:
        process = subprocess.Popen(
            [path],
            env=environment,
            cwd="/",
            stdin=reader,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
    finally:
        os.close(reader)
    with process:
        assert process.stdout is not None
        deadline_monotonic_s = time.monotonic() + timeout_s
        try:
            output = _read(process.stdout.fileno(), deadline_monotonic_s)
            if output is not None and not _has_ended(process.pid, deadline_monotonic_s):
                output = None
        finally:
            # Its leader is not reaped yet, so the group is the plugin's own, with what it left behind.
            os.killpg(process.pid, signal.SIGKILL)
    return output, process.returncode


def _has_ended(pid: int, deadline_monotonic_s: float) -> bool:
    """Wait for a process's end without reaping it."""
    descriptor = os.pidfd_open(pid)
    try:
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        return bool(poll.poll(max(deadline_monotonic_s - time.monotonic(), 0) * 1000))
    finally:
        os.close(descriptor)


def _read(descriptor: int, deadline_monotonic_s: float) -> bytes | None:
    """Everything until the end of the stream; None if it does not come in time, or is too long."""
    output = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while (left_s := deadline_monotonic_s - time.monotonic()) > 0 and len(output) <= OUTPUT_BYTES_MAX:
        if not poll.poll(left_s * 1000):
            return None
        chunk = os.read(descriptor, OUTPUT_BYTES_MAX)
        if not chunk:
            return output
        output += chunk
    return None


# What the plugins of a sandbox speak, asked again only when a file changed. Ours limits nothing.
#
# A plugin is *needed* if a sandbox cannot be made without it: ours, what the conflist chains, and `loopback`, which containerd runs
# for each sandbox in CNI 0.3.1, whatever the conflist says (github.com/containerd/go-cni, opts.go, WithLoNetwork). CRI-O needs no
# `loopback`.


LOOPBACK = "loopback"
LOOPBACK_VERSION = "0.3.1"

ASK_AGAIN_S = 60.0
"""After how long a plugin that did not answer well is asked again though its file is the same: the node may have been busy. Ours."""

Signature = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """What a file with this signature said; `versions` is () and `problem` a sentence if it did not answer well.

    A signature of () is that of no file, so it is asked again at the next look.
    """

    signature: Signature
    at_monotonic_s: float
    versions: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class Spoken:
    """In which versions the chain can be called, oldest first, and which plugins end early."""

    versions: tuple[str, ...]
    limits: tuple[str, ...] = ()


class PluginDirectory:
    """The node's plugin directory. One thread at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        own: str,
        chained: tuple[str, ...],
        bundled: Callable[[], frozenset[str]],
        needs_loopback: Callable[[], bool],
        clock: Clock,
        ask: Callable[[Path], tuple[str, ...]] = ask_versions,
    ) -> None:
        """Args: own: our plugin's name; chained: types behind it, in the conflist's order; bundled: names that come with us and
        are put in place; ask: asks one plugin."""
        self._directory = directory
        self._own = own
        self._chained = tuple(dict.fromkeys(chained))
        self._bundled = bundled
        self._needs_loopback = needs_loopback
        self._clock = clock
        self._ask = ask
        self._answers: dict[str, Answer] = {}

    def look(self, hindrance: str = "") -> Spoken:
        """Say what the needed plugins speak. `hindrance`: why what comes with us could not be put in place. Cost: a stat each.

        Raises: PluginLackingError that names all that is lacking, each with what to do.
        """
        needs_loopback = self._needs_loopback()
        needed = dict.fromkeys([self._own, *([LOOPBACK] if needs_loopback else []), *self._chained])
        answers = {name: self._answer(name, hindrance) for name in needed}
        problems = [answer.problem for answer in answers.values() if answer.problem]
        if needs_loopback and not answers[LOOPBACK].problem and LOOPBACK_VERSION not in answers[LOOPBACK].versions:
            problems.append(f"{self._directory / LOOPBACK} does not speak {LOOPBACK_VERSION}, in which containerd calls it")
        spoken = {name: answers[name].versions for name in self._chained}
        versions = common_versions(spoken)
        if not problems and not versions:
            said = ", ".join(f"{name} {'/'.join(each)}" for name, each in spoken.items())
            problems.append(f"no CNI version of {', '.join(SUPPORTED_VERSIONS)} is spoken by all chained plugins: {said}")
        if problems:
            raise PluginLackingError("; ".join(problems))
        return Spoken(versions, tuple(f"{name} ends at {highest}" for name, highest in limits(spoken).items()))

    def _answer(self, name: str, hindrance: str) -> Answer:
        """What a plugin speaks: remembered, or asked."""
        path, now = self._directory / name, self._clock.monotonic()
        try:
            found = path.stat()
            # What changes when a file is replaced, written, or made executable.
            signature = found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
        except FileNotFoundError:
            self._answers.pop(name, None)
            if path.is_symlink():
                return Answer((), now, problem=f"{path} is a link to a file that is missing: mend the link, or remove it")
            return Answer((), now, problem=f"{path} is missing{self._why_missing(name, hindrance)}")
        except OSError as error:
            return Answer((), now, problem=f"{path} cannot be looked at: {error.strerror}")
        known = self._answers.get(name)
        is_fresh = known is not None and known.signature == signature
        if known is None or not is_fresh or (known.problem and now - known.at_monotonic_s >= ASK_AGAIN_S):
            try:
                known = Answer(signature, now, self._ask(path))
            except PluginLackingError as error:
                is_being_written = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ETXTBSY
                # Its signature may be that of the whole file already: who wrote it waits for the disk and closes it then.
                known = Answer(() if is_being_written else signature, now, problem=log_text(error))
            self._answers[name] = known
        return known

    def _why_missing(self, name: str, hindrance: str) -> str:
        if name in self._bundled() and not hindrance:
            return ": something removes it whenever it is put in place; it is tried again"
        if name in self._bundled():
            return f" and could not be put in place ({hindrance}): mount the directory so that it can be written"
        if name == self._own:
            return ", and no pod can be made without it: restart the daemon's pod, whose init container puts it there"
        if name == LOOPBACK or hindrance:
            return f": put it there, of release 1.9 or later{f' ({hindrance})' if hindrance else ''}"
        return ": put it there, or do not chain it"
