"""Take secrets out of text that leaves the node: what a support archive holds, and what settings are shown.

By form and by name: AWS keys and signatures, authorization headers, tokens, passwords, credentials in URLs. A secret without a known
form or a telling name is not found; so nothing is collected that is likely to hold secrets (no environment, no pod's files).
"""

from __future__ import annotations

import re

GONE = "[redacted]"

_TELLING = r"secret|passw(?:or)?d|token|credential|private[_-]?key|api[_-]?key|access[_-]?key|signature|authorization|cookie"
_NAME = rf"[\w.\-]*(?:{_TELLING})[\w.\-]*"
_HARMLESS = r"(?!client_?token\b|clienttoken\b)"
"""EC2's client tokens are ours, and no secret: they tell repeated calls."""

_RULES = (
    (re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----", re.S), GONE),
    (re.compile(r"\b(?:AKIA|ASIA|AROA|AIDA)[A-Z0-9]{12,}\b"), GONE),
    (re.compile(r"\beyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"), GONE),  # JSON web tokens
    (re.compile(r"(?i)\b(bearer|basic|aws4-hmac-sha256)\s+[\w+/=.,:;~ -]{8,}"), rf"\1 {GONE}"),
    (re.compile(r"(?i)([a-z][a-z0-9+.-]*://)[^/\s:@\"']*:[^/\s@\"']*@"), rf"\1{GONE}@"),
    (re.compile(rf"(?i)(\\?[\"']{_HARMLESS}{_NAME}\\?[\"']\s*:\s*\\?[\"'])(?:[^\"'\\]|\\[^\"'])*"), rf"\1{GONE}"),
    (re.compile(rf"(?i)\b({_HARMLESS}{_NAME}\s*=\s*)[^\s&;,\"'<]+"), rf"\1{GONE}"),
    (re.compile(r"(?i)\b((?:x-aws-ec2-metadata-token|x-amz-[\w-]*|authorization|cookie)\s*:\s*)[^\r\n\"]+"), rf"\1{GONE}"),
)


def without_secrets(text: str) -> str:
    """Return the text with everything that looks like a secret replaced."""
    for pattern, instead in _RULES:
        text = pattern.sub(instead, text)
    return text
