"""Write the part of the chart's schema that is about settings: the name of every setting, and a pattern of its values.

By the schema Helm refuses a misspelt setting before anything in the cluster is changed. Without the schema Helm would install it. Then
running daemons would keep their previous settings, and the next daemon that starts would end with an error.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ipamd.model.record import fields
from ipamd.settings import Settings, json_parsers, parsers
from ipamd.settings.parsers import Parser, parse_bool
from ipamd.settings.upstream import NO, UPSTREAM, YES, Fate, UpstreamSetting
from ipamd.settings.upstream_values import CIDR_LISTS, LOWEST

SCHEMA = Path(__file__).resolve().parents[1] / "manifests" / "chart" / "values.schema.json"

BY_VALUES = (
    "AWS_VPC_K8S_CNI_CUSTOM_NETWORK_CFG",
    "CLUSTER_NAME",
    "ENABLE_POD_ENI",
    "NETWORK_POLICY_ENFORCING_MODE",
    "POD_SECURITY_GROUP_ENFORCING_MODE",
    "VPC_IPAMD_CONFLIST_FILE",
    "VPC_IPAMD_CRI_SOCKET",
    "VPC_IPAMD_ENABLE_PORTMAP_PLUGIN",
    "VPC_IPAMD_HEALTH_ADDRESS",
    "VPC_IPAMD_KUBELET_PODS_SOCKET",
    "VPC_IPAMD_POD_SECURITY_GROUP_SOURCE",
    "VPC_IPAMD_RUN_DIR",
    "VPC_IPAMD_SETTINGS_FILE",
)
"""Environment variables that operators must not set directly: the chart sets them from other values or to suit its mounts."""

OURS = "VPC_IPAMD_"

ONE_LINE = r"^[^\n\r]*$"
BOOLEAN = r"^(|1|t|T|TRUE|true|True|0|f|F|FALSE|false|False)$"
WHOLE_NUMBER = r"^(|[+-]?[0-9]{1,20}|0[xX][0-9a-fA-F]{1,16})$"

TYPES = {BOOLEAN: ["string", "boolean"], WHOLE_NUMBER: ["string", "integer"]}
"""The pattern of a setting's values -> the YAML types that a value may have. With any other pattern a value must be text."""

NAME = "[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
"""A namespace. Helm's regular expressions have no look-ahead, so this is not that of the parsers."""

POOL = "[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?"

ADDRESS = r"[0-9]{1,3}(\.[0-9]{1,3}){3}"

LENGTH = rf"/([0-9]|[12][0-9]|3[0-2]|{ADDRESS})"
"""The length of a CIDR's prefix, or its mask."""

PATH = r"/[^\n\r]*"

FILE = r"/[^\n\r]*[^/\n\r][^\n\r]*"


def _list_of(entry: str) -> str:
    """Return the pattern of a comma-separated list, which may have spaces and empty entries."""
    return f"^ *({entry})? *(, *({entry})? *)*$"


def _unset_or(value: str) -> str:
    """Return the pattern of a single value, or of no value."""
    return f"^(|{value})$"


FORMS: Mapping[Parser, str] = {
    json_parsers.parse_plugins: _unset_or(r" *\[[^\n\r]*\] *"),
    json_parsers.parse_tags: _unset_or(r" *(\{[^\n\r]*\})? *"),
    parsers.parse_cidrs: _list_of(f"{ADDRESS}({LENGTH})?"),
    parsers.parse_conflist: _unset_or(rf"{PATH}\.conflist"),
    parsers.parse_file: _unset_or(FILE),
    parsers.parse_file_text: _unset_or(FILE),
    parsers.parse_http_url: _unset_or(r"[hH][tT][tT][pP]://[^\s?#@]+"),
    parsers.parse_listen_address: _unset_or(r"off|[^\s]*:[0-9]{1,5}"),
    parsers.parse_mark: WHOLE_NUMBER,
    parsers.parse_namespaces: _list_of(NAME),
    parsers.parse_path: _unset_or(PATH),
    parsers.parse_path_text: _unset_or(PATH),
    parsers.parse_pinned_ranges: _list_of(f"{NAME}( *= *{ADDRESS}({LENGTH})?)?"),
    parsers.parse_pod_subjects: _list_of(f"{NAME}|{ADDRESS}{LENGTH}"),
    parsers.parse_pool_by_namespace: _list_of(f"{NAME}={POOL}"),
    parsers.parse_pool_choices: _list_of(f"{NAME}={POOL}"),
    parsers.parse_service_cidrs: _list_of(f"{ADDRESS}({LENGTH})?"),
    parsers.parse_socket: _unset_or(FILE),
    parsers.parse_veth_prefix: _unset_or("[a-zA-Z0-9]{1,4}"),
}
"""The parser of a setting -> the form of its values. A pattern accepts every value in one line that the parser accepts. The parser may
be stricter: about names of hosts and links, bits of the packet mark, and JSON."""

