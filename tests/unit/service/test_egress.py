"""Egress of the other family: given in the ADD that gives the pool address, and gone with it, whatever happens in between."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.host.notifications import scope_of
from ipamd.model.address import AddressState
from ipamd.model.attachment import encode_alias, veth_name
from ipamd.model.cniresult import convert_result, recorded_spec
from ipamd.model.errors import LocalRangeEmptyError, WiringError
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import parse_key
from ipamd.model.kernel import ChangeKind, HostChange, HostVeth
from ipamd.model.legs import host_veths, legs_of
from ipamd.model.legs.condition_codes import LegConditionCode
from ipamd.model.legs.egress import EGRESS_TAG, egress_veth_name
from ipamd.settings import load
from tests.conditions import codes
from tests.fakes.node import FakeNode
from tests.unit.datastore.support import raw


@pytest.fixture
def node(node: FakeNode) -> FakeNode:
    """A node whose pods of IPv4 have egress of IPv6."""
    node.hostnet.egress_family = IPV6
    return node


def others(node: FakeNode) -> set[str]:
    """Addresses for egress that are in use or cooling."""
    return {str(row.other_address) for row in node.datastore.addresses() if row.other_address}


def test_an_add_gives_both(node: FakeNode) -> None:
    """One ADD: a row with both addresses, two links, and a result that names both links and the pool address alone."""
    made = node.add("a")
    assert made.other_address in IPV6.local_range.network
    assert {node.wiring.routes[one] for one in (made.address, made.other_address)} == set(host_veths(made))
    for version in ("0.3.1", "1.1.0"):
        told = json.loads(convert_result(made.result, version=version))
        names = [(one["name"], one.get("sandbox")) for one in told["interfaces"]]
        inside, outside = "/run/netns/a", host_veths(made)
        assert names == [(outside[0], None), ("eth0", inside), (outside[1], None), ("v6if0", inside)]
        assert [(one["address"], one["interface"]) for one in told["ips"]] == [(f"{made.address}/32", 1)]
        assert [one["dst"] for one in told["routes"]] == ["0.0.0.0/0"]
    node.assert_sound()


def test_a_repeated_add_gets_the_same(node: FakeNode) -> None:
    """The stored answer, with the same address for egress."""
    assert node.add("a") == node.add("a")


def test_only_the_pods_own_interface_has_it(node: FakeNode) -> None:
    """A further interface of a sandbox gets none: its link would have the name of the first one's."""
    node.add("a")
    request = replace(node.request("a"), key=parse_key("a", "net1"))
    made = node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))
    assert made.other_address is None


def test_a_sandbox_that_its_caller_wires_has_none(node: FakeNode) -> None:
    """The plugin of amazon-vpc-cni-k8s brings its own."""
    request = replace(node.request("a"), is_wired_by_caller=True)
    made = node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))
    assert made.other_address is None


@pytest.mark.parametrize("is_undone", [True, False])
def test_a_failed_add_leaves_nothing(node: FakeNode, is_undone: bool) -> None:
    """Its address for egress cools with the pool address and is free with it, also where the wiring could not be undone (I5, I8)."""
    node.wiring.fail["wire"] = [WiringError("refused")]
    node.wiring.fail["unwire"] = [] if is_undone else [WiringError("refused")]
    with pytest.raises(WiringError):
        node.add("a")
    assert len(others(node)) == 1
    node.cool()
    assert others(node) == set()
    node.assert_sound()


def test_a_del_frees_it_after_the_cooldown(node: FakeNode) -> None:
    """Until the pool address has cooled nobody gets what its sandbox had for egress; no route leads to it from DEL on (I4, I8)."""
    made = node.add("a")
    assert node.delete("a")
    assert made.other_address not in node.wiring.routes
    assert others(node) == {str(made.other_address)}
    assert node.add("b").other_address != made.other_address
    node.cool()
    assert str(made.other_address) not in others(node)
    node.assert_sound()


@pytest.mark.parametrize("is_datastore_kept", [True, False])
def test_a_restart_keeps_it(node: FakeNode, is_datastore_kept: bool) -> None:
    """Rows, or without them the alias and the route of the second link, say what a running sandbox has for egress (I2)."""
    made = node.add("a")
    node.runtime.run(made.key.container_id)
    node.crash(keep_datastore=is_datastore_kept)
    node.bring_up()
    node.cool()
    known = node.datastore.attachment(made.key)
    assert known is not None
    assert known.other_address == made.other_address
    assert legs_of(recorded_spec(known))[1] == legs_of(replace(recorded_spec(made), netns=known.netns))[1]
    given = {node.add(f"b{number}").other_address for number in range(10)}
    assert made.other_address not in given
    assert node.delete("a")
    assert made.other_address not in node.wiring.routes
    node.assert_sound()


def test_what_a_quarantined_sandbox_has_is_held_back(node: FakeNode) -> None:
    """Without rows and with a silent runtime nobody gets it while its sandbox is wired, nor before it has cooled (I1, I8)."""
    made = node.add("a")
    node.runtime.is_down = True
    node.crash(keep_datastore=False)
    node.clock.advance(1021)  # what is given first goes by the clock: it would be the same one
    node.bring_up()
    row = node.datastore.address(made.address)
    assert row is not None
    assert (row.state, row.other_address) == (AddressState.QUARANTINED, made.other_address)
    assert node.add("b").other_address != made.other_address
    del node.wiring.netns[made.netns]
    del node.wiring.wired[made.host_veth]
    node.wiring.routes = {one: link for one, link in node.wiring.routes.items() if link not in host_veths(made)}
    node.quarantine.resolve(None)
    assert str(made.other_address) in others(node), "it cools"
    node.cool()
    assert str(made.other_address) not in others(node)
    node.assert_sound()


