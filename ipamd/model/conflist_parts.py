"""Separate our part of a conflist from the part of other software, and merge the two. Pure.

Agents of service meshes (Istio in chained mode, Linkerd, older Antrea) append their plugin to the conflist that they find, and
append it again when it is gone (docs/adr/0060). So a conflist has two owners. Our part is the fields that we render, and our plugins,
which come first. All other fields and plugins belong to other software: they are neither compared nor repaired.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import starmap
from typing import Any

from ipamd.model.record import dataclass, field

Plugin = Mapping[str, Any]
"""The configuration of one plugin, or a whole CNI configuration."""

PLUGINS = "plugins"

DEPTH_MAX = 100
"""The most levels of nested arrays and objects. Ours: a conflist has four or five; writing a very deep one could exhaust the stack."""

OF_EVERY_PLUGIN = {"cniVersion": str, "name": str, "capabilities": dict, "ipam": dict, "dns": dict, "prevResult": dict}
"""Keys that a runtime itself reads in each plugin's configuration, and their types. A value of another type makes the runtime refuse
the whole list. The values in `capabilities` must be booleans. Source: github.com/containernetworking/cni, pkg/types/types.go,
PluginConf."""

FLAGS = ("disableCheck", "disableGC", "loadOnlyInlinedPlugins")
"""Fields of a conflist in which a runtime accepts only true and false, as booleans or as strings. Source:
github.com/containernetworking/cni, libcni/conf.go."""


class PartDefect(StrEnum):
    """A defect of our part of the conflist. The value is the end of a sentence about the file."""

    MISSING = "was missing"
    CHANGED = "had been changed"
    """The path is not a file, or the file is not a conflist that a runtime can load, or it is the conflist of another network."""
    FIELDS = "had other versions, or another name"
    PLUGINS = "had our plugins altered, moved, doubled or removed"
    UNUSABLE = "had entries or fields with which no runtime loads it"


@dataclass(frozen=True, slots=True)
class OwnPart:
    """Our part of the conflist.

    `fields`: all fields that we render, except `plugins`.
    `plugins`: the plugins that we render, first the plugin that wires sandboxes.
    `former`: plugins that we rendered under earlier settings. They are removed from the file, unless somebody altered them.
    """

    fields: Mapping[str, Any]
    plugins: tuple[Plugin, ...]
    former: tuple[Plugin, ...] = ()


@dataclass(frozen=True, slots=True)
class OthersPart:
    """The part of other software in the conflist: plugins behind ours, in their order, and fields that we do not render."""

    plugins: tuple[Plugin, ...] = ()
    fields: Mapping[str, Any] = field(default_factory=dict)

    @property
    def types(self) -> tuple[str, ...]:
        """The names of the plugins' binaries, each once, in the order of the file."""
        return tuple(dict.fromkeys(str(plugin["type"]) for plugin in self.plugins))

    def without(self, types: Iterable[str]) -> OthersPart:
        """Return the part without the plugins of these types."""
        left_out = frozenset(types)
        return OthersPart(tuple(plugin for plugin in self.plugins if plugin["type"] not in left_out), self.fields)


def parse(content: bytes) -> dict[str, Any] | None:
    """Read a CNI configuration as a runtime's JSON decoder does: UTF-8 without a byte order mark, and no NaN.

    Returns: None if it is not a JSON object, or is nested deeper than DEPTH_MAX.
    """
    try:
        document = json.loads(content.decode(), parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError):
        return None
    if isinstance(document, dict) and _is_shallow(document):
        return document
    return None


def canonical(value: object) -> str:
    """Return the same text for equal JSON values, whatever the order of keys. Unlike `==` it distinguishes `true` from 1."""
    return json.dumps(value, sort_keys=True)


def others_in(document: Mapping[str, Any] | None, our_part: OwnPart) -> OthersPart | None:
    """Find the part of other software in our conflist.

    Returns: None if the document is not a conflist, or is not ours, because it has neither our name nor our first plugin.
    """
    if document is None or not isinstance(document.get(PLUGINS), list):
        return None
    entries: list[Any] = document[PLUGINS]
    has_our_plugin = our_part.plugins[0]["type"] in map(type_of, entries)
    if not has_our_plugin and document.get("name") != our_part.fields["name"]:
        return None
    ours = _indexes_of_ours(entries, our_part)
    plugins = tuple(plugin for index, plugin in enumerate(entries) if index not in ours and is_loadable(plugin))
    fields = {key: value for key, value in _fields_of_others(document, our_part).items() if _is_loadable_field(key, value)}
    return OthersPart(plugins, fields)


