"""Serve `/healthz` and `/readyz` for kubelet's probes. An answer takes 0.1 ms; an exec probe of `ipamctl` would take 80 ms.

The pages are served on two ports: on a loopback port (`VPC_IPAMD_HEALTH_ADDRESS`) for kubelet, and on the metrics port. If kubelet
probed the metrics port, a pod that floods the port could make kubelet kill the daemon (I16). *Alive* means that the CNI socket takes
connections and that requests are answered, which `ipamd/rpc/watch.py` checks by calls of its own. *Ready* means the same as in
`ipamctl status`; on the loopback port a daemon that was ready stays so while it drains. Rejected: grpc.health.v1, for which kubelet
needs gRPC on TCP (docs/adr/0033-a-roll-changes-no-condition.md).
"""

from __future__ import annotations

import errno
import math
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ipamd.core.health import Health, Phase
from ipamd.http.listening import Pages, plain_page
from ipamd.http.port import NO_DESCRIPTOR

NO_ROOM = NO_DESCRIPTOR | {errno.EAGAIN}
"""Errors of a connect if no descriptor is left, or if the listener's queue is full. A process may listen nevertheless."""

CONNECT_S = 0.5
"""Longest wait for a connection to the CNI socket. Ours: the listener's queue takes a connection at once, unless many ADDs filled
it."""

START_S = 20.0
"""For this time after the start, the answer to a probe waits until the daemon is ready. Ours: kubelet reports each failed probe as
a Warning event and waits 30 s for an answer (manifests/base/daemonset.yaml); a start takes a second or two, and ten on a node that is
short of CPU."""

LISTENING_AGE_S = 0.5
"""Probes within this time share an answer. Ours: a connection to the CNI socket costs the daemon 0.2 ms, and every pod may ask through
the metrics port. kubelet asks for /healthz every 20 s, and every second during a start (manifests/base/daemonset.yaml)."""


class HealthPages:
    """Answers requests for the two pages, and any other request with 404. Each port has its own object, and calls it from one
    thread."""

    def __init__(self, *, cni_socket: Path, is_ready: Callable[[], bool], is_answered: Callable[[], bool] = lambda: True) -> None:
        """Make the pages.

        Args:
            is_ready: returns whether /readyz answers *ready*.
            is_answered: returns whether the CNI service has answered a request lately.
        """
        self._cni_socket = cni_socket
        self._is_ready = is_ready
        self._is_answered = is_answered
        self._last_check: tuple[float, bool] = (-math.inf, False)

    def __call__(self, path: str, _is_openmetrics: bool = False) -> tuple[bytes, bytes]:
        """Return head and body of the answer."""
        if path == "/healthz":
            if not self._is_listening():
                return _verdict_page(False, "", "the CNI socket takes no connection")
            return _verdict_page(self._is_answered(), "alive", "requests are not answered")
        if path == "/readyz":
            return _verdict_page(self._is_ready(), "ready", "not ready; see ipamctl status")
        return plain_page("404 Not Found", "there are /metrics, /healthz and /readyz")

    def _is_listening(self) -> bool:
        """Whether the CNI socket takes connections, or took one within LISTENING_AGE_S."""
        checked_monotonic_s, is_listening = self._last_check
        if time.monotonic() - checked_monotonic_s >= LISTENING_AGE_S:
            is_listening = self._takes_connections()
            self._last_check = (time.monotonic(), is_listening)
        return is_listening

    def _takes_connections(self) -> bool:
        """Whether the CNI socket takes a connection.

        If the queue is full or no descriptor is left, the result is True, and the page depends on `is_answered`.
        """
        try:
            with socket.socket(socket.AF_UNIX) as connection:
                connection.settimeout(CONNECT_S)
                connection.connect(str(self._cni_socket))
        except OSError as error:  # also if the path is too long for an address
            return error.errno in NO_ROOM or isinstance(error, TimeoutError)
        return True


def after_start(pages: Pages, *, health: Health) -> Pages:
    """Return `pages` with answers that wait for *ready*, until START_S after the start, so that no probe fails during a start."""

    def page(path: str, is_openmetrics: bool) -> tuple[bytes, bytes]:
        health.wait_for(lambda: health.is_ready or health.phase is Phase.DRAINING, max(START_S - health.uptime_s(), 0.0))
        return pages(path, is_openmetrics)

    return page


def _verdict_page(is_good: bool, good_text: str, bad_text: str) -> tuple[bytes, bytes]:
    if is_good:
        return plain_page("200 OK", good_text)
    return plain_page("503 Service Unavailable", bad_text)
