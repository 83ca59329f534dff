"""Metrics of branch ENIs (the uplinks of sandboxes) and of extra legs, made at each scrape from memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ipamd.metrics.counts import MetricRow
from ipamd.model.address import AddressState
from ipamd.report.sources import Sources

LOCAL_RANGE_STATES = ("in use", "cooling", "free")


def uplink_rows(sources: Sources) -> Iterator[MetricRow]:
    """Yield the metrics of pods with security groups of their own. They have no samples without ENABLE_POD_ENI."""
    branches = sources.uplinked()
    mismatched_count = sum(bool(attachment.objection) for attachment in branches)
    unconfirmed_count = sum(attachment.is_unconfirmed for attachment in branches)
    rows = (
        ("ipamd_branch_sandboxes", "Sandboxes with a branch ENI; none without ENABLE_POD_ENI", len(branches)),
        (
            "ipamd_mismatched_branch_enis",
            "Sandboxes whose branch ENI is different in EC2's answer; in strict mode they are cut off",
            mismatched_count,
        ),
        ("ipamd_unconfirmed_branch_enis", "Sandboxes without network until EC2 confirms their branch ENI", unconfirmed_count),
        ("ipamd_trunk_attached", "1 while the trunk ENI is attached, by EC2's last answer", int(sources.trunk() is not None)),
        ("ipamd_waiting_branch_adds", "ADDs that wait for the control plane to name a branch ENI", sources.waiting_for_uplink()),
    )
    is_on = sources.settings.now.network.pod_eni
    for name, text, count in rows:
        yield name, text, count if is_on else None


def extra_leg_rows(sources: Sources) -> Iterator[MetricRow]:
    """Yield the metric of the addresses that extra legs have, for egress in the IP family that is not the pool's."""
    text = "Addresses for egress of the other family on this node, by state; no sample where sandboxes have no such egress"
    yield "ipamd_egress_addresses", text, "state", _local_range_states(sources)


def _local_range_states(sources: Sources) -> Mapping[Any, float]:
    datastore, family = sources.datastore, sources.settings.now.network.extra_family
    if not family:
        return {}
    held = [row for row in datastore.addresses() if row.other_address]
    cooling_count = sum(row.state is AddressState.COOLING for row in held)
    free_count = len(family.local_range.addresses()) - len(held)
    return dict(zip(LOCAL_RANGE_STATES, (len(held) - cooling_count, cooling_count, free_count), strict=True))
