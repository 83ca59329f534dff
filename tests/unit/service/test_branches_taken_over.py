"""Sandboxes with branch ENIs change hands: what amazon-vpc-cni-k8s wired is recorded, and what we wired is left for its DEL."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.migration.importing import CONDITION
from ipamd.model.attachment import WiringSpec, pod_veth_name
from ipamd.model.cniresult import convert_result
from ipamd.model.errors import WiringError
from ipamd.model.ids import ContainerId, EniId, MacAddress
from ipamd.model.kernel import UplinkRoute
from ipamd.model.kernel_numbers import STRICT_TABLE
from ipamd.model.legs.branch_eni import Branch, BranchEni, parse_pod_eni
from ipamd.settings import NetworkConfig
from tests.fakes.aws_node import OURS, SAVED
from tests.fakes.node import FakeNode
from tests.fakes.pod_facts import annotation
from tests.families import family_for, in_both, network_of
from tests.unit.service.test_branches import branch, made, restart
from tests.unit.service.test_import_and_export import exporter, finish_start

MAC = MacAddress("0a:58:00:00:00:01")


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """In strict mode, beside the other software."""
    one = made(tmp_path, network=network_of(family_for(request)))
    one.aws_node.conflists = {SAVED, OURS}
    yield one
    one.datastore.close()


def told(node: FakeNode, vlan: int) -> BranchEni:
    """What the annotation says."""
    return parse_pod_eni(annotation(vlan), family=node.network.family)


def wire_theirs(node: FakeNode, name: str, vlan: int, *, is_strict: bool = True, is_told: bool = True) -> WiringSpec:
    """A pod of the other software: `pod-<name>` with sandbox `name`, which the runtime lists with its annotation."""
    eni = told(node, vlan)
    led = Branch(vlan, eni.mac, eni.gateway, is_strict)
    veth = pod_veth_name("default", f"pod-{name}", prefix="vlan" if is_strict else "eni")
    spec = WiringSpec(node.key(name), eni.address, led.route_table, veth, f"/run/netns/{name}", 9001, MAC, uplink=led)
    node.wiring.foreign[veth] = spec
    node.wiring.leave_vlan(vlan, None)
    node.wiring.vlans[vlan] = replace(node.wiring.vlans[vlan], mac=eni.mac, eni_id=EniId(""))
    node.wiring.uplink_routes |= {
        UplinkRoute(led.route_table, eni.gateway, None, led.link),
        UplinkRoute(led.route_table, None, eni.gateway, led.link),
    }
    if is_strict:
        node.wiring.uplink_routes.add(UplinkRoute(led.route_table, eni.address, None, veth))
        # What confines sandboxes has added it before the import looks.
        node.wiring.uplink_routes.add(UplinkRoute(STRICT_TABLE, eni.address, None, veth))
    else:
        node.wiring.routes[eni.address] = veth
        node.wiring.rules[eni.address] = led.route_table
    node.runtime.run(name)
    if is_told:
        node.runtime.listed[name] = replace(node.runtime.listed[name], eni_annotation=annotation(vlan))
    return spec


def reason(node: FakeNode) -> str:
    """What the condition says of what could not be taken over."""
    return node.health.conditions_by_subject().get(CONDITION, "")


@in_both("node")
@pytest.mark.parametrize("is_strict", [True, False])
def test_a_pod_comes_over_with_its_branch_eni(node: FakeNode, is_strict: bool) -> None:
    """By the kernel and the annotation; its MAC stays, the row outlives a lost datastore, and DEL removes both links."""
    spec = wire_theirs(node, "a", 2, is_strict=is_strict)
    restart(node)
    for keep in (True, False):
        (one,) = node.datastore.attachments()
        assert (one.key, one.address, one.eni_id, one.uplink) == (spec.key, spec.address, EniId("eni-00002"), spec.uplink)
        assert (one.host_veth, one.sandbox_name) == (spec.host_veth, "default/pod-a")
        assert node.datastore.address(one.address) is None, "it is in no pool"
        assert reason(node) == ""
        assert node.wiring.wired[spec.host_veth].others_mac == MAC
        interfaces = json.loads(one.result)["interfaces"]
        assert (interfaces[0]["name"], interfaces[0]["mac"]) == (spec.host_veth, MAC)
        restart(node, keep_datastore=keep)
    assert node.delete("a")
    node.cool()
    assert (node.wiring.wired, node.wiring.vlans, node.datastore.attachments()) == ({}, {}, ())


@in_both("node")
@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"eni_annotation": ""}, "the annotation vpc.amazonaws.com/pod-eni of pod default/pod-a is not known"),
        ({"eni_annotation": annotation(3)}, "its pod's annotation says"),
        ({"eni_annotation": annotation(2, ifAddress="06:00:00:00:00:77")}, "its pod's annotation says"),
        ({"eni_annotation": "{"}, "annotation vpc.amazonaws.com/pod-eni"),
        ({"pod_name": "another"}, "the runtime lists 0 sandboxes of its pod, not 1"),
    ],
)
def test_what_is_not_certain_is_left_as_it_is(node: FakeNode, changed: dict[str, str], why: str) -> None:
    """No row, no alias, a condition with the reason; once the runtime tells it, it is taken over without a restart."""
    spec = wire_theirs(node, "a", 2)
    right = node.runtime.listed["a"]
    node.runtime.listed["a"] = replace(right, **changed)  # type: ignore[arg-type]  # of a table
    restart(node)
    assert node.datastore.attachments() == ()
    assert (list(node.wiring.foreign), node.wiring.vlans[2].alias) == ([spec.host_veth], "")
    assert spec.host_veth in reason(node)
    assert why in reason(node)
    node.runtime.listed["a"] = right
    node.runtime_reconciler.reconcile_once()
    assert [one.key for one in node.datastore.attachments()] == [spec.key]
    assert reason(node) == ""


@in_both("node")
def test_two_sandboxes_of_its_pod_and_a_silent_runtime_name_nobody(node: FakeNode) -> None:
    """Any of them may have it; its file has no such pods."""
    wire_theirs(node, "a", 2)
    node.runtime.listed["b"] = replace(node.runtime.listed["a"], container_id=ContainerId("b"))
    restart(node)
    assert "the runtime lists 2 sandboxes of its pod, not 1" in reason(node)


@in_both("node")
def test_who_knows_the_pod_is_asked_where_the_runtime_does_not_tell(node: FakeNode) -> None:
    """The control plane may have told it after the sandbox was begun."""
    spec = wire_theirs(node, "a", 2, is_told=False)
    node.pod_facts.put("a", annotation(2))
    restart(node)
    assert [(one.key, one.eni_id) for one in node.datastore.attachments()] == [(spec.key, EniId("eni-00002"))]


@in_both("node")
@pytest.mark.parametrize("refusal", [[WiringError("busy")], []])
def test_a_table_without_a_way_out_or_a_link_that_refuses_waits(node: FakeNode, refusal: list[WiringError]) -> None:
    """It is looked at again with each list of the runtime."""
    spec = wire_theirs(node, "a", 2)
    assert spec.uplink is not None
    way = UplinkRoute(spec.route_table, None, spec.uplink.gateway, spec.uplink.link)
    if refusal:
        node.wiring.fail["stamp_uplinked"] = list(refusal)
    else:
        node.wiring.uplink_routes.remove(way)
    restart(node)
    assert ("busy" if refusal else "table 102 has no default route through vlan.eth.2") in reason(node)
    node.wiring.uplink_routes.add(way)
    node.runtime_reconciler.reconcile_once()
    assert [one.key for one in node.datastore.attachments()] == [spec.key]


@pytest.mark.parametrize("is_strict", [True, False])
def test_without_the_setting_they_are_named_and_left_alone(tmp_path: Path, is_strict: bool) -> None:
    """Not taken for pods of the pool either: in standard mode their links are named as those are."""
    node = FakeNode(tmp_path, network=NetworkConfig())
    node.bring_up()
    spec = wire_theirs(node, "a", 2, is_strict=is_strict)
    restart(node)
    assert node.datastore.attachments() == ()
    assert f"{spec.host_veth} ({spec.address}): its pod has a branch ENI, by vlan.eth.2: set ENABLE_POD_ENI=true" in reason(node)
    finish_start(node)
    node.aws_node.conflists = {SAVED, OURS}
    assert exporter(node, node.aws_node).export().problems == []
    assert node.aws_node.written == [[]], "its address is on no ENI that its daemon knows"
    node.datastore.close()


@pytest.mark.parametrize("mode", ["strict", "standard"])
def test_an_export_leaves_them_their_links_and_its_file_has_none(tmp_path: Path, mode: str) -> None:
    """Pods of the pool are in the file; the links of both stay."""
    node = made(tmp_path, mode=mode, network=NetworkConfig())
    node.aws_node.conflists = {SAVED, OURS}
    one, pool = branch(node, "a", 2), node.add("b")
    finish_start(node)
    report = exporter(node, node.aws_node).export()
    assert report.problems == []
    assert "1 sandbox with ENIs of their own: their links stay, and are not in the exported file" in report.steps
    assert [entry.key for entry in node.aws_node.written[-1]] == [pool.key]
    assert report.exported_count == 1
    assert one.host_veth in node.wiring.wired, "it was not renamed"
    assert [link.name for link in node.wiring.vlans.values()] == ["vlan.eth.2"]
    node.datastore.close()


@pytest.mark.parametrize(
    ("namespace", "pod", "mode", "veth", "dummy"),
    [
        ("default", "web-0", "strict", "vlan0d7763386da", "dummy0d7763386da"),
        ("default", "web-0", "standard", "eni0d7763386da", "dummy0d7763386da"),
        ("prod", "a.b-c", "strict", "vlan765de6baa5b", "dummy765de6baa5b"),
    ],
)
def test_the_result_has_what_its_plugin_looks_for(
    tmp_path: Path, namespace: str, pod: str, mode: str, veth: str, dummy: str
) -> None:
    """Of every version: the interface by which it finds the VLAN, and one address on the sandbox's own interface. Source: its
    cmd/routed-eni-cni-plugin/cni.go, tryDelWithPrevResult and getContainerNetworkMetadata.
    """
    node = made(tmp_path, mode=mode, network=NetworkConfig())
    node.pod_facts.put("a", annotation(7))
    asked = node.request("a")
    asked = replace(asked, names=replace(asked.names, pod_namespace=namespace, pod_name=pod))
    one = node.attacher.attach_sandbox(asked, deadline=Deadline.after(node.clock, 60), steps=StepTimer(node.clock))
    assert one.host_veth == veth
    for version in ("0.4.0", "1.0.0", "1.1.0"):
        result = json.loads(convert_result(one.result, version=version))
        (found,) = [each for each in result["interfaces"] if each["name"] == dummy]
        assert (found["mac"], found.get("sandbox", "")) == ("7", "")
        index = next(n for n, each in enumerate(result["interfaces"]) if each["name"] == "eth0" and each["sandbox"])
        assert [each["address"] for each in result["ips"] if each["interface"] == index] == [f"{one.address}/32"]
    pool = json.loads(node.add("b").result)
    assert not [each for each in pool["interfaces"] if each["name"].startswith("dummy")]
    node.datastore.close()
