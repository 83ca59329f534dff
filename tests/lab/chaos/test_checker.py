"""The checker tells every kind of violation from what is allowed: rounds are made by hand, one thing wrong in each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from lab.chaos.book import Takes
from lab.chaos.checker import Checker, NodeState, Round
from lab.chaos.expected_state import ExpectedSnapshot, PodRecord, Violation
from lab.chaos.observation import NodeObservation
from lab.chaos.plan import PAIR_NODES
from lab.chaos.tolerances import (
    CALLS_A_START,
    CALLS_MOST,
    CALLS_OF_THE_PAIR_MOST,
    DONE_S,
    LOOSE_S,
    REPAIR_S,
    ROW_AFTER_LIE_S,
    ROW_S,
    SILENT_S,
    STRAY_S,
    WIRED_S,
)
from lab.node.kernel_view import KernelView, Route, Rule, Veth, VlanLink
from lab.node.policy_agent import Filtered, PolicyView
from tests.lab.chaos.checker_rounds import EMPTY, POD, READY, SEEN, VETH, A, B, E, F, broken, lasting, of_family, round_

FILTERED = Filtered(ingress=1, egress=2, ifindex=4)
GONE = replace(POD, removing_at_s=50.0, removed_at_s=51.0)


def with_kernel(seen: NodeObservation, **changes: Any) -> NodeObservation:
    """The observation with something else in the kernel."""
    return replace(seen, kernel=replace(seen.kernel, **changes))


def test_a_sound_node_is_sound() -> None:
    """Nothing is found where nothing is wrong, however long one looks."""
    assert lasting(round_, 300) == []


TWO_LOOKS = 1.0
WRONG: dict[str, tuple[str, float, Callable[[float], Round]]] = {
    "two veths have one address": (
        "I1",
        TWO_LOOKS,
        lambda at: round_(at, seen=with_kernel(SEEN, veths=(VETH, Veth("eni9", "c9", A, True, False)))),
    ),
    "two rows have one address": (
        "I1",
        0,
        lambda at: round_(at, seen=replace(SEEN, rows={"c1": A, "c2": A}), state=replace(READY, runtime_killed_at=(99.0,))),
    ),
    "a row says another address": ("I1", TWO_LOOKS, lambda at: round_(at, seen=replace(SEEN, rows={"c1": B}))),
    "a sandbox has another address inside": ("I1", TWO_LOOKS, lambda at: round_(at, seen=replace(SEEN, inside={"c1": B}))),
    "a living sandbox has no row": ("I2", ROW_S, lambda at: round_(at, seen=replace(SEEN, rows={}))),
    "a living sandbox does not answer": ("I2", SILENT_S, lambda at: round_(at, silent=frozenset({A}))),
    "a living sandbox has no route": ("I2", 3, lambda at: round_(at, seen=with_kernel(SEEN, routes=()))),
    "nothing filters a sandbox": (
        "I21",
        TWO_LOOKS,
        lambda at: round_(at, seen=replace(SEEN, policy=PolicyView({"eni1": Filtered(1)}))),
    ),
    "no policy reaches what filters a sandbox": (
        "I21",
        TWO_LOOKS,
        lambda at: round_(at, seen=replace(SEEN, policy=PolicyView({"eni1": FILTERED}, stale=frozenset({4})))),
    ),
    "a living sandbox has no rule": ("I2", 3, lambda at: round_(at, seen=with_kernel(SEEN, rules=()))),
    "damage is not repaired": (
        "I2",
        REPAIR_S,
        lambda at: round_(at, seen=with_kernel(SEEN, routes=()), state=replace(READY, damaged={A: 99.0})),
    ),
    "a removed sandbox has a row": ("I3", DONE_S, lambda at: round_(at, record=GONE, seen=replace(EMPTY, rows={"c1": A}))),
    "a removed sandbox is wired": ("I4", DONE_S, lambda at: round_(at, record=GONE, seen=replace(SEEN, rows={}))),
    "a dead address answers": ("I4", SILENT_S, lambda at: round_(at, record=None, seen=EMPTY, echoing=frozenset({A}))),
    "an unpromised sandbox is wired": ("I5", STRAY_S, lambda at: round_(at, record=None)),
    "a row of an unpromised sandbox": ("I5", STRAY_S, lambda at: round_(at, record=None, seen=replace(EMPTY, rows={"c9": A}))),
    "a rule without a veth": (
        "I5",
        STRAY_S,
        lambda at: round_(at, record=None, seen=with_kernel(EMPTY, rules=(Rule(1536, A, "all"),))),
    ),
    "a route without a veth": (
        "I5",
        STRAY_S,
        lambda at: round_(at, record=None, seen=with_kernel(EMPTY, routes=(Route(A, "eni7"),))),
    ),
    "a primary address is wired": ("I6", 0, lambda at: round_(at, primaries=frozenset({A}))),
    "an address is on no ENI": ("I7", TWO_LOOKS, lambda at: round_(at, on_enis={A: ""})),
    "an address is on another node's ENI": ("I7", TWO_LOOKS, lambda at: round_(at, on_enis={A: "node-b"})),
    "a cooling address went back to EC2": (
        "I8",
        TWO_LOOKS,
        lambda at: round_(at, record=replace(POD, removing_at_s=99.0, removed_at_s=99.5), seen=EMPTY, on_enis={A: ""}),
    ),
    "an ENI is attached to nothing": ("I9", LOOSE_S, lambda at: round_(at, loose_enis=frozenset({"eni-1"}))),
}


EGRESS_POD = replace(POD, egress=E)
EGRESS_VETH = Veth("eni5", "c1", E, True, False, is_egress=True)
EGRESS_SEEN = NodeObservation(
    replace(SEEN.kernel, egress_veths=(EGRESS_VETH,), routes=(*SEEN.kernel.routes, Route(E, "eni5"))),
    {"c1": A},
    {"c1": A},
    {"c1": E},
)


def egress_round(at: float, *, seen: NodeObservation = EGRESS_SEEN, **rest: Any) -> Round:
    """A round on a node whose one sandbox has egress."""
    record = rest.pop("record", EGRESS_POD)
    return round_(at, record=record, seen=seen, state=rest.pop("state", replace(READY, has_egress=True)), **rest)


WRONG_EGRESS: dict[str, tuple[str, float, Callable[[float], Round]]] = {
    "two links for egress have one address": (
        "I1",
        TWO_LOOKS,
        lambda at: egress_round(
            at,
            record=None,
            before=TWO_PODS,
            after=TWO_PODS,
            seen=with_kernel(
                replace(EGRESS_SEEN, rows={"c1": A, "c2": B}, inside={}, inside_egress={}),
                veths=(VETH, Veth("eni2", "c2", B, True, False)),
                egress_veths=(EGRESS_VETH, Veth("eni6", "c2", E, True, False, True)),
                routes=(*EGRESS_SEEN.kernel.routes, Route(B, "eni2")),
                rules=(*SEEN.kernel.rules, Rule(512, "all", B)),
            ),
        ),
    ),
    "a sandbox has another address for egress inside": (
        "I1",
        TWO_LOOKS,
        lambda at: egress_round(at, seen=replace(EGRESS_SEEN, inside_egress={"c1": F})),
    ),
    "a sandbox was given none": ("I2", TWO_LOOKS, lambda at: egress_round(at, record=POD, seen=SEEN)),
    "the link for egress is gone": (
        "I2",
        TWO_LOOKS,
        lambda at: egress_round(at, seen=with_kernel(EGRESS_SEEN, egress_veths=(), routes=SEEN.kernel.routes)),
    ),
    "the route for egress is gone": (
        "I2",
        3,
        lambda at: egress_round(at, seen=with_kernel(EGRESS_SEEN, routes=SEEN.kernel.routes)),
    ),
    "a sandbox reaches nobody of the other family": ("I2", SILENT_S, lambda at: egress_round(at, mute=frozenset({"c1"}))),
    "a link for egress without another": (
        "I5",
        STRAY_S,
        lambda at: egress_round(at, record=None, seen=with_kernel(EMPTY, egress_veths=(EGRESS_VETH,))),
    ),
    "a route for egress without a link": (
        "I5",
        STRAY_S,
        lambda at: egress_round(at, record=None, seen=with_kernel(EMPTY, routes=(Route(E, "eni5"),))),
    ),
}
TWO_PODS = ExpectedSnapshot({"c1": EGRESS_POD, "c2": replace(POD, sandbox_id="c2", pod="p2", address=B, egress=E)}, {})


@pytest.mark.parametrize("version", [4, 6])
def test_a_sound_node_with_egress_is_sound(version: int) -> None:
    """The address of the other family is on no ENI, has no rule and no row of its own, and every node has the same."""
    assert lasting(lambda at: of_family(egress_round(at), version), 300) == []


@pytest.mark.parametrize("version", [4, 6])
@pytest.mark.parametrize("name", [*WRONG, *WRONG_EGRESS])
def test_each_kind_of_violation_is_found(name: str, version: int) -> None:
    """Every check fires, under its own number, once its tolerance is over, whatever family the sandboxes have."""
    invariant, lasted_s, make = (WRONG | WRONG_EGRESS)[name]
    found = lasting(lambda at: of_family(make(at), version), lasted_s)
    assert invariant in found
    assert set(found) == {invariant}


def test_a_taken_prefix_excuses_what_is_in_it() -> None:
    """Hands took a /80 with all that sandboxes have of it; what is in another one is not excused."""
    lost = {"node-a": "2600:1f14:abc:de00:7::/80", "other": "2600:1f14:abc:de00:8::/80"}
    for prefix, expected in ((lost["node-a"], set()), (lost["other"], {"I2", "I7"})):
        takes = Takes({("node-a", prefix): 150.0}, {("node-a", prefix): 100.0})
        rounds = [of_family(round_(100.0 + s, on_enis={A: ""}, silent=frozenset({A})), 6) for s in range(20)]
        assert set(broken(*(replace(one, takes=takes) for one in rounds))) == expected


@pytest.mark.parametrize("name", [name for name, (_, lasted_s, _) in WRONG.items() if lasted_s > 1])
def test_what_lasts_shorter_than_its_tolerance_is_not_a_violation(name: str) -> None:
    """An operation under way, a repair, an adoption: they have their time."""
    _, lasted_s, make = WRONG[name]
    passing = [make(100.0 + second) for second in range(int(lasted_s))]
    assert broken(*passing, *(round_(100.0 + lasted_s + second) for second in range(3))) == []


def test_what_the_policy_agent_forgot_itself_is_no_violation() -> None:
    """It took its filter from that link; of an earlier link of the name, or of one that has its filter, that says nothing."""
    for view in (
        PolicyView({"eni1": FILTERED}, removed=frozenset({3}), stale=frozenset({3})),
        PolicyView({"eni1": Filtered(ifindex=4)}, removed=frozenset({4})),
        PolicyView({}),
    ):
        assert lasting(lambda at, view=view: round_(at, seen=replace(SEEN, policy=view)), 5) == []  # type: ignore[misc]
    another = PolicyView({"eni1": Filtered(ifindex=4)}, removed=frozenset({3}))
    assert lasting(lambda at: round_(at, seen=replace(SEEN, policy=another)), 5) == ["I21"]


BRANCH = replace(POD, vlan=3)
BRANCH_VETH = Veth("vlan1", "c1", A, is_up=True, is_dying=False, has_uplink=True)
VLAN = VlanLink("vlan.eth.3", "02:00:00:00:00:03", "", is_up=True, is_dying=False)
TO_BRANCH = replace(SEEN, kernel=KernelView(branch_veths=(BRANCH_VETH,), vlans=(VLAN,)))
AT_EC2 = {A: "node-a/3"}


def branch_round(at_s: float, *, seen: NodeObservation = TO_BRANCH, record: PodRecord | None = BRANCH, **rest: Any) -> Round:
    """A round with one sandbox that has a branch ENI, in strict mode."""
    return round_(at_s, record=record, seen=seen, branches=rest.pop("branches", AT_EC2), **rest)


def test_a_sound_branch_is_none_of_them() -> None:
    """In strict mode neither main's route nor a rule leads to it; its address is the primary one of its branch ENI."""
    assert lasting(lambda at: branch_round(at, primaries=frozenset({A})), 60) == []


