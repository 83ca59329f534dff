"""Numbers, names and MACs against the tests of amazon-vpc-cni-k8s, where it has them. Pure; needs no root.

Of its names only prefix and length apply: it hashes pod names, we hash the sandbox's key (docs/adr/0001).
"""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from ipamd.model.attachment import sandbox_mac, veth_name
from ipamd.model.eni import gateway, route_table
from ipamd.model.family import IPV4
from ipamd.model.ids import parse_key

VECTORS = json.loads((Path(__file__).parent / "vectors_kernel.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector['area']}-{vector['given']}")
def test_numbers_equal_vpc_cni(vector):
    """Route tables, the sandbox's next hop and the subnet's router have the numbers of amazon-vpc-cni-k8s."""
    given, expect = vector["given"], vector["expect"]
    if vector["area"] == "route_table":
        assert route_table(given["device"], given["network_card"]) == expect["table"]
    elif "subnet" in given:
        assert str(gateway(IPv4Network(given["subnet"]))) == expect["ipv4"]
    elif "interface_index" in given:
        assert str(IPV4.gateway) == expect["ipv4"]
    else:
        assert str(IPv4Address(given["ip"]) + 1) == expect["ip"]


def test_names_and_macs_come_from_the_key_alone():
    """Names have the length and prefix of amazon-vpc-cni-k8s; no two keys of a thousand share a name or a MAC."""
    keys = [parse_key(f"{i:064x}", ifname) for i in range(500) for ifname in ("eth0", "net1")]
    names = {veth_name(key, prefix="vlan") for key in keys}
    assert len(names) == 1000
    assert {(len(name), name[:4]) for name in names} == {(15, "vlan")}
    macs = {sandbox_mac(key, side=side) for key in keys for side in ("host", "sandbox")}
    assert len(macs) == 2000
    assert all(int(mac[:2], 16) & 3 == 2 for mac in macs)
