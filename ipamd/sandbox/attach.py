"""Give a sandbox an address and wire it. All or nothing, on any failure or client cancellation (I1, I4, I5).

Order of effects: reserve in memory, wire in the kernel, have the policy agent filter the link if a setting wants it, one transaction,
reply. A sandbox with a branch ENI reserves nothing (`ipamd/branch/hook.py`). Before the transaction nothing is promised; after any
failure the wiring is undone and the address cools. No EC2 call is made here (I12): an empty pool wakes the pool maintainer.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, Steps
from ipamd.core.demand import PoolStatus
from ipamd.model.address import Address
from ipamd.model.attachment import (
    POD_IFNAME,
    VETH_HASH_LENGTH,
    Attachment,
    AttachRequest,
    NetnsIdentity,
    Wired,
    WiringSpec,
    fingerprint,
    name_key,
    pod_veth_name,
    veth_name,
)
from ipamd.model.branch import BranchEni
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cniresult import build_result, recorded_spec, result_differences
from ipamd.model.errors import (
    AttachmentConflictError,
    BusyError,
    CheckFailedError,
    EgressEmptyError,
    IpamError,
    NetnsError,
    PoolEmptyError,
    TombstonedError,
    UnknownAttachmentError,
    VethNameTakenError,
    WiringError,
    log_text,
)
from ipamd.model.family import Family
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.pool import Blocked
from ipamd.model.sandbox import SandboxState
from ipamd.ports import HostNetwork, Runtime
from ipamd.sandbox.cooldown import Cooldown

if TYPE_CHECKING:
    from ipamd.branch.hook import BranchHook
    from ipamd.policy.hook import PolicyHook

log = logging.getLogger(__name__)


# The name of a new sandbox's host veth: made from the key, or, where a setting asks for it, from the pod's name.
#
# Calico in policy-only mode and aws-network-policy-agent compute the name that amazon-vpc-cni-k8s gives, and attach their policy
# to the link of that name. Two sandboxes of one pod cannot both have it, and a name of another form would escape policy; so the
# name goes from a predecessor that is not ready any more to its successor, and otherwise the ADD is refused and retried
# (docs/adr/0024).


class VethNames(Service):
    """Names host veths. Locks: the sandbox's, then the name's, then the predecessor's."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        cooldown: Cooldown,
        runtime: Runtime | None,
        prefix: str,
        is_by_pod: bool,
        own_prefix: str = "",
    ) -> None:
        """`runtime` None: nobody can say that a predecessor is not ready. `own_prefix`: of these links, if they have one; the lock of
        a pod's name is that of `prefix` all the same.
        """
        super().__init__(context)
        self._cooldown = cooldown
        self._runtime = runtime
        self._lock_prefix = prefix
        self._prefix = own_prefix or prefix
        self._is_by_pod = is_by_pod

    @contextmanager
    def claimed(self, request: AttachRequest, deadline: Deadline) -> Iterator[str]:
        """Yield the name for a sandbox that is not attached; for the block nobody else wires a link of this name.

        Raises: VethNameTakenError, BusyError, WiringError, DatastoreError. Without the setting it costs nothing and raises nothing.
        """
        key, names = request.key, request.names
        if not (self._is_by_pod and names.pod_name and names.pod_namespace and key.ifname == POD_IFNAME):
            yield veth_name(key, prefix=self._prefix)
            return
        name = pod_veth_name(names.pod_namespace, names.pod_name, prefix=self._prefix)
        of_pod = self._lock_prefix + name[-VETH_HASH_LENGTH:]
        with self._locks.hold(name_key(of_pod), "NAME", deadline):
            self._free(name, of_pod, key, deadline)
            yield name

    def _free(self, name: str, of_pod: str, key: AttachmentKey, deadline: Deadline) -> None:
        """Take the name from whatever has it in kernel or datastore.

        `of_pod` goes too, if it is a recorded sandbox's or a dying link's: of both a policy agent takes it first.
        """
        if self._cooldown.is_dying(name, of_pod):
            self._cooldown.sweep()
        occupant = self._wiring.veth(name)
        if self._cooldown.is_dying(name, of_pod) or (occupant and occupant.is_dying):
            raise VethNameTakenError(f"host veth {name} of sandbox {key} is being deleted", details="retry")
        for attachment in self._datastore.attachments():
            if attachment.host_veth in (name, of_pod) and attachment.key != key:
                self._rename(attachment.key, attachment.host_veth, key, deadline)
        if occupant is None or occupant.key == key:
            return
        if occupant.key is None:
            raise VethNameTakenError(
                f"host veth {name} of sandbox {key} is taken by a link without our alias", details=f"see `ip -d link show {name}`"
            )
        if self._wiring.veth(name):
            if self._datastore.attachment(occupant.key) is not None:  # its row has another name after a crash
                self._rename(occupant.key, name, key, deadline)
            elif self._datastore.is_tombstoned(occupant.key):
                self._wiring.remove_leftover(host_veth=name, address=None)
            else:
                raise VethNameTakenError(
                    f"host veth {name} of sandbox {key} is that of {occupant.key}, which is not recorded",
                    details="it is adopted or removed by itself; retry",
                )

    def _rename(self, owner: AttachmentKey, name: str, key: AttachmentKey, deadline: Deadline) -> None:
        """Give a sandbox's link the name of its own key: the record first, because DEL goes by it. Nothing if it has gone."""
        with self._locks.hold(owner, "RENAME", deadline):
            attachment = self._datastore.attachment(owner)
            if attachment is None:
                return
            held = self._wiring.veth(name)
            is_wired = held and held.key == owner
            if is_wired:
                self._require_not_ready(attachment, name, key)
            to = veth_name(owner, prefix=name[:-VETH_HASH_LENGTH])
            if attachment.host_veth != to:
                with self._datastore.transaction() as uow:
                    uow.rename_veth(owner, host_veth=to)
                self._failpoint("rename.recorded")
            if is_wired:
                self._wiring.rename_veth(host_veth=name, to=to, address=attachment.address, branch=attachment.branch)
            log.info(
                "a host veth is renamed, its pod has a new sandbox veth=%s sandbox=%s name=%s successor=%s", name, owner, to, key
            )

    def _require_not_ready(self, attachment: Attachment, name: str, key: AttachmentKey) -> None:
        """Raise VethNameTakenError unless the runtime says that the predecessor is not ready; silence is no evidence (I11)."""
        state = "not known: CRI is off"
        if self._runtime is not None:
            try:
                states = {sandbox.container_id: sandbox.state for sandbox in self._runtime.sandboxes()}
            except IpamError as error:
                state = f"not known: {log_text(error)}"
            else:
                found = states.get(attachment.key.container_id)
                if found is SandboxState.NOTREADY:
                    return
                state = str(found or "not in the runtime's list")
        raise VethNameTakenError(
            f"host veth {name} of sandbox {key} is that of the pod's earlier sandbox {attachment.key}, which is {state}",
            details="retry: it goes over once that sandbox is not ready, or is deleted; no other name would be under network policy",
        )


