"""The CNI result: built once in the canonical version, stored, and converted to the version that each request asks for.

Stored, because a client that timed out and retries must get the same answer. Source of the shapes: the CNI specification of each
version in `SUPPORTED_VERSIONS`, section "Result Types".
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import ip_interface
from typing import Any

from ipamd.model.attachment import VETH_HASH_LENGTH, Attachment, JsonObject, Wired, WiringSpec, sandbox_mac
from ipamd.model.errors import IncompatibleVersionError, InvalidConfigError
from ipamd.model.family import IpAddress, family_of
from ipamd.model.ids import MacAddress

# The versions of the CNI specification that we speak, and what came with which: the only list of them.
#
# The plugin keeps a copy, because it imports nothing of the daemon; a test holds it equal
# (`tests/unit/model/test_cniversion.py`). Source: the CNI specification (github.com/containernetworking/cni, SPEC.md) of each
# version.


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


DUMMY_PREFIX = "dummy"
"""Of an interface in the result of amazon-vpc-cni-k8s that is none: of a pod with a branch ENI its MAC is the VLAN ID. Source:
amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/cni.go, add and tryDelWithPrevResult."""

CANONICAL_VERSION = "1.1.0"
"""Of stored results: a version that only adds optional fields needs no new one."""

_FIELDS_SINCE = "1.1.0"
_NEW_FIELDS = {"interfaces": ("mtu", "socketPath", "pciID"), "routes": ("mtu", "advmss", "priority", "table", "scope")}
"""Fields of each section that versions before that one do not have."""

_IP_VERSION_UNTIL = "1.0.0"
"""Before it every entry of `ips` said whether it is of IPv4 or IPv6."""


def build_result(spec: WiringSpec, wired: Wired, *, prev_result: JsonObject | None = None) -> bytes:
    """Describe a wired sandbox as a canonical result.

    Args:
        prev_result: the result of the plugins before us in the chain; ours is appended to it.
    Raises: InvalidConfigError if prev_result has no lists where lists belong.
    """
    base = _as_lists(prev_result or {})
    first = len(base["interfaces"])
    base["interfaces"] += [
        {"name": spec.host_veth, "mac": wired.host_mac, "mtu": spec.mtu},
        {"name": spec.key.ifname, "mac": wired.sandbox_mac, "mtu": spec.mtu, "sandbox": spec.netns},
    ]
    if second := spec.second:  # its address is good on this node alone, so nobody is told of it
        base["interfaces"] += [
            {"name": second.host_veth, "mac": second.mac("host"), "mtu": spec.mtu},
            {"name": second.ifname, "mac": second.mac("sandbox"), "mtu": spec.mtu, "sandbox": spec.netns},
        ]
    if spec.branch:  # its plugin's DEL finds by it what leads to the branch ENI; no link has the name
        name = f"{DUMMY_PREFIX}{spec.host_veth[-VETH_HASH_LENGTH:]}"
        base["interfaces"].append({"name": name, "mac": str(spec.branch.vlan)})
    family = family_of(spec.address)
    address, gateway = f"{spec.address}/{spec.address.max_prefixlen}", str(family.gateway)
    base["ips"].append({"address": address, "gateway": gateway, "interface": first + 1})
    base["routes"].append({"dst": str(family.any_route), "gw": gateway})
    base["cniVersion"] = CANONICAL_VERSION
    return json.dumps(base, sort_keys=True, separators=(",", ":")).encode()


def convert_result(stored: bytes, *, version: str) -> bytes:
    """Convert a canonical result to another version of the specification.

    Raises: IncompatibleVersionError for an unsupported version.
    """
    require_supported(version)
    result: dict[str, Any] = json.loads(stored)
    if is_before(version, _FIELDS_SINCE):
        for section, names in _NEW_FIELDS.items():
            for entry in result.get(section, ()):
                for name in names:
                    entry.pop(name, None)
    if is_before(version, _IP_VERSION_UNTIL):
        for entry in result.get("ips", ()):
            entry["version"] = "6" if ":" in entry["address"] else "4"
    result["cniVersion"] = version
    return json.dumps(result, sort_keys=True, separators=(",", ":")).encode()


def result_differences(prev_result: JsonObject, *, ifname: str, address: IpAddress, netns: str) -> list[str]:
    """List what in a prevResult contradicts an attachment (CHECK); empty if nothing does.

    Raises: InvalidConfigError if prev_result has no lists where lists belong.
    """
    result = _as_lists(prev_result)
    problems = []
    mine = [entry for entry in result["interfaces"] if entry.get("name") == ifname and entry.get("sandbox")]
    if not mine:
        problems.append(f"prevResult has no interface {ifname} inside the sandbox")
    elif all(entry["sandbox"] != netns for entry in mine):
        problems.append(f"prevResult places {ifname} in {mine[0]['sandbox']}, not in {netns}")
    if not any(str(entry.get("address", "")).split("/")[0] == str(address) for entry in result["ips"]):
        problems.append(f"prevResult does not carry address {address}")
    return problems


def recorded_spec(attachment: Attachment, *, netns: str = "") -> WiringSpec:
    """What a recorded sandbox was wired with; `netns` replaces the recorded path."""
    return WiringSpec(
        key=attachment.key,
        address=attachment.address,
        route_table=attachment.route_table,
        host_veth=attachment.host_veth,
        netns=netns or attachment.netns,
        mtu=wired_mtu(attachment.result, attachment.host_veth),
        others_mac=others_mac(attachment),
        other_address=attachment.other_address,
        branch=attachment.branch,
        eni_id=attachment.eni_id,
    )


def others_mac(attachment: Attachment) -> MacAddress | None:
    """The host veth's MAC of a sandbox that amazon-vpc-cni-k8s wired, "" if it is not known; None of one that we wired."""
    for interface in _recorded(attachment.result, attachment.host_veth):
        if "mac" in interface:
            found = str(interface["mac"])
            return MacAddress(found) if found != sandbox_mac(attachment.key, side="host") else None
    return None


