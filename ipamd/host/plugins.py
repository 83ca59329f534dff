"""Find the CNI versions of a sandbox's plugins. After a good answer a plugin is asked again only if its file changed.

A plugin is *needed* if a sandbox cannot be made without it. Needed are our own plugin (which has all versions), the plugins that the
conflist chains, and `loopback`, which containerd runs for each sandbox in CNI 0.3.1 even if the conflist does not name it
(github.com/containerd/go-cni, opts.go, WithLoNetwork). CRI-O needs no `loopback`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from ipamd.host.plugin_versions import ask_versions
from ipamd.model.chain_versions import common_versions, limits
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.errors import PluginLackingError, log_text
from ipamd.model.record import dataclass
from ipamd.ports.process import Clock

LOOPBACK = "loopback"

LOOPBACK_VERSION = "0.3.1"

ASK_AGAIN_S = 60.0
"""Seconds until a plugin that gave no good answer is asked again, even if its file did not change: the node may only have been busy.
Ours: a plugin that never answers well costs little if it is run once a minute."""

Signature = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PluginVersions:
    """The answer of a plugin to the question for its versions.

    `signature`: values that identify the content of the plugin's file; () if the plugin must be asked again the next time.
    `at_monotonic_s`: when it was asked.
    `versions`: the CNI versions that it has; () without a good answer.
    `problem`: a sentence about the missing or bad answer; "" for a good one.
    """

    signature: Signature
    at_monotonic_s: float
    versions: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ChainVersions:
    """The CNI versions of a chain of plugins.

    `versions`: the versions that all its plugins have, oldest first.
    `limits`: a text for each plugin that lacks later versions.
    """

    versions: tuple[str, ...]
    limits: tuple[str, ...] = ()


class PluginDirectory:
    """Asks the plugins in the node's plugin directory for their versions. Only one thread may use it at a time."""

    def __init__(
        self,
        directory: Path,
        *,
        own_plugin: str,
        chained: tuple[str, ...],
        bundled: Callable[[], frozenset[str]],
        needs_loopback: Callable[[], bool],
        clock: Clock,
        ask: Callable[[Path], tuple[str, ...]] = ask_versions,
        more_directories: Callable[[], Sequence[Path] | None] = tuple,
    ) -> None:
        """Ask nothing yet.

        Args:
            own_plugin: type of our plugin.
            chained: types of the plugins behind it, in the conflist's order.
            bundled: returns the plugins of our image, which are put in place where they are missing.
            ask: asks one plugin.
            more_directories: returns further plugin directories of the runtime, None while they are not known. Called only if a plugin
                is missing.
        """
        self._directory = directory
        self._more_directories = more_directories
        self._own = own_plugin
        self._chained = tuple(dict.fromkeys(chained))
        self._bundled = bundled
        self._needs_loopback = needs_loopback
        self._clock = clock
        self._ask = ask
        self._answers: dict[Path, PluginVersions] = {}

    def ask_needed(self, hindrance: str = "") -> ChainVersions:
        """Return the versions that our plugin and all chained plugins have. If no file changed, a call costs a stat of each plugin.

        `loopback` does not limit the versions, because containerd calls it only in LOOPBACK_VERSION.

        Args:
            hindrance: why plugins of our image could not be put in place; "" if all are in place.
        Raises: PluginLackingError, which describes every missing plugin and bad answer, with advice, or says that the plugins have no
            version in common.
        """
        needs_loopback = self._needs_loopback()
        needed = [self._own, *self._chained]
        if needs_loopback:
            needed.insert(1, LOOPBACK)
        answers = {name: self._versions_of(self._directory / name, hindrance) for name in dict.fromkeys(needed)}
        problems = self._problems(answers, needs_loopback=needs_loopback)
        by_plugin = {name: answers[name].versions for name in self._chained}
        common = common_versions(by_plugin)
        if not problems and not common:
            problems.append(_without_common_version(by_plugin))
        if problems:
            raise PluginLackingError("; ".join(problems))
        return ChainVersions(common, tuple(f"{name} ends at {highest}" for name, highest in limits(by_plugin).items()))

    def ask_appended(self, name: str) -> PluginVersions | None:
        """Ask a plugin that other software appended for its versions. If its file did not change, a call costs a stat.

        Returns: None if no directory of the runtime has the plugin. If a directory that the daemon cannot see may have the plugin, the
            answer's `problem` says so.
        """
        if not _is_file_name(name):
            return None  # a runtime does not run a plugin with such a name
        if os.path.lexists(self._directory / name):
            return self._versions_of(self._directory / name, "")
        more = self._more_directories()
        if more is None:
            return self._unseen(name, "a directory that the runtime has not named yet")
        for directory in more:
            if os.path.lexists(directory / name):
                return self._versions_of(directory / name, "")
        unseen = [str(directory) for directory in dict.fromkeys((self._directory, *more)) if not directory.is_dir()]
        if not unseen:
            return None
        return self._unseen(name, f"{', '.join(unseen)}, which cannot be seen from here")

    def _unseen(self, name: str, place: str) -> PluginVersions:
        return PluginVersions((), self._clock.monotonic(), problem=f"{name} may be in {place}")

    def _problems(self, answers: Mapping[str, PluginVersions], *, needs_loopback: bool) -> list[str]:
        """Return a sentence for each plugin without a good answer, and for a `loopback` without the version that containerd uses."""
        problems = [answer.problem for answer in answers.values() if answer.problem]
        if needs_loopback and not answers[LOOPBACK].problem and LOOPBACK_VERSION not in answers[LOOPBACK].versions:
            problems.append(f"{self._directory / LOOPBACK} does not speak {LOOPBACK_VERSION}, in which containerd calls it")
        return problems

    def _versions_of(self, path: Path, hindrance: str) -> PluginVersions:
        """Return the remembered answer of a plugin if its file is the same; otherwise ask the plugin.

        A bad answer is remembered only for ASK_AGAIN_S. If the file is missing, the answer's `problem` says so.
        """
        now_s = self._clock.monotonic()
        try:
            status = path.stat()
            # These fields change when a file is replaced, written, or made executable.
            signature = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns
        except FileNotFoundError:
            self._answers.pop(path, None)
            if path.is_symlink():
                return PluginVersions(
                    (), now_s, problem=f"{path} is a link to a file that is missing: mend the link, or remove it"
                )
            return PluginVersions((), now_s, problem=f"{path} is missing{self._missing_text(path.name, hindrance)}")
        except OSError as error:
            return PluginVersions((), now_s, problem=f"{path} cannot be looked at: {error.strerror}")
        remembered = self._answers.get(path)
        if remembered is not None and remembered.signature == signature:
            is_retry_due = remembered.problem and now_s - remembered.at_monotonic_s >= ASK_AGAIN_S
            if not is_retry_due:
                return remembered
        answer = self._ask_plugin(path, signature, now_s)
        self._answers[path] = answer
        return answer

    def _ask_plugin(self, path: Path, signature: Signature, now_s: float) -> PluginVersions:
        """Run a plugin to ask for its versions; a failure is the answer's `problem`."""
        try:
            return PluginVersions(signature, now_s, self._ask(path))
        except PluginLackingError as error:
            is_being_written = isinstance(error.__cause__, OSError) and error.__cause__.errno == errno.ETXTBSY
            if is_being_written:
                # The file may be complete and have its final signature already, while its writer waits for the disk before closing it.
                # Without a signature the next check asks again.
                signature = ()
            return PluginVersions(signature, now_s, problem=log_text(error))

    def _missing_text(self, name: str, hindrance: str) -> str:
        if name in self._bundled() and not hindrance:
            return ": something removes it whenever it is put in place; it is tried again"
        if name in self._bundled():
            return f" and could not be put in place ({hindrance}): mount the directory so that it can be written"
        if name == self._own:
            return ", and no pod can be made without it: restart the daemon's pod, whose init container puts it there"
        if name == LOOPBACK or hindrance:
            return f": put it there, of release 1.9 or later{f' ({hindrance})' if hindrance else ''}"
        return ": put it there, or do not chain it"


def _without_common_version(by_plugin: Mapping[str, tuple[str, ...]]) -> str:
    """Describe chained plugins that have no version in common."""
    versions = ", ".join(f"{name} {'/'.join(versions)}" for name, versions in by_plugin.items())
    return f"no CNI version of {', '.join(SUPPORTED_VERSIONS)} is spoken by all chained plugins: {versions}"


def _is_file_name(name: str) -> bool:
    return "/" not in name and "\0" not in name and name not in (".", "..")
