"""Report a file of custom networking that differs from the one in force, because the next start would take it, or end by it.

A ConfigMap's change reaches every node within a minute, and the restart that applies it perhaps days later, by a reboot. Nothing is
applied here: ENIs keep their subnets while the daemon runs (docs/adr/0030).
"""

from __future__ import annotations

from ipamd.core.health import Health
from ipamd.host.files import FollowedFile
from ipamd.model.conditions import ConditionCode, Problem, problem
from ipamd.model.errors import SettingsError, log_text
from ipamd.model.subnets import CustomNetwork
from ipamd.settings import SubnetsConfig
from ipamd.settings.network_file import read_network_file

NETWORK_FILE = "network file"
"""Subject of the condition."""


class NetworkFileWatch(FollowedFile):
    """Compares the file with the one in force. `in_force`: what the start read; None without custom networking: no file is read."""

    def __init__(self, config: SubnetsConfig, *, in_force: CustomNetwork | None, health: Health) -> None:
        super().__init__(config.network_file.parent, subject=NETWORK_FILE)
        self._path = config.network_file
        self._in_force = in_force
        self._condition = health.claim(NETWORK_FILE, part="content")

    def check(self) -> None:
        """Read the file, as a start would, and report a difference."""
        if self._in_force is not None:
            self._condition.report(self._difference(self._in_force))

    def _difference(self, in_force: CustomNetwork) -> Problem | None:
        try:
            network = read_network_file(self._path)
        except SettingsError as error:
            return problem(ConditionCode.NETWORK_FILE_REFUSED, cause=log_text(error))
        if network == in_force:
            return None
        return problem(ConditionCode.NETWORK_FILE_DIFFERS, path=self._path)
