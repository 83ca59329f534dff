"""Sandboxes with branch ENIs change hands in a real kernel: as amazon-vpc-cni-k8s wires them, and as it takes them down."""

from __future__ import annotations

import json
import os
from contextlib import suppress

import pytest

from ipamd.model.attachment import Wired, pod_veth_name
from ipamd.model.cniresult import build_result
from ipamd.model.errors import WiringError
from ipamd.model.family import IPV6
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.kernel_numbers import STRICT_VETH_PREFIX
from ipamd.model.legs.aws_node_uplinks import BranchPath, find_branch_path
from ipamd.model.legs.branch import DUMMY_PREFIX
from ipamd.model.record import replace
from tests.netns.branched import Node
from tests.netns.conftest import EACH_FAMILY, VPC6
from tests.netns.test_wiring import talk

pytestmark = [pytest.mark.privileged, EACH_FAMILY]

EACH_MODE = pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "standard"])
THEIR_MAC = MacAddress("0a:58:0a:00:02:c8")


@pytest.fixture
def node(make_world):
    """A node in strict mode."""
    return Node(make_world(pod_eni=True, early_demux_disabled=True))


def wire_theirs(node, *, vlan=5, is_strict=True):
    """A pod as its plugin wires it (cmd/routed-eni-cni-plugin/driver/driver.go, SetupBranchENIPodNetwork, and the veth as
    SetupPodNetwork): its namespace, and the spec that tells what is where. It shares no code with the adapter.
    """
    pod = node.world.space()
    spec = node.spec(pod, vlan=vlan, is_strict=is_strict)
    name = pod_veth_name("default", "web", prefix=STRICT_VETH_PREFIX if is_strict else "eni")
    spec = replace(spec, host_veth=name, others_mac=THEIR_MAC)
    node.know(spec)
    link, table, gateway = spec.uplink.link, spec.route_table, spec.uplink.gateway
    ip, length, router = ("ip -6", 128, "fe80::1") if node.world.family is IPV6 else ("ip", 32, "169.254.1.1")
    trunk = node.host.ip("link show eth2")[0]["ifindex"]
    node.host.sh("ip link set eth2 up")
    assert node.links.make(link, vlan=vlan, parent=trunk, mac=spec.uplink.mac)
    rules = [f"iif {link} table {table} prio 10", f"iif {name} table {table} prio 10"]
    rules = rules if is_strict else [f"to {spec.address} table main prio 512", f"from {spec.address} table {table} prio 1536"]
    node.host.sh(
        f"ip link add {name} address {THEIR_MAC} mtu 1500 type veth peer name peer0; ip link set {name} up; ip link set {link} up;"
        f"ip link set peer0 netns /proc/{os.getpid()}/fd/{pod.fd}"
    )
    nodad = "nodad" if length == 128 else ""
    pod.sh(
        f"ip link set peer0 name eth0; ip link set eth0 up; {ip} addr add {spec.address}/{length} dev eth0 {nodad};"
        f"{ip} route add {router} dev eth0 scope link; {ip} route add default via {router} dev eth0;"
        f"{ip} neigh add {router} lladdr {THEIR_MAC} nud permanent dev eth0"
    )
    way = f"table {table}" if is_strict else "table main"
    node.host.sh(
        f"{ip} route replace {gateway} dev {link} scope link table {table};"
        f"{ip} route replace default via {gateway} dev {link} table {table};"
        f"{ip} route replace {spec.address} dev {name} scope link {way};" + ";".join(f"{ip} rule add {one}" for one in rules)
    )
    return pod, spec


def tear_down_as_theirs(node, spec, result):
    """Its DEL with the result of our ADD (cni.go, tryDelWithPrevResult; driver.go, TeardownBranchENIPodNetwork)."""
    dummy = next(one for one in result["interfaces"] if one["name"].startswith(DUMMY_PREFIX))
    inside = next(n for n, one in enumerate(result["interfaces"]) if one["name"] == "eth0" and one.get("sandbox"))
    (address,) = [one["address"] for one in result["ips"] if one["interface"] == inside]
    vlan, ip = int(dummy["mac"]), f"ip {node.world.dash}"
    table = 100 + vlan
    node.host.sh(
        f"ip link del vlan.eth.{vlan}; while {ip} rule del prio 10 table {table} 2>/dev/null; do :; done;"
        f"{ip} rule del to {address} prio 512 table main 2>/dev/null;"
        f"{ip} rule del from {address} prio 1536 table {table} 2>/dev/null;"
        f"{ip} route del {address} table main 2>/dev/null; true"
    )


