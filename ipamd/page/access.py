"""Who may read the page: on loopback whoever can connect and names loopback, elsewhere who has the token.

The page is a map of the node: names of pods, addresses, the account's subnets. A browser on the node, or behind a port-forward, can be
made to ask for it by any site that it visits: a site whose name begins to resolve to 127.0.0.1 (DNS rebinding) is of the same origin
then. Such a request names that site in `Host`, so loopback takes no other names than its own. Rejected: cookies and a login page,
which are state and writes; TLS of our own, whose keys somebody would have to renew (docs/adr/0036).
"""

from __future__ import annotations

import base64
import binascii
import hmac
import logging
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ipamd.model.errors import SettingsError
from ipamd.settings.settings_file import content_of

TOKEN_MIN = 24
"""Characters of a token, at least. Ours: `openssl rand -hex 16` gives 32, and 250 guesses a second find none of 24 in any time."""

TOKEN_MAX = 4096
"""Characters of a token, at most. Ours: half of what a request may have."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "[::1]"})
HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9.-]+)(?::\d{1,5})?\Z")

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Denial:
    """Why a request is not answered: the status line, one line for people, more headers."""

    status: str
    text: str
    headers: tuple[str, ...] = ()


UNAUTHORIZED = Denial(
    "401 Unauthorized",
    "a token is needed: as the password of any user, or as Authorization: Bearer",
    ('WWW-Authenticate: Basic realm="vpc-ipamd", charset="UTF-8"',),
)


class TokenFile:
    """The token of a file, read again when the file changes. A file that cannot be read lets nobody in."""

    def __init__(self, path: Path) -> None:
        """Read it. Raises: SettingsError if there is no token of a fair length in it."""
        self._path = path
        self._mark: tuple[int, int, int] | None = None
        self._token = b""
        self._problem = ""
        self._look()
        if self._problem:
            problem = f"VPC_IPAMD_PAGE_TOKEN_FILE={str(path)!r}: {self._problem}"
            raise SettingsError(problem, details="`openssl rand -hex 16` makes a token")

    def is_right(self, given: bytes) -> bool:
        """Whether this is the token; in a time that does not tell how much of it is."""
        self._look()
        return bool(self._token) and hmac.compare_digest(given, self._token)

    def _look(self) -> None:
        try:
            now = os.stat(self._path)  # noqa: PTH116  # Path.stat would do the same
            mark = (now.st_ino, now.st_size, now.st_mtime_ns)
            if mark == self._mark:
                return
            self._mark, (self._token, problem) = mark, _token_of(content_of(str(self._path)))
        except OSError as error:
            self._mark, self._token, problem = None, b"", str(error.strerror)
        if problem != self._problem:
            log.log(logging.WARNING if problem else logging.INFO, "the page's token: %s", problem or "read again")
        self._problem = problem


def _token_of(data: bytes) -> tuple[bytes, str]:
    """The token in a file's bytes, or why there is none."""
    token = data.strip()
    if not TOKEN_MIN <= len(token) <= TOKEN_MAX:
        return b"", f"it must hold a token of {TOKEN_MIN} to {TOKEN_MAX} characters"
    if not re.fullmatch(rb"[!-~]+", token):
        return b"", "a token is printable ASCII without spaces"
    return token, ""


class Gate:
    """Decides about one request. `token`: None only on loopback."""

    def __init__(self, token: TokenFile | None) -> None:
        self._token = token

    def denial(self, headers: Mapping[str, list[str]]) -> Denial | None:
        """Why the request with these headers (names in lower case) is not answered; None if it is."""
        hosts = headers.get("host", [])
        named = HOST.match(hosts[0]) if len(hosts) == 1 else None
        if named is None:
            return Denial("400 Bad Request", "one Host header is needed")
        if self._token is None:
            if named[1].lower() not in LOOPBACK_NAMES:
                return Denial(
                    "421 Misdirected Request", "ask for localhost or 127.0.0.1; another name may be that of another site"
                )
        elif not any(self._token.is_right(given) for given in _given(headers.get("authorization", []))):
            return UNAUTHORIZED
        if set(headers.get("sec-fetch-site", [])) & {"cross-site", "same-site"} and headers.get("sec-fetch-mode") != ["navigate"]:
            return Denial("403 Forbidden", "another site's page may not read this")
        return None


def _given(headers: list[str]) -> list[bytes]:
    """The token that the one Authorization header brings, if any."""
    scheme, _, rest = headers[0].strip().partition(" ") if len(headers) == 1 else ("", "", "")
    match scheme.lower():
        case "bearer":
            return [rest.strip().encode("latin-1")]
        case "basic":
            try:
                return [base64.b64decode(rest.strip(), validate=True).partition(b":")[2]]
            except (binascii.Error, ValueError):
                return []
    return []
