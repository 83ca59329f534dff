"""Which new sandboxes get a branch ENI, and how long one waits until the control plane has named it (I19, docs/security-groups.md).

The control plane names a pod's branch ENI some seconds after kubelet has begun with the pod. Who waits for that holds neither the
sandbox's lock, so that its DEL passes, nor the place of an ADD, so that pods of the pool are served: it has a thread of its own
beyond theirs. What the annotation says is a stranger's word; before anything is wired it is compared with what others have (I1, I6).
Rejected: to fail the sandbox and have the runtime make another, which costs a sandbox and the runtime's pause.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline
from ipamd.model.attachment import AttachRequest, name_key
from ipamd.model.branch import (
    Branch,
    BranchEni,
    EnforcingMode,
    PodFacts,
    Way,
    Wish,
    decide,
    parse_pod_eni,
)
from ipamd.model.errors import BranchAnnotationError, BranchPendingError, BusyError, PodFactsError
from ipamd.model.family import IPV4, Family
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.record import dataclass
from ipamd.model.snapshot import branch_conflict

if TYPE_CHECKING:
    from ipamd.ports import PodFactsSource
    from ipamd.sandbox.attach import VethNames
    from ipamd.sandbox.cooldown import Cooldown

WAITING_LIMIT = 16
"""ADDs that wait for the control plane at once; the RPC server has so many threads more. Ours: a burst of pods on a large node; what
they ask of kubelet stays below a third of what it allows (`facts.py`)."""

FACTS_S = 2.0
"""For one answer of the source, while an ADD has its place. Ours: kubelet answers in milliseconds, and comes back within a second."""

WAIT_MARGIN_S = 3.0
"""Of the caller's deadline, kept for what follows. Ours: the policy agent may take 2 s, wiring takes 0.03 s."""

LOOK_S = 1.0
"""How often one that waits looks whether its caller is still there, and its DEL was not done. Ours."""

FACTS = "pod facts"
"""Subject of the condition that nobody tells which pods must have security groups."""

MARKS = "pod marks"
"""Subject of the condition that nobody marks pods."""

TRUNK_POLL_S = 0.1
"""Ours: EC2 answers in some tenths of a second."""

TRUNK_ASKED = "EC2 is asked for the node's trunk ENI"
"""Why a sandbox waits whose branch ENI is named."""

FAILPOINTS = ("branch.marked", "branch.claimed")


@dataclass(frozen=True, slots=True)
class Asked:
    """What a sandbox gets: the branch ENI, or an address of the pool if `eni` is None. `pending`: why it must wait, "" if not."""

    eni: BranchEni | None = None
    pending: str = ""


