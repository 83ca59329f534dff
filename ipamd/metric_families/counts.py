"""What services count since the start, as one value for the families; and how a family is made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from ipamd.eni.metadata import MetadataDifference
from ipamd.eni.resync import Found, LookReason
from ipamd.model.growth import Blocked
from ipamd.model.kernel import RepairKind
from ipamd.ports import Ec2

K = TypeVar("K", bound=str)


@dataclass(frozen=True, slots=True)
class Counts:
    """Each callable returns at once, from memory; a key that a mapping lacks counts as 0.

    `replayed`: repeated ADDs that got the stored answer. `pool_empty`: ADDs refused for want of an address. `looks`: at EC2, out of
    turn. `found`: what those showed of other hands. `repairs`: of the host. `released`: to EC2, by kind. `metadata`: how it differs
    from the record now.
    """

    ec2: Ec2
    replayed: Callable[[], int]
    pool_empty: Callable[[], Mapping[Blocked, int]]
    looks: Callable[[], Mapping[LookReason, int]]
    found: Callable[[], Mapping[Found, int]]
    repairs: Callable[[], Mapping[RepairKind, int]]
    released: Callable[[], Mapping[str, int]]
    metadata: Callable[[], MetadataDifference]
    metadata_requests: Callable[[], int]


def gauge(name: str, text: str, value: float | None) -> GaugeMetricFamily:
    """One gauge without labels; without a sample while its value is not known."""
    family = GaugeMetricFamily(name, text)
    if value is not None:
        family.add_metric((), value)
    return family


def gauges(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    """One gauge with one label."""
    family = GaugeMetricFamily(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((str(key),), value)
    return family


def counters(name: str, text: str, label: str, keys: Iterable[K], values: Mapping[K, int]) -> CounterMetricFamily:
    """One counter with one label; every key of a closed list has a sample from the start, so that a rate sees its first event."""
    family = CounterMetricFamily(name, text, labels=(label,))
    for key in keys:
        family.add_metric((str(key),), values.get(key, 0))
    return family