ANY_IN_ONE_LINE = (*CIDR_LISTS, "AWS_EC2_ENDPOINT")
"""Settings of which the daemon skips or completes what the form forbids (`ipamd/settings/upstream_values.py`)."""


def chart_schema() -> str:
    """Write the schema anew: the part about settings is generated, the rest stays as it was written by hand."""
    schema = json.loads(SCHEMA.read_text())
    known = setting_schemas()
    schema["properties"]["settings"] = {
        "type": "object",
        "additionalProperties": False,
        "properties": {name: known[name] for name in sorted(known) if name not in BY_VALUES},
    }
    schema["properties"]["extraEnv"]["items"]["properties"]["name"] = {
        "type": "string",
        "pattern": "^[A-Z][A-Z0-9_]*$",
        "not": {"enum": list(BY_VALUES)},
        "anyOf": [{"not": {"pattern": f"^{OURS}"}}, {"enum": sorted(name for name in known if name.startswith(OURS))}],
    }
    return json.dumps(schema, indent=2) + "\n"


def setting_schemas() -> Mapping[str, Mapping[str, object]]:
    """Return the schema of each setting's value, for this daemon's settings and for those of amazon-vpc-cni-k8s that it accepts.

    A value is text. For a setting that is a number or a boolean, YAML's number or boolean is allowed too, because the chart's
    templates turn it into text. An empty text means that the setting is not set. Bounds are checked of numbers only: those of a number
    that stands as text are left to the daemon, because a pattern about them would tell nobody what is wrong.
    """
    schemas: dict[str, Mapping[str, object]] = {}
    for setting in UPSTREAM:
        if setting.fate is not Fate.REFUSED or setting.harmless:
            schemas[setting.name] = _foreign_schema(setting)
    for topic in fields(Settings):
        for field in fields(type(getattr(Settings(), topic.name))):
            metadata = field.metadata
            text = re.sub(r"\s+", " ", metadata["text"])
            name, parse = metadata["env"], metadata["parse"]
            pattern = _pattern(parse)
            if name in ANY_IN_ONE_LINE:
                pattern = ONE_LINE
            form = {"type": TYPES.get(pattern, "string"), "pattern": pattern, "description": text}
            schemas[name] = {**form, **_bounds(name, parse)}
    return schemas


def _foreign_schema(setting: UpstreamSetting) -> Mapping[str, object]:
    """Return the schema of a setting that only amazon-vpc-cni-k8s has: the values with which the daemon starts."""
    if setting.fate is Fate.WITHOUT_MEANING:
        return {"type": ["string", "integer", "boolean"], "pattern": ONE_LINE}
    words = setting.harmless
    if setting.fate is Fate.DIFFERENT:
        words = (*YES, *NO)
    values: list[object] = [""]
    for word in words:
        values += dict.fromkeys((word, word.capitalize(), word.upper()))
    values += [is_yes for is_yes, of_word in ((True, "true"), (False, "false")) if of_word in words]
    return {"enum": values}  # without 0 and 1 as numbers: Helm takes them for the texts, and refuses an enum with equal members


def _bounds(name: str, parse: Parser) -> Mapping[str, int]:
    """Return the bounds of a number; {} for another parser."""
    if parse is parsers.parse_mark:
        return {"minimum": 1, "maximum": 0xFFFFFFFF}
    if not _is_made_by(parse, parsers.integer):
        return {}
    captured = _closed_over(parse)
    bounds = {"minimum": captured["lowest"], "maximum": captured["highest"]}
    if name in LOWEST:
        del bounds["minimum"]  # a lower number means "not set", as in amazon-vpc-cni-k8s
    return bounds


def _pattern(parse: Parser) -> str:
    """Return a regular expression for the values that a setting's parser accepts."""
    if parse is parse_bool:
        return BOOLEAN
    if parse in FORMS:
        return FORMS[parse]
    if _is_made_by(parse, parsers.integer):
        return WHOLE_NUMBER
    if _is_made_by(parse, parsers.or_off):
        return f"{_pattern(_closed_over(parse)['parse'])}|^off$"
    if _is_made_by(parse, parsers.choice):
        allowed: tuple[str, ...] = _closed_over(parse)["allowed"]
        words = ("".join(f"[{letter.upper()}{letter}]" if letter.isalpha() else letter for letter in word) for word in allowed)
        return f"^(|{'|'.join(words)})$"
    return ONE_LINE


def _is_made_by(parse: Parser, maker: Callable[..., Parser]) -> bool:
    """Whether a parser is a function that `maker` made."""
    return getattr(parse, "__qualname__", "").partition(".")[0] == maker.__name__


def _closed_over(parse: Parser) -> Mapping[str, Any]:
    """Return the variables that a parser captured from the function that made it, such as `allowed` of `choice`."""
    return inspect.getclosurevars(parse).nonlocals
