"""The leg for egress in the IP family that the pool does not have. The address of this leg is valid only on this node, so the node
translates it (SNAT)."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from typing import ClassVar

from ipamd.model.attachment import VETH_HASH_LENGTH, Attachment, WiringSpec, encode_alias, sandbox_mac
from ipamd.model.eni import MAIN_TABLE
from ipamd.model.family import IpAddress, IpNetwork, family_of
from ipamd.model.ids import AttachmentKey, EniId, MacAddress
from ipamd.model.kernel import KernelSurvey
from ipamd.model.legs.comparison import from_rule_differences, route_differences, veth_differences
from ipamd.model.legs.extra import ExtraLeg
from ipamd.model.record import dataclass, replace
from ipamd.model.wiring_difference import WiringDifference

EGRESS_TAG = "vpc-ipamd-egress/1"
"""First word of the ifalias of the host veth of a leg for egress."""


@dataclass(frozen=True, slots=True)
class EgressLeg(ExtraLeg):
    """The leg with the sandbox's `other_address`, in addition to its first leg."""

    cools_with_first: ClassVar[bool] = True

    @staticmethod
    def recorded_address(sandbox: Attachment | WiringSpec) -> IpAddress | None:
        return sandbox.other_address

    @staticmethod
    def recorded_with(sandbox: WiringSpec, address: IpAddress | None) -> WiringSpec:
        return replace(sandbox, other_address=address)

    @staticmethod
    def veth_name(key: AttachmentKey, *, prefix: str) -> str:
        return egress_veth_name(key, prefix=prefix)

    @property
    def kind(self) -> str:
        return "egress"

    @property
    def address(self) -> IpAddress:
        address = self.sandbox.other_address
        if address is None:
            raise ValueError(f"sandbox {self.key} has no address for egress")
        return address

    @property
    def eni_id(self) -> EniId:
        return EniId("")

    @property
    def route_table(self) -> int:
        return MAIN_TABLE

    @property
    def prefix(self) -> IpNetwork | None:
        return None

    @property
    def host_veth(self) -> str:
        return egress_veth_name(self.key, prefix=self.sandbox.host_veth[:-VETH_HASH_LENGTH])

    @property
    def ifname(self) -> str:
        return family_of(self.address).local_range.ifname

    @property
    def gateway(self) -> IpAddress:
        return family_of(self.address).local_range.gateway

    @property
    def alias(self) -> str:
        return encode_alias(self.key, self.address, tag=EGRESS_TAG)

    @property
    def others_mac(self) -> MacAddress | None:
        return None if self.sandbox.others_mac is None else MacAddress("")  # no record has the MACs that amazon-vpc-cni-k8s chose

    @property
    def is_neighbour_fixed(self) -> bool:
        return True

    def mac(self, side: str) -> MacAddress:
        if self.others_mac is None:
            return sandbox_mac(self.key, side=f"egress {side}")
        return MacAddress("")

    def differences(self, survey: KernelSurvey) -> list[WiringDifference]:
        differences = veth_differences(self, self.veth_in(survey))
        differences += route_differences(self, survey)
        return differences + from_rule_differences(self, survey)


@lru_cache(maxsize=4096)  # each pass over the sandboxes needs the names of all of them
def egress_veth_name(key: AttachmentKey, *, prefix: str) -> str:
    """Return the name of the host veth of a leg for egress; the same key always gives the same name."""
    digest = hashlib.sha1(f"egress:{key.container_id}/{key.ifname}".encode(), usedforsecurity=False).hexdigest()
    return prefix + digest[:VETH_HASH_LENGTH]
