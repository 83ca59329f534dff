"""Let the daemon start although another program has one of its ports, and listen on that port as soon as it is free.

amazon-vpc-cni-k8s serves its metrics on the same port as we do, so during a migration the port is taken until the other daemon ends.
The daemon must not wait for that: a port for people and scrapers must never delay the node's CNI.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ipamd.core.health import Health
from ipamd.core.loop import Loop
from ipamd.http.port import MetricsPort
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import PortTakenError, SettingsError, log_text
from ipamd.ports.process import Clock

RETRY_S = 1.0
"""Pause between two attempts to listen. Ours: short, because a failed bind costs only 0.05 ms."""


class LatePorts:
    """The HTTP ports of the daemon. One loop retries the ports that are taken. A port's name is the subject of its condition."""

    def __init__(self, ports: Mapping[str, Callable[[], MetricsPort | None]], *, health: Health, clock: Clock) -> None:
        """`ports`: by name, a function that opens the port. It returns None if the port is turned off, and raises PortTakenError."""
        self._waiting = dict(ports)
        self._served: list[MetricsPort] = []
        self._health = health
        self.loop = Loop("ports", self.turn, health=health, clock=clock)

    def start(self, name: str) -> None:
        """Listen now; if another program has the port, leave it to the loop. Raises: SettingsError if the settings are wrong."""
        try:
            self._listen(name)
        except PortTakenError as error:
            self._report(name, error)

    def turn(self) -> float:
        """Retry the waiting ports; the loop ends once every port is served. Returns: seconds until the next try."""
        for name in list(self._waiting):
            try:
                self._listen(name)
            except SettingsError as error:  # a changed settings file may have made the address wrong
                self._report(name, error)
            except RuntimeError as error:  # no thread can be made
                self._report(name, PortTakenError(log_text(error)))
        if not self._waiting:
            self.loop.stop()
        return RETRY_S

    def close(self) -> None:
        """Close every open port, and stop the loop, so that the waiting ports are given up."""
        self.loop.stop()
        while self._served:
            self._served.pop().close()

    def _listen(self, name: str) -> None:
        port = self._waiting[name]()
        del self._waiting[name]
        self._health.report(name, None)
        if port is not None:
            self._served.append(port)

    def _report(self, name: str, error: SettingsError) -> None:
        self._health.report(name, problem(ConditionCode.PORT_TAKEN, cause=log_text(error)))
