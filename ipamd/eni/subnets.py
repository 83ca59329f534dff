"""Choose the subnet of a new ENI, go on with the next one when EC2 refuses for want of room, and keep new pods off excluded ENIs.

Each subnet that refused is asked for no more than it had (`limits.py`). An ENI whose subnet is excluded keeps its sandboxes (I2), and
gets nothing new. Overview: docs/subnets.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace

from ipamd.core.agenda import DENIED, ROOM
from ipamd.core.context import ServiceContext
from ipamd.eni.limits import ROOM_ENOUGH, Limits
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import ADDRESSES_PER_PREFIX, Eni
from ipamd.model.errors import CloudDeniedError, CloudError, SubnetChoiceError, SubnetExhaustedError, log_text
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.pool import Action, CreateEni
from ipamd.model.subnets import DescribedSubnet, SubnetPolicy, SubnetView, by_room, exclusion, why_unusable
from ipamd.ports import Ec2

log = logging.getLogger(__name__)


# EC2's answer about the subnets of the node's zone: asked for when the pool is about to grow, and kept for some minutes (I13).


KEPT_S = 300.0
"""How long an answer is believed. Ours: tags change by hand, and a refusal for want of room asks again at once; amazon-vpc-cni-k8s
asks before every ENI (pkg/awsutils/awsutils.go, AllocENI)."""

CONDITION = "subnets"

DESCRIBE = ("DescribeSubnets",)
EXCLUDED = ("excluded ENIs",)
"""What is put off: the former after IAM has denied it, the latter while the pool is full but for ENIs that get no new sandbox."""


class SubnetListing:
    """The last answer. Asked by the pool's thread; `last` may be read from any thread."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, policy: SubnetPolicy) -> None:
        self._health = context.health
        self._clock = context.clock
        self._agenda = context.agenda
        self._ec2 = ec2
        self._policy = policy
        self._last: Mapping[SubnetId, DescribedSubnet] | None = None
        self._monotonic_s = 0.0
        self._is_stale = True

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
        if (not self._is_stale and now_s - self._monotonic_s < max_age_s) or not self._agenda.is_due(DESCRIBE):
            return self._last
        try:
            found = self._ask(identity)
        except CloudDeniedError as error:
            self._agenda.put_off(DESCRIBE, DENIED)
            if self._policy.custom is not None:
                raise  # without the subnet's CIDR its ENI could not be set up
            self._health.report(
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
        self._agenda.clear(DESCRIBE)
        self._health.report(CONDITION, "")
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


@dataclass(frozen=True, slots=True)
class EniTarget:
    """Where an ENI goes. `security_group_ids`: at least one, unless nothing is known of the primary ENI's."""

    subnet_id: SubnetId
    security_group_ids: tuple[str, ...]


class Subnets:
    """Used by the pool's thread; `views` and `exclusion` from any."""

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
        self._datastore = context.datastore
        self._agenda = context.agenda
        self._policy = policy
        self.limits = limits
        self._identity = identity
        self._groups_of = groups_of
        self._listing = SubnetListing(context, ec2=ec2, policy=policy)
        self.candidates: tuple[SubnetId, ...] = ()

    def home(self, identity: InstanceIdentity) -> SubnetId:
        """The subnet that new ENIs go to by themselves: custom networking's for this zone, else the node's own."""
        zone = self._policy.custom.of_zone(identity.availability_zone) if self._policy.custom is not None else None
        return identity.subnet_id if zone is None else zone.subnet_id

    def choose(self, action: CreateEni, identity: InstanceIdentity) -> Iterator[tuple[EniTarget, CreateEni]]:
        """Yield where to make an ENI and what to ask for there, the roomiest subnet first; go on after a refusal for want of room.

        A subnet that is known to have less than the action asks for is asked for what it has.
        Raises: SubnetChoiceError if no subnet may be used; SubnetExhaustedError if none has room, CloudError if EC2 does not tell.
        """
        listed = self._usable(identity)
        groups = self._security_groups(identity)
        self.candidates = tuple(subnet_id for subnet_id, _ in listed)
        for subnet_id, told in listed:
            fitted = self._fitted(action, subnet_id, told)
            if fitted is None:
                continue
            yield EniTarget(subnet_id, groups), fitted
        raise self._exhausted(action)

    def refused(self, subnet_id: SubnetId, action: CreateEni, error: SubnetExhaustedError) -> None:
        """EC2 had no room there: it cools off, and the last answer is not believed any more."""
        log.info("subnet %s has no room, the next one is tried: %s", subnet_id, log_text(error))
        self._listing.disprove()
        if action.prefix_count:
            self._agenda.put_off(("prefixes", subnet_id), ROOM)
        else:
            self.limits.room_refused(subnet_id, action, error)

    def took(self, subnet_id: SubnetId, action: CreateEni) -> None:
        """An ENI was made there."""
        self.limits.took_room(subnet_id, action)
        self._listing.took(subnet_id, 1 + action.address_count + ADDRESSES_PER_PREFIX * action.prefix_count)
        if action.prefix_count:
            self._agenda.clear(("prefixes", subnet_id))

    def allocated(self, subnet_id: SubnetId, count: int) -> None:
        """An ENI that is there got more: the last answer is counted down."""
        self._listing.took(subnet_id, count)

    def exclusion(self, eni: Eni) -> str:
        """Why an attached ENI gets no new sandbox; "" if it does."""
        identity = self._identity()
        zone = identity.availability_zone if identity is not None else ""
        return exclusion(eni, self._policy, self._listing.last, zone=zone, security_group_ids=self._groups_of(eni.eni_id))

    def look_before(self, action: Action, identity: InstanceIdentity) -> bool:
        """Before the pool grows for the first time, and before each new ENI, learn which subnets are excluded.

        Returns: whether an ENI is excluded or not any more: then the plan has to be made anew. Raises nothing.
        """
        if not isinstance(action, CreateEni) and self._listing.last is not None:
            return False
        try:
            self._listing.refresh(identity)
        except CloudError as error:
            log.info("subnets are not known: %s", log_text(error))  # `choose` says it, if it matters
        return self.mark()

    def look_again(self, identity: InstanceIdentity) -> bool:
        """The pool lacks addresses and cannot grow while an ENI is excluded: ask whether it still is, now and then.

        Returns: whether that changed. Raises nothing.
        """
        if self._policy.custom is not None or not any(eni.excluded for eni in self._datastore.enis()):
            return False
        if not self._agenda.is_due(EXCLUDED):
            return False
        self._agenda.put_off(EXCLUDED, ROOM)
        try:
            self._listing.refresh(identity)
        except CloudError as error:
            log.info("subnets are not known: %s", log_text(error))
        if not self.mark():
            return False
        self._agenda.clear(EXCLUDED)
        return True

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
            log.info("ENI %s gets %s", known.eni_id, f"no new sandbox: {now}" if now else "new sandboxes again")
        return changed

    def follows_primary(self, eni: Eni) -> bool:
        """Whether an ENI's security groups are the primary ENI's: not where custom networking's file names them."""
        if self._policy.custom is None:
            return True
        return all(zone.subnet_id != eni.subnet_id or not zone.security_group_ids for zone in self._policy.custom.zones.values())

    def views(self, identity: InstanceIdentity | None) -> tuple[SubnetView, ...]:
        """Every subnet of the last answer, with its free addresses and why it is not used now."""
        found = () if identity is None else self._listing.views(identity)
        return tuple(
            replace(one, why_not=one.why_not or str(self.limits.refusal(("room", one.subnet_id)) or "")) for one in found
        )

    def _usable(self, identity: InstanceIdentity) -> list[tuple[SubnetId, int | None]]:
        """Subnets that may have the ENI, roomiest first, each with its free addresses by EC2's answer, None if not known."""
        home = self.home(identity)
        if self._policy.custom is not None:
            custom_subnet(self._policy, identity)
        try:
            listed = self._listing.refresh(identity)
        except CloudError:
            if self._policy.is_discovering or self._policy.custom is not None:
                raise
            listed = None
        if listed is None:
            self._refuse_excluded_home(home)
            return [(home, None)]
        reasons = {one.subnet_id: self._listing.why_not(one, identity) for one in listed.values()}
        usable = by_room(one for one in listed.values() if not reasons[one.subnet_id])
        if not usable and home not in listed:  # another account's: EC2 does not list it, and nothing excludes it
            return [(home, None)]
        if not usable:
            told = "; ".join(f"{subnet_id} is {reason}" for subnet_id, reason in sorted(reasons.items()))
            raise SubnetChoiceError(f"no subnet may have a new ENI: {told}", next_step=_next_step(self._policy))
        return [(one.subnet_id, _free_count(one)) for one in usable]

    def _refuse_excluded_home(self, home: SubnetId) -> None:
        """What was excluded by an earlier answer stays excluded while IAM does not let us ask. Raises: SubnetChoiceError."""
        excluded = next((eni.excluded for eni in self._datastore.enis() if eni.subnet_id == home and eni.excluded), "")
        if excluded and self._policy.custom is None:
            raise SubnetChoiceError(f"no subnet may have a new ENI: {excluded}", next_step=_next_step(self._policy))

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

    def _security_groups(self, identity: InstanceIdentity) -> tuple[str, ...]:
        zone = self._policy.custom.of_zone(identity.availability_zone) if self._policy.custom is not None else None
        return (zone.security_group_ids if zone is not None else ()) or identity.security_group_ids

    def _exhausted(self, action: CreateEni) -> SubnetExhaustedError:
        return SubnetExhaustedError(
            f"no subnet has {'a free /28 for' if action.prefix_count else 'room for'} another ENI",
            details=f"tried or known to be full: {', '.join(self.candidates)}",
            next_step="delete unused ENIs there, or tag a subnet of this zone with kubernetes.io/role/cni=1",
        )


def _free_count(subnet: DescribedSubnet) -> int | None:
    return None if subnet.free_count < 0 else subnet.free_count


def _next_step(policy: SubnetPolicy) -> str:
    if policy.custom is not None:
        return "correct the subnet in VPC_IPAMD_NETWORK_FILE and restart the daemon"
    return "tag a subnet of this zone with kubernetes.io/role/cni=1, or remove the tag of the node's own"
