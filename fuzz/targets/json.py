"""The plugin's JSON against Python's: what it prints, and the version that it finds in a configuration."""

from __future__ import annotations

import json
from random import Random
from typing import Any

from cni_plugin import cnijson
from fuzz import json_text
from fuzz.mutation import mutated, noise
from fuzz.target import Case, Target, Violation, blob


class Json(Target):
    """A case: `config` is a configuration, `message` what a hostile peer says."""

    memory_bytes = 32 << 20

    def generate(self, random: Random) -> Case:
        config = json_text.configuration(random)
        if random.random() < 0.02:  # long and unfinished, which shows a search that is not linear
            return {"config": [(config[:4000] or b"{", random.randint(1, 200)), (b'"cniVersion":"1.0.0"', 1)], "message": b""}
        message = (
            noise(random, 200) if random.random() < 0.5 else mutated(random, json_text.text(random).encode("utf-8", "replace"))
        )
        return {"config": config, "message": message}

    def run(self, case: Case) -> None:
        config, message = blob(case["config"]), blob(case["message"])
        found = cnijson.scan_cni_version(config)
        _judge_version(config, found)
        document = json_text.strict(cnijson.error_document(found, 7, message, message[::-1]))
        expected = {"cniVersion": found, "code": 7, "msg": _as_text(message), "details": _as_text(message[::-1])}
        if document != expected:
            raise Violation("differs", f"the error document is {document!r:.300}, expected {expected!r:.300}")
        versions = json_text.strict(cnijson.version_document(found))
        if versions != {"cniVersion": found, "supportedVersions": list(cnijson.SUPPORTED_VERSIONS)}:
            raise Violation("differs", f"the version document is {versions!r:.300}")


def _as_text(message: bytes) -> str:
    """What any byte string becomes: itself, or with U+FFFD for each byte that is not ASCII if it is not UTF-8."""
    try:
        return message.decode()
    except UnicodeDecodeError:
        return "".join(chr(byte) if byte < 0x80 else "\ufffd" for byte in message)


def _judge_version(config: bytes, found: str) -> None:
    """Compare with what Python's parser finds, where the scanner's documented limits allow a comparison."""
    if not _is_plausible(found):
        raise Violation("differs", f"{found!r:.100} is no plausible version")
    try:
        pairs = json.loads(config.decode(), object_pairs_hook=_First)
    except (ValueError, RecursionError):
        return  # not JSON: only plausibility counts
    if b"\\u" in config or b"\\/" in config:
        return  # a key or value may be written with escapes, which the scanner does not read
    expected = pairs.first.get("cniVersion") if isinstance(pairs, _First) else None
    if not isinstance(expected, str) or not _is_plausible(expected):
        expected = cnijson.DEFAULT_VERSION
    if found != expected:
        raise Violation("differs", f"cniVersion is {found!r}, Python's json says {expected!r}")


def _is_plausible(version: str) -> bool:
    allowed = cnijson.VERSION_BYTES.decode()
    return 0 < len(version) <= cnijson.VERSION_BYTES_MAX and all(character in allowed for character in version)


class _First:
    """An object of which the first of equal keys counts."""

    def __init__(self, pairs: list[tuple[str, Any]]) -> None:
        self.first: dict[str, Any] = {}
        for key, value in pairs:
            self.first.setdefault(key, value)


def make() -> Target:
    """Make the target."""
    return Json()
