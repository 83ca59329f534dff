"""The pool releases what nobody needed for a whole window, and nothing else; whatever fails, no sandbox gets what EC2 took back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.model.address import AddressState
from ipamd.model.attachment import WiringSpec
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.eni import EniState
from ipamd.model.errors import CloudError, PoolEmptyError
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.intent import Intent, IntentKind
from ipamd.model.pool_settings import RELEASE_HOLD_S, PoolSettings
from ipamd.model.release import ENI_HOLD_S, ENI_MIN_AGE_S
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S

SMALL = PoolSettings(warm_ip_target=5, minimum_ip_target=10)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with small IP targets."""
    made = FakeNode(tmp_path, settings=SMALL)
    made.bring_up()
    yield made
    made.datastore.close()


def run_down(node: FakeNode, *, hold_s: float = RELEASE_HOLD_S) -> None:
    """Let a window pass and the pool come to rest."""
    node.pool.cycle()
    node.clock.advance(hold_s + 1)
    for _ in range(10):
        node.pool.cycle()


def fill_and_empty(node: FakeNode, count: int, *, turn: int = 0) -> None:
    """So many sandboxes come, and go, and their addresses cool."""
    for number in range(count):
        node.add(f"pod-{turn}-{number}")
        node.pool.cycle()
    for number in range(count):
        node.delete(f"pod-{turn}-{number}")
    node.cool()


def mutating(node: FakeNode) -> int:
    """Calls that changed something at EC2."""
    return sum(count for name, count in node.ec2.calls.items() if not name.startswith(("describe", "find", "subnet")))


def test_drain_to_zero_ends_at_the_target(node: FakeNode) -> None:
    """After 22 pods the pool returns to 10 addresses, in few calls; the ENIs are deleted at EC2 and their routing is gone."""
    fill_and_empty(node, 22)
    assert node.datastore.counts().total >= 25
    before = mutating(node)
    run_down(node)
    assert node.datastore.counts().free == node.datastore.counts().total == 10
    assert len(node.ec2.enis) == len(node.datastore.enis()) == 2
    assert set(node.hostnet.enis) == {eni.eni_id for eni in node.datastore.enis() if not eni.is_primary}
    assert mutating(node) - before <= 4, "one ENI (detach, delete), and the rest of another in one call"
    node.clock.advance(RECENT_S)
    node.pool.cycle()
    assert node.datastore.open_intents() == ()
    node.assert_sound()


def test_nothing_goes_before_the_window_is_over(node: FakeNode) -> None:
    """Not a second before; the status says why."""
    fill_and_empty(node, 22)
    before = mutating(node)
    for _ in range(10):
        decided = node.pool.cycle()
        assert decided is not None
        assert decided.excess_count > 0
        assert f"{RELEASE_HOLD_S:.0f} s" in decided.retention_reason
        node.clock.advance(RELEASE_HOLD_S / 11)
    assert mutating(node) == before


def test_default_target_deletes_an_eni_that_is_not_needed(tmp_path: Path) -> None:
    """WARM_ENI_TARGET=1: once the last sandbox has gone one ENI's worth is kept, as the primary ENI's."""
    node = FakeNode(tmp_path)
    node.bring_up()
    fill_and_empty(node, 12)
    assert len(node.ec2.enis) == 3
    run_down(node, hold_s=ENI_HOLD_S + ENI_MIN_AGE_S)
    assert len(node.ec2.enis) == 2, "what is more than one ENI in excess goes after a minute"
    node.clock.advance(RELEASE_HOLD_S - ENI_HOLD_S - ENI_MIN_AGE_S - 60)
    node.pool.cycle()
    assert len(node.ec2.enis) == 2, "and one is held"
    run_down(node, hold_s=60)
    assert set(node.ec2.enis) == {PRIMARY}
    assert node.datastore.counts().free == 9
    node.assert_sound()
    node.datastore.close()


