"""Put the conflist back when something removes or alters it: without it the runtime calls another plugin, or cannot delete sandboxes.

Another CNI's installer, configuration management, or a clean-up of /etc/cni/net.d may do that under a running daemon. It is noticed by
inotify, and by the clock. So are changes of the plugins that it chains: one of ours that went is put back, and the file offers what
all of them speak now; what cannot be mended is a condition, and the file stays, because DEL needs it (`chained_plugins.py`).
While two programs write the same file, ours backs off and a condition says so (`fights.py`). The file is kept only while the daemon
serves: uninstall removes the DaemonSet first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ipamd import conflist
from ipamd.chained_plugins import ChainedPlugins
from ipamd.file_follower import SETTLE_S, FileFollower
from ipamd.model.errors import IpamError
from ipamd.model.repair import Repaired, RepairedObject, RepairKind
from ipamd.service.backoff import soonest_s
from ipamd.service.health import Health
from ipamd.service.reconcile.fights import Fights
from ipamd.settings import DaemonConfig

log = logging.getLogger(__name__)


HELD_S = 1.0
"""Between two looks while another software's daemon keeps us from giving addresses: a daemon that goes announces nothing. Ours."""


@dataclass(frozen=True, slots=True)
class Others:
    """Another software on the node. `take` renames its conflist, which sorts before ours; in `directories` its coming is seen."""

    take: Callable[[], str]
    directories: Sequence[Path] = ()


NOBODY = Others(lambda: "")


class ConflistKeeper(FileFollower):
    """Keeps the conflist in place."""

    def __init__(
        self,
        config: DaemonConfig,
        *,
        plugins: ChainedPlugins,
        fights: Fights,
        health: Health,
        note: Callable[[str], None],
        others: Others = NOBODY,
    ) -> None:
        """`note` records a repair in the ledger. `others` is looked at with our own file."""
        super().__init__(config.conflist_path, config.cni_bin_dir, *others.directories, subject="conflist", health=health)
        self._config = config
        self._plugins = plugins
        self._fights = fights
        self._note = note
        self._others = others
        self._thing = RepairedObject(RepairKind.CONFLIST, str(config.conflist_path))

    def look(self) -> None:
        """Write the file if it is not what it must be, unless it is fought over; then see to another software's. Raises: IpamError."""
        self._keep()
        self._others.take()

    def _keep(self) -> None:
        held = self._fights.held()
        self._note_all(self._plugins.restore(but=held))
        if self._plugins.look() and not self.is_stopped:
            path = conflist.write(self._config, self._plugins.versions)
            log.info("conflist: %s offers %s now", path, ", ".join(self._plugins.versions))
        found = conflist.difference(self._config, self._plugins.versions)
        if not found or self._thing in held or self.is_stopped:
            return  # stopped: an export may have removed it while the plugins were asked
        conflist.write(self._config, self._plugins.versions)
        repaired = Repaired(f"{self._config.conflist_path} {found}: written again", self._thing)
        log.warning("conflist: %s", repaired)
        self._note_all([repaired])

    def _note_all(self, repairs: Sequence[Repaired]) -> None:
        """Count repairs, and record them in the ledger."""
        self._fights.note(repairs)
        try:
            for repaired in repairs:
                self._note(repaired)
        except IpamError as error:
            self._health.record_error("conflist", error)

    def _wait_s(self) -> float:
        look_s = HELD_S if self._health.is_held else super()._wait_s()
        return soonest_s([look_s, self._fights.wait_s()]) or SETTLE_S
