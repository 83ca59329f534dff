"""`/healthz` and `/readyz` for kubelet's probes: an answer costs the daemon 0.1 ms, starting `ipamctl` costs 80.

They are served twice: on a port of the node's loopback (`VPC_IPAMD_HEALTH_ADDRESS`), where kubelet asks, and beside the metrics. A
probe through the metrics port alone would let a pod that floods it have the daemon killed (I16). Alive means that the CNI socket
takes connections; ready means what `ipamctl status` means by it. Rejected: grpc.health.v1, for which kubelet needs gRPC on TCP
(docs/adr/0033-a-roll-changes-no-condition.md).
"""

from __future__ import annotations

import math
import socket
import time
from collections.abc import Callable
from pathlib import Path

from ipamd.metrics_port import MetricsPort, Refusal
from ipamd.model.errors import PortTakenError, SettingsError

PORT_MAX = 65535
CONNECT_S = 0.5
"""Ours: a listener's queue takes a connection at once, or is full."""

LISTENING_AGE_S = 0.5
"""Questions within it share an answer. Ours: a connection to the CNI socket costs the daemon 0.2 ms, and every pod may ask beside the
metrics; kubelet asks every 2 s."""

Pages = Callable[[str, bool], tuple[bytes, bytes]]
"""Path and whether OpenMetrics is wanted -> head and body of the answer."""


class HealthPages:
    """The two pages, and 404 for anything else. One thread for each port."""

    def __init__(self, *, cni_socket: Path, is_ready: Callable[[], bool]) -> None:
        self._cni_socket = cni_socket
        self._is_ready = is_ready
        self._looked: tuple[float, bool] = (-math.inf, False)

    def __call__(self, path: str, _is_openmetrics: bool = False) -> tuple[bytes, bytes]:
        """Return head and body of the answer."""
        if path == "/healthz":
            return _told(self._is_listening(), "alive", "the CNI socket takes no connection")
        if path == "/readyz":
            return _told(self._is_ready(), "ready", "not ready; see ipamctl status")
        return plain_page("404 Not Found", "there are /metrics, /healthz and /readyz")

    def _is_listening(self) -> bool:
        """Whether the CNI socket takes connections, or did a moment ago. Two threads may ask at once: then both look."""
        looked_monotonic_s, answer = self._looked
        if time.monotonic() - looked_monotonic_s >= LISTENING_AGE_S:
            answer = self._takes_connections()
            self._looked = (time.monotonic(), answer)
        return answer

    def _takes_connections(self) -> bool:
        try:
            with socket.socket(socket.AF_UNIX) as asking:
                asking.settimeout(CONNECT_S)
                asking.connect(str(self._cni_socket))
        except OSError:
            return False
        return True


def plain_page(status: str, text: str) -> tuple[bytes, bytes]:
    """Head and body of an answer of one line."""
    body = f"{text}\n".encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: text/plain\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode(), body


def listen(address: str, *, variable: str, pages: Pages, refused: Callable[[Refusal], None]) -> MetricsPort | None:
    """Serve `pages` on `host:port`; None when the address is "off".

    Raises: SettingsError if it is malformed, PortTakenError if somebody else has it.
    """
    if address == "off":
        return None
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise SettingsError(f"{variable}={address!r}", details="expected host:port or off")
    everywhere = "0.0.0.0"  # noqa: S104  # scraped from other nodes
    try:
        served = MetricsPort(host.strip("[]") or everywhere, int(port), page=pages, refused=refused)
    except OSError as error:
        raise PortTakenError(f"cannot serve on {address}: {error}", details=f"free the port or set {variable} to off") from error
    served.start()
    return served


def _told(is_so: bool, yes: str, no: str) -> tuple[bytes, bytes]:
    return plain_page("200 OK", yes) if is_so else plain_page("503 Service Unavailable", no)
