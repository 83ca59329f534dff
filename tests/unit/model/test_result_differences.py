"""CHECK compares a prevResult with the record by value, however runtimes and earlier plugins spell addresses."""

from __future__ import annotations

from ipaddress import ip_address
from typing import Any

import pytest

from ipamd.model.cniresult import result_differences
from ipamd.model.family import read_spelling

SPELLINGS = {
    "10.0.0.5": ["10.0.0.5/32", "10.0.0.5/24", "::ffff:10.0.0.5/128", "::FFFF:0a00:0005/128", "0:0:0:0:0:ffff:10.0.0.5/128"],
    "2001:db8::a:5": [
        "2001:db8::a:5/128",
        "2001:DB8::A:5/128",
        "2001:0db8:0000:0000:0000:0000:000a:0005/128",
        "2001:db8:0:0::a:5/80",
        "2001:db8::0.10.0.5/128",
    ],
}
CASES = [(address, spelling) for address, spellings in SPELLINGS.items() for spelling in spellings]


def previous(*addresses: str) -> dict[str, Any]:
    """A prevResult in which all that CHECK does not compare is spelled in capitals."""
    return {
        "interfaces": [{"name": "eth0", "mac": "02:AB:CD:EF:00:01", "sandbox": "/run/netns/pod"}],
        "ips": [{"address": address, "gateway": "FE80:0:0::1", "interface": 0} for address in addresses],
        "routes": [{"dst": "0::0/0", "gw": "FE80:0::1"}],
    }


def differences(result: dict[str, Any], address: str) -> list[str]:
    """What CHECK finds in a prevResult."""
    return result_differences(result, ifname="eth0", address=ip_address(address), netns="/run/netns/pod")


@pytest.mark.parametrize(("address", "spelling"), CASES)
def test_every_spelling_of_the_address_is_the_address(address: str, spelling: str) -> None:
    """Alone, and behind those of other plugins."""
    assert differences(previous(spelling), address) == []
    assert differences(previous("10.9.9.9/32", "fd00::9/64", spelling), address) == []


@pytest.mark.parametrize(("address", "other"), [("10.0.0.5", "10.0.0.50/32"), ("2001:db8::a:5", "2001:db8::a:50/128")])
def test_another_address_is_named(address: str, other: str) -> None:
    """Also if it begins alike, has no mask, or is no address."""
    for result in (previous(other), previous(), previous("ten"), previous("")):
        assert differences(result, address) == [f"prevResult does not carry address {address}"]


def test_a_mapped_address_is_the_ipv4_one() -> None:
    """Wherever somebody asks about an address."""
    assert str(read_spelling("::FFFF:10.0.0.5")) == "10.0.0.5"
    assert str(read_spelling("2001:DB8:0::5")) == "2001:db8::5"
    with pytest.raises(ValueError, match="eni-1"):
        read_spelling("eni-1")
