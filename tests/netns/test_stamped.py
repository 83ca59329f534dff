"""A veth that another software made gets our alias and nothing else; CHECK, repair and DEL go by its own MAC from then on."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipamd.model.attachment import IMPORTED_TAG, encode_alias
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV6
from ipamd.model.ids import MacAddress
from tests.errors import failed
from tests.netns.conftest import EACH_FAMILY
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, EACH_FAMILY]

MAC = "0a:58:00:00:00:07"


@pytest.fixture
def theirs(world):
    """A pod as amazon-vpc-cni-k8s wires it, on a secondary ENI: what we would know of it."""
    sandbox = world.space()
    spec = replace(world.spec(sandbox, number=7, table=2), host_veth="eni0123456789a", others_mac=MacAddress(MAC))
    world.host.sh(
        f"ip link add {spec.host_veth} address {MAC} mtu 9001 type veth peer name eth0; ip link set {spec.host_veth} up;"
        f" ip link set eth0 netns {sandbox.path}"
    )
    address, nodad = spec.address, " nodad" if world.family is IPV6 else ""  # whose plugin waits for the detection
    sandbox.sh(
        world.words(
            f"ip link set eth0 mtu 9001 up; ip addr add {address}/32 dev eth0{nodad}; ip route add 169.254.1.1 dev eth0 scope link;"
            f" ip route add default via 169.254.1.1 dev eth0; ip neigh add 169.254.1.1 lladdr {MAC} nud permanent dev eth0"
        )
    )
    world.host.sh(
        world.words(
            f"ip route add {address} dev {spec.host_veth} scope link;"
            f" ip rule add to {address} table main prio 512; ip rule add from {address} table 2 prio 1536"
        )
    )
    if world.family is IPV6:  # the kernel adds their routes once nobody else has their link-local addresses
        for space, name in ((world.host, spec.host_veth), (sandbox, "eth0")):
            wait_until(
                lambda space=space, name=name: (
                    "fe80" in (shown := space.sh(f"ip -6 addr show dev {name}")) and "tentative" not in shown
                ),
                what=f"the link-local address of {name}",
            )
    return spec, sandbox


def stamped(world, spec):
    """The veth, with our alias on it."""
    (found,) = world.wiring.survey().veths
    return world.wiring.adoption.stamp(found, key=spec.key, address=spec.address)


def test_only_the_alias_changes(world, theirs):
    """MAC, routes, rules and the inside stay byte for byte, of IPv4 the neighbour too, of IPv6 it is fixed; CHECK says nothing."""
    spec, sandbox = theirs
    before, inside = world.host.snapshot(), sandbox.snapshot()
    veth = stamped(world, spec)
    after = world.host.snapshot()
    own = sandbox.ip("link show eth0")[0]["address"]
    fixed = f"{spec.address} dev {spec.host_veth} lladdr {own} PERMANENT"
    assert after["neigh show nud permanent"].strip() == (fixed if world.family is IPV6 else "")
    changed = ("link", "neigh show nud permanent")
    assert {name: part for name, part in after.items() if name not in changed} == {
        name: part for name, part in before.items() if name not in changed
    }
    assert [one[:4] + one[5:] for one in after["link"]] == [one[:4] + one[5:] for one in before["link"]]
    assert sandbox.snapshot() == inside
    assert (veth.alias, veth.key) == (encode_alias(spec.key, spec.address, tag=IMPORTED_TAG), spec.key)
    assert world.wiring.survey().veths[0].key == spec.key
    assert world.wiring.check(spec) == []
    assert world.wiring.repair([spec]) == []


def test_repair_puts_back_its_own(world, theirs):
    """What is lost comes back with the MAC that it had, not with one of ours."""
    spec, sandbox = theirs
    stamped(world, spec)
    world.host.sh(
        world.words(
            f"ip link set {spec.host_veth} alias ''; ip rule del prio 512; ip route del {spec.address};"
            f" ip link set {spec.host_veth} mtu 1400"
        )
    )
    assert len(world.wiring.repair([spec])) == 3, "the link, in one message; both routes"
    assert world.wiring.check(spec) == []
    before = sandbox.snapshot()
    sandbox.sh(world.words("ip neigh del 169.254.1.1 dev eth0"))
    assert world.wiring.repair([spec]) == []
    (neighbour,) = world.wiring.check_inside(spec)
    assert (neighbour.code, neighbour.fields["actual"]) == (DifferenceCode.GATEWAY_NEIGHBOUR, "none")
    sandbox.sh(world.words("ip neigh add 169.254.1.1 lladdr 0a:58:00:00:00:07 dev eth0 nud permanent"))
    assert sandbox.snapshot() == before
    unknown = replace(spec, others_mac=MacAddress(""), mtu=1500)  # of a sandbox that another wires: neither is known
    assert world.wiring.check(unknown) == world.wiring.repair([unknown]) == []


def test_del_leaves_nothing(world, theirs):
    """Route, rules and link go as those of a sandbox of ours do."""
    spec, _ = theirs
    stamped(world, spec)
    world.mark_for_deletion(spec)
    world.wiring.sweep()
    survey = world.wiring.survey()
    assert (survey.veths, survey.routes, survey.to_rules, survey.from_rules) == ((), {}, frozenset(), {})


def test_another_link_by_now_is_not_stamped(world, theirs):
    """Between the look and the stamp its plugin made it anew, or it has an identity already."""
    spec, _ = theirs
    (found,) = world.wiring.survey().veths
    with pytest.raises(WiringError, check=failed(FailureCode.LINK_CHANGED)):
        world.wiring.adoption.stamp(replace(found, ifindex=found.ifindex + 1000), key=spec.key, address=spec.address)
    with pytest.raises(WiringError, check=failed(FailureCode.LINK_CHANGED)):
        world.wiring.adoption.stamp(replace(found, name="eniother"), key=spec.key, address=spec.address)
    stamped(world, spec)
    with pytest.raises(WiringError, check=failed(FailureCode.LINK_CHANGED)):
        world.wiring.adoption.stamp(found, key=world.key("another"), address=world.address(8))
