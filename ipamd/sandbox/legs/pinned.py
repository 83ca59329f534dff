"""Give a pod the address that it asks for by its annotation (docs/adr/0083).

The annotation names an address, or asks for the address that the pod had last on this node. The address is one of the pool, so this
source only chooses it. `PoolSource` reserves it, and everything after that is as for any other pod. An ADD whose address is cooling or
has to come from EC2 waits in the same way as an ADD for a branch ENI: without the sandbox's lock, and in a thread that is reserved for
such waits. The ADD makes no EC2 call itself (I12).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.model.address import Address, AddressState
from ipamd.model.cni_request import AttachRequest
from ipamd.model.family import IpAddress
from ipamd.model.pinned_address import PinnedClaim, PinnedWish
from ipamd.model.pinned_refusals import PinnedRefusalCode, pinned_refusal
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.legs.pool import PoolOffer, PoolSource
from ipamd.sandbox.pinned_address_choice import PinnedAddressChoice
from ipamd.sandbox.pod_pool_choice import PodPoolChoice

WAITING_LIMIT = 16
"""The number of ADDs that may wait at once for an address that a pod asks for. The RPC server has this many additional threads. Ours:
few ADDs wait at once, because the StatefulSet pods of a drained node come one after the other."""

WAIT_MARGIN_S = 3.0
"""The part of the caller's deadline, in seconds, that is kept for the steps after the wait. Ours: the policy agent may take 2 s,
wiring takes 0.03 s."""

LOOK_S = 0.5
"""Longest pause, in seconds, until a waiting ADD checks again whether it can reserve the address, and whether its caller is still
there. Ours: a change of the pool ends the pause early, and a check reads memory only."""

FROM_EC2 = "EC2 is asked for it"
"""The reason to wait for an address that the node does not have, or has perhaps lost."""

Obtain = Callable[[PinnedWish, IpAddress, Deadline], None]
"""A function that has the pool's thread request an address from EC2, and waits until the node has the address.