BRANCHES = {
    "a stranger reached it": (0, lambda at: branch_round(at, open=frozenset({A}))),
    "its address is no branch's": (TWO_LOOKS, lambda at: branch_round(at, branches={})),
    "its address is a branch's of another node": (TWO_LOOKS, lambda at: branch_round(at, branches={A: "node-b/3"})),
    "a branch's address is wired as one of the pool": (TWO_LOOKS, lambda at: round_(at, branches=AT_EC2)),
    "its link is gone": (WIRED_S, lambda at: branch_round(at, seen=with_kernel(TO_BRANCH, vlans=()))),
    "its link is dying": (
        WIRED_S,
        lambda at: branch_round(at, seen=with_kernel(TO_BRANCH, vlans=(replace(VLAN, is_dying=True),))),
    ),
    "its link has another ID": (
        WIRED_S,
        lambda at: branch_round(at, seen=with_kernel(TO_BRANCH, vlans=(replace(VLAN, name="vlan.eth.4"),))),
    ),
}


@pytest.mark.parametrize("what", BRANCHES)
def test_a_pod_with_groups_is_behind_them(what: str) -> None:
    """I19, as soon as it has lasted, and not before."""
    seconds, make = BRANCHES[what]
    assert set(lasting(make, seconds + 1)) == {"I19"}
    if seconds:
        assert broken(make(100.0)) == []


