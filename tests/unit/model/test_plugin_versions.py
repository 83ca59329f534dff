"""Which versions a chain of plugins can be called in."""

from __future__ import annotations

import json

import pytest

from ipamd.model.chain_versions import common_versions, conflist_version, limits, parse_versions
from ipamd.model.cni_versions import SUPPORTED_VERSIONS

OLD = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0")
"""What Debian's portmap 1.1.1 says."""

NEW = (*OLD, "1.1.0")


@pytest.mark.parametrize(
    ("spoken", "expected"),
    [
        ({}, SUPPORTED_VERSIONS),
        ({"portmap": NEW}, SUPPORTED_VERSIONS),
        ({"portmap": OLD, "tuning": NEW}, ("0.3.1", "0.4.0", "1.0.0")),
        ({"a": ("0.4.0",), "b": ("1.0.0",)}, ()),
        ({"a": ("2.0.0", "1.1.0")}, ("1.1.0",)),
    ],
)
def test_common_versions(spoken: dict[str, tuple[str, ...]], expected: tuple[str, ...]) -> None:
    """Ours that every plugin speaks, oldest first."""
    assert common_versions(spoken) == expected


@pytest.mark.parametrize(
    ("versions", "expected"), [(SUPPORTED_VERSIONS, "1.0.0"), (("0.3.1", "0.4.0"), "0.4.0"), (("1.1.0",), "1.1.0")]
)
def test_version_for_runtimes_that_know_one_key(versions: tuple[str, ...], expected: str) -> None:
    """1.0.0 where it can be offered, or else the highest that can."""
    assert conflist_version(versions) == expected


def test_limits_name_who_ends_early() -> None:
    """Only plugins that speak something of ours, and not all of it."""
    assert limits({"portmap": OLD, "tuning": NEW, "strange": ("9",)}) == {"portmap": "1.0.0"}


def test_an_answer() -> None:
    """As the reference plugins give it."""
    assert parse_versions(json.dumps({"cniVersion": "1.0.0", "supportedVersions": list(OLD)}).encode()) == OLD


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"\xff\xfe",
        b"{",
        b"[" * 100_000,
        b"null",
        b"[]",
        b"{}",
        b'{"supportedVersions":[]}',
        b'{"supportedVersions":"1.0.0"}',
        b'{"supportedVersions":[1]}',
        b'{"supportedVersions":[""]}',
        b'{"supportedVersions":["' + b"1" * 33 + b'"]}',
        json.dumps({"supportedVersions": ["1.0.0"] * 65}).encode(),
        b'{"code":3,"msg":"missing containerID"}',
    ],
)
def test_anything_else_is_no_answer(output: bytes) -> None:
    """Refused with one typed error, whatever it is."""
    with pytest.raises(ValueError, match="the answer"):
        parse_versions(output)
