"""The page's port: the metrics port's server and bounds (one thread, few connections, short requests), with the page's own answers.

It answers GET and HEAD of two paths and nothing else, so that nothing can be changed through it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

from ipamd.metrics_port import PORT_MAX, MetricsPort, Refusal
from ipamd.model.errors import PortTakenError, SettingsError, log_text
from ipamd.model.words import is_loopback
from ipamd.page.access import Denial, Gate, TokenFile
from ipamd.page.document import COMMON_HEADERS, Document

STATE_AGE_S = 1.0
"""Requests within it share a rendering. Ours: a state of 700 sandboxes costs tens of milliseconds, and several people may look."""

PLAIN = "text/plain; charset=utf-8"
VARIABLE = "VPC_IPAMD_PAGE_ADDRESS"

log = logging.getLogger(__name__)


class Answers:
    """What the page makes of a request; for one thread. `state` makes the JSON."""

    def __init__(self, *, gate: Gate, state: Callable[[], bytes]) -> None:
        self.document = Document()
        self.state = state
        self._gate = gate
        self._made: tuple[float, bytes] = (-STATE_AGE_S, b"")
        self._problem = ""

    def respond(self, path: str, request: bytes) -> tuple[bytes, bytes]:
        """Return head and body: first who asks, then for what."""
        headers = _headers(request)
        denial = self._gate.denial(headers) if headers is not None else Denial("400 Bad Request", "malformed headers")
        if denial is not None:
            return _answer(denial.status, PLAIN, f"{denial.text}\n".encode(), *denial.headers)
        if path == "/":
            return _answer("200 OK", "text/html; charset=utf-8", self.document.html, self.document.policy)
        if path == "/state.json":
            return self._state_answer()
        return _answer("404 Not Found", PLAIN, b"there are / and /state.json\n")

    def _state_answer(self) -> tuple[bytes, bytes]:
        made_monotonic_s, body = self._made
        if time.monotonic() - made_monotonic_s >= STATE_AGE_S:
            problem = ""
            try:
                body = self.state()
                self._made = (time.monotonic(), body)
            except Exception as error:  # noqa: BLE001  # top of a request: the next may succeed
                problem = log_text(error)
            if problem and problem != self._problem:
                log.error("the page cannot be told: %s", problem)
            self._problem = problem
        if self._problem:
            return _answer("500 Internal Server Error", PLAIN, b"the state cannot be told; see the daemon's log\n")
        return _answer("200 OK", "application/json", body)


class PagePort(MetricsPort):
    """Serves `/` and `/state.json`. One thread, as its base."""

    def __init__(self, host: str, port: int, *, answers: Answers, refused: Callable[[Refusal], None]) -> None:
        """Listen. Raises: OSError if the address is malformed or taken."""
        super().__init__(host, port, page=lambda path, _: answers.respond(path, b""), refused=refused, name="page")
        self.answers = answers

    def respond(self, path: str, request: bytes) -> tuple[bytes, bytes]:
        """Answer with the headers of the request in view."""
        return self.answers.respond(path, request)


def serve(
    address: str, *, token_file: Path | None, state: Callable[[], bytes], refused: Callable[[Refusal], None]
) -> PagePort | None:
    """Serve the page on `host:port`; None when the address is "off".

    Args:
        token_file: None only where the address is of loopback.
    Raises: SettingsError if the address is malformed, or reachable from elsewhere without a token; or if there is no token.
        PortTakenError if somebody else has it.
    """
    if address == "off":
        return None
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal() or int(port) > PORT_MAX:
        raise SettingsError(f"{VARIABLE}={address!r}", details="expected host:port, as 127.0.0.1:61676, or off")
    if token_file is None and not is_loopback(host):
        raise SettingsError(
            f"{VARIABLE}={address!r} can be reached from outside this node",
            details="set VPC_IPAMD_PAGE_TOKEN_FILE too, or listen on 127.0.0.1 and use kubectl port-forward or ssh -L",
        )
    answers = Answers(gate=Gate(TokenFile(token_file) if token_file is not None else None), state=state)
    everywhere = "0.0.0.0"  # noqa: S104  # with a token
    try:
        served = PagePort(host.strip("[]") or everywhere, int(port), answers=answers, refused=refused)
    except OSError as error:
        advice = f"free the port or set {VARIABLE} to off"
        raise PortTakenError(f"cannot serve the page on {address}: {error}", details=advice) from error
    served.start()
    log.info("the page for people is at http://%s:%d/%s", host, served.port, ", with a token" if token_file is not None else "")
    return served


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