def defect_of(document: Mapping[str, Any] | None, our_part: OwnPart) -> PartDefect | None:
    """Return the defect of our part of the conflist; None if it has none. Only `UNUSABLE` may be a defect of other software's part."""
    if document is None or others_in(document, our_part) is None:
        return PartDefect.CHANGED
    entries: list[Any] = document[PLUGINS]
    fields = _fields_of_others(document, our_part)
    if not all(map(is_loadable, entries)) or not all(starmap(_is_loadable_field, fields.items())):
        return PartDefect.UNUSABLE
    if canonical({key: document.get(key) for key in our_part.fields}) != canonical(our_part.fields):
        return PartDefect.FIELDS
    head = list(map(canonical, entries[: len(our_part.plugins)]))
    is_head_ours = head == list(map(canonical, our_part.plugins))
    if not is_head_ours or len(_indexes_of_ours(entries, our_part)) > len(our_part.plugins):
        return PartDefect.PLUGINS
    return None


def merge(our_part: OwnPart, others_part: OthersPart) -> dict[str, Any]:
    """Build the conflist: our fields and plugins, then other software's fields and plugins, unchanged."""
    return {
        **our_part.fields,
        PLUGINS: [*our_part.plugins, *others_part.plugins],
        **_fields_of_others(others_part.fields, our_part),
    }


def key_of_wrong_kind(plugin: Plugin) -> str | None:
    """Return the first key of OF_EVERY_PLUGIN whose value has a wrong type; None if all types are right."""
    for key, kind in OF_EVERY_PLUGIN.items():
        if plugin.get(key) is not None and not isinstance(plugin[key], kind):
            return key
    for is_supported in (plugin.get("capabilities") or {}).values():
        if not isinstance(is_supported, bool):
            return "capabilities"
    return None


def type_of(plugin: object) -> str:
    """Return the name of a plugin's binary; "" for an entry that has none."""
    kind = plugin.get("type") if isinstance(plugin, dict) else None
    if isinstance(kind, str):
        return kind
    return ""


def _fields_of_others(document: Mapping[str, Any], our_part: OwnPart) -> dict[str, Any]:
    return {key: value for key, value in document.items() if key not in our_part.fields and key != PLUGINS}


def is_loadable(plugin: object) -> bool:
    """Whether a runtime can load the entry as a plugin."""
    return bool(type_of(plugin)) and isinstance(plugin, dict) and key_of_wrong_kind(plugin) is None


def _is_loadable_field(key: str, value: object) -> bool:
    return key not in FLAGS or isinstance(value, bool) or value in ("true", "false")


def _indexes_of_ours(entries: Sequence[Any], our_part: OwnPart) -> set[int]:
    """Return the indexes of our plugins among the entries of the file.

    Every entry with the type of our first plugin is ours, because a second one would be a second ADD of the same sandbox. For each
    other plugin that we render, the equal entry is ours; if there is none, the first entry of the same type, which somebody has
    altered. Unaltered plugins that we rendered under earlier settings are ours too.
    """
    texts = list(map(canonical, entries))
    types = list(map(type_of, entries))
    ours = set(_indexes_of(our_part.plugins[0]["type"], types))
    for plugin in our_part.plugins[1:]:
        candidates = [*_indexes_of(canonical(plugin), texts), *_indexes_of(plugin["type"], types)]
        ours.update([index for index in candidates if index not in ours][:1])
    former = set(map(canonical, our_part.former)) - set(map(canonical, our_part.plugins))
    for text in former:
        ours.update(_indexes_of(text, texts))
    return ours


def _indexes_of(value: str, values: Sequence[str]) -> list[int]:
    return [index for index, other in enumerate(values) if other == value]


def _is_shallow(document: object) -> bool:
    level = [document]
    for _ in range(DEPTH_MAX):
        level = [child for value in level for child in _children(value)]
        if not level:
            return True
    return False


def _children(value: object) -> Iterable[object]:
    if isinstance(value, dict):
        return value.values()
    if isinstance(value, list):
        return value
    return ()


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text} is too large")
    return number