def test_a_mistold_branch_need_not_work_and_is_behind_its_groups() -> None:
    """The control plane told another ID than it gave: the daemon may cut it off, and nobody may reach it."""
    mistold, down = replace(BRANCH, is_mistold=True), replace(BRANCH_VETH, is_up=False)
    cut_off = with_kernel(TO_BRANCH, branch_veths=(down,), vlans=())
    assert lasting(lambda at: branch_round(at, record=mistold, seen=cut_off, silent=frozenset({A})), 60) == []
    assert lasting(lambda at: branch_round(at, record=mistold, open=frozenset({A})), 5) == ["I19"]


def test_a_branch_in_standard_mode_works_once_the_node_has_led_to_it() -> None:
    """EC2 has to confirm it first, and may be away. A route that was there must stay."""
    veth = replace(BRANCH_VETH, name="eni1", is_up=False)
    waiting = with_kernel(TO_BRANCH, branch_veths=(veth,))
    assert lasting(lambda at: branch_round(at, seen=waiting, silent=frozenset({A})), 60) == []
    led = with_kernel(waiting, routes=(Route(A, "eni1"),))
    assert "I2" in lasting(lambda at: branch_round(at, seen=led if at < 102.0 else waiting), WIRED_S + 30)


@pytest.mark.parametrize(
    ("is_lost", "taken_s", "rows", "expected"),
    [
        (True, 110.0, {}, []),
        (False, 110.0, {}, ["I19", "I2"]),
        (True, None, {}, ["I19", "I2"]),
        (True, 110.0, {"c1": A}, ["I19", "I2"]),
    ],
    ids=["both", "no datastore was lost", "nobody took the link", "its row is there"],
)
def test_a_branch_whose_link_and_row_are_lost_stays_cut_off(
    *, is_lost: bool, taken_s: float | None, rows: dict[str, str], expected: list[str]
) -> None:
    """Chaos took the VLAN link, and the datastore was lost before the repair: nothing tells which its branch ENI was."""
    lost = ExpectedSnapshot({"c1": BRANCH}, {}, {"node-a": 120.0} if is_lost else {})
    state = replace(READY, damaged={A: taken_s} if taken_s is not None else {})
    seen = replace(with_kernel(TO_BRANCH, vlans=()), rows=rows)
    found = lasting(
        lambda at: branch_round(at, seen=seen, state=state, before=lost, after=lost, silent=frozenset({A})), ROW_S + 300
    )
    assert sorted(set(found)) == expected


