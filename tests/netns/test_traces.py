"""What a daemon has left in the kernel tells that it has run in this boot, though its run directory is gone (I8, I21)."""

from __future__ import annotations

import pytest

from ipamd.kernel.traces import find_traces, survey_both_families
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6, Space

pytestmark = pytest.mark.privileged

PREFIX = "eni"


def found_in(space: Space) -> str:
    """What a start in a namespace finds."""
    return space.call(lambda: find_traces(veth_prefix=PREFIX))


def test_a_node_that_has_booted_has_none():
    """Nor is another software's table, link, route or rule one."""
    space = Space()
    assert found_in(space) == ""
    space.sh("nft add table ip kube-proxy; ip link add eni0123456789a type veth peer name x; ip link add vlan7 type bridge")
    space.sh("ip link set lo up; ip rule add prio 1536 from 10.0.0.9 lookup 2; ip route add 10.0.0.9 dev lo")
    assert found_in(space) == ""


@pytest.mark.parametrize(
    "made",
    [
        "nft add table arp vpc-ipamd-confine",
        "nft add table ip vpc-ipamd",
        "ip rule add prio 513 lookup 113213",
        "ip -6 rule add prio 513 lookup 113213",
        "ip link add eni0 type veth peer name x; ip link set eni0 group 113213",
    ],
)
def test_each_thing_alone_is_a_trace(made):
    """A drained node has no sandbox, and others may have flushed nftables."""
    space = Space()
    space.sh(made)
    assert found_in(space)


@EACH_FAMILY_HEAVY_IPV6
def test_a_sandbox_is_a_trace(world):
    """Its link, by the alias; a survey for a change of the family finds it whatever family it has."""
    pod = world.space()
    spec = world.spec(pod)
    world.wiring.wire(spec)
    seen = world.host.call(lambda: survey_both_families(veth_prefix=PREFIX))
    assert spec.address in seen.routes
    assert [veth.key for veth in seen.firsts] == [spec.key]
    world.host.sh("ip rule del prio 513; ip -6 rule del prio 513; ip route flush table 113213; ip -6 route flush table 113213")
    assert found_in(world.host)
