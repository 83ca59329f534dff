"""Apply changed settings while the daemon runs: on SIGHUP at once, on a change of the settings file after a random delay.

A changed ConfigMap reaches all nodes of a fleet within a minute. The delay prevents them from calling EC2 all at once. A file with one
wrong line changes nothing: the settings in force stay, and a condition reports the error. kubelet replaces a ConfigMap's files by
one rename in their directory, which inotify reports. Without inotify the file is read periodically (docs/adr/0034). Source:
https://kubernetes.io/docs/concepts/configuration/configmap/, mounted ConfigMaps are updated automatically.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ipamd.core.health import Health
from ipamd.host.files import CHECK_INTERVAL_S, FollowedFile
from ipamd.model.conditions import ConditionCode, Problem, problem
from ipamd.model.errors import SettingsError, log_text
from ipamd.settings import CurrentSettings, load
from ipamd.settings.current import INVALID_SETTINGS
from ipamd.settings.settings_file import content_of

RESTART = "settings restart"
"""Subject of the condition that changed settings need a restart to take effect."""

log = logging.getLogger(__name__)


class SettingsReload(FollowedFile):
    """Reads the settings after SIGHUP and after a change of the settings file. `ask` may be called from any thread."""

    def __init__(
        self,
        current: CurrentSettings,
        *,
        health: Health,
        wake: Callable[[], None] = lambda: None,
        environ: Mapping[str, str] = os.environ,
        spread: Callable[[float], float] = lambda most_s: random.uniform(0.0, most_s),  # noqa: S311  # no secret
    ) -> None:
        """Keep the collaborators of the reload.

        Args:
            wake: makes the loop check the files now.
            environ: the environment from which settings are read.
            spread: chooses the delay after a change, in seconds. Its argument is the longest delay.
        """
        self._file = current.now.daemon.settings_file
        directories = []
        if self._file:
            directories.append(Path(self._file).parent)
        super().__init__(*directories, subject="settings reload")
        self._health = health
        self._wake = wake
        self._current = current
        self._environ = environ
        self._spread = spread
        self._is_asked = False
        self._read: bytes | None = None
        self._due_monotonic_s: float | None = None
        self._has_begun = False

    def ask(self) -> None:
        """Make the loop read the settings at once. It is called on SIGHUP."""
        self._is_asked = True
        self._wake()

    def check(self) -> None:
        """Read the settings after SIGHUP, or if the file has changed since the last reading and the delay is over."""
        now = time.monotonic()
        if self._file and not self._has_begun:
            self._has_begun = True
            self.read("start")  # the file may have changed since the process read it
        elif self._is_asked:
            self._is_asked = False
            self.read("SIGHUP")
        elif not self._file or self._content() == self._read:
            self._due_monotonic_s = None
        elif self._due_monotonic_s is None:
            delay_s = self._spread(float(self._current.now.daemon.reload_spread_s))
            self._due_monotonic_s = now + delay_s
            log.info("the settings file has changed; SIGHUP reads it at once file=%s read_in_s=%.0f", self._file, delay_s)
        elif now >= self._due_monotonic_s:
            self.read("the file has changed")

    def read(self, cause: str) -> None:
        """Read environment and file, and apply the changed settings that need no restart. Wrong settings are reported and change
        nothing.

        `cause`: why they are read, for the log.
        """
        self._due_monotonic_s = None
        self._read = None
        if self._file:
            self._read = self._content()
        before = self._current.generation.number
        try:
            change = self._current.offer(load(self._environ))
        except SettingsError as error:
            invalid = problem(ConditionCode.SETTINGS_INVALID, generation=before, cause=log_text(error))
            self._health.report(INVALID_SETTINGS, invalid, error=error)
            return
        self._health.report(INVALID_SETTINGS, None)
        self._health.report(RESTART, self._restart_problem(change.needs_restart))
        number = self._current.generation.number
        if number == before:
            if cause == "SIGHUP":
                log.info("settings (SIGHUP): nothing has changed file=%s", self._file or "VPC_IPAMD_SETTINGS_FILE names no file")
            return
        log.info("settings in effect cause=%s generation=%d changed=%s", cause, number, ", ".join(change.taken) or "nothing new")

    def _restart_problem(self, names: tuple[str, ...]) -> Problem | None:
        """Return the problem that settings need a restart, and that some of them do not reach pods that run after it."""
        if not names:
            return None
        kept = self._current.now.kept_by_pods(names)
        if kept:
            return problem(ConditionCode.SETTINGS_NEED_NEW_PODS, settings=", ".join(names), kept=", ".join(kept))
        return problem(ConditionCode.SETTINGS_NEED_RESTART, settings=", ".join(names))

    def _content(self) -> bytes | None:
        """Return the content of the file; None if it cannot be read. `read` reports that."""
        try:
            return content_of(self._file)
        except OSError:
            return None

    def wait_s(self) -> float:
        """See `FollowedFile.wait_s`."""
        if self._is_asked:
            return 0.0
        if self._due_monotonic_s is None:
            return CHECK_INTERVAL_S
        due_s = max(self._due_monotonic_s - time.monotonic(), 0.0)
        return min(CHECK_INTERVAL_S, due_s)
