"""Reading the manifests for the tests beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[3]
MANIFESTS = ROOT / "manifests"
SCHEMAS = Path(__file__).with_name("schemas")


def documents() -> list[dict[str, Any]]:
    """Every document of base/daemonset.yaml."""
    return list(yaml.safe_load_all((MANIFESTS / "base" / "daemonset.yaml").read_text()))


def daemonset() -> dict[str, Any]:
    """The DaemonSet."""
    return next(document for document in documents() if document["kind"] == "DaemonSet")


def pod() -> dict[str, Any]:
    """The pod's spec."""
    spec: dict[str, Any] = daemonset()["spec"]["template"]["spec"]
    return spec


def container() -> dict[str, Any]:
    """The daemon's container."""
    (found,) = pod()["containers"]
    return dict(found)


def init_container() -> dict[str, Any]:
    """The container that prepares the node."""
    (found,) = pod()["initContainers"]
    return dict(found)


def environment() -> dict[str, str]:
    """The daemon's environment."""
    return {entry["name"]: entry["value"] for entry in container()["env"]}


def mounts() -> list[dict[str, Any]]:
    """The daemon's mounts of the node's paths, each with its `hostPath`."""
    volumes = {volume["name"]: volume["hostPath"] for volume in pod()["volumes"] if "hostPath" in volume}
    return [{**mount, "hostPath": volumes[mount["name"]]} for mount in container()["volumeMounts"] if mount["name"] in volumes]


def schema(name: str) -> dict[str, Any]:
    """One of our schemas."""
    loaded: dict[str, Any] = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
    return loaded
