"""The CNI result: built once in the canonical version, stored, and converted to the version that each request asks for.

The result is stored because a runtime that timed out and retries must get the same answer. Source of the results' form: the CNI
specification of each version in `SUPPORTED_VERSIONS`, section "Result Types".
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from ipamd.model.attachment import Attachment, Wired, WiringSpec, sandbox_mac
from ipamd.model.cni_request import JsonObject
from ipamd.model.cni_versions import is_before, require_supported
from ipamd.model.errors import InvalidConfigError
from ipamd.model.family import IpAddress, family_of, read_spelling
from ipamd.model.ids import MacAddress
from ipamd.model.legs import first_leg, legs_of
from ipamd.model.record import replace

CANONICAL_VERSION = "1.1.0"
"""Version of stored results. A CNI version that only adds optional fields needs no new canonical version."""

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"))
"""One encoder for all results, because `json.dumps` with arguments makes an encoder at each call."""

_FIELDS_SINCE = "1.1.0"

_NEW_FIELDS = {"interfaces": ("mtu", "socketPath", "pciID"), "routes": ("mtu", "advmss", "priority", "table", "scope")}
"""Fields of each section that versions before `_FIELDS_SINCE` do not have."""

_IP_VERSION_UNTIL = "1.0.0"
"""Versions before this one have a field `version` with the family ("4" or "6") in every IP configuration."""


def build_result(
    spec: WiringSpec,
    wired: Wired,
    *,
    prev_result: JsonObject | None = None,
    further: Iterable[tuple[WiringSpec, Wired]] = (),
) -> bytes:
    """Describe a wired sandbox as a canonical result.

    Args:
        prev_result: the result of the plugins before ours in the chain; the sandbox's interfaces are appended to it.
        further: the pod's interfaces of further network cards, which follow its first interface. In the result they have addresses and
            no route.
    Returns: JSON of CANONICAL_VERSION.
    Raises: InvalidConfigError if `interfaces`, `ips` or `routes` of prev_result is not a list of objects.
    """
    base = _as_lists(prev_result or {})
    _append_interface(base, spec, wired)
    for further_spec, further_wired in further:
        _append_interface(base, further_spec, replace(further_wired, is_default_route=False))
    base["cniVersion"] = CANONICAL_VERSION
    return _ENCODER.encode(base).encode()


def _append_interface(base: dict[str, Any], spec: WiringSpec, wired: Wired) -> None:
    """Append an interface of the sandbox, its address and its default route to a result."""
    first = len(base["interfaces"])
    base["interfaces"] += [
        {"name": spec.host_veth, "mac": wired.host_mac, "mtu": spec.mtu},
        {"name": spec.key.ifname, "mac": wired.sandbox_mac, "mtu": spec.mtu, "sandbox": spec.netns},
    ]
    for leg in legs_of(spec)[1:]:  # addresses of extra legs are valid only on this node, so the result has only their links
        base["interfaces"] += [
            {"name": leg.host_veth, "mac": leg.mac("host"), "mtu": spec.mtu},
            {"name": leg.ifname, "mac": leg.mac("sandbox"), "mtu": spec.mtu, "sandbox": spec.netns},
        ]
    base["interfaces"] += first_leg(spec).entries_for_others
    family = family_of(spec.address)
    address, gateway = f"{spec.address}/{spec.address.max_prefixlen}", str(first_leg(spec).gateway)
    base["ips"].append({"address": address, "gateway": gateway, "interface": first + 1})
    if wired.is_default_route:
        base["routes"].append({"dst": str(family.any_route), "gw": gateway})


def convert_result(stored: bytes, *, version: str) -> bytes:
    """Convert a canonical result to another version of the specification.

    Raises: IncompatibleVersionError for an unsupported version.
    """
    require_supported(version)
    if version == CANONICAL_VERSION:
        return stored
    result: dict[str, Any] = json.loads(stored)
    if is_before(version, _FIELDS_SINCE):
        for section, names in _NEW_FIELDS.items():
            for interface_or_route in result.get(section, ()):
                for name in names:
                    interface_or_route.pop(name, None)
    if is_before(version, _IP_VERSION_UNTIL):
        for ip_configuration in result.get("ips", ()):
            ip_configuration["version"] = "6" if ":" in ip_configuration["address"] else "4"
    result["cniVersion"] = version
    return _ENCODER.encode(result).encode()


def result_differences(prev_result: JsonObject, *, ifname: str, address: IpAddress, netns: str) -> list[str]:
    """List how the prevResult of a CHECK contradicts an attachment; empty if it does not.

    Addresses are compared as values, because runtimes and other plugins write them differently. MACs, gateways and routes are not
    compared here: a later plugin of the chain may have changed them, and CHECK compares the kernel with the record.

    Raises: InvalidConfigError if `interfaces`, `ips` or `routes` of prev_result is not a list of objects.
    """
    result = _as_lists(prev_result)
    problems = []
    mine = [interface for interface in result["interfaces"] if interface.get("name") == ifname and interface.get("sandbox")]
    if not mine:
        problems.append(f"prevResult has no interface {ifname} inside the sandbox")
    elif all(interface["sandbox"] != netns for interface in mine):
        problems.append(f"prevResult places {ifname} in {mine[0]['sandbox']}, not in {netns}")
    if address not in map(_address_of, result["ips"]):
        problems.append(f"prevResult does not carry address {address}")
    return problems


def _address_of(ip_configuration: JsonObject) -> IpAddress | None:
    """Read the address of an IP configuration, without its mask; None if there is no valid address."""
    try:
        return read_spelling(str(ip_configuration.get("address", "")).partition("/")[0])
    except ValueError:
        return None


def recorded_spec(attachment: Attachment, *, netns: str = "") -> WiringSpec:
    """Return the specification by which a recorded sandbox was wired. `netns`: a path that replaces the recorded one."""
    return replace(
        attachment.wiring,
        netns=netns or attachment.netns,
        mtu=wired_mtu(attachment.result, attachment.host_veth),
        others_mac=others_mac(attachment),
    )


def others_mac(attachment: Attachment) -> MacAddress | None:
    """Return the host veth's MAC from the stored result if amazon-vpc-cni-k8s wired the sandbox; "" if the stored MAC is empty.

    Returns: None if we wired the sandbox, or if the result has no key `mac` for the host veth.
    """
    for interface in _recorded(attachment.result, attachment.host_veth):
        if "mac" in interface:
            mac = str(interface["mac"])
            if mac != sandbox_mac(attachment.key, side="host"):
                return MacAddress(mac)
            return None
    return None


def wired_mtu(stored: bytes, host_veth: str) -> int:
    """Return the MTU with which a sandbox was wired, from its stored result; 0 if the result has none.

    The present setting may differ from it.
    """
    for interface in _recorded(stored, host_veth):
        if "mtu" in interface:
            return int(interface["mtu"])
    return 0


def renamed_result(stored: bytes, host_veth: str, to: str) -> bytes:
    """Return a stored result with the host veth `host_veth` renamed to `to`."""
    result = json.loads(stored)
    for interface in _host_interfaces(result, host_veth):
        interface["name"] = to
    return _ENCODER.encode(result).encode()


@lru_cache(maxsize=2048)  # each pass over the sandboxes reads the results of all of them
def _recorded(stored: bytes, host_veth: str) -> list[dict[str, Any]]:
    return _host_interfaces(json.loads(stored), host_veth)


def _host_interfaces(result: dict[str, Any], host_veth: str) -> list[dict[str, Any]]:
    interfaces = result.get("interfaces", ())
    return [interface for interface in interfaces if interface.get("name") == host_veth and not interface.get("sandbox")]


def _as_lists(result: JsonObject) -> dict[str, Any]:
    copied = copy.deepcopy(dict(result))
    for section in ("interfaces", "ips", "routes"):
        copied[section] = _entries(copied, section)
    for ip_configuration in copied["ips"]:
        ip_configuration.pop("version", None)
    copied.setdefault("dns", {})
    return copied


def _entries(result: JsonObject, section: str) -> list[Any]:
    entries = result.get(section)
    if entries is None:
        return []
    if not isinstance(entries, list) or not all(isinstance(section_object, dict) for section_object in entries):
        raise InvalidConfigError(f"prevResult.{section} is not a list of objects")
    return entries
