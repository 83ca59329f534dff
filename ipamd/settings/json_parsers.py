"""Parsers of the settings that are JSON: tags for ENIs, and plugins to chain. As strict as who reads the value in the end."""

from __future__ import annotations

import json
import math
import re
from typing import Any

from ipamd.settings.parsers import one_line

TAG_KEY_MAX, TAG_VALUE_MAX = 128, 256
"""Characters. Source: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html, tag restrictions."""

TAGS_MAX = 44
"""A resource has 50 tags at most (same source), and an ENI that the daemon makes carries up to 5 of its own; one is spare."""

RESERVED = "k8s.amazonaws.com"

OF_EVERY_PLUGIN = {"cniVersion": str, "name": str, "capabilities": dict, "ipam": dict, "dns": dict, "prevResult": dict}
"""Keys that a runtime reads in each plugin's configuration itself, and their kinds: one of another kind makes it refuse the whole
list. `capabilities` has a boolean for each. Source: github.com/containernetworking/cni, pkg/types/types.go, PluginConf."""


def parse_tags(text: str) -> tuple[tuple[str, str], ...]:
    """Accept a JSON object of strings that EC2 takes as tags; keys that contain k8s.amazonaws.com are reserved. Raises: ValueError."""
    tags = _strict(text) if text.strip() else {}
    if not isinstance(tags, dict) or not all(isinstance(value, str) for value in tags.values()):
        raise ValueError("must be a JSON object of strings")
    reserved = sorted(key for key in tags if RESERVED in key or key.lower().startswith("aws:"))
    if reserved:
        raise ValueError(f"keys with {RESERVED} or that begin with aws: are reserved: {', '.join(reserved)}")
    if len(tags) > TAGS_MAX:
        raise ValueError(f"must be {TAGS_MAX} tags at most")
    for key, value in tags.items():
        if not 1 <= len(key) <= TAG_KEY_MAX or len(value) > TAG_VALUE_MAX or not (key + value).isprintable():
            raise ValueError(f"a tag has a key of 1 to {TAG_KEY_MAX} and a value of {TAG_VALUE_MAX} printable characters at most")
    return tuple(sorted(tags.items()))


def parse_cluster_name(text: str) -> str:
    """Accept what can be the value of a tag. Raises: ValueError."""
    if len(one_line(text)) > TAG_VALUE_MAX:
        raise ValueError(f"must have {TAG_VALUE_MAX} characters at most: it is the value of a tag")
    return text


def parse_plugins(text: str) -> str:
    """Accept a JSON list of plugin configurations, each with a type other than ours. Returns: compact JSON. Raises: ValueError."""
    plugins = _strict(text)
    if not isinstance(plugins, list) or not all(isinstance(one, dict) and isinstance(one.get("type"), str) for one in plugins):
        raise ValueError("must be a JSON list of objects, each with a type")
    types = [one["type"] for one in plugins]
    if not all(re.fullmatch(r"[a-zA-Z0-9_-]+", one) and one != "vpc-cni" for one in types):
        raise ValueError("a type is the file name of a plugin, and not vpc-cni")
    for one in plugins:
        wrong = [key for key, kind in OF_EVERY_PLUGIN.items() if one.get(key) is not None and not isinstance(one[key], kind)]
        if wrong or not all(isinstance(value, bool) for value in (one.get("capabilities") or {}).values()):
            key = wrong[0] if wrong else "capabilities"
            raise ValueError(
                f"{key} of {one['type']} is not of the kind that every plugin must have: no runtime would read the list"
            )
    return json.dumps(plugins, separators=(",", ":"))


def _strict(text: str) -> Any:
    """Read JSON as other readers will: a key once in an object, no NaN. Raises: ValueError."""
    return json.loads(text, object_pairs_hook=_unique, parse_constant=_no_constant, parse_float=_finite)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key stands twice in a JSON object")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is too large a number")
    return value


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")
