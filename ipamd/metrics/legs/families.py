"""Metrics of uplinks and of extra legs, made at each scrape from memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ipamd.metrics.counts import MetricRow
from ipamd.model.address import AddressState
from ipamd.report.sources import Sources

LOCAL_RANGE_STATES = ("in use", "cooling", "free")


def uplink_rows(sources: Sources) -> Iterator[MetricRow]:
    """Yield the metrics of pods with security groups of their own. No sample where pods get no security groups of their own."""
    is_on, branches = sources.settings.now.network.pod_eni, sources.uplinked()
    yield (
        "ipamd_branch_sandboxes",
        "Sandboxes with a branch ENI; none without ENABLE_POD_ENI",
        len(branches) if is_on else None,
    )
    text = "Sandboxes of whose branch ENI EC2 says something else; in strict mode they are cut off"
    yield "ipamd_mismatched_branch_enis", text, sum(bool(attachment.objection) for attachment in branches) if is_on else None
    text = "Sandboxes without network until EC2 confirms their branch ENI"
    yield "ipamd_unconfirmed_branch_enis", text, sum(attachment.is_unconfirmed for attachment in branches) if is_on else None
    text = "1 while the trunk ENI is attached, as far as EC2 has shown"
    yield "ipamd_trunk_attached", text, int(sources.trunk() is not None) if is_on else None
    text = "ADDs that wait for the control plane to name a branch ENI"
    yield "ipamd_waiting_branch_adds", text, sources.waiting_for_uplink() if is_on else None


def extra_leg_rows(sources: Sources) -> Iterator[MetricRow]:
    """Yield the metrics of the addresses of extra legs."""
    text = "Addresses for egress of the other family on this node, by state; none where sandboxes have no egress"
    yield "ipamd_egress_addresses", text, "state", _local_range_states(sources)


def _local_range_states(sources: Sources) -> Mapping[Any, float]:
    datastore, family = sources.datastore, sources.settings.now.network.extra_family
    if not family:
        return {}
    held = [row for row in datastore.addresses() if row.other_address]
    cooling_count = sum(row.state is AddressState.COOLING for row in held)
    free_count = len(family.local_range.addresses()) - len(held)
    return dict(zip(LOCAL_RANGE_STATES, (len(held) - cooling_count, cooling_count, free_count), strict=True))
