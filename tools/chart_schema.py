"""Write the part of the chart's schema that is about settings: the name of every setting, and a pattern of its values.

By the schema Helm refuses a misspelt setting before anything in the cluster is changed. Without the schema Helm would install it. Then
running daemons would keep their previous settings, and the next daemon that starts would end with an error.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ipamd.model.record import fields
from ipamd.settings import Settings
from ipamd.settings.parsers import Parser, parse_bool
from ipamd.settings.upstream import UPSTREAM, Fate

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
    templates turn it into text. An empty text means that the setting is not set. The schema checks no bounds: the daemon does, because
    it can report all problems at once.
    """
    schemas: dict[str, Mapping[str, object]] = {}
    for setting in UPSTREAM:
        if setting.fate is not Fate.REFUSED or setting.harmless:
            schemas[setting.name] = {"type": ["string", "integer", "boolean"], "pattern": ONE_LINE}
    for topic in fields(Settings):
        for field in fields(type(getattr(Settings(), topic.name))):
            metadata = field.metadata
            text = re.sub(r"\s+", " ", metadata["text"])
            pattern = _pattern(metadata["parse"])
            schemas[metadata["env"]] = {"type": TYPES.get(pattern, "string"), "pattern": pattern, "description": text}
    return schemas


def _pattern(parse: Parser) -> str:
    """Return a regular expression for the values that a setting's parser accepts."""
    if parse is parse_bool:
        return BOOLEAN
    made_by = getattr(parse, "__qualname__", "").partition(".")[0]
    if made_by == "integer":
        return WHOLE_NUMBER
    if made_by == "choice":
        allowed: tuple[str, ...] = _closed_over(parse)["allowed"]
        words = ("".join(f"[{letter.upper()}{letter}]" if letter.isalpha() else letter for letter in word) for word in allowed)
        return f"^(|{'|'.join(words)})$"
    return ONE_LINE


def _closed_over(parse: Parser) -> Mapping[str, Any]:
    """Return the variables that a parser captured from the function that made it, such as `allowed` of `choice`."""
    return inspect.getclosurevars(parse).nonlocals
