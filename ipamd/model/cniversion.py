"""The versions of the CNI specification that we speak, and what came with which: the only list of them.

The plugin keeps a copy, because it imports nothing of the daemon; a test holds it equal (`tests/unit/model/test_cniversion.py`).
Source: the CNI specification (github.com/containernetworking/cni, SPEC.md) of each version.
"""

from __future__ import annotations

from ipamd.model.errors import IncompatibleVersionError

SUPPORTED_VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Oldest first. How to add one: CONTRIBUTING.md."""

CONFLIST_VERSION = "1.0.0"
"""`cniVersion` of the conflist. Ours: what libcni of every supported runtime accepts; newer ones choose from `cniVersions`."""

VERB_SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
"""Verbs that are younger than our oldest version."""


def require_supported(version: str) -> None:
    """Raise IncompatibleVersionError unless we speak this cniVersion."""
    if version not in SUPPORTED_VERSIONS:
        raise IncompatibleVersionError(
            f"cniVersion {version[:40]!r} is not supported", details=f"supported: {', '.join(SUPPORTED_VERSIONS)}"
        )


def require_verb(verb: str, version: str) -> None:
    """Raise IncompatibleVersionError unless this verb is part of a version that we speak."""
    since = VERB_SINCE.get(verb, SUPPORTED_VERSIONS[0])
    if is_before(version, since):
        raise IncompatibleVersionError(f"{verb} came with cniVersion {since}", details=f"the request says {version}")


def is_before(version: str, other: str) -> bool:
    """Say whether a version that we speak is older than another one. Raises: ValueError for one that we do not speak."""
    return SUPPORTED_VERSIONS.index(version) < SUPPORTED_VERSIONS.index(other)
