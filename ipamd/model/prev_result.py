"""Judge a prevResult before anything is done with it: what is accepted here can be answered in every version (I5).

Source: the CNI specification, section "Success Types" (an interface has a name, an IP configuration an address with its mask, a route
a destination). Fields that we do not know pass as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from ipaddress import ip_interface

from ipamd.model.errors import InvalidConfigError
from ipamd.model.request import JsonObject

MAX_DEPTH = 50
"""Levels of nested lists and objects. Ours: results have four; copying and printing recurse."""


def require_valid(prev_result: JsonObject) -> None:
    """Raise InvalidConfigError with the path of the first entry that no result may have. Concurrency: pure."""
    for section, is_valid, wanted in _SECTIONS:
        entries = prev_result.get(section)
        entries = [] if entries is None else entries
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise InvalidConfigError(f"prevResult.{section} is not a list of objects")
        for index, entry in enumerate(entries):
            if not is_valid(entry):
                raise InvalidConfigError(f"prevResult.{section}[{index}] is not valid", details=wanted)
    if not isinstance(prev_result.get("dns"), dict | None):
        raise InvalidConfigError("prevResult.dns is not an object")
    if _depth(prev_result) > MAX_DEPTH:
        raise InvalidConfigError(f"prevResult is nested deeper than {MAX_DEPTH} levels")


def _is_interface(entry: JsonObject) -> bool:
    return isinstance(entry.get("name"), str) and isinstance(entry.get("sandbox", ""), str)


def _is_ip(entry: JsonObject) -> bool:
    return _is_network(entry.get("address"))


def _is_route(entry: JsonObject) -> bool:
    return _is_network(entry.get("dst"))


def _is_network(value: object) -> bool:
    if not isinstance(value, str) or "/" not in value:
        return False
    try:
        ip_interface(value)
    except ValueError:
        return False
    return True


def _depth(value: object) -> int:
    """Levels of nested lists and objects, without recursion; stops one level past the limit."""
    level: list[object] = [value]
    depth = 0
    while level and depth <= MAX_DEPTH:
        inner = [one for container in level for one in _members(container)]
        level = [one for one in inner if isinstance(one, dict | list)]
        depth += 1
    return depth


def _members(container: object) -> Iterable[object]:
    if isinstance(container, Mapping):
        return container.values()
    return container if isinstance(container, list) else ()


_SECTIONS: tuple[tuple[str, Callable[[JsonObject], bool], str], ...] = (
    ("interfaces", _is_interface, "an interface needs a name; its sandbox is a path"),
    ("ips", _is_ip, "an IP configuration needs an address with its mask"),
    ("routes", _is_route, "a route needs a destination with its mask"),
)