@pytest.mark.parametrize("hold_s", [600.0, 7200.0])
def test_a_job_at_the_edge_of_an_eni_makes_no_call(tmp_path: Path, hold_s: float) -> None:
    """WARM_ENI_TARGET=1 is just met, and one job more comes within each window of VPC_IPAMD_RELEASE_HOLD_SECONDS: its ENI stays."""
    node = FakeNode(tmp_path, settings=PoolSettings(release_hold_s=hold_s))
    node.bring_up()
    for number in range(9):
        node.add(f"resident-{number}")
        node.pool.cycle()
    fill_and_empty(node, 1)
    before = mutating(node)
    for turn in range(1, 20):
        run_down(node, hold_s=hold_s * 0.9)
        fill_and_empty(node, 1, turn=turn)
    assert mutating(node) == before
    run_down(node, hold_s=hold_s)
    assert mutating(node) == before + 2, "detached and deleted once nobody needs it any more"
    node.datastore.close()


def test_churn_within_the_window_makes_no_call(node: FakeNode) -> None:
    """The same burst every five minutes for hours: after the first nothing is asked of EC2."""
    fill_and_empty(node, 12)
    before = mutating(node)
    for turn in range(1, 40):
        fill_and_empty(node, 12, turn=turn)
        node.pool.cycle()
        node.clock.advance(RELEASE_HOLD_S / 2)
        node.pool.cycle()
    assert mutating(node) == before


def test_a_waiting_add_comes_first(node: FakeNode) -> None:
    """While an ADD waits nothing is released, and what was begun is not continued."""
    fill_and_empty(node, 22)
    node.pool.cycle()
    node.clock.advance(RELEASE_HOLD_S + 1)
    node.demand.join()
    before = mutating(node)
    node.pool.cycle()
    assert mutating(node) == before
    node.demand.leave()
    node.pool.cycle()
    assert mutating(node) > before


@pytest.mark.parametrize("age_s", [0.0, 30.0, 150.0, RECENT_S - 1])
@pytest.mark.parametrize("is_restarted", [False, True])
def test_describe_that_lags_brings_nothing_back(node: FakeNode, age_s: float, is_restarted: bool) -> None:
    """For five minutes EC2 may show what it took back: no sandbox gets that, nor does a restarted daemon give it (I7)."""
    fill_and_empty(node, 22)
    shown = tuple(node.ec2.attached())
    run_down(node)
    gone = {a for eni in shown for a in eni.secondary_addresses} - {
        a for e in node.ec2.enis.values() for a in e.secondary_addresses
    }
    assert gone
    node.clock.advance(age_s)
    if is_restarted:
        node.crash()
    node.ec2.answers = [shown]
    node.enis.sync_with_ec2(IDENTITY)
    assert not {row.address for row in node.datastore.addresses()} & gone
    assert {eni.eni_id for eni in node.datastore.enis()} <= set(node.ec2.enis)


def test_what_an_open_intent_names_is_nobodys_after_a_restart(node: FakeNode) -> None:
    """An unassign whose outcome nobody knows: the addresses are held before the first ADD is served."""
    free = [row.address for row in node.datastore.addresses(state=AddressState.FREE)]
    eni_id = node.datastore.enis()[0].eni_id
    named = free[:-1]
    named = [a for a in named if node.datastore.address(a).eni_id == eni_id]  # type: ignore[union-attr]
    intent = Intent("i", IntentKind.UNASSIGN, node.clock.now(), {"eni_id": eni_id, "addresses": ",".join(map(str, named))})
    with node.datastore.transaction() as uow:
        uow.open_intent(intent)
    node.crash()
    taken = set()
    for number in range(len(free) - len(named)):
        taken.add(node.datastore.reserve(node.key(f"x-{number}")).address)
    assert not taken & set(named)
    with pytest.raises(PoolEmptyError):
        node.datastore.reserve(node.key("one-more"))


