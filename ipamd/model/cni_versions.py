"""The supported versions of the CNI specification, and the verbs that each version introduced. The daemon has no other such list.

The plugin has a copy, because it imports nothing of the daemon. `tests/unit/model/test_cniversion.py` checks that both are equal.
Source: the CNI specification (github.com/containernetworking/cni, SPEC.md) of each version.
"""

from __future__ import annotations

from ipamd.model.errors import IncompatibleVersionError
from ipamd.model.failures import FailureCode, failure

SUPPORTED_VERSIONS = ("0.3.1", "0.4.0", "1.0.0", "1.1.0")
"""Oldest first. How to add a version: CONTRIBUTING.md."""

CONFLIST_VERSION = "1.0.0"
"""`cniVersion` of the conflist. Ours: libcni of every supported runtime accepts this version, and newer releases of libcni choose a
version from `cniVersions`."""

VERB_SINCE = {"CHECK": "0.4.0", "GC": "1.1.0", "STATUS": "1.1.0"}
"""Verb -> the version that introduced it, for verbs that our oldest supported version does not have."""


def require_supported(version: str) -> None:
    """Raise IncompatibleVersionError unless this cniVersion is supported."""
    if version not in SUPPORTED_VERSIONS:
        raise failure(
            IncompatibleVersionError,
            FailureCode.CNI_VERSION_UNKNOWN,
            version=version[:40],
            supported=", ".join(SUPPORTED_VERSIONS),
        )


def require_verb(verb: str, version: str) -> None:
    """Raise IncompatibleVersionError unless `version`, the cniVersion of the request, has this verb."""
    since = VERB_SINCE.get(verb, SUPPORTED_VERSIONS[0])
    if is_before(version, since):
        raise failure(IncompatibleVersionError, FailureCode.VERB_TOO_NEW, verb=verb, since=since, version=version)


def is_before(version: str, other: str) -> bool:
    """Whether a supported version is older than another one. Raises: ValueError for an unsupported version."""
    return SUPPORTED_VERSIONS.index(version) < SUPPORTED_VERSIONS.index(other)
