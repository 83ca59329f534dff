"""The legs of a sandbox: its veth pairs, each with an address and with the routes and rules that lead packets through it.

A sandbox has one first leg with the pod's address, which is an address of a pool (`PoolLeg`) or of a branch ENI (`BranchLeg`). A
sandbox may have extra legs; the only kind is a veth pair for egress in the other IP family (`EgressLeg`). Code that works on
sandboxes loops over their legs and does not ask for their kinds. Only this module decides which legs a recorded sandbox has.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

from ipamd.model.attachment import (
    ALIAS_TAG,
    IMPORTED_TAG,
    VETH_HASH_LENGTH,
    Attachment,
    WiringSpec,
    decode_alias,
)
from ipamd.model.family import IpAddress, family_of
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.kernel_numbers import STRICT_TABLE, TABLE_BASE
from ipamd.model.legs.branch import BRANCH_TAG, BranchLeg
from ipamd.model.legs.branch_eni import VLAN_MAX
from ipamd.model.legs.egress import EGRESS_TAG, EgressLeg
from ipamd.model.legs.extra import ExtraLeg
from ipamd.model.legs.leg import Leg
from ipamd.model.legs.pool import PoolLeg

__all__ = [
    "BranchLeg",
    "EgressLeg",
    "ExtraLeg",
    "Leg",
    "LegAlias",
    "PoolLeg",
    "addresses_of",
    "decode_first_alias",
    "extra_kind",
    "extra_veth_names",
    "first_alone",
    "first_leg",
    "host_veths",
    "legs_of",
    "may_be_extra",
    "may_be_uplink_table",
    "read_alias",
    "with_seen_extra",
]


EXTRA_LEGS: tuple[type[ExtraLeg], ...] = (EgressLeg,)
"""The kinds of extra legs, in the order in which a sandbox has them."""


def legs_of(sandbox: WiringSpec) -> tuple[Leg, ...]:
    """Return the legs of a sandbox, the first leg first."""
    extra = [kind(sandbox) for kind in EXTRA_LEGS if kind.recorded_address(sandbox) is not None]
    return (first_leg(sandbox), *extra)


def first_leg(sandbox: WiringSpec) -> Leg:
    """Return the leg by which a sandbox has the pod's address."""
    return PoolLeg(sandbox) if sandbox.is_of_pool else BranchLeg(sandbox)


def addresses_of(sandbox: Attachment) -> tuple[IpAddress, ...]:
    """Return the addresses of all legs of a sandbox, the pod's address first."""
    recorded = [kind.recorded_address(sandbox) for kind in EXTRA_LEGS]
    return (sandbox.address, *(address for address in recorded if address is not None))


def first_alone(sandbox: WiringSpec) -> WiringSpec:
    """Return a copy of the spec without extra legs."""
    for kind in EXTRA_LEGS:
        sandbox = kind.recorded_with(sandbox, None)
    return sandbox


def with_seen_extra(sandbox: WiringSpec, survey: KernelSurvey) -> WiringSpec:
    """Return a copy of the spec with exactly the extra legs that a survey shows to be the sandbox's own (`KernelSurvey.extras_of`)."""
    sandbox = first_alone(sandbox)
    for veth in survey.extras_of(sandbox.key):
        kind = extra_kind(veth)
        if kind is not None:
            sandbox = kind.recorded_with(sandbox, veth.address)
    return sandbox


def extra_kind(veth: HostVeth) -> type[ExtraLeg] | None:
    """Return the kind of extra leg that a host veth's alias names; None if it names no extra leg."""
    alias = read_alias(veth.alias)
    return next((kind for kind in EXTRA_LEGS if alias is not None and alias.leg is kind), None)


def extra_veth_names(key: AttachmentKey, first_veth: str) -> tuple[str, ...]:
    """Return the names that host veths of a sandbox's extra legs would have. `first_veth`: the name of its first host veth."""
    prefix = first_veth[:-VETH_HASH_LENGTH]
    return tuple(kind.veth_name(key, prefix=prefix) for kind in EXTRA_LEGS)


def host_veths(sandbox: Attachment | WiringSpec) -> tuple[str, ...]:
    """Return the names of a sandbox's host veths, beginning with the first leg's."""
    prefix = sandbox.host_veth[:-VETH_HASH_LENGTH]
    extra = [kind.veth_name(sandbox.key, prefix=prefix) for kind in EXTRA_LEGS if kind.recorded_address(sandbox) is not None]
    return (sandbox.host_veth, *extra)


class LegAlias(NamedTuple):
    """The content of a host veth's ifalias: the sandbox, the address, and the kind of leg."""

    key: AttachmentKey
    address: IpAddress
    leg: type[Leg]


KINDS: Mapping[str, type[Leg]] = {
    ALIAS_TAG: PoolLeg,
    IMPORTED_TAG: PoolLeg,
    EGRESS_TAG: EgressLeg,
    BRANCH_TAG: BranchLeg,
}
"""First word of an alias -> the kind of leg."""


WIRED_TAGS = (ALIAS_TAG, EGRESS_TAG)
"""First words of the aliases which show that we have made the neighbour entries of a host veth permanent: at our ADD, or when we took
over an extra leg. IMPORTED_TAG is not among them, because amazon-vpc-cni-k8s wired the leg. BRANCH_TAG is not, because it does not
show who wired the leg."""


@lru_cache(maxsize=2048)  # each survey reads the aliases of all host veths
def read_alias(alias: str) -> LegAlias | None:
    """Read the alias of a host veth; None if it is not ours or is damaged."""
    tag, _, _ = alias.partition(" ")
    identity = decode_alias(alias, tag) if tag in KINDS else None
    return LegAlias(*identity, KINDS[tag]) if identity else None


def decode_first_alias(alias: str) -> tuple[AttachmentKey, IpAddress] | None:
    """Return the sandbox and the address in the alias of a first leg; None if the alias is not ours."""
    leg_alias = read_alias(alias)
    return (leg_alias.key, leg_alias.address) if leg_alias and leg_alias.leg.is_first else None


def may_be_extra(address: IpAddress) -> bool:
    """Whether an address is in a range from which extra legs get their addresses."""
    return address in family_of(address).local_range.network


def may_be_uplink_table(table: int) -> bool:
    """Whether a number may be that of an uplink's route table."""
    return TABLE_BASE < table <= TABLE_BASE + VLAN_MAX or table == STRICT_TABLE