POOL_WAIT_MARGIN_S = 1.0
"""Of the caller's deadline, kept for the rollback and the refusal. Ours: an unwire takes about 20 ms, a reply 1 ms."""

FAILPOINTS = ("rename.recorded", "attach.reserved", "attach.wired", "attach.committed", "attach.unwired")
"""Between every two effects of an ADD; datastore and kernel adapter list their own."""


class AttachService(Service):
    """ADD. `replayed_count`: repeated requests that got the stored answer."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        cooldown: Cooldown,
        mtu: Callable[[], int],
        egress: Callable[[], Family | None],
        delay: Callable[[], Blocked],
        waiting_limit: int,
        veth_names: VethNames,
        pod_names: VethNames,
        policy: PolicyHook | None = None,
        branches: BranchHook | None = None,
    ) -> None:
        """Keep what ADD needs.

        Args:
            mtu: of a new sandbox, in bytes.
            egress: the other family of which a new sandbox gets an address, by a second link.
            delay: what delays a pool that can grow.
            waiting_limit: ADDs that may be in work at once, so that DEL always finds a thread.
            pod_names: always by pod, for a caller that wires the sandbox itself and names the link so.
            policy: asks the network policy agent; None if no setting wants it.
            branches: tells which sandboxes get branch ENIs; None if no setting wants it.
        """
        super().__init__(context)
        self._cooldown = cooldown
        self._mtu = mtu
        self._egress = egress
        self._delay = delay
        self._waiting_limit = waiting_limit
        self._veth_names = veth_names
        self._pod_names = pod_names
        self._policy = policy
        self._branches = branches
        self.replayed_count = 0
        self.pool_empty: Counter[Blocked] = Counter()
        self._places = threading.BoundedSemaphore(waiting_limit)

    def attach_sandbox(self, request: AttachRequest, *, deadline: Deadline, steps: Steps) -> Attachment:
        """Attach one interface of one sandbox.

        Returns: the attachment; for a repeated request (a runtime repeats after a timeout) the stored one, at once.
        Raises: NotServingError, BusyError, TombstonedError, AttachmentConflictError, NetnsError, VethNameTakenError, PoolEmptyError,
            EgressEmptyError, WiringError, PolicyAgentSilentError, PolicyAgentRefusedError, PodFactsError, BranchPendingError,
            BranchAnnotationError, DeadlineError, DatastoreError. After any of them nothing of this request remains, but that the
            policy agent may know the pod's name.
        """
        with self._place():
            found = self._try(request, deadline, steps)
        if isinstance(found, Attachment):
            return found
        branches, why = found
        with branches.waiting(request, deadline) as wait:  # a thread that no pod of the pool needs, instead of a place
            while True:
                with steps.step("branch"):
                    wait(why)
                found = self._try(request, deadline, steps)
                if isinstance(found, Attachment):
                    return found
                _, why = found

    @contextmanager
    def _place(self) -> Iterator[None]:
        if not self._places.acquire(blocking=False):
            raise BusyError(f"{self._waiting_limit} ADDs are at work already", details="retry: threads are kept free for DEL")
        try:
            yield
        finally:
            self._places.release()

    def _try(self, request: AttachRequest, deadline: Deadline, steps: Steps) -> Attachment | tuple[BranchHook, str]:
        """Attach it; or say by whom and for what it has to wait, and hold nothing any more."""
        self._health.await_add_service(deadline)
        asked = None
        is_settled = self._datastore.attachment(request.key) is not None or self._datastore.is_tombstoned(request.key)
        if (
            self._branches is not None and not is_settled
        ):  # else it gets a stored answer, or is refused, whatever its pod must have
            with steps.step("branch"):
                asked = self._branches.ask(request, deadline)
            if asked.pending:
                return self._branches, asked.pending
        with ExitStack() as stack:
            with steps.step("lock"):
                stack.enter_context(self._locks.hold(request.key, "ADD", deadline))
            self._health.require_add_service()  # an export waits for ADDs that hold a lock: this one may have come after its look
            key = request.key
            if self._datastore.is_tombstoned(key):
                raise TombstonedError(
                    f"sandbox {key} was deleted",
                    details="an ADD after its DEL is refused; the runtime makes a new sandbox instead",
                )
            with steps.step("netns"):
                identity = self._wiring.identify_netns(request.netns)
            known = self._datastore.attachment(key)
            if known is None and self._branches is not None:
                if asked is None:  # it was attached a moment ago: what its pod must have was not asked (I19)
                    raise BusyError(f"sandbox {key} was just detached", details="retry")
                if asked.eni is not None:
                    return self._attach_branch(self._branches, request, identity, asked.eni, deadline, steps)
            if known is None:
                names = self._pod_names if request.is_wired_by_caller else self._veth_names
                with names.claimed(request, deadline) as host_veth:
                    return self._attach_new(request, identity, host_veth, deadline, steps)
            if known.fingerprint == fingerprint(request, identity):
                self.replayed_count += 1
                return known
            raise AttachmentConflictError(
                f"sandbox {key} is attached already, with address {known.address}",
                details=f"by another request (netns {known.netns}, this one {request.netns}); DEL it first",
            )

    def _attach_branch(
        self,
        branches: BranchHook,
        request: AttachRequest,
        identity: NetnsIdentity,
        eni: BranchEni,
        deadline: Deadline,
        steps: Steps,
    ) -> Attachment:
        with (
            branches.claimed(request, eni, deadline) as (branch, trunk_mac),
            branches.names.claimed(request, deadline) as host_veth,
        ):
            spec = WiringSpec(
                key=request.key,
                address=eni.address,
                route_table=branch.route_table,
                host_veth=host_veth,
                netns=request.netns,
                mtu=self._mtu(),
                branch=branch,
                eni_id=eni.eni_id,
                trunk_mac=trunk_mac,
            )
            attachment = self._carry_out(request, spec, identity, deadline, steps)
        self._demand.trigger()  # the pool's thread compares it with EC2
        return attachment

    def _attach_new(
        self, request: AttachRequest, identity: NetnsIdentity, host_veth: str, deadline: Deadline, steps: Steps
    ) -> Attachment:
        key = request.key
        with steps.step("reserve"):
            # One link of its name fits into a sandbox: that of the pod's own interface. A caller that wires does this itself.
            has_egress = key.ifname == POD_IFNAME and not request.is_wired_by_caller
            reserved = self._reserve(key, deadline, egress=self._egress() if has_egress else None)
        self._failpoint("attach.reserved")
        eni = self._datastore.eni(reserved.eni_id)
        if eni is None:
            self._cooldown.abort(reserved.address, reason="no ENI for the address", dying_veth=None)
            raise WiringError(f"ENI {reserved.eni_id} of address {reserved.address} is not known any more", details="retry")
        spec = WiringSpec(
            key=key,
            address=reserved.address,
            route_table=eni.route_table,
            host_veth=host_veth,
            netns=request.netns,
            mtu=self._mtu(),
            others_mac=MacAddress("") if request.is_wired_by_caller else None,
            prefix=reserved.prefix,
            other_address=reserved.other_address,
            eni_id=reserved.eni_id,
        )
        attachment = self._carry_out(request, spec, identity, deadline, steps)
        self._demand.take()
        return attachment

    def _carry_out(
        self, request: AttachRequest, spec: WiringSpec, identity: NetnsIdentity, deadline: Deadline, steps: Steps
    ) -> Attachment:
        """Wire a sandbox and record it, or leave nothing of it."""
        key = request.key
        try:
            with steps.step("wire"):
                wired = Wired(MacAddress(""), MacAddress(""), identity)
                if not request.is_wired_by_caller:
                    deadline.check(f"wiring sandbox {key}")
                    wired = self._wiring.wire(spec)
                    if wired.netns_identity != identity:
                        raise NetnsError(
                            f"netns {spec.netns} of sandbox {key} was replaced while it was wired",
                            details="the sandbox is gone; retry",
                        )
            self._failpoint("attach.wired")
            if self._policy is not None:
                with steps.step("policy"):
                    self._policy.enforce(request, deadline)
            with steps.step("commit"):
                attachment = self._attachment(request, spec, wired)
                deadline.check(f"attaching sandbox {key}")
                self._health.require_unheld()  # another daemon may have come while this ADD waited for its address (I20)
                with self._datastore.transaction() as uow:
                    (uow.confirm if spec.branch is None else uow.attach_branch)(attachment)
        except BaseException as error:
            self._roll_back(spec, reason=log_text(error))
            raise
        self._failpoint("attach.committed")
        return attachment

    def _reserve(self, key: AttachmentKey, deadline: Deadline, *, egress: Family | None) -> Address:
        """Take a free address; while none is free, wait as long as the pool may still grow and the caller has time."""
        try:
            return self._take(key, egress)
        except PoolEmptyError:
            generation = self._demand.join()
        try:
            while True:
                # Read before trying, so that a change after this point ends the wait below at once.
                supply, status = self._demand.supply_count, self._demand.status
                try:
                    return self._take(key, egress)
                except PoolEmptyError as empty:
                    deadline.check(f"waiting for an address for sandbox {key}")
                    left = deadline.remaining_s() - POOL_WAIT_MARGIN_S
                    cooled_s = self._cooldown.next_due_s()
                    cools_in_time = cooled_s is not None and cooled_s < left
                    retries_in_time = status.retry_deadline is not None and status.retry_deadline - self._clock.monotonic() < left
                    # A status from before `join` does not count this ADD: the maintainer has not planned since.
                    is_blocked = status.generation >= generation and status.blocked_by
                    is_hopeless = is_blocked and not (cools_in_time or retries_in_time)
                    if left <= 0 or is_hopeless:
                        raise self._refusal(key, empty, status, cooled_s) from None
                self._demand.wait(seen_supply=supply, seen_status=status, timeout_s=min(left, 1.0))
        finally:
            self._demand.leave()

    def _take(self, key: AttachmentKey, egress: Family | None) -> Address:
        try:
            return self._datastore.reserve(key, egress=egress)
        except EgressEmptyError:
            self.pool_empty[Blocked.EGRESS] += 1
            raise

    def _refusal(self, key: AttachmentKey, empty: PoolEmptyError, status: PoolStatus, cooled_s: float | None) -> PoolEmptyError:
        """The cause that the pool published, and a next step that helps against it (I14)."""
        kind = self._delay() if status.kind is Blocked.GROWING else status.kind
        self.pool_empty[kind] += 1
        cause = status.shortage(kind)
        step = status.next_step or ("" if cooled_s is not None else "retry; `ipamctl status` shows the pool loop")
        if cooled_s is not None:
            step = f"an address has cooled in {cooled_s:.0f} s: retry then" + (f"; or {step}" if step else "")
        return PoolEmptyError(
            f"no address for sandbox {key}", details=f"cause: {cause}; {self._datastore.counts()}; next: {step}"
        ).with_traceback(empty.__traceback__)

    def _attachment(self, request: AttachRequest, spec: WiringSpec, wired: Wired) -> Attachment:
        return Attachment(
            key=request.key,
            address=spec.address,
            eni_id=spec.eni_id,
            route_table=spec.route_table,
            host_veth=spec.host_veth,
            netns=request.netns,
            netns_identity=wired.netns_identity,
            fingerprint=fingerprint(request, wired.netns_identity),
            result=build_result(spec, wired, prev_result=request.prev_result),
            created_at=self._clock.now(),
            network_name=request.network_name,
            pod_namespace=request.names.pod_namespace,
            pod_name=request.names.pod_name,
            pod_uid=request.names.pod_uid,
            other_address=spec.other_address,
            branch=spec.branch,
        )

    def _roll_back(self, spec: WiringSpec, *, reason: str) -> None:
        """Undo the wiring. If even that fails, the cooldown thread deletes the link, and the address cools until it is gone."""
        if spec.is_imported:  # its caller has not begun to wire it: a link of its name is an earlier sandbox's
            self._cooldown.abort(spec.address, reason=reason, dying_veth=None)
            return
        dying_veth: str | None = spec.host_veth
        is_marked = False
        try:
            try:
                self._wiring.unwire(spec)
                dying_veth = None
            except IpamError as error:
                log.warning(
                    "wiring could not be undone; its link is deleted later sandbox=%s error=%s", spec.key, log_text(error)
                )
                try:
                    self._wiring.mark_for_deletion(
                        host_veth=spec.host_veth,
                        address=spec.address,
                        route_table=spec.route_table,
                        second=spec.second,
                        branch=spec.branch,
                    )
                    is_marked = True
                except IpamError as refused:
                    self._health.record_error(f"undo of {spec.key}", refused)
                    log.error(
                        "a link could not be marked for deletion sandbox=%s veth=%s error=%s",
                        spec.key,
                        dying_veth,
                        log_text(refused),
                    )
            self._failpoint("attach.unwired")
        finally:  # also after an unexpected error, or the address would stay reserved until a restart
            if spec.branch is None:
                self._cooldown.abort(spec.address, reason=reason, dying_veth=dying_veth, is_marked=is_marked)
            elif dying_veth is not None:
                self._cooldown.bury(spec, is_marked=is_marked)


# CHECK: compare a sandbox's wiring with its record, and the host that carries its packets with what it must be.
#
# Reports every difference at once and repairs nothing: the host network reconciler does.


class CheckService(Service):
    """CHECK."""

    def __init__(self, context: ServiceContext, *, hostnet: HostNetwork, identity: Callable[[], InstanceIdentity | None]) -> None:
        """`identity` is None until instance metadata answers: then the node's own routing is not compared."""
        super().__init__(context)
        self._hostnet = hostnet
        self._identity = identity

    def check_sandbox(self, request: AttachRequest, *, deadline: Deadline) -> None:
        """Compare a sandbox with its record.

        Raises: UnknownAttachmentError if there is no record; CheckFailedError with every difference; KernelDumpError if the
            kernel could not be read.
        """
        with self._locks.hold(request.key, "CHECK", deadline):
            known = self._datastore.attachment(request.key)
            if known is None:
                raise UnknownAttachmentError(
                    f"sandbox {request.key} is not attached", details="DEL it and let the runtime make a new one"
                )
            problems = []
            if request.prev_result is not None:
                problems += result_differences(
                    request.prev_result, ifname=request.key.ifname, address=known.address, netns=request.netns
                )
            problems += self._wiring.check(recorded_spec(known, netns=request.netns))
            eni = self._datastore.eni(known.eni_id)
            if known.contradiction:
                problems.append(f"EC2 contradicts what its pod was told of {known.eni_id}: {known.contradiction}")
            if eni is None and known.branch is None:
                problems.append(f"{known.eni_id}, which has its address, is gone")
            else:  # what of the node, and of the ENI that has the address, keeps packets from the sandbox
                found = self._hostnet.differences(identity=self._identity(), enis=[eni] if eni else ())
                problems += [f"host: {difference}" for difference in found if difference.is_cut]
        if problems:
            raise CheckFailedError(f"sandbox {request.key} differs from its record", details="; ".join(problems))
