"""Metrics by subnet and zone: the capacity of each subnet in EC2's last answer, and how many of its addresses this node has.

A scrape makes no EC2 call (I13), so the figures of an idle node become old. One of the metrics is the age of the answer, with which
`manifests/monitoring/rules.yaml` chooses the newest answer of all nodes for each subnet. The number of label values is bounded by the
number of subnets that this node may use.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence

from ipamd.metrics.counts import MetricRow
from ipamd.model.eni import ADDRESSES_PER_PREFIX
from ipamd.model.pool_counts import EniStock
from ipamd.model.subnets import SubnetView
from ipamd.report.sources import Sources

BySubnet = Mapping[tuple[str, str], float]
"""Subnet and zone -> figure."""

AddressCounts = Mapping[tuple[str, str, str], float]
"""Subnet, zone and state of the addresses -> their number."""


def subnet_rows(sources: Sources) -> Iterator[MetricRow]:
    """Yield the metrics by subnet. Figures of EC2 have no sample before EC2's first answer, and no sample with IPv6."""
    yield from _capacity_rows(sources)
    identity, zone = sources.identity(), ""
    if identity is not None:
        zone = identity.availability_zone
    text = "Addresses on this node's ENIs, by the ENI's subnet and by whether sandboxes have them; none with IPv6"
    address_counts: AddressCounts = {}
    if not _is_sparse(sources):
        address_counts = _address_counts(sources.datastore.stock().enis, zone=zone)
    yield "ipamd_subnet_held_addresses", text, "subnet", "zone", "state", address_counts


def _is_sparse(sources: Sources) -> bool:
    """Whether the pool is a /80 of IPv6, which takes nothing from the free addresses that EC2 counts."""
    return bool(sources.settings.now.network.family.is_sparse)


def _capacity_rows(sources: Sources) -> Iterator[MetricRow]:
    """Yield the metrics with figures of EC2's last answer."""
    subnets = sources.subnets()
    text = "Subnets of the node's zone in EC2's last answer, by whether a new ENI may be made there now; no sample before it"
    yield "ipamd_subnets", text, "state", _counts_by_usability(subnets)
    counted: list[SubnetView] = []
    if not _is_sparse(sources):
        counted = [subnet for subnet in subnets if subnet.is_candidate and subnet.free_count >= 0]
    free = {_key(subnet): subnet.free_count for subnet in counted}
    used = {_key(subnet): subnet.used_count for subnet in counted}
    ages = {_key(subnet): subnet.answer_age_s for subnet in counted}
    text = "Free addresses of a subnet that a new ENI may go to, by EC2's last answer less what this node took since"
    yield "ipamd_subnet_free_addresses", text, "subnet", "zone", free
    text = "Addresses in use, by anybody, in a subnet that a new ENI may go to, by EC2's last answer; without the five of AWS"
    yield "ipamd_subnet_used_addresses", text, "subnet", "zone", used
    text = "Free addresses outside whole free /28s; 0 unless EC2 refused a /28 to this node or under 16 are free; only in prefix mode"
    fragmented: BySubnet = {}
    if sources.pool.settings.prefix_delegation:
        fragmented = _fragmented(counted)
    yield "ipamd_subnet_fragmented_addresses", text, "subnet", "zone", fragmented
    yield "ipamd_subnet_answer_age_seconds", "Age of EC2's answer about a subnet", "subnet", "zone", ages


def _counts_by_usability(subnets: Sequence[SubnetView]) -> Mapping[str, float]:
    """Count the usable and the unusable subnets. Returns: {} if there are no subnets, because EC2 has not answered yet."""
    if not subnets:
        return {}
    usable_count = sum(not subnet.why_not for subnet in subnets)
    return {"usable": usable_count, "unusable": len(subnets) - usable_count}


def _fragmented(subnets: Iterable[SubnetView]) -> BySubnet:
    """Return for each subnet how many free addresses are surely in no whole free /28.

    If EC2 refused a /28, or if fewer than 16 addresses are free, these are all free addresses of the subnet. Otherwise the number is
    not known, and the figure is 0.
    """
    fragmented = {}
    for subnet in subnets:
        fragmented[_key(subnet)] = 0
        if subnet.has_no_prefix or subnet.free_count < ADDRESSES_PER_PREFIX:
            fragmented[_key(subnet)] = subnet.free_count
    return fragmented


def _address_counts(enis: Iterable[EniStock], *, zone: str) -> AddressCounts:
    address_counts: Counter[tuple[str, str, str]] = Counter()
    for stock in enis:
        if not stock.eni.managed or stock.has_left:
            continue
        counts, subnet_id = stock.counts, str(stock.eni.subnet_id)
        address_counts[subnet_id, zone, "assigned"] += counts.assigned
        address_counts[subnet_id, zone, "free"] += counts.free
        address_counts[subnet_id, zone, "other"] += counts.total - counts.lost - counts.assigned - counts.free
    return address_counts


def _key(subnet: SubnetView) -> tuple[str, str]:
    return subnet.subnet_id, subnet.availability_zone
