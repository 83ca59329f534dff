"""A sandbox's further interface (Multus's `net1`) beside its own: two wirings of one sandbox, in the kernel."""

from __future__ import annotations

import pytest

from ipamd.kernel.further_interfaces import METRIC, TABLES
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import NothingWiredError, WiringError
from ipamd.model.family import IPV6
from tests.netns.conftest import EACH_FAMILY
from tests.netns.test_wiring import talk
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, EACH_FAMILY]


@pytest.fixture
def pod(world):
    """A sandbox whose own interface is wired."""
    space = world.space()
    spec = world.spec(space, number=5, container="pod")
    world.wiring.wire(spec)
    own = f"local {spec.address} dev eth0 table local proto kernel"  # with IPv6 the kernel adds it a moment later
    wait_until(lambda: own in space.sh(f"ip {space.dash} route show table all"), what="the kernel's own route to the address")
    return space


def further(world, pod, *, number=6, ifname="net1", table=254):
    """What to wire for a further interface of the pod."""
    return world.spec(pod, number=number, container="pod", ifname=ifname, table=table)


def defaults(pod, table="main"):
    """Devices and metrics of the default routes in a table of a sandbox."""
    return [(route["dev"], route.get("metric", 0)) for route in pod.ip(f"route show default table {table}")]


def rules(pod):
    """Sources and tables of the rules in a sandbox, without the kernel's own."""
    return [(rule["src"], int(rule["table"])) for rule in pod.ip("rule") if rule["priority"] not in (0, 32766, 32767)]


def index(pod, ifname):
    """The index of a link inside."""
    return pod.ip(f"link show {ifname}")[0]["ifindex"]


def own_metric(world):
    """That of a route that names none, as `ip` prints it."""
    return 1024 if world.family is IPV6 else 0


def test_both_interfaces_are_complete_and_the_first_keeps_the_default_route(world, pod):
    """Ours: net1 has a host veth, an address, a table and a rule of its own; nothing of eth0 changes."""
    first, spec = world.spec(pod, number=5, container="pod"), further(world, pod)
    eth0_before = pod.ip("addr show eth0"), defaults(pod)
    wired = world.wiring.wire(spec)
    assert not wired.is_default_route
    assert spec.host_veth != first.host_veth
    assert (pod.ip("addr show eth0"), defaults(pod)) == eth0_before
    assert defaults(pod) == [("eth0", own_metric(world))]
    table = TABLES + index(pod, "net1")
    assert rules(pod) == [(str(spec.address), table)]
    assert defaults(pod, str(table)) == [("net1", own_metric(world))]
    assert world.wiring.check(first) == world.wiring.check(spec) == []


def test_replies_leave_by_the_interface_that_was_asked(world, pod):
    """Packets to each address pass, and what each link carries is seen on its own host veth."""
    node = str(world.address(0x10))
    world.host.sh(f"sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip addr add {node} dev lo")
    specs = world.spec(pod, number=5, container="pod"), further(world, pod)
    world.wiring.wire(specs[1])
    other = world.space()
    world.wiring.wire(world.spec(other, number=7))
    for spec in specs:
        before = packets(world, spec)
        assert talk(pod, str(spec.address), other) == str(world.address(7))
        assert talk(pod, str(spec.address), world.host) == node
        received, sent = (now - then for now, then in zip(packets(world, spec), before, strict=True))
        assert received >= 6, "the replies came through this veth"
        assert sent >= 6


def packets(world, spec):
    """Packets that the host received from a sandbox's link, and sent to it."""
    counters = world.host.ip(f"-s link show {spec.host_veth}")[0]["stats64"]
    return counters["rx"]["packets"], counters["tx"]["packets"]


@pytest.mark.parametrize("order", [(0, 1), (1, 0)], ids=["eth0 first", "net1 first"])
def test_each_ends_alone_in_any_order(world, pod, order):
    """I4: DEL of one leaves the other complete; after both nothing remains on the host or inside."""
    specs = world.spec(pod, number=5, container="pod"), further(world, pod, table=2)
    world.wiring.wire(specs[1])
    first, second = (specs[place] for place in order)
    world.mark_for_deletion(first)
    world.wiring.forget_inside(netns=first.netns, identity=None, ifname="net1", address=first.address)
    world.wiring.sweep()
    assert world.wiring.check(second) == []
    world.mark_for_deletion(second)
    world.wiring.forget_inside(netns=second.netns, identity=None, ifname="net1", address=second.address)
    world.wiring.sweep()
    assert (pod.link_names(), rules(pod)) == (set(), [])
    assert world.wiring.survey().veths == ()


