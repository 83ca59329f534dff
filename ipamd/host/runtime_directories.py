"""Ask the runtime for its plugin directories, at most once in ASK_AGAIN_S.

`PluginDirectory` needs them only if a plugin is not in the directory of the settings.
"""

from __future__ import annotations

import logging
from pathlib import Path

from ipamd.model.errors import RuntimeUnreachableError, log_text
from ipamd.ports.process import Clock
from ipamd.ports.runtime import Runtime

ASK_AGAIN_S = 60.0
"""Seconds between two questions for the directories. Ours: short enough, because a runtime reads its configuration only when it
starts, and the entry of a missing plugin is removed only after ten minutes (GONE_S in `appended_plugins.py`)."""

log = logging.getLogger(__name__)


class RuntimeDirectories:
    """The plugin directories in the runtime's last answer. Used by one thread."""

    def __init__(self, runtime: Runtime | None, *, clock: Clock) -> None:
        self._runtime = runtime
        self._clock = clock
        self._asked_monotonic_s: float | None = None
        self._directories: tuple[Path, ...] | None = None

    def directories(self) -> tuple[Path, ...] | None:
        """Return the directories; () if CRI is off or the runtime does not name any, None if it has not answered yet."""
        if self._runtime is None:
            return ()
        now_s = self._clock.monotonic()
        if self._asked_monotonic_s is None or now_s - self._asked_monotonic_s >= ASK_AGAIN_S:
            self._asked_monotonic_s = now_s
            try:
                self._directories = self._runtime.plugin_directories()
            except RuntimeUnreachableError as error:
                log.info("failed to read the plugin directories of the runtime error=%s", log_text(error))
        return self._directories