Raises: PinnedAddressError, DeadlineError."""


IsCertain = Callable[[PinnedWish, IpAddress], bool]
"""A function that returns whether a recorded address may be assigned without asking EC2, because no other node can have taken it."""


class PinnedSource(Service):
    """Offers pods the addresses that they ask for. Safe from any thread. See `LegSource`."""

    step = "reserve"

    waiting_limit = WAITING_LIMIT

    def __init__(
        self,
        context: ServiceContext,
        *,
        choice: PinnedAddressChoice,
        pools: PodPoolChoice,
        pool: PoolSource,
        cooldown: Cooldown,
        obtain: Obtain,
        is_certain: IsCertain,
    ) -> None:
        super().__init__(context)
        self._choice = choice
        self._pools = pools
        self._pool = pool
        self._cooldown = cooldown
        self._obtain = obtain
        self._is_certain = is_certain
        self._waiting: set[object] = set()

    def ask(self, request: AttachRequest, deadline: Deadline) -> PoolOffer | None:
        """Decide from memory which address one ADD gets. Returns None if the pod asks for none.

        A pod that asks for the address that it had last gets any address if none is kept for it.
        Raises: PinnedAddressError, PoolAnnotationError.
        """
        del deadline
        wish = self._choice.by_annotation(request)
        if wish is None:
            return None
        self._choice.refuse_for_pool(request, self._pools.of(request))
        address = wish.address or self._last_address(wish.pod)
        pending = "" if address is None else self._pending(wish, address)
        return self._pool.offer(request, PinnedClaim(wish.pod, address, wish.kept_s), pending=pending)

    def _last_address(self, pod: str) -> IpAddress | None:
        """Return the address that is kept for a pod, None if there is none. If several are kept for it, return the lowest."""
        rows = map(self._datastore.address, self._datastore.pinned())
        return min((row.address for row in rows if row is not None and row.kept_for == pod), default=None)

    def _pending(self, wish: PinnedWish, address: IpAddress) -> str:
        """Return why an ADD must wait for its address; "" if the address can be reserved.

        Raises: PinnedAddressError if waiting is useless.
        """
        row = self._datastore.address(address)
        if row is None:
            return FROM_EC2
        if row.is_in_use:
            raise self._in_use(wish, row)
        self._refuse_kept_for_other(wish, row)
        self._refuse_other_pool(wish, row)
        if wish.address is not None and row.prefix is not None:
            cause = f"it is in {row.prefix} of {row.eni_id} of this node"
            raise pinned_refusal(PinnedRefusalCode.IN_PREFIX, pod=wish.pod, address=address, cause=cause)
        if row.state is AddressState.COOLING and row.kept_for == wish.pod:
            self._cooldown.hasten(address)
        if not row.is_free:
            return f"it is {row.state} on this node"
        return "" if self._is_certain(wish, address) else FROM_EC2

    def _refuse_kept_for_other(self, wish: PinnedWish, row: Address) -> None:
        if row.kept_for not in (None, wish.pod):
            left_s = max((row.kept_until_s or 0.0) - self._clock.monotonic(), 0.0)
            code = PinnedRefusalCode.KEPT_FOR_OTHER
            raise pinned_refusal(code, pod=wish.pod, address=row.address, holder_pod=row.kept_for, left_s=f"{left_s:.0f}")

    def _refuse_other_pool(self, wish: PinnedWish, row: Address) -> None:
        """Refuse an address on an ENI of a pool of pods: the pod would get that pool's security groups (docs/adr/0084).

        If a range whose addresses pods ask for is not reserved in the subnet, EC2 may give such an ENI an address of the range. While
        no pod has that address, the pool's thread releases it to EC2 (`ipamd/eni/pinned.py`). A later ADD can obtain it for another
        ENI.
        """
        eni = self._datastore.eni(row.eni_id)
        if eni is not None and eni.pool:
            cause = f"EC2 has given it to {eni.eni_id}, which is of pool {eni.pool}"
            raise pinned_refusal(PinnedRefusalCode.PENDING, pod=wish.pod, address=row.address, cause=cause)

    def _in_use(self, wish: PinnedWish, row: Address) -> Exception:
        holder = self._datastore.attachment(row.owner) if row.owner is not None else None
        return pinned_refusal(
            PinnedRefusalCode.IN_USE_HERE,
            pod=wish.pod,
            address=row.address,
            holder=row.owner,
            holder_pod=(holder.sandbox_name if holder is not None else "") or "a pod that is not known",
        )

    @contextmanager
    def waiting(self, request: AttachRequest, deadline: Deadline) -> Iterator[Callable[[str], None]]:
        """Let one ADD wait for its address. At most `waiting_limit` ADDs wait at a time, because each keeps a thread.

        Yields: a function that waits once. Afterwards the caller tries to reserve the address again. The argument of the function is
            the reason to wait (`_pending`). If that is FROM_EC2, the address is requested from EC2. The function raises
            PinnedAddressError if the pod cannot get the address or the time is up, and DeadlineError if the caller left.
        Raises: BusyError if too many ADDs wait already.
        """
        ticket = object()
        self._waiting.add(ticket)
        is_obtained = False
        try:
            if len(self._waiting) > self.waiting_limit:
                raise pinned_refusal(PinnedRefusalCode.TOO_MANY_WAITS, limit=self.waiting_limit)

            def wait(why: str) -> None:
                nonlocal is_obtained
                self._wait(request, deadline, why, is_obtained=is_obtained)
                is_obtained = is_obtained or why == FROM_EC2

            yield wait
        finally:
            self._waiting.discard(ticket)

    def _wait(self, request: AttachRequest, deadline: Deadline, why: str, *, is_obtained: bool) -> None:
        """Wait once, for EC2 or for a change of the pool; not at all if the pod does not ask for a certain address any more.

        `is_obtained`: whether EC2 was asked for the address already. Each ADD asks only once, because that may take three calls.
        Raises: see `waiting`.
        """
        wish = self._choice.by_annotation(request)
        address = None if wish is None else wish.address or self._last_address(wish.pod)
        if wish is None or address is None:
            return
        seen_announcement_count, seen_status = self._demand.announcement_count, self._demand.status
        deadline.check(f"waiting for address {address}")
        remaining_s = deadline.remaining_s() - WAIT_MARGIN_S
        if remaining_s <= 0 or (why == FROM_EC2 and is_obtained):
            raise pinned_refusal(PinnedRefusalCode.PENDING, pod=wish.pod, address=address, cause=why)
        if why == FROM_EC2:
            self._obtain(wish, address, Deadline(deadline.clock, deadline.monotonic_s - WAIT_MARGIN_S, deadline.is_cancelled))
        else:
            self._demand.wait(
                seen_announcement_count=seen_announcement_count, seen_status=seen_status, timeout_s=min(remaining_s, LOOK_S)
            )
