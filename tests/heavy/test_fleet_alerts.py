"""Alerts and records on fleets of 3 and of 100 made nodes: one alert for each zone and cause, whatever the number of nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from ipamd.core.deadline import SystemClock
from ipamd.inventory.serve import InventoryJob
from tests.heavy.tools import needs
from tests.recordings.fleet import INTERVAL_S, FleetNode, alert_labels, fleet_series
from tests.recordings.series import SERIES, read
from tests.recordings.trial import FIRING, answers_to, described, run_series
from tests.unit.inventory.reports import a_memory

pytestmark = [needs("promtool")]

HOURS_S = 2 * 3600
ZONES = ("us-west-2a", "us-west-2b", "us-west-2c")
LABELS = "alertname, zone, cause, api, subject, node"


def _node(name: str, zone: str) -> FleetNode:
    return FleetNode(read(SERIES / f"{name}.json.gz"), zone)


def _in_zones(name: str, count: int) -> list[FleetNode]:
    """So many nodes with the same trouble, in turn in each zone."""
    return [_node(name, ZONES[number % len(ZONES)]) for number in range(count)]


def _fired(nodes: Sequence[FleetNode], folder: Path) -> set[tuple[tuple[str, str], ...]]:
    """The label sets of alerts that fired at some time, without those that all share."""
    question = f"group by ({LABELS}) (count_over_time({FIRING}[{HOURS_S}s]))"
    series = fleet_series(nodes, until_s=HOURS_S)
    answers = answers_to((question,), series, folder, interval_s=INTERVAL_S, count=HOURS_S // INTERVAL_S)
    return {tuple(sorted(labels.items())) for answer in answers for labels in alert_labels(answer)}


@pytest.mark.parametrize("name", ["subnet-full", "throttled-for-long", "denied-groups", "quota", "settings-wrong"])
def test_a_shared_cause_is_one_alert_for_each_zone(name: str, tmp_path: Path) -> None:
    """A hundred nodes raise exactly what three raise, and no alert names one of them in its labels."""
    alerts_of = {}
    for count in (3, 100):
        folder = tmp_path / str(count)
        folder.mkdir()
        alerts_of[count] = _fired(_in_zones(name, count), folder)
    assert alerts_of[3] == alerts_of[100]
    assert alerts_of[100]
    assert {dict(labels).get("zone") for labels in alerts_of[100]} == set(ZONES)
    assert not [labels for labels in alerts_of[100] if "node" in dict(labels)]


def test_a_hundred_quiet_nodes_raise_nothing(tmp_path: Path) -> None:
    """Idle and packed nodes, and nodes under load."""
    quiet = ("idle", "packed", "churn", "jobs")
    nodes = [_node(quiet[number % len(quiet)], ZONES[number % len(ZONES)]) for number in range(100)]
    assert _fired(nodes, tmp_path) == set()


def test_one_zone_without_addresses_is_named(tmp_path: Path) -> None:
    """The other two zones raise nothing; what one node alone has keeps that node's labels."""
    nodes = [_node("idle", zone) for zone in ZONES] + [_node("subnet-full", ZONES[1]), _node("runtime-gone", ZONES[2])]
    fired = [dict(labels) for labels in _fired(nodes, tmp_path)]
    assert {labels.get("zone") for labels in fired if labels["alertname"] == "VpcIpamdSubnetsFull"} == {ZONES[1]}
    assert {labels.get("node") for labels in fired if labels["alertname"] == "VpcIpamdRuntimeUnreachable"} == {"node-4"}


