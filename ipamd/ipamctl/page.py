"""The status page: what `ipamctl` shows, in a browser, on a port of the node's loopback while `ipamctl page` runs. It reads only.

The page is a map of the node: names of pods, addresses, the account's subnets. A browser on the node, or behind a port-forward, can be
made to ask for it by any site that it visits: a site whose name begins to resolve to 127.0.0.1 (DNS rebinding) is of the same origin
then. Such a request names that site in `Host`, so without a token no other names than loopback's are answered. With a token whoever
asks has to have it, because other processes of the node's network namespace reach the port too. Rejected: cookies and a login page,
which are state and writes; serving it from the daemon, which hands out addresses and needs no second way in (docs/adr/0036).

Style and script are inside the document, and the policy names both by their digests: a browser loads and runs nothing else, whatever
text reached the page. The document holds no text from outside: the script fetches the state as JSON, and sets it as text.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from ipamd.ipamctl.verb import Ask, VerbError, safe
from ipamd.metrics_port import MetricsPort
from ipamd.model.words import printable, rfc3339
from ipamd.settings.settings_file import content_of

LOOPBACK = "127.0.0.1"
LOOPBACK_NAMES = frozenset({"localhost", LOOPBACK, "[::1]"})
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::\d{1,5})?\Z")

TOKEN_MIN = 24
"""Characters of a token, at least. Ours: `openssl rand -hex 16` gives 32, and 250 guesses a second find none of 24 in any time."""

TOKEN_MAX = 4096
"""Characters of a token, at most. Ours: half of what a request may have."""

STATE_AGE_S = 1.0
"""Requests within it share a state. Ours: one of 700 sandboxes costs the daemon tens of milliseconds, and several people may look."""

ATTACHMENTS_MAX = 1000
"""Sandboxes that are shown, the newest. Ours: more than EKS puts on any node (250), and about 400 KB."""

EVENTS_MAX = 60
"""Events that are shown, the newest. Ours: what a person reads."""

ESCAPES = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026"}
"""No character of HTML is in the JSON as it is: a browser that took it for a page would find no tag in it."""

STATIC = Path(__file__).parent / "static"
PLAIN = "text/plain; charset=utf-8"
COMMON_HEADERS = (
    "Cache-Control: no-store",
    "X-Content-Type-Options: nosniff",
    "X-Frame-Options: DENY",
    "Referrer-Policy: no-referrer",
    "Cross-Origin-Resource-Policy: same-origin",
    "Cross-Origin-Opener-Policy: same-origin",
    "Connection: close",
)
"""Of every answer: nothing is kept, guessed, framed or told to others."""


# Who may read it.


class Denial(NamedTuple):
    """Why a request is not answered: the status line, one line for people, more headers."""

    status: str
    text: str
    headers: tuple[str, ...] = ()


UNAUTHORIZED = Denial(
    "401 Unauthorized",
    "a token is needed: as the password of any user, or as Authorization: Bearer",
    ('WWW-Authenticate: Basic realm="vpc-ipamd", charset="UTF-8"',),
)


def token_of(path: Path) -> bytes:
    """The token in a file, read at each request, so that a new one holds at once. Raises: ValueError, OSError if there is none."""
    token = content_of(str(path)).strip()
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX:
        raise ValueError(f"it must hold a token of {TOKEN_MIN} to {TOKEN_MAX} characters; `openssl rand -hex 16` makes one")
    if not re.fullmatch(rb"[!-~]+", token):
        raise ValueError("a token is printable ASCII without spaces")
    return token


def denial(headers: Mapping[str, list[str]], token_file: Path | None) -> Denial | None:
    """Why a request with these headers (names in lower case) is not answered; None if it is."""
    hosts = headers.get("host", [])
    named = HOST.match(hosts[0]) if len(hosts) == 1 else None
    if named is None:
        return Denial("400 Bad Request", "one Host header is needed")
    if token_file is None:
        if named[1].lower() not in LOOPBACK_NAMES:
            return Denial("421 Misdirected Request", "ask for localhost or 127.0.0.1; another name may be that of another site")
    elif not _is_right(_given(headers.get("authorization", [])), token_file):
        return UNAUTHORIZED
    if set(headers.get("sec-fetch-site", [])) & {"cross-site", "same-site"} and headers.get("sec-fetch-mode") != ["navigate"]:
        return Denial("403 Forbidden", "another site's page may not read this")
    return None


def _is_right(given: bytes, token_file: Path) -> bool:
    """Whether this is the token; in a time that does not tell how much of it is. A file that cannot be read lets nobody in."""
    try:
        return hmac.compare_digest(given, token_of(token_file))
    except (OSError, ValueError):
        return False


def _given(headers: list[str]) -> bytes:
    """The token that the one Authorization header brings, if any."""
    scheme, _, rest = headers[0].strip().partition(" ") if len(headers) == 1 else ("", "", "")
    if scheme.lower() == "bearer":
        return rest.strip().encode("latin-1")
    try:
        return base64.b64decode(rest.strip(), validate=True).partition(b":")[2] if scheme.lower() == "basic" else b""
    except (binascii.Error, ValueError):
        return b""


# What it holds.


def state(daemon: Ask) -> bytes:
    """What the daemon answers to `ipamctl`, as JSON. Raises: VerbError.

    Texts from outside (names of pods, words of EC2 and the runtime) are made safe to print as for a terminal.
    """
    attachments = daemon("ListAttachments")["attachments"]
    told = {
        "at": rfc3339(datetime.now(UTC)),
        "status": daemon("GetStatus"),
        "enis": daemon("ListEnis")["enis"],
        "attachment_count": len(attachments),
        "attachments": attachments[::-1][:ATTACHMENTS_MAX],
        "events": daemon("GetHistory", limit=EVENTS_MAX)["entries"][::-1],
    }
    text = json.dumps(safe(told), ensure_ascii=True, separators=(",", ":"))
    for character, escape in ESCAPES.items():
        text = text.replace(character, escape)
    return text.encode("ascii")


class Answers:
    """What the page makes of a request; for one thread. `state` makes the JSON."""

    def __init__(self, *, token_file: Path | None, state: Callable[[], bytes]) -> None:
        style, script = ((STATIC / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        text = (STATIC / "page.html").read_text(encoding="utf-8")
        self.html = text.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script).encode()
        self.policy = (
            f"Content-Security-Policy: default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self.state = state
        self._token_file = token_file
        self._made: tuple[float, bytes] = (-STATE_AGE_S, b"")

    def respond(self, path: str, request: bytes) -> tuple[bytes, bytes]:
        """Return head and body: first who asks, then for what."""
        headers = _headers(request)
        denied = denial(headers, self._token_file) if headers is not None else Denial("400 Bad Request", "malformed headers")
        if denied is not None:
            return _answer(denied.status, PLAIN, f"{denied.text}\n".encode(), *denied.headers)
        if path == "/":
            return _answer("200 OK", "text/html; charset=utf-8", self.html, self.policy)
        if path == "/state.json":
            return self._state_answer()
        return _answer("404 Not Found", PLAIN, b"there are / and /state.json\n")

    def _state_answer(self) -> tuple[bytes, bytes]:
        made_monotonic_s, body = self._made
        if time.monotonic() - made_monotonic_s >= STATE_AGE_S:
            try:
                body = self.state()
            except VerbError as error:
                print(f"ipamctl: {printable(str(error))}", file=sys.stderr)
                return _answer("503 Service Unavailable", PLAIN, b"the daemon does not answer; see what `ipamctl page` printed\n")
            self._made = (time.monotonic(), body)
        return _answer("200 OK", "application/json", body)


# Its port: the metrics port's server and bounds (one thread, few connections, short requests). It answers GET and HEAD of two paths
# and nothing else, so that nothing can be changed through it.


class PagePort(MetricsPort):
    """Serves `/` and `/state.json`. One thread, as its base."""

    def __init__(self, port: int, *, answers: Answers) -> None:
        """Listen on loopback. Raises: OSError if the port is taken."""
        super().__init__(LOOPBACK, port, page=lambda path, _: answers.respond(path, b""), refused=lambda _: None, name="page")
        self.answers = answers

    def respond(self, path: str, request: bytes) -> tuple[bytes, bytes]:
        """Answer with the headers of the request in view."""
        return self.answers.respond(path, request)


def _headers(request: bytes) -> dict[str, list[str]] | None:
    """Values by name in lower case, in order; None if a line is no header. A folded line is none (RFC 9112, 5.2)."""
    found: dict[str, list[str]] = {}
    for line in request.replace(b"\r\n", b"\n").partition(b"\n\n")[0].split(b"\n")[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or any(byte < 0x21 for byte in name):
            return None
        found.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
    return found


def _answer(status: str, content_type: str, body: bytes, *headers: str) -> tuple[bytes, bytes]:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers, *COMMON_HEADERS]
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), body


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
