"""One connection of the HTTP server: the standard library parses, the answer goes out in one write, or the connection is reset."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler
from typing import cast
from urllib.parse import urlsplit

from lab.httpd.messages import Request, Response

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER with time 0: close() sends RST


@dataclass(frozen=True)
class Caller:
    """Stands for the server of the base class: who answers on this connection, and whose calls come by it."""

    serve: Callable[[Request], Response | None]
    instance: str | None


class Conversation(BaseHTTPRequestHandler):
    """One connection; the base class parses, we answer in one write."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1
    disable_nagle_algorithm = True

    def do_request(self) -> None:
        """Read one request, have it answered, write the answer."""
        caller = cast(Caller, self.server)
        length = int(self.headers.get("Content-Length") or 0)
        url = urlsplit(self.path)
        body = self.rfile.read(length)
        request = Request(self.command, url.path, url.query, self.headers, body, caller.instance)
        response = caller.serve(request)
        if response is None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            self.close_connection = True
            return
        self.send_response(response.status)
        self.send_header("Content-Type", response.content_type)
        self.send_header("Content-Length", str(len(response.body)))
        for name, value in response.headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(response.body)
        self.wfile.flush()

    do_GET = do_PUT = do_POST = do_request

    def log_message(self, format: str, *args: object) -> None:
        """Say nothing: the call log tells more."""
