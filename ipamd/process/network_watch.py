"""Report a network file that differs from the content in force, because the next start would apply it, or fail if it is wrong.

A change of a ConfigMap reaches every node within a minute, but the restart that applies it may come days later, for example by a
reboot.
This module applies nothing: ENIs keep their subnets while the daemon runs (docs/adr/0030).
"""

from __future__ import annotations

from ipamd.core.health import Health
from ipamd.host.files import FollowedFile
from ipamd.model.conditions import ConditionCode, Problem, problem
from ipamd.model.errors import SettingsError, log_text
from ipamd.model.network_file import NetworkFile
from ipamd.settings import SubnetsConfig
from ipamd.settings.network_file import read_network_file

NETWORK_FILE = "network file"
"""Subject of the condition that the network file has changed, or is wrong."""


class NetworkFileWatch(FollowedFile):
    """Reports whether the network file has changed since the start. Only a start applies the file.

    The file is read only if a setting that uses it is on.
    """

    def __init__(self, config: SubnetsConfig, *, in_force: NetworkFile, health: Health) -> None:
        """`in_force`: the content of the file that the start read."""
        super().__init__(config.network_file.parent, subject=NETWORK_FILE)
        self._config = config
        self._in_force = in_force
        self._condition = health.claim(NETWORK_FILE, part="content")

    def check(self) -> None:
        """Read the file in the same way as a start, and report a difference."""
        if self._config.reads_network_file:
            self._condition.report(self._difference())

    def _difference(self) -> Problem | None:
        try:
            network = read_network_file(self._config)
        except SettingsError as error:
            return problem(ConditionCode.NETWORK_FILE_REFUSED, cause=log_text(error))
        if network == self._in_force:
            return None
        return problem(ConditionCode.NETWORK_FILE_DIFFERS, path=self._config.network_file)