def test_a_branch_eni_may_be_gone_before_the_del_of_its_sandbox() -> None:
    """The daemon was away, the DEL waits in the spool, and the control plane has not waited."""
    gone = replace(BRANCH, removing_at_s=90.0, removed_at_s=91.0)
    view = replace(READY, ready_since=None)
    assert lasting(lambda at: branch_round(at, record=gone, branches={}, state=view, on_enis={A: ""}), 60) == []


def test_a_branch_eni_may_be_gone_before_an_orphan_of_it() -> None:
    """The runtime was killed while it made the sandbox, so no DEL comes; its pod is gone, and so is the branch ENI."""
    killed = replace(READY, runtime_killed_at=(101.0,))
    assert lasting(lambda at: branch_round(at, record=None, branches={}, state=killed, on_enis={A: ""}), 60) == []
    assert "I19" in lasting(lambda at: branch_round(at, record=None, branches={}, on_enis={A: ""}), 60)


def test_an_orphan_does_not_share_the_address_that_its_branch_eni_had() -> None:
    """EC2 gave it to another node's pool since, whose pod has it alone; of a sandbox that is known two have it (I1)."""
    view = ExpectedSnapshot({"c1": replace(POD, node="node-b")}, {})
    there: dict[str, Any] = {"other": SEEN, "on_enis": {A: "node-b"}, "branches": {}, "before": view, "after": view}
    killed = replace(READY, runtime_killed_at=(101.0,))
    seen = with_kernel(TO_BRANCH, branch_veths=(replace(BRANCH_VETH, container_id="c9"),))
    assert "I1" not in lasting(lambda at: branch_round(at, seen=seen, state=killed, **there), 60)
    assert "I1" in lasting(lambda at: branch_round(at, seen=seen, **there), 60)


