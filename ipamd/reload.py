"""Take changed settings over while the daemon runs: on SIGHUP at once, on a change of the settings file after a random delay.

The delay keeps a fleet, whose ConfigMap changes everywhere within a minute, from asking EC2 all at once. A file that is wrong in any
line changes nothing: the generation in force is kept, and a condition says why. Kubelet replaces a ConfigMap's files with one rename
in their directory, which inotify tells; without inotify the clock notices (docs/adr/0034).
Source: https://kubernetes.io/docs/concepts/configuration/configmap/, mounted ConfigMaps are updated automatically.
"""

from __future__ import annotations

import logging
import os
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from ipamd.core.health import Health
from ipamd.host.files import LOOK_S, FollowedFile
from ipamd.model.errors import SettingsError, log_text
from ipamd.settings import CurrentSettings, load
from ipamd.settings.current import INVALID_SETTINGS
from ipamd.settings.settings_file import content_of

RESTART = "settings restart"
"""Subject of the condition of settings that wait for a restart."""

log = logging.getLogger(__name__)


class SettingsReload(FollowedFile):
    """Follows the settings file and SIGHUP. `ask` from any thread."""

    def __init__(
        self,
        current: CurrentSettings,
        *,
        health: Health,
        wake: Callable[[], None] = lambda: None,
        environ: Mapping[str, str] = os.environ,
        spread: Callable[[float], float] = lambda most_s: random.uniform(0.0, most_s),  # noqa: S311  # no secret
    ) -> None:
        """`wake` has the files looked at now; `spread` chooses the delay after a change of the file, in seconds up to its argument."""
        self._file = current.now.daemon.settings_file
        super().__init__(*([Path(self._file).parent] if self._file else []), subject="settings reload")
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
        """Have the settings read at once: SIGHUP."""
        self._is_asked = True
        self._wake()

    def look(self) -> None:
        """Read the settings if that was asked for, or if the file differs from what was read and its delay is over."""
        now = time.monotonic()
        if self._file and not self._has_begun:
            self._has_begun = True
            self.read("start")  # it may have changed since the process read it
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
        """Read environment and file, and put in force what is live of them; if anything is wrong, say so and change nothing."""
        self._due_monotonic_s = None
        self._read = self._content() if self._file else None
        before = self._current.generation.number
        try:
            change = self._current.offer(load(self._environ))
        except SettingsError as error:
            self._health.report(INVALID_SETTINGS, f"settings: generation {before} is kept: {log_text(error)}", error=error)
            return
        self._health.report(INVALID_SETTINGS, "")
        waiting = ", ".join(change.needs_restart)
        self._health.report(RESTART, waiting and f"settings: needs a restart: {waiting}")
        number = self._current.generation.number
        if number == before:
            if cause == "SIGHUP":
                log.info("settings (SIGHUP): nothing has changed file=%s", self._file or "VPC_IPAMD_SETTINGS_FILE names no file")
            return
        log.info("settings in effect cause=%s generation=%d changed=%s", cause, number, ", ".join(change.taken) or "nothing new")

    def _content(self) -> bytes | None:
        """What is in the file; None if it cannot be read, which reading the settings then says."""
        try:
            return content_of(self._file)
        except OSError:
            return None

    def wait_s(self) -> float:
        """See the base class."""
        if self._is_asked:
            return 0.0
        due_s = LOOK_S if self._due_monotonic_s is None else max(self._due_monotonic_s - time.monotonic(), 0.0)
        return min(LOOK_S, due_s)
