"""The plugins that sandboxes need beside ours: the start waits for them, and they are looked at as long as the daemon serves.

A conflist that names a plugin which is not there, or which does not speak the version that the runtime chooses, attracts pods that
never start; so it is not written, and the daemon is not *ready*, before each plugin has answered (docs/adr/0039). Later a plugin that
is lacking is a condition only: the conflist stays, because DEL needs it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Container

from ipamd.conflist import chained_types
from ipamd.inotify import DirectoryWatch
from ipamd.model.cniversion import SUPPORTED_VERSIONS
from ipamd.model.errors import NotServingError, PluginLackingError
from ipamd.model.repair import Repaired, RepairedObject
from ipamd.model.sandbox import RuntimeInfo
from ipamd.plugins.bundle import Bundle
from ipamd.plugins.directory import PluginDirectory, Spoken
from ipamd.ports import Clock
from ipamd.service.health import Health
from ipamd.settings import Settings

CONDITION = "plugins"

LOOK_S = 10.0
"""Longest time between two looks while the start waits, whatever inotify says. Ours; a look costs a few stats."""

SETTLE_S = 0.1
"""Wait after a change, so that a file which is being written is whole when it is asked. Ours."""

WITHOUT_LOOPBACK = ("cri-o",)
"""Runtimes, as CRI names them, that bring `lo` up themselves. Source: github.com/cri-o/ocicni, pkg/ocicni/util_linux.go."""

log = logging.getLogger(__name__)


class ChainedPlugins:
    """What the conflist may offer. `wait`, then `restore` and `look`, from one thread at a time; `stop` from any."""

    def __init__(self, settings: Settings, *, runtime: Callable[[], RuntimeInfo | None], health: Health, clock: Clock) -> None:
        """Nothing is looked at yet. `runtime`: which one has answered, None before."""
        config = settings.daemon
        self._health = health
        self._is_asked = settings.runtime.cri_socket != "off"
        self._runtime = runtime
        self._bundle = Bundle(config.reference_plugins, config.cni_bin_dir, monotonic=clock.monotonic)
        self._directory = PluginDirectory(
            config.cni_bin_dir,
            chained=chained_types(config),
            bundled=lambda: self._bundle.names,
            needs_loopback=self._needs_loopback,
            clock=clock,
        )
        self._watch = DirectoryWatch(config.cni_bin_dir)
        self._stopped = threading.Event()
        self._told = ""
        self._hindrance = ""
        self.versions: tuple[str, ...] = SUPPORTED_VERSIONS

    def wait(self) -> str:
        """Return when every plugin that is needed has answered, with what they speak. Raises: NotServingError if it is stopped."""
        try:
            while not self._stopped.is_set():
                self._watch.arm()
                self.restore()
                spoken = self._spoken()
                if spoken is not None:
                    self.versions = spoken.versions
                    return "; ".join([f"CNI {', '.join(spoken.versions)}", *spoken.limits])
                self._watch.wait(LOOK_S)
                self._stopped.wait(SETTLE_S)
        finally:
            self._watch.close()
        raise NotServingError("vpc-ipamd is shutting down")

    def restore(self, *, but: Container[RepairedObject] = ()) -> list[Repaired]:
        """Put in place what comes with us and is missing, `but` what is fought over. Returns: what was missing."""
        placed = self._bundle.put_in_place(but=but)
        self._hindrance = "; ".join(placed.problems)
        for sentence in [*placed.missing, *placed.replaced]:
            log.info("plugins: %s", sentence)
        return placed.missing

    def look(self) -> bool:
        """Ask those whose files changed. Returns: whether the conflist must offer other versions than before."""
        before, spoken = self.versions, self._spoken()
        if spoken is not None:
            self.versions = spoken.versions
        return self.versions != before

    def stop(self) -> None:
        """End `wait`."""
        self._stopped.set()
        self._watch.stop()

    def _spoken(self) -> Spoken | None:
        """What the plugins speak; None if one is lacking, which is a condition then, and logged once."""
        try:
            spoken = self._directory.look(self._hindrance)
        except PluginLackingError as error:
            sentence = f"{CONDITION}: {error}"
            if sentence != self._told:
                self._told = sentence
                log.warning("%s", sentence)
                self._health.record_error(CONDITION, error)
            self._health.set_condition(CONDITION, sentence)
            return None
        self._told = ""
        self._health.clear_condition(CONDITION)
        return spoken

    def _needs_loopback(self) -> bool:
        runtime = self._runtime()
        return self._is_asked and (runtime is None or runtime.name.lower() not in WITHOUT_LOOPBACK)
