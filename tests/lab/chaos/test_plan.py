"""A seed determines the whole plan, which can be written as JSON; every subset of a plan is a plan."""

from __future__ import annotations

import json
from collections import Counter

from lab.chaos.lies import HANDS, IPV6_LIES, LIES
from lab.chaos.nemesis import IPV6_FAULTS
from lab.chaos.plan import (
    AGENT_DEEDS,
    BRANCH_NODE,
    BRANCH_WEIGHTS,
    CALM_KINDS,
    CONTROL_DEEDS,
    IPV6_NODE,
    MOVES,
    NODES,
    PAIR_NODES,
    PAIR_WEIGHTS,
    POLICY_NODE,
    POLICY_WEIGHTS,
    WEIGHTS,
    Event,
    Kind,
    Plan,
    make_plan,
)
from lab.chaos.seeds import variety
from lab.chaos.shrink import shrink
from lab.chaos.wishes import OWN, POOLS
from lab.vpc.family import IPV4, IPV6, egress_by, family_by
from lab.vpc.faults import Faults

NAMES = ["attach.wired", "detach.committed", "growth.created"]


def test_a_seed_always_gives_the_same_plan() -> None:
    """Seed and length are all that is needed to play a run again; the order of the failpoints' names does not matter."""
    assert make_plan(7, minutes=3, failpoints=NAMES) == make_plan(7, minutes=3, failpoints=NAMES[::-1])


def test_a_node_with_ipv6_changes_nothing_for_the_two_others() -> None:
    """A seed that found something finds it again: their events and those of the cloud are the same, and so are their settings."""
    with_it, without = (make_plan(7, minutes=10, failpoints=NAMES, ipv6=ipv6) for ipv6 in (True, False))
    ours = {event.arg("name") for event in with_it.events if event.kind is Kind.CLOUD_FAULT} & {*IPV6_FAULTS, *IPV6_LIES}
    assert ours, "it has faults of its own"
    rest = [event for event in with_it.events if event.node != IPV6_NODE and event.arg("name") not in ours]
    assert rest == list(without.events)
    assert without.nodes == NODES
    assert with_it.nodes == (*NODES, IPV6_NODE)
    for node in NODES:
        assert {**with_it.env[node], "ENABLE_V6_EGRESS": ""} == {**without.env[node], "ENABLE_V6_EGRESS": ""}


def test_a_node_with_a_policy_agent_changes_nothing_for_the_others() -> None:
    """Nor does a new failpoint of the agent's; on its node names come again, and everything is done to the agent."""
    with_it = make_plan(7, minutes=30, failpoints=[*NAMES, "policy.owed"], policy=True)
    assert [event for event in with_it.events if event.node != POLICY_NODE] == list(
        make_plan(7, minutes=30, failpoints=NAMES).events
    )
    own = [event for event in with_it.events if event.node == POLICY_NODE]
    assert {event.arg("what") for event in own if event.kind is Kind.DISTURB_AGENT} == set(AGENT_DEEDS)
    assert {event.arg("name") for event in own if event.kind is Kind.ARM_FAILPOINT} == {
        "attach.wired",
        "detach.committed",
        "policy.owed",
    }
    assert max(Counter(event.arg("pod") for event in own if event.kind is Kind.RUN_POD).values()) > 5


def test_plans_differ_in_who_has_egress() -> None:
    """Of IPv6 on a node with IPv4, and of IPv4 on the node with IPv6; with some seeds not."""
    plans = [make_plan(seed, minutes=1, failpoints=NAMES) for seed in range(20)]
    for node, egress in ((NODES[-1], IPV6), (IPV6_NODE, IPV4)):
        assert {egress_by(plan.env[node]) for plan in plans} == {egress, None}
    assert {family_by(plan.env[IPV6_NODE]) for plan in plans} == {IPV6}


def test_other_seeds_give_other_plans() -> None:
    """Nights with different seeds are different nights."""
    assert make_plan(7, minutes=3, failpoints=NAMES).events != make_plan(8, minutes=3, failpoints=NAMES).events


def test_a_new_failpoint_changes_nothing_else() -> None:
    """A seed that found something finds it again after the code has grown a failpoint."""
    before, after = (make_plan(7, minutes=10, failpoints=names).events for names in (NAMES, [*NAMES, "pool.new"]))
    assert [(one.at_s, one.kind, one.node) for one in before] == [(one.at_s, one.kind, one.node) for one in after]


def test_a_plan_survives_the_way_through_a_file() -> None:
    """What `--replay` reads is what was played."""
    plan = make_plan(3, minutes=5, failpoints=NAMES)
    assert Plan.from_json(plan.to_json()) == plan


