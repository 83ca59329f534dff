"""Prefix mode on a whole node of fakes: short subnets, large ENIs, the other mode's addresses after a switch."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Network
from itertools import chain
from pathlib import Path

import pytest

from ipamd.model.address import AddressState
from ipamd.model.attachment import WiringSpec
from ipamd.model.conditions import ConditionCode
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudError, EniLimitError, KernelDumpError
from ipamd.model.pool_settings import RELEASE_HOLD_S, PoolSettings
from ipamd.settings import PoolConfig, Settings
from tests.conditions import codes
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode

PREFIXES = PoolSettings(warm_prefix_target=1, prefix_delegation=True)


def prefix_counts(node: FakeNode) -> list[int]:
    """/28s on each ENI at EC2, the primary ENI first."""
    return [len(eni.prefixes) for eni in node.ec2.enis.values()]


def single_counts(node: FakeNode) -> list[int]:
    """Single addresses on each ENI at EC2, the primary ENI first."""
    return [len(eni.secondary_addresses) for eni in node.ec2.enis.values()]


@pytest.mark.parametrize(("left", "calls"), [(3, 2), (2, 2), (1, 3), (0, 3)])
def test_a_subnet_with_fewer_prefixes_gives_what_it_has(tmp_path: Path, left: int, calls: int) -> None:
    """EC2 refuses four /28s whole where fewer are free: half as many are asked for, down to one, then single addresses."""
    node = FakeNode(tmp_path, settings=replace(PREFIXES, warm_prefix_target=4))
    node.ec2.left_prefix_count = left
    node.bring_up()
    assert sum(prefix_counts(node)) == left
    assert node.datastore.counts().free == left * 16 + (4 if left == 0 else 0)
    assert node.ec2.calls["assign_prefixes"] <= 4 + calls
    node.assert_sound()


def test_an_eni_that_cannot_come_with_all_comes_with_half(tmp_path: Path) -> None:
    """A creation refused for its size is no sign that the instance is full: half is asked for."""
    limits = InstanceLimits("m8i.48xlarge", 24, 64)
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=limits))
    node.ec2.fail["create_eni"] = [EniLimitError("too many", code="PrivateIpAddressLimitExceeded")]
    node.bring_up()
    node.add("a")
    node.pool.cycle()
    assert single_counts(node) == [63, 31]
    assert node.ec2.calls["create_eni"] == 2
    node.assert_sound()


def test_a_type_without_prefixes_says_so_and_gets_single_addresses(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ENABLE_PREFIX_DELEGATION on m4.large: one condition and one line of the log, and the pool of single addresses (I15)."""
    limits = InstanceLimits("m4.large", 2, 10, hypervisor="xen")
    node = FakeNode(tmp_path, settings=PREFIXES, ec2=FakeEc2(limits=limits))
    node.bring_up()
    node.add("a")
    node.pool.cycle()
    assert (prefix_counts(node), single_counts(node)) == ([0, 0], [9, 9])
    assert codes(node.health, "prefixes") == {ConditionCode.PREFIXES_UNSUPPORTED}
    assert [record.message for record in caplog.records if "not built on Nitro" in record.message] != []
    node.pool.set_limits(replace(limits, hypervisor="nitro"), settings=PREFIXES)
    assert "prefixes" not in node.health.conditions_by_subject()


def test_an_unknown_refusal_of_prefixes_leaves_single_addresses(tmp_path: Path) -> None:
    """A type whose limits are not known is asked for prefixes; with any code it refuses them, it gets single addresses."""
    node = FakeNode(tmp_path, settings=PREFIXES)
    refusal = CloudError("refused", code="UnsupportedOperation")
    refusal.may_have_happened = False
    node.ec2.fail["assign_prefixes"] = [refusal] * 50
    node.bring_up()
    node.add("a")
    node.pool.cycle()
    assert (sum(single_counts(node)), prefix_counts(node)) == (5, [0])
    assert node.ec2.calls["assign_prefixes"] == 1


def test_the_cap_of_pods_is_the_types_where_prefixes_cannot_be_had() -> None:
    """The instance type's maximum of pods is for single addresses, and so it counts on such a type."""
    settings = Settings(pool=PoolConfig(prefix_delegation=True))
    assert settings.pool_settings(max_pods=20, supports_prefixes=False).max_pods == 20
    assert settings.pool_settings(max_pods=20).max_pods == 0