def test_a_wiring_that_is_gone_is_found_at_the_second_look() -> None:
    """Nothing but the daemon takes a living sandbox's veth (I2); one look may be a torn dump."""
    gone = with_kernel(SEEN, veths=(), routes=(), rules=())
    assert broken(round_(100, seen=gone)) == []
    assert broken(round_(100, seen=gone), round_(101, seen=gone)) == ["I2"]


def test_the_primary_address_of_an_eni_may_answer() -> None:
    """EC2 gave a removed sandbox's address to a new ENI as its first: the node answers for it, as for any ENI."""
    given = frozenset({A})
    assert lasting(lambda at: round_(at, record=None, seen=EMPTY, echoing=given, primaries=given), 300) == []


def test_a_violation_is_told_once() -> None:
    """It goes on; the report does not."""
    assert len(lasting(lambda at: round_(at, on_enis={A: ""}), 60)) == 1


@pytest.mark.parametrize("name", ["a removed sandbox has a row", "a removed sandbox is wired", "an unpromised sandbox is wired"])
def test_what_is_the_daemon_s_work_is_not_asked_while_it_is_away(name: str) -> None:
    """Removed meanwhile means spooled: the time counts from when it is ready again."""
    _, lasted_s, make = WRONG[name]
    away = [replace(make(100.0 + s), nodes={"node-a": NodeState(None), "node-b": READY}) for s in range(60)]
    back = replace(READY, ready_since=160.0)
    soon = [replace(make(160.0 + s), nodes={"node-a": back, "node-b": READY}) for s in range(int(lasted_s) - 1)]
    assert broken(*away, *soon) == []