def test_events_are_in_order_and_within_the_run() -> None:
    """The player needs them so."""
    plan = make_plan(5, minutes=2, failpoints=NAMES)
    times = [event.at_s for event in plan.events]
    assert times == sorted(times)
    assert times[0] > 0
    assert times[-1] <= plan.duration_s


def test_a_node_with_a_trunk_changes_nothing_for_the_others() -> None:
    """On it pods with groups and others come again by name, in either mode, and everything is done to the control plane."""
    plans = [make_plan(seed, minutes=30, failpoints=NAMES, branch=True) for seed in range(7, 11)]
    with_it = plans[0]
    assert [event for event in with_it.events if event.node != BRANCH_NODE] == list(
        make_plan(7, minutes=30, failpoints=NAMES).events
    )
    own = [event for event in with_it.events if event.node == BRANCH_NODE]
    assert {event.arg("what") for event in own if event.kind is Kind.DISTURB_CONTROL} == set(CONTROL_DEEDS)
    assert {str(event.arg("pod")).startswith("sg-") for event in own if event.kind is Kind.RUN_POD} == {True, False}
    for name, values in (
        ("POD_SECURITY_GROUP_ENFORCING_MODE", {"strict", "standard"}),
        ("VPC_IPAMD_POD_SECURITY_GROUP_SOURCE", {"annotations", "kubelet"}),
    ):
        assert {plan.env[BRANCH_NODE][name] for plan in plans} == values


def test_a_long_plan_has_every_kind_of_event_on_each_node() -> None:
    """No kind of event is forgotten by a table."""
    events = make_plan(1, minutes=60, failpoints=NAMES, policy=True, branch=True, moves=True).events
    assert {event.kind for event in events} == set(Kind)
    pods = {Kind.RUN_POD, Kind.REMOVE_POD}
    for node in (*NODES, IPV6_NODE):
        assert {event.kind for event in events if event.node == node} == pods | set(WEIGHTS) - {Kind.CLOUD_FAULT}
    assert {event.kind for event in events if event.node == POLICY_NODE} == pods | set(POLICY_WEIGHTS)
    assert {event.kind for event in events if event.node == BRANCH_NODE} == pods | set(BRANCH_WEIGHTS)
    assert {event.kind for event in events if event.node in PAIR_NODES} == set(PAIR_WEIGHTS)
    assert pods | set(WEIGHTS) | set(POLICY_WEIGHTS) | set(BRANCH_WEIGHTS) | {Kind.MOVE_POD} == set(Kind)


def test_nothing_is_killed_in_the_calm_that_other_hands_need() -> None:
    """The last two of every five minutes have other hands, and neither kills nor a failing cloud."""
    calm = [event for event in make_plan(1, minutes=30, failpoints=NAMES).events if event.at_s % 300 > 180]
    assert {event.kind for event in calm} == {*CALM_KINDS, Kind.RUN_POD, Kind.REMOVE_POD}


def test_every_failpoint_has_its_turn() -> None:
    """In a long run each name is armed, and none twice before all were."""
    events = make_plan(2, minutes=30, failpoints=NAMES).events
    armed = Counter(event.arg("name") for event in events if event.kind is Kind.ARM_FAILPOINT)
    assert set(armed) == set(NAMES)
    assert max(armed.values()) - min(armed.values()) <= 1


def test_a_pod_is_removed_after_it_was_run_and_once() -> None:
    """The kubelet's part of a plan makes sense."""
    for node in (*NODES, IPV6_NODE, POLICY_NODE, BRANCH_NODE):
        seen: set[str] = set()
        for event in make_plan(4, minutes=10, failpoints=NAMES, policy=True, branch=True).events:
            if event.node == node and event.kind is Kind.RUN_POD:
                assert event.arg("pod") not in seen
                seen.add(event.arg("pod"))
            if event.node == node and event.kind is Kind.REMOVE_POD:
                seen.remove(event.arg("pod"))


def test_every_cloud_fault_can_be_applied_and_taken_back() -> None:
    """The lab's faults accept each spec, and nothing is in force after its undo."""
    for event in make_plan(6, minutes=60, failpoints=NAMES).events:
        if event.kind is Kind.CLOUD_FAULT:
            faults = Faults()
            faults.apply(event.arg("apply"))
            faults.apply(event.arg("undo"))
            api = next(iter(event.arg("apply").get("apis", {"*": None})))
            assert (faults.lag_s(api), faults.reach("ec2"), faults.reach("imds"), faults.is_frozen()) == (
                0,
                "open",
                "open",
                False,
            )
            assert not any(vars(faults.conditions).values())