def test_adds_that_race_a_release_never_share(node: FakeNode) -> None:
    """Reservations run while intents are opened: an address is reserved or named, never both (I2)."""
    eni_id = node.datastore.enis()[0].eni_id
    free = [row.address for row in node.datastore.addresses() if row.eni_id == eni_id]
    for turn in range(40):
        start = threading.Barrier(2)
        got: list[object] = []

        def reserve(start: threading.Barrier = start, got: list[object] = got, turn: int = turn) -> None:
            start.wait(PATIENCE_S)
            got.extend(node.datastore.reserve(node.key(f"r-{turn}-{n}")).address for n in range(3))

        thread = threading.Thread(target=reserve)
        thread.start()
        named = set()
        start.wait(PATIENCE_S)
        try:
            with node.datastore.transaction() as uow:
                payload = {"eni_id": eni_id, "addresses": ",".join(map(str, free[:2]))}
                uow.open_intent(Intent(f"i-{turn}", IntentKind.UNASSIGN, node.clock.now(), payload))
            named = set(free[:2])
        except Exception:  # noqa: BLE001  # an ADD was faster
            named = set()
        thread.join(PATIENCE_S)
        assert not named & set(got)
        with node.datastore.transaction() as uow:
            if named:
                uow.close_intent(f"i-{turn}", outcome="test")
            for address in got:
                uow.abort(address, cooldown=node.cooldown.period, reason="test")  # type: ignore[arg-type]
                uow.free(address, reason="test")  # type: ignore[arg-type]
    assert node.datastore.audit() == []


def test_an_eni_being_deleted_is_not_taken_back_by_a_comparison(node: FakeNode) -> None:
    """EC2 shows it attached for as long as its detach lags: it gives no address all the same."""
    fill_and_empty(node, 22)
    shown: tuple[DescribedEni, ...] = tuple(node.ec2.attached())
    node.ec2.fail["delete_eni"] = [CloudError("no answer") for _ in range(3)]
    run_down(node)
    leaving = [eni for eni in node.datastore.enis() if eni.state is EniState.DETACHING]
    assert len(leaving) == 1
    node.ec2.answers = [shown]
    node.enis.sync_with_ec2(IDENTITY)
    (still,) = [eni for eni in node.datastore.enis() if eni.eni_id == leaving[0].eni_id]
    assert still == replace(leaving[0])


def test_our_own_detach_is_nobody_elses(node: FakeNode) -> None:
    """The link that goes with an ENI that we release freezes nothing, and gives rise to no look at EC2."""
    fill_and_empty(node, 22)
    seen: list[str] = []

    def reached(name: str) -> None:
        if name.startswith("release.") or name == "growth.intent-closed":
            seen.append(name)
            node.cloud_reconciler.links.compare()

    node.failpoint = reached
    describes = node.ec2.calls["describe_enis"]
    run_down(node)
    assert "release.detached" in seen
    assert not node.enis.routing.frozen()
    assert node.ec2.calls["describe_enis"] == describes
    node.assert_sound()


def test_whole_prefixes_go_and_a_used_one_stays(tmp_path: Path) -> None:
    """In prefix mode: 40 sandboxes, then one: the /28 that it is in and one warm /28 are left."""
    node = FakeNode(tmp_path, settings=PoolSettings(prefix_delegation=True, warm_prefix_target=1))
    node.bring_up()
    live = node.add("live")
    fill_and_empty(node, 40)
    assert node.datastore.counts().total == 64
    run_down(node)
    assert node.datastore.counts().total == 32
    assert node.datastore.attachment(live.key) == live
    assert sum(len(eni.prefixes) for eni in node.ec2.enis.values()) == 2
    node.assert_sound()
    node.datastore.close()


def test_the_mode_that_is_off_gives_back_and_gives_last(tmp_path: Path) -> None:
    """After a switch to prefixes on a live node: new sandboxes get addresses of /28s, and single ones go once they are surplus."""
    node = FakeNode(tmp_path, settings=SMALL)
    node.bring_up()
    live = node.add("live")
    node.settings = PoolSettings(prefix_delegation=True, warm_prefix_target=1)
    node.crash()
    node.bring_up()
    new = node.add("new")
    row = node.datastore.address(new.address)
    assert row is not None
    assert row.prefix is not None
    run_down(node)
    run_down(node)
    singles = [row for row in node.datastore.addresses() if row.prefix is None]
    assert node.datastore.attachment(live.key) == live
    assert len(singles) < 10
    node.assert_sound()
    node.datastore.close()


