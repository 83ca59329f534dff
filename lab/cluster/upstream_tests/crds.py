"""Definitions of the custom resources that the tests of amazon-vpc-cni-k8s watch.

The tests' client waits until it can list each kind that it knows, so without these definitions no test would run. Nothing in the lab
reads objects of these kinds.
"""

from __future__ import annotations

from typing import Any

Object = dict[str, Any]

COLLECTION = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"

_KINDS = (
    ("crd.k8s.amazonaws.com", "v1alpha1", "ENIConfig", "Cluster"),
    ("vpcresources.k8s.aws", "v1alpha1", "CNINode", "Cluster"),
    ("vpcresources.k8s.aws", "v1beta1", "SecurityGroupPolicy", "Namespaced"),
)
"""Group, version, kind, scope. Source: config/master/aws-k8s-cni.yaml of amazon-vpc-cni-k8s; EKS installs the latter two."""


def definitions() -> list[Object]:
    """Return the definitions. They have no schema, so that an object may have any fields."""
    return [_definition(*kind) for kind in _KINDS]


def _definition(group: str, version: str, kind: str, scope: str) -> Object:
    singular = kind.lower()
    plural = f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}s"
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": singular},
            "scope": scope,
            "versions": [{"name": version, "served": True, "storage": True, "schema": schema}],
        },
    }
