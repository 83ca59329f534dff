"""Parse the settings that are JSON (tags for ENIs, plugins to chain), and the name of the cluster, which becomes a tag.

Values that EC2 or a runtime would refuse are refused here.
"""

from __future__ import annotations

import json
import re
from typing import Any

from ipamd.model.conflist_parts import key_of_wrong_kind
from ipamd.model.eni_tags import POOL_TAG
from ipamd.settings.parsers import single_line

TAG_KEY_MAX, TAG_VALUE_MAX = 128, 256
"""The largest numbers of characters of a tag's key and value. Source:
https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/Using_Tags.html, tag restrictions."""

TAGS_MAX = 44
"""The largest number of tags in the setting. A resource has at most 50 tags (same source), and the daemon adds up to 6 tags of its own
to an ENI that it makes."""

RESERVED = "k8s.amazonaws.com"


def parse_tags(text: str) -> tuple[tuple[str, str], ...]:
    """Accept a JSON object of strings that EC2 takes as tags; an empty text means no tags. Raises: ValueError.

    Reserved keys are refused. These are keys that contain k8s.amazonaws.com, keys that begin with aws:, and POOL_TAG. With POOL_TAG
    every new ENI would belong to a pool of pods.
    """
    if not text.strip():
        return ()
    tags = _strict(text)
    if not _is_object_of_strings(tags):
        raise ValueError("must be a JSON object of strings")
    reserved = sorted(key for key in tags if _is_reserved(key))
    if reserved:
        raise ValueError(f"keys with {RESERVED}, that begin with aws:, and {POOL_TAG} are reserved: {', '.join(reserved)}")
    if len(tags) > TAGS_MAX:
        raise ValueError(f"must be {TAGS_MAX} tags at most")
    if not all(_fits_ec2(key, value) for key, value in tags.items()):
        raise ValueError(f"a tag has a key of 1 to {TAG_KEY_MAX} and a value of {TAG_VALUE_MAX} printable characters at most")
    return tuple(sorted(tags.items()))


def parse_cluster_name(text: str) -> str:
    """Accept text that can be the value of a tag. Raises: ValueError."""
    if len(single_line(text)) > TAG_VALUE_MAX:
        raise ValueError(f"must have {TAG_VALUE_MAX} characters at most: it is the value of a tag")
    return text


def parse_plugins(text: str) -> str:
    """Accept a JSON list of plugin configurations, each with a type other than ours. Returns: compact JSON. Raises: ValueError."""
    plugins = _strict(text)
    if not isinstance(plugins, list) or not all(_has_type(plugin) for plugin in plugins):
        raise ValueError("must be a JSON list of objects, each with a type")
    for plugin in plugins:
        if not re.fullmatch(r"[a-zA-Z0-9_-]+", plugin["type"]) or plugin["type"] == "vpc-cni":
            raise ValueError("a type is the file name of a plugin, and not vpc-cni")
    for plugin in plugins:
        key = key_of_wrong_kind(plugin)
        if key is not None:
            raise ValueError(f"{key} of {plugin['type']} has a value of the wrong JSON type, so no runtime would load the list")
    return json.dumps(plugins, separators=(",", ":"))


def _is_object_of_strings(value: object) -> bool:
    return isinstance(value, dict) and all(isinstance(member, str) for member in value.values())


def _is_reserved(key: str) -> bool:
    return RESERVED in key or key.lower().startswith("aws:") or key == POOL_TAG


def _fits_ec2(key: str, value: str) -> bool:
    """Whether key and value have lengths and characters that EC2 accepts in a tag."""
    return 1 <= len(key) <= TAG_KEY_MAX and len(value) <= TAG_VALUE_MAX and (key + value).isprintable()


def _has_type(plugin: object) -> bool:
    return isinstance(plugin, dict) and isinstance(plugin.get("type"), str)


def _strict(text: str) -> Any:
    """Read JSON that every parser accepts: without repeated keys, NaN, and numbers that are too large. Raises: ValueError."""
    value = json.loads(text, object_pairs_hook=_unique)
    json.dumps(value, allow_nan=False)
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise ValueError("a key stands twice in a JSON object")
    return members