def test_an_intent_of_another_release_stops_nothing(node: FakeNode) -> None:
    """A settled intent with a point that is no number is closed; one that names no address stays and is reported."""
    bad = {"eni_id": "eni-primary", "addresses": "x", "settled_at_monotonic_s": "soon"}
    with node.datastore.transaction() as uow:
        uow.open_intent(Intent("old", IntentKind.ASSIGN, node.clock.now(), bad))
    node.pool.cycle()
    assert node.datastore.open_intents() == ()
    node.assert_sound()


def test_an_eni_that_may_carry_a_sandbox_without_a_row_is_kept(tmp_path: Path) -> None:
    """After a lost datastore EC2 hides the address of a live sandbox: its ENI looks unused, and is not deleted under it (I2, I7)."""
    node = FakeNode(tmp_path, settings=PoolSettings(release_hold_s=3, warm_ip_target=1, minimum_ip_target=3))
    node.bring_up()
    for number in range(12):
        node.pool.cycle()
        node.add(f"pod{number}")
    hidden = next(one for one in node.datastore.attachments() if one.eni_id != PRIMARY)
    for one in node.datastore.attachments():
        if one.key != hidden.key:
            node.delete(one.key.container_id)
    node.runtime.run(hidden.key.container_id)
    node.cool()
    node.crash(keep_datastore=False)
    truth = node.ec2.enis[hidden.eni_id]
    node.ec2.enis[hidden.eni_id] = replace(truth, secondary_addresses=truth.secondary_addresses - {hidden.address})
    node.bring_up()
    for _ in range(60):
        node.cool()
        node.pool.cycle()
    assert hidden.eni_id in node.ec2.enis
    assert node.ec2.calls["delete_eni"] == node.ec2.calls["detach_eni"] == 0
    node.ec2.enis[hidden.eni_id] = truth
    node.look_twice()
    node.quarantine.resolve(node.listed())
    for _ in range(60):
        node.cool()
        node.pool.cycle()
    assert node.datastore.counts().total < 7, "what is in excess goes when every sandbox has its row"
    assert {one.key for one in node.datastore.attachments()} == {hidden.key}


def test_single_addresses_go_in_prefix_mode_where_no_prefix_is(tmp_path: Path) -> None:
    """What the mode that is off left goes as soon as it is surplus, also if it is all that there is."""
    node = FakeNode(tmp_path, settings=SMALL)
    node.bring_up()
    for number in range(24):
        node.pool.cycle()
        node.add(f"pod{number}")
    kept = {one.eni_id: one.key for one in node.datastore.attachments()}
    for one in node.datastore.attachments():
        if one.key not in kept.values():
            node.delete(one.key.container_id)
    node.cool()
    node.crash()
    node.settings = PoolSettings(prefix_delegation=True, warm_prefix_target=1, release_hold_s=60)
    node.bring_up()
    before = node.datastore.counts()
    assert before.free > 16
    for _ in range(60):
        node.cool()
        node.pool.cycle()
    assert node.datastore.counts().total < before.total
    assert {one.key for one in node.datastore.attachments()} == set(kept.values())


# Whole ENIs of WARM_ENI_TARGET are released as soon as they are surplus and a minute old, by the pool's own timer


def let_time_pass(node: FakeNode, seconds: float) -> None:
    """Wake the pool when it asks to be woken, and at no other moment."""
    ends_s = node.clock.monotonic() + seconds
    for _ in range(100):
        pause_s = node.pool._pause_s()
        if pause_s is None or node.clock.monotonic() + pause_s > ends_s:
            return
        node.clock.advance(pause_s + 0.001)
        node.pool.run_once()


