"""Choose the subnet of a new ENI, go on with the next one when EC2 refuses for want of room, and keep new pods off excluded ENIs.

Each subnet that refused cools off alone (`subnet_room.py`): until then it is asked for no more than it had. An ENI whose subnet is
excluded keeps its sandboxes (I2), and gets nothing new. Overview: docs/subnets.md.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace

from ipamd.model.blocked import Blocked
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import ADDRESSES_PER_PREFIX, Eni
from ipamd.model.errors import CloudError, SubnetChoiceError, SubnetExhaustedError, log_text
from ipamd.model.growth import Action, CreateEni, Refusal
from ipamd.model.ids import SubnetId
from ipamd.model.subnets import DescribedSubnet, SubnetPolicy, SubnetView, by_room, exclusion
from ipamd.ports import Ec2
from ipamd.service.backoff import Retry, soonest_s
from ipamd.service.context import ServiceContext
from ipamd.service.pool.subnet_listing import SubnetListing, custom_subnet
from ipamd.service.pool.subnet_room import PAUSE_FIRST_S, PAUSE_MAX_S, SubnetRoom

ROOM_ENOUGH = 64
"""Room that bounds no creation: the most addresses that an ENI of any type takes, its primary one included."""

LOOK_AGAIN_S = 600.0
"""Between two looks of a pool that is full but for excluded ENIs. Ours: 6 calls an hour at most, and only while something wakes it."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EniTarget:
    """Where an ENI goes. `security_group_ids`: at least one, unless nothing is known of the primary ENI's."""

    subnet_id: SubnetId
    security_group_ids: tuple[str, ...]