def test_every_fault_and_lie_is_drawn() -> None:
    """Long runs leave none out, and lies last long enough for two looks now and then."""
    events = [event for seed in range(3) for event in make_plan(seed, minutes=60, failpoints=NAMES).events]
    faults = [event for event in events if event.kind is Kind.CLOUD_FAULT]
    assert {*LIES, *IPV6_LIES, *IPV6_FAULTS} < {event.arg("name") for event in faults}
    assert max(event.arg("for_s") for event in faults if event.arg("name") == "imds-frozen") > 30
    assert {event.arg("what") for event in events if event.kind is Kind.OTHER_HANDS} == set(HANDS)


def test_standing_conditions_are_drawn_and_applied() -> None:
    """Each seed has its own answers to what is unknown of EC2, and the lab accepts them."""
    drawn = [make_plan(seed, minutes=1, failpoints=NAMES).cloud for seed in range(20)]
    for cloud in drawn:
        faults = Faults()
        faults.apply(cloud)
        assert faults.rules.token_of_deleted == cloud["rules"]["token_of_deleted"]
    for name in drawn[0]["rules"]:
        assert len({cloud["rules"][name] for cloud in drawn}) > 1
    assert {"large_account" in cloud for cloud in drawn} == {True, False}


def test_a_plan_of_before_is_still_read() -> None:
    """A plan file without conditions of the cloud has none."""
    raw = json.loads(make_plan(3, minutes=1, failpoints=NAMES).to_json())
    del raw["cloud"]
    assert Plan.from_json(json.dumps(raw)).cloud == {}


def test_an_event_reads_as_a_sentence() -> None:
    """A shrunk plan is read by a person."""
    assert str(Event(1.5, Kind.KILL_DAEMON, "node-a", {"down_s": 2})) == "   1.50 node-a  kill-daemon down_s=2"


def test_shrinking_finds_the_two_events_that_matter() -> None:
    """ddmin leaves nothing that is not needed, when the question is answered the same every time."""
    found = shrink(range(100), fails=lambda part: {13, 77} <= set(part), has_time=lambda: True)
    assert found == [13, 77]


def test_shrinking_without_time_keeps_everything() -> None:
    """What was not tried is kept."""
    assert shrink([1, 2, 3], fails=lambda _: True, has_time=lambda: False) == [1, 2, 3]


def test_shrinking_keeps_only_what_was_seen_to_fail() -> None:
    """A run that fails once in a while: the result is always a subset that did fail when it was asked."""
    asked: list[list[int]] = []

    def fails(part: object) -> bool:
        failed = 5 in list(part) and len(asked) % 3 == 0  # type: ignore[call-overload]
        asked.append(list(part) if failed else [])  # type: ignore[call-overload]
        return failed

    found = shrink(list(range(20)), fails=fails, has_time=lambda: len(asked) < 50)
    assert found == list(range(20)) or found in asked


def test_the_variety_of_a_plan_counts_different_things_once() -> None:
    """What the seed of the two-minute test is chosen by."""
    twice = [Event(1.0, Kind.OTHER_HANDS, "node-a", {"what": "give"}), Event(2.0, Kind.OTHER_HANDS, "node-b", {"what": "give"})]
    plan = make_plan(1, minutes=1, failpoints=NAMES).with_events([*twice, Event(3.0, Kind.CLOUD_FAULT, "", {"name": "volumes"})])
    assert variety(plan) == {"other-handsgive", "cloud-faultvolumes"}


def test_moves_and_pools_change_nothing_for_the_others() -> None:
    """They have two nodes of their own; moves are the same with and without pools, and every way of moving is drawn."""
    plain = make_plan(7, minutes=30, failpoints=NAMES)
    moves = make_plan(7, minutes=30, failpoints=NAMES, moves=True)
    both = make_plan(7, minutes=30, failpoints=NAMES, moves=True, pools=True)
    for plan in (moves, both):
        others = [event for event in plan.events if event.node not in PAIR_NODES and event.kind is not Kind.MOVE_POD]
        assert others == list(plain.events)
    moved = [event for event in both.events if event.kind is Kind.MOVE_POD]
    assert moved == [event for event in moves.events if event.kind is Kind.MOVE_POD]
    assert {(str(event.arg("pod")).partition("-")[0], event.arg("how")) for event in moved} == {
        (namespace, how) for namespace, ways in MOVES.items() for how in ways
    }
    run = [event.arg("pod") for event in both.events if event.kind is Kind.RUN_POD and event.node in PAIR_NODES]
    assert {str(pod).partition("-")[0] for pod in run} == {*POOLS, OWN}
