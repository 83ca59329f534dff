"""The fleet simulation in small: what its report looks like, that it repeats itself, and that its EC2 refuses as EC2 does."""

from __future__ import annotations

import json
from dataclasses import replace
from inspect import signature
from pathlib import Path
from typing import Any

import pytest

from bench.fleet.__main__ import write
from bench.fleet.buckets import Buckets, bound_s
from bench.fleet.ec2 import Ec2Model, Refused
from bench.fleet.loads import LOADS, is_met, run
from bench.fleet.measure import percentile
from bench.fleet.outside import VirtualHost
from bench.fleet.pools import with_pools
from bench.fleet.reference import KUBELET_RETRY_S, reference
from bench.fleet.run import Outcome, run_fleet
from bench.fleet.scenarios import MODES, SCENARIOS, Scenario, queue_waits_s, run_scenario
from bench.fleet.traces import NODE_TYPE, bootstrap, brown_out, cron_day, deploy, replacement
from bench.fleet.world import World
from ipamd.ports.kernel import HostNetwork

ROW = {"name", "nodes", "time_s", "bound_s", "ratio", "calls", "reference_calls", "held", "used", "met"}


def small(**changes: Any) -> Outcome:
    """A fleet of some nodes that start at once."""
    return run_fleet(bootstrap(6, seed=1), MODES["ip5-min10"], seed=1, **changes)


def test_the_same_seed_gives_the_same_report() -> None:
    """Every figure depends on the seed alone, not on the run."""
    scenario = Scenario("deploy", "ip2", 8)
    assert run_scenario(scenario) == run_scenario(scenario)
    assert small() == small()


def test_the_report_has_the_agreed_shape(tmp_path: Path) -> None:
    """One row per scenario with exactly these columns; table, curve and plot beside it."""
    rows = [run_scenario(scenario) for scenario in (Scenario("bootstrap", "default", 6), Scenario("day", "prefix", 1, hours=2))]
    write(rows, tmp_path / "fleet.json")
    told = json.loads((tmp_path / "fleet.json").read_text())
    assert [set(row) for row in told["scenarios"]] == [ROW, ROW]
    boot, day = told["scenarios"]
    assert boot["nodes"] == 6
    assert boot["time_s"] > 0
    assert boot["ratio"] == pytest.approx(boot["time_s"] / boot["bound_s"], rel=0.01)
    assert 0 < day["used"] <= day["held"]
    assert "CreateNetworkInterface" in boot["calls"]
    assert "| bootstrap default | 6 |" in (tmp_path / "fleet.md").read_text()
    assert (tmp_path / "fleet.svg").read_text().startswith("<svg")


def test_every_pod_gets_an_address_in_every_mode() -> None:
    """Ours and the reference, in each mode, over a day's first hours and a burst larger than one ENI."""
    for mode, env in MODES.items():
        for trace in (deploy(2, seed=2), cron_day(1, seed=2, hours=5)):
            for make in (None, reference):
                outcome = run_fleet(trace, env, seed=2, **({"make_node": make} if make else {}))
                assert outcome.is_done, (mode, trace.name, make)
                assert outcome.held >= outcome.used


def test_many_nodes_at_once_are_throttled_and_get_done() -> None:
    """More nodes than EC2's bucket of 50 attachments: some are throttled, all get their addresses, near the best that EC2 allows."""
    outcome = run_fleet(bootstrap(90, seed=3), MODES["default"], seed=3)
    assert outcome.is_done
    assert outcome.throttled_count > 0
    assert outcome.time_s > bound_s("AttachNetworkInterface", 90)


def test_a_brown_out_ends() -> None:
    """While EC2 refuses most calls the pods wait; afterwards all have addresses, and no ENI is left over."""
    row = run_scenario(Scenario("brown-out", "ip2", 4))
    assert row["time_s"] > 0
    assert row["details"]["throttled"] > 0


def test_traces_are_the_same_whatever_is_beside_them() -> None:
    """A node's pods depend on the seed and on its number; no node has ever more pods than it may have."""
    assert cron_day(3, seed=1).nodes == cron_day(5, seed=1).nodes[:3]
    assert cron_day(3, seed=1) != cron_day(3, seed=2)
    for trace in (bootstrap(3, seed=1), replacement(40, seed=1), deploy(3, seed=1), brown_out(3, seed=1), cron_day(20, seed=1)):
        for node in trace.nodes:
            changes = sorted([(pod.arrives_s, 1) for pod in node.pods] + [(pod.leaves_s, -1) for pod in node.pods])
            counts = [sum(change for _, change in changes[: end + 1]) for end in range(len(changes))]
            assert max(counts) <= NODE_TYPE.max_pods - 2
            assert list(node.pods) == sorted(node.pods)
            assert all(pod.arrives_s >= node.starts_s for pod in node.pods)


def test_buckets_are_those_of_ec2() -> None:
    """A full bucket is free, the rest comes at the refill; one action's bucket is no other's."""
    buckets = Buckets()
    taken = [buckets.take("AttachNetworkInterface", now_s=0.0) for _ in range(60)]
    assert taken == [True] * 50 + [False] * 10
    assert buckets.take("CreateNetworkInterface", now_s=0.0)
    assert [buckets.take("AttachNetworkInterface", now_s=1.0) for _ in range(6)] == [True] * 5 + [False]
    assert bound_s("AttachNetworkInterface", 150) == 20.0
    assert bound_s("CreateNetworkInterface", 80) == 0.0


