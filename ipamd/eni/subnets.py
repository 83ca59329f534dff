"""Choose the subnet of a new ENI, try the next one when EC2 refuses because a subnet is full, and keep new pods off excluded ENIs.

After a refusal, requests to a subnet are limited to its free addresses (`limits.py`). An ENI whose subnet is excluded keeps its
sandboxes (I2), and gets no new ones. For operators: docs/subnets.md.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

from ipamd.core.backoffs import DENIED, ROOM
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.limits import PREFIXES, ROOM_ENOUGH, Limits
from ipamd.model.blocked import Blocked
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.eni import ADDRESSES_PER_PREFIX, Eni
from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudNotFoundError,
    SubnetChoiceError,
    SubnetExhaustedError,
    is_about_keys,
    log_text,
)
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.network_cards import subnet_pool
from ipamd.model.network_file import NetworkFile
from ipamd.model.pod_pools import NO_POOLS, PodPools, pool_exclusion
from ipamd.model.pool_actions import Action, CreateEni
from ipamd.model.record import dataclass, replace
from ipamd.model.subnets import (
    RESERVED_COUNT,
    ROLE_TAG,
    CustomNetwork,
    DescribedSubnet,
    SubnetCheck,
    SubnetPolicy,
    SubnetView,
    ZoneNetwork,
    by_room,
    exclusion,
    why_unusable,
)
from ipamd.model.words import counted
from ipamd.ports.cloud import Ec2

log = logging.getLogger(__name__)

CONDITION = "subnets"

DESCRIBE = ("DescribeSubnets",)
"""Back-off key: the pause after IAM denied DescribeSubnets."""
EXCLUDED = ("excluded ENIs",)
"""Back-off key: the pause between two checks whether excluded ENIs may be used again."""
FIRST = ("subnets after a start",)
"""Back-off key: the single check after a start."""


@dataclass(frozen=True, slots=True)
class EniTarget:
    """Where to create an ENI. `security_group_ids`: empty only while those of the primary ENI are not known."""

    subnet_id: SubnetId
    security_group_ids: tuple[str, ...]


class Subnets(Service):
    """The subnets of the node's zone as EC2 described them, and the choice among them.

    They are described when the pool is about to grow, and the answer is used for some minutes (I13). Used by the start, and afterwards
    by the pool's thread. Any thread may call `views`, `exclusion`, `exclusion_under` and `check_network`.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        policy: SubnetPolicy,
        answer_valid_s: float,
        limits: Limits,
        identity: Callable[[], InstanceIdentity | None],
        groups_of: Callable[[EniId], Collection[str]],
        pools: PodPools = NO_POOLS,
    ) -> None:
        """Make the service; EC2 is not called yet.

        Args:
            answer_valid_s: how long an answer of DescribeSubnets is used. After a refusal the subnets are described again at once.
            groups_of: returns the security groups of an ENI as EC2 showed them last, none before that.
            pools: pools of pods.
        """
        super().__init__(context)
        self._ec2 = ec2
        self._policy = policy
        self._answer_valid_s = answer_valid_s
        self.limits = limits
        limits.more_room_step = self.taggable_step
        self._identity = identity
        self._groups_of = groups_of
        self._pools = pools
        self._listed: Mapping[SubnetId, DescribedSubnet] | None = None  # by ID; custom networking's subnet comes first
        self._listed_monotonic_s = -math.inf  # time of the last answer; reset when a refusal contradicts it
        self._answered_monotonic_s = -math.inf  # time of the last answer, even if a refusal contradicts it
        self._is_denied = False
        self._is_asked = False  # whether a person asked that the subnets are described again; set by any thread
        self._candidates: dict[str, tuple[SubnetId, ...]] = {}  # by pool: those of the last choice, empty after each new answer

    def home(self, identity: InstanceIdentity) -> SubnetId:
        """Return the default subnet of new ENIs: the one that custom networking's file names for this zone, else the node's own."""
        zone = self._zone(identity)
        if zone is None:
            return identity.subnet_id
        return zone.subnet_id

    def home_of(self, pool: str, identity: InstanceIdentity) -> SubnetId | None:
        """Return the default subnet of a pool.

        For a pool of pods that is the subnet of its first ENI, or else the first candidate for a new ENI; None if there is neither.
        """
        if not subnet_pool(pool):
            return self.home(identity)
        for eni in self._datastore.enis():
            if eni.pool == pool and not eni.excluded:
                return eni.subnet_id
        return next(iter(self.candidates_of(pool)), None)

    def candidates_of(self, pool: str) -> tuple[SubnetId, ...]:
        """Return the subnets for a new ENI of a pool, the one with most room first; () before EC2 has described the subnets.

        They follow from EC2's last answer, also before the first creation. Without that, the default subnet would seem to be the only
        one, and as soon as it is full, no ENI would be created in another subnet, nor in one that was tagged later.
        """
        chosen, identity, listed = self._candidates.get(pool, ()), self._identity(), self._listed
        if chosen or identity is None or listed is None:
            return chosen
        if subnet_pool(pool):
            usable = [subnet for subnet in listed.values() if self._pools.by_name[pool].has(subnet)]
        else:
            usable = [subnet for subnet in listed.values() if not why_not_usable(subnet, identity, self._policy)]
        return tuple(subnet.subnet_id for subnet in by_room(usable))

    def choose(self, action: CreateEni, identity: InstanceIdentity) -> Iterator[tuple[EniTarget, CreateEni]]:
        """Yield the subnets for a new ENI, the one with most room first, each with the action reduced to the subnet's room.

        The caller takes the next subnet if EC2 refuses because a subnet is full.
        Raises: SubnetChoiceError if no subnet may be used; SubnetExhaustedError if none has room; CloudError if EC2 does not answer.
        """
        usable = self._usable_of_pool(action.pool, identity) if subnet_pool(action.pool) else self._usable(identity)
        groups = self._own_groups(action.pool, identity) or identity.security_group_ids
        self._candidates[action.pool] = tuple(subnet_id for subnet_id, _ in usable)
        for subnet_id, free_count in usable:
            fitted = self._fitted(action, subnet_id, free_count)
            if fitted is not None:
                yield EniTarget(subnet_id, groups), fitted
        raise SubnetExhaustedError(
            f"no subnet has {'a free /28 for' if action.prefix_count else 'room for'} another ENI",
            details=f"tried or known to be full: {', '.join(self.candidates_of(action.pool))}",
            next_step=self._more_room_step(action.pool),
        )

    @staticmethod
    def _more_room_step(pool: str) -> str:
        if subnet_pool(pool):
            return f"delete unused ENIs there, or give pool {pool} another subnet of this zone in the network file"
        return "delete unused ENIs there, or tag a subnet of this zone with kubernetes.io/role/cni=1"

    def taggable_step(self) -> str:
        """Return the advice to tag the subnet with most free addresses among those that lack only the tag; "" if there is none.

        With custom networking, or without discovery, tags decide nothing. Makes no EC2 call.
        """
        identity, listed = self._identity(), self._listed
        if identity is None or listed is None or self._policy.custom is not None or not self._policy.is_discovering:
            return ""
        for subnet in by_room(listed.values()):
            if self._lacks_only_the_tag(subnet, identity):
                free = counted(subnet.free_count, "free address")
                tag = f"tag {subnet.subnet_id}, which has {free}, with {ROLE_TAG}=1, then `ipamctl retry`"
                return f"{tag}; or free addresses in the full subnet"
        return ""

    def _lacks_only_the_tag(self, subnet: DescribedSubnet, identity: InstanceIdentity) -> bool:
        """Whether a subnet has free addresses, and cannot be used for new ENIs only because it is not tagged for them."""
        if subnet.free_count <= 0 or subnet.tags.get(ROLE_TAG) or not why_not_usable(subnet, identity, self._policy):
            return False
        tagged = replace(subnet, tags={**subnet.tags, ROLE_TAG: "1"})
        return not why_not_usable(tagged, identity, self._policy)

    def _own_groups(self, pool: str, identity: InstanceIdentity) -> tuple[str, ...]:
        """Return the security groups that the network file names for a pool's ENIs; () if they get those of the primary ENI."""
        if subnet_pool(pool):
            return self._pools.by_name[pool].security_group_ids
        zone = self._zone(identity)
        return zone.security_group_ids if zone else ()

    def record_refusal(self, subnet_id: SubnetId, action: CreateEni, error: SubnetExhaustedError) -> None:
        """Record that EC2 refused a new ENI because the subnet is full, so that the next choice falls on another subnet.

        The subnets are described again before that choice. A refusal of several prefixes does not exclude the subnet, because the next
        request is only for half of them (`PREFIX_COUNT` in `limits.py`).
        """
        log.info("subnet full, trying the next one subnet=%s error=%s", subnet_id, log_text(error))
        self._listed_monotonic_s = -math.inf
        if action.prefix_count == 1:
            self._backoffs.back_off(("prefixes", subnet_id), ROOM)
        elif not action.prefix_count:
            self.limits.room_refused(subnet_id, action, error)

    def record_creation(self, subnet_id: SubnetId, action: CreateEni) -> None:
        """Record that an ENI was created in the subnet."""
        self.limits.took_room(subnet_id, action)
        self.allocated(subnet_id, 1 + action.address_count + ADDRESSES_PER_PREFIX * action.prefix_count)
        if action.prefix_count:
            self._backoffs.clear(("prefixes", subnet_id))

    def allocated(self, subnet_id: SubnetId, count: int) -> None:
        """Reduce a subnet's free count in the last answer by the addresses that we have allocated since."""
        self.limits.subtract_room(subnet_id, count)
        if self._listed is not None and subnet_id in self._listed:
            subnet = self._listed[subnet_id]
            self._listed = {**self._listed, subnet_id: replace(subnet, free_count=max(subnet.free_count - count, 0))}

    def exclusion(self, eni: Eni) -> str:
        """Return why an attached ENI gets no new sandbox; "" if it may get one."""
        return self._exclusion(eni, self._policy, self._pools)

    def exclusion_under(self, eni: Eni, network: NetworkFile) -> str:
        """Return `exclusion` as it would be after a start with the network file `network`. Makes no EC2 call."""
        return self._exclusion(eni, replace(self._policy, custom=network.custom), network.pools)

    def _exclusion(self, eni: Eni, policy: SubnetPolicy, pools: PodPools) -> str:
        if subnet_pool(eni.pool):
            return pool_exclusion(eni, pools, self._listed, security_group_ids=self._groups_of(eni.eni_id))
        identity = self._identity()
        zone = identity.availability_zone if identity else ""
        return exclusion(eni, policy, self._listed, zone=zone, security_group_ids=self._groups_of(eni.eni_id))

    def check_network(self, custom: CustomNetwork, identity: InstanceIdentity) -> SubnetCheck:
        """Check whether ENIs could be created after a start with `custom` in the network file, by at most one DescribeSubnets. From
        any thread.
        """
        zone = custom.of_zone(identity.availability_zone)
        if zone is None:
            return SubnetCheck(_no_zone(identity))
        try:
            subnet = self._ec2.describe_subnet(zone.subnet_id)
        except CloudNotFoundError as error:
            return SubnetCheck(log_text(error))
        except CloudError as error:
            return SubnetCheck(unchecked_reason=log_text(error))
        reason = why_not_usable(subnet, identity, replace(self._policy, custom=custom))
        problem_text = ""
        if reason:
            problem_text = f"{zone.subnet_id} is {reason}"
        return SubnetCheck(problem_text, free_count=subnet.free_count)

    def recheck_before_create(self, action: Action, identity: InstanceIdentity) -> bool:
        """Describe the subnets before the pool grows for the first time, and before each new ENI.

        Returns: whether an ENI's exclusion changed; then the pool must plan again. Raises no CloudError.
        """
        if not isinstance(action, CreateEni) and self._listed is not None:
            return False
        return self.learn(identity)

    def learn_after_start(self, identity: InstanceIdentity) -> bool:
        """Describe the subnets once after a start, for a pool that need not grow.

        A tag may have changed while no daemon ran, and while a pool does not grow, days can pass until it describes the subnets.
        Returns: whether an exclusion changed. Raises no CloudError.
        """
        if self._listed is not None or not self._backoffs.is_due(FIRST):
            return False
        self._backoffs.put(FIRST, in_s=math.inf)
        return self.learn(identity)

    def recheck_excluded(self, identity: InstanceIdentity) -> bool:
        """Check from time to time whether an ENI is still excluded, for a pool that lacks addresses and cannot grow. With custom
        networking nothing is checked, because exclusions then follow from the network file and not from tags.

        Returns: whether an exclusion changed. Raises no CloudError.
        """
        if self._policy.custom is not None or not any(eni.managed and eni.excluded for eni in self._datastore.enis()):
            return False
        if not self._backoffs.is_due(EXCLUDED):
            return False
        self._backoffs.back_off(EXCLUDED, ROOM)
        if not self.learn(identity):
            return False
        self._backoffs.clear(EXCLUDED)
        return True

    def learn(self, identity: InstanceIdentity) -> bool:
        """Describe the subnets unless the last answer is recent. Returns: whether the exclusion of an ENI changed."""
        try:
            self._refresh(identity)
        except CloudError as error:
            log.info("describing subnets failed error=%s", log_text(error))  # `choose` raises it if it matters
        return self.mark_exclusions()

    def describe_again(self) -> None:
        """Have the subnets described at the next run of the pool: tags may have changed (`ipamctl retry`). From any thread."""
        self._is_asked = True

    def describe_if_asked(self, identity: InstanceIdentity) -> None:
        """Describe the subnets if a person has asked for it, or if IAM denied the last call and the pause after that is over.

        Without this, the condition about a denied call would last until the next creation of an ENI, and a new tag would count only
        after some minutes. No timer is set, so that an idle pool does not wake for it (I13). Raises no CloudError.
        """
        if self._is_asked:
            self._is_asked = False  # before the call, so that no later request is lost
            self._listed_monotonic_s = -math.inf
            self.learn(identity)
            self._demand.trigger()
        elif self._is_denied and self._backoffs.is_due(DESCRIBE) and self.learn(identity):
            self._demand.trigger()

    def describe_for_room(self, subnet_id: SubnetId, identity: InstanceIdentity) -> int:
        """Describe the subnets after the pause of a refusal for want of room, and return the free addresses of one subnet.

        All subnets of the zone are described, not only the full one, because somebody may have tagged another one, which the pool can
        use instead. It is one EC2 call in both cases.

        Returns: -1 if EC2 did not answer, or did not show the subnet. Raises no CloudError.
        """
        before = self._listed
        self._listed_monotonic_s = -math.inf
        self.learn(identity)
        if self._listed is None or self._listed is before or subnet_id not in self._listed:
            return -1
        return self._listed[subnet_id].free_count

    def mark_exclusions(self) -> bool:
        """Record which ENIs get no new sandbox, according to the last answer of DescribeSubnets. EC2 is not called.

        Returns: whether an exclusion changed.
        """
        is_any_changed = False
        for recorded_eni in self._datastore.enis():
            if self.exclusion(recorded_eni) == recorded_eni.excluded:
                continue
            with self._datastore.transaction() as uow:
                eni = self._datastore.eni(recorded_eni.eni_id)  # read within the transaction: other threads change it too
                if eni is None:
                    continue
                uow.put_eni(replace(eni, excluded=self.exclusion(eni)))
            is_any_changed = True
            reason = self.exclusion(recorded_eni)
            log.info("ENI exclusion changed eni=%s excluded=%s", recorded_eni.eni_id, reason or "no")
        return is_any_changed

    def follows_primary(self, eni: Eni) -> bool:
        """Whether an ENI must have the primary ENI's security groups, because the network file names none for it. False for an ENI of
        a pool that the file does not define.
        """
        if subnet_pool(eni.pool):
            pool = self._pools.by_name.get(eni.pool)
            return pool is not None and not pool.security_group_ids
        if self._policy.custom is None:
            return True
        return all(zone.subnet_id != eni.subnet_id or not zone.security_group_ids for zone in self._policy.custom.zones.values())

    def views(self, identity: InstanceIdentity | None) -> tuple[SubnetView, ...]:
        """Return every subnet of the last answer (`_listed`), with its addresses and why it is not used now; () before an answer.

        Makes no EC2 call.
        """
        if identity is None or self._listed is None:
            return ()
        return tuple(self._view(subnet, identity) for subnet in self._listed.values())

    def _view(self, subnet: DescribedSubnet, identity: InstanceIdentity) -> SubnetView:
        excluded = why_not_usable(subnet, identity, self._policy)
        free_count, answered_monotonic_s = subnet.free_count, self._answered_monotonic_s
        counted = self.limits.counted_room(subnet.subnet_id)
        if counted is not None and counted.answered_monotonic_s >= answered_monotonic_s:
            free_count, answered_monotonic_s = counted.free_count, counted.answered_monotonic_s
        capacity = max(subnet.cidr.num_addresses - RESERVED_COUNT, 0)
        return SubnetView(
            subnet.subnet_id,
            free_count,
            excluded or str(self.limits.refusal(("room", subnet.subnet_id)) or ""),
            availability_zone=subnet.availability_zone,
            used_count=max(capacity - free_count, 0) if free_count >= 0 else -1,
            has_no_prefix=self._has_no_prefix(subnet.subnet_id, identity),
            is_candidate=not excluded,
            answer_age_s=self._clock.monotonic() - answered_monotonic_s,
        )

    def _has_no_prefix(self, subnet_id: SubnetId, identity: InstanceIdentity) -> bool:
        """Whether EC2 has lately refused a /28 of a subnet: for a new ENI, or, in the default subnet, for an attached ENI."""
        if not self._backoffs.is_due(("prefixes", subnet_id)):
            return True
        refusal = self.limits.refusal(PREFIXES)
        is_of_room = refusal is not None and refusal.kind is Blocked.SUBNET_FULL
        return is_of_room and subnet_id == self.home(identity)

    def _refresh(self, identity: InstanceIdentity) -> Mapping[SubnetId, DescribedSubnet] | None:
        """Describe the subnets, unless the last answer is recent and no refusal contradicts it.

        Returns: subnets by ID; those of the last answer if EC2 does not answer; None if IAM has always denied the call: then the
        node's own subnet is used, and a condition reports the denial.
        Raises: CloudError if EC2 has never answered, if the credentials are wrong, or if IAM denies the call with custom networking.
        """
        now_s = self._clock.monotonic()
        if now_s - self._listed_monotonic_s < self._answer_valid_s or not self._backoffs.is_due(DESCRIBE):
            return self._listed
        try:
            listed = self._describe(identity)
        except CloudDeniedError as error:
            if is_about_keys(error):
                raise  # the credentials are wrong, not the permissions
            self._backoffs.back_off(DESCRIBE, DENIED)
            self._is_denied = True
            if self._policy.custom is not None:
                raise  # without the subnet's CIDR its ENI could not be set up
            self._health.report(CONDITION, problem(ConditionCode.SUBNETS_DENIED, cause=log_text(error)))
            return self._listed
        except CloudError as error:
            if self._listed is None:
                raise
            log.warning("describing subnets failed, using the last answer error=%s", log_text(error))
            return self._listed
        self._backoffs.clear(DESCRIBE)
        self._is_denied = False
        self._health.report(CONDITION, None)
        self._listed = {subnet.subnet_id: subnet for subnet in listed}
        self._candidates.clear()
        self._listed_monotonic_s = self._answered_monotonic_s = now_s
        return self._listed

    def _describe(self, identity: InstanceIdentity) -> Sequence[DescribedSubnet]:
        """Describe the subnets of the node's zone.

        With custom networking, only the subnet that the network file names for the zone is described, unless there are pools of pods,
        which need all subnets of the zone.

        Raises: SubnetChoiceError if the file names no subnet for the zone; CloudError.
        """
        if self._policy.custom is None:
            return self._ec2.describe_subnets(vpc_id=identity.vpc_id, availability_zone=identity.availability_zone)
        zone = self._zone(identity)
        if zone is None:
            raise SubnetChoiceError(
                _no_zone(identity),
                next_step=f"add {identity.availability_zone} to the zones of VPC_IPAMD_NETWORK_FILE and restart the daemon",
            )
        described = (self._ec2.describe_subnet(zone.subnet_id),)
        if not self._pools:
            return described
        others = self._ec2.describe_subnets(vpc_id=identity.vpc_id, availability_zone=identity.availability_zone)
        return *described, *(subnet for subnet in others if subnet.subnet_id != zone.subnet_id)

    def _zone(self, identity: InstanceIdentity) -> ZoneNetwork | None:
        """Return the settings of this node's zone in custom networking's file; None if there are none."""
        if self._policy.custom is None:
            return None
        return self._policy.custom.of_zone(identity.availability_zone)

    def _usable(self, identity: InstanceIdentity) -> list[tuple[SubnetId, int | None]]:
        """Return the usable subnets, the one with most room first, each with its free count, None if it is not known.

        Raises: SubnetChoiceError if there is none; CloudError if EC2 does not answer.
        """
        home = self.home(identity)
        listed = self._listed_for_choice(identity)
        if listed is None:
            self._require_home_usable(home)
            return [(home, None)]
        reasons = {subnet.subnet_id: why_not_usable(subnet, identity, self._policy) for subnet in listed.values()}
        usable = by_room(subnet for subnet in listed.values() if not reasons[subnet.subnet_id])
        if usable:
            return [(subnet.subnet_id, None if subnet.free_count < 0 else subnet.free_count) for subnet in usable]
        # EC2 may leave out a subnet that another account shares, and `home` may be such a subnet: an answer without it does not
        # exclude it.
        if home not in listed:
            return [(home, None)]
        raise self._no_subnet("; ".join(f"{subnet_id} is {reason}" for subnet_id, reason in sorted(reasons.items())))

    def _usable_of_pool(self, name: str, identity: InstanceIdentity) -> list[tuple[SubnetId, int | None]]:
        """Return the subnets of a pool of pods in the node's zone, the one with most room first, each with its free count, None if it
        is not known.

        Raises: SubnetChoiceError if there is none; CloudError if EC2 does not answer.
        """
        pool, listed = self._pools.by_name[name], self._refresh(identity)
        usable = by_room(subnet for subnet in (listed or {}).values() if pool.has(subnet))
        if usable:
            return [(subnet.subnet_id, None if subnet.free_count < 0 else subnet.free_count) for subnet in usable]
        if listed is None:
            reason, step = "IAM denies ec2:DescribeSubnets", "allow ec2:DescribeSubnets"
        else:
            reason = f"none is in {identity.availability_zone} and {identity.vpc_id}, the zone and the VPC of this node"
            step = f"correct pool {name} in VPC_IPAMD_NETWORK_FILE and restart the daemon"
        raise SubnetChoiceError(f"pool {name} has no subnet: {reason}", next_step=step)

    def _require_home_usable(self, home: SubnetId) -> None:
        """Check, without an answer of EC2, that no earlier answer excluded the default subnet. Raises: SubnetChoiceError."""
        excluded = next((eni.excluded for eni in self._datastore.enis() if eni.subnet_id == home and eni.excluded), "")
        if excluded and self._policy.custom is None:
            raise self._no_subnet(excluded)

    def _listed_for_choice(self, identity: InstanceIdentity) -> Mapping[SubnetId, DescribedSubnet] | None:
        """Return the described subnets; None if EC2 does not answer, or IAM denies the call, and the node's own subnet may be used.

        Raises: CloudError if there is no answer, and the choice needs one.
        """
        try:
            return self._refresh(identity)
        except CloudError:
            if self._policy.is_discovering or self._policy.custom is not None:
                raise
            return None

    def _no_subnet(self, reason: str) -> SubnetChoiceError:
        step = "tag a subnet of this zone with kubernetes.io/role/cni=1, or remove the tag of the node's own"
        if self._policy.custom is not None:
            step = "correct the subnet in VPC_IPAMD_NETWORK_FILE and restart the daemon"
        return SubnetChoiceError(f"no subnet may have a new ENI: {reason}", next_step=step)

    def _fitted(self, action: CreateEni, subnet_id: SubnetId, free_count: int | None) -> CreateEni | None:
        """Return the action, reduced to the subnet's room; None if there is no room for the ENI itself.

        `free_count`: the subnet's free addresses, None if not known.
        """
        if action.prefix_count:
            if not self._backoffs.is_due(("prefixes", subnet_id)):
                return None
            most = action.prefix_count if free_count is None else (free_count - 1) // ADDRESSES_PER_PREFIX
            if most >= 1:
                return replace(action, prefix_count=min(action.prefix_count, most))
            return None
        self.limits.recheck_room(subnet_id, action, free_count=free_count)
        cap = self.limits.cap(("room", subnet_id))
        most = min(ROOM_ENOUGH if count is None else count for count in (free_count, cap)) - 1
        if most < 1:
            if cap is None:
                self.limits.short_of_room(subnet_id, most + 1)
            return None
        return replace(action, address_count=min(action.address_count, most))


