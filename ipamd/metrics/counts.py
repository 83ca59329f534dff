"""`Counts`, the counters of services since the start, and `families`, which turns rows into Prometheus metric families."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, UnknownMetricFamily

from ipamd.eni.external_changes import MetadataDifference
from ipamd.eni.resync import ExternalChange, ResyncReason
from ipamd.model.blocked import Blocked
from ipamd.model.record import dataclass
from ipamd.model.repairs import RepairKind
from ipamd.ports.cloud import Ec2

K = TypeVar("K", bound=str)


@dataclass(frozen=True, slots=True)
class Counts:
    """The counters of services since the start. The mappings change while the daemon runs; a missing key counts as 0. The callables
    read only memory."""

    ec2: Ec2
    replayed: Callable[[], int]
    """Repeated ADDs that got the stored answer."""
    pool_empty: Mapping[Blocked, int]
    """ADDs refused because no address was free, by the cause that kept the pool from growing."""
    looks: Mapping[ResyncReason | ExternalChange, int]
    """Unscheduled comparisons with EC2, and the external changes that they showed."""
    repairs: Callable[[], Mapping[RepairKind, int]]
    """Repairs of the host."""
    released: Mapping[str, int]
    """Resources released to EC2, by kind."""
    metadata: Callable[[], MetadataDifference]
    """The present differences between instance metadata and the recorded ENIs."""
    metadata_requests: Callable[[], int]
    """Requests to instance metadata, unanswered ones included."""


Values = Mapping[Any, float] | float | None
"""The values of a metric. Without labels it is one number, or None while the number is not known. With one label it is a mapping from
label values to numbers, with several labels a mapping from tuples of label values to numbers."""

MetricRow = tuple[str, str, *tuple[str, ...], Values]
"""Name, help text, names of the labels, values."""


def families(
    kind: Callable[..., GaugeMetricFamily | CounterMetricFamily | UnknownMetricFamily], *rows: MetricRow
) -> Iterator[Metric]:
    """Make a metric family of class `kind` from each row (`MetricRow`). A family whose value is None has no sample."""
    for name, text, *labels, values in rows:
        family = kind(name, text, labels=labels)
        if isinstance(values, Mapping):
            for label_values, value in values.items():
                if not isinstance(label_values, tuple):
                    label_values = (str(label_values),)
                family.add_metric(label_values, value)
        elif values is not None:
            family.add_metric((), values)
        yield family


def all_of(keys: Iterable[K], values: Mapping[K, int]) -> Mapping[Any, float]:
    """Give every key of a closed list a value, so that its sample exists from the start and PromQL's `rate` sees the first event."""
    return {key: values.get(key, 0) for key in keys}
