"""Decide which new sandboxes get a branch ENI, and wait until the control plane has named it (I19, docs/security-groups.md).

The control plane names a pod's branch ENI in an annotation of the pod, some seconds after kubelet has begun with the pod. An ADD that
waits for the annotation does not hold the sandbox's lock, so the DEL of the sandbox need not wait. The ADD uses one of the threads
that are reserved for such waits, and no place among the ADDs that are being served, so other ADDs need not wait. The annotation is not
trusted: before anything is wired, the ENI that it names is compared with the pool and with other sandboxes (I1, I6). An alternative
was rejected: to refuse the ADD so that the runtime makes another sandbox. It costs a sandbox and the runtime's pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import POD_IFNAME, Attachment, WiringSpec, name_key
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.enforcing_mode import EnforcingMode
from ipamd.model.errors import UplinkPendingError
from ipamd.model.family import IPV4, Family
from ipamd.model.ids import AttachmentKey, EniId, MacAddress
from ipamd.model.legs.branch_eni import Branch, BranchEni, branch_eni_of, parse_pod_eni
from ipamd.model.legs.branch_requirement import AttachMode, choose_attach_mode
from ipamd.model.legs.conflict import branch_conflict
from ipamd.model.legs.refusals import BranchRefusalCode, branch_refusal
from ipamd.model.legs.steps import BRANCH_STEP
from ipamd.model.pod_facts import GroupRequirement, PodFacts
from ipamd.model.pod_snat_choice import PodSnatChoice
from ipamd.model.record import dataclass
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.ports.pod_facts import PodFactsSource
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.multi_nic_choice import MultiNicChoice
from ipamd.sandbox.pinned_address_choice import PinnedAddressChoice
from ipamd.sandbox.pod_pool_choice import PodPoolChoice
from ipamd.sandbox.veth_names import VethNames

WAITING_LIMIT = 16
"""The number of ADDs that may wait for the control plane at once. The RPC server has this many additional threads. Ours: enough for a
burst of pods on a large node, while their requests to kubelet stay below a third of its limit (`pod_facts.py`)."""

FACTS_S = 2.0
"""Timeout in seconds of one request to the source of pod facts. During the request the ADD occupies one of the places for ADDs that
are being served. Ours: kubelet answers in milliseconds, and restarts within a second."""

WAIT_MARGIN_S = 3.0
"""The part of the caller's deadline, in seconds, that is kept for the steps after the wait. Ours: the policy agent may take 2 s,
wiring takes 0.03 s."""

LOOK_S = 1.0
"""Longest pause, in seconds, until a waiting ADD checks again whether its caller is still there, and whether its DEL was done. Ours:
an ADD that nobody waits for keeps one of `WAITING_LIMIT` threads for a second at most."""

FACTS = "pod security groups"
"""Subject of the condition that no source reports which pods must have security groups."""

MARKS = "pod admission policy"
"""Subject of the condition that pods lack the mark of the admission policy, so that the policy is probably not installed."""

TRUNK_POLL_S = 0.1
"""Pause in seconds until an ADD that waits for EC2's answer about the trunk ENI tries again. Ours: EC2 answers in some tenths of a
second."""

TRUNK_ASKED = "EC2 is asked for the node's trunk ENI"
"""The reason for which a sandbox waits after the control plane has named its branch ENI."""

FAILPOINTS = ("branch.marked", "branch.claimed")


@dataclass(frozen=True, slots=True)
class Holder:
    """A sandbox that has, or had, a branch ENI, and its pod."""

    key: AttachmentKey
    names: SandboxNames

    @classmethod
    def of(cls, row: Attachment) -> Holder:
        """Return the holder of a recorded sandbox."""
        return cls(row.key, SandboxNames(row.pod_namespace, row.pod_name, row.pod_uid))

    def is_another_pod_than(self, names: SandboxNames) -> bool:
        """Whether both pods are known and differ."""
        if self.names.pod_uid and names.pod_uid:
            return self.names.pod_uid != names.pod_uid
        return bool(self.names.pod and names.pod and self.names.pod != names.pod)


@dataclass(frozen=True, slots=True)
class BranchOffer:
    """The branch ENI of one ADD, or the reason why the ADD must wait for it. See `LegOffer`.

    `eni`: the branch ENI that the control plane has named; None before.
    `pending`: the reason to wait; "" if `eni` can be claimed.
    """

    source: BranchSource
    request: AttachRequest
    eni: BranchEni | None = None
    pending: str = ""

    @contextmanager
    def claimed(self, deadline: Deadline, steps: StepTimer) -> Iterator[WiringSpec]:
        """Claim the branch ENI; see `BranchSource.claimed`."""
        del steps
        if self.eni is None:
            raise ValueError(f"the branch ENI of sandbox {self.request.key} is not known yet")
        with self.source.claimed(self.request, self.eni, deadline) as spec:
            yield spec
        self.source.confirm_soon()


class BranchSource(Service):
    """Offers branch ENIs to the sandboxes that must have one, and checks each claim. Safe from any thread. See `LegSource`."""

    step = BRANCH_STEP

    waiting_limit = WAITING_LIMIT

    def __init__(
        self,
        context: ServiceContext,
        *,
        source: PodFactsSource,
        mode: EnforcingMode,
        family: Family,
        mtu: Callable[[], int],
        names: VethNames,
        cooldown: Cooldown,
        trunk_mac: Callable[[], MacAddress],
        unplaced: Callable[[], frozenset[str]],
        snat: PodSnatChoice,
        pinned: PinnedAddressChoice,
        pools: PodPoolChoice,
        cards: MultiNicChoice,
    ) -> None:
        """Keep the collaborators.

        Args:
            source: returns the facts about a pod that decide whether it must have a branch ENI.
            mode: the enforcing mode of pod security groups, strict or standard.
            family: the address family of the pool. It selects the address, because the annotation has an address of each family.
            mtu: returns the MTU of a new sandbox in bytes.
            names: names the host veths of these sandboxes.
            trunk_mac: returns the trunk ENI's MAC, "" while the request to EC2 is under way. Raises UplinkPendingError while no trunk
                ENI is attached.
            unplaced: returns the host veths of wired sandboxes that are not recorded.
            snat: refuses a choice of SNAT, because the packets of such a sandbox leave by its branch ENI.
            pinned: refuses the wish for an address, because the address is that of the branch ENI.
            pools: refuses the choice of a pool, because the address is of no pool.
            cards: refuses the choice of network cards, because the branch ENI is the sandbox's only interface.
        """
        super().__init__(context)
        self._mtu = mtu
        self._names = names
        self._source = source
        self._mode = mode
        self._family = family
        self._cooldown = cooldown
        self._trunk_mac = trunk_mac
        self._unplaced = unplaced
        self._snat = snat
        self._pinned = pinned
        self._pools = pools
        self._cards = cards
        self._waiting: dict[object, AttachmentKey] = {}
        self._holders: dict[EniId, Holder] = {
            row.eni_id: Holder.of(row) for row in self._datastore.attachments() if not row.is_of_pool
        }

    def ask(self, request: AttachRequest, deadline: Deadline) -> BranchOffer | None:
        """Ask the source of pod facts, and decide. The caller must not hold the sandbox's lock, because the source may take `FACTS_S`.

        Returns: None if the pod gets no branch ENI.
        Raises: PodFactsError if it is not known whether the pod must have a branch ENI, or if the pod is older than the policy that
            marks pods; BranchAnnotationError; SnatAnnotationError; PinnedAddressError; PoolAnnotationError; MultiNicError;
            UplinkPendingError if there is no trunk; DatastoreError.
        """
        facts = self._source.facts(request, timeout_s=min(FACTS_S, deadline.remaining_s()))
        self._learn(facts)
        decision = choose_attach_mode(facts)
        if decision.condition:
            self._health.report(MARKS, problem(ConditionCode.POD_MARKS_MISSING, cause=decision.condition))
        match decision.mode:
            case AttachMode.POOL:
                return None
            case AttachMode.WAIT:
                return BranchOffer(self, request, pending=f"the control plane has not named it: {decision.reason}")
            case AttachMode.BRANCH:
                _require_own_interface(request)
                self._snat.refuse_for_uplink(request)
                self._pinned.refuse_for_uplink(request)
                self._pools.refuse_for_uplink(request)
                self._cards.refuse_for_uplink(request)
                eni = parse_pod_eni(facts.annotation, family=self._family)
                return BranchOffer(self, request, eni, pending="" if self._trunk_mac() else TRUNK_ASKED)
        pod = _describe(request)
        if facts.requirement is GroupRequirement.NO:
            raise branch_refusal(BranchRefusalCode.BRANCH_UNWANTED, pod=pod, cause=decision.reason, step=decision.advice)
        raise refusal(RefusalCode.POD_FACTS_UNKNOWN, pod=pod, cause=decision.reason, step=decision.advice)

    def _learn(self, facts: PodFacts) -> None:
        """Report or end the conditions FACTS and MARKS according to the facts about one pod.

        If this pod has the mark of the admission policy, record that pods of this node are marked.
        """
        conditions = self._health.conditions_by_subject()
        if facts.requirement is GroupRequirement.UNKNOWN and not facts.is_of_pod:
            self._health.report(FACTS, problem(ConditionCode.POD_FACTS_MISSING, cause=facts.reason))
        elif FACTS in conditions:
            self._health.report(FACTS, None)
        if not facts.is_marked:
            return
        if MARKS in conditions:
            self._health.report(MARKS, None)
        if not self._datastore.are_pods_marked():
            with self._datastore.transaction() as uow:
                uow.record_marked()
            self._failpoint("branch.marked")

    @contextmanager
    def waiting(self, request: AttachRequest, deadline: Deadline) -> Iterator[Callable[[str], None]]:
        """Let one ADD wait for its branch ENI. At most `waiting_limit` ADDs wait at a time, because each keeps a thread.

        Yields: a function that waits once. Afterwards the caller asks the source again. The argument of the function is the reason to
            wait (`LegOffer.pending`). The function raises UplinkPendingError if the caller's time is up, or if the facts of the source
            never change, and DeadlineError if the caller left.
        Raises: BusyError if too many ADDs wait already.
        """
        ticket = object()
        self._waiting[ticket] = request.key
        try:
            if len(self._waiting) > self.waiting_limit:
                raise branch_refusal(BranchRefusalCode.TOO_MANY_BRANCH_WAITS, limit=self.waiting_limit)
            yield lambda why: self._wait(request, deadline, why)
        finally:
            del self._waiting[ticket]

    def waiting_keys(self) -> tuple[AttachmentKey, ...]:
        """The keys of the sandboxes that wait for a branch ENI at present."""
        return tuple(self._waiting.copy().values())

    def _wait(self, request: AttachRequest, deadline: Deadline, why: str) -> None:
        deadline.check(f"waiting for the branch ENI of sandbox {request.key}")
        remaining_s = deadline.remaining_s() - WAIT_MARGIN_S
        step = "retry; if it lasts, see `ipamctl status`, the events of the pod, and the logs of the VPC resource controller"
        try:
            self._trunk_mac()
        except UplinkPendingError as error:
            step = f"{error.message}: {error.details}"
        if remaining_s > 0 and self._source.wait(timeout_s=min(remaining_s, LOOK_S)):
            return
        if remaining_s > 0 and why == TRUNK_ASKED:
            time.sleep(TRUNK_POLL_S)
            return
        raise branch_refusal(BranchRefusalCode.BRANCH_PENDING, pod=_describe(request), cause=why, step=step)

    @contextmanager
    def claimed(self, request: AttachRequest, eni: BranchEni, deadline: Deadline) -> Iterator[WiringSpec]:
        """Claim a branch ENI for this sandbox. During the block no other ADD wires its VLAN, its address or its ENI.

        If the VLAN link of a deleted sandbox is dying, it is deleted before the block. The wiring replaces any other link with this
        VLAN ID.
        Yields: the spec to wire. Raises: UplinkPendingError if there is no trunk, or if an earlier sandbox still has the branch ENI;
            BranchAnnotationError if its ENI, VLAN or address is in use elsewhere, or if the address is in no CIDR of the VPC;
            VethNameTakenError, BusyError, WiringError, KernelDumpError, DatastoreError.
        """
        branch, trunk_mac = eni.branch(self._mode), self._trunk_mac()
        if not trunk_mac:  # possible although the MAC was known when the source decided
            raise branch_refusal(BranchRefusalCode.TRUNK_PENDING, cause=TRUNK_ASKED)
        with ExitStack() as stack:
            for name in sorted((branch.link, str(eni.address), eni.eni_id)):  # every ADD takes them in this order, so no deadlock
                stack.enter_context(self._locks.hold(name_key(name), "BRANCH", deadline))
            self._require_free(request, eni)
            if self._cooldown.is_dying(branch.link):
                self._cooldown.sweep()
            self._failpoint("branch.claimed")
            with self._names.claimed(request, deadline) as host_veth:
                yield self._spec(request, eni, branch, trunk_mac, host_veth)
            self._holders[eni.eni_id] = Holder(request.key, request.names)

    def _spec(self, request: AttachRequest, eni: BranchEni, branch: Branch, trunk_mac: MacAddress, host_veth: str) -> WiringSpec:
        """Return the spec to wire.

        In standard mode the links stay down until EC2 confirms the ENI, because anybody may have written the annotation, with any
        address.
        """
        return WiringSpec(
            key=request.key,
            address=eni.address,
            route_table=branch.route_table,
            host_veth=host_veth,
            netns=request.netns,
            mtu=self._mtu(),
            uplink=branch,
            eni_id=eni.eni_id,
            trunk_mac=trunk_mac,
            is_kept_down=not branch.is_strict,
        )

    def confirm_soon(self) -> None:
        """Wake the pool maintainer, whose thread asks EC2 whether the branch ENI of a new sandbox is the pod's
        (`ipamd/eni/legs/branches.py`).
        """
        self._demand.trigger()

    def _require_no_other_pod(self, request: AttachRequest, eni: BranchEni) -> None:
        """Refuse a pod if another pod has its branch ENI, or had it within the last hour (as long as tombstones are kept).

        The control plane makes each branch ENI for one pod only, and deletes it a minute after the pod.
        """
        for eni_id, earlier_holder in tuple(self._holders.items()):
            is_attached = self._datastore.attachment(earlier_holder.key) is not None
            if not is_attached and not self._datastore.is_tombstoned(earlier_holder.key):
                self._holders.pop(eni_id, None)
        holder = self._holders.get(eni.eni_id)
        if holder is None or not holder.is_another_pod_than(request.names):
            return
        has = "has" if self._datastore.attachment(holder.key) else "had"
        code = BranchRefusalCode.BRANCH_CLAIMED_TWICE
        raise branch_refusal(code, pod=_describe(request), eni=eni.eni_id, holder=_describe(holder), has=has)

    def _require_free(self, request: AttachRequest, eni: BranchEni) -> None:
        """Raise UplinkPendingError or BranchAnnotationError if this sandbox must not have the branch ENI.

        This is so if the ENI, its VLAN or its address is in use elsewhere, or if its address is in no CIDR of the VPC.
        """
        self._require_no_other_pod(request, eni)
        attachments = self._datastore.attachments()
        self._require_left_by_predecessor(request, eni, attachments)
        row = self._datastore.address(eni.address)
        conflict = branch_conflict(eni, request.key, row=row, others=attachments, enis=self._datastore.enis())
        conflict = conflict or self._outside_vpc(eni)
        if conflict:
            raise branch_refusal(BranchRefusalCode.BRANCH_CONFLICT, pod=_describe(request), eni=eni.eni_id, cause=conflict)
        if self._unplaced():  # rare: the row of a wired sandbox was lost
            self._require_no_unrecorded_user(request, eni)

    def _require_left_by_predecessor(self, request: AttachRequest, eni: BranchEni, attachments: Iterable[Attachment]) -> None:
        """Raise UplinkPendingError if another sandbox, which is an earlier one of the pod, still has the branch ENI."""
        for attachment in attachments:
            if attachment.is_of_pool or attachment.key == request.key:
                continue
            if branch_eni_of(attachment) == eni:
                code = BranchRefusalCode.BRANCH_OF_PREDECESSOR
                raise branch_refusal(code, eni=eni.eni_id, pod=_describe(request), holder=attachment.key)

    def _require_no_unrecorded_user(self, request: AttachRequest, eni: BranchEni) -> None:
        """Raise UplinkPendingError if an unrecorded sandbox is wired with the address or the VLAN of the branch ENI."""
        survey = self._wiring.survey()
        for veth in survey.uplinked:
            is_recorded = veth.key and self._datastore.attachment(veth.key)
            if veth.is_dying or veth.key == request.key or is_recorded:
                continue
            link = survey.vlan_of(veth.address)
            if veth.address == eni.address or (link and eni.vlan == link.vlan):
                code = BranchRefusalCode.BRANCH_OF_UNRECORDED
                raise branch_refusal(code, vlan=eni.vlan, address=eni.address, pod=_describe(request), holder=veth.key)

    def _outside_vpc(self, eni: BranchEni) -> str:
        """Return why a branch ENI cannot be used, if its address is in no CIDR of the VPC; else "", also if the CIDRs are not known.

        In standard mode the node routes such an address to the sandbox, so packets to the real owner of the address would go there
        too.
        """
        identity = self._datastore.identity()  # its CIDRs are IPv4 only, so IPv6 addresses are not checked
        if identity is None or self._family is not IPV4 or any(eni.address in cidr for cidr in identity.vpc_cidrs):
            return ""
        return f"address {eni.address} is in no CIDR of the VPC"


def _require_own_interface(request: AttachRequest) -> None:
    """Raise BranchAnnotationError for a further interface (Multus's `net1`).

    The branch ENI has only the address of the pod's first interface, and the pod's security groups would not apply to an address of
    the pool (I19).
    """
    if request.key.ifname != POD_IFNAME:
        raise branch_refusal(BranchRefusalCode.BRANCH_FURTHER_INTERFACE, pod=_describe(request), ifname=request.key.ifname)


def _describe(request: AttachRequest | Holder) -> str:
    pod = f" of pod {request.names.pod}" if request.names.pod else ""
    return f"sandbox {request.key}{pod}"
