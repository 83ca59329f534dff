"""The dumps of a support archive: pyroute2 decodes them, and an interrupted one says so (I11)."""

from __future__ import annotations

import json

import pytest

from ipamd.kernel import dump
from ipamd.kernel.netlink import DUMP_TRIES, NetlinkSocket
from tests.netns.test_looking import _Interrupted

pytestmark = pytest.mark.privileged

DUMPS = {
    "links": dump.links,
    "addresses": dump.addresses,
    "rules": dump.rules,
    "routes": dump.routes,
    "neighbours": dump.neighbours,
}
SHOWN = {
    "links": ("IFLA_IFNAME", "eth0"),
    "addresses": ("IFA_ADDRESS", "10.0.0.10"),
    "rules": ("FRA_TABLE", 254),
    "routes": ("RTA_DST", "192.0.2.0"),
    "neighbours": ("NDA_DST", "10.0.0.1"),
}
"""A field of an object that the node of these tests has, by table."""


@pytest.fixture
def node(world):
    """A node with a link, an address, a route of another table and a neighbour."""
    world.fabric()
    world.host.sh("ip route add 192.0.2.0/24 dev eth0 table 77; ip neigh replace 10.0.0.1 dev eth0 lladdr 02:00:00:00:00:01")
    return world


@pytest.mark.parametrize("name", DUMPS)
def test_every_attribute_is_decoded(node, name):
    """Objects of every table are there, whole, as JSON can hold them."""
    rows = node.host.call(DUMPS[name])
    json.dumps(rows)
    field, value = SHOWN[name]
    assert value in [row.get(field) for row in rows]
    assert dump.INTERRUPTED not in rows


@pytest.mark.parametrize("name", DUMPS)
def test_an_interrupted_dump_says_so(node, name):
    """One that ends whole at the last try is whole; one that never does is shown, and is no proof that an object is absent (I11)."""
    field, value = SHOWN[name]

    def dumped(times: int) -> dump.Rows:
        def open_socket() -> NetlinkSocket:
            return _Interrupted(times)

        return node.host.call(lambda: DUMPS[name](open_socket))

    whole, torn = dumped(DUMP_TRIES - 1), dumped(99)
    assert dump.INTERRUPTED not in whole
    assert torn[0] == dump.INTERRUPTED
    for rows in (whole, torn):
        assert value in [row.get(field) for row in rows]
