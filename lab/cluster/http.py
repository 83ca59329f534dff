"""HTTP connections that are made inside a network namespace. Any thread of the lab can use them."""

from __future__ import annotations

import http.client
import socket
import ssl
from functools import partial

from lab.fabric.errors import FabricError
from lab.fabric.netns import run_inside

TIMEOUT_S = 10.0  # ours: an API server answers within one second, and within a few on a busy machine


class Connection(http.client.HTTPConnection):
    """A connection whose socket is in the namespace at `netns_path`, with TLS if `tls` is given."""

    def __init__(
        self, netns_path: str, host: str, port: int, *, tls: ssl.SSLContext | None = None, timeout_s: float = TIMEOUT_S
    ) -> None:
        """Make the object; it is not connected yet."""
        super().__init__(host, port, timeout=timeout_s)
        self._netns_path = netns_path
        self._tls = tls

    def connect(self) -> None:
        """Connect. Raises: OSError, also if the namespace cannot be entered."""
        make = partial(socket.create_connection, (self.host, self.port), self.timeout)
        try:
            plain = run_inside(self._netns_path, make)
        except FabricError as error:
            raise ConnectionError(str(error)) from error
        self.sock = self._tls.wrap_socket(plain, server_hostname=self.host) if self._tls is not None else plain


def get(netns_path: str, host: str, port: int, path: str, *, timeout_s: float = TIMEOUT_S) -> bytes | None:
    """Send a GET request. Returns: the body of the answer; None if no answer comes in time, or its status is not 200."""
    connection = Connection(netns_path, host, port, timeout_s=timeout_s)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        body = answer.read()
        return body if answer.status == 200 else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
