"""Repair of a sandbox's wiring: what others took is put back, what may be another sandbox's is left alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.kernel import routing
from ipamd.model.family import IPV4, IPV6
from ipamd.model.kernel import RepairedObject, RepairKind
from tests.netns.conftest import EACH_FAMILY

pytestmark = [pytest.mark.privileged, EACH_FAMILY]


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        ("ip route del {ip}", "route {ip} dev {veth} was missing: added"),
        ("ip rule del prio 513", "rule 513 lookup 113213 was missing: added"),
        ("ip route del {ip} table 113213", "route {ip} dev {veth} table 113213 was missing: added"),
        ("ip route replace {ip} dev lo table 113213", "led through lo, not {veth}: replaced"),
        ("ip rule del prio 1536", "rule 1536 from {ip} lookup 2 was missing: added"),
        ("ip rule add prio 1536 from {ip} lookup 9", "looked up table 9: removed"),
        ("ip link set {veth} down", "is down: set"),
        ("ip link set {veth} alias x", "has alias 'x', not '"),
        ("ip link set {veth} alias ''", "has alias '', not '"),
        ("ip link set {veth} mtu 1400", "has MTU 1400, not 9001: set"),
        ("ip link set {veth} address 02:00:00:00:00:77", "has MAC 02:00:00:00:00:77, not "),
        ("ip route replace {ip} dev lo", "route {ip} led through lo, not {veth}: replaced"),
        ("ip route add 192.0.2.9/32 dev {veth}; ip route replace {ip} via 192.0.2.9 dev {veth}", "led through {veth}"),
        ("ip rule flush; ip rule add prio 32766 lookup main; ip rule add prio 0 lookup local", "rule 513 lookup"),
    ],
)
def test_repair_puts_back_what_others_took(world, command, sentence):
    """Routes and rules of wired sandboxes that something else deleted are restored, each with its sentence."""
    if "prio 0" in command and world.family is IPV6:
        pytest.skip("a rule 0 of IPv6 cannot be put back where it was not removed")
    spec = world.spec(world.space(), table=2)
    world.wiring.wire(spec)
    assert world.wiring.repair([spec]) == []
    world.host.sh(world.words(command.format(veth=spec.host_veth, ip=spec.address)))
    found = world.wiring.repair([spec])
    assert any(sentence.format(veth=spec.host_veth, ip=spec.address) in one for one in found), found
    assert world.wiring.check(spec) == []
    assert world.wiring.repair([spec]) == []


def test_ipv6_of_a_veth_is_turned_on_again(world, monkeypatch):
    """What a check says is the setting, not only what went with it; put back where /proc/sys is read-only too, as in the daemon's
    container."""
    if world.family is IPV4:
        pytest.skip("its sandboxes have no IPv6")
    monkeypatch.setattr(routing, "SYSCTL_ROOT", Path("/nonexistent"))
    spec = world.spec(world.space())
    world.wiring.wire(spec)
    before = world.host.snapshot()
    world.host.sh(f"sysctl -qw net.ipv6.conf.{spec.host_veth}.disable_ipv6=1")
    off = f"host link {spec.host_veth} has IPv6 off (disable_ipv6)"
    assert world.wiring.check(spec)[0] == off
    assert off in world.wiring.repair([spec])[0]
    assert world.wiring.check(spec) == []
    assert world.host.snapshot() == before
    assert world.wiring.repair([spec]) == []


def test_repair_leaves_what_may_be_another_sandboxes(world):
    """I1: a link whose alias, or alias and MAC, are not the sandbox's is reported and left, as is a link that is gone."""
    spec, other, gone = world.spec(world.space()), world.spec(world.space(), number=6), world.spec("/gone", number=9)
    world.wiring.wire(spec)
    world.wiring.wire(other)
    world.host.sh(f"ip link set {spec.host_veth} alias '{other.alias}' mtu 1400")
    found = world.wiring.repair([spec, gone])
    assert [one.rpartition(": ")[2] for one in found] == ["not repaired", "not repaired"], found
    world.host.sh(f"ip link set {spec.host_veth} alias '' address 02:00:00:00:00:77")
    (found,) = world.wiring.repair([spec])
    assert "has neither alias nor MAC" in found
    assert world.host.ip(f"link show {spec.host_veth}")[0]["mtu"] == 1400


def test_repair_never_takes_a_route_from_another_claimant(world):
    """I1: while another veth claims the same address, its route stays where it leads."""
    spec, claimant = world.spec(world.space()), world.spec(world.space(), container="claimant")
    world.wiring.wire(spec)
    world.host.sh(f"ip {world.dash} route del {spec.address}; ip {world.dash} route del {spec.address} table 113213")
    world.wiring.wire(claimant)
    found = world.wiring.repair([spec])
    assert (
        len(found) == len([one for one in found if f"is routed through {claimant.host_veth} of {claimant.key}: not" in one]) == 2
    )
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
    (found,) = world.wiring.repair([spec], held={held})
    assert "MTU" in found
    (found,) = world.wiring.repair([spec])
    assert (found.thing, "was missing: added" in found) == (held, True)
