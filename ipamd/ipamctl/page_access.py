"""Decide who may read the status page."""

from __future__ import annotations

import base64
import binascii
import hmac
import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ipamd.settings.settings_file import content_of

LOOPBACK = "127.0.0.1"

LOOPBACK_NAMES = frozenset({"localhost", LOOPBACK, "[::1]"})

HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::\d{1,5})?\Z")

TOKEN_MIN = 24
"""Shortest token, in characters. Ours: `openssl rand -hex 16` makes 32, and 250 guesses a second never find one of 24."""

TOKEN_MAX = 4096
"""Longest token, in characters. Ours: half of the limit of a request."""


class Denial(NamedTuple):
    """A refusal of a request: the status line, a line for people, and further headers."""

    status: str
    text: str
    headers: tuple[str, ...] = ()


UNAUTHORIZED = Denial(
    "401 Unauthorized",
    "a token is needed: as the password of any user, or as Authorization: Bearer",
    ('WWW-Authenticate: Basic realm="vpc-ipamd", charset="UTF-8"',),
)


def token_of(path: Path) -> bytes:
    """Read the token in a file. Each request reads it, so a new token takes effect at once. Raises: ValueError, OSError."""
    token = content_of(str(path)).strip()
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX:
        raise ValueError(f"it must hold a token of {TOKEN_MIN} to {TOKEN_MAX} characters; `openssl rand -hex 16` makes one")
    if not re.fullmatch(rb"[!-~]+", token):
        raise ValueError("a token is printable ASCII without spaces")
    return token


def denial(headers: Mapping[str, list[str]], token_file: Path | None) -> Denial | None:
    """Return the refusal of a request with these headers, whose names are in lower case; None if the request is to be answered."""
    hosts = headers.get("host", [])
    host = None
    if len(hosts) == 1:
        host = HOST.match(hosts[0])
    if host is None:
        return Denial("400 Bad Request", "one Host header is needed")
    if token_file is None:
        if host[1].lower() not in LOOPBACK_NAMES:
            return Denial("421 Misdirected Request", "ask for localhost or 127.0.0.1; another name may be that of another site")
    elif not _is_right(_given(headers.get("authorization", [])), token_file):
        return UNAUTHORIZED
    if set(headers.get("sec-fetch-site", [])) & {"cross-site", "same-site"} and headers.get("sec-fetch-mode") != ["navigate"]:
        return Denial("403 Forbidden", "another site's page may not read this")
    return None


def _is_right(given: bytes, token_file: Path) -> bool:
    """Compare with the token, in constant time. If the file is unreadable, every request is refused."""
    try:
        return hmac.compare_digest(given, token_of(token_file))
    except (OSError, ValueError):
        return False


def _given(headers: list[str]) -> bytes:
    """The token in the Authorization header; b"" if there is not exactly one such header, or if it is malformed."""
    if len(headers) != 1:
        return b""
    scheme, _, credentials = headers[0].strip().partition(" ")
    if scheme.lower() == "bearer":
        return credentials.strip().encode("latin-1")
    if scheme.lower() != "basic":
        return b""
    try:
        return base64.b64decode(credentials.strip(), validate=True).partition(b":")[2]
    except (binascii.Error, ValueError):
        return b""
