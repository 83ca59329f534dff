"""Convert ENIConfig objects of amazon-vpc-cni-k8s (crd.k8s.amazonaws.com/v1alpha1) to the file of custom networking.

The name of an ENIConfig is an availability zone, or the value of a label or annotation of nodes. Labels cannot be read without the
Kubernetes API, so the user must give the zone of an ENIConfig whose name is not a zone. Pure: the caller reads the documents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from typing import Any

from ipamd.model.errors import SettingsError
from ipamd.model.subnets import CustomNetwork, ZoneNetwork, unusual_zone_problem, zone_of, zone_problem
from ipamd.model.words import counted, printable

API_VERSION = "crd.k8s.amazonaws.com/v1alpha1"
SPEC = ("subnet", "securityGroups")
"""Fields of an ENIConfig's spec. Source: amazon-vpc-cni-k8s pkg/apis/crd/v1alpha1/eniconfig_types.go, ENIConfigSpec."""

Document = tuple[str, Any]
"""The source of a document, for people, and its content."""


def convert(documents: Iterable[Document], *, zones: Mapping[str, str], primary_carries_pods: bool) -> CustomNetwork:
    """Make the content of the file of custom networking.

    Args:
        documents: ENIConfig objects, lists of them as `kubectl get -o yaml` prints them, and empty documents.
        zones: name of an ENIConfig -> its availability zone, for each ENIConfig whose name is not a zone.
        primary_carries_pods: whether pods may also have addresses of the primary ENI.
    Raises: SettingsError whose details name every problem at once.
    """
    problems: list[str] = []
    networks: dict[str, ZoneNetwork] = {}
    names: set[str] = set()
    for where, document in _objects(documents, problems):
        name = _name_of(document)
        if name is None:
            problems.append(f"{where}: metadata.name is missing")
            continue
        names.add(name)
        zone = zones.get(name, name)
        shown_name = printable(name)[:80]
        check = unusual_zone_problem
        if name in zones:
            check = zone_problem
        problem = check(zone)
        if problem:
            problems.append(f"{where}: {problem}: give its zone with --zone {shown_name}=ZONE")
        if zone in networks:
            problems.append(f"{where}: zone {zone} has an ENIConfig already")
        network = _network(document.get("spec"), where=f"{where} ({shown_name})", problems=problems)
        if network is not None:
            networks.setdefault(zone, network)
    problems += _unused_zones(zones, names)
    if not networks:
        problems = problems or ["there is no ENIConfig in it"]
    if problems:
        raise SettingsError(f"the ENIConfig objects have {counted(len(problems), 'problem')}", details="; ".join(problems))
    return CustomNetwork(networks, primary_carries_pods)


def _unused_zones(zones: Mapping[str, str], names: Set[str]) -> list[str]:
    return [f"--zone {name}={zones[name]}: no ENIConfig has this name" for name in sorted(zones.keys() - names)]


def _name_of(document: Mapping[str, Any]) -> str | None:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return None
    name = metadata.get("name")
    if not name or not isinstance(name, str):
        return None
    return name


def _objects(documents: Iterable[Document], problems: list[str]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield each ENIConfig, also those in lists. Anything else but an empty document adds a sentence to `problems`."""
    for where, document in documents:
        if document is None:
            continue  # an empty document, between two separators
        if not isinstance(document, dict):
            problems.append(f"{where}: is no object")
        elif document.get("kind") in ("List", "ENIConfigList"):
            items = document.get("items")
            if isinstance(items, list):
                nested = [(f"{where}, item {number}", member) for number, member in enumerate(items, 1)]
                yield from _objects(nested, problems)
            else:
                problems.append(f"{where}: a list without items")
        elif (document.get("apiVersion"), document.get("kind")) != (API_VERSION, "ENIConfig"):
            kind = printable(f"{document.get('apiVersion')} {document.get('kind')}")[:120]
            problems.append(f"{where}: is {kind}, not {API_VERSION} ENIConfig")
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
    return zone_of(spec.get("subnet"), groups or [], location=where, problems=problems)
