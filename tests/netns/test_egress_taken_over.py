"""A link for egress as amazon-vpc-cni-k8s's plugin makes it becomes one of ours: it works on, through what confines sandboxes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipamd.kernel import wiring_messages
from ipamd.model.attachment import encode_alias
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4
from ipamd.model.ids import MacAddress
from ipamd.model.legs import host_veths
from ipamd.model.legs.egress import EGRESS_TAG
from ipamd.model.wiring_comparison import wiring_differences
from tests.errors import failed
from tests.netns.test_egress import FAMILIES, OUTSIDE, Node, reaches

pytestmark = pytest.mark.privileged

THEIRS = "veth1a2b3c4d"


@pytest.fixture
def theirs(make_world, family, tmp_path, monkeypatch):
    """A node, and a sandbox whose links are theirs: what we would know of it, and its namespace in a directory of them."""
    node = Node(make_world, is_wired=False)
    sandbox, spec = node.sandboxes[0], node.specs[0]
    node.wiring.wire(replace(spec, other_address=None))
    node.host.sh(f"ip link set {spec.host_veth} alias ''")
    (tmp_path / "other").symlink_to(node.sandboxes[1].path)
    (tmp_path / "cni-0").symlink_to(sandbox.path)
    (tmp_path / "plain").write_text("")
    monkeypatch.setattr(wiring_messages, "NETNS_DIRECTORY", tmp_path)
    address, ifname = spec.other_address, node.family.local_range.ifname
    # As cmd/egress-cni-plugin does: its own name on the host, a link-local next hop, nothing fixed.
    node.host.sh(
        f"ip link add {THEIRS} type veth peer name {ifname}; ip link set {ifname} netns {sandbox.path}; ip link set {THEIRS} up"
    )
    if node.family is IPV4:
        node.host.sh(f"ip addr add 169.254.172.1/32 dev {THEIRS} scope link; ip route add {address} dev {THEIRS} scope link")
        sandbox.sh(
            f"ip link set {ifname} up; ip addr add {address}/22 dev {ifname}; ip route del 169.254.172.0/22 dev {ifname};"
            f" ip route add 169.254.172.1 dev {ifname} scope link src {address}; ip route add default via 169.254.172.1 dev {ifname}"
        )
    else:
        node.host.sh(f"sysctl -qw net.ipv6.conf.{THEIRS}.disable_ipv6=0; ip -6 addr flush dev {THEIRS} scope link")
        node.host.sh(f"ip -6 addr add fe80::77/64 dev {THEIRS} nodad; ip -6 route add {address}/128 dev {THEIRS}")
        sandbox.sh(f"sysctl -qw net.ipv6.conf.{ifname}.disable_ipv6=0; ip link set {ifname} up")
        sandbox.sh(f"ip -6 addr add {address}/118 dev {ifname} nodad; ip -6 route add default via fe80::77 dev {ifname}")
    return node, sandbox, spec


def take(node, spec, *, recorded_address=None):
    """Take the second link over."""
    (veth,) = [one for one in node.wiring.survey().veths if one.name == spec.host_veth]
    (index,) = node.wiring.adoption.extra_links([veth], family=node.family).values()
    return node.wiring.adoption.adopt_extra(
        index, first=veth, key=spec.key, family=node.family, recorded_address=recorded_address
    )


@FAMILIES
def test_it_is_ours_afterwards_and_works(theirs):
    """Alias, name, routes, and a fixed neighbour at each end, because none may ask; the sandbox reaches the outside as before."""
    node, sandbox, spec = theirs
    taken = take(node, spec)
    (name,) = host_veths(spec)[1:]
    assert (taken.name, taken.alias, taken.is_extra) == (name, encode_alias(spec.key, spec.other_address, tag=EGRESS_TAG), True)
    assert node.host.sh(f"ip neigh show {spec.other_address} dev {name} nud permanent"), "its renaming took the link down"
    assert take(node, spec) == taken, "again, as after a crash"
    node.wiring.adoption.stamp(next(one for one in node.wiring.survey().veths), key=spec.key, address=spec.address)
    survey = node.wiring.survey()
    assert [veth.address for veth in survey.extras_of(spec.key)] == [spec.other_address]
    assert (survey.routes[spec.other_address], survey.own_routes[spec.other_address]) == (name, name)
    assert node.hostnet.confine_sandboxes() == []
    gateway = "169.254.172.1" if node.family is IPV4 else "fe80::77"
    ifname = node.family.local_range.ifname
    inside = sandbox.sh(f"ip neigh show {gateway} dev {ifname} nud permanent")
    assert node.host.ip("link show " + name)[0]["address"] in inside
    assert reaches(sandbox, OUTSIDE[node.family])
    assert wiring_differences(replace(spec, others_mac=MacAddress("")), node.wiring.survey()) == []
    node.wiring.mark_for_deletion(spec, owner=spec.key)
    node.wiring.sweep()
    assert not {name, spec.host_veth, THEIRS} & node.host.link_names()


@FAMILIES
def test_its_route_may_be_missing(theirs):
    """Its plugin has lost routes of living pods: the file says the address, without it nothing is changed."""
    node, _, spec = theirs
    node.host.sh(f"ip {'-4' if node.family is IPV4 else '-6'} route del {spec.other_address} dev {THEIRS}")
    before = node.host.snapshot()
    with pytest.raises(WiringError, check=failed(FailureCode.OTHER_LINK_NOT_TAKEN)):
        take(node, spec)
    assert node.host.snapshot() == before
    assert take(node, spec, recorded_address=spec.other_address).address == spec.other_address
    assert node.wiring.survey().extras_of(spec.key)


@FAMILIES
def test_a_namespace_that_is_not_found_is_said(theirs, tmp_path):
    """The neighbour inside cannot be fixed, and without it the sandbox would be cut off: nothing is changed."""
    node, _, spec = theirs
    (tmp_path / "cni-0").unlink()
    before = node.host.snapshot()
    with pytest.raises(WiringError, check=failed(FailureCode.LINK_NAMESPACE_UNKNOWN, link=THEIRS)):
        take(node, spec)
    assert node.host.snapshot() == before


@FAMILIES
def test_a_sandbox_without_one_has_none(theirs):
    """A second veth into the same namespace under another name is somebody else's."""
    node, sandbox, spec = theirs
    sandbox.sh(f"ip link set {node.family.local_range.ifname} down; ip link set {node.family.local_range.ifname} name net1")
    (veth,) = [one for one in node.wiring.survey().veths if one.name == spec.host_veth]
    assert node.wiring.adoption.extra_links([veth], family=node.family) == {}
    assert node.wiring.adoption.extra_links([], family=node.family) == {}