def test_the_model_refuses_as_ec2_does() -> None:
    """A full ENI, a full instance, an attached ENI that is to be deleted, and one that does not exist."""
    world = World()
    model = Ec2Model(world, seed=1)
    primary = model.add_instance(0)
    codes: list[str] = []

    def refusal(api: str, params: dict[str, Any]) -> None:
        try:
            model.call(api, params, instance=0)
        except Refused as refused:
            codes.append(refused.code)

    def body() -> None:
        request = {"SubnetId": model.subnet(0).subnet_id, "Description": ""}
        made = [model.call("CreateNetworkInterface", {**request, "ClientToken": str(n)}, instance=0) for n in range(4)]
        ids = [one["NetworkInterface"]["NetworkInterfaceId"] for one in made]
        for device, eni_id in enumerate(ids, start=1):
            refusal("AttachNetworkInterface", {"NetworkInterfaceId": eni_id, "DeviceIndex": device})
        refusal("AssignPrivateIpAddresses", {"NetworkInterfaceId": primary.eni_id, "SecondaryPrivateIpAddressCount": 15})
        refusal("DeleteNetworkInterface", {"NetworkInterfaceId": ids[0]})
        refusal("DeleteNetworkInterface", {"NetworkInterfaceId": "eni-none"})

    world.spawn(0.0, body)
    world.run(until_s=60.0)
    assert codes == [
        "AttachmentLimitExceeded",
        "PrivateIpAddressLimitExceeded",
        "InvalidParameterValue",
        "InvalidNetworkInterfaceID.NotFound",
    ]


def test_every_scenario_is_asked_for() -> None:
    """150, 1,000 and 5,000 nodes in each disturbance, and a day in each mode."""
    for trace in ("bootstrap", "replacement", "deploy", "brown-out"):
        assert {one.node_count for one in SCENARIOS if one.trace == trace} == {150, 1000, 5000}
    assert {one.mode for one in SCENARIOS if one.is_day} == set(MODES)
    assert max(one.node_count for one in SCENARIOS if one.is_day) == 1000


def test_a_day_with_default_targets_makes_fewer_calls_than_the_reference() -> None:
    """And holds less than one ENI more (docs/performance.md), also with another number of nodes than the report's."""
    row = run_scenario(Scenario("day", "default", 8))
    assert row["met"]
    assert row["details"]["mutating_ratio"] < 0.5
    assert row["held"] < row["details"]["reference_held"] + 8 * NODE_TYPE.slots_per_eni


@pytest.mark.parametrize(
    ("name", "hours", "most"), [("constant", 1.5, 10), ("ENI's edge", 1.0, 6), ("hourly bursts of 40", 2.0, 30)]
)
def test_a_load_that_lasts_makes_no_more_calls_than_the_reference(name: str, hours: float, most: int) -> None:
    """A part of `python -m bench.fleet.loads`: no more calls and waits, and at most one ENI more held. A constant load flapped while a
    whole ENI in excess went after a second."""
    load = replace(next(one for one in LOADS if one.name == name), hours=hours)
    sums = {mode: run(load, mode, seeds=(1, 2)) for mode in ("default", "reference")}
    assert is_met(load, sums), sums
    assert sums["default"].calls <= most, "what is made is held"


def test_an_add_that_waits_counts_once_and_one_that_is_refused_each_time() -> None:
    """On a full node ours wait within their deadline; the reference refuses, and the kubelet asks again after ten seconds."""
    load = replace(next(one for one in LOADS if one.name == "constant, full node"), hours=0.5)
    ours, theirs = (run(load, mode, seeds=(1,)) for mode in ("default", "reference"))
    assert ours.unserved == ours.pods > 0
    assert theirs.unserved * KUBELET_RETRY_S == theirs.waited_s
    assert theirs.unserved > theirs.pods


@pytest.mark.heavy
def test_nodes_that_are_done_leave_the_calls_to_others() -> None:
    """250 nodes a minute, whose ADDs need five of six Attach calls: the slowest hundredth waits little longer than in a perfect queue.
    It was twice as long while a throttled node asked for its spare ENI again after a minute."""
    trace = replacement(750, seed=10, wave_count=3)
    outcome = run_fleet(trace, MODES["default"], seed=10)
    queue_s = queue_waits_s({"AttachNetworkInterface": 1}, [node.starts_s for node in trace.nodes])
    alone_s = 5.0
    assert outcome.is_done
    assert percentile(outcome.node_waits_s, 0.99) <= 1.2 * (percentile(queue_s, 0.99) + alone_s)


def test_pods_of_two_pools_get_addresses_too() -> None:
    """Every pod is served, beside the node's own pool, on ENIs of the pools' subnets; each node makes at least one for each pool."""
    plain = small()
    outcome = small(make_node=with_pools)
    assert outcome.is_done
    assert outcome.calls["CreateNetworkInterface"] >= plain.calls.get("CreateNetworkInterface", 0)
    assert outcome.calls["CreateNetworkInterface"] >= 2 * outcome.node_count


def test_the_simulated_host_takes_what_the_port_passes() -> None:
    """A parameter that is renamed in the port alone makes every release of an ENI fail, which a fleet only repeats."""
    wanted = signature(HostNetwork.teardown_eni).parameters.keys()
    assert signature(VirtualHost.teardown_eni).parameters.keys() == wanted
