"""Compute how our nftables tables translate and mark a new connection, from the rules of which their text is made. Pure."""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv4Address, IPv4Network

from ipamd.kernel import translation_rules as rules
from ipamd.kernel.legs import local_range_ruleset
from ipamd.kernel.ruleset import (
    NO_FORMER_SETTINGS,
    Choices,
    FormerSettings,
    ReachedNetworks,
    mark_rules,
    translates,
    translation_rules,
)
from ipamd.kernel.translation_rules import TranslationRule
from ipamd.model import family
from ipamd.model.packet_path import NewConnection, Translation
from ipamd.settings import NetworkConfig


def translation_of(
    packet: NewConnection,
    config: NetworkConfig,
    *,
    vpc_cidrs: Collection[IPv4Network],
    primary_address: IPv4Address,
    former: FormerSettings = NO_FORMER_SETTINGS,
    extra_source: family.IpAddress | None = None,
    choices: Choices | None = None,
) -> Translation:
    """Apply the rules of `ruleset.replace_table` and `local_range_ruleset.range_table` to the first packet of a connection.

    Args:
        vpc_cidrs, primary_address, former, choices: as in `replace_table`.
        extra_source: the node's address to which packets of extra legs are translated, if the packet has their family; otherwise None.
    Returns: the mark and the source that the packet gets, and whether it is rejected.
    Concurrency: pure.
    """
    packet_family = family.family_of(packet.destination)
    is_rejected = extra_source is not None and _decides(local_range_ruleset.refusals(packet_family), packet)
    if extra_source is not None and _decides(local_range_ruleset.source_rules(config, packet_family, extra_source), packet):
        return Translation(source=extra_source, is_rejected=is_rejected)
    if packet_family is not family.IPV4 or config.family is not family.IPV4 or not (translates(config) or choices is not None):
        return Translation(is_rejected=is_rejected)
    networks = ReachedNetworks.of(vpc_cidrs, config)
    is_translated = _decides(translation_rules(config, networks, primary_address, choices), packet)
    return Translation(
        mark=config.connmark if _decides(mark_rules(config, networks, former, choices), packet) else 0,
        source=primary_address if is_translated else None,
        is_rejected=is_rejected,
    )


def _decides(chain_rules: Collection[TranslationRule], packet: NewConnection) -> bool:
    return rules.first_selecting(chain_rules, packet) is not None
