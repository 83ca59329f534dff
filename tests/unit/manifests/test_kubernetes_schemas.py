"""Every object that goes to Kubernetes has only fields that it knows, of the right type; it drops a misspelt one in silence."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml

from tests.unit.manifests.manifest import MANIFESTS, daemonset

VERSIONS = ("1.30", "1.35", "1.37")
"""Oldest that is claimed, the one that issue reports came from, and the newest that kubernetes-validate knows."""

OF_OPERATORS = {"PodMonitor", "PrometheusRule"}
"""Kinds of the Prometheus operator, which Kubernetes has no schema of: test_monitoring.py."""

FILES = sorted(
    path for folder in ("base", "sweeper", "inventory", "monitoring", "pod-eni") for path in MANIFESTS.glob(f"{folder}/*.yaml")
)

SINCE = {"MutatingAdmissionPolicy": "1.36", "MutatingAdmissionPolicyBinding": "1.36"}
"""Release whose stable API a kind is in, where that is not the oldest; what serves an older one does without."""


def objects(path: Path) -> Iterator[dict[str, Any]]:
    """The objects of a file for Kubernetes itself."""
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] not in OF_OPERATORS and "kustomize" not in document["apiVersion"]:
            yield document


def validate(document: dict[str, Any], version: str) -> None:
    """Raises: kubernetes_validate.ValidationError for a field or value that this version does not have."""
    kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("version", VERSIONS)
def test_every_object_is_one_that_kubernetes_knows(version: str) -> None:
    """Strictly: an unknown field is an error."""
    kinds = []
    for path in FILES:
        for document in objects(path):
            if version >= SINCE.get(document["kind"], version):
                validate(document, version)
                kinds.append(document["kind"])
    since = [kind for kind, first in SINCE.items() if version >= first]
    policies = ["ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"]
    assert sorted(kinds) == sorted(["CronJob", "DaemonSet", "Deployment", *3 * ["ServiceAccount"], *policies, *since])


@pytest.mark.parametrize(
    "change", [{"hostNetworks": True}, {"hostNetwork": "yes"}, {"volumes": [{"name": "run", "hostPath": "/run"}]}]
)
def test_the_check_is_strict(change: dict[str, object]) -> None:
    """It notices a misspelt field, a wrong type and a wrong shape."""
    changed = daemonset()
    changed["spec"]["template"]["spec"] |= change
    with pytest.raises(kubernetes_validate.ValidationError):
        validate(changed, VERSIONS[-1])


def test_only_these_schemas_are_installed() -> None:
    """`make setup` removes the others, 96 MB of 108."""
    (line,) = [
        one for one in (MANIFESTS.parent / "tools/setup.sh").read_text().splitlines() if one.startswith("schema_versions=")
    ]
    assert tuple(line.partition("=")[2].strip('"').split()) == VERSIONS
    folder = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    assert sorted(one.name for one in folder.iterdir()) == [f"v{version}.0-local-strict" for version in VERSIONS]
