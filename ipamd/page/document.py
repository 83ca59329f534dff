"""The page as one document: style and script are inside it, and the policy names both by their digests.

With that policy a browser loads and runs nothing else, whatever text reached the page: no other script, no handler in an attribute, no
style, image, frame or form, and it connects to this port only. The document holds no text from outside: the script fetches the state
as JSON, and sets it as text.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

STATIC = Path(__file__).parent / "static"

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


class Document:
    """`html`: the whole page. `policy`: its header."""

    def __init__(self) -> None:
        style, script = ((STATIC / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
        text = (STATIC / "page.html").read_text(encoding="utf-8")
        self.html = text.replace("/*STYLE*/", style).replace("/*SCRIPT*/", script).encode()
        self.policy = (
            f"Content-Security-Policy: default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; "
            "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )


def _digest(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
