"""Compare a copy of our configuration, made by other software, with our present one, and list the lines to change. Pure.

Istio with its own conflist, Antrea, Cilium in chaining mode and Multus with `delegates` copy our configuration into a file that the
runtime uses instead of ours (docs/adr/0060). After a change of our settings the copy is stale, and no other software reports it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ipamd.model.conflist_parts import PLUGINS, OwnPart, Plugin, canonical, type_of
from ipamd.model.pod_annotations import POD_ANNOTATIONS

CAPABILITIES = "capabilities"
"""Field of a plugin's configuration that requests data from the runtime."""

NO_ANNOTATIONS = (
    "it hands over no annotations of pods: VPC_IPAMD_POD_SECURITY_GROUP_SOURCE becomes kubelet, and "
    "VPC_IPAMD_SNAT_ANNOTATION_NAMESPACES and VPC_IPAMD_PINNED_ADDRESSES stay empty"
)
"""The line for a file whose plugin calls ours, such as Multus. Such a plugin does not pass on the pod's annotations. Source:
multus-cni, pkg/types/types.go, RuntimeConfig, which has a closed list of capabilities, and annotations are not in it."""


def lines_of_copy(document: Plugin, own_parts: Sequence[OwnPart]) -> list[str]:
    """List the lines of a copy that differ, as "A becomes B"; [] if the copy agrees with one of `own_parts`.

    Args:
        document: a conflist that has our plugin among others, or the configuration of our plugin alone.
        own_parts: our part of the conflist, once with the CNI versions of our plugins and once with the versions of the whole chain.
            The copy may have been made from either of them.
    """
    return min((_lines(document, our_part) for our_part in own_parts), key=len)


def lines_of_wrapper(document: Plugin, our_part: OwnPart) -> list[str]:
    """List the lines to change in the configuration of a plugin that calls ours.

    A runtime passes only the data for which the configuration file that it loads has capabilities. That file is the other plugin's, so
    it must have our capabilities too.
    """
    wanted: dict[str, Any] = {}
    for plugin in our_part.plugins:
        wanted |= plugin.get(CAPABILITIES, {})
    lines = [NO_ANNOTATIONS] if wanted.pop(POD_ANNOTATIONS, False) else []
    present = _object(document.get(CAPABILITIES))
    if any(present.get(name) != value for name, value in wanted.items()):
        lines.append(_change(CAPABILITIES, document, {**present, **wanted}))
    return lines


def _version_lines(document: Plugin, our_part: OwnPart) -> list[str]:
    lines = []
    for key in ("cniVersion", "cniVersions"):
        # Without `cniVersions` a runtime uses `cniVersion`, which every plugin supports.
        is_absent = key == "cniVersions" and key not in document
        if not is_absent and canonical(document.get(key)) != canonical(our_part.fields[key]):
            lines.append(_change(key, document, our_part.fields[key]))
    return lines


def _lines(document: Plugin, our_part: OwnPart) -> list[str]:
    lines = _version_lines(document, our_part)
    plugins = document.get(PLUGINS)
    entries = plugins if isinstance(plugins, list) else [document]
    for plugin in our_part.plugins:
        plugin_entry = next((plugin_entry for plugin_entry in entries if type_of(plugin_entry) == plugin["type"]), None)
        if plugin_entry is None:
            lines.append(f"add to {PLUGINS}, behind {our_part.plugins[0]['type']}: {json.dumps(plugin)}")
        elif canonical(_object(plugin_entry.get(CAPABILITIES))) != canonical(_object(plugin.get(CAPABILITIES))):
            lines.append(f"in the entry of {plugin['type']}: {_change(CAPABILITIES, plugin_entry, plugin.get(CAPABILITIES))}")
    if type_of(entries[0]) != our_part.plugins[0]["type"]:
        lines.append(f"make {our_part.plugins[0]['type']} the first of {PLUGINS}")
    return lines


def _change(key: str, present: Mapping[str, Any], wanted: object) -> str:
    """Return a sentence with a field as it is, and as it must be."""
    before = f'"{key}": {json.dumps(present[key])}' if key in present else f'no "{key}"'
    after = f'"{key}": {json.dumps(wanted)}' if wanted is not None else f'no "{key}"'
    return f"{before} becomes {after}"


def _object(value: object) -> dict[str, Any]:
    if isinstance(value, dict):
        return dict(value)
    return {}
