"""DEL succeeds also if it is repeated or the sandbox is unknown, and its address is not given again too early."""

from __future__ import annotations

import pytest

from ipamd.model.address import AddressState
from ipamd.model.errors import DatastoreError, WiringError
from tests.fakes.node import COOLDOWN_S, FakeNode


def test_a_del_leaves_nothing_at_its_reply(node: FakeNode) -> None:
    """At the reply no row, route or rule of the key is left; the link is dying (I4)."""
    made = node.add("a")
    assert node.delete("a") is True
    assert node.datastore.attachment(made.key) is None
    assert made.address not in node.wiring.routes
    assert made.address not in node.wiring.rules
    assert node.wiring.dying == {made.host_veth: made.address}
    node.assert_sound()


@pytest.mark.parametrize("is_confined", [True, False])
def test_a_link_stays_up_only_while_its_source_is_verified(node: FakeNode, is_confined: bool) -> None:
    """I4: without the verified drop of foreign sources a dying link goes down at once."""
    made = node.add("a")
    node.hostnet.is_confined = is_confined
    node.delete("a")
    assert (made.host_veth in node.wiring.left_up) is is_confined


def test_repeated_and_unknown_dels_succeed(node: FakeNode) -> None:
    """A DEL that has nothing to do is fine (I3)."""
    node.add("a")
    assert [node.delete("a"), node.delete("a"), node.delete("never")] == [True, False, False]


def test_a_del_that_the_kernel_refuses_can_be_repeated(node: FakeNode) -> None:
    """When routes cannot be removed the row stays, so that the retry finds it (I3)."""
    made = node.add("a")
    node.wiring.fail["mark_for_deletion"] = [WiringError("refused")]
    with pytest.raises(WiringError):
        node.delete("a")
    assert node.datastore.attachment(made.key) == made
    assert node.delete("a") is True


def test_an_unknown_del_removes_what_a_crash_left_in_the_kernel(node: FakeNode) -> None:
    """Wiring of a key without a row goes with its DEL (I4)."""
    made = node.add("a")
    spec = node.wiring.wired[made.host_veth]
    node.delete("a")
    node.cool()
    node.wiring.wired[spec.host_veth] = spec
    node.wiring.routes[spec.address] = spec.host_veth
    node.delete("a")
    assert not node.wiring.wired
    assert not node.wiring.routes


def test_an_address_cools_for_the_whole_period(node: FakeNode) -> None:
    """Cooling addresses are not free before the period is over (I8)."""
    made = node.add("a")
    node.delete("a")
    node.cooldown.sweep()
    node.clock.advance(COOLDOWN_S - 1)
    assert node.cooldown.free_cooled() == 0
    node.clock.advance(1)
    assert node.cooldown.free_cooled() == 1
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.FREE


@pytest.mark.parametrize("step_s", [-86400, 86400])
def test_a_stepped_wall_clock_changes_no_cooldown(node: FakeNode, step_s: int) -> None:
    """Within one process the monotonic clock counts, not the wall clock (I8)."""
    node.add("a")
    node.delete("a")
    node.cooldown.sweep()
    node.clock.step_wall(step_s)
    assert node.cooldown.free_cooled() == 0
    node.clock.advance(COOLDOWN_S)
    assert node.cooldown.free_cooled() == 1


def test_cooling_survives_a_crash(node: FakeNode) -> None:
    """After kill -9 an address that cooled is still cooling, for what is left of its time (I8)."""
    node.add("a")
    node.delete("a")
    node.clock.advance(10)
    node.crash()
    node.bring_up()
    assert node.datastore.counts().cooling == 1
    node.cooldown.sweep()
    node.clock.advance(COOLDOWN_S - 10 - 1)
    assert node.cooldown.free_cooled() == 0
    node.clock.advance(1)
    assert node.cooldown.free_cooled() == 1


def test_a_crash_with_the_clock_set_back_does_not_cool_for_ever(node: FakeNode) -> None:
    """After a restart the recorded time counts, bounded by the period (I8)."""
    node.add("a")
    node.delete("a")
    node.clock.step_wall(-86400)
    node.crash()
    node.bring_up()
    node.cooldown.sweep()
    node.clock.advance(COOLDOWN_S)
    assert node.cooldown.free_cooled() == 1


def test_the_longest_free_address_is_given_first(node: FakeNode) -> None:
    """An address that was just released is the last to be given again."""
    first = node.add("a").address
    node.delete("a")
    node.cool()
    given = [node.add(f"s{number}").address for number in range(8)]
    assert first not in given


def test_a_disk_that_refuses_holds_up_no_cooled_address_for_ever(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three addresses have cooled and the disk is full for a moment: afterwards all three become free (I8)."""
    for name in ("a", "b", "c"):
        node.add(name)
        node.delete(name)
    node.cooldown.sweep()
    node.clock.advance(COOLDOWN_S)
    real = node.datastore.transaction
    refusals = [DatastoreError("disk full")]

    def failing():
        if refusals:
            raise refusals.pop()
        return real()

    monkeypatch.setattr(node.datastore, "transaction", failing)
    with pytest.raises(DatastoreError):
        node.cooldown.free_cooled()
    node.cooldown.free_cooled()
    assert node.datastore.counts().cooling == 0


def test_an_adopted_address_cools_anew_from_its_own_del(node: FakeNode) -> None:
    """Cooling, adopted, released again: the second cooldown counts in full, not what was left of the first (I8)."""
    made = node.add("a")
    spec = node.wiring.wired[made.host_veth]
    node.delete("a")
    node.cooldown.sweep()
    node.clock.advance(20)
    other = type(spec)(node.key("b"), spec.address, spec.route_table, "enib", spec.netns, spec.mtu)
    node.wiring.wired["enib"], node.wiring.routes[spec.address] = other, "enib"
    node.runtime.run("b")
    veth = next(veth for veth in node.wiring.survey().veths if veth.name == "enib")
    assert node.quarantine.adopt(veth, node.runtime.listed["b"], node.wiring.survey()) == ""
    node.delete("b")
    node.cooldown.sweep()
    node.clock.advance(20)
    assert node.cooldown.free_cooled() == 0, "20 s of the second cooldown are not 30"
    node.clock.advance(10)
    assert node.cooldown.free_cooled() == 1


@pytest.mark.parametrize("step_s", [-3600, 3600])
def test_a_clock_that_is_stepped_while_no_daemon_runs_changes_no_cooldown(node: FakeNode, step_s: int) -> None:
    """Found by chaos (seed 102): the daemon ends, the wall clock is stepped, the next one frees nothing early nor late (I8)."""
    node.add("a")
    node.delete("a")
    node.cooldown.sweep()
    node.clock.advance(10)
    node.clock.step_wall(step_s)
    node.crash()
    node.bring_up()
    node.clock.advance(COOLDOWN_S - 10 - 1)
    assert node.cooldown.free_cooled() == 0
    node.clock.advance(1)
    assert node.cooldown.free_cooled() == 1
