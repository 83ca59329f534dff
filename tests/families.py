"""Tests whose promise is the family's: the same test, on a node of each.

A fixture that makes a node takes the family by `family_for`; a test, or a whole file, that both must pass says `in_both("fixture")`.
Elsewhere the fixture's node is one of IPv4.
"""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from ipamd.model.family import IPV4, IPV6, Family
from ipamd.settings import NetworkConfig
from lab.vpc import family as lab_family

HEAVY_IPV6 = (lab_family.IPV4, pytest.param(lab_family.IPV6, marks=pytest.mark.heavy))
"""Both, the second one in `make test-all` only: for what takes seconds and whose steps are the same ones in either."""

EACH_FAMILY = pytest.mark.parametrize("family", lab_family.FAMILIES, ids=lambda family: family.nft)
"""For a test that makes a node of the lab itself, of the `family` that it takes."""

EACH_FAMILY_HEAVY_IPV6 = pytest.mark.parametrize("family", HEAVY_IPV6, ids=lambda family: family.nft)


def in_both(fixture: str) -> pytest.MarkDecorator:
    """Run with a node of each family from a fixture of fakes that asks `family_for`."""
    return pytest.mark.parametrize(fixture, [IPV4, IPV6], indirect=True, ids=lambda family: family.nft)


def in_both_of_lab(fixture: str, families: Iterable[object] = lab_family.FAMILIES) -> pytest.MarkDecorator:
    """The same with a node of the lab. Args: families: these, or `HEAVY_IPV6`."""
    return pytest.mark.parametrize(fixture, families, indirect=True, ids=lambda family: family.nft)


def in_ipv4_of_lab(fixture: str) -> pytest.MarkDecorator:
    """Run with the node of IPv4 of a module whose other tests run in both: it is the same node then, and not a third one."""
    return in_both_of_lab(fixture, [lab_family.IPV4])


def family_for(request: pytest.FixtureRequest) -> Family:
    """The family that a fixture of fakes is asked for."""
    family: Family = getattr(request, "param", IPV4)
    return family


def lab_family_for(request: pytest.FixtureRequest) -> lab_family.Family:
    """The family that a fixture of the lab is asked for."""
    family: lab_family.Family = getattr(request, "param", lab_family.IPV4)
    return family


def network_of(family: Family) -> NetworkConfig:
    """Settings that make a pool of a family."""
    return NetworkConfig(ipv4=family is IPV4, ipv6=family is IPV6)
