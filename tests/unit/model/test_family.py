"""The two families as values: each is of one piece, and an address leads to its own."""

from __future__ import annotations

import socket
from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.family import IPV4, IPV6, family_of, read_address, unpack_address


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


NUMBERS = st.sampled_from([IPV4, IPV6]).flatmap(
    lambda family: st.tuples(st.just(family), st.integers(0, 2**family.outside.max_prefixlen - 1))
)


@given(NUMBERS | st.tuples(st.just(IPV6), st.integers(0, 2**49) | st.builds(lambda one: one << 64, st.integers(0, 2**64 - 1))))
def test_an_address_is_spelled_and_read_as_python_does(one):
    """The library of C does it, also where the two spell otherwise: an IPv6 address that holds one of IPv4. It is the same key."""
    family, number = one
    address, plain = family.address(number), ip_address(number.to_bytes(family.outside.max_prefixlen // 8, "big"))
    assert (str(address), f"{address}") == (str(plain), str(plain))
    assert {address: 1}[plain] == 1
    assert read_address(str(plain)) == address == unpack_address(plain.packed)
    assert {type(one) for one in (read_address(str(plain)), unpack_address(plain.packed), address + 0)} == {family.address}


@pytest.mark.parametrize(
    "text", ["", "10.0.0", "10.0.0.01", "10.0.0.256", "1::2::3", "::12345", "10.0.0.1 ", "fe80::1%", "\u0661.0.0.1"]
)
def test_what_python_does_not_read_is_refused_with_its_words(text):
    """In either family."""
    with pytest.raises(ValueError, check=lambda error: str(error) != ""):
        ip_address(text)
    with pytest.raises(ValueError, check=lambda error: str(error) != ""):
        read_address(text)
