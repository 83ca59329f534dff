"""A port of ours that somebody else has: the daemon serves without it, and listens as soon as it is free.

amazon-vpc-cni-k8s serves its metrics on the same port as we do, so on a node that comes over it is taken until the other daemon has
gone, which is when ours is needed at once. And what people and scrapers look at must never keep a node from its CNI.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from ipamd.metrics_port import MetricsPort
from ipamd.model.errors import PortTakenError, SettingsError, log_text
from ipamd.service.health import Health

RETRY_S = 1.0
"""Ours: a bind that is refused costs 0.05 ms."""

log = logging.getLogger(__name__)


class LatePort:
    """One port. `close` may be called from another thread than `start`."""

    def __init__(self, name: str, listen: Callable[[], MetricsPort | None], *, health: Health) -> None:
        """`listen` serves the port; None if it is turned off. `name`: of the thread and the condition."""
        self._subject = name
        self._listen = listen
        self._health = health
        self._port: MetricsPort | None = None
        self._stopped = threading.Event()
        self._listening = threading.Lock()

    def start(self) -> LatePort:
        """Listen now, or once the port is free. Raises: SettingsError if the settings are wrong."""
        try:
            self._port = self._listen()
        except PortTakenError as error:
            self._tell(error)
            log.warning("%s; the daemon serves without it until then", log_text(error))
            threading.Thread(target=self._run, name=self._subject, daemon=True).start()
        return self

    def close(self) -> None:
        """End it, or the wait for it."""
        self._stopped.set()
        with self._listening:
            if self._port is not None:
                self._port.close()

    def _run(self) -> None:
        while not self._stopped.wait(RETRY_S):
            with self._listening:
                if self._stopped.is_set():
                    return
                try:
                    self._port = self._listen()
                except SettingsError as error:  # also one that a file of the settings causes only now
                    self._tell(error)
                    continue
            self._health.clear_condition(self._subject)
            log.info("the %s is free: it is served", self._subject)
            return

    def _tell(self, error: SettingsError) -> None:
        self._health.set_condition(self._subject, f"{self._subject}: {log_text(error)}; tried again every second")
