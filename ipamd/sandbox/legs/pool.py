"""Give a new sandbox an address of the pool, and in the same step an address for its egress leg if it gets one.

An egress leg is a further veth pair for connections in the IP family that is not the pool's.

While no address is free, the ADD waits as long as the pool may still grow and its caller has time. No EC2 call is made here (I12): a
waiting ADD wakes the pool maintainer. The pool does not grow for a pod whose earlier sandboxes still have addresses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.demand import PoolStatus
from ipamd.model.address import Address
from ipamd.model.attachment import POD_IFNAME, WiringSpec
from ipamd.model.blocked import Blocked
from ipamd.model.cni_request import AttachRequest
from ipamd.model.errors import IpamError, LocalRangeEmptyError, PoolEmptyError, UndeletedSandboxesError
from ipamd.model.family import Family
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.pinned_address import PinnedClaim
from ipamd.model.pinned_refusals import PinnedRefusalCode, pinned_refusal
from ipamd.model.pod_snat import PodSnat
from ipamd.model.pod_snat_choice import PodSnatChoice
from ipamd.model.pool_counts import counts_of_pool
from ipamd.model.record import dataclass, replace
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.pod_pool_choice import PodPoolChoice
from ipamd.sandbox.repeated_adds import RepeatedAdds
from ipamd.sandbox.veth_names import VethNames

POOL_WAIT_MARGIN_S = 1.0
"""The part of the caller's deadline, in seconds, that is kept for the rollback and the refusal. Ours: undoing the wiring takes 20 ms,
a reply 1 ms."""

FAILPOINTS = ("attach.reserved",)


class PoolSource(Service):
    """Offers every ADD an address of the pool. Safe from any thread.

    `pool_empty`: the number of ADDs that were refused because no address was free, in the pool or for the egress leg, by cause.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        cooldown: Cooldown,
        mtu: Callable[[], int],
        egress: Callable[[], Family | None],
        delay: Callable[[], Blocked],
        names: VethNames,
        pod_names: VethNames,
        repeated: RepeatedAdds,
        snat: PodSnatChoice,
        pools: PodPoolChoice,
        has_source_tree: Callable[[], bool] = lambda: False,
        request_list: Callable[[], None] = lambda: None,
    ) -> None:
        """Keep the collaborators of a reservation.

        Args:
            mtu: returns the MTU of a new sandbox in bytes.
            egress: returns the address family of the extra leg for egress of a new sandbox; None if it gets no such leg.
            delay: returns why a pool that is growing has no address yet.
            names: names host veths.
            pod_names: names host veths after pods, for a caller that wires the sandbox itself and names the link after the pod.
            repeated: counts the earlier sandboxes of each pod, and refuses a pod that has too many of them.
            snat: chooses how connections of a new sandbox to outside the VPC are translated.
            pools: chooses the pool of a new sandbox's address.
            has_source_tree: returns whether the routing rules from single addresses are sorted into buckets
                (`ipamd/model/source_rules.py`).
            request_list: requests a list of the runtime soon, because an earlier sandbox of a pod may be gone.
        """
        super().__init__(context)
        self._cooldown = cooldown
        self._mtu = mtu
        self._egress = egress
        self._delay = delay
        self._names = names
        self._pod_names = pod_names
        self._repeated = repeated
        self._snat = snat
        self._pools = pools
        self._has_source_tree = has_source_tree
        self._request_list = request_list
        self.pool_empty: Counter[Blocked] = Counter()

    def offer(
        self, request: AttachRequest, claim: PinnedClaim | None = None, *, pending: str = "", card_pool: str = ""
    ) -> PoolOffer:
        """Offer an address, which is reserved when the offer is claimed.

        Args:
            claim: the address for which the pod asks; None if it gets any address.
            pending: why the ADD must wait before it can claim the address; "" if it need not.
            card_pool: the pool of the network card, if the interface is one of a further network card; "" for a pod's first interface.
        """
        return PoolOffer(self, request, claim, pending, card_pool)

    @contextmanager
    def claimed(
        self,
        request: AttachRequest,
        deadline: Deadline,
        steps: StepTimer,
        claim: PinnedClaim | None = None,
        card_pool: str = "",
    ) -> Iterator[WiringSpec]:
        """Reserve an address and a name; see `LegOffer.claimed`. `claim` and `card_pool` are those of `offer`.

        Raises: SnatAnnotationError, PinnedAddressError, PoolAnnotationError, UndeletedSandboxesError, PoolEmptyError,
            PodPoolEmptyError, LocalRangeEmptyError, VethNameTakenError, BusyError, WiringError, DeadlineError, DatastoreError.
        """
        snat, pool = self._snat.by_annotation(request), card_pool or self._pools.of(request)
        names = self._pod_names if request.is_wired_by_caller else self._names
        with names.claimed(request, deadline) as host_veth:
            has_earlier = self._require_few(request)
            with steps.step("reserve"):
                egress = self._egress_of(request)
                if claim is not None and claim.address is not None:
                    reserved = self._take_named(request, claim, egress)
                else:
                    reserved = self._reserve(request, deadline, egress=egress, pool=pool)
            if not card_pool:  # the address of a further network card must not count as another sandbox of the pod
                self._repeated.record_taken(request, reserved.address)
            self._failpoint("attach.reserved")
            spec = self._spec(request, reserved, host_veth, snat or self._snat.by_settings(request, reserved.address))
            yield spec if claim is None else replace(spec, kept_s=claim.kept_s)
            self._demand.take(is_demand=not has_earlier, pool=pool)
        if has_earlier:
            self._request_list()

    def _egress_of(self, request: AttachRequest) -> Family | None:
        """Return the address family of the sandbox's leg for egress; None if it gets no such leg.

        Only the pod's first interface has a leg for egress. A caller that wires the sandbox itself also makes that leg itself.
        """
        if request.key.ifname != POD_IFNAME or request.is_wired_by_caller:
            return None
        return self._egress()

    def _require_few(self, request: AttachRequest) -> bool:
        """Require that the pod has few earlier sandboxes, and request a list of the runtime if it has too many.

        Returns: whether the pod has any earlier sandbox. Raises: UndeletedSandboxesError.
        """
        try:
            return self._repeated.require_few(request)
        except UndeletedSandboxesError:
            self._request_list()
            raise

    def _spec(self, request: AttachRequest, reserved: Address, host_veth: str, snat: PodSnat | None) -> WiringSpec:
        """Return the spec to wire. Raises: WiringError if the ENI of the address is gone. The address cools then."""
        eni = self._datastore.eni(reserved.eni_id)
        if eni is None:
            self._cooldown.abort(reserved.address, reason="no ENI for the address", dying_veth=None)
            raise refusal(RefusalCode.ENI_GONE, eni=reserved.eni_id, address=reserved.address)
        return WiringSpec(
            key=request.key,
            address=reserved.address,
            route_table=eni.route_table,
            host_veth=host_veth,
            netns=request.netns,
            mtu=self._mtu(),
            others_mac=MacAddress("") if request.is_wired_by_caller else None,
            prefix=reserved.prefix,
            subnet=eni.subnet_cidr if self._has_source_tree() else None,
            other_address=reserved.other_address,
            eni_id=reserved.eni_id,
            snat=snat,
        )

    def _take_named(self, request: AttachRequest, claim: PinnedClaim, egress: Family | None) -> Address:
        """Reserve the address for which a pod asks. Raises: PinnedAddressError if it is not available now; LocalRangeEmptyError."""
        try:
            return self._datastore.reserve(request.key, extra_family=egress, address=claim.address, pod=claim.pod)
        except PoolEmptyError as error:
            cause = "it was just taken, EC2 did not show it lately, or the routing of its ENI is not in place"
            raise pinned_refusal(PinnedRefusalCode.PENDING, pod=claim.pod, address=claim.address, cause=cause) from error

    def _reserve(self, request: AttachRequest, deadline: Deadline, *, egress: Family | None, pool: str) -> Address:
        """Reserve a free address of a pool. While none is free, wait as long as one may still come and the caller has time.

        An address may come if the pool may grow, if an address will have cooled in time, or if a blocked pool will try again in time.
        The pool does not grow for a pod whose earlier sandboxes have addresses. So for such a pod the first reason does not count.
        Raises: PoolEmptyError, PodPoolEmptyError, UndeletedSandboxesError, LocalRangeEmptyError, DeadlineError.
        """
        key = request.key
        try:
            return self._take(key, egress, pool)
        except PoolEmptyError:
            is_demand = not self._repeated.is_repeat(request)
            generation = self._demand.join(is_demand=is_demand, pool=pool)
        try:
            while True:
                # Read these before trying, so that a change after this point ends the wait below at once.
                announcement_count, status = self._demand.announcement_count, self._demand.status_of(pool)
                try:
                    return self._take(key, egress, pool)
                except PoolEmptyError as empty:
                    deadline.check(f"waiting for an address for sandbox {key}")
                    remaining_s = deadline.remaining_s() - POOL_WAIT_MARGIN_S
                    cooled_s = self._cooled_s(pool)
                    # If the status is older than `join`, the maintainer has not planned with this ADD yet.
                    is_planned = status.generation >= generation
                    is_blocked = is_planned and (status.blocked is not None or not is_demand)
                    if remaining_s <= 0 or (is_blocked and not self._changes_within(remaining_s, status, cooled_s)):
                        raise self._refusal(request, empty, status, cooled_s, pool) from None
                self._demand.wait(
                    seen_announcement_count=announcement_count, seen_status=status, timeout_s=min(remaining_s, 1.0), pool=pool
                )
        finally:
            self._demand.leave(is_demand=is_demand, pool=pool)

    def _changes_within(self, remaining_s: float, status: PoolStatus, cooled_s: float | None) -> bool:
        """Whether an address will have cooled, or the pool will try to grow again, within the remaining time."""
        if cooled_s is not None and cooled_s < remaining_s:
            return True
        return status.retry_deadline is not None and status.retry_deadline - self._clock.monotonic() < remaining_s

    def _cooled_s(self, pool: str) -> float | None:
        """Return a lower bound of the time, in seconds, until an address of a pool has cooled; None if none of its addresses is
        cooling.

        The bound is the time until the first address of any pool has cooled.
        """
        due_s = self._cooldown.next_free_s()
        if due_s is None or not self._pools.is_on or counts_of_pool(self._datastore.stock(), pool).cooling:
            return due_s
        return None

    def _take(self, key: AttachmentKey, egress: Family | None, pool: str) -> Address:
        try:
            return self._datastore.reserve(key, extra_family=egress, pool=pool)
        except LocalRangeEmptyError:
            self.pool_empty[Blocked.EGRESS] += 1
            raise

    def _refusal(
        self, request: AttachRequest, empty: PoolEmptyError, status: PoolStatus, cooled_s: float | None, pool: str
    ) -> IpamError:
        """Return the error for an ADD that gets no address, with the cause that the pool published and the next step (I14).

        If earlier sandboxes of pods still have addresses, the error names these pods, and the step is to remove the sandboxes.
        """
        kind = self._delay() if status.kind is Blocked.GROWING else status.kind
        cause = status.shortage(kind)
        undeleted = self._repeated.shortage(request, cause=cause)
        if undeleted is not None:
            self.pool_empty[Blocked.UNDELETED] += 1
            self._request_list()
            return undeleted
        self.pool_empty[kind] += 1
        step = status.step() or ("" if cooled_s is not None else "retry; `ipamctl status` shows the pool loop")
        if cooled_s is not None:
            step = f"an address has cooled in {cooled_s:.0f} s: retry then" + (f"; or {step}" if step else "")
        counts, key = counts_of_pool(self._datastore.stock(), pool), request.key
        error = refusal(RefusalCode.NO_ADDRESS, sandbox=key, cause=cause, counts=counts, step=step)
        if pool:
            error = refusal(RefusalCode.POOL_WITHOUT_ADDRESS, pool=pool, sandbox=key, cause=cause, counts=counts, step=step)
        return error.with_traceback(empty.__traceback__)


@dataclass(frozen=True, slots=True)
class PoolOffer:
    """An address of the pool for one ADD. See `LegOffer`, and `PoolSource.offer` for the fields."""

    source: PoolSource
    request: AttachRequest
    claim: PinnedClaim | None = None
    pending: str = ""
    card_pool: str = ""

    def claimed(self, deadline: Deadline, steps: StepTimer) -> AbstractContextManager[WiringSpec]:
        """Reserve the address; see `PoolSource.claimed`."""
        return self.source.claimed(self.request, deadline, steps, self.claim, self.card_pool)