def test_damage_waits_for_a_daemon_that_can_repair_it() -> None:
    """Chaos took a route and killed the daemon: the audit's time begins when the daemon is back."""
    state = NodeState(ready_since=None, damaged={A: 99.0})
    assert lasting(lambda at: round_(at, seen=with_kernel(SEEN, routes=()), state=state, silent=frozenset({A})), 300) == []


@pytest.mark.parametrize(("ready_since", "count"), [(None, 0), (130.0, 1)])
def test_deleted_tables_wait_for_a_daemon_and_no_longer_than_a_moment(ready_since: float | None, count: int) -> None:
    """Without them nobody is reached: a fault from when a daemon could have added them again, 6 s after that."""
    state = NodeState(ready_since, has_egress=True, nft_deleted_at=99.0)

    def make(at: float) -> Round:
        return egress_round(at, state=state, mute=frozenset({"c1"}))

    assert lasting(make, 30 + int(SILENT_S) - 3) == []
    assert len(lasting(make, 60)) == count


def test_a_sandbox_that_is_being_removed_is_not_checked_as_living() -> None:
    """Its removal was asked between the two snapshots of the expected state: its veth may be gone already."""
    after = ExpectedSnapshot({"c1": replace(POD, removing_at_s=100.0)}, {})
    assert lasting(lambda at: round_(at, seen=EMPTY, after=after), 60) == []


def test_a_sandbox_under_creation_is_not_checked_as_unpromised() -> None:
    """A veth that is younger than a creation under way may be that creation's."""
    busy = ExpectedSnapshot({}, {"node-a": (99.0,)})
    assert lasting(lambda at: round_(at, record=None, before=busy, after=busy), 60) == []


def test_an_orphan_of_a_killed_runtime_is_excused_and_counted() -> None:
    """Nobody will send its DEL; it is the reaper's, at the end of the run."""
    checker = Checker(cooldown_s=5.0)
    state = replace(READY, runtime_killed_at=(101.0,))
    found = [v for s in range(100) for v in checker.check(round_(100.0 + s, record=None, state=state))]
    assert found == []
    assert checker.orphans == {"node-a/c1"}


def test_an_eni_may_hang_in_the_air_while_ec2_is_faulty() -> None:
    """The daemon cannot attach or delete it; the time counts from the end of the last fault."""
    loose = frozenset({"eni-1"})
    assert lasting(lambda at: round_(at, loose_enis=loose, faultless_since=None), 600) == []


HIT = Takes({("node-a", A): 150.0}, {("node-a", A): 100.0})


def test_a_sandbox_hit_by_other_hands_is_excused() -> None:
    """Its address is gone from EC2 and silent; a cooling one too. Its wiring is not excused."""
    lost = {A: ""}
    assert lasting(lambda at: round_(at, on_enis=lost, silent=frozenset({A}), takes=HIT), 300) == []
    cooling = replace(POD, removing_at_s=99.0, removed_at_s=99.5)
    assert broken(*(round_(100.0 + s, record=cooling, seen=EMPTY, on_enis=lost, takes=HIT) for s in range(3))) == []
    gone = with_kernel(SEEN, routes=())
    assert lasting(lambda at: round_(at, on_enis=lost, seen=gone, takes=HIT), 5) == ["I2"]


