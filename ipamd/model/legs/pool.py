"""The leg of a sandbox that has an address of the pool, wired by us or taken over from amazon-vpc-cni-k8s."""

from __future__ import annotations

from ipamd.model.attachment import ALIAS_TAG, IMPORTED_TAG, encode_alias
from ipamd.model.kernel import KernelSurvey
from ipamd.model.legs.comparison import from_rule_differences, route_differences, snat_differences, veth_differences
from ipamd.model.legs.leg import Leg
from ipamd.model.record import dataclass
from ipamd.model.source_rules import single_priority
from ipamd.model.wiring_difference import WiringDifference


@dataclass(frozen=True, slots=True)
class PoolLeg(Leg):
    """A first leg whose packets leave by the ENI that has the address."""

    @property
    def kind(self) -> str:
        return "pool"

    @property
    def rule_priority(self) -> int:
        subnet = None if self.prefix else self.sandbox.subnet
        return single_priority(self.address, subnet)

    @property
    def alias(self) -> str:
        tag = IMPORTED_TAG if self.sandbox.is_imported else ALIAS_TAG
        return encode_alias(self.key, self.address, tag=tag)

    def differences(self, survey: KernelSurvey) -> list[WiringDifference]:
        differences = veth_differences(self, self.veth_in(survey))
        differences += route_differences(self, survey)
        differences += from_rule_differences(self, survey)
        return differences + snat_differences(self, survey)
