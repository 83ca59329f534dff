"""Secrets of many forms, for the tests of the support archive: each with a value that must not leave the node."""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Callable

_RANDOM = random.Random(44)


def _word(alphabet: str, length: int) -> str:
    return "".join(_RANDOM.choice(alphabet) for _ in range(length))


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


LETTERS = string.ascii_letters

VALUES = {
    "AWS secret without a digit": _word(LETTERS, 40),
    "AWS secret with slashes": "/".join(_word(LETTERS, 9) for _ in range(4)) + "+" + _word(LETTERS, 3),
    "AWS secret": "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY",
    "AWS key": "AKIAIOSFODNN7EXAMPLE",
    "32 hex digits": _word("0123456789abcdef", 32),
    "40 hex digits": _word("0123456789abcdef", 40),
    "48 hex digits in capitals": _word("0123456789ABCDEF", 48),
    "64 hex digits": _word("0123456789abcdef", 64),
    "a UUID": "5f1d9e0c-2b7a-4c58-9d3e-7a6b5c4d3e2f",
    "small letters": _word(string.ascii_lowercase, 16),
    "capitals": _word(string.ascii_uppercase + "234567", 32),
    "letters and digits": "hunter2hunter2",
    "short": "s3cr3t",
    "with signs": "Tr0ub4dor&3!",
    "words": "correct-horse-battery-staple",
    "sentence": "the purple elephant sings",
    "base64 of a name and a value": _base64("password=swordfish-tango"),
    "base64 of JSON": _base64(json.dumps({"token": "swordfish-tango"})),
    "base64url": _word(LETTERS + string.digits + "-_", 43),
    "JWT": "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2ln",
    "bcrypt": "$2y$10$abcdefghijklmnopqrstuv",
    "of another language": "gehe\u00efm\u00fc-wachtw\u00f6rd",
    "Cyrillic": "\u0441\u0435\u043a\u0440\u0435\u0442\u0438\u043a",
    "a number": "83746529174",
}
"""Values; each is one that nobody needs for support."""

FORMS: dict[str, Callable[[str], str]] = {
    "password": "password: {}".format,
    "environment": "DB_PASSWORD={}".format,
    "JSON": '{{"password": "{}"}}'.format,
    "JSON, value first": '{{"value": "{}", "name": "DB_PASSWORD"}}'.format,
    "LDAP": "binddn cn=admin,dc=corp\nbindpw {}".format,
    "SNMP": "rocommunity {}\ncom2sec readonly default {}".replace("{}", "{0}").format,
    "IPsec": "10.0.0.1 10.0.0.2 : PSK {}".format,
    ".pgpass": "db.corp:5432:orders:app:{}".format,
    "Secret": "kind: Secret\ndata:\n  tls.example: {}".format,
    "zero width": "pass\u200bword: {}".format,
    "annotation": 'annotations["x/secret"]={}'.format,
    "German": "Kennwort: {}".format,
    "French": "mot de passe = {}".format,
    "Spanish": "contrase\u00f1a: {}".format,
    "Russian": "\u043f\u0430\u0440\u043e\u043b\u044c: {}".format,
    "Chinese": "\u5bc6\u7801\uff1a{}".format,
    "URL": "postgres://app:{}@db.corp:5432/orders".format,
    "option": "--token {}".format,
    "header": "Authorization: Basic {}".format,
    "key without a telling name": "frobnicator: {}".format,
    "XML": "<wachtwoord>{}</wachtwoord>".format,
}
"""How a value may stand in text. What stands alone, without any name, is a form of the values that cannot be words."""

FORMLESS = frozenset({"a number", "words", "sentence"})
"""Values that are harmless words or figures where nothing says what they are."""


def planted() -> list[tuple[str, str]]:
    """All pairs of text and the value in it, each value alone too."""
    pairs = [(form(value), value) for form in FORMS.values() for value in VALUES.values()]
    return pairs + [(value, value) for name, value in VALUES.items() if name not in FORMLESS]
