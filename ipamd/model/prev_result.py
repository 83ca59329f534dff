"""Validate a prevResult before it is used: a result that is accepted here can be converted to every CNI version (I5).

Source: the CNI specification, section "Success Types" (an interface has a name, an IP configuration an address with its mask, a
route a destination). Fields that we do not know are kept unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ipaddress import ip_interface

from ipamd.model.cni_request import JsonObject
from ipamd.model.cniresult import _entries
from ipamd.model.errors import InvalidConfigError
from ipamd.model.failures import FailureCode, failure

MAX_DEPTH = 50
"""The most levels of nested lists and objects. Ours: results have four; copying or encoding a very deep one could exhaust the
stack."""


def require_valid(prev_result: JsonObject) -> None:
    """Raise InvalidConfigError if a prevResult is not valid, with the place of the first wrong entry. Concurrency: pure."""
    for section, is_valid, wanted in _SECTIONS:
        for index, section_object in enumerate(_entries(prev_result, section)):
            if not is_valid(section_object):
                raise failure(InvalidConfigError, FailureCode.PREV_RESULT_ENTRY, section=section, index=index, wanted=wanted)
    if not isinstance(prev_result.get("dns"), dict | None):
        raise failure(InvalidConfigError, FailureCode.PREV_RESULT_DNS)
    if _is_deeper(prev_result, MAX_DEPTH):
        raise failure(InvalidConfigError, FailureCode.PREV_RESULT_NESTED, limit=MAX_DEPTH)


def _is_network(value: object) -> bool:
    if not isinstance(value, str) or "/" not in value:
        return False
    try:
        ip_interface(value)
    except ValueError:
        return False
    return True


def _is_deeper(value: object, most: int) -> bool:
    """Whether lists and objects are nested in more than `most` levels. The search ends at that level."""
    if not isinstance(value, Mapping | list):
        return False
    inner = value.values() if isinstance(value, Mapping) else value
    return most == 0 or any(_is_deeper(element, most - 1) for element in inner)


_SECTIONS: tuple[tuple[str, Callable[[JsonObject], bool], str], ...] = (
    (
        "interfaces",
        lambda interface: isinstance(interface.get("name"), str) and isinstance(interface.get("sandbox", ""), str),
        "an interface needs a name; its sandbox is a path",
    ),
    ("ips", lambda ip_config: _is_network(ip_config.get("address")), "an IP configuration needs an address with its mask"),
    ("routes", lambda route: _is_network(route.get("dst")), "a route needs a destination with its mask"),
)