class Subnets:
    """Used by the pool's thread; `views` and `exclusion` from any."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, policy: SubnetPolicy) -> None:
        self._datastore = context.datastore
        self._clock = context.clock
        self._ec2 = ec2
        self._policy = policy
        self._listing = SubnetListing(context, ec2=ec2, policy=policy)
        self._home: SubnetId | None = None
        self._candidates: tuple[SubnetId, ...] = ()
        self._rooms: dict[SubnetId, SubnetRoom] = {}
        self._without_prefix: dict[SubnetId, Retry] = {}

    def home(self, identity: InstanceIdentity) -> SubnetId:
        """The subnet that new ENIs go to by themselves: custom networking's for this zone, else the node's own."""
        try:
            self._home = custom_subnet(self._policy, identity) if self._policy.custom is not None else identity.subnet_id
        except SubnetChoiceError:
            self._home = identity.subnet_id
        return self._home

    def choose(self, action: CreateEni, identity: InstanceIdentity) -> Iterator[tuple[EniTarget, CreateEni]]:
        """Yield where to make an ENI and what to ask for there, the roomiest subnet first; go on after a refusal for want of room.

        A subnet that is known to have less than the action asks for is asked for what it has.
        Raises: SubnetChoiceError if no subnet may be used; SubnetExhaustedError if none has room, CloudError if EC2 does not tell.
        """
        listed = self._usable(identity)
        groups = self._security_groups(identity)
        self._candidates = tuple(subnet_id for subnet_id, _ in listed)
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
            self._prefix_retry(subnet_id).put_off(now_s=self._clock.monotonic())
        else:
            self.room_of(subnet_id).refused(action, error)

    def took(self, subnet_id: SubnetId, action: CreateEni) -> None:
        """An ENI was made there."""
        self.room_of(subnet_id).took(action)
        self._listing.took(subnet_id, 1 + action.address_count + ADDRESSES_PER_PREFIX * action.prefix_count)
        if action.prefix_count:
            self._prefix_retry(subnet_id).end()

    def allocated(self, subnet_id: SubnetId, count: int) -> None:
        """An ENI that is there got more: the last answer is counted down."""
        self._listing.took(subnet_id, count)

    def room_of(self, subnet_id: SubnetId) -> SubnetRoom:
        """What is known of one subnet's room."""
        if subnet_id not in self._rooms:
            self._rooms[subnet_id] = SubnetRoom(clock=self._clock, free_count=lambda _: self._ec2.subnet_free_count(subnet_id))
        return self._rooms[subnet_id]

    def home_room(self) -> SubnetRoom | None:
        """The room of `home`; None before it is known."""
        return None if self._home is None else self.room_of(self._home)

    def creation_room(self) -> int | None:
        """Free addresses of the roomiest subnet that a new ENI may go to; None if that can only be `home`."""
        if not self._others():
            return None
        return max(self._left(subnet_id) for subnet_id in self._candidates)

    def creation_refusal(self) -> Refusal | None:
        """Why no subnet takes another ENI now; None if one may."""
        candidates = self._candidates or tuple(filter(None, [self._home]))
        if not candidates or any(self._left(subnet_id) >= 2 for subnet_id in candidates):  # one address for the ENI itself
            return None
        refusals = [one for one in (self.room_of(subnet_id).refusal() for subnet_id in candidates) if one is not None]
        if len(refusals) == 1:
            return refusals[0]
        reason = "; ".join(f"{subnet_id}: {one.reason}" for subnet_id, one in zip(candidates, refusals, strict=False))
        left_s = soonest_s(one.left_s for one in refusals)
        return (
            Refusal(f"no subnet has room: {reason}", refusals[0].next_step, left_s, True, Blocked.SUBNET_FULL)
            if refusals
            else None
        )

    def in_force(self) -> list[Refusal]:
        """Every refusal of a subnet that is in force."""
        return [one for one in (room.refusal() for room in list(self._rooms.values())) if one is not None]

    def exclusion(self, eni: Eni) -> str:
        """Why an attached ENI gets no new sandbox; "" if it does."""
        return exclusion(eni, self._policy, self._listing.last)

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
        try:
            self._listing.refresh(identity, max_age_s=LOOK_AGAIN_S)
        except CloudError as error:
            log.info("subnets are not known: %s", log_text(error))
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
        refusals = {subnet_id: room.refusal() for subnet_id, room in list(self._rooms.items())}
        return tuple(replace(one, why_not=one.why_not or str(refusals.get(one.subnet_id) or "")) for one in found)

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
        room, now_s = self.room_of(subnet_id), self._clock.monotonic()
        if action.prefix_count:
            if not self._prefix_retry(subnet_id).is_due(now_s=now_s):
                return None
            most = action.prefix_count if told is None else (told - 1) // ADDRESSES_PER_PREFIX
            return replace(action, prefix_count=min(action.prefix_count, most)) if most >= 1 else None
        room.look(action)
        known = [count for count in (told, room.count()) if count is not None]
        most = min(known, default=ROOM_ENOUGH) - 1
        if most < 1:
            room.note(most + 1, f"EC2 says that subnet {subnet_id} has no room for another ENI")
            return None
        return replace(action, address_count=min(action.address_count, most))

    def _security_groups(self, identity: InstanceIdentity) -> tuple[str, ...]:
        zone = self._policy.custom.of_zone(identity.availability_zone) if self._policy.custom is not None else None
        return (zone.security_group_ids if zone is not None else ()) or identity.security_group_ids

    def _prefix_retry(self, subnet_id: SubnetId) -> Retry:
        return self._without_prefix.setdefault(subnet_id, Retry(first_s=PAUSE_FIRST_S, max_s=PAUSE_MAX_S))

    def _others(self) -> bool:
        return any(subnet_id != self._home for subnet_id in self._candidates)

    def _left(self, subnet_id: SubnetId) -> int:
        count = self.room_of(subnet_id).count()
        return ROOM_ENOUGH if count is None else min(int(count), ROOM_ENOUGH)

    def _exhausted(self, action: CreateEni) -> SubnetExhaustedError:
        return SubnetExhaustedError(
            f"no subnet has {'a free /28 for' if action.prefix_count else 'room for'} another ENI",
            details=f"tried or known to be full: {', '.join(self._candidates)}",
            next_step="delete unused ENIs there, or tag a subnet of this zone with kubernetes.io/role/cni=1",
        )


def _free_count(subnet: DescribedSubnet) -> int | None:
    return None if subnet.free_count < 0 else subnet.free_count


def _next_step(policy: SubnetPolicy) -> str:
    if policy.custom is not None:
        return "correct the subnet in VPC_IPAMD_NETWORK_FILE and restart the daemon"
    return "tag a subnet of this zone with kubernetes.io/role/cni=1, or remove the tag of the node's own"
