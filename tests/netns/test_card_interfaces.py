"""The interface of a further network card (`mNicIf2`) beside the pod's first one, in the kernel (docs/adr/0086)."""

from __future__ import annotations

import pytest

from ipamd.model.difference_codes import DifferenceCode
from tests.netns.conftest import EACH_FAMILY
from tests.netns.test_further_interfaces import defaults, own_metric, packets
from tests.netns.test_wiring import talk

pytestmark = [pytest.mark.privileged, EACH_FAMILY]


@pytest.fixture
def pod(world):
    """A sandbox with its first interface and that of a second further card, whose ENI has table 10201."""
    space = world.space()
    world.wiring.wire(world.spec(space, number=5, container="pod"))
    world.wiring.wire(further(world, space))
    return space


def further(world, pod):
    """What to wire for the interface of the card."""
    return world.spec(pod, number=6, container="pod", ifname="mNicIf2", table=10201)


def rules(pod):
    """Priority, source and table of the rules in a sandbox, without the kernel's own."""
    found = [(rule["priority"], rule["src"], int(rule["table"])) for rule in pod.ip("rule") if rule["table"].isdigit()]
    return [rule for rule in found if rule[0] not in (0, 32766, 32767)]


def test_its_number_says_table_rule_and_next_hop(world, pod):
    """And main keeps the first interface's default route alone."""
    spec = further(world, pod)
    assert rules(pod) == [(1, str(spec.address), 2)]
    (route,) = pod.ip("route show default table 2")
    assert (route["dev"], route["gateway"]) == ("mNicIf2", str(world.family.gateway + 2))
    assert defaults(pod) == [("eth0", own_metric(world))]
    assert world.wiring.check(spec) == world.wiring.check(world.spec(pod, number=5, container="pod")) == []


def test_packets_to_and_from_it_pass_its_own_link(world, pod):
    """Its host veth counts them both ways."""
    node = str(world.address(0x10))
    world.host.sh(f"sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip addr add {node} dev lo")
    spec = further(world, pod)
    before = packets(world, spec)
    assert talk(pod, str(spec.address), world.host) == node
    assert all(now - then >= 3 for now, then in zip(packets(world, spec), before, strict=True))


def test_its_missing_route_is_a_difference(world, pod):
    """CHECK compares the table of its number."""
    pod.sh(f"ip {pod.dash} route flush table 2")
    codes = {difference.code for difference in world.wiring.check(further(world, pod))}
    assert codes == {DifferenceCode.GATEWAY_ROUTE_UNUSED, DifferenceCode.DEFAULT_ROUTE_UNUSED}


def test_it_leaves_nothing_inside_after_a_failed_add(world, pod):
    """The rule is removed with its own priority."""
    world.wiring.unwire(further(world, pod))
    assert (pod.link_names(), rules(pod)) == ({"eth0"}, [])
