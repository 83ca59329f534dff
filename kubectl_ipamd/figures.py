"""Read the figures of one node (addresses, subnets, conditions, releases) from the page of metrics of its daemon."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kubectl_ipamd.exposition import Samples, parse

GROWING = "growing"
"""The label `cause` of `ipamd_pool_blocked` while nothing blocks the pool. Source: docs/metrics.md."""

NAMES = frozenset(
    {
        "ipamd_ready",
        "ipamd_assignable_addresses",
        "ipamd_addresses",
        "ipamd_cut_off_sandboxes",
        "ipamd_pool_blocked",
        "ipamd_pool_frozen",
        "ipamd_conditions",
        "ipamd_waiting_adds",
        "ipamd_settings_awaiting_restart",
        "ipamd_settings_valid",
        "ipamd_node_info",
        "ipamd_build_info",
        "ipamd_subnet_free_addresses",
        "ipamd_subnet_used_addresses",
        "ipamd_subnet_fragmented_addresses",
        "ipamd_subnet_answer_age_seconds",
        "ipamd_subnet_held_addresses",
        "awscni_ip_max",
        "awscni_total_ip_addresses",
        "awscni_assigned_ip_addresses",
    }
)
"""The metrics that are read. A test checks that the daemon exposes each of them."""


@dataclass(frozen=True)
class SubnetFigures:
    """The figures of one subnet from the metrics of one node. Numbers are addresses; None: the node does not know the number.

    Args:
        age_s: seconds since EC2 last answered this node about the subnet.
        held: addresses of the subnet on the node's own ENIs, by state: assigned, free, other.
    """

    free: int | None
    used: int | None
    fragmented: int | None
    age_s: float | None
    held: Mapping[str, int]


@dataclass(frozen=True)
class NodeFigures:
    """The figures of one node. Numbers are addresses, unless their name says otherwise; None: the daemon does not know them yet.

    The pool is the daemon's stock of addresses for pods. A frozen pool makes no ENI and releases nothing.

    Args:
        blocked: why the pool cannot grow; "" if nothing blocks it.
        frozen: the reasons why the pool is frozen.
        conditions: subjects of the conditions, which say what is not as it should be.
        subnets: figures by (subnet, zone).
    """

    is_ready: bool
    assignable: int | None
    assigned: int | None
    total: int | None
    most: int | None
    lost: int
    cut_off_sandboxes: int
    waiting_adds: int
    blocked: str
    frozen: tuple[str, ...]
    conditions: tuple[str, ...]
    are_settings_valid: bool
    settings_awaiting_restart: int
    version: str
    mode: str
    zone: str
    instance_type: str
    subnets: Mapping[tuple[str, str], SubnetFigures]


def read_figures(text: str) -> NodeFigures:
    """Read a page of metrics. Raises: ValueError if the page is not from vpc-ipamd."""
    samples = parse(text, NAMES)
    ready = samples.value("ipamd_ready")
    if ready is None:
        raise ValueError("the page has no metric ipamd_ready: another program has this port")
    blocked = [cause for cause in samples.labels_of("ipamd_pool_blocked", "cause") if cause != GROWING]
    return NodeFigures(
        is_ready=ready == 1,
        assignable=_count(samples, "ipamd_assignable_addresses"),
        assigned=_count(samples, "awscni_assigned_ip_addresses"),
        total=_count(samples, "awscni_total_ip_addresses"),
        most=_count(samples, "awscni_ip_max"),
        lost=_lost(samples),
        cut_off_sandboxes=_count(samples, "ipamd_cut_off_sandboxes") or 0,
        waiting_adds=_count(samples, "ipamd_waiting_adds") or 0,
        blocked="".join(blocked[:1]),
        frozen=tuple(samples.labels_of("ipamd_pool_frozen", "cause")),
        conditions=tuple(samples.labels_of("ipamd_conditions", "subject")),
        are_settings_valid=samples.value("ipamd_settings_valid") != 0,
        settings_awaiting_restart=_count(samples, "ipamd_settings_awaiting_restart") or 0,
        version=samples.label("ipamd_node_info", "version") or samples.label("ipamd_build_info", "version"),
        mode=samples.label("ipamd_node_info", "mode"),
        zone=samples.label("ipamd_node_info", "zone"),
        instance_type=samples.label("ipamd_node_info", "instance_type"),
        subnets=_subnets(samples),
    )


def _count(samples: Samples, name: str) -> int | None:
    value = samples.value(name)
    if value is None:
        return None
    return _whole(value)


def _whole(value: float) -> int:
    """Return a figure as a whole number; 0 for a value that can be no number of addresses (NaN, infinity)."""
    if value - value != 0:
        return 0
    return int(value)


def _lost(samples: Samples) -> int:
    return sum(_whole(value) for labels, value in samples.of("ipamd_addresses") if labels.get("state") == "lost")


def _subnets(samples: Samples) -> dict[tuple[str, str], SubnetFigures]:
    free = _by_subnet(samples, "ipamd_subnet_free_addresses")
    used = _by_subnet(samples, "ipamd_subnet_used_addresses")
    fragmented = _by_subnet(samples, "ipamd_subnet_fragmented_addresses")
    ages = _by_subnet(samples, "ipamd_subnet_answer_age_seconds")
    held = _held(samples)
    subnets = {}
    for key in {**free, **used, **held}:
        subnets[key] = SubnetFigures(
            free=_known(free.get(key)),
            used=_known(used.get(key)),
            fragmented=_known(fragmented.get(key)),
            age_s=ages.get(key),
            held=held.get(key, {}),
        )
    return subnets


def _by_subnet(samples: Samples, name: str) -> dict[tuple[str, str], float]:
    return {(labels.get("subnet", ""), labels.get("zone", "")): value for labels, value in samples.of(name)}


def _held(samples: Samples) -> dict[tuple[str, str], dict[str, int]]:
    held: dict[tuple[str, str], dict[str, int]] = {}
    for labels, value in samples.of("ipamd_subnet_held_addresses"):
        key = labels.get("subnet", ""), labels.get("zone", "")
        held.setdefault(key, {})[labels.get("state", "")] = _whole(value)
    return held


def _known(value: float | None) -> int | None:
    if value is None:
        return None
    return _whole(value)
