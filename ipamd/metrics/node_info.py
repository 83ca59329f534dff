"""A metric whose labels are facts about the node (zone, instance type, release, mode), to join other metrics with."""

from __future__ import annotations

from prometheus_client.core import InfoMetricFamily

from ipamd.report.sources import Sources


def node_info(sources: Sources) -> InfoMetricFamily:
    """Make `ipamd_node_info`. There is always one sample, so that a join loses no node. A fact that is not known yet is empty."""
    identity = sources.identity()
    zone = instance_type = ""
    if identity is not None:
        zone, instance_type = str(identity.availability_zone), str(identity.instance_type)
    text = "Facts about the node, to join other metrics with; `zone` and `instance_type` are empty before metadata has answered"
    family = InfoMetricFamily("ipamd_node", text)
    facts = {
        "zone": zone,
        "instance_type": instance_type,
        "version": str(sources.version),
        "mode": _mode(sources),
    }
    family.add_metric((), facts)
    return family


def _mode(sources: Sources) -> str:
    """How the node gets addresses: single secondary addresses, /28 prefixes, or an IPv6 /80."""
    if sources.settings.now.network.family.is_sparse:
        return "ipv6-prefix"
    if sources.pool.settings.prefix_delegation:
        return "ipv4-prefix"
    return "ipv4-address"
