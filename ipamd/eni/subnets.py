"""Choose the subnet of a new ENI, go on with the next one when EC2 refuses for want of room, and keep new pods off excluded ENIs.

Each subnet that refused is asked for no more than it had (`limits.py`). An ENI whose subnet is excluded keeps its sandboxes (I2), and
gets nothing new. Overview: docs/subnets.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping

from ipamd.core.agenda import DENIED, ROOM
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.limits import ROOM_ENOUGH, Limits
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import ADDRESSES_PER_PREFIX, Eni
from ipamd.model.errors import CloudDeniedError, CloudError, SubnetChoiceError, SubnetExhaustedError, log_text
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.pool import Action, CreateEni
from ipamd.model.record import dataclass, replace
from ipamd.model.subnets import DescribedSubnet, SubnetPolicy, SubnetView, ZoneNetwork, by_room, exclusion, why_unusable
from ipamd.ports import Ec2

log = logging.getLogger(__name__)

KEPT_S = 300.0
"""How long an answer is believed. Ours: tags change by hand, and a refusal for want of room asks again at once; amazon-vpc-cni-k8s
asks before every ENI (pkg/awsutils/awsutils.go, AllocENI)."""

CONDITION = "subnets"

DESCRIBE = ("DescribeSubnets",)
EXCLUDED = ("excluded ENIs",)
"""What is put off: the former after IAM has denied it, the latter while the pool is full but for ENIs that get no new sandbox."""


@dataclass(frozen=True, slots=True)
class EniTarget:
    """Where an ENI goes. `security_group_ids`: at least one, unless nothing is known of the primary ENI's."""

    subnet_id: SubnetId
    security_group_ids: tuple[str, ...]