def wired_mtu(stored: bytes, host_veth: str) -> int:
    """Return the MTU that a sandbox was wired with, from its stored result, 0 if it has none: the setting may have changed since."""
    for interface in _recorded(stored, host_veth):
        if "mtu" in interface:
            return int(interface["mtu"])
    return 0


def renamed_result(stored: bytes, host_veth: str, to: str) -> bytes:
    """Return a stored result in which a host veth has another name."""
    result = json.loads(stored)
    for interface in _host_interfaces(result, host_veth):
        interface["name"] = to
    return json.dumps(result, sort_keys=True, separators=(",", ":")).encode()


@lru_cache(maxsize=2048)  # each pass over the sandboxes asks for all
def _recorded(stored: bytes, host_veth: str) -> list[dict[str, Any]]:
    return _host_interfaces(json.loads(stored), host_veth)


def _host_interfaces(result: dict[str, Any], host_veth: str) -> list[dict[str, Any]]:
    return [one for one in result.get("interfaces", ()) if one.get("name") == host_veth and not one.get("sandbox")]


def _as_lists(result: JsonObject) -> dict[str, Any]:
    copied = copy.deepcopy(dict(result))
    for section in ("interfaces", "ips", "routes"):
        copied[section] = _entries(copied, section)
    for entry in copied["ips"]:
        entry.pop("version", None)
    copied.setdefault("dns", {})
    return copied


def _entries(result: JsonObject, section: str) -> list[Any]:
    entries = result.get(section)
    entries = [] if entries is None else entries
    if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
        raise InvalidConfigError(f"prevResult.{section} is not a list of objects")
    return entries


# Judge a prevResult before anything is done with it: what is accepted here can be answered in every version (I5).
#
# Source: the CNI specification, section "Success Types" (an interface has a name, an IP configuration an address with its mask, a
# route a destination). Fields that we do not know pass as they are.


MAX_DEPTH = 50
"""Levels of nested lists and objects. Ours: results have four; copying and printing recurse."""


def require_valid(prev_result: JsonObject) -> None:
    """Raise InvalidConfigError with the path of the first entry that no result may have. Concurrency: pure."""
    for section, is_valid, wanted in _SECTIONS:
        for index, entry in enumerate(_entries(prev_result, section)):
            if not is_valid(entry):
                raise InvalidConfigError(f"prevResult.{section}[{index}] is not valid", details=wanted)
    if not isinstance(prev_result.get("dns"), dict | None):
        raise InvalidConfigError("prevResult.dns is not an object")
    if _is_deeper(prev_result, MAX_DEPTH):
        raise InvalidConfigError(f"prevResult is nested deeper than {MAX_DEPTH} levels")


def _is_network(value: object) -> bool:
    if not isinstance(value, str) or "/" not in value:
        return False
    try:
        ip_interface(value)
    except ValueError:
        return False
    return True


def _is_deeper(value: object, most: int) -> bool:
    """Whether lists and objects are nested in more levels; looks no deeper."""
    if not isinstance(value, Mapping | list):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return most == 0 or any(_is_deeper(one, most - 1) for one in inner)


_SECTIONS: tuple[tuple[str, Callable[[JsonObject], bool], str], ...] = (
    (
        "interfaces",
        lambda entry: isinstance(entry.get("name"), str) and isinstance(entry.get("sandbox", ""), str),
        "an interface needs a name; its sandbox is a path",
    ),
    ("ips", lambda entry: _is_network(entry.get("address")), "an IP configuration needs an address with its mask"),
    ("routes", lambda entry: _is_network(entry.get("dst")), "a route needs a destination with its mask"),
)
