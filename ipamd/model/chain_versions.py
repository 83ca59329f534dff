"""Find the CNI versions in which a chain of plugins can be called: those that all of its plugins support.

libcni calls every plugin of a conflist in one version, the highest of `cniVersions` that libcni supports. A plugin that does not
support that version fails: Debian's portmap 1.1.1 answers STATUS of 1.1.0 with "missing containerID", and the node stays NotReady.
Source: the CNI specification (github.com/containernetworking/cni, SPEC.md), VERSION and "Version considerations".
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from ipamd.model.cni_versions import CONFLIST_VERSION, SUPPORTED_VERSIONS

VERSIONS_MAX = 64

VERSION_LENGTH_MAX = 32
"""The most versions in a plugin's answer to VERSION, and the most characters of each. Ours: every valid answer fits, because the
specification has fewer than ten versions, each with five characters."""


def parse_versions(output: bytes) -> tuple[str, ...]:
    """Read a plugin's answer to VERSION. Returns: the versions that the plugin supports, in its order. Raises: ValueError."""
    try:
        answer = json.loads(output)
    except (ValueError, RecursionError) as error:
        raise ValueError("the answer is not JSON") from error
    versions = answer.get("supportedVersions") if isinstance(answer, dict) else None
    if not isinstance(versions, list) or not versions or len(versions) > VERSIONS_MAX:
        raise ValueError("the answer has no supportedVersions")
    if not all(isinstance(version, str) and 0 < len(version) <= VERSION_LENGTH_MAX for version in versions):
        raise ValueError("the answer's supportedVersions are not all version numbers")
    return tuple(versions)


def common_versions(spoken: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the versions that all plugins of a chain support, oldest first. `spoken`: plugin -> the versions that it supports."""
    common = []
    for version in SUPPORTED_VERSIONS:
        if all(version in versions for versions in spoken.values()):
            common.append(version)
    return tuple(common)


def conflist_version(versions: tuple[str, ...]) -> str:
    """Choose `cniVersion` of the conflist, for runtimes that do not read `cniVersions`.

    `versions`: the versions that the chain supports, oldest first; at least one.
    Returns: CONFLIST_VERSION if the chain supports it, else the newest of `versions`.
    """
    if CONFLIST_VERSION in versions:
        return CONFLIST_VERSION
    return versions[-1]


def limits(spoken: Mapping[str, tuple[str, ...]]) -> dict[str, str]:
    """Return each plugin that does not support our highest version, with the highest of our versions that it supports.

    A plugin that supports none of our versions is left out.
    """
    highest = {name: [version for version in SUPPORTED_VERSIONS if version in versions] for name, versions in spoken.items()}
    return {name: ours[-1] for name, ours in highest.items() if ours and ours[-1] != SUPPORTED_VERSIONS[-1]}


def narrowed(versions: tuple[str, ...], spoken: Mapping[str, tuple[str, ...]]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Leave out the versions that other software's plugins do not support; a plugin that supports none of the remaining ones is
    ignored.

    Args:
        versions: the versions of the chain without other software's plugins, oldest first; at least one.
        spoken: each of other software's plugins -> the versions that it supports.
    Returns: the remaining versions, at least one; and the ignored plugins.
    """
    refused = []
    for name, of_plugin in spoken.items():
        common = tuple(version for version in versions if version in of_plugin)
        if common:
            versions = common
        else:
            refused.append(name)
    return versions, tuple(refused)