@EACH_MODE
def test_what_it_wired_is_known_and_named_and_goes_by_our_del(node, is_strict, family):
    """The kernel tells VLAN, MAC, address and router; both links get our aliases and nothing else of them changes; our repair brings
    what confinement needs, packets pass both ways, and DEL leaves nothing.
    """
    before = (node.host.ip("rule"), {one["ifname"] for one in node.host.ip("link show")})
    pod, spec = wire_theirs(node, is_strict=is_strict)
    survey = node.wiring.survey()
    veth = next(one for one in survey.firsts if one.name == spec.host_veth)
    led = find_branch_path(veth, survey)
    assert isinstance(led, BranchPath)
    assert (led.address, led.branch) == (spec.address, spec.uplink)
    named, link = node.wiring.adoption.stamp_uplinked(
        veth, led.link, key=spec.key, address=led.address, uplink=led.branch, eni_id=spec.eni_id
    )
    survey = node.wiring.survey()
    assert survey.vlan_of(spec.address) == link
    (seen,) = survey.uplinked
    assert (seen.key, seen.address, seen.alias, seen.mac) == (spec.key, spec.address, named.alias, THEIR_MAC)
    node.wiring.repair([spec])
    node.world.hostnet.confine_sandboxes()
    assert node.wiring.check(spec) == []
    target = VPC6 if family is IPV6 else "10.0.77.7"
    with suppress(OSError):  # the stand-in asks for the router for 0.3 s only, which a loaded machine may need to answer
        talk(node.vpc, target, pod)
    assert talk(node.vpc, target, pod) == str(spec.address)
    talk(pod, str(spec.address), node.vpc)
    node.mark(spec)
    node.wiring.sweep()
    left = {one["ifname"] for one in node.host.ip("link show")}
    assert (node.host.ip("rule"), left) == before


@EACH_MODE
def test_its_del_removes_what_we_wired(node, is_strict):
    """After an export: by the result of our ADD; with the namespace nothing is left."""
    before = (node.host.ip("rule"), {one["ifname"] for one in node.host.ip("link show")})
    pod = node.world.space()
    spec = node.spec(pod, is_strict=is_strict)
    name = pod_veth_name("default", "web", prefix=STRICT_VETH_PREFIX if is_strict else "eni")
    spec = replace(spec, host_veth=name)
    node.know(spec)
    wired: Wired = node.wiring.wire(spec)
    node.wiring.write_former_rules([spec])
    tear_down_as_theirs(node, spec, json.loads(build_result(spec, wired)))
    node.host.sh(f"ip link del {name}")  # as it goes with the sandbox's namespace
    own = ("113213",)
    rules = [one for one in before[0] if one["table"] not in own]
    assert [one for one in node.host.ip("rule") if one["table"] not in own] == rules
    assert {one["ifname"] for one in node.host.ip("link show")} == before[1]
    assert node.host.ip(f"route show table {spec.route_table}") == []


def test_a_link_that_is_another_by_now_is_not_named(node):
    """The VLAN link was made anew for another pod since the look, or the veth has an identity: nothing is written."""
    _, spec = wire_theirs(node)
    survey = node.wiring.survey()
    veth = next(one for one in survey.firsts if one.name == spec.host_veth)
    led = find_branch_path(veth, survey)
    node.wiring.adoption.stamp_uplinked(veth, led.link, key=spec.key, address=led.address, uplink=led.branch, eni_id=spec.eni_id)
    with pytest.raises(WiringError):
        node.wiring.adoption.stamp_uplinked(
            veth, led.link, key=spec.key, address=led.address, uplink=led.branch, eni_id=EniId("eni-0ffff")
        )
    assert node.wiring.survey().vlan_of(spec.address).eni_id == spec.eni_id