def test_a_row_is_not_asked_for_when_hands_and_a_lost_datastore_meet() -> None:
    """Nothing is left that says on which ENI the address was, nor which route chaos took. The link must stay, and either alone excuses
    nothing.
    """
    rowless = replace(SEEN, rows={})
    lost = ExpectedSnapshot({"c1": POD}, {}, {"node-a": 120.0})

    def played(**rest: Any) -> list[str]:
        return lasting(lambda at: round_(at, seen=rowless, on_enis={A: ""}, **rest), ROW_S)

    assert played(before=lost, after=lost, takes=HIT) == []
    assert played(takes=HIT) == ["I2"]
    assert set(played(before=lost, after=lost)) == {"I2", "I7"}
    torn = with_kernel(rowless, routes=(), rules=())
    for taken, expected in (({"before": lost, "after": lost, "takes": HIT}, []), ({"takes": HIT}, ["I2", "I2", "I2"])):
        assert lasting(lambda at, taken=taken: round_(at, seen=torn, on_enis={A: ""}, **taken), ROW_S) == expected  # type: ignore[misc]
    gone = with_kernel(rowless, veths=(), routes=(), rules=())
    assert broken(*(round_(100.0 + s, seen=gone, before=lost, after=lost, takes=HIT) for s in range(2))) == ["I2"]


def test_an_address_given_after_the_hand_could_be_noticed_is_not_excused() -> None:
    """Not wired yet in the last look before the bound is excused, not wired yet in the first look after it is not."""
    for seen_without_s, expected in ((149.0, []), (151.0, ["I7"])):
        without = round_(seen_without_s, record=None, seen=EMPTY, takes=HIT)
        late = replace(POD, created_at_s=seen_without_s + 0.5)
        rounds = [round_(seen_without_s + 1 + s, record=late, on_enis={A: ""}, takes=HIT) for s in range(4)]
        assert broken(without, *rounds) == expected


def test_two_nodes_with_one_address_by_other_hands() -> None:
    """Taken from node-a and given to node-b by EC2: excused; the other way round not, and never on one node."""
    other = NodeObservation(KernelView((Veth("eni2", "c2", A, True, False),)), {"c2": A}, {})
    pods = ExpectedSnapshot({"c1": POD, "c2": replace(POD, node="node-b", sandbox_id="c2", pod="p2")}, {})
    both = {"other": other, "before": pods, "after": pods, "silent": frozenset()}

    def played(**rest: Any) -> set[str]:
        return set(broken(*(round_(100.0 + s, **both, **rest) for s in range(2))))

    assert "I1" not in played(on_enis={A: "node-b"}, takes=HIT)
    assert "I1" in played(on_enis={A: "node-b"})
    assert "I1" in played(on_enis={A: "node-a"}, takes=HIT)
    twice = with_kernel(SEEN, veths=(VETH, Veth("eni9", "c9", A, True, False)))
    assert "I1" in broken(*(round_(100.0 + s, seen=twice, takes=HIT) for s in range(2)))


def calls(count: int) -> dict[str, Counter[str]]:
    """The calls of two nodes in a minute, of which one made `count`."""
    return {"node-a": Counter({"DescribeInstances OK": count}), "node-b": Counter()}


def test_too_many_calls_are_told_at_once() -> None:
    """A daemon that asks EC2 without end."""
    assert broken(round_(100, calls_a_minute=calls(CALLS_MOST))) == []
    assert broken(round_(100, calls_a_minute=calls(CALLS_MOST + 1))) == ["I13"]
    for count, expected in ((CALLS_OF_THE_PAIR_MOST, []), (CALLS_OF_THE_PAIR_MOST + 1, ["I13"])):
        of_the_pair = {PAIR_NODES[0]: Counter({"DescribeInstances OK": count})}
        seen = replace(round_(100, calls_a_minute=of_the_pair), nodes={"node-a": READY, "node-b": READY, PAIR_NODES[0]: READY})
        assert broken(seen) == expected
    restarted = replace(READY, started_at=(30.0, 41.0, 60.0, 99.0))
    most = CALLS_MOST + 2 * CALLS_A_START
    assert broken(round_(100, state=restarted, calls_a_minute=calls(most))) == []
    assert broken(round_(100, state=restarted, calls_a_minute=calls(most + 1))) == ["I13"]