def test_an_interface_that_comes_first_leaves_the_default_route_to_the_next(world):
    """Ours: a sandbox with net1 alone has a default route; eth0 that comes later gets the usual ones, which win."""
    pod = world.space()
    spec, first = further(world, pod), world.spec(pod, number=5, container="pod")
    assert world.wiring.wire(spec).is_default_route
    assert defaults(pod) == [("net1", METRIC)]
    world.wiring.wire(first)
    assert defaults(pod) == [("eth0", own_metric(world)), ("net1", METRIC)]
    assert world.wiring.check(first) == world.wiring.check(spec) == []


def test_beside_another_plugins_interface(world):
    """Ours: a default route of any metric is another interface's, and stays the only one."""
    pod = world.space()
    gateway, own = ("fd00:9::1", "fd00:9::2/64") if world.family is IPV6 else ("172.30.0.1", "172.30.0.2/24")
    pod.sh(
        f"ip link add eth0 type veth peer name other; ip addr add {own} dev eth0 {'nodad' if world.family is IPV6 else ''};"
        f" ip link set eth0 up; ip link set other up; ip route add default via {gateway} dev eth0 metric 2000"
    )
    spec = further(world, pod)
    assert not world.wiring.wire(spec).is_default_route
    assert defaults(pod) == [("eth0", 2000)]
    assert world.wiring.check(spec) == []


@pytest.mark.parametrize("table", [254, 2])
def test_unwire_leaves_the_pod_as_it_was(world, pod, table):
    """I5: after a rollback host and pod are as before the ADD of net1."""
    before = world.host.snapshot(), pod.snapshot()
    spec = further(world, pod, table=table)
    world.wiring.wire(spec)
    world.wiring.unwire(spec)
    assert (world.host.snapshot(), pod.snapshot()) == before


@pytest.mark.parametrize("step", ["net1", "table 1133", "set neighbour", "add rule 1536"])
def test_each_refused_step_leaves_the_pod_as_it_was(world, pod, step):
    """I5: whatever step the kernel refuses, eth0 and the host are untouched."""
    before = world.host.snapshot(), pod.snapshot()
    with pytest.raises(WiringError):
        world.new_wiring(failpoint=lambda name: step in name).wire(further(world, pod))
    assert (world.host.snapshot(), pod.snapshot()) == before


def test_check_reports_what_is_missing_inside(world, pod):
    """CHECK looks at net1's own table and rule, and not at the default route of eth0."""
    spec = further(world, pod)
    world.wiring.wire(spec)
    table = TABLES + index(pod, "net1")
    pod.sh(f"ip {pod.dash} rule del from {spec.address}")
    assert DifferenceCode.DEFAULT_ROUTE_UNUSED in {difference.code for difference in world.wiring.check(spec)}
    pod.sh(f"ip {pod.dash} rule add pref 1536 from {spec.address} lookup {table}")
    assert world.wiring.check(spec) == []
    pod.sh(f"ip {pod.dash} route del default table {table}")
    assert DifferenceCode.DEFAULT_ROUTE_UNUSED in {difference.code for difference in world.wiring.check(spec)}


def test_repair_restores_the_host_side_of_both(world, pod):
    """What other software removes on the host is put back, for each interface by its own veth."""
    specs = world.spec(pod, number=5, container="pod"), further(world, pod, table=2)
    world.wiring.wire(specs[1])
    for spec in specs:
        world.host.sh(f"ip {world.dash} route del {spec.address} dev {spec.host_veth}; ip link set {spec.host_veth} down")
    world.wiring.repair(specs)
    world.wiring.repair(specs)
    assert [world.wiring.check(spec) for spec in specs] == [[], []]
    owners = {veth.key: veth.address for veth in world.wiring.survey().firsts}
    assert owners == {spec.key: spec.address for spec in specs}


def test_forgetting_leaves_another_namespace_alone(world, pod):
    """A path that leads to another sandbox by now is not touched, and one that is gone is fine."""
    spec = further(world, pod)
    identity = world.wiring.wire(spec).netns_identity
    other = world.space()
    table = TABLES + 1
    other.sh(f"ip {pod.dash} rule add pref 1536 from {spec.address} lookup {table}")
    world.wiring.forget_inside(netns=other.path, identity=identity, ifname="net1", address=spec.address)
    assert rules(other) == [(str(spec.address), table)]
    world.wiring.forget_inside(netns="/run/netns/gone-for-good", identity=identity, ifname="net1", address=spec.address)
    world.wiring.forget_inside(netns=pod.path, identity=identity, ifname="net1", address=spec.address)
    assert rules(pod) == []


def test_a_name_that_is_taken_is_refused_before_the_pod_has_anything(world, pod):
    """The kernel refuses a second net1: the first stays, and the error says that nothing was wired."""
    pod.sh("ip link add net1 type veth peer name other")
    before = world.host.snapshot(), pod.snapshot()
    with pytest.raises(NothingWiredError):
        world.wiring.wire(further(world, pod))
    assert (world.host.snapshot(), pod.snapshot()) == before