def test_the_description_names_nodes(tmp_path: Path) -> None:
    """By the alert's template: the nodes of the zone that may use no other subnet, and none of another zone."""
    nodes = [
        _node("idle", ZONES[0]),
        _node("subnet-full", ZONES[0]),
        _node("subnet-full", ZONES[0]),
        _node("subnet-full", ZONES[1]),
    ]
    series = fleet_series(nodes, until_s=HOURS_S)
    alerts = described("VpcIpamdSubnetsFull", series, tmp_path, interval_s=INTERVAL_S, count=HOURS_S // INTERVAL_S)
    (description,) = [text for text in alerts if ZONES[0] in text.partition("Annotations:")[0]]
    assert "node-1" in description
    assert "node-2" in description
    assert "node-3" not in description


def _subnet(node: str, *, free: str, age: str, subnet: str = "subnet-1") -> Mapping[str, str]:
    labels = f'subnet="{subnet}",zone="{ZONES[0]}",node="{node}",instance="{node}"'
    return {
        f"ipamd_subnet_free_addresses{{{labels}}}": free,
        f"ipamd_subnet_answer_age_seconds{{{labels}}}": age,
    }


HOURS_12 = 12 * 60


def test_the_youngest_answer_of_any_node_counts(tmp_path: Path) -> None:
    """A node that has been idle for hours does not hide that the subnet is nearly full."""
    series = _subnet("idle", free=f"900x{HOURS_12}", age=f"0+60x{HOURS_12}") | _subnet(
        "growing", free=f"40x{HOURS_12}", age=f"5x{HOURS_12}"
    )
    question = f'subnet:ipamd_subnet_free_addresses:youngest{{zone="{ZONES[0]}"}} == 40'
    (answer,) = answers_to((question,), series, tmp_path, interval_s=60, count=HOURS_12)
    assert [labels["subnet"] for labels in alert_labels(answer)] == ["subnet-1"]


@pytest.mark.parametrize(
    ("free", "does_run_out"),
    [(f"1200-1x{HOURS_12}", True), (f"1200+0x{HOURS_12}", False), (f"300+1x{HOURS_12}", False), ("4000-1x720", False)],
    ids=["falling", "steady", "rising", "falling, with room for days"],
)
def test_exhaustion_is_forecast(free: str, does_run_out: bool, tmp_path: Path) -> None:
    """A subnet that loses sixty addresses in an hour has none within a day; one that is steady does not alert."""
    series = _subnet("node-a", free=free, age=f"5x{HOURS_12}")
    assert ("VpcIpamdSubnetRunsOut" in run_series(series, tmp_path, count=HOURS_12).alerts) is does_run_out


def test_a_fragmented_subnet_alerts_once(tmp_path: Path) -> None:
    """Free addresses, no whole /28, whichever node was refused; a subnet with whole /28s raises nothing."""
    series = {
        f'ipamd_subnet_fragmented_addresses{{subnet="subnet-{subnet}",zone="{ZONES[0]}",node="node-{number}"}}': f"{count}x120"
        for subnet, count in (("a", 300), ("b", 0))
        for number in range(3)
    }
    question = f'{FIRING[:-1]},alertname="VpcIpamdSubnetFragmented"}}'
    (answer,) = answers_to((question,), series, tmp_path, interval_s=60, count=120)
    assert [labels["subnet"] for labels in alert_labels(answer)] == ["subnet-a"]


SUBNET = f'subnet="subnet-1",zone="{ZONES[0]}"'


def _inventory(*, exhaustion: str = "", free: str = "", problem: str = "", count: str = "") -> Mapping[str, str]:
    """Series of the inventory about one subnet."""
    series = {
        f'ipamd_inventory_subnet_exhaustion_seconds{{{SUBNET},resource="addresses"}}': exhaustion,
        f"ipamd_inventory_subnet_free_addresses{{{SUBNET}}}": free,
        f'ipamd_inventory_findings{{{SUBNET},problem="{problem}"}}': count,
    }
    return {name: values for name, values in series.items() if values}


@pytest.mark.parametrize(
    ("exhaustion", "free", "does_run_out"),
    [
        ("50000x720", "900x720", True),
        ("200000x720", "900x720", False),
        ("1e300x720", "900x720", False),
        ("0x720", "0x720", False),
    ],
    ids=["within a day", "in two days", "steady", "exhausted already"],
)
def test_the_inventory_forecasts(exhaustion: str, free: str, does_run_out: bool, tmp_path: Path) -> None:
    """Where it has a forecast, the nodes' answers raise nothing: they fall here, and it counts what others gave back."""
    falling = _subnet("node-a", free=f"1200-1x{HOURS_12}", age=f"5x{HOURS_12}")
    series = {**falling, **_inventory(exhaustion=exhaustion, free=free)}
    assert ("VpcIpamdSubnetRunsOut" in run_series(series, tmp_path, count=HOURS_12).alerts) is does_run_out


@pytest.mark.parametrize(
    ("problem", "count", "alerts"),
    [
        ("address-on-two-enis", "1x720", {"VpcIpamdAddressClaimedTwice"}),
        ("eni-of-two-nodes", "2x720", {"VpcIpamdAddressClaimedTwice"}),
        ("leaked-eni", "5x720", {"VpcIpamdEnisLeaked"}),
        ("leaked-eni", "5x120 0x600", set()),
        ("hidden-eni", "3x720", set()),
        ("address-on-two-enis", "0x720", set()),
    ],
)
def test_problems_of_the_inventory_alert(problem: str, count: str, alerts: set[str], tmp_path: Path) -> None:
    """A double claim soon, leaks if the sweeper does not take them; what a service hides is no trouble."""
    fired = run_series(_inventory(problem=problem, count=count), tmp_path, count=HOURS_12).alerts
    assert {alert for alert in fired if alert in ("VpcIpamdAddressClaimedTwice", "VpcIpamdEnisLeaked")} == alerts


@pytest.mark.parametrize(
    ("series", "is_stale"),
    [
        (
            {"ipamd_inventory_last_success_timestamp_seconds": "0x720", "ipamd_inventory_last_run_timestamp_seconds": "0+60x720"},
            True,
        ),
        (
            {
                "ipamd_inventory_last_success_timestamp_seconds": "0+60x720",
                "ipamd_inventory_last_run_timestamp_seconds": "0+60x720",
            },
            False,
        ),
        ({"ipamd_inventory_last_run_timestamp_seconds": "0+60x720"}, True),
        ({}, False),
    ],
    ids=["refused for hours", "well", "never well", "not deployed"],
)
def test_a_stale_inventory_alerts(series: Mapping[str, str], is_stale: bool, tmp_path: Path) -> None:
    """Promtool's time begins at 0."""
    fired = run_series({**_inventory(free="900x720"), **series}, tmp_path, count=HOURS_12).alerts
    assert ("VpcIpamdInventoryStale" in fired) is is_stale


def test_promtool_finds_no_wrong_name_in_the_inventorys_scrape() -> None:
    """Names, types and HELP of a report with every figure."""
    job = InventoryJob(dict, a_memory(), call_count=int, save=dict, clock=SystemClock())  # type: ignore[arg-type]  # it does not run
    _, page = job.page("/metrics")
    assert b"\nipamd_inventory_subnet_enis{" in page
    done = subprocess.run(["promtool", "check", "metrics"], input=page, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