def test_a_file_that_was_taken_back_and_up_again(node: FakeNode) -> None:
    """`datastore downgrade` forgets what sandboxes have for egress; the next start finds it at their links (I2)."""
    made = node.add("a")
    node.runtime.run(made.key.container_id)
    node.datastore.close()
    raw(node.run_dir / "state.db", *(f"UPDATE {table} SET other_address = NULL" for table in ("attachment", "address")))
    node.start()
    node.bring_up()
    assert node.datastore.attachment(made.key) == made
    assert node.add("b").other_address != made.other_address
    node.assert_sound()


def test_an_add_that_died_leaves_nothing(node: FakeNode) -> None:
    """After kill -9 between wiring and commit both links go, and both addresses can be given (I5)."""
    node.failpoint = lambda name: (_ for _ in ()).throw(KeyboardInterrupt) if name == "attach.wired" else None
    node.wiring.fail["unwire"] = [WiringError("dead")]
    node.wiring.fail["mark_for_deletion"] = [WiringError("dead")]
    with pytest.raises(KeyboardInterrupt):
        node.add("a")
    node.crash()
    node.bring_up()
    assert not node.wiring.wired
    assert not node.wiring.routes
    node.cool()
    assert others(node) == set()
    node.assert_sound()


def test_a_full_range_refuses_at_once(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """No ADD waits for the pool when the range for egress is used up: EC2 could not help; the pool address stays free (I14)."""
    small = replace(IPV6.local_range, last=IPV6.local_range.first)
    node.hostnet.egress_family = replace(IPV6, local_range=small)
    node.add("a")
    free = node.datastore.counts().free
    with pytest.raises(LocalRangeEmptyError) as refused:
        node.add("b")
    assert refused.value.cni_code == 11
    assert node.app.metrics.registry.get_sample_value("ipamd_adds_without_address_total", {"cause": "egress"}) == 1
    assert node.datastore.counts().free == free
    assert node.datastore.counts().reserved == 0


def test_without_it_on_this_node_there_is_none_and_it_is_said(node: FakeNode) -> None:
    """Where the node has no IPv6 pods get none, and a condition says why."""
    node.hostnet.egress_family, node.hostnet.egress_problem = None, "egress: new pods get no v6if0: no address"
    assert node.add("a").other_address is None
    node.host_reconciler.reconcile()
    assert LegConditionCode.EXTRA_LEG_MISSING in codes(node.health)
    node.hostnet.egress_problem = ""
    node.host_reconciler.reconcile()
    assert "egress" not in str(node.health.conditions())


def test_the_cooling_row_has_it(node: FakeNode) -> None:
    """There is no store of its own for what cools."""
    made = node.add("a")
    node.delete("a")
    (row,) = node.datastore.addresses(state=AddressState.COOLING)
    assert (row.address, row.other_address) == (made.address, made.other_address)


def test_a_change_of_the_second_link_is_looked_at(node: FakeNode) -> None:
    """A damage of it asks for a pass; a link that only claims to be one, and our own in order, do not."""
    made = node.add("a")
    second = legs_of(recorded_spec(made))[1]
    good = HostVeth(
        second.host_veth, 9, second.alias, False, True, second.key, second.address, second.mac("host"), 9001, is_extra=True
    )
    alias = encode_alias(parse_key("b", "eth0"), IPV6.local_range.last, tag=EGRESS_TAG)
    forged = replace(good, name="eniforged", key=parse_key("b", "eth0"), alias=alias)
    for veth, is_looked_at in ((good, False), (replace(good, is_up=False), True), (forged, False)):
        scope = scope_of(HostChange(ChangeKind.LINK, veth=veth), node.datastore)
        assert (scope is not None) == is_looked_at
    route = HostChange(ChangeKind.ROUTE, address=second.address, length=128, table=254)
    assert scope_of(route, node.datastore) is not None


def test_names_of_links_differ() -> None:
    """Each link of each sandbox has a name of its own, as long as the kernel allows, which earlier releases confine by its prefix."""
    keys = [parse_key("a", "eth0"), parse_key("b", "eth0")]
    names = {made(key, prefix="abcd") for key in keys for made in (veth_name, egress_veth_name)}
    assert [(len(name), name[:4]) for name in names] == [(15, "abcd")] * 4


@pytest.mark.parametrize(
    ("asked", "family"),
    [
        ({}, None),
        ({"ENABLE_V4_EGRESS": "true"}, None),
        ({"ENABLE_V6_EGRESS": "true"}, IPV6),
        ({"ENABLE_IPv6": "true", "ENABLE_IPv4": "false"}, IPV4),
        ({"ENABLE_IPv6": "true", "ENABLE_IPv4": "false", "ENABLE_V4_EGRESS": "true", "ENABLE_V6_EGRESS": "true"}, IPV4),
        ({"ENABLE_IPv6": "true", "ENABLE_IPv4": "false", "ENABLE_V4_EGRESS": "false", "ENABLE_V6_EGRESS": "true"}, None),
    ],
)
def test_what_the_settings_ask_for(asked: dict[str, str], family: Family | None) -> None:
    """Each setting means something for pods of the other family only, as in amazon-vpc-cni-k8s (cmd/aws-vpc-cni, generateJSON)."""
    prefixes = {"ENABLE_PREFIX_DELEGATION": "true"} if "ENABLE_IPv6" in asked else {}
    assert load(asked | prefixes).network.extra_family is family