class Subnets(Service):
    """EC2's answer about the subnets of the node's zone, asked for when the pool is about to grow and kept for some minutes (I13), and
    what follows from it. Used by the pool's thread; `views` and `exclusion` from any."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        policy: SubnetPolicy,
        limits: Limits,
        identity: Callable[[], InstanceIdentity | None],
        groups_of: Callable[[EniId], Collection[str]],
    ) -> None:
        """`groups_of`: the security groups of an ENI, as EC2 showed them last; empty if it did not yet."""
        super().__init__(context)
        self._ec2 = ec2
        self._policy = policy
        self.limits = limits
        self._identity = identity
        self._groups_of = groups_of
        self._listed: Mapping[SubnetId, DescribedSubnet] | None = None  # in EC2's order
        self._listed_monotonic_s = -math.inf  # also once EC2 has refused what its answer promised
        self.candidates: tuple[SubnetId, ...] = ()

    def home(self, identity: InstanceIdentity) -> SubnetId:
        """The subnet that new ENIs go to by themselves: custom networking's for this zone, else the node's own."""
        zone = self._zone(identity)
        return identity.subnet_id if zone is None else zone.subnet_id

    def choose(self, action: CreateEni, identity: InstanceIdentity) -> Iterator[tuple[EniTarget, CreateEni]]:
        """Yield where to make an ENI and what to ask for there, the roomiest subnet first; go on after a refusal for want of room.

        A subnet that is known to have less than the action asks for is asked for what it has.
        Raises: SubnetChoiceError if no subnet may be used; SubnetExhaustedError if none has room, CloudError if EC2 does not tell.
        """
        usable, zone = self._usable(identity), self._zone(identity)
        groups = (zone.security_group_ids if zone else ()) or identity.security_group_ids
        self.candidates = tuple(subnet_id for subnet_id, _ in usable)
        for subnet_id, told in usable:
            fitted = self._fitted(action, subnet_id, told)
            if fitted is not None:
                yield EniTarget(subnet_id, groups), fitted
        raise SubnetExhaustedError(
            f"no subnet has {'a free /28 for' if action.prefix_count else 'room for'} another ENI",
            details=f"tried or known to be full: {', '.join(self.candidates)}",
            next_step="delete unused ENIs there, or tag a subnet of this zone with kubernetes.io/role/cni=1",
        )

    def refused(self, subnet_id: SubnetId, action: CreateEni, error: SubnetExhaustedError) -> None:
        """EC2 had no room there: it cools off, and the last answer is not believed any more."""
        log.info("a subnet has no room, the next one is tried subnet=%s error=%s", subnet_id, log_text(error))
        self._listed_monotonic_s = -math.inf
        if action.prefix_count == 1:
            self._agenda.put_off(("prefixes", subnet_id), ROOM)
        elif not action.prefix_count:  # else half as many are asked for
            self.limits.room_refused(subnet_id, action, error)

    def took(self, subnet_id: SubnetId, action: CreateEni) -> None:
        """An ENI was made there."""
        self.limits.took_room(subnet_id, action)
        self.allocated(subnet_id, 1 + action.address_count + ADDRESSES_PER_PREFIX * action.prefix_count)
        if action.prefix_count:
            self._agenda.clear(("prefixes", subnet_id))

    def allocated(self, subnet_id: SubnetId, count: int) -> None:
        """So many addresses of it are ours now: the last answer is counted down."""
        if self._listed is not None and subnet_id in self._listed:
            known = self._listed[subnet_id]
            self._listed = {**self._listed, subnet_id: replace(known, free_count=max(known.free_count - count, 0))}

    def exclusion(self, eni: Eni) -> str:
        """Why an attached ENI gets no new sandbox; "" if it does."""
        identity = self._identity()
        zone = identity.availability_zone if identity else ""
        return exclusion(eni, self._policy, self._listed, zone=zone, security_group_ids=self._groups_of(eni.eni_id))

    def look_before(self, action: Action, identity: InstanceIdentity) -> bool:
        """Before the pool grows for the first time, and before each new ENI, learn which subnets are excluded.

        Returns: whether an ENI is excluded or not any more: then the plan has to be made anew. Raises nothing.
        """
        if not isinstance(action, CreateEni) and self._listed is not None:
            return False
        return self.learn(identity)

    def look_again(self, identity: InstanceIdentity) -> bool:
        """The pool lacks addresses and cannot grow while an ENI is excluded: ask whether it still is, now and then.

        Returns: whether that changed. Raises nothing.
        """
        if self._policy.custom is not None or not any(eni.excluded for eni in self._datastore.enis()):
            return False
        if not self._agenda.is_due(EXCLUDED):
            return False
        self._agenda.put_off(EXCLUDED, ROOM)
        if not self.learn(identity):
            return False
        self._agenda.clear(EXCLUDED)
        return True

    def learn(self, identity: InstanceIdentity) -> bool:
        """Learn which subnets there are, and are excluded, unless it is known. Returns: whether an ENI's exclusion changed."""
        try:
            self._refresh(identity)
        except CloudError as error:
            log.info("subnets are not known error=%s", log_text(error))  # `choose` says it, if it matters
        return self.mark()

    def mark(self) -> bool:
        """Record which ENIs get no new sandbox, as far as it is known. Returns: whether one changed. Makes no EC2 call."""
        changed = False
        for known in self._datastore.enis():
            if self.exclusion(known) == known.excluded:
                continue
            with self._datastore.transaction() as uow:
                eni = self._datastore.eni(known.eni_id)  # as it is now: others change it too
                if eni is None:
                    continue
                uow.put_eni(replace(eni, excluded=self.exclusion(eni)))
            changed = True
            now = self.exclusion(known)
            log.info("whether an ENI gets new sandboxes eni=%s excluded=%s", known.eni_id, now or "no")
        return changed

    def follows_primary(self, eni: Eni) -> bool:
        """Whether an ENI's security groups are the primary ENI's: not where custom networking's file names them."""
        if self._policy.custom is None:
            return True
        return all(zone.subnet_id != eni.subnet_id or not zone.security_group_ids for zone in self._policy.custom.zones.values())

    def views(self, identity: InstanceIdentity | None) -> tuple[SubnetView, ...]:
        """Every subnet of the last answer, in EC2's order, with its free addresses and why it is not used now."""
        if identity is None or self._listed is None:
            return ()
        views = []
        for one in self._listed.values():
            why_not = self._why_not(one, identity) or str(self.limits.refusal(("room", one.subnet_id)) or "")
            views.append(SubnetView(one.subnet_id, one.free_count, why_not))
        return tuple(views)

    def _refresh(self, identity: InstanceIdentity) -> Mapping[SubnetId, DescribedSubnet] | None:
        """Ask EC2 unless its last answer is young enough, and was not disproved since.

        Returns: subnets by ID; the last ones if EC2 does not answer; None if IAM has never let us ask: then the node's own
        subnet is used, and a condition says so. Raises: CloudError if EC2 has never answered.
        """
        now_s = self._clock.monotonic()
        if now_s - self._listed_monotonic_s < KEPT_S or not self._agenda.is_due(DESCRIBE):
            return self._listed
        zone = self._zone(identity)
        try:
            if self._policy.custom is None:
                listed = self._ec2.describe_subnets(vpc_id=identity.vpc_id, availability_zone=identity.availability_zone)
            elif zone is None:
                raise SubnetChoiceError(
                    f"custom networking's file names no subnet for {identity.availability_zone}",
                    next_step=f"add {identity.availability_zone} to the zones of VPC_IPAMD_NETWORK_FILE and restart the daemon",
                )
            else:
                listed = (self._ec2.describe_subnet(zone.subnet_id),)
        except CloudDeniedError as error:
            self._agenda.put_off(DESCRIBE, DENIED)
            if self._policy.custom is not None:
                raise  # without the subnet's CIDR its ENI could not be set up
            self._health.report(
                CONDITION,
                f"subnets: they are not discovered, new ENIs are made in the node's own: {log_text(error)}; "
                "allow ec2:DescribeSubnets, or set ENABLE_SUBNET_DISCOVERY=false",
            )
            return self._listed
        except CloudError as error:
            if self._listed is None:
                raise
            log.warning("subnets are chosen by an earlier answer error=%s", log_text(error))
            return self._listed
        self._agenda.clear(DESCRIBE)
        self._health.report(CONDITION, "")
        self._listed, self._listed_monotonic_s = {one.subnet_id: one for one in listed}, now_s
        return self._listed

    def _zone(self, identity: InstanceIdentity) -> ZoneNetwork | None:
        """What custom networking's file says of this node's zone."""
        return None if self._policy.custom is None else self._policy.custom.of_zone(identity.availability_zone)

    def _why_not(self, subnet: DescribedSubnet, identity: InstanceIdentity) -> str:
        """Say why no new ENI may go to a subnet, by its tags and the settings; "" if one may."""
        policy, is_own = self._policy, subnet.subnet_id == identity.subnet_id
        if policy.custom is not None:  # EC2 would not attach such an ENI to this instance
            if subnet.vpc_id != identity.vpc_id:
                return f"of another VPC ({subnet.vpc_id}) than this node ({identity.vpc_id})"
            if subnet.availability_zone != identity.availability_zone:
                return f"of another zone ({subnet.availability_zone}) than this node ({identity.availability_zone})"
            return ""
        if not policy.is_discovering and not is_own:
            return "not the node's own, and ENABLE_SUBNET_DISCOVERY is off"
        if policy.needs_ipv6 and not subnet.has_ipv6:
            return "without IPv6"
        return why_unusable(subnet.tags, is_primary=is_own, cluster_name=policy.cluster_name)

    def _usable(self, identity: InstanceIdentity) -> list[tuple[SubnetId, int | None]]:
        """Subnets that may have the ENI, roomiest first, each with its free addresses by EC2's answer, None if not known."""
        home, is_custom = self.home(identity), self._policy.custom is not None
        try:
            listed = self._refresh(identity)
        except CloudError:
            if self._policy.is_discovering or is_custom:
                raise
            listed = None
        if listed is None:
            # What was excluded by an earlier answer stays excluded while IAM does not let us ask.
            told = next((eni.excluded for eni in self._datastore.enis() if eni.subnet_id == home and eni.excluded), "")
            if not told or is_custom:
                return [(home, None)]
        else:
            reasons = {one.subnet_id: self._why_not(one, identity) for one in listed.values()}
            usable = by_room(one for one in listed.values() if not reasons[one.subnet_id])
            if usable:
                return [(one.subnet_id, None if one.free_count < 0 else one.free_count) for one in usable]
            if home not in listed:  # another account's: EC2 does not list it, and nothing excludes it
                return [(home, None)]
            told = "; ".join(f"{subnet_id} is {reason}" for subnet_id, reason in sorted(reasons.items()))
        step = "tag a subnet of this zone with kubernetes.io/role/cni=1, or remove the tag of the node's own"
        if is_custom:
            step = "correct the subnet in VPC_IPAMD_NETWORK_FILE and restart the daemon"
        raise SubnetChoiceError(f"no subnet may have a new ENI: {told}", next_step=step)

    def _fitted(self, action: CreateEni, subnet_id: SubnetId, told: int | None) -> CreateEni | None:
        """What to ask for of a subnet: the action, less of it, or None if not even the ENI itself has room."""
        if action.prefix_count:
            if not self._agenda.is_due(("prefixes", subnet_id)):
                return None
            most = action.prefix_count if told is None else (told - 1) // ADDRESSES_PER_PREFIX
            return replace(action, prefix_count=min(action.prefix_count, most)) if most >= 1 else None
        self.limits.recheck_room(subnet_id, action, told=told)
        cap = self.limits.cap(("room", subnet_id))
        most = min(ROOM_ENOUGH if one is None else one for one in (told, cap)) - 1
        if most < 1:
            if cap is None:
                self.limits.short_of_room(subnet_id, most + 1)
            return None
        return replace(action, address_count=min(action.address_count, most))
