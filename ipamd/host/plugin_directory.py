"""What the plugins beside ours speak, asked again only when a file changed.

A plugin is *needed* if a sandbox cannot be made without it: what the conflist chains, and `loopback`, which containerd runs for each
sandbox in CNI 0.3.1, whatever the conflist says (github.com/containerd/go-cni, opts.go, WithLoNetwork). CRI-O needs no `loopback`.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ipamd.host.plugin_versions import ask_versions
from ipamd.model.cniresult import SUPPORTED_VERSIONS, common_versions, limits
from ipamd.model.errors import PluginLackingError, log_text
from ipamd.ports import Clock

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
        chained: tuple[str, ...],
        bundled: Callable[[], frozenset[str]],
        needs_loopback: Callable[[], bool],
        clock: Clock,
        ask: Callable[[Path], tuple[str, ...]] = ask_versions,
    ) -> None:
        """Args: chained: types behind ours, in the conflist's order; bundled: names that come with us; ask: asks one plugin."""
        self._directory = directory
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
        needed = dict.fromkeys([*([LOOPBACK] if needs_loopback else []), *self._chained])
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
            signature = _signature(path)
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
            self._answers[name] = known = self._asked(path, signature, now)
        return known

    def _asked(self, path: Path, signature: Signature, now: float) -> Answer:
        try:
            return Answer(signature, now, self._ask(path))
        except PluginLackingError as error:
            is_being_written = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ETXTBSY
            # Its signature may be that of the whole file already: who wrote it waits for the disk and closes it then.
            return Answer(() if is_being_written else signature, now, problem=log_text(error))

    def _why_missing(self, name: str, hindrance: str) -> str:
        if name in self._bundled() and not hindrance:
            return ": something removes it whenever it is put in place; it is tried again"
        if name in self._bundled():
            return f" and could not be put in place ({hindrance}): mount the directory so that it can be written"
        if name == LOOPBACK or hindrance:
            return f": put it there, of release 1.9 or later{f' ({hindrance})' if hindrance else ''}"
        return ": put it there, or do not chain it"


def _signature(path: Path) -> Signature:
    """What changes when a file is replaced, written, or made executable. Raises: OSError."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
