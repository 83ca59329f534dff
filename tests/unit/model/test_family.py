"""The two families as values: each is of one piece, and an address leads to its own."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network

import pytest

from ipamd.model.family import IPV4, IPV6, family_of


@pytest.mark.parametrize(("family", "number", "bits"), [(IPV4, socket.AF_INET, 32), (IPV6, socket.AF_INET6, 128)])
def test_a_family_is_of_one_piece(family, number, bits):
    """Its number is the kernel's, and all its addresses and networks are of its own classes."""
    assert family.number == number
    assert {type(family.gateway), type(family.outside)} == {family.address}
    assert type(family.any_route) is family.network
    assert family.gateway.max_prefixlen == bits
    assert family.any_route.num_addresses == 2**bits
    assert 0 < family.prefix_length < bits


@pytest.mark.parametrize(("text", "family"), [("10.0.3.7", IPV4), ("2600:1f13::7", IPV6), ("0.0.0.0", IPV4), ("::", IPV6)])
def test_an_address_leads_to_its_family(text, family):
    """So does a network of it; what the family's classes read is the same."""
    assert family_of(ip_address(text)) is family
    assert family_of(ip_network(text)) is family
    assert family.address(text) == ip_address(text)
    assert family.network((ip_address(text), family.prefix_length), strict=False).prefixlen == family.prefix_length


def test_no_family_reads_the_other_one():
    """A pool of one family takes no address of the other, nor its prefix."""
    with pytest.raises(ValueError, match="2600"):
        IPV4.address("2600:1f13::7")
    with pytest.raises(ValueError, match=r"10\.0"):
        IPV6.network("10.0.3.0/28")
