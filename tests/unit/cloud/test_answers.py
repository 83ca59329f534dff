"""EC2's answers become values of the model, and the primary address is kept out of reach of sandboxes (I6)."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.cloud.answers import described_eni, described_enis
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4, IPV6, Family
from tests.errors import failed


def interface(**changes: Any) -> dict[str, Any]:
    """One NetworkInterface as botocore parses it."""
    return {
        "NetworkInterfaceId": "eni-1",
        "MacAddress": "02:AA:BB:CC:DD:EE",
        "SubnetId": "subnet-1",
        "PrivateIpAddress": "10.0.0.5",
        "PrivateIpAddresses": [
            {"PrivateIpAddress": "10.0.0.5", "Primary": True},
            {"PrivateIpAddress": "10.0.0.6", "Primary": False},
        ],
        **changes,
    }


def test_everything_is_read() -> None:
    """Attachment, tags, prefixes and addresses arrive typed; the MAC in lower case."""
    eni = described_eni(
        interface(
            Ipv4Prefixes=[{"Ipv4Prefix": "10.0.0.16/28"}],
            Status="in-use",
            InterfaceType="efa",
            Description="ours",
            TagSet=[{"Key": "a", "Value": "b"}],
            Attachment={
                "AttachmentId": "eni-attach-1",
                "Status": "attached",
                "InstanceId": "i-1",
                "DeviceIndex": 2,
                "NetworkCardIndex": 1,
                "DeleteOnTermination": True,
            },
        )
    )
    assert (eni.eni_id, eni.mac, eni.subnet_id) == ("eni-1", "02:aa:bb:cc:dd:ee", "subnet-1")
    assert eni.primary_address == IPv4Address("10.0.0.5")
    assert eni.secondary_addresses == {IPv4Address("10.0.0.6")}
    assert eni.prefixes == {IPv4Network("10.0.0.16/28")}
    assert (eni.status, eni.interface_type, eni.description, eni.tags) == ("in-use", "efa", "ours", {"a": "b"})
    assert (eni.attachment_id, eni.attachment_status, eni.instance_id) == ("eni-attach-1", "attached", "i-1")
    assert (eni.device_index, eni.network_card, eni.delete_on_termination) == (2, 1, True)


def test_an_unattached_eni_has_no_attachment() -> None:
    """Without an attachment the IDs are empty and the device index is -1."""
    eni = described_eni(interface())
    assert (eni.attachment_id, eni.instance_id, eni.device_index) == ("", "", -1)


@given(
    count=st.integers(1, 20),
    flagged=st.sets(st.integers(0, 19)),
    named=st.booleans(),
    names_flag=st.booleans(),
)
def test_no_primary_address_is_ever_secondary(count: int, flagged: set[int], named: bool, names_flag: bool) -> None:
    """However the primary is told (field, flag, both, or two flags at once), it is never among the others (I6)."""
    listed: list[dict[str, Any]] = [{"PrivateIpAddress": f"10.0.0.{n + 1}"} for n in range(count)]
    for n, item in enumerate(listed):
        if names_flag:
            item["Primary"] = n in flagged
    primaries = {IPv4Address(item["PrivateIpAddress"]) for item in listed if item.get("Primary")}
    entry = interface(PrivateIpAddresses=listed, PrivateIpAddress="10.0.0.1" if named else None)
    if not named and not primaries:  # any of them might be the primary one
        with pytest.raises(CloudError, check=failed(FailureCode.EC2_ANSWER_INCOMPLETE)):
            described_eni(entry)
        return
    eni = described_eni(entry)
    assert eni.primary_address not in eni.secondary_addresses
    assert not primaries & eni.secondary_addresses
    assert not named or eni.primary_address == IPv4Address("10.0.0.1")
    everything = {IPv4Address(item["PrivateIpAddress"]) for item in listed}
    assert eni.secondary_addresses == everything - primaries - {eni.primary_address}


@pytest.mark.parametrize("missing", ["NetworkInterfaceId", "MacAddress", "SubnetId"])
def test_an_incomplete_answer_is_an_error(missing: str) -> None:
    """What EC2 did not say is not made up (I11)."""
    entry = interface()
    del entry[missing]
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_ANSWER_INCOMPLETE, part=repr(KeyError(missing)))):
        described_eni(entry)


def test_a_malformed_address_is_an_error() -> None:
    """An address that is none stops the reading of that ENI, typed."""
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_ANSWER_INCOMPLETE)):
        described_eni(interface(PrivateIpAddresses=[{"PrivateIpAddress": "10.0.0.300"}]))


@pytest.mark.parametrize(
    ("family", "text", "is_one"),
    [
        (IPV6, "2001:db8:7:1:ffff::/80", True),
        (IPV6, "2600:1f14:1:2:3::/80", True),
        (IPV6, "2001:db8::/96", False),
        (IPV6, "2001:db8::/64", False),
        (IPV6, "2001:db8:1:2:3:1::/80", False),
        (IPV6, "2001:db8::1", False),
        (IPV6, "10.0.0.0/28", False),
        (IPV4, "10.9.8.16/28", True),
        (IPV4, "10.9.8.0/24", False),
        (IPV4, "10.9.8.8/28", False),
        (IPV4, "2001:db8::/80", False),
    ],
)
def test_a_prefix_is_what_ec2_delegates(family: Family, text: str, is_one: bool) -> None:
    """A /28 or a /80 without host bits; anything else in its place is no answer, and no memory is spent on its addresses."""
    word = "Ipv6Prefix" if family is IPV6 else "Ipv4Prefix"
    entry = interface(**{f"{word}es": [{word: text}]})
    if is_one:
        assert described_eni(entry, family).prefixes == {family.network(text)}
        return
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_ANSWER_INCOMPLETE)):
        described_eni(entry, family)


@pytest.mark.parametrize("interface_type", ["efa-only", "interface"])
def test_an_eni_without_ipv4_is_no_error(interface_type: str) -> None:
    """EFA-only and IPv6-only ENIs have no IPv4 address: told as such, with their place."""
    entry = interface(InterfaceType=interface_type, PrivateIpAddresses=[], Attachment={"Status": "attached", "DeviceIndex": 3})
    del entry["PrivateIpAddress"]
    (eni,) = described_enis([entry])
    assert (eni.primary_address, eni.secondary_addresses, eni.problem, eni.is_readable) == (None, frozenset(), "", False)
    assert (eni.attachment_status, eni.device_index) == ("attached", 3)


@pytest.mark.parametrize(
    "damage",
    [
        {"MacAddress": None},
        {"SubnetId": 7, "PrivateIpAddresses": [{"PrivateIpAddress": "10.0.0.300"}]},
        {"PrivateIpAddresses": ["10.0.0.5"]},
        {"Ipv4Prefixes": [{"Ipv4Prefix": "10.0.0.1/28"}]},
        {"TagSet": [{}]},
        {"Attachment": {"Status": "attached", "DeviceIndex": 3, "NetworkCardIndex": "x"}, "Groups": [{}]},
    ],
)
def test_one_malformed_entry_does_not_fail_the_others(damage: dict[str, Any]) -> None:
    """It stays in the list with its problem: it takes a place, and nothing is concluded about it (I11)."""
    attachment = {"AttachmentId": "eni-attach-9", "Status": "attached", "InstanceId": "i-1", "DeviceIndex": 3}
    odd = {**interface(NetworkInterfaceId="eni-9", Attachment=attachment), **damage}
    whole, eni = described_enis([interface(), odd])
    assert whole == described_eni(interface())
    assert (eni.eni_id, eni.is_readable, eni.attachment_status, eni.device_index) == ("eni-9", False, "attached", 3)
    assert eni.problem


def test_an_entry_without_id_is_kept() -> None:
    """Nobody knows which ENI it is, but it is one."""
    odd = interface()
    del odd["NetworkInterfaceId"]
    (eni,) = described_enis([odd])
    assert (eni.eni_id, eni.device_index, bool(eni.problem)) == ("", -1, True)
