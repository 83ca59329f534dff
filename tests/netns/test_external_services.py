"""AWS_EXTERNAL_SERVICE_CIDRS: sandboxes of every ENI reach them through table main, by rule 1535."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.model.repairs import RepairCode
from ipamd.settings import NetworkConfig

pytestmark = pytest.mark.privileged

SERVICES = (IPv4Network("198.51.100.0/24"), IPv4Network("203.0.113.9/32"))


def rules(world):
    """The destinations of the rules 1535, as `ip rule` has them."""
    return sorted(f"{one['dst']}/{one.get('dstlen', 32)}" for one in world.host.ip("rule") if one["priority"] == 1535)


def way(world, address):
    """The link by which a packet of a sandbox on the secondary ENI leaves."""
    (route,) = world.host.ip(f"route get {address} from 10.0.1.20 iif pod0")
    return route["dev"]


def set_up(world):
    """A node with a secondary ENI and a sandbox's link on it."""
    world.fabric()
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    world.host.sh(
        "ip link add pod0 type veth peer name pod1; ip link set pod0 up; ip route add 10.0.1.20 dev pod0;"
        "ip rule add prio 1536 from 10.0.1.20 lookup 2; sysctl -qw net.ipv4.conf.pod0.rp_filter=0"
    )


def test_services_are_reached_through_main(make_world):
    """And only they: everything else of the sandbox takes its own ENI."""
    world = make_world(external_service_cidrs=SERVICES)
    set_up(world)
    assert rules(world) == ["198.51.100.0/24", "203.0.113.9/32"]
    assert [way(world, one) for one in ("198.51.100.7", "203.0.113.9", "203.0.113.10")] == ["eth0", "eth0", "eth1"]
    world.host.sh("ip rule del prio 1535 to 203.0.113.9")
    world.host.sh("ip rule add prio 1535 to 192.0.2.0/24 lookup 99")  # not of table main: not ours
    (said,) = world.hostnet.reconcile(identity=world.identity(), enis=[])
    assert (said.code, said.target) == (RepairCode.ADDED, "rule 1535 to 203.0.113.9/32 lookup main")
    assert rules(world) == ["192.0.2.0/24", "198.51.100.0/24", "203.0.113.9/32"]


def test_a_changed_setting_takes_effect_at_the_next_start(make_world):
    """Rules of the setting before are removed, the others stay; set up twice it is the same."""
    world = make_world(external_service_cidrs=SERVICES)
    set_up(world)
    config = NetworkConfig(external_service_cidrs=(SERVICES[1], IPv4Network("192.0.2.0/24")))
    after = KernelHostNetwork(world.netns, config=config, nft=world.nft)
    for _ in range(2):
        after.setup_node(world.identity())
        assert after.differences(identity=world.identity(), enis=[]) == []
        assert way(world, IPv4Address("192.0.2.1")) == "eth0"
    assert world.host.sh("ip rule show prio 1535").count("lookup main") == 2
    KernelHostNetwork(world.netns, config=NetworkConfig(), nft=world.nft).setup_node(world.identity())
    assert [way(world, one) for one in ("198.51.100.7", "203.0.113.9")] == ["eth1", "eth1"]
