"""Put the conflist back when something removes or alters it: without it the runtime calls another plugin, or cannot delete sandboxes.

Another CNI's installer, configuration management, or a clean-up of /etc/cni/net.d may do that under a running daemon. It is noticed by
inotify, and by the clock. While two programs write the same file, ours backs off and a condition says so (`fights.py`). The file is
kept only while the daemon serves: uninstall removes the DaemonSet first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ipamd import conflist
from ipamd.config import DaemonConfig
from ipamd.inotify import DirectoryWatch
from ipamd.model.errors import IpamError, log_text
from ipamd.model.repair import Repaired, RepairedObject, RepairKind
from ipamd.service.backoff import soonest_s
from ipamd.service.health import Health
from ipamd.service.reconcile.fights import Fights

LOOK_S = 30.0
"""Longest time between two looks at the file, whatever inotify says. Ours: as for the host's routing."""

SETTLE_S = 0.1
"""Wait after a change, so that a file which is being written is read whole. Ours."""

log = logging.getLogger(__name__)


class ConflistKeeper:
    """Keeps the conflist in place. `run` is a thread body; `stop` from any thread."""

    def __init__(
        self,
        config: DaemonConfig,
        *,
        fights: Fights,
        health: Health,
        note: Callable[[str], None],
        take_others: Callable[[], str] = lambda: "",
    ) -> None:
        """`note` records a repair in the ledger. `take_others` renames another software's conflist that sorts before ours."""
        self._config = config
        self._fights = fights
        self._health = health
        self._note = note
        self._take_others = take_others
        self._thing = RepairedObject(RepairKind.CONFLIST, str(config.conflist_path))
        self._watch = DirectoryWatch(config.conflist_path.parent)
        self._stopped = threading.Event()

    def run(self) -> None:
        """Thread body: look at the file after each change of its directory and on the clock, until `stop`."""
        try:
            while not self._stopped.is_set():
                self._watch.arm()
                try:
                    self.look()
                except Exception as error:  # noqa: BLE001  # top of a loop: it must outlive any one failure
                    self._health.record_error("conflist", error)
                    self._health.set_condition("conflist", f"conflist: {log_text(error)}; tried again")
                else:
                    self._health.clear_condition("conflist")
                self._watch.wait(soonest_s([LOOK_S, self._fights.wait_s()]) or SETTLE_S)
                self._stopped.wait(SETTLE_S)
        finally:
            self._watch.close()

    def stop(self) -> None:
        """End `run`."""
        self._stopped.set()
        self._watch.stop()

    def look(self) -> None:
        """Write the file if it is not what it must be, unless it is fought over; then see to another software's. Raises: IpamError."""
        self._keep()
        self._take_others()

    def _keep(self) -> None:
        found = conflist.difference(self._config)
        if not found or self._thing in self._fights.held():
            return
        conflist.write(self._config)
        repaired = Repaired(f"{self._config.conflist_path} {found}: written again", self._thing)
        log.warning("conflist: %s", repaired)
        self._fights.note([repaired])
        try:
            self._note(repaired)
        except IpamError as error:
            self._health.record_error("conflist", error)