class BranchHook(Service):
    """Decides and compares. From any thread. `names`: gives the host veths of these sandboxes their names."""

    waiting_limit = WAITING_LIMIT

    def __init__(
        self,
        context: ServiceContext,
        *,
        source: PodFactsSource,
        mode: EnforcingMode,
        family: Family,
        names: VethNames,
        cooldown: Cooldown,
        trunk_mac: Callable[[], MacAddress],
        unplaced: Callable[[], frozenset[str]],
    ) -> None:
        """Keep what it needs.

        Args:
            family: of the pool; the annotation tells an address of either.
            trunk_mac: "" while EC2 is asked for it; raises BranchPendingError while no trunk ENI is attached.
            unplaced: host veths of wired sandboxes that are not recorded.
        """
        super().__init__(context)
        self.names = names
        self._source = source
        self._mode = mode
        self._family = family
        self._cooldown = cooldown
        self._trunk_mac = trunk_mac
        self._unplaced = unplaced
        self._waiting: dict[object, AttachmentKey] = {}

    def ask(self, request: AttachRequest, deadline: Deadline) -> Asked:
        """Ask the source, and decide. Hold no lock of the sandbox: the source may take `FACTS_S`.

        Raises: PodFactsError if nobody tells what the pod must have, or it is older than who marks pods; BranchAnnotationError;
            BranchPendingError if there is no trunk; DatastoreError.
        """
        facts = self._source.facts(request, timeout_s=min(FACTS_S, deadline.remaining_s()))
        self._learn(facts)
        decision, who = decide(facts), _who(request)
        if decision.condition:
            self._health.report(MARKS, decision.condition)
        match decision.way:
            case Way.POOL:
                return Asked()
            case Way.WAIT:
                return Asked(pending=f"the control plane has not named it: {decision.why}")
            case Way.BRANCH:
                eni = parse_pod_eni(facts.annotation, family=self._family)
                return Asked(eni, pending="" if self._trunk_mac() else TRUNK_ASKED)
        kind = BranchAnnotationError if facts.wish is Wish.NO else PodFactsError
        raise kind(f"{who} gets no address (I19): {decision.why}", details=decision.advice)

    def _learn(self, facts: PodFacts) -> None:
        """Tell people whether the source tells anything, and remember that pods are marked."""
        known = self._health.conditions_by_subject()
        if facts.wish is Wish.UNKNOWN and not facts.is_of_pod:
            self._health.report(FACTS, f"{FACTS}: {facts.why}; new pods get no address, whether they have security groups or not")
        elif FACTS in known:
            self._health.report(FACTS, "")
        if not facts.is_marked:
            return
        if MARKS in known:
            self._health.report(MARKS, "")
        if not self._datastore.are_pods_marked():
            with self._datastore.transaction() as uow:
                uow.record_marked()
            self._failpoint("branch.marked")

    @contextmanager
    def waiting(self, request: AttachRequest, deadline: Deadline) -> Iterator[Callable[[str], None]]:
        """Have one of the threads that may wait; beyond `WAITING_LIMIT` there is none.

        Yields: what waits once, until the source may tell more, and is told why. Raises: BusyError; the wait BranchPendingError if
            the caller's time is up or waiting is no use, DeadlineError if the caller left.
        """
        ticket = object()
        self._waiting[ticket] = request.key
        try:
            if len(self._waiting) > self.waiting_limit:
                raise BusyError(
                    f"{self.waiting_limit} ADDs wait for their branch ENIs already",
                    details="retry: pods without security groups are served meanwhile",
                )
            yield lambda why: self._wait(request, deadline, why)
        finally:
            del self._waiting[ticket]

    def waiting_keys(self) -> tuple[AttachmentKey, ...]:
        """The sandboxes that wait now."""
        return tuple(self._waiting.copy().values())

    def _wait(self, request: AttachRequest, deadline: Deadline, why: str) -> None:
        deadline.check(f"waiting for the branch ENI of sandbox {request.key}")
        left_s = deadline.remaining_s() - WAIT_MARGIN_S
        step = "retry; if it lasts, see `ipamctl status`, the events of the pod, and the logs of the VPC resource controller"
        try:
            self._trunk_mac()
        except BranchPendingError as error:
            step = f"{error.message}: {error.details}"
        if left_s > 0 and self._source.wait(timeout_s=min(left_s, LOOK_S)):
            return
        if left_s > 0 and why == TRUNK_ASKED:
            time.sleep(TRUNK_POLL_S)
            return
        raise BranchPendingError(f"{_who(request)} must have a branch ENI, and {why}", details=step)

    @contextmanager
    def claimed(self, request: AttachRequest, eni: BranchEni, deadline: Deadline) -> Iterator[tuple[Branch, MacAddress]]:
        """Have a branch ENI for this sandbox alone; for the block nobody else wires its VLAN, its address or its ENI.

        A VLAN link whose sandbox was deleted is gone afterwards; any other of this ID is replaced by the wiring.
        Yields: how it is wired, and the MAC of the trunk's link. Raises: BranchPendingError if there is no trunk, or an earlier
            sandbox has the branch ENI still; BranchAnnotationError if something of it is somebody else's; BusyError, WiringError.
        """
        branch, trunk_mac = eni.branch(self._mode), self._trunk_mac()
        if not trunk_mac:  # it was known a moment ago
            raise BranchPendingError(TRUNK_ASKED, details="retry")
        with ExitStack() as stack:
            for name in sorted((branch.link, str(eni.address), eni.eni_id)):  # in one order, so that nobody waits in a circle
                stack.enter_context(self._locks.hold(name_key(name), "BRANCH", deadline))
            self._require_free(request, eni)
            if self._cooldown.is_dying(branch.link):
                self._cooldown.sweep()
            self._failpoint("branch.claimed")
            yield branch, trunk_mac

    def _require_free(self, request: AttachRequest, eni: BranchEni) -> None:
        others, key = self._datastore.attachments(), request.key
        for other in others:
            if other.branch and other.key != key and BranchEni.of(other) == eni:
                raise BranchPendingError(
                    f"{eni.eni_id} of {_who(request)} is still that of the pod's earlier sandbox {other.key}",
                    details="retry: it goes over once that sandbox is deleted; a live sandbox keeps its branch ENI",
                )
        row = self._datastore.address(eni.address)
        problem = branch_conflict(eni, key, row=row, others=others, enis=self._datastore.enis()) or self._stranger(eni)
        if problem:
            raise BranchAnnotationError(
                f"{_who(request)} is told {eni.eni_id}, and {problem}",
                details="delete the pod, so that it is told another one; if it comes again, somebody else than the controller told it",
            )
        if self._unplaced():  # rare: a sandbox is wired that the datastore lost
            survey = self._wiring.survey()
            for veth in survey.branches:
                link = survey.vlan_of(veth.address)
                is_recorded = veth.key and self._datastore.attachment(veth.key)
                if veth.is_dying or veth.key == key or is_recorded:
                    continue
                if veth.address == eni.address or (link and eni.vlan == link.vlan):
                    raise BranchPendingError(
                        f"VLAN {eni.vlan} or {eni.address} of {_who(request)} is that of sandbox {veth.key}, which is not recorded",
                        details="retry: it is adopted or removed by itself once the runtime lists its sandboxes",
                    )

    def _stranger(self, eni: BranchEni) -> str:
        """An address beyond the VPC is no ENI's, and in standard mode would lead what the node sends there to the sandbox."""
        identity = self._datastore.identity()  # of IPv6 it does not tell the VPC's
        if identity is None or self._family is not IPV4 or any(eni.address in cidr for cidr in identity.vpc_cidrs):
            return ""
        return f"address {eni.address} is in no CIDR of the VPC"


def _who(request: AttachRequest) -> str:
    return f"sandbox {request.key}" + (f" of pod {request.names.pod}" if request.names.pod else "")
