"""Make the text of the nftables table for the local range, from which extra legs have their addresses. Pure.

The range is the same on every node, so its addresses are valid only on the node. The table translates them to the node's own address,
with which extra legs reach other hosts.
"""

from __future__ import annotations

from ipamd.kernel import translation_rules as rules
from ipamd.kernel.nft_table import NftTable
from ipamd.kernel.ruleset import PORT_FLAGS, SNAT_HEAD, chain
from ipamd.kernel.translation_rules import TranslationRule
from ipamd.model import family
from ipamd.settings import NetworkConfig

TABLES = {extra_family: NftTable(extra_family.nft, "vpc-ipamd-egress") for extra_family in (family.IPV4, family.IPV6)}
"""Family of extra legs -> its table."""


def range_table(config: NetworkConfig, extra_family: family.Family, *, source: family.IpAddress | None) -> str:
    """Return commands that replace the table for the extra legs of a family. One rule translates the family's range to an address.

    New connections to the range are rejected, because its addresses are only for connections that sandboxes open. Source of the rules:
    amazon-vpc-cni-k8s pkg/networkutils/network.go, setupRuleToBlockNodeLocalAccess; cmd/egress-cni-plugin.

    `source`: the node's address, to which the rule translates; None if the node has none in this family. Then nothing is translated.
    """
    refused = map(str, refusals(extra_family))
    chains = [chain("node_local", "type filter hook forward priority filter; policy accept;", refused)]
    if source:
        chains.append(chain("snat_out", SNAT_HEAD, map(str, source_rules(config, extra_family, source))))
    return TABLES[extra_family].replacement("\n".join(chains))


def refusals(extra_family: family.Family) -> list[TranslationRule]:
    """Return the rules of the chain `node_local`, which reject new connections to the range."""
    network = extra_family.local_range.network
    return [TranslationRule((rules.is_to(f"{extra_family.nft} daddr {network}", [network]), rules.NEW), "reject")]


def source_rules(config: NetworkConfig, extra_family: family.Family, source: family.IpAddress) -> list[TranslationRule]:
    """Return the rules of the chain `snat_out`, which translate the source of packets from the range to `source`."""
    local_range = extra_family.local_range
    is_translated = rules.is_not_to(f"{extra_family.nft} daddr != {local_range.untranslated}", [local_range.untranslated])
    action = f"snat to {source}{PORT_FLAGS[config.randomize_snat]}"
    return [TranslationRule((rules.is_from(extra_family, local_range.network), is_translated), action)]
