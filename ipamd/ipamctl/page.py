"""Serve the status page, which shows the answers of `ipamctl` in a browser, on a port of loopback while `ipamctl page` runs.

The page uses the server and the bounds of the metrics port: one thread, few connections, short requests. It answers GET and HEAD of
two paths, and changes nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ipamd.http.port import MetricsPort
from ipamd.ipamctl.page_access import LOOPBACK, Denial, denial
from ipamd.ipamctl.page_state import STATE_AGE_S
from ipamd.ipamctl.verb import AwayError, VerbError
from ipamd.model.words import printable

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
"""Headers of every answer. They forbid caching, type sniffing, framing, and use of the page's URL or content by other sites."""


ABSENCES = {
    "dead": "no daemon runs on this node",
    "crash-loop": "the daemon is in a crash loop",
    "hung": "the daemon's process hangs, or is stopped",
}
"""`AbsenceKind` -> the sentence that a browser gets. These sentences have no paths and no reasons."""

TITLE_MAX = 80
"""The largest number of characters of a node's name in the page's title. Ours: names of EC2 hosts have 60."""


class Answers:
    """Answers the requests to the page. Only one thread may use it."""

    def __init__(self, *, token_file: Path | None, state: Callable[[], bytes], node: str = "") -> None:
        """Read the files of the page, and make its HTML.

        Args:
            token_file: file with the token that a request must have; None if no token is needed.
            state: makes the JSON of /state.json. Raises: VerbError.
            node: name in the title, so that a person can tell the tabs of several nodes apart; by default the host's name.
        """
        style, script = ((STATIC / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        text = (STATIC / "page.html").read_text(encoding="utf-8")
        title = html.escape(printable(node or platform.node(), most=TITLE_MAX))
        text = text.replace("<title>", f"<title>{title} - ", 1)
        self.html = text.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script).encode("ascii", "xmlcharrefreplace")
        self.policy = (
            f"Content-Security-Policy: default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        self.state = state
        self._token_file = token_file
        self._last_state: tuple[float, bytes] = (-STATE_AGE_S, b"")
        """Monotonic time and body of the latest state."""

    def respond(self, path: str, request: bytes) -> tuple[bytes, bytes]:
        """Return head and body of the answer. Access is checked before the path."""
        headers = _headers(request)
        if headers is None:
            denied: Denial | None = Denial("400 Bad Request", "malformed headers")
        else:
            denied = denial(headers, self._token_file)
        if denied is not None:
            return _answer(denied.status, PLAIN, f"{denied.text}\n".encode(), *denied.headers)
        if path == "/":
            return _answer("200 OK", "text/html; charset=utf-8", self.html, self.policy)
        if path == "/state.json":
            return self._state_answer()
        return _answer("404 Not Found", PLAIN, b"there are / and /state.json\n")

    def _state_answer(self) -> tuple[bytes, bytes]:
        at_s, body = self._last_state
        if time.monotonic() - at_s >= STATE_AGE_S:
            try:
                body = self.state()
            except VerbError as error:
                print(f"ipamctl: {printable(str(error))}", file=sys.stderr)
                kind = ""
                if isinstance(error, AwayError):
                    kind = error.kind
                text = f"{ABSENCES.get(kind, 'the daemon does not answer')}; `ipamctl page` printed more, and what to do\n"
                return _answer("503 Service Unavailable", PLAIN, text.encode())
            self._last_state = (time.monotonic(), body)
        return _answer("200 OK", "application/json", body)


class PagePort(MetricsPort):
    """Serves `/` and `/state.json`, in one thread like MetricsPort."""

    def __init__(self, port: int, *, answers: Answers) -> None:
        """Listen on loopback. Raises: OSError if the port is taken."""
        super().__init__(LOOPBACK, port, page=lambda path, _: answers.respond(path, b""), refused=lambda _: None, name="page")
        self.answers = answers

    def respond(self, path: str, request: bytes) -> tuple[bytes, bytes]:
        """Answer a request, whose headers decide whether it is allowed."""
        return self.answers.respond(path, request)


def _headers(request: bytes) -> dict[str, list[str]] | None:
    """Header values in order, by name in lower case; None if a line is not a header. A folded line is not a header (RFC 9112, 5.2)."""
    headers: dict[str, list[str]] = {}
    for line in request.replace(b"\r\n", b"\n").partition(b"\n\n")[0].split(b"\n")[1:]:
        name, colon, value = line.partition(b":")
        if not colon or not name or name != name.strip() or any(byte < 0x21 for byte in name):
            return None
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
    return headers


def _answer(status: str, content_type: str, body: bytes, *headers: str) -> tuple[bytes, bytes]:
    lines = [f"HTTP/1.1 {status}", f"Content-Type: {content_type}", f"Content-Length: {len(body)}", *headers, *COMMON_HEADERS]
    return ("\r\n".join(lines) + "\r\n\r\n").encode(), body


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
