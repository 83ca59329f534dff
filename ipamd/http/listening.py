"""Open an HTTP port by its setting, and make the head and body of answers."""

from __future__ import annotations

import socket
from collections.abc import Callable

from ipamd.http.port import CloseReason, MetricsPort, _listener
from ipamd.model.errors import PortTakenError, SettingsError
from ipamd.model.failures import FailureCode, failure

PORT_MAX = 65535

Pages = Callable[[str, bool], tuple[bytes, bytes]]
"""Makes the head and the body of an answer from the path and from whether the client accepts the format OpenMetrics."""


def listen_early(address: str) -> list[socket.socket]:
    """Listen for kubelet before the daemon can answer, so that a probe waits in the kernel until `listen` serves the port.

    Returns: a list with the listening socket. The list is empty if the address is "off", or if listening fails; `listen` then raises
        the reason.
    """
    host, _, port = address.rpartition(":")
    try:
        if not host or int(port) > PORT_MAX:
            return []
        return [_listener(host.strip("[]"), int(port))]
    except (OSError, ValueError):
        return []


def plain_page(status: str, text: str) -> tuple[bytes, bytes]:
    """Return head and body of an answer whose body is one line of text. `status`: code and reason, as `200 OK`."""
    return page_of(status, f"{text}\n".encode(), content_type="text/plain")


def page_of(status: str, body: bytes, *, content_type: str) -> tuple[bytes, bytes]:
    """Return head and body of an answer. `status`: code and reason, as `200 OK`."""
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    return head.encode(), body


def listen(
    address: str, *, variable: str, pages: Pages, refused: Callable[[CloseReason], None], early: list[socket.socket] | None = None
) -> MetricsPort | None:
    """Serve `pages` on `host:port`.

    Args:
        variable: the setting that the address comes from, for errors.
        refused: called for each connection that gets no page, with the reason.
        early: the list that `listen_early` returned; its socket is taken out of it.
    Returns: the port, or None when the address is "off".
    Raises: SettingsError if the address is malformed, PortTakenError if another program has it.
    """
    if address == "off":
        return None
    host, _, port = address.rpartition(":")
    if not port.isdecimal() or int(port) > PORT_MAX:
        raise failure(SettingsError, FailureCode.LISTEN_ADDRESS_WRONG, variable=variable, address=address)
    everywhere = "0.0.0.0"  # noqa: S104  # scraped from other nodes
    listener = None
    if early:
        listener = early.pop()
    try:
        served = MetricsPort(host.strip("[]") or everywhere, int(port), page=pages, refused=refused, listener=listener)
    except OSError as error:
        raise failure(PortTakenError, FailureCode.PORT_TAKEN, address=address, cause=error, variable=variable) from error
    served.start()
    return served
