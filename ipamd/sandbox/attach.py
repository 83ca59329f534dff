"""Give a sandbox an address and wire it, or undo all of it: after any failure, or if the caller cancels (I1, I4, I5).

Order of effects: claim a first leg (`ipamd/sandbox/legs/`), wire all legs in the kernel, have the network policy agent filter the link
if a setting requires it, record everything in one transaction, reply. Before the reply nothing has been promised to the runtime, so
after a failure the wiring is undone, and the address cools if it was used. A pod that may have interfaces of further network cards
gets all its interfaces in this way, each with an attachment (the record of one interface) of its own (docs/adr/0086).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment, Wired, WiringSpec, record_of
from ipamd.model.card_interfaces import interface_name
from ipamd.model.cni_request import AttachRequest, NetnsIdentity, fingerprint
from ipamd.model.cniresult import build_result
from ipamd.model.errors import IpamError, NothingWiredError, log_text
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.record import dataclass, replace
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.hooks import PolicyEnforcement
from ipamd.sandbox.legs.pool import POOL_WAIT_MARGIN_S, PoolSource
from ipamd.sandbox.legs.source import LegOffer, LegSource
from ipamd.sandbox.multi_nic_choice import MultiNicChoice, pod_of

log = logging.getLogger(__name__)

CARDS_LOOK_S = 0.5
"""Longest pause, in seconds, until a waiting ADD checks again whether the instance's network cards are known. Ours: frequent checks
cost little, because only ADDs right after a start wait for the cards, and a check reads memory only."""

FAILPOINTS = ("rename.recorded", "attach.interface-wired", "attach.wired", "attach.committed", "attach.unwired")
"""The failpoints of ADD: one between every two of its effects. Datastore and kernel adapter list their own failpoints."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """An ADD that has to wait for its first leg.

    `source`: the source from which the leg will come.
    `pending`: why the ADD waits, for people.
    """

    source: LegSource
    pending: str


@dataclass(frozen=True, slots=True)
class _Interface:
    """One interface of a sandbox that an ADD makes.

    `request`: the request of the ADD, with the key of this interface in place of the key of the pod's first interface.
    `spec`: how the interface is wired.
    """

    request: AttachRequest
    spec: WiringSpec


class AttachService(Service):
    """Serves ADD.

    `replayed_count`: the number of repeated requests that got the stored answer.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        cooldown: Cooldown,
        pool: PoolSource,
        sources: Sequence[LegSource] = (),
        waiting_limit: int,
        require_chain: Callable[[AttachRequest], None] = lambda _: None,
        policy: PolicyEnforcement | None = None,
        cards: MultiNicChoice | None = None,
    ) -> None:
        """Keep the collaborators of ADD.

        Args:
            pool: the source of the first leg of every sandbox for which no source in `sources` offers one.
            sources: the sources that are asked before the pool, in this order.
            waiting_limit: the number of ADDs that may be served at once. It is bounded so that a DEL always finds a thread.
            require_chain: raises ChainedPluginMissingError if a plugin that the runtime calls after ours is missing.
            policy: calls the network policy agent; None if no setting requires it.
            cards: decides which pods get interfaces of further network cards; None: no pod does.
        """
        super().__init__(context)
        self._cards = cards or MultiNicChoice()
        self._cooldown = cooldown
        self._pool = pool
        self._sources = tuple(sources)
        self._waiting_limit = waiting_limit
        self._require_chain = require_chain
        self._policy = policy
        self.replayed_count = 0
        self._places = threading.BoundedSemaphore(waiting_limit)

    def attach_sandbox(self, request: AttachRequest, *, deadline: Deadline, steps: StepTimer) -> Attachment:
        """Attach the interface that the request names, and those of further network cards for which the pod asks and may ask.

        Returns: the attachment of the interface that the request names. A repeated request (a runtime repeats after a timeout) gets
            the stored attachment, and nothing is wired again.
        Raises: NotServingError, BusyError, ChainedPluginMissingError, TombstonedError, AttachmentConflictError, NetnsError,
            MultiNicError, WiringError, PolicyAgentSilentError, PolicyAgentRefusedError, DeadlineError, DatastoreError, and the errors
            of the sources of legs. After any of them this request has no record, and its links are removed or are scheduled for
            deletion. The policy agent may still have a record of the pod's name.
        """
        with self._place():
            outcome = self._try(request, deadline, steps)
        if isinstance(outcome, Attachment):
            return outcome
        # While it waits, the ADD occupies a thread that is reserved for such waits, and no place among the ADDs that are being served.
        with outcome.source.waiting(request, deadline) as wait:
            while True:
                with steps.step(outcome.source.step):
                    wait(outcome.pending)
                next_outcome = self._try(request, deadline, steps)
                if isinstance(next_outcome, Attachment):
                    return next_outcome
                outcome = next_outcome

    @contextmanager
    def _place(self) -> Iterator[None]:
        """Count one ADD as being served during the block. Raises: BusyError if `waiting_limit` ADDs are being served already."""
        if not self._places.acquire(blocking=False):
            raise refusal(RefusalCode.TOO_MANY_ADDS, limit=self._waiting_limit)
        try:
            yield
        finally:
            self._places.release()

    def _try(self, request: AttachRequest, deadline: Deadline, steps: StepTimer) -> Attachment | _Pending:
        """Attach the sandbox; or release all locks and return the source that the ADD must wait for, with the reason."""
        self._health.wait_until_serving_adds(deadline)
        self._require_chain(request)  # before any source is called and any address is reserved
        key = request.key
        card_pools = self._card_pools(request, deadline)
        offer = self._offer(request, deadline, steps)
        if isinstance(offer, _Pending):
            return offer
        with ExitStack() as stack:
            with steps.step("lock"):
                stack.enter_context(self._locks.hold(key, "ADD", deadline))
            # Checked again under the lock: an export waits only for ADDs that hold a lock, so it may have begun meanwhile.
            self._health.require_add_service()
            if self._datastore.is_tombstoned(key):
                raise refusal(RefusalCode.SANDBOX_DELETED, sandbox=key)
            with steps.step("netns"):
                identity = self._wiring.identify_netns(request.netns)
            attachment = self._datastore.attachment(key)
            if attachment is not None:
                return self._replay(attachment, request, identity)
            if offer is None:  # no source was asked, because the sandbox had a row then; a DEL has removed the row since (I19)
                raise refusal(RefusalCode.JUST_DETACHED, sandbox=key)
            with offer.claimed(deadline, steps) as spec:
                first = _Interface(request, spec)
                if not card_pools or not spec.is_of_pool:  # a branch ENI is the pod's only interface
                    return self._carry_out([first], identity, deadline, steps)
                with self._further_claimed(first, card_pools, deadline, steps) as further:
                    return self._carry_out([first, *further], identity, deadline, steps)

    def _card_pools(self, request: AttachRequest, deadline: Deadline) -> tuple[str, ...]:
        """Return the pools of a pod's further interfaces, () if the pod does not ask for any.

        After a start the call waits until the instance's network cards are known. Raises: MultiNicError, DeadlineError.
        """
        asked = self._cards.asked_cards(request)
        if asked is None:
            return ()
        while True:
            seen_announcement_count, seen_status = self._demand.announcement_count, self._demand.status
            card_pools = self._cards.further_pools(request, asked)
            if card_pools is not None:
                return card_pools
            deadline.check("waiting for the instance's network cards")
            remaining_s = deadline.remaining_s() - POOL_WAIT_MARGIN_S
            if remaining_s <= 0:
                raise refusal(RefusalCode.MULTI_NIC_CARDS_UNKNOWN, pod=pod_of(request))
            self._demand.wait(
                seen_announcement_count=seen_announcement_count, seen_status=seen_status, timeout_s=min(remaining_s, CARDS_LOOK_S)
            )

    @contextmanager
    def _further_claimed(
        self, first: _Interface, card_pools: Sequence[str], deadline: Deadline, steps: StepTimer
    ) -> Iterator[list[_Interface]]:
        """Reserve an address of each pool in `card_pools`, in the order of the network cards.

        If one of them cannot be reserved, all addresses that were reserved before, also that of the first interface, are freed. The
        locks of the further interfaces are taken after the lock of the first one, in the order of the cards.
        Raises: what `PoolSource.claimed` raises.
        """
        with ExitStack() as claims:
            further: list[_Interface] = []
            try:
                for number, card_pool in enumerate(card_pools, start=1):
                    key = AttachmentKey(first.request.key.container_id, interface_name(number))
                    request = replace(first.request, key=key, prev_result=None)
                    claims.enter_context(self._locks.hold(key, "ADD", deadline))
                    offer = self._pool.offer(request, card_pool=card_pool)
                    further.append(_Interface(request, claims.enter_context(offer.claimed(deadline, steps))))
            except BaseException as error:
                with ExitStack() as undo:
                    for interface in [first, *further]:
                        undo.callback(self._return_unused, interface.spec, log_text(error))
                raise
            yield further

    def _return_unused(self, spec: WiringSpec, reason: str) -> None:
        self._cooldown.roll_back(spec, reason=reason, is_unused=True, is_unwired=True, is_marked=False)

    def _offer(self, request: AttachRequest, deadline: Deadline, steps: StepTimer) -> LegOffer | _Pending | None:
        """Return the offer of the first source that has one, otherwise the offer of the pool.

        Returns None if there are sources, but none has to be asked, because the sandbox's row or tombstone already decides the ADD.
        """
        if self._sources and self._is_answered(request.key):
            return None
        for source in self._sources:
            with steps.step(source.step):
                offer = source.ask(request, deadline)
            if offer is not None:
                return _Pending(source, offer.pending) if offer.pending else offer
        return self._pool.offer(request)

    def _is_answered(self, key: AttachmentKey) -> bool:
        """Whether a row or a tombstone already decides the ADD, so that no source needs to be asked."""
        return self._datastore.attachment(key) is not None or self._datastore.is_tombstoned(key)

    def _replay(self, attachment: Attachment, request: AttachRequest, identity: NetnsIdentity) -> Attachment:
        """Return the stored attachment for a repeated request. Raises: AttachmentConflictError if the request is not the same."""
        if attachment.fingerprint == fingerprint(request, identity):
            self.replayed_count += 1
            return attachment
        raise refusal(
            RefusalCode.ATTACHED_OTHERWISE,
            sandbox=request.key,
            address=attachment.address,
            netns=attachment.netns,
            own_netns=request.netns,
        )

    def _carry_out(
        self, interfaces: Sequence[_Interface], identity: NetnsIdentity, deadline: Deadline, steps: StepTimer
    ) -> Attachment:
        """Wire the interfaces of a sandbox and record them in one transaction. After any failure undo everything and raise.

        Returns: the attachment of the first interface.
        """
        request = interfaces[0].request
        begun: list[_Interface] = []
        try:
            with steps.step("wire"):
                wired: list[Wired] = []
                for interface in interfaces:
                    begun.append(interface)
                    wired.append(self._wire(interface, identity, deadline))
                    if len(interfaces) > 1:
                        self._failpoint("attach.interface-wired")
            self._failpoint("attach.wired")
            if self._policy is not None:
                with steps.step("policy"):
                    self._policy.enforce(request, deadline, interface_count=len(interfaces))
            with steps.step("commit"):
                attachments = self._attachments(interfaces, wired)
                deadline.check(f"attaching sandbox {request.key}")
                self._health.require_adds_allowed()  # another daemon may have come while this ADD waited for its address (I20)
                with self._datastore.transaction() as uow:
                    for attachment in attachments:
                        uow.confirm(attachment)
        except BaseException as error:
            is_unused = isinstance(error, NothingWiredError)
            with ExitStack() as undo:
                for interface in interfaces[len(begun) :]:
                    undo.callback(self._return_unused, interface.spec, log_text(error))
                for interface in begun:
                    is_last = interface is begun[-1]
                    undo.callback(self._roll_back, interface.spec, reason=log_text(error), is_unused=is_unused and is_last)
            raise
        self._failpoint("attach.committed")
        return attachments[0]

    def _wire(self, interface: _Interface, identity: NetnsIdentity, deadline: Deadline) -> Wired:
        """Wire one interface. If the caller (the plugin of amazon-vpc-cni-k8s) wires it after our reply, only return empty MACs.

        Raises: NothingWiredError, WiringError, NetnsError, DeadlineError; UplinkPendingError if the trunk ENI's link is not there.
        """
        spec = interface.spec
        if interface.request.is_wired_by_caller:
            return Wired(MacAddress(""), MacAddress(""), identity)
        deadline.check(f"wiring sandbox {spec.key}")
        wired = self._wiring.wire(spec)
        if wired.netns_identity != identity:
            raise refusal(RefusalCode.NETNS_REPLACED, netns=spec.netns, sandbox=spec.key)
        return wired

    def _attachments(self, interfaces: Sequence[_Interface], wired: Sequence[Wired]) -> list[Attachment]:
        """Return the records of a sandbox's interfaces. The CNI result in the first record lists all of the interfaces."""
        pairs = [(interface.spec, outcome) for interface, outcome in zip(interfaces, wired, strict=True)]
        attachments = []
        for interface, outcome in zip(interfaces, wired, strict=True):
            is_first = interface is interfaces[0]
            attachments.append(self._attachment(interface, outcome, further=pairs[1:] if is_first else ()))
        return attachments

    def _attachment(self, interface: _Interface, wired: Wired, *, further: Sequence[tuple[WiringSpec, Wired]]) -> Attachment:
        request, spec = interface.request, interface.spec
        return record_of(
            spec,
            netns_identity=wired.netns_identity,
            fingerprint=fingerprint(request, wired.netns_identity),
            result=build_result(spec, wired, prev_result=request.prev_result, further=further),
            created_at=self._clock.now(),
            network_name=request.network_name,
            names=request.names,
        )

    def _roll_back(self, spec: WiringSpec, *, reason: str, is_unused: bool) -> None:
        """Undo the wiring of a failed ADD. If the undoing fails, the cooldown thread deletes the link, and the address is not free
        before the link is gone.

        `is_unused`: nothing was wired. Unless the undoing fails, an address of the pool is then free again at once. If it cooled
        instead, a runtime that repeats an ADD which the kernel refuses would soon have all addresses of the pool cooling (I8). If the
        caller wires the sandbox itself, there is nothing to undo, and the address cools.
        """
        if spec.is_imported:  # the caller has not begun to wire this sandbox: a link with this name belongs to an earlier sandbox
            self._cooldown.abort(spec.address, reason=reason, dying_veth=None)
            return
        is_unwired = is_marked = False
        try:
            try:
                self._wiring.unwire(spec)
                is_unwired = True
            except IpamError as error:
                log.warning(
                    "wiring could not be undone; its link is deleted later sandbox=%s error=%s", spec.key, log_text(error)
                )
                try:
                    self._wiring.mark_for_deletion(spec)
                    is_marked = True
                except IpamError as mark_error:
                    self._health.record_error(f"undo of {spec.key}", mark_error)
                    log.error(
                        "a link could not be marked for deletion sandbox=%s veth=%s error=%s",
                        spec.key,
                        spec.host_veth,
                        log_text(mark_error),
                    )
            self._failpoint("attach.unwired")
        finally:  # also after an unexpected error: otherwise the address would stay reserved until a restart
            self._cooldown.roll_back(spec, reason=reason, is_unused=is_unused, is_unwired=is_unwired, is_marked=is_marked)