def test_a_row_that_ec2_hid_is_demanded_once_ec2_has_told() -> None:
    """After a lost datastore nobody can adopt a sandbox whose address Describe leaves out: the time begins when it ends."""
    lost = ExpectedSnapshot({POD.sandbox_id: POD}, {}, {"node-a": 50.0})

    def hidden(at_s: float, *, lied_until: float) -> Round:
        return round_(at_s, seen=replace(SEEN, rows={}), before=lost, after=lost, lied_until=min(at_s, lied_until))

    def seconds(lied_until: float) -> float:
        return next(span for span in range(1, 400) if lasting(lambda at: hidden(at, lied_until=lied_until), span))

    assert abs(seconds(lied_until=40.0) - ROW_S) <= 2, "a lie before the loss excuses nothing"
    assert abs(seconds(lied_until=60.0) - ROW_AFTER_LIE_S) <= 2
    assert abs(seconds(lied_until=130.0) - 30 - 80 - ROW_S) <= 2, "as long as it had lied"


def test_a_row_that_was_there_is_not_hidden_by_a_lie() -> None:
    """Once the sandbox was adopted its row is demanded as ever, whatever Describe leaves out."""
    lost = ExpectedSnapshot({POD.sandbox_id: POD}, {}, {"node-a": 50.0})
    checker = Checker(cooldown_s=5.0)

    def found(at_s: float) -> list[Violation]:
        seen = SEEN if at_s < 200 else replace(SEEN, rows={})
        return checker.check(round_(at_s, seen=seen, before=lost, after=lost, lied_until=min(at_s, 190.0)))

    first = next(float(at_s) for at_s in range(51, 400) if found(float(at_s)))
    assert first == 200 + ROW_S


@pytest.mark.parametrize(("is_fenced", "expected"), [(True, []), (False, ["I1"])], ids=["fenced", "lives"])
def test_an_address_that_moved_is_on_two_nodes_only_while_the_old_one_is_fenced(is_fenced: bool, expected: list[str]) -> None:
    """EC2 has it on the second node; what the first one goes on sending is dropped there."""
    old = replace(POD, is_pinned=True, is_fenced=is_fenced, removing_at_s=2.0)
    new = replace(POD, node="node-b", sandbox_id="c2", is_pinned=True)
    view = ExpectedSnapshot({"c1": old, "c2": new}, {})
    veth = replace(VETH, name="eni2", container_id="c2")
    other = NodeObservation(KernelView((veth,), (Route(A, "eni2"),), (Rule(512, "all", A),)), {"c2": A}, {"c2": A})
    rounds = [round_(at_s, before=view, after=view, other=other, on_enis={A: "node-b"}) for at_s in (100.0, 101.0, 102.0)]
    assert broken(*rounds) == expected


@pytest.mark.parametrize(("left", "expected"), [({("node-a", A)}, set()), (set(), {"I1", "I7"})], ids=["left", "not left"])
def test_a_sandbox_of_a_failed_creation_may_be_left_by_its_pod(left: set[tuple[str, str]], expected: set[str]) -> None:
    """The runtime died while it made the sandbox, so nobody knows it; then its pod moved with its address."""
    new = replace(POD, node="node-b", sandbox_id="c2", is_pinned=True)
    view = ExpectedSnapshot({"c2": new}, {}, left=frozenset(left))
    veth = replace(VETH, name="eni2", container_id="c2")
    other = NodeObservation(KernelView((veth,), (Route(A, "eni2"),), (Rule(512, "all", A),)), {"c2": A}, {"c2": A})
    rounds = [round_(at_s, before=view, after=view, other=other, on_enis={A: "node-b"}) for at_s in (100.0, 101.0, 102.0)]
    assert set(broken(*rounds)) == expected


def test_a_pod_of_a_guarded_pool_that_a_stranger_reaches() -> None:
    """Its ENI's group names one host only."""
    guarded = replace(POD, is_guarded=True)
    assert broken(round_(100.0, record=guarded, open=frozenset({A}))) == ["I19"]
    assert broken(round_(100.0, open=frozenset({A}))) == []