def rest(node: FakeNode) -> None:
    """Let the pool plan until nothing more is to do."""
    for _ in range(10):
        node.pool.cycle()


def crowded(folder: Path) -> FakeNode:
    """A node with 26 pods and 27 single addresses, which fill its slots."""
    node = FakeNode(folder, settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    for number in range(26):
        node.add(f"old-{number}")
        node.clock.advance(6)
        node.pool.cycle()
    return node


def test_a_node_full_of_single_addresses_grows_by_prefixes(tmp_path: Path) -> None:
    """27 of 27 slots are single addresses and 26 pods run: after the switch a free one makes way for a /28, and so on."""
    node = crowded(tmp_path)
    assert single_counts(node) == [9, 9, 9]
    switched(node, PREFIXES)
    rest(node)
    assert (sum(single_counts(node)), sum(prefix_counts(node))) == (26, 1)
    assert (node.ec2.calls["unassign"], node.datastore.counts().free) == (1, 16)
    for number in range(16):
        node.add(f"new-{number}")
        rest(node)
    node.delete("old-3")
    node.cool()
    rest(node)
    assert (sum(single_counts(node)), sum(prefix_counts(node))) == (25, 2)
    node.assert_sound()


def test_an_exchange_without_a_prefix_costs_few_calls(tmp_path: Path) -> None:
    """The subnet has no /28 all day long: the node stays as it is, and EC2 is asked rarely."""
    node = crowded(tmp_path)
    node.ec2.left_prefix_count = 0
    switched(node, PREFIXES)
    before = node.ec2.calls.copy()
    for _ in range(24 * 120):
        node.clock.advance(30)
        node.pool.run_once()
    made = node.ec2.calls - before
    assert node.datastore.counts().assigned == 26
    assert sum(made[name] for name in ("unassign", "assign_addresses", "assign_prefixes", "create_eni")) <= 160
    node.assert_sound()


def test_single_addresses_of_a_fragmented_time_are_given_back(tmp_path: Path) -> None:
    """No /28 for a while: single addresses. Then there is one: it is found after a pause, and what is not in use drains."""
    node = FakeNode(tmp_path, settings=PREFIXES)
    node.ec2.left_prefix_count = 0
    node.bring_up()
    node.add("a")
    rest(node)
    assert (sum(single_counts(node)), prefix_counts(node)) == (5, [0])
    node.ec2.left_prefix_count = 8
    node.clock.advance(1801)
    rest(node)
    assert sum(prefix_counts(node)) == 1
    row = node.datastore.address(node.add("b").address)
    assert row is not None
    assert row.prefix is not None
    node.delete("a")
    node.cool()
    rest(node)
    for _ in range(4):
        node.clock.advance(RELEASE_HOLD_S + 1)
        rest(node)
    # 15 of the prefix and one more are the target of 16: no call is made only to have them of one kind.
    assert (sum(single_counts(node)), sum(prefix_counts(node))) == (1, 1)
    node.add("c")
    for _ in range(4):
        node.clock.advance(RELEASE_HOLD_S + 1)
        rest(node)
    assert (sum(single_counts(node)), sum(prefix_counts(node))) == (0, 2)
    node.provisioner.leaked_enis.disable()  # its one look comes a minute or two after the start
    before = node.ec2.calls.copy()
    for _ in range(120):
        node.clock.advance(60)
        node.pool.run_once()
    assert node.ec2.calls - before == {}, "a constant load makes no call"
    node.assert_sound()


def switched(node: FakeNode, settings: PoolSettings) -> None:
    """Restart the daemon with other settings, as a changed DaemonSet does."""
    node.crash()
    node.settings = settings
    node.bring_up()


@pytest.mark.parametrize("to_prefixes", [True, False])
def test_pods_keep_their_addresses_over_a_switch(tmp_path: Path, to_prefixes: bool) -> None:
    """Both ways, by a restart: pods keep what they have, free addresses of the former mode are used, growth is in the new one."""
    single = PoolSettings(warm_ip_target=3)
    before, after = (single, PREFIXES) if to_prefixes else (PREFIXES, single)
    node = FakeNode(tmp_path, settings=before)
    node.bring_up()
    had = {name: node.add(name).address for name in ("a", "b")}
    node.pool.cycle()
    switched(node, after)
    assert {one.key.container_id: one.address for one in node.datastore.attachments()} == had
    for number in range(40):
        node.add(f"s{number}")
        node.clock.advance(6)
        node.pool.cycle()
    assert node.datastore.counts().assigned == 42
    singles, prefixes = sum(single_counts(node)), sum(prefix_counts(node))
    assert prefixes == (4 if to_prefixes else 2)
    assert singles == 5 if to_prefixes else 42 - 32 <= singles <= 42 - 32 + 3
    node.assert_sound()


@pytest.mark.parametrize("to_prefixes", [True, False])
def test_the_former_modes_addresses_drain(tmp_path: Path, to_prefixes: bool) -> None:
    """New pods get addresses of the mode that is on while there are any, so those of the other come free, to be released."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=3) if to_prefixes else PREFIXES)
    node.bring_up()
    node.add("old")
    node.pool.cycle()
    switched(node, PREFIXES if to_prefixes else PoolSettings(warm_ip_target=40))
    assert (sum(prefix_counts(node)) > 0, sum(single_counts(node)) > 0) == (True, True)
    new = node.add("new").address
    row = node.datastore.address(new)
    assert row is not None
    assert (row.prefix is not None) is to_prefixes
    node.delete("old")
    node.cool()
    former = [one for one in node.datastore.addresses() if (one.prefix is None) is to_prefixes]
    assert {one.state for one in former} == {AddressState.FREE}


def test_a_prefix_is_one_rule_for_all_its_sandboxes(tmp_path: Path) -> None:
    """ADD wires with the prefix of the address; a rule that would send a new prefix by another ENI goes before it is recorded (I7)."""
    node = FakeNode(tmp_path, settings=PREFIXES)
    coming = next(node.ec2._fresh_prefixes)
    node.ec2._fresh_prefixes = chain([coming], node.ec2._fresh_prefixes)
    elsewhere, of_nobody = IPv4Network("192.0.2.0/28"), IPv4Network("10.0.15.0/28")
    node.hostnet.prefix_rules = [(coming, 7), (coming, 254), (elsewhere, 7), (of_nobody, 7)]
    node.bring_up()
    made = node.add("a")
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.prefix == node.wiring.wired[made.host_veth].prefix == coming
    assert node.hostnet.prefix_rules == [(coming, 254), (elsewhere, 7)]
    node.assert_sound()


def test_a_prefix_whose_rules_cannot_be_looked_at_is_not_recorded(tmp_path: Path) -> None:
    """I11: nobody gets an address of it until the kernel has answered; the next look records it."""
    node = FakeNode(tmp_path, settings=PREFIXES)
    node.bring_up()
    before = node.datastore.counts()
    node.hostnet.fail["remove_prefix_rules"] = [KernelDumpError("interrupted")]
    for number in range(10):
        node.add(f"pod{number}")
    node.pool.cycle()
    assert node.datastore.counts().total == before.total
    node.clock.advance(3600)
    node.pool.run_once()
    node.pool.run_once()
    assert node.datastore.counts().total > before.total
    node.assert_sound()


def test_a_sandbox_of_the_former_form_goes_over(tmp_path: Path) -> None:
    """A pass gives it the rule of its prefix, without a word; a survey that shows ours makes no repair."""
    node = FakeNode(tmp_path, settings=PREFIXES)
    node.bring_up()
    made = node.add("a")
    repaired: list[WiringSpec] = []
    real = node.wiring.repair
    node.wiring.repair = lambda specs, **named: (repaired.extend(specs), real(specs, **named))[1]  # type: ignore[method-assign]
    node.host_reconciler.reconcile()
    assert repaired == []
    survey = node.wiring.survey
    node.wiring.survey = lambda **named: replace(survey(**named), to_rules=frozenset({made.address}))  # type: ignore[method-assign]
    assert not [one for one in node.host_reconciler.reconcile() if one.is_repair]
    assert [spec.prefix for spec in repaired] == [node.wiring.wired[made.host_veth].prefix]


def test_a_new_eni_is_asked_for_with_half_as_many_down_to_one(tmp_path: Path) -> None:
    """The subnet has three /28s: a second ENI with two is refused, and one with one is made."""
    ec2 = FakeEc2(limits=InstanceLimits("of a test", 3, 3))
    ec2.left_prefix_count = 3
    node = FakeNode(tmp_path, ec2=ec2, settings=PoolSettings(warm_ip_target=64, prefix_delegation=True))
    node.bring_up()
    assert sum(len(eni.prefixes) for eni in ec2.enis.values()) == 3
