"""Make custom networking's file of ENIConfig objects of amazon-vpc-cni-k8s (crd.k8s.amazonaws.com/v1alpha1): what is in documents that
were read already. Pure.

An ENIConfig is named after an availability zone, or after anything else that a label or annotation of nodes names. Nobody reads labels
without the Kubernetes API, so a name that is no zone has to be given one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ipamd.model.errors import SettingsError
from ipamd.model.subnets import CustomNetwork, ZoneNetwork, zone_of, zone_problem
from ipamd.model.words import counted, printable

API_VERSION = "crd.k8s.amazonaws.com/v1alpha1"
SPEC = ("subnet", "securityGroups")
"""Fields of an ENIConfig's spec. Source: amazon-vpc-cni-k8s pkg/apis/crd/v1alpha1/eniconfig_types.go, ENIConfigSpec."""

Document = tuple[str, Any]
"""Where a document came from, for people, and what is in it."""


def convert(documents: Iterable[Document], *, zones: Mapping[str, str], primary_carries_pods: bool) -> CustomNetwork:
    """Make the file's content.

    Args:
        documents: ENIConfig objects, lists of them as `kubectl get -o yaml` prints them, and empty documents.
        zones: availability zone by the name of an ENIConfig that is not named after its own.
    Raises: SettingsError whose details name every problem at once.
    """
    problems: list[str] = []
    found: dict[str, ZoneNetwork] = {}
    used: set[str] = set()
    for where, document in _objects(documents, problems):
        metadata = document.get("metadata")
        name = metadata.get("name") if isinstance(metadata, dict) else None
        if not name or not isinstance(name, str):
            problems.append(f"{where}: metadata.name is missing")
            continue
        used.add(name)
        zone = zones.get(name, name)
        if problem := zone_problem(zone):
            problems.append(f"{where}: {problem}: say which zone it is for, --zone {printable(name)[:80]}=ZONE")
        if zone in found:
            problems.append(f"{where}: zone {zone} has an ENIConfig already")
        entry = _network(document.get("spec"), where=f"{where} ({printable(name)[:80]})", problems=problems)
        if entry is not None:
            found.setdefault(zone, entry)
    problems += [f"--zone {name}={zones[name]}: no ENIConfig has this name" for name in sorted(zones.keys() - used)]
    if not found and not problems:
        problems.append("there is no ENIConfig in it")
    if problems:
        raise SettingsError(f"the ENIConfig objects have {counted(len(problems), 'problem')}", details="; ".join(problems))
    return CustomNetwork(found, primary_carries_pods)


def _objects(documents: Iterable[Document], problems: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Each ENIConfig, with those in lists; everything else is a problem."""
    for where, document in documents:
        if document is None:
            continue  # nothing between two separators
        if not isinstance(document, dict):
            problems.append(f"{where}: is no object")
        elif document.get("kind") in ("List", "ENIConfigList"):
            items = document.get("items")
            if isinstance(items, list):
                yield from _objects(((f"{where}, item {number}", item) for number, item in enumerate(items, 1)), problems)
            else:
                problems.append(f"{where}: a list without items")
        elif (document.get("apiVersion"), document.get("kind")) != (API_VERSION, "ENIConfig"):
            shown = printable(f"{document.get('apiVersion')} {document.get('kind')}")[:120]
            problems.append(f"{where}: is {shown}, not {API_VERSION} ENIConfig")
        else:
            yield where, document


def _network(spec: object, *, where: str, problems: list[str]) -> ZoneNetwork | None:
    if not isinstance(spec, dict):
        problems.append(f"{where}: spec is missing")
        return None
    problems += [f"{where}: spec.{printable(str(key))[:80]} is not known" for key in spec if key not in SPEC]
    groups = spec.get("securityGroups")
    if groups is not None and not isinstance(groups, list):
        problems.append(f"{where}: spec.securityGroups must be a list")
        return None
    return zone_of(spec.get("subnet"), groups or [], where=where, problems=problems)
