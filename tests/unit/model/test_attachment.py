"""The names of an attachment in the kernel: veth name, MAC addresses, and the alias that rebuilds a lost datastore."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address, IPv6Address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import ALIAS_TAG, IMPORTED_TAG, WiringSpec, decode_alias, encode_alias, sandbox_mac, veth_name
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.family import IpAddress
from ipamd.model.ids import CONTAINER_ID_MAX, IFNAME_MAX, AttachmentKey, parse_ifname, parse_key
from ipamd.model.legs import first_leg
from ipamd.model.legs.branch import BRANCH_TAG
from ipamd.model.legs.egress import EGRESS_TAG
from tests.unit.datastore.support import START, a_key, an_attachment, an_eni
from tests.unit.model.test_ids import CONTAINER_IDS

IFNAMES = st.text("abcdefgh0123456789.-_", min_size=1, max_size=IFNAME_MAX).filter(lambda text: text not in {".", ".."})
KEYS = st.builds(parse_key, CONTAINER_IDS, IFNAMES)
ADDRESSES = st.ip_addresses(v=4)


@given(KEYS, ADDRESSES)
def test_alias_comes_back(key: AttachmentKey, address: IPv4Address) -> None:
    """What is written to a veth's alias reads back as the same key and address, and fits the kernel's 255 bytes."""
    alias = encode_alias(key, address)
    assert decode_alias(alias) == (key, address)
    assert len(alias.encode()) <= 255


@pytest.mark.parametrize("tag", [ALIAS_TAG, IMPORTED_TAG, EGRESS_TAG, BRANCH_TAG])
@pytest.mark.parametrize("address", [IPv4Address("255.255.255.255"), IPv6Address("1111:" * 7 + "1111")])
def test_longest_alias_fits(tag: str, address: IpAddress) -> None:
    """The longest identity there can be still fits, so that adoption never sees a cut one."""
    key = parse_key("a" * CONTAINER_ID_MAX, "é" * 7 + "x")
    assert len(encode_alias(key, address, tag=tag).encode()) <= 255


@pytest.mark.parametrize(
    "alias",
    [
        "",
        "eth0",
        "vpc-ipamd/dying",
        f"{ALIAS_TAG} abc eth0",
        f"{ALIAS_TAG} abc eth0 10.0.0.1 more",
        f"{ALIAS_TAG} abc eth0 10.0.0",
        f"{ALIAS_TAG} abc eth0 fe80::1%eth0",
        f"{ALIAS_TAG} /abc eth0 10.0.0.1",
        f"{ALIAS_TAG} abc  10.0.0.1",
        "vpc-ipamd/2 abc eth0 10.0.0.1",
    ],
)
def test_foreign_alias(alias: str) -> None:
    """An alias that is not ours, is of another version or is damaged says nothing: no guess (I11)."""
    assert decode_alias(alias) is None


@given(st.text(max_size=60))
def test_any_alias(alias: str) -> None:
    """Any text is either one of ours, which is written back just so, or None."""
    found = decode_alias(alias)
    assert found is None or encode_alias(*found) == alias


@given(KEYS, KEYS)
def test_names_follow_the_key(key: AttachmentKey, other: AttachmentKey) -> None:
    """A key always has the same veth name, at most 15 characters; another key has another one, MACs likewise."""
    name = veth_name(key, prefix="eni")
    assert name == veth_name(AttachmentKey(key.container_id, key.ifname), prefix="eni")
    assert name.startswith("eni")
    assert len(veth_name(key, prefix="four")) == IFNAME_MAX
    if key != other:
        assert veth_name(other, prefix="eni") != name
        assert sandbox_mac(other, side="host") != sandbox_mac(key, side="host")


@given(KEYS)
def test_macs_are_local_unicast(key: AttachmentKey) -> None:
    """Both ends have a locally administered unicast MAC, and not the same one."""
    macs = {side: sandbox_mac(key, side=side) for side in ("host", "sandbox")}
    assert macs["host"] != macs["sandbox"]
    for mac in macs.values():
        octets = bytes.fromhex(mac.replace(":", ""))
        assert len(octets) == 6
        assert octets[0] & 0b11 == 0b10
        assert mac == mac.lower()


def test_spec_carries_the_alias() -> None:
    """The wiring's alias is the identity of its key and address."""
    spec = WiringSpec(a_key(), IPv4Address("10.0.0.9"), 254, "eni1", "/run/netns/x", 9001)
    assert decode_alias(first_leg(spec).alias) == (a_key(), IPv4Address("10.0.0.9"))


def test_sandbox_name() -> None:
    """The name for people is namespace/name, or nothing when the runtime told none."""
    address = Address(IPv4Address("10.0.0.9"), an_eni().eni_id, AddressState.FREE, START)
    attachment = an_attachment(address, a_key())
    assert attachment.sandbox_name == "default/web-0"
    assert replace(attachment, pod_name="", netns_identity=NetnsIdentity(0, 0)).sandbox_name == ""
    assert parse_ifname("eth0") == attachment.key.ifname
