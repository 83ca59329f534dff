"""What passes between the HTTP server and its handlers: where it listens, a request read to its end, an answer."""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message


@dataclass(frozen=True)
class Listener:
    """A listening point: a bound socket or (host, port), and the instance whose calls come by it.

    The server owns the socket from then on. A socket bound to port 0 gets another port after a refusal: bind your own.
    """

    address: socket.socket | tuple[str, int]
    instance: str | None = None


@dataclass(frozen=True)
class Request:
    """One HTTP request, read to its end."""

    method: str
    path: str
    query: str
    headers: Message
    body: bytes
    instance: str | None


@dataclass(frozen=True)
class Response:
    """One HTTP answer."""

    status: int
    body: bytes = b""
    content_type: str = "text/plain"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[Request], Response | None]  # None cuts the connection
