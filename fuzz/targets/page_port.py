"""The status page: random and damaged requests; nobody reads it without loopback's own name, or without the token.

The sockets are those of the metrics port, which has a target of its own; here is what the page makes of a request.
"""

from __future__ import annotations

import base64
import re
import shutil
import tempfile
from pathlib import Path
from random import Random

from fuzz.log_sink import LogSink
from fuzz.mutation import mutated
from fuzz.target import Case, Target, Violation, blob
from ipamd.http.port import REQUEST
from ipamd.ipamctl.page import Answers

TOKEN = b"0123456789abcdef0123456789abcdef"
SECRET = b'{"who":"may read this"}'
OWN_NAME = re.compile(rb"(?im)^host:[ \t\r]*(?:localhost|127\.0\.0\.1|\[::1\])(?::\d+)?[ \t\r]*$")
"""A bare CR is as good as a space (RFC 9112, 2.2)."""
PASSWORDS = (TOKEN, base64.b64encode(b"me:" + TOKEN), b"wrong", b"", base64.b64encode(b"me:"), b"=" * 50)
HEADERS = (
    b"Host: localhost\r\n", b"Host: 127.0.0.1:61676\r\n", b"Host: [::1]\r\n", b"Host: evil.example\r\n", b"Host:\r\n", b" folded\r\n",
    b"Host: localhost@evil.example\r\n", b"Host: localhost, evil.example\r\n", b"Sec-Fetch-Site: cross-site\r\n", b"\x00: a\r\n",
    b"Authorization: Bearer ", b"Authorization: Basic ", b"authorization:basic ", b"Cookie: a=b\r\n",
    b"X-Forwarded-Host: localhost\r\n",
)  # fmt: skip
FIRST = (
    b"GET /state.json HTTP/1.1\r\n",
    b"GET / HTTP/1.1\r\n",
    b"HEAD /state.json HTTP/1.0\r\n",
    b"GET //state.json?x HTTP/1.1\r\n",
)


class PageRequests(Target):
    """A case: `bytes`, a whole request."""

    memory_bytes = 32 << 20

    def __init__(self) -> None:
        self._log = LogSink()
        self._folder = Path(tempfile.mkdtemp())
        path = self._folder / "token"
        path.write_bytes(TOKEN)
        self._answers = [Answers(token_file=file, state=lambda: SECRET) for file in (None, path)]

    def generate(self, random: Random) -> Case:
        lines = []
        for line in random.choices(HEADERS, k=random.choice((0, 1, 1, 2, 3, 20))):
            lines.append(line + random.choice(PASSWORDS) + b"\r\n" if line.endswith((b"Bearer ", b"asic ")) else line)
        data = random.choice(FIRST) + b"".join(lines) + b"\r\n"
        return {"bytes": mutated(random, data, others=HEADERS) if random.random() < 0.5 else data}

    def run(self, case: Case) -> None:
        request = blob(case["bytes"])
        asked = REQUEST.match(request)
        if asked is None:
            return
        for answers, may_read in zip(self._answers, (_names_loopback, _has_token), strict=True):
            head, body = answers.respond(asked[2].partition(b"?")[0].decode(), request)
            if (
                not re.match(rb"HTTP/1\.1 \d{3} [ -~]+\r\n", head)
                or not head.endswith(b"\r\n\r\n")
                or head.count(b"\r\n\r\n") != 1
            ):
                raise Violation("answer", f"no head of an answer: {head[:200]!r}")
            if (head.startswith(b"HTTP/1.1 200 ") or SECRET in body) and not may_read(request):
                raise Violation("access", f"it was read by {request[:300]!r}")
        self._log.judge()

    def close(self) -> None:
        shutil.rmtree(self._folder)


def _names_loopback(request: bytes) -> bool:
    """Whether its head has one Host and that is loopback's."""
    head = re.split(rb"\r?\n\r?\n", request, maxsplit=1)[0]
    return len(re.findall(rb"(?im)^host[ \t]*:", head)) == 1 and OWN_NAME.search(head + b"\n") is not None


def _has_token(request: bytes) -> bool:
    return TOKEN in request or any(_decoded(word).endswith(TOKEN) for word in request.split())


def _decoded(word: bytes) -> bytes:
    try:
        return base64.b64decode(word)
    except ValueError:
        return b""


def make() -> Target:
    """Make the target."""
    return PageRequests()
