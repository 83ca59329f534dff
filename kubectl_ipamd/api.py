"""Ask the API server over the socket of `kubectl proxy`: bounded requests that only read."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

from kubectl_ipamd.errors import NoAnswerError, PluginError, RightMissingError

LIST_TIMEOUT_S = 30.0
"""Longest time for one page of a list. Ours: a page of 500 nodes with the list of their images has about 10 MB; 30 s are enough for
it also over a slow connection (3 Mbit/s)."""

LIST_LIMIT = 500
"""Most objects in one page of a list. The same number as kubectl's default."""

LIST_BYTES_MAX = 64 << 20
"""The largest page of a list that is read. Ours: six times a page of LIST_LIMIT nodes with the list of their images."""

PIECE_BYTES = 1 << 16
"""Most bytes of one read, after which time and size are checked. Ours: small beside a page, so that a slow or endless answer is
noticed soon."""

FORBIDDEN = 403


class ApiError(Exception):
    """A request failed. `status`: the HTTP status, or 0 if there was no answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_forbidden(self) -> bool:
        """Whether the API server refused because the operator lacks a right."""
        return self.status in (401, FORBIDDEN)


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout_s: float) -> None:
        super().__init__("localhost", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket. Raises: OSError."""
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


@dataclass(frozen=True)
class Api:
    """The API server behind a socket. Several threads may send requests at once, because each request has its own connection."""

    path: Path

    def get(self, target: str, query: Mapping[str, str] | None = None, *, timeout_s: float, bytes_max: int) -> bytes:
        """Return the body of an answer with status 200.

        Args:
            target: the path of the request, already quoted.
            timeout_s: longest time for the whole request, however slowly the answer arrives.
            bytes_max: largest size of a body; a longer body raises ApiError.
        Raises: ApiError.
        """
        deadline = time.monotonic() + timeout_s
        if query:
            target = f"{target}?{urlencode(query)}"
        connection = _UnixConnection(self.path, timeout_s)
        try:
            connection.request("GET", target, headers={"Accept": "application/json, text/plain", "Connection": "close"})
            response = connection.getresponse()
            body = _body(connection, response, deadline=deadline, bytes_max=bytes_max)
        except TimeoutError as error:
            raise ApiError(0, f"no answer within {timeout_s:g} s") from error
        except (OSError, http.client.HTTPException) as error:
            raise ApiError(0, str(error) or type(error).__name__) from error
        finally:
            connection.close()
        if response.status != http.client.OK:
            raise ApiError(response.status, _message(body) or f"HTTP status {response.status}")
        return body

    def list(self, target: str, **query: str) -> list[dict[str, Any]]:
        """Return all objects of a collection, page by page. Raises: RightMissingError, NoAnswerError."""
        objects: list[dict[str, Any]] = []
        position = ""
        while True:
            page_query = {**query, "limit": str(LIST_LIMIT)}
            if position:
                page_query["continue"] = position
            page = self._page(target, page_query)
            objects += page.get("items") or []
            position = page.get("metadata", {}).get("continue") or ""
            if not position:
                return objects

    def _page(self, target: str, query: Mapping[str, str]) -> dict[str, Any]:
        try:
            page = json.loads(self.get(target, query, timeout_s=LIST_TIMEOUT_S, bytes_max=LIST_BYTES_MAX))
        except ApiError as error:
            raise _ending(error, target) from error
        except ValueError as error:
            raise NoAnswerError(f"{target}: the answer is no JSON") from error
        if not isinstance(page, dict):
            raise NoAnswerError(f"{target}: the answer is no list of objects")
        return page


def _body(
    connection: http.client.HTTPConnection, response: http.client.HTTPResponse, *, deadline: float, bytes_max: int
) -> bytes:
    """Read a body within its bounds. Raises: TimeoutError, OSError, http.client.HTTPException."""
    expected_size = response.length
    pieces: list[bytes] = []
    size = 0
    while expected_size is None or size < expected_size:
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        if connection.sock is not None:
            connection.sock.settimeout(left_s)
        piece = response.read1(PIECE_BYTES)
        if not piece:
            break
        pieces.append(piece)
        size += len(piece)
        if size > bytes_max:
            raise OSError(f"the answer has more than {bytes_max} bytes")
    if expected_size is not None and size < expected_size:
        raise http.client.IncompleteRead(b"", expected_size - size)
    return b"".join(pieces)


def _message(body: bytes) -> str:
    """Return why a request failed: the message if the body is a Status object of Kubernetes, the beginning if the body is no JSON."""
    try:
        document = json.loads(body)
    except ValueError:
        return body[:500].decode("utf-8", "replace").strip()
    if isinstance(document, dict):
        return str(document.get("message", ""))
    return ""


def _ending(error: ApiError, target: str) -> PluginError:
    if error.is_forbidden:
        return RightMissingError(f"the API server refuses to list {target}: {error}")
    return NoAnswerError(f"the API server does not list {target}: {error}")


def quoted(name: str) -> str:
    """Quote one part of the path in a URL, including each "/" in it."""
    return quote(name, safe="")
