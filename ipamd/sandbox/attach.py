"""Give a sandbox an address and wire it. All or nothing, on any failure or client cancellation (I1, I4, I5).

Order of effects: claim a first leg (`ipamd/sandbox/legs/`), wire all legs in the kernel, have the network policy agent filter the link
if a setting requires it, record everything in one transaction, reply. The runtime has no claim to the address before the transaction:
after any failure the wiring is undone and the address cools.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment, Wired, WiringSpec, record_of
from ipamd.model.cni_request import AttachRequest, NetnsIdentity, fingerprint
from ipamd.model.cniresult import build_result
from ipamd.model.errors import IpamError, NothingWiredError, log_text
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.record import dataclass
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.hooks import PolicyEnforcement
from ipamd.sandbox.legs.pool import PoolSource
from ipamd.sandbox.legs.source import LegOffer, LegSource

log = logging.getLogger(__name__)

FAILPOINTS = ("rename.recorded", "attach.wired", "attach.committed", "attach.unwired")
"""Between every two effects of an ADD; datastore and kernel adapter list their own."""


@dataclass(frozen=True, slots=True)
class _Pending:
    """An ADD that has to wait for its first leg. `source`: from which the leg comes. `pending`: why the ADD waits, for people."""

    source: LegSource
    pending: str


class AttachService(Service):
    """ADD. `replayed_count`: repeated requests that got the stored answer."""

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
    ) -> None:
        """Keep what ADD needs.

        Args:
            pool: makes the first leg of every sandbox that gets none from `sources`, which decide before it.
            waiting_limit: ADDs that may be in work at once, so that DEL always finds a thread.
            require_chain: raises ChainedPluginMissingError if the runtime would fail after this ADD.
            policy: calls the network policy agent; None if no setting requires it.
        """
        super().__init__(context)
        self._cooldown = cooldown
        self._pool = pool
        self._sources = tuple(sources)
        self._waiting_limit = waiting_limit
        self._require_chain = require_chain
        self._policy = policy
        self.replayed_count = 0
        self._places = threading.BoundedSemaphore(waiting_limit)

    def attach_sandbox(self, request: AttachRequest, *, deadline: Deadline, steps: StepTimer) -> Attachment:
        """Attach one interface of one sandbox.

        Returns: the attachment; for a repeated request (a runtime repeats after a timeout) the stored one, at once.
        Raises: NotServingError, BusyError, ChainedPluginMissingError, TombstonedError, AttachmentConflictError, NetnsError,
            WiringError, PolicyAgentSilentError, PolicyAgentRefusedError, DeadlineError, DatastoreError, and what the sources of legs
            raise. After any of them nothing remains of this request, except that the policy agent may know the pod's name.
        """
        with self._place():
            outcome = self._try(request, deadline, steps)
        if isinstance(outcome, Attachment):
            return outcome
        with outcome.source.waiting(request, deadline) as wait:  # occupies a thread reserved for such waits instead of a place
            while True:
                with steps.step(outcome.source.step):
                    wait(outcome.pending)
                next_outcome = self._try(request, deadline, steps)
                if isinstance(next_outcome, Attachment):
                    return next_outcome
                outcome = next_outcome

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise refusal(RefusalCode.TOO_MANY_ADDS, limit=self._waiting_limit)
        try:
            yield
        finally:
            self._places.release()

    def _try(self, request: AttachRequest, deadline: Deadline, steps: StepTimer) -> Attachment | _Pending:
        """Attach the sandbox; or return which source has to be waited for and why, with no lock held any more."""
        self._health.wait_until_serving_adds(deadline)
        self._require_chain(request)  # before any source is called and any address is reserved
        key = request.key
        offer = self._offer(request, deadline, steps)
        if isinstance(offer, _Pending):
            return offer
        with ExitStack() as stack:
            with steps.step("lock"):
                stack.enter_context(self._locks.hold(key, "ADD", deadline))
            # Checked again under the lock: an export waits only for ADDs that hold a lock, so it may have begun before this one.
            self._health.require_add_service()
            if self._datastore.is_tombstoned(key):
                raise refusal(RefusalCode.SANDBOX_DELETED, sandbox=key)
            with steps.step("netns"):
                identity = self._wiring.identify_netns(request.netns)
            attachment = self._datastore.attachment(key)
            if attachment is not None:
                return self._replay(attachment, request, identity)
            if offer is None:  # the sandbox was attached until a moment ago, so no decision was made for its pod (I19)
                raise refusal(RefusalCode.JUST_DETACHED, sandbox=key)
            with offer.claimed(deadline, steps) as spec:
                return self._carry_out(request, spec, identity, deadline, steps)

    def _offer(self, request: AttachRequest, deadline: Deadline, steps: StepTimer) -> LegOffer | _Pending | None:
        """Ask the sources for the first leg of the sandbox; None if its row or tombstone answers the ADD without asking them."""
        if self._sources and self._is_answered(request.key):
            return None
        for source in self._sources:
            with steps.step(source.step):
                offer = source.ask(request, deadline)
            if offer is not None:
                return _Pending(source, offer.pending) if offer.pending else offer
        return self._pool.offer(request)

    def _is_answered(self, key: AttachmentKey) -> bool:
        """Whether a row or a tombstone answers the ADD already: then it does not matter which ENI its pod must have."""
        return self._datastore.attachment(key) is not None or self._datastore.is_tombstoned(key)

    def _replay(self, attachment: Attachment, request: AttachRequest, identity: NetnsIdentity) -> Attachment:
        """Return the stored attachment for a repeated request. Raises: AttachmentConflictError for another request."""
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
        self, request: AttachRequest, spec: WiringSpec, identity: NetnsIdentity, deadline: Deadline, steps: StepTimer
    ) -> Attachment:
        """Wire a sandbox and record it; if one of the two fails, undo the wiring and raise."""
        key = request.key
        try:
            with steps.step("wire"):
                wired = Wired(MacAddress(""), MacAddress(""), identity)
                if not request.is_wired_by_caller:
                    deadline.check(f"wiring sandbox {key}")
                    wired = self._wiring.wire(spec)
                    if wired.netns_identity != identity:
                        raise refusal(RefusalCode.NETNS_REPLACED, netns=spec.netns, sandbox=key)
            self._failpoint("attach.wired")
            if self._policy is not None:
                with steps.step("policy"):
                    self._policy.enforce(request, deadline)
            with steps.step("commit"):
                attachment = self._attachment(request, spec, wired)
                deadline.check(f"attaching sandbox {key}")
                self._health.require_adds_allowed()  # another daemon may have come while this ADD waited for its address (I20)
                with self._datastore.transaction() as uow:
                    uow.confirm(attachment)
        except BaseException as error:
            self._roll_back(spec, reason=log_text(error), is_unused=isinstance(error, NothingWiredError))
            raise
        self._failpoint("attach.committed")
        return attachment

    def _attachment(self, request: AttachRequest, spec: WiringSpec, wired: Wired) -> Attachment:
        return record_of(
            spec,
            netns_identity=wired.netns_identity,
            fingerprint=fingerprint(request, wired.netns_identity),
            result=build_result(spec, wired, prev_result=request.prev_result),
            created_at=self._clock.now(),
            network_name=request.network_name,
            names=request.names,
        )

    def _roll_back(self, spec: WiringSpec, *, reason: str, is_unused: bool) -> None:
        """Undo the wiring. If even that fails, the cooldown thread deletes the link, and the address cools until it is gone.

        `is_unused`: nothing was wired, so an address of the pool is free again at once: a runtime that repeats an ADD which the kernel
        refuses must not cool the pool empty (I8).
        """
        if spec.is_imported:  # the caller has not begun to wire it: a link with this name belongs to an earlier sandbox
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