def why_not_usable(subnet: DescribedSubnet, identity: InstanceIdentity, policy: SubnetPolicy) -> str:
    """Return why its tags and the settings forbid a new ENI in a subnet; "" if they allow it. Pure."""
    is_own = subnet.subnet_id == identity.subnet_id
    if policy.custom is not None:  # EC2 attaches no ENI of another VPC or zone
        if subnet.vpc_id != identity.vpc_id:
            return f"of another VPC ({subnet.vpc_id}) than this node ({identity.vpc_id})"
        if subnet.availability_zone != identity.availability_zone:
            return f"of another zone ({subnet.availability_zone}) than this node ({identity.availability_zone})"
        zone = policy.custom.of_zone(identity.availability_zone)
        home = identity.subnet_id if zone is None else zone.subnet_id
        if subnet.subnet_id != home:  # it is here because the network file names it for a pool of pods
            return "not the one that custom networking's file names"
        return ""
    if not policy.is_discovering and not is_own:
        return "not the node's own, and ENABLE_SUBNET_DISCOVERY is off"
    if policy.needs_ipv6 and not subnet.has_ipv6:
        return "without IPv6"
    return why_unusable(subnet.tags, is_primary=is_own, cluster_name=policy.cluster_name)


def _no_zone(identity: InstanceIdentity) -> str:
    return f"custom networking's file names no subnet for {identity.availability_zone}"