@pytest.fixture
def by_eni(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with the default target, one whole ENI, and 14 addresses on each; two pods have come and made it attach a spare one."""
    made = FakeNode(tmp_path, settings=PoolSettings())
    made.bring_up()
    yield made
    made.datastore.close()


def test_an_eni_goes_after_its_window_though_nothing_happens(by_eni: FakeNode) -> None:
    """A burst is over: the ENI that it asked for is held for the window, and goes then, though nothing else happens on the node."""
    let_time_pass(by_eni, 600)  # what is due after a start is over
    began_s = by_eni.clock.monotonic()
    fill_and_empty(by_eni, 3)
    by_eni.pool.run_once()
    assert len(by_eni.datastore.enis()) == 2
    let_time_pass(by_eni, began_s + RELEASE_HOLD_S - 60 - by_eni.clock.monotonic())
    assert len(by_eni.datastore.enis()) == 2
    let_time_pass(by_eni, began_s + RELEASE_HOLD_S + 200 - by_eni.clock.monotonic())
    assert len(by_eni.datastore.enis()) == 1
    assert len(by_eni.ec2.enis) == 1


def test_the_window_of_an_eni_begins_while_the_last_addresses_cool(by_eni: FakeNode) -> None:
    """Three quarters of the target may be cooling: the spare ENI is in excess when the sandboxes go, and not asked for again."""
    for number in range(3):
        by_eni.add(f"pod-{number}")
        by_eni.pool.run_once()
    by_eni.clock.advance(ENI_MIN_AGE_S + 5)
    by_eni.pool.run_once()
    assert len(by_eni.datastore.enis()) == 2
    for number in range(3):
        by_eni.delete(f"pod-{number}")
    by_eni.was_triggered()
    by_eni.cooldown.work()
    assert by_eni.was_triggered(), "what cools is no load any more: the pool looks at once"
    made, gone_s = by_eni.ec2.calls["create_eni"], by_eni.clock.monotonic()
    by_eni.pool.run_once()
    let_time_pass(by_eni, 10)
    assert by_eni.datastore.counts().cooling == 3
    by_eni.cool()
    let_time_pass(by_eni, gone_s + RELEASE_HOLD_S + 2 - by_eni.clock.monotonic())
    assert len(by_eni.datastore.enis()) == 1
    assert by_eni.ec2.calls["create_eni"] == made
    by_eni.assert_sound()


def test_a_release_that_is_taken_up_again_takes_no_eni_from_under_a_quarantined_address(tmp_path: Path) -> None:
    """I2, I20: EC2 did not answer the look before the Detach, and amazon-vpc-cni-k8s, which is back, gave an address of the ENI."""
    node = FakeNode(tmp_path, settings=SMALL)
    node.bring_up()
    node.clock.advance(600)
    fill_and_empty(node, 22)
    node.pool.cycle()
    node.ec2.fail["describe_eni"] = [CloudError("no answer") for _ in range(3)]
    eni_id = EniId("")
    for _ in range(40):
        node.clock.advance(RELEASE_HOLD_S / 20)
        node.pool.cycle()
        opened = [one for one in node.datastore.open_intents() if one.kind is IntentKind.DELETE_ENI and not one.is_settled]
        if opened:
            eni_id = opened[0].eni_id
            break
    assert node.ec2.enis[eni_id].attachment_id, "EC2 has not been asked to detach it yet"
    row = next(one for one in node.datastore.addresses() if one.eni_id == eni_id)
    veth = "eni0123456789a"
    mac = MacAddress("0a:58:00:00:00:01")
    node.wiring.foreign[veth] = WiringSpec(node.key("theirs"), row.address, 254, veth, "/run/netns/theirs", 9001, mac)
    node.wiring.routes[row.address] = veth
    node.app.context.freeze.set(FreezeCause.AWS_NODE, "amazon-vpc-cni-k8s may use what we hold")
    node.host_reconciler.reconcile()
    now = node.datastore.address(row.address)
    assert now is not None
    assert now.state is AddressState.QUARANTINED
    node.ec2.fail["describe_eni"] = []
    for _ in range(60):
        node.clock.advance(60)
        node.pool.cycle()
    assert node.ec2.enis[eni_id].attachment_id
    known = node.datastore.eni(eni_id)
    assert known is not None
    assert known.state is EniState.ATTACHED
