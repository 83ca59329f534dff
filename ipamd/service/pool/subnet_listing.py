"""EC2's answer about the subnets of the node's zone: asked for when the pool is about to grow, and kept for some minutes (I13)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import CloudDeniedError, CloudError, SubnetChoiceError, log_text
from ipamd.model.ids import SubnetId
from ipamd.model.subnets import DescribedSubnet, SubnetPolicy, SubnetView, why_unusable
from ipamd.ports import Ec2
from ipamd.service.backoff import Retry
from ipamd.service.context import ServiceContext

KEPT_S = 300.0
"""How long an answer is believed. Ours: tags change by hand, and a refusal for want of room asks again at once; amazon-vpc-cni-k8s
asks before every ENI (pkg/awsutils/awsutils.go, AllocENI)."""

DENIED_FIRST_S = 600.0
DENIED_MAX_S = 3600.0
"""Until DescribeSubnets is tried again after IAM refused it. Ours: as other denied calls (refusals.py)."""

CONDITION = "subnets"

log = logging.getLogger(__name__)


class SubnetListing:
    """The last answer. Asked by the pool's thread; `last` may be read from any thread."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, policy: SubnetPolicy) -> None:
        self._health = context.health
        self._clock = context.clock
        self._ec2 = ec2
        self._policy = policy
        self._last: Mapping[SubnetId, DescribedSubnet] | None = None
        self._monotonic_s = 0.0
        self._is_stale = True
        self._denied = Retry(first_s=DENIED_FIRST_S, max_s=DENIED_MAX_S)

    @property
    def last(self) -> Mapping[SubnetId, DescribedSubnet] | None:
        """Subnets by ID in EC2's order; None before the first answer."""
        return self._last

    def refresh(self, identity: InstanceIdentity, *, max_age_s: float = KEPT_S) -> Mapping[SubnetId, DescribedSubnet] | None:
        """Ask EC2 unless its last answer is young enough, and was not disproved since.

        Returns: subnets by ID; the last ones if EC2 does not answer; None if IAM has never let us ask: then the node's own
        subnet is used, and a condition says so. Raises: CloudError if EC2 has never answered.
        """
        now_s = self._clock.monotonic()
        if not self._is_stale and now_s - self._monotonic_s < max_age_s:
            return self._last
        if not self._denied.is_due(now_s=now_s):
            return self._last
        try:
            found = self._ask(identity)
        except CloudDeniedError as error:
            self._denied.put_off(now_s=now_s)
            if self._policy.custom is not None:
                raise  # without the subnet's CIDR its ENI could not be set up
            log.warning("subnets are not discovered: %s", log_text(error))
            self._health.set_condition(
                CONDITION,
                f"subnets: they are not discovered, new ENIs are made in the node's own: {log_text(error)}; "
                "allow ec2:DescribeSubnets, or set ENABLE_SUBNET_DISCOVERY=false",
            )
            return self._last
        except CloudError as error:
            if self._last is None:
                raise
            log.warning("subnets are chosen by an earlier answer: %s", log_text(error))
            return self._last
        self._denied.end()
        self._health.clear_condition(CONDITION)
        self._last, self._monotonic_s, self._is_stale = found, now_s, False
        return found

    def disprove(self) -> None:
        """EC2 refused what its answer promised: ask again before the next choice."""
        self._is_stale = True

    def took(self, subnet_id: SubnetId, count: int) -> None:
        """Count what we took since the last answer."""
        if self._last is not None and subnet_id in self._last:
            known = self._last[subnet_id]
            self._last = {**self._last, subnet_id: replace(known, free_count=max(known.free_count - count, 0))}

    def views(self, identity: InstanceIdentity) -> tuple[SubnetView, ...]:
        """The subnets for people, in EC2's order, without what the pool has learnt since; none before the first answer."""
        return tuple(
            SubnetView(one.subnet_id, one.free_count, self.why_not(one, identity)) for one in (self._last or {}).values()
        )

    def why_not(self, subnet: DescribedSubnet, identity: InstanceIdentity) -> str:
        """Say why no new ENI may go to a subnet, by its tags and the settings; "" if one may."""
        policy, is_own = self._policy, subnet.subnet_id == identity.subnet_id
        if policy.custom is not None:
            return _mismatch(subnet, identity)
        if not policy.is_discovering and not is_own:
            return "not the node's own, and ENABLE_SUBNET_DISCOVERY is off"
        return why_unusable(subnet.tags, is_primary=is_own, cluster_name=policy.cluster_name)

    def _ask(self, identity: InstanceIdentity) -> dict[SubnetId, DescribedSubnet]:
        if self._policy.custom is None:
            listed = self._ec2.describe_subnets(vpc_id=identity.vpc_id, availability_zone=identity.availability_zone)
            return {subnet.subnet_id: subnet for subnet in listed}
        subnet_id = custom_subnet(self._policy, identity)
        return {subnet_id: self._ec2.describe_subnet(subnet_id)}


def custom_subnet(policy: SubnetPolicy, identity: InstanceIdentity) -> SubnetId:
    """The subnet that custom networking's file names for this node's zone. Raises: SubnetChoiceError if it names none."""
    zone = policy.custom.of_zone(identity.availability_zone) if policy.custom is not None else None
    if zone is None:
        raise SubnetChoiceError(
            f"custom networking's file names no subnet for {identity.availability_zone}",
            next_step=f"add {identity.availability_zone} to the zones of VPC_IPAMD_NETWORK_FILE and restart the daemon",
        )
    return zone.subnet_id


def _mismatch(subnet: DescribedSubnet, identity: InstanceIdentity) -> str:
    """Say why EC2 would not attach an ENI of this subnet to this instance."""
    if subnet.vpc_id != identity.vpc_id:
        return f"of another VPC ({subnet.vpc_id}) than this node ({identity.vpc_id})"
    if subnet.availability_zone != identity.availability_zone:
        return f"of another zone ({subnet.availability_zone}) than this node ({identity.availability_zone})"
    return ""
