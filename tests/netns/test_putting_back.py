"""Repair of a sandbox's wiring: what others took is put back, what may be another sandbox's is left alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.kernel import sysctls
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.family import IPV4, IPV6
from ipamd.model.legs import first_leg
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind
from tests.netns.conftest import EACH_FAMILY

pytestmark = [pytest.mark.privileged, EACH_FAMILY]


@pytest.mark.parametrize(
    ("command", "code", "item"),
    [
        ("ip route del {ip}", RepairCode.ADDED, "route {ip} dev {veth}"),
        ("ip rule del prio 513", RepairCode.ADDED, "rule 513 lookup 113213"),
        ("ip route del {ip} table 113213", RepairCode.ADDED, "route {ip} dev {veth} table 113213"),
        ("ip route replace {ip} dev lo table 113213", RepairCode.ROUTE_REPLACED, "route {ip}"),
        ("ip rule del prio 1536", RepairCode.ADDED, "rule 1536 from {ip} lookup 2"),
        ("ip rule add prio 1536 from {ip} lookup 9", RepairCode.MISLEADING_REMOVED, "rule 1536 from {ip} lookup 9"),
        ("ip link set {veth} down", RepairCode.LINK_SET, "{veth}"),
        ("ip link set {veth} alias x", RepairCode.LINK_SET, "{veth}"),
        ("ip link set {veth} alias ''", RepairCode.LINK_SET, "{veth}"),
        ("ip link set {veth} mtu 1400", RepairCode.LINK_SET, "{veth}"),
        ("ip link set {veth} address 02:00:00:00:00:77", RepairCode.LINK_SET, "{veth}"),
        ("ip route replace {ip} dev lo", RepairCode.ROUTE_REPLACED, "route {ip}"),
        (
            "ip route add 192.0.2.9/32 dev {veth}; ip route replace {ip} via 192.0.2.9 dev {veth}",
            RepairCode.ROUTE_REPLACED,
            "route {ip}",
        ),
        (
            "ip rule flush; ip rule add prio 32766 lookup main; ip rule add prio 0 lookup local",
            RepairCode.ADDED,
            "rule 513 lookup 113213",
        ),
    ],
)
def test_repair_puts_back_what_others_took(world, command, code, item):
    """Routes and rules of wired sandboxes that something else deleted are restored, each with its report."""
    if "prio 0" in command and world.family is IPV6:
        pytest.skip("a rule 0 of IPv6 cannot be put back where it was not removed")
    spec = world.spec(world.space(), table=2)
    world.wiring.wire(spec)
    assert world.wiring.repair([spec]) == []
    world.host.sh(world.words(command.format(veth=spec.host_veth, ip=spec.address)))
    found = world.wiring.repair([spec])
    assert (code, item.format(veth=spec.host_veth, ip=spec.address)) in [(one.code, one.target) for one in found], found
    assert world.wiring.check(spec) == []
    assert world.wiring.repair([spec]) == []


def test_ipv6_of_a_veth_is_turned_on_again(world, monkeypatch):
    """What a check says is the setting, not only what went with it; put back where /proc/sys is read-only too, as in the daemon's
    container."""
    if world.family is IPV4:
        pytest.skip("its sandboxes have no IPv6")
    monkeypatch.setattr(sysctls, "SYSCTL_ROOT", Path("/nonexistent"))
    spec = world.spec(world.space())
    world.wiring.wire(spec)
    before = world.host.snapshot()
    world.host.sh(f"sysctl -qw net.ipv6.conf.{spec.host_veth}.disable_ipv6=1")
    difference = world.wiring.check(spec)[0]
    assert difference.code is DifferenceCode.VETH_IPV6_OFF
    repaired = world.wiring.repair([spec])[0]
    assert (repaired.code, difference.text in repaired.before) == (RepairCode.LINK_SET, True)
    assert world.wiring.check(spec) == []
    assert world.host.snapshot() == before
    assert world.wiring.repair([spec]) == []


def test_repair_leaves_what_may_be_another_sandboxes(world):
    """I1: a link whose alias, or alias and MAC, are not the sandbox's is reported and left, as is a link that is gone."""
    spec, other, gone = world.spec(world.space()), world.spec(world.space(), number=6), world.spec("/gone", number=9)
    world.wiring.wire(spec)
    world.wiring.wire(other)
    world.host.sh(f"ip link set {spec.host_veth} alias '{first_leg(other).alias}' mtu 1400")
    found = world.wiring.repair([spec, gone])
    assert [one.code for one in found] == [RepairCode.LINK_NOT_OURS, RepairCode.LINK_GOING], found
    world.host.sh(f"ip link set {spec.host_veth} alias '' address 02:00:00:00:00:77")
    (found,) = world.wiring.repair([spec])
    assert found.code is RepairCode.LINK_NOT_OURS
    assert world.host.ip(f"link show {spec.host_veth}")[0]["mtu"] == 1400


def test_repair_never_takes_a_route_from_another_claimant(world):
    """I1: while another veth claims the same address, its route stays where it leads."""
    spec, claimant = world.spec(world.space()), world.spec(world.space(), container="claimant")
    world.wiring.wire(spec)
    world.host.sh(f"ip {world.dash} route del {spec.address}; ip {world.dash} route del {spec.address} table 113213")
    world.wiring.wire(claimant)
    found = world.wiring.repair([spec])
    assert [one.code for one in found] == [RepairCode.ROUTE_OF_ANOTHER] * 2
    assert {one.before for one in found} == {f"{claimant.host_veth} of {claimant.key}"}
    for table in ("main", "113213"):
        assert f"{spec.address} dev {claimant.host_veth}" in world.host.sh(f"ip {world.dash} route show table {table}")


def test_repair_of_what_is_there_repairs_nothing(world):
    """Row 9: a rule that a dump hid was never missing: it is not said to be added, so it is not counted as a repair."""
    spec = world.spec(world.space(), table=2)
    world.wiring.wire(spec)
    blind = replace(world.wiring.survey(), routes={}, own_routes={}, has_own_rule=False, from_rules={})
    assert world.wiring.repair([spec], seen=blind) == []


def test_repair_leaves_what_is_held(world):
    """An object that is fought over is left as it is; the others are repaired."""
    spec = world.spec(world.space(), table=2)
    world.wiring.wire(spec)
    world.host.sh(f"ip {world.dash} rule del prio 513; ip link set {spec.host_veth} mtu 1400")
    held = RepairedObject(RepairKind.RULE, str(spec.address))
    (found,) = world.wiring.repair([spec], backed_off={held})
    assert found.code is RepairCode.LINK_SET
    (found,) = world.wiring.repair([spec])
    assert (found.object, found.code) == (held, RepairCode.ADDED)
