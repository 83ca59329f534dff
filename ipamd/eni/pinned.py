"""Obtain from EC2 the addresses that pods ask for, and release those that no pod has used for long enough (docs/adr/0083).

An ADD registers the address that it wants and waits. The pool's thread makes the calls, which docs/adr/0083 bounds to three for one
ADD. An address is obtained only by an AssignPrivateIpAddresses that names it. EC2 refuses this call while any ENI has the address, so
if two nodes want it at once, only one of them gets it. If another ENI has the address, and the instance of that ENI is proven gone or
the operator allows taking the address, the address is first withdrawn from that ENI by a call that fails if the address is not there
any more. Rejected: AllowReassignment, because two nodes that want an address at once would both succeed, and the first one would lose
it after it has answered its ADD. Guards I1, I7, I12.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv4Network

from ipamd.core.backoffs import schedule_of, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.eni.enis import EniService
from ipamd.eni.refused_addresses import RefusedAddresses
from ipamd.eni.resync import ResyncReason, ResyncScheduler
from ipamd.model.address import Address, AddressState
from ipamd.model.cloud import AddressHolder, DescribedEni, InstanceIdentity
from ipamd.model.conditions import ConditionCode, problem, problem_of
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudError, CloudNotFoundError, EniLimitError, IpamError, PinnedAddressError, log_text
from ipamd.model.family import IpAddress
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import EniId, SubnetId
from ipamd.model.pinned_address import PinnedRange, PinnedWish, is_taken_whole
from ipamd.model.pinned_refusals import PinnedRefusalCode, pinned_refusal
from ipamd.model.pool_actions import ReleaseAddresses
from ipamd.model.pool_counts import EniStock
from ipamd.model.record import dataclass
from ipamd.ports.cloud import Ec2

LOOK_S = 0.5
"""Seconds after which a waiting ADD checks again whether its caller is still there. Ours: short, so that an ADD whose caller has gone
ends soon."""

UNCLAIMED_S = 60.0
"""After this long, a free address of a pinned range that is kept for no pod is released to EC2. The ADD that asked for it has failed,
and the runtime has not repeated it. Ours: this is long enough, because kubelet repeats an ADD within seconds."""

ROOM_S = 60.0
"""For this long the pool does not use a slot that was freed for a pinned address. Ours: as long as `UNCLAIMED_S`, in which kubelet
repeats the ADD."""

RELEASE, RELEASE_AGAIN_S = ("release of pinned addresses",), 5.0
"""Back-off key of the releases, and the pause after a release that changed nothing, for example because an ADD waited. Ours: short,
because a release that changed nothing has usually made no call. If EC2 refused the release, the pause depends on the error instead
(I13)."""

SUBJECT = "pinned addresses"
"""Name of the condition, which has the parts `ranges`, `supply` and `release`."""

RESERVATIONS, RESERVATIONS_S = ("subnet reservations",), 3600.0
"""Back-off key and pause of the check whether the ranges are reserved. Ours: rare checks are enough, because people change
reservations by hand."""

CERTAIN_S = 5.0
"""How long EC2's answer that an address is on this node is believed, if another node may take the address at any time. Ours: seconds
are enough, because the ADD for which EC2 was called reserves the address at once."""

FAILPOINTS = ("pinned.withdrawn", "pinned.assigned", "pinned.recorded")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Want:
    """An address that one ADD waits for.

    `deadline`: the deadline of the ADD.
    `is_done`: the ADD can go on: with the address, or with `error`.
    `error`: why the node could not obtain the address; None if it did.
    """

    wish: PinnedWish
    address: IpAddress
    deadline: Deadline
    is_done: bool = False
    error: IpamError | None = None

    def refusal(self, code: PinnedRefusalCode, **fields: object) -> IpamError:
        """Make a refusal of this ADD."""
        return pinned_refusal(code, pod=self.wish.pod, address=self.address, **fields)


@dataclass(frozen=True, slots=True)
class _Former:
    """The ENI from which an address is to be withdrawn. `name`: a text for the history, with its ENI, instance and state."""

    eni_id: EniId
    name: str


class PinnedAddresses(Service):
    """Obtains and releases pinned addresses.

    Any thread may call `obtain` and `is_certain`. `obtain` waits for the pool's thread, which calls all other methods.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        enis: EniService,
        resyncs: ResyncScheduler,
        ranges: tuple[PinnedRange, ...],
        identity: Callable[[], InstanceIdentity | None],
        release: Callable[[ReleaseAddresses], bool],
        cooldown_s: Callable[[], float],
    ) -> None:
        """Keep the collaborators.

        Args:
            ranges: the pinned ranges of all namespaces.
            release: releases free addresses to EC2; returns False if the release was skipped, or stopped by a freeze.
            cooldown_s: returns how long an address cools, in seconds.
        """
        super().__init__(context)
        self._freeze = context.freeze
        self._ec2 = ec2
        self._enis = enis
        self._resyncs = resyncs
        self._cidrs = tuple(item.cidr for item in ranges if item.cidr is not None)
        self._identity = identity
        self._release = release
        self._cooldown_s = cooldown_s
        self._condition = context.health.claim(SUBJECT, part="ranges")
        self._supply_condition = context.health.claim(SUBJECT, part="supply")
        self._release_condition = context.health.claim(SUBJECT, part="release")
        self._changed = threading.Condition()
        self._wants: list[_Want] = []
        self._unattached: set[IpAddress] = set()  # addresses that EC2 showed on an ENI that is attached to nothing
        # By address: when EC2 last showed it on this node, on the monotonic clock.
        self._confirmed: dict[IpAddress, float] = {}
        self._refused = RefusedAddresses(self._backoffs, self._clock)
        self._room: dict[EniId, float] = {}  # until when a slot of the ENI is left free, on the monotonic clock

    def obtain(self, wish: PinnedWish, address: IpAddress, deadline: Deadline) -> None:
        """Wait until the node has obtained `address`.

        Raises: PinnedAddressError if the node cannot obtain it; DeadlineError if the caller has gone or its deadline has passed.
        """
        want = _Want(wish, address, deadline)
        with self._changed:
            self._wants.append(want)
        self._demand.trigger()
        try:
            with self._changed:
                while not self._changed.wait_for(lambda: want.is_done, timeout=LOOK_S):
                    deadline.check(f"waiting for address {address}")
        finally:
            with self._changed:
                if want in self._wants:
                    self._wants.remove(want)
        if want.error is not None:
            raise want.error

    def is_certain(self, wish: PinnedWish, address: IpAddress) -> bool:
        """Whether a recorded address may be assigned without a call to EC2, because no other node can have taken it. From any thread.

        Another node may take an address of a pinned range while EC2 shows this instance stopped, or at any time if the settings allow
        that. The address then stays recorded here until a comparison with EC2 shows the loss.
        """
        row = self._datastore.address(address)
        if row is None or not self._is_of_range(row):
            return True
        confirmed_s = self._confirmed.get(address)
        if confirmed_s is None:
            return False
        return not wish.may_take or self._clock.monotonic() - confirmed_s <= CERTAIN_S

    def serve(self, limits: InstanceLimits) -> None:
        """Obtain the addresses that ADDs wait for, and stop keeping those that were kept long enough (`_expire`).

        Raises no CloudError: an ADD gets it as a PinnedAddressError, and a failed release is a condition and is repeated.
        """
        self._expire()
        while True:
            with self._changed:
                want = self._wants.pop(0) if self._wants else None
            if want is None:
                break
            self._try(want, limits)

    def _try(self, want: _Want, limits: InstanceLimits) -> None:
        """Obtain one address, and wake its ADD in any case."""
        want.error = want.refusal(PinnedRefusalCode.PENDING, cause="an unexpected error")  # stays only if a defect raises
        try:
            self._obtain_if_due(want, limits)
            want.error = None
        except PinnedAddressError as error:
            want.error = error
        finally:
            with self._changed:
                want.is_done = True
                self._changed.notify_all()

    def next_s(self) -> float | None:
        """Return the seconds until `serve` or `check_reservations` has work: 0 while an ADD waits; None if nothing is due."""
        with self._changed:
            if self._wants:
                return 0.0
        now_s = self._clock.monotonic()
        release_deadline_s = now_s + self._backoffs.left_s(RELEASE)
        due = [max(self._due_s(row), release_deadline_s) - now_s for row in self._pinned_rows()]
        return soonest_s([*due, self._backoffs.left_s(RESERVATIONS)])

    def check_reservations(self) -> None:
        """Check each hour the ranges in subnets of this node. One call per subnet.

        Reports ranges that no CIDR reservation of type `explicit` covers, and ranges that leave no address of a subnet to other pods.
        """
        subnets = {eni.subnet_id: eni.subnet_cidr for eni in self._datastore.enis()}
        if not subnets or not self._backoffs.is_due(RESERVATIONS):
            return
        self._backoffs.put(RESERVATIONS, in_s=RESERVATIONS_S)
        self._report_supply()
        problems = []
        for subnet_id, subnet_cidr in sorted(subnets.items()):
            ranges = [cidr for cidr in self._cidrs if cidr.overlaps(subnet_cidr)]
            problem = self._reservation_problem(subnet_id, ranges) if ranges else ""
            if problem:
                problems.append(problem)
        self._condition.report(problem_of(ConditionCode.RANGES_UNRESERVED, "; ".join(problems)))

    def _report_supply(self) -> None:
        """Report the subnets of the pool of which the ranges have every address: the pool could not give what EC2 assigns there.

        Subnets in which an ENI has /28 prefixes are left out, because addresses of a prefix are given to every pod.
        """
        taken, ranges = self._taken_subnets()
        if not taken:
            self._supply_condition.report(None)
            return
        step = "shorten the ranges in VPC_IPAMD_PINNED_ADDRESSES (docs/host.md)"
        texts = ", ".join(map(str, ranges))
        self._supply_condition.report(
            problem(ConditionCode.RANGES_TAKE_SUBNET, next_step=step, ranges=texts, subnets=", ".join(taken))
        )

    def _taken_subnets(self) -> tuple[list[SubnetId], list[IPv4Network]]:
        """Return the subnets of the pool of which the ranges have every address, and the ranges that lie in them."""
        taken, ranges = [], dict[IPv4Network, None]()
        for subnet_id, cidr in sorted(self._subnets_of_single_addresses().items()):
            inside = [item for item in self._cidrs if item.overlaps(cidr)]
            if is_taken_whole(cidr, inside):
                taken.append(subnet_id)
                ranges |= dict.fromkeys(inside)
        return taken, list(ranges)

    def _subnets_of_single_addresses(self) -> dict[SubnetId, IPv4Network]:
        """Return the CIDRs of the pool's subnets, without those in which an ENI has /28 prefixes."""
        enis = [eni for eni in self._datastore.enis() if eni.is_in_pool]
        enis_with_prefixes = {row.eni_id for row in self._datastore.addresses() if row.prefix is not None}
        cidrs = {eni.subnet_id: eni.subnet_cidr for eni in enis if isinstance(eni.subnet_cidr, IPv4Network)}
        for eni in enis:
            if eni.eni_id in enis_with_prefixes:
                cidrs.pop(eni.subnet_id, None)
        return cidrs

    def _reservation_problem(self, subnet_id: SubnetId, ranges: Sequence[IPv4Network]) -> str:
        """Return a sentence about the ranges in a subnet that are not reserved, or about EC2's error; "" if all are reserved.

        Calls EC2 once.
        """
        try:
            reserved = self._ec2.explicit_reservations(subnet_id)
        except CloudError as error:
            return f"it is not known whether they are reserved in {subnet_id}: {log_text(error)}"
        bare = [str(cidr) for cidr in ranges if not any(cidr.subnet_of(network) for network in reserved)]
        return f"{', '.join(bare)} in {subnet_id} is in no CIDR reservation of type explicit" if bare else ""

    def slot_caps(self, limits: InstanceLimits) -> Mapping[EniId, int]:
        """Return how many slots the pool may use on each ENI on which a slot was freed for a pinned address."""
        now_s = self._clock.monotonic()
        self._room = {eni_id: until_s for eni_id, until_s in self._room.items() if until_s > now_s}
        return dict.fromkeys(self._room, limits.slots_per_eni - 1)

    # Obtaining

    def _obtain_if_due(self, want: _Want, limits: InstanceLimits) -> None:
        """Obtain an address, unless EC2 refused it a short time ago and the pause before the next request still lasts.

        Raises: PinnedAddressError, for every reason why the node did not obtain it.
        """
        row = self._datastore.address(want.address)
        if row is None:  # what can be refused without a call comes first
            self._require_unfrozen(want)
            self._eni_for(want)
        self._refused.require_due(want.address)
        try:
            if row is None:
                self._obtain(want, limits)
            else:
                self._confirm(want, row)
        except IpamError as error:
            refusal = error
            if not isinstance(error, PinnedAddressError):
                refusal = want.refusal(PinnedRefusalCode.PENDING, cause=log_text(error))
            self._refused.add(want.address, refusal)
            raise refusal from error
        self._refused.discard(want.address)

    def _obtain(self, want: _Want, limits: InstanceLimits) -> None:
        """Have EC2 assign an address to an ENI of this node, and record it. Raises: PinnedAddressError; IpamError."""
        self._ec2.before_release = lambda: self._require_unfrozen(want)
        stock = self._eni_for(want)
        former = self._former_eni(want)
        if self._datastore.address(want.address) is not None:  # `_former_eni` found it on this node, and recorded it
            return
        is_full = stock.used_slot_count >= limits.slots_per_eni
        if is_full:
            self._make_room(want, stock)
            if former is not None:  # the assignment would be the fourth call of this ADD
                raise want.refusal(PinnedRefusalCode.NO_SLOT, cause=f"one was made on {stock.eni.eni_id}")
        if former is not None:
            self._withdraw(want, former)
        self._assign(want, stock, former, is_third_call=is_full or former is not None)

    def _confirm(self, want: _Want, row: Address) -> None:
        """Ask EC2 whether a recorded address is still on this node. Three calls at most.

        If the address is not on this node any more, it is released here, which removes its row. EC2 refuses the release, because our
        ENI does not have the address, and a Describe confirms that. The ENI that has the address now keeps it. A later ADD obtains the
        address like one that was never here.
        Raises: PinnedAddressError if EC2 does not show it on this node; CloudError.
        """
        identity = self._identity()
        holder = self._ec2.find_holder(want.address)
        if identity is not None and holder is not None and holder.instance_id == identity.instance_id:
            self._confirmed[want.address] = self._clock.monotonic()
            return
        self._confirmed.pop(want.address, None)
        self._require_unfrozen(want)
        self._release(ReleaseAddresses(row.eni_id, (row.address,)))
        place = f"{holder.eni_id} of instance {holder.instance_id}" if holder is not None else "no instance"
        raise want.refusal(PinnedRefusalCode.PENDING, cause=f"this node had it, and EC2 shows it on {place}")

    def _require_unfrozen(self, want: _Want) -> None:
        reason = self._freeze.reason
        if reason:
            raise want.refusal(PinnedRefusalCode.PENDING, cause=f"the pool is frozen: {reason}")

    def _eni_for(self, want: _Want) -> EniStock:
        """Return the ENI that gets an address: of the ENIs in its subnet, the one with the fewest used slots.

        Among equal ENIs it is the one on which most addresses could be released.

        Raises: PinnedAddressError if no ENI is in the subnet, or the address is a primary one.
        """
        for eni in self._datastore.enis():
            if eni.primary_address == want.address:
                raise want.refusal(PinnedRefusalCode.IS_PRIMARY, eni=eni.eni_id)
        stocks = [stock for stock in self._datastore.stock().enis if stock.eni.gives_addresses and not stock.eni.pool]
        here = [stock for stock in stocks if want.address in stock.eni.subnet_cidr]
        if not here:
            raise self._other_subnet(want, stocks)
        free_counts = Counter(row.eni_id for row in self._releasable())
        return min(here, key=lambda stock: (stock.used_slot_count, -free_counts[stock.eni.eni_id]))

    def _other_subnet(self, want: _Want, stocks: Sequence[EniStock]) -> IpamError:
        """Return the refusal of an address that is in no subnet of this node's ENIs."""
        identity = self._identity()
        zone = identity.availability_zone if identity else "zone not known"
        subnets = ", ".join(sorted({str(stock.eni.subnet_cidr) for stock in stocks})) or "none"
        return want.refusal(PinnedRefusalCode.OTHER_SUBNET, zone=zone, subnets=subnets)

    def _former_eni(self, want: _Want) -> _Former | None:
        """Return the ENI from which an address must be withdrawn; None if no other ENI is known to have it.

        One call. If EC2 shows the address on this node, it is recorded by a second call, and the result is None.
        Raises: PinnedAddressError if it must not be withdrawn; CloudError.
        """
        if want.address in self._unattached:
            return self._unattached_eni(want)
        holder = self._ec2.find_holder(want.address)
        if holder is None:
            return None
        identity = self._identity()
        if identity is not None and holder.instance_id == identity.instance_id:
            self._record_own(want, holder, identity)
            return None
        if holder.is_primary:
            raise want.refusal(PinnedRefusalCode.IS_PRIMARY, eni=holder.eni_id)
        if not (holder.is_gone or want.wish.may_take):
            raise want.refusal(PinnedRefusalCode.HELD, eni=holder.eni_id, instance=holder.instance_id, state=holder.state)
        if not holder.is_source_checked:
            raise want.refusal(PinnedRefusalCode.SOURCE_UNCHECKED, eni=holder.eni_id)
        return _Former(holder.eni_id, f"{holder.eni_id} of {holder.instance_id}, which was {holder.state}")

    def _unattached_eni(self, want: _Want) -> _Former | None:
        """Return the unattached ENI that has the wanted address; None if no ENI has it. One call.

        Raises: PinnedAddressError if the ENI is attached, is managed by a service, or must not lose the address; CloudError.
        """
        self._unattached.discard(want.address)
        enis = self._ec2.find_address(want.address)
        if not enis:
            return None
        eni = enis[0]
        if not _is_available(eni):
            raise self._held(want, eni)
        if want.address == eni.primary_address:
            raise want.refusal(PinnedRefusalCode.IS_PRIMARY, eni=eni.eni_id)
        if not eni.is_source_checked:
            raise want.refusal(PinnedRefusalCode.SOURCE_UNCHECKED, eni=eni.eni_id)
        return _Former(eni.eni_id, f"{eni.eni_id}, which was attached to no instance")

    def _record_own(self, want: _Want, holder: AddressHolder, identity: InstanceIdentity) -> None:
        """Record an address that EC2 shows on this node, because an earlier answer was lost. One call.

        Raises: PinnedAddressError if the address cannot be recorded; CloudError.
        """
        self._enis.sync_with_ec2(identity)
        if self._datastore.address(want.address) is None:
            cause = f"EC2 shows it on {holder.eni_id} of this node, and it is not recorded"
            raise want.refusal(PinnedRefusalCode.PENDING, cause=cause)
        self._confirmed[want.address] = self._clock.monotonic()

    def _make_room(self, want: _Want, stock: EniStock) -> None:
        """Release one free address of a full ENI. One call. Raises: PinnedAddressError if none can be released."""
        eni_id = stock.eni.eni_id
        free = [row.address for row in self._releasable() if row.eni_id == eni_id]
        if not free:
            raise want.refusal(PinnedRefusalCode.NO_SLOT, cause=f"{eni_id} has {stock.used_slot_count}, and none is free")
        self._room[eni_id] = self._clock.monotonic() + ROOM_S
        if not self._release(ReleaseAddresses(eni_id, (free[-1],))):
            raise want.refusal(PinnedRefusalCode.NO_SLOT, cause=f"other ADDs need the free addresses of {eni_id}")

    def _releasable(self) -> list[Address]:
        """Return the free addresses that make room for another one: those in no prefix, and not withheld."""
        withheld = self._datastore.withheld()
        free = self._datastore.addresses(state=AddressState.FREE)
        return [row for row in free if row.prefix is None and row.address not in withheld]

    def _withdraw(self, want: _Want, former: _Former) -> None:
        """Take an address from the ENI that had it, if it is still there. Raises: CloudError."""
        log.warning("taking an address address=%s pod=%s from=%s", want.address, want.wish.pod, former.name)
        try:
            self._ec2.withdraw_address(former.eni_id, want.address)
        except CloudNotFoundError as error:  # the assignment that follows shows whether another ENI has it now
            log.info("the address is not there any more address=%s error=%s", want.address, log_text(error))
        self._failpoint("pinned.withdrawn")

    def _assign(self, want: _Want, stock: EniStock, former: _Former | None, *, is_third_call: bool) -> None:
        """Have EC2 assign an address, and record it.

        `is_third_call`: this is the last call that the ADD may make, so if EC2 refuses it, EC2 is not asked who has the address.
        Raises: PinnedAddressError if EC2 refuses it; IpamError.
        """
        eni_id = stock.eni.eni_id
        try:
            self._ec2.assign_address(eni_id, want.address)
        except EniLimitError as error:
            raise want.refusal(PinnedRefusalCode.NO_SLOT, cause=log_text(error)) from error
        except CloudError as error:
            if error.may_have_happened:
                self._resyncs.request(ResyncReason.OTHER, f"it is not known whether {eni_id} has {want.address}")
            if error.may_have_happened or type(error) is not CloudError:
                raise
            if is_third_call:
                cause = f"another ENI has got it, or it is in a /28: {log_text(error)}"
                raise want.refusal(PinnedRefusalCode.PENDING, cause=cause) from error
            raise self._why_refused(want, error) from error
        self._failpoint("pinned.assigned")
        self._room.pop(eni_id, None)
        self._enis.add_addresses(eni_id, frozenset({want.address}), frozenset(), asked_count=1)
        self._confirmed[want.address] = self._clock.monotonic()
        if former is not None:
            with self._datastore.transaction() as uow:
                detail = f"for {want.wish.pod}, from {former.name}"
                uow.record_event(LedgerEvent.MOVED, address=want.address, detail=detail)
        self._failpoint("pinned.recorded")

    def _why_refused(self, want: _Want, error: CloudError) -> IpamError:
        """Return why EC2 refused an address. One call. Raises: CloudError."""
        enis = self._ec2.find_address(want.address)
        if not enis:
            return want.refusal(PinnedRefusalCode.IN_PREFIX, cause=log_text(error))
        if _is_available(enis[0]):
            self._unattached.add(want.address)
            return want.refusal(PinnedRefusalCode.HELD_UNATTACHED, eni=enis[0].eni_id)
        return self._held(want, enis[0])

    @staticmethod
    def _held(want: _Want, eni: DescribedEni) -> IpamError:
        instance = eni.instance_id or eni.operator or "(none)"
        return want.refusal(PinnedRefusalCode.HELD, eni=eni.eni_id, instance=instance, state=eni.attachment_status or eni.status)

    # Addresses that were kept long enough

    def _expire(self) -> None:
        """Stop keeping the addresses that were kept until `_due_s`: release those of a pinned range to EC2, and let any pod get the
        others.

        EC2 is called at most once.
        """
        now_s = self._clock.monotonic()
        due = [row for row in self._pinned_rows() if self._due_s(row) <= now_s]
        self._end_keeping([row for row in due if row.kept_for is not None])
        to_release = [row for row in due if self._is_of_range(row) and self._is_in_pool(row)]
        if not to_release:
            self._release_condition.report(None)
        elif self._backoffs.is_due(RELEASE):
            self._release_of_one_eni(to_release)

    def _end_keeping(self, kept: Sequence[Address]) -> None:
        """Stop keeping addresses for their pods."""
        if not kept:
            return
        with self._datastore.transaction() as uow:
            for row in kept:
                uow.end_keeping(row.address, reason="its time is over")
        self._demand.announce_supply()

    def _release_of_one_eni(self, to_release: Sequence[Address]) -> None:
        """Release to EC2 those of the addresses that are on the ENI of the first address. If that fails, try again later."""
        eni_id = to_release[0].eni_id
        addresses = tuple(row.address for row in to_release if row.eni_id == eni_id)
        try:
            is_released = self._release(ReleaseAddresses(eni_id, addresses))
        except IpamError as error:
            log.warning("pinned addresses stay, will retry eni=%s error=%s", eni_id, log_text(error))
            self._backoffs.back_off(RELEASE, schedule_of(error))
            texts = ", ".join(map(str, addresses))
            self._release_condition.report(problem(ConditionCode.PINNED_RELEASE_REFUSED, addresses=texts, cause=log_text(error)))
            return
        if is_released and not any(map(self._datastore.address, addresses)):
            self._backoffs.clear(RELEASE)
            self._release_condition.report(None)
        else:
            self._backoffs.put(RELEASE, in_s=RELEASE_AGAIN_S)

    def _pinned_rows(self) -> list[Address]:
        """Return the free addresses that are kept for a pod, or that are of a pinned range and on an attached ENI of the pool.

        Addresses that an open operation releases are left out.
        """
        rows = []
        for address in self._datastore.pinned():
            row = self._datastore.address(address)
            if row is None or not row.is_free or self._is_leaving(row):
                continue
            if row.kept_for is not None or self._is_in_pool(row):
                rows.append(row)
        return rows

    def _is_in_pool(self, row: Address) -> bool:
        """Whether the ENI of an address is attached and managed. Only addresses of such an ENI are released."""
        eni = self._datastore.eni(row.eni_id)
        return eni is not None and eni.is_in_pool

    def _is_leaving(self, row: Address) -> bool:
        """Whether an open operation releases an address, or its whole ENI."""
        return any(
            intent.is_release and not intent.is_settled and intent.eni_id == row.eni_id
            for intent in self._datastore.open_intents()
        )

    def _due_s(self, row: Address) -> float:
        """Return until when a free address is kept for its pod, on the monotonic clock.

        Then an address of a pinned range is released. Any other address may then be assigned to any pod, so it is kept for at least a
        cooldown (I8).
        """
        since_s = row.since_monotonic_s or 0.0
        if row.kept_until_s is None:
            return since_s + UNCLAIMED_S
        if self._is_of_range(row):
            return row.kept_until_s
        return max(row.kept_until_s, since_s + self._cooldown_s())

    def _is_of_range(self, row: Address) -> bool:
        return row.prefix is None and any(row.address in cidr for cidr in self._cidrs)


def _is_available(eni: DescribedEni) -> bool:
    """Whether an ENI is attached to nothing, and no service manages it."""
    return eni.status == "available" and not eni.attachment_id and not eni.operator
