"""After an import, a boot and a lost datastore: what EC2 gives us then is free at once, and no more is asked for than is wanted.

What EC2 only shows may have been a sandbox's a moment before: that cools first (I8). What a call of ours has just been given was not.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from ipamd.model.address import AddressState
from ipamd.model.attachment import WiringSpec, pod_veth_name
from ipamd.model.aws_node import Allocation
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudError
from ipamd.model.ids import MacAddress
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.aws_node import OURS, SAVED
from tests.fakes.clock import FakeClock
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import COOLDOWN_S, FakeNode

M5_4XLARGE = InstanceLimits("m5.4xlarge", 8, 30)
BY_PREFIX = PoolSettings(prefix_delegation=True, warm_prefix_target=1)
BY_ADDRESS = PoolSettings(warm_ip_target=3, minimum_ip_target=10)
CHANGING = ("create_eni", "attach_eni", "assign_addresses", "assign_prefixes", "unassign", "detach_eni", "delete_eni")
WINDOW_S = 18


def changing_count(node: FakeNode) -> int:
    """Calls so far that change something at EC2."""
    return sum(node.ec2.calls[method] for method in CHANGING)


def allocated(node: FakeNode) -> tuple[int, int]:
    """Secondary addresses and prefixes that EC2 has given this node."""
    enis = node.ec2.attached()
    return sum(len(eni.secondary_addresses) for eni in enis), sum(len(eni.prefixes) for eni in enis)


def wire_theirs(node: FakeNode, address: IPv4Address) -> None:
    """A pod of the other software, whose file and conflists are on the node."""
    veth = pod_veth_name("default", "pod-theirs", prefix="eni")
    mac = MacAddress("0a:58:00:00:00:01")
    node.wiring.foreign[veth] = WiringSpec(node.key("theirs"), address, 254, veth, "/run/netns/theirs", 9001, mac)
    node.wiring.routes[address], node.wiring.rules[address] = veth, 254
    node.aws_node.conflists = {SAVED, OURS}
    node.aws_node.told = [Allocation(node.key("theirs"), address, "default", "pod-theirs")]
    node.runtime.run("theirs")


def without_rows(node: FakeNode, *, how: str) -> int:
    """The next process has no rows: it takes the node over from the other software, or its datastore is lost. It serves for a while.

    Returns: calls that changed something at EC2 since.
    """
    before = changing_count(node)
    if how == "import":
        wire_theirs(node, max(row.address for row in node.datastore.addresses(state=AddressState.FREE)))
    node.crash(keep_datastore=False)
    node.bring_up()
    assert len(node.datastore.attachments()) == (how == "import")
    for _ in range(WINDOW_S):
        node.clock.advance(1)
        node.pool.run_once()
    return changing_count(node) - before


def made(tmp_path: Path, settings: PoolSettings) -> FakeNode:
    """An m5.4xlarge (8 ENIs, 29 slots each) that serves."""
    node = FakeNode(tmp_path, settings=settings, ec2=FakeEc2(limits=M5_4XLARGE))
    node.bring_up()
    return node


@pytest.mark.parametrize("how", ["import", "a lost datastore"])
def test_prefix_mode_asks_for_what_is_wanted_once(tmp_path: Path, how: str) -> None:
    """An m5.4xlarge with two /28s: one call, 16 addresses are free at once; it was 29 calls (I13)."""
    node = made(tmp_path, replace(BY_PREFIX, warm_prefix_target=2))
    node.settings = BY_PREFIX
    assert allocated(node) == (0, 2)
    assert without_rows(node, how=how) <= 1
    assert allocated(node)[1] <= 3
    assert node.datastore.counts().free >= 16, "a pod that comes now need not wait for a cooldown"
    assert node.add("t").address
    node.assert_sound()
    node.datastore.close()


@pytest.mark.parametrize("how", ["import", "a lost datastore"])
def test_ip_targets_ask_for_what_is_wanted_once(tmp_path: Path, how: str) -> None:
    """WARM_IP_TARGET=3, MINIMUM_IP_TARGET=10: three more while the ten cool, in one call; it was nine calls (I13)."""
    node = made(tmp_path, BY_ADDRESS)
    assert allocated(node) == (10, 0)
    assert without_rows(node, how=how) <= 1
    assert allocated(node)[0] <= 13
    assert node.datastore.counts().free == 3
    node.assert_sound()
    node.datastore.close()


@pytest.mark.parametrize("settings", [BY_PREFIX, BY_ADDRESS], ids=["by prefix", "by address"])
def test_what_was_there_before_cools_once(tmp_path: Path, settings: PoolSettings) -> None:
    """I8: whatever a call gives meanwhile, what EC2 showed first is not given for a cooldown; then all of it is free."""
    node = made(tmp_path, settings)
    before = {row.address for row in node.datastore.addresses()}
    without_rows(node, how="a lost datastore")
    assert {row.state for row in node.datastore.addresses() if row.address in before} == {AddressState.COOLING}
    node.clock.advance(COOLDOWN_S)
    node.cooldown.free_cooled()
    assert node.datastore.counts().cooling == 0
    calls = changing_count(node)
    for _ in range(60):
        node.clock.advance(1)
        node.pool.run_once()
    assert changing_count(node) == calls, "what has cooled is supply"
    node.datastore.close()


@pytest.mark.parametrize("settings", [BY_PREFIX, BY_ADDRESS], ids=["by prefix", "by address"])
def test_what_was_there_before_a_boot_cools_until_a_cooldown_after_it(tmp_path: Path, settings: PoolSettings) -> None:
    """I8: a reboot empties the run directory and ends sandboxes without a DEL, so nobody knows what was in use until then. Once the
    boot is a cooldown ago all of it has cooled, and so is what a call brings meanwhile.
    """
    last = made(tmp_path / "last", settings)
    last.datastore.close()
    shown = allocated(last)
    clock = FakeClock(since_boot_s=COOLDOWN_S - 12.0)
    node = FakeNode(tmp_path / "next", settings=settings, ec2=last.ec2, clock=clock)
    node.bring_up()
    before = {row.address for row in node.datastore.addresses(state=AddressState.COOLING)}
    assert len(before) == shown[0] + 16 * shown[1]
    given = node.add("meanwhile").address
    assert given not in before
    node.clock.advance(11.0)
    node.cooldown.free_cooled()
    assert node.datastore.counts().cooling == len(before)
    node.clock.advance(1.0)
    node.cooldown.free_cooled()
    assert node.datastore.counts().cooling == 0
    node.datastore.close()
    later = FakeNode(tmp_path / "later", settings=settings, ec2=last.ec2, clock=FakeClock(since_boot_s=COOLDOWN_S))
    later.bring_up()
    assert later.datastore.counts().cooling == 0
    later.datastore.close()


def test_a_new_eni_brings_addresses_that_are_free_at_once(tmp_path: Path) -> None:
    """Every slot of the ENI is taken by what cools: the pool makes one ENI, and what that comes with is given at once."""
    node = made(tmp_path, BY_ADDRESS)
    node.ec2.assign_addresses(PRIMARY, count=19)
    before = len(node.ec2.enis)
    without_rows(node, how="a lost datastore")
    assert len(node.ec2.enis) == before + 1
    assert node.datastore.counts().free == 3
    node.datastore.close()


@pytest.fixture
def lost(tmp_path: Path) -> Iterator[FakeNode]:
    """A node that has just lost its datastore and looked at EC2; it asks for nothing by itself."""
    node = FakeNode(tmp_path, settings=BY_ADDRESS)
    node.bring_up()
    node.crash(keep_datastore=False)
    node.node_info.learn_identity()
    node.enis.sync_with_ec2(IDENTITY)
    yield node
    node.datastore.close()


def state_of(node: FakeNode, address: IPv4Address) -> AddressState:
    """How an address is recorded."""
    row = node.datastore.address(address)
    assert row is not None
    return row.state


def test_an_answer_that_names_more_than_was_asked_for_proves_nothing(lost: FakeNode) -> None:
    """I8: EC2 may name old addresses with the new, one that was released before the loss among them: which is which, nobody knows."""
    old, new = IPv4Address("10.0.7.1"), IPv4Address("10.0.7.2")
    lost.enis.add_addresses(PRIMARY, frozenset({old, new}), frozenset(), asked_count=1)
    assert {state_of(lost, old), state_of(lost, new)} == {AddressState.COOLING}
    prefixes = frozenset({IPv4Network("10.0.14.0/28"), IPv4Network("10.0.14.16/28")})
    lost.enis.add_addresses(PRIMARY, frozenset(), prefixes, asked_count=16)
    assert state_of(lost, IPv4Address("10.0.14.3")) is AddressState.COOLING


def test_an_answer_that_names_old_ones_we_know_of_is_believed(lost: FakeNode) -> None:
    """What it names besides is recorded, so the rest is what we asked for: free at once."""
    known = {row.address for row in lost.datastore.addresses() if row.eni_id == PRIMARY}
    new = IPv4Address("10.0.7.2")
    lost.enis.add_addresses(PRIMARY, frozenset({*known, new}), frozenset(), asked_count=1)
    assert state_of(lost, new) is AddressState.FREE
    assert {state_of(lost, address) for address in known} == {AddressState.COOLING}


@pytest.mark.parametrize("is_made", [True, False])
def test_what_only_a_describe_shows_after_a_lost_answer_cools(tmp_path: Path, is_made: bool) -> None:
    """I8: the answer to Assign was lost. What a Describe shows then may be what we were given, or an address that was released before
    the loss and that the first Describe lacked: it cools, the pool asks once more and no more."""
    node = FakeNode(tmp_path, settings=BY_ADDRESS)
    node.bring_up()
    released = node.add("s").address
    node.delete("s")
    node.cooldown.sweep()
    node.crash(keep_datastore=False)
    whole = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(whole, secondary_addresses=whole.secondary_addresses - {released})
    (node.ec2.lose if is_made else node.ec2.fail)["assign_addresses"] = [CloudError("connection reset")]
    before = changing_count(node)
    node.bring_up()
    shown = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(shown, secondary_addresses=shown.secondary_addresses | {released})
    for _ in range(WINDOW_S):
        node.clock.advance(1)
        node.pool.run_once()
    assert state_of(node, released) is AddressState.COOLING
    assert node.datastore.counts().free >= 3
    assert changing_count(node) - before <= 3
    node.datastore.close()


def test_what_we_gave_back_and_are_given_again_is_free_at_once(lost: FakeNode) -> None:
    """It cooled before it went, so a call that brings it again brings it free, though Describe may lag about it (I8)."""
    again = IPv4Address("10.0.7.3")
    lost.enis.book.record_own([again], on=PRIMARY, is_added=False)
    lost.enis.add_addresses(PRIMARY, frozenset({again}), frozenset(), asked_count=1)
    assert state_of(lost, again) is AddressState.FREE
    assert (again, PRIMARY) not in lost.enis.book.removed()


def test_a_kill_between_the_answer_and_its_record_costs_one_more_call(tmp_path: Path) -> None:
    """The next process finds what it was given by a Describe: it cools, and the pool asks for what is wanted once more (I8)."""
    node = made(tmp_path, BY_PREFIX)

    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == "growth.allocated":
            raise Killed

    node.crash(keep_datastore=False)
    node.failpoint = kill
    with pytest.raises(Killed):
        node.bring_up()
    node.crash()
    before = changing_count(node)
    node.bring_up()
    for _ in range(WINDOW_S):
        node.clock.advance(1)
        node.pool.run_once()
    assert changing_count(node) - before <= 1
    assert node.datastore.counts().free >= 16
    assert node.datastore.open_intents() == ()
    node.assert_sound()
    node.datastore.close()
