"""Entries of the connection tracking table: the four addresses are read, and an odd entry is an error of the dump."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.kernel import uapi
from ipamd.kernel.conntrack import _addresses, _identity
from ipamd.kernel.netlink import attribute
from ipamd.model.errors import KernelDumpError
from ipamd.model.family import IPV4, IPV6, Family

FAMILIES = pytest.mark.parametrize("family", [IPV4, IPV6], ids=["ipv4", "ipv6"])


def addresses_of(family: Family) -> tuple[bytes, ...]:
    """Four different addresses."""
    return tuple((family.outside + number).packed for number in range(4))


def entry_of(family: Family) -> bytes:
    """An entry as the kernel writes it: both tuples with addresses and ports, then the status."""
    kinds = (uapi.CTA_IP_V4_SRC, uapi.CTA_IP_V4_DST) if family is IPV4 else (uapi.CTA_IP_V6_SRC, uapi.CTA_IP_V6_DST)
    addresses, body = addresses_of(family), struct.pack("=BBH", family.number, 0, 0)
    for side, pair in ((uapi.CTA_TUPLE_ORIG, addresses[:2]), (uapi.CTA_TUPLE_REPLY, addresses[2:])):
        pairs = b"".join(attribute(kind, address) for kind, address in zip(kinds, pair, strict=True))
        ports = attribute(uapi.NLA_F_NESTED | 2, attribute(1, b"\x06"))
        body += attribute(uapi.NLA_F_NESTED | side, attribute(uapi.NLA_F_NESTED | uapi.CTA_TUPLE_IP, pairs) + ports)
    return body + attribute(3, b"\0\0\0\1")


@FAMILIES
def test_the_addresses_of_both_tuples_are_read(family: Family) -> None:
    """Source and destination of the original direction and of the reply."""
    assert _addresses(entry_of(family)) == addresses_of(family)


@FAMILIES
def test_an_entry_that_is_cut_off_is_an_error_of_the_dump(family: Family) -> None:
    """At each length before the last address, also without any byte."""
    entry = entry_of(family)
    whole = entry.index(addresses_of(family)[3]) + len(addresses_of(family)[3])
    for length in range(whole):
        with pytest.raises(KernelDumpError):
            _addresses(entry[:length])
    assert _addresses(entry[:whole]) == addresses_of(family)


@FAMILIES
@given(st.data())
def test_an_odd_entry_raises_nothing_else(family: Family, data: st.DataObject) -> None:
    """Some bytes are others: the entry is read with an identity, or it is an error of the dump."""
    entry = bytearray(entry_of(family))
    for _ in range(data.draw(st.integers(1, 4))):
        entry[data.draw(st.integers(0, len(entry) - 1))] = data.draw(st.integers(0, 255))
    try:
        _addresses(bytes(entry))
    except KernelDumpError:
        return
    assert _identity(bytes(entry))
