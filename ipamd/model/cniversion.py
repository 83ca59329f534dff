"""The versions of the CNI specification that we speak, and what came with which: the only list of them.

The plugin keeps a copy, because it imports nothing of the daemon; a test holds it equal (`tests/unit/model/test_cniversion.py`).
Source: the CNI specification (github.com/containernetworking/cni, SPEC.md) of each version.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

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


# Which versions of CNI a chain of plugins can be called in: only those that all of them speak.
#
# libcni calls every plugin of a conflist in one version, the highest of `cniVersions` that it knows itself. A plugin that does
# not know that version fails: Debian's portmap 1.1.1 answers STATUS of 1.1.0 with "missing containerID", and the node stays
# NotReady. Source: the CNI specification (github.com/containernetworking/cni, SPEC.md), VERSION and "Version considerations".


VERSIONS_MAX = 64
VERSION_LENGTH_MAX = 32
"""Ours: the specification has eight versions, the longest of five characters."""


def parse_versions(output: bytes) -> tuple[str, ...]:
    """Read a plugin's answer to VERSION. Returns: what it says it speaks, in its order. Raises: ValueError for anything else."""
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise ValueError("the answer is not JSON") from error
    versions = answer.get("supportedVersions") if isinstance(answer, dict) else None
    if not isinstance(versions, list) or not versions or len(versions) > VERSIONS_MAX:
        raise ValueError("the answer has no supportedVersions")
    if not all(isinstance(one, str) and 0 < len(one) <= VERSION_LENGTH_MAX for one in versions):
        raise ValueError("the answer's supportedVersions are not all version numbers")
    return tuple(versions)


def common_versions(spoken: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Say in which versions a chain can be called; `spoken`: plugin -> its versions. Oldest first; () if they have none in common."""
    return tuple(one for one in SUPPORTED_VERSIONS if all(one in versions for versions in spoken.values()))


def conflist_version(versions: tuple[str, ...]) -> str:
    """Choose `cniVersion` of the conflist, for runtimes that do not know `cniVersions`, from at least one version."""
    return CONFLIST_VERSION if CONFLIST_VERSION in versions else versions[-1]


def limits(spoken: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Plugin -> the highest version of ours that it speaks, for those that end below our highest."""
    highest = {name: [one for one in SUPPORTED_VERSIONS if one in versions] for name, versions in spoken.items()}
    return {name: ours[-1] for name, ours in highest.items() if ours and ours[-1] != SUPPORTED_VERSIONS[-1]}
