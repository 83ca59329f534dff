"""Make the text of our nftables table: which traffic is SNATed, and which connections stay on the primary ENI. Pure.

    mark_in   prerouting  mangle (-150)    before kube-proxy's DNAT: NodePort connections that arrive on the primary ENI get
                                           the bit `connmark` of the settings in their conntrack mark; packets of sandboxes
                                           get the bit from the conntrack mark
    mark_out  prerouting  dstnat+10 (-90)  after DNAT: a sandbox's new connections to outside the VPC get the bit
    snat_out  postrouting srcnat+10 (110)  after kube-proxy and portmap: SNAT to the node's primary address

A pod may have another SNAT than the node (docs/adr/0082). The addresses of such pods are in two sets, `snat_none` and `snat_force`.
Both mark_out and snat_out match the sets before their other rules. If only one of the two chains did, a packet would leave with the
wrong source: the pod's address by the primary ENI, or the node's address by a secondary ENI. EC2 drops such packets.

The bit selects table main (rule 1024), so the packet leaves through the primary ENI, where the SNAT address is valid.
Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, updateHostIptablesRules; pkg/networkutils/nftables_connmark.go. Deliberate
differences: bits of other agents in the mark are kept (v1.23.0 overwrites the whole mark: its
docs/nftables-connmark-restore-contract.md); CIDRs are one interval set instead of one rule each; the table is replaced in one
transaction instead of rule by rule (docs/adr/0005).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from ipaddress import IPv4Address, IPv4Network, collapse_addresses
from typing import NamedTuple, Self

from ipamd.kernel import translation_rules as rules
from ipamd.kernel.nft_table import POD_SET, NftTable
from ipamd.kernel.translation_rules import PacketCondition, TranslationRule
from ipamd.model import family
from ipamd.model.attachment import Attachment
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.pod_snat import PodSnat
from ipamd.model.record import dataclass
from ipamd.settings import NetworkConfig

TABLE = "vpc-ipamd"

FAMILY = family.IPV4.nft

SNAT = NftTable(FAMILY, TABLE)

PORT_FLAGS = {"prng": " fully-random", "hashrandom": " random", "none": ""}
"""AWS_VPC_K8S_CNI_RANDOMIZESNAT -> how SNAT chooses ports.

Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, typeOfSNAT (--random-fully, --random).
"""


@dataclass(frozen=True, slots=True)
class FormerSettings:
    """Values of earlier settings that are still in use.

    `veth_prefixes`: earlier prefixes that are in the names of existing host veths.
    `marks`: earlier mark bits that existing connections may have. They are read from the policy rules of priority 1024: such a rule is
        kept while a connection has its mark, unless other software removes the rule.
    """

    veth_prefixes: tuple[str, ...] = ()
    marks: tuple[int, ...] = ()


NO_FORMER_SETTINGS = FormerSettings()

SNAT_SETS = {choice: f"{POD_SET}{choice}" for choice in PodSnat}
"""SNAT choice -> name of the set with the addresses of the sandboxes that have this choice."""

Choices = Mapping[family.IpAddress, PodSnat]
"""Address of a sandbox -> the SNAT choice for its connections to outside the VPC. Sandboxes without a choice are left out."""

_VPC_SET = "vpc"

UPLINKS = "vlan*"
"""Pattern for the names of uplinks. Packets that leave by an uplink keep their address.
Source: amazon-vpc-cni-k8s pkg/networkutils/network.go (`! -o vlan+`)."""


def replace_table(
    config: NetworkConfig,
    *,
    vpc_cidrs: Collection[IPv4Network],
    primary_address: IPv4Address,
    primary_link: str,
    former: FormerSettings = NO_FORMER_SETTINGS,
    choices: Choices | None = None,
) -> str:
    """Return commands that replace our table, to be run as one transaction.

    Args:
        vpc_cidrs: the CIDRs of the VPC, at least one if the table translates. They and `config.exclude_snat_cidrs` are reached
            without SNAT.
        primary_address: the node's primary address, to which packets are translated.
        primary_link: name of the primary ENI's link.
        former: values of earlier settings that sandboxes and connections still need.
        choices: the SNAT choices of single sandboxes, by address; None: the table gets no sets for them.
    Returns: only the removal of the table if it would have no chain, as with external SNAT and without marks, or with a pool of IPv6.
    Raises: WiringError if `vpc_cidrs` is empty, and SNAT is not external or there are `choices`: all traffic would be SNATed (I11).
    Concurrency: pure.
    """
    has_snat = translates(config)
    if config.family is not family.IPV4:
        choices = None
    if not vpc_cidrs and (has_snat or choices is not None):
        raise failure(WiringError, FailureCode.NO_VPC_CIDR)
    chains: list[str] = []
    if needs_mark(config) or former.marks:
        chains.append(_mark_in(config, primary_link, former.marks))
    if has_snat or choices is not None:
        networks = ReachedNetworks.of(vpc_cidrs, config)
        chains += _outgoing(config, networks, primary_address, former, choices)
    if not chains:
        return SNAT.removal()
    body = _with_prefixes("\n".join(chains), config.veth_prefix, former.veth_prefixes)
    return SNAT.replacement(body) + elements(choices)


def _outgoing(
    config: NetworkConfig,
    networks: ReachedNetworks,
    primary_address: IPv4Address,
    former: FormerSettings,
    choices: Choices | None,
) -> list[str]:
    """Return the sets and the chains that mark and translate what sandboxes send outside the VPC."""
    sets: list[str] = []
    if translates(config):
        sets.append(cidr_set("exempt", networks.exempt))
    if choices is not None:
        sets += [_address_set(name) for name in SNAT_SETS.values()]
        sets.append(cidr_set(_VPC_SET, networks.vpc))
    marked = mark_rules(config, networks, former, choices)
    translated = translation_rules(config, networks, primary_address, choices)
    return [
        *sets,
        chain("mark_out", "type filter hook prerouting priority dstnat + 10; policy accept;", map(str, marked)),
        chain("snat_out", SNAT_HEAD, map(str, translated)),
    ]


SNAT_HEAD = "type nat hook postrouting priority srcnat + 10; policy accept;"


def translates(config: NetworkConfig) -> bool:
    """Whether the node translates what its sandboxes send outside the VPC."""
    return config.family is family.IPV4 and not config.external_snat


class ReachedNetworks(NamedTuple):
    """Networks that sandboxes reach without SNAT.

    `vpc`: networks that every sandbox reaches without SNAT.
    `exempt`: networks that sandboxes without an SNAT choice reach without SNAT: `vpc` and the excluded CIDRs of the settings.
    """

    vpc: tuple[IPv4Network, ...]
    exempt: tuple[IPv4Network, ...]

    @classmethod
    def of(cls, vpc_cidrs: Iterable[IPv4Network], config: NetworkConfig) -> Self:
        """Return the networks for the CIDRs of the VPC and the settings."""
        vpc = tuple(vpc_cidrs)
        return cls(vpc, (*vpc, *config.exclude_snat_cidrs))


def mark_rules(
    config: NetworkConfig, networks: ReachedNetworks, former: FormerSettings, choices: Choices | None
) -> list[TranslationRule]:
    """Return the rules of the chain `mark_out`. `choices`: as in `replace_table`."""
    mark = f"{config.connmark:#x}"
    action = f"ct mark set ct mark or {mark} meta mark set meta mark or {mark}"
    conditions = (rules.comes_by(config.veth_prefix, former.veth_prefixes), rules.NEW, rules.NOT_FOR_NODE)
    chain_rules: list[TranslationRule] = []
    if choices is not None:
        chain_rules = [
            TranslationRule((_is_chosen(choices, PodSnat.NONE),), rules.RETURN),
            TranslationRule((*conditions, *_is_forced_outside(choices, networks)), action),
        ]
    if translates(config):
        chain_rules.append(TranslationRule((*conditions, rules.is_not_to("ip daddr != @exempt", networks.exempt)), action))
    return chain_rules


def translation_rules(
    config: NetworkConfig, networks: ReachedNetworks, primary_address: IPv4Address, choices: Choices | None
) -> list[TranslationRule]:
    """Return the rules of the chain `snat_out`. `choices`: as in `replace_table`."""
    action = f"snat to {primary_address}{PORT_FLAGS[config.randomize_snat]}"
    chain_rules = [
        TranslationRule((rules.leaves_by("lo"),), rules.RETURN),
        TranslationRule((rules.leaves_by(UPLINKS),), rules.RETURN),
    ]
    if choices is not None:
        chain_rules += [
            TranslationRule((_is_chosen(choices, PodSnat.NONE),), rules.RETURN),
            TranslationRule((*_is_forced_outside(choices, networks), rules.NOT_FOR_NODE), action),
        ]
    if translates(config):
        chain_rules += [
            TranslationRule((rules.is_to("ip daddr @exempt", networks.exempt),), rules.RETURN),
            TranslationRule((rules.NOT_FOR_NODE,), action),
        ]
    return chain_rules


def _is_chosen(choices: Choices, choice: PodSnat) -> PacketCondition:
    return rules.is_from_set(SNAT_SETS[choice], [address for address, chosen in choices.items() if chosen is choice])


def _is_forced_outside(choices: Choices, networks: ReachedNetworks) -> tuple[PacketCondition, PacketCondition]:
    """Return the conditions that select packets to outside the VPC from sandboxes whose choice is FORCE."""
    return _is_chosen(choices, PodSnat.FORCE), rules.is_not_to(f"ip daddr != @{_VPC_SET}", networks.vpc)


def families(config: NetworkConfig, attachments: Iterable[Attachment]) -> tuple[family.Family, ...]:
    """Return the family of the pool, and after it the family of extra legs if the node has extra legs.

    The node has extra legs if the settings say so, or if a sandbox still has one from earlier settings.
    """
    in_use = (family.family_of(attachment.other_address) for attachment in attachments if attachment.other_address)
    extra_family = config.extra_family or next(in_use, None)
    if extra_family:
        return (config.family, extra_family)
    return (config.family,)


def has_strict(config: NetworkConfig, attachments: Iterable[Attachment]) -> bool:
    """Whether the settings choose strict mode for uplinks, or a recorded sandbox has an uplink in strict mode from earlier settings.

    Sandboxes whose rows were lost are found only in the kernel (`Confinement.has_strict`).
    """
    if config.is_strict:
        return True
    return any(attachment.uplink and attachment.uplink.is_strict for attachment in attachments)


def needs_mark(config: NetworkConfig) -> bool:
    """Whether the node needs the rule for the mark (MARK_PRIORITY), and the nftables rules that restore the mark of a connection.

    IPv6 needs neither, because all packets leave by the primary ENI anyway.

    Source: amazon-vpc-cni-k8s pkg/networkutils/network.go, SetupHostNetwork.
    """
    is_wanted = config.node_port_support or not config.external_snat or config.has_pod_snat
    return config.family is family.IPV4 and is_wanted


def _with_prefixes(body: str, prefix: str, former: Collection[str]) -> str:
    """Repeat every rule that selects host veths by their prefix for each former prefix.

    A single rule with a set of names would do the same. But then even a table without former prefixes, the usual case, would differ
    from the rules of amazon-vpc-cni-k8s.
    """
    lines = []
    for line in body.splitlines():
        names = [prefix, *sorted(former)] if f'"{prefix}*"' in line else [prefix]
        lines += [line.replace(f'"{prefix}*"', f'"{name}*"') for name in names]
    return "\n".join(lines)


def _mark_in(config: NetworkConfig, primary_link: str, former_marks: Collection[int]) -> str:
    mark = f"{config.connmark:#x}"
    lines = []
    if config.node_port_support:
        lines.append(f'iifname "{primary_link}" fib daddr . iif type local ct mark set ct mark or {mark}')
    for bit in [mark, *(f"{former:#x}" for former in sorted(former_marks))]:
        lines.append(f'iifname "{config.veth_prefix}*" ct mark and {bit} == {bit} meta mark set meta mark or {bit}')
    return chain("mark_in", "type filter hook prerouting priority mangle; policy accept;", lines)


def _address_set(name: str) -> str:
    """Return the text of an empty set of IPv4 addresses within its table. Commands of `elements` fill it, and may refill it later."""
    return f"  set {name} {{\n    type {family.IPV4.nft_address};\n  }}"


def elements(choices: Choices | None) -> str:
    """Return commands that fill the sets of sandboxes' addresses; "" for None, because then the table has no such sets."""
    if choices is None:
        return ""
    return "".join(
        SNAT.addresses(name, [address for address, chosen in choices.items() if chosen is choice])
        for choice, name in SNAT_SETS.items()
    )


def cidr_set(name: str, cidrs: Iterable[IPv4Network]) -> str:
    """Return the text of an interval set of IPv4 networks within its table."""
    elements = ", ".join(map(str, collapse_addresses(cidrs)))
    return f"  set {name} {{\n    type {family.IPV4.nft_address}; flags interval;\n    elements = {{ {elements} }}\n  }}"


def chain(name: str, head: str, lines: Iterable[str]) -> str:
    """Return the text of a chain within its table.

    `head`: the line with hook and priority; "" for a chain that the kernel reaches only by jumps. `lines`: the rules.
    """
    body = "".join(f"    {line}\n" for line in lines)
    first = ""
    if head:
        first = f"    {head}\n"
    return f"  chain {name} {{\n{first}{body}  }}"
