"""Fleets of made nodes: one recording for each node, with labels of its own, in a zone of its own choice."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from tests.recordings.series import Recording, extended
from tests.recordings.trial import TARGET, ZONE, input_series

INTERVAL_S = 120
"""Between two scrapes of a fleet: promtool reads no more than 10,000 samples for one expression."""

COUNTER = re.compile(r"^\w+_total\b")


@dataclass(frozen=True)
class FleetNode:
    """One node: what was recorded, and the zone that it is said to be in."""

    recording: Recording
    zone: str = ZONE


def fleet_series(nodes: Sequence[FleetNode], *, until_s: int) -> Mapping[str, str]:
    """Return the series of all nodes in promtool's notation. Node 7 is `node-7`, at its own instance."""
    series = {}
    for number, node in enumerate(nodes):
        target = TARGET | {"instance": f"10.0.{number // 200}.{10 + number % 200}:61678", "node": f"node-{number}"}
        recording = thinned(extended(node.recording, until_s=until_s))
        for row in input_series(recording, labels_of_target=target):
            if not _is_silent_counter(row["series"], row["values"]):
                series[_in_zone(row["series"], node.zone)] = row["values"]
    return series


def thinned(recording: Recording) -> Recording:
    """Keep the scrapes that a Prometheus with the fleet's interval makes."""
    step = INTERVAL_S // recording.interval_s
    series = {name: values[::step] for name, values in recording.series.items()}
    changes = {"interval_s": INTERVAL_S, "up": recording.up[::step], "pods": recording.pods[::step], "series": series}
    return Recording(**{**vars(recording), **changes})


def alert_labels(answer: str) -> Iterator[Mapping[str, str]]:
    """Read the label sets of what promtool got."""
    for labels in re.findall(r"\{([^{}]*)\}", answer.partition("got:")[2]):
        yield dict(re.findall(r'(\w+)="([^"]*)"', labels))


def _is_silent_counter(name: str, values: str) -> bool:
    """Whether a counter is 0 all the time; most of those by API, outcome and kind are."""
    return bool(COUNTER.match(name) and re.fullmatch(r"(0|0[+-]0x\d+|_x\d+|stale|\s)*", values))


def _in_zone(name: str, zone: str) -> str:
    """Move a series to a zone; each zone has a subnet of its own."""
    name = re.sub(r'zone="[^"]*"', f'zone="{zone}"', name)
    return re.sub(r'subnet="[^"]*"', f'subnet="subnet-{zone}"', name)
