"""Take a sandbox's address back: quick, idempotent and final (I3, I4).

Order of effects: remove host route and rules, mark the link as dying (docs/performance.md), then one transaction that moves
the address to cooling and leaves a tombstone, then the reply. `cooldown` deletes the link; the address is not assignable before it is
gone. No EC2 call (I12).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, Steps
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, veth_name
from ipamd.model.branch import Branch
from ipamd.model.cniresult import recorded_spec
from ipamd.model.errors import RuntimeUnreachableError, log_text
from ipamd.model.evidence import Verdict
from ipamd.model.family import IpAddress
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.record import dataclass
from ipamd.ports import Datastore, Runtime
from ipamd.sandbox.cooldown import Cooldown
from ipamd.sandbox.judge import SandboxJudge

if TYPE_CHECKING:
    from ipamd.policy.hook import PolicyHook

log = logging.getLogger(__name__)


FAILPOINTS = ("detach.retired", "detach.committed", "detach.tombstoned")
"""Between every two effects of a DEL."""


class DetachService(Service):
    """DEL, and what acts as one: GC, spool replay, reap."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        cooldown: Cooldown,
        veth_prefix: str,
        is_source_checked: Callable[[], bool],
        is_named_by_pod: bool = False,
        policy: PolicyHook | None = None,
    ) -> None:
        """`is_named_by_pod`: a DEL does not tell the pod's name, so a link without a row is searched for by its alias. `policy` notes
        what the network policy agent is to forget: maintenance tells it, so that no DEL waits."""
        super().__init__(context)
        self._cooldown = cooldown
        self._veth_prefix = veth_prefix
        self._is_named_by_pod = is_named_by_pod
        self._is_source_checked = is_source_checked
        self._policy = policy

    def detach_sandbox(
        self,
        key: AttachmentKey,
        *,
        deadline: Deadline,
        steps: Steps,
        reason: str,
        event: LedgerEvent = LedgerEvent.UNASSIGNED,
    ) -> bool:
        """Detach one interface of one sandbox; an unknown or repeated one is fine.

        Args:
            reason: who asks (DEL, GC), or the verdict's reasons; recorded.
            event: what the ledger says: `reaped` if no runtime asked.
        Returns: whether an attachment was there.
        Raises: BusyError if another operation holds the key until the deadline; WiringError, DatastoreError. Then the
            attachment is still recorded and a retry is safe.
        """
        with self._locks.hold(key, "REAP" if event is LedgerEvent.REAPED else reason, deadline):
            known = self._datastore.attachment(key)
            if known is None:
                with steps.step("leftover"):
                    known = self._forget(key)
            if known is None:
                return False
            steps.pod, steps.address = known.sandbox_name, str(known.address)
            with steps.step("retire"):
                host_veth = self._retire(known)
            self._failpoint("detach.retired")
            with steps.step("commit"), self._datastore.transaction() as uow:
                uow.unassign(key, cooldown=self._cooldown.period, reason=reason, event=event)
                if self._policy is not None:
                    self._policy.owe(uow, known)
                uow.put_tombstone(key)
            self._failpoint("detach.committed")
            if known.branch is None:
                self._cooldown.start(known.address, dying_veth=host_veth)
            else:
                self._cooldown.bury(known, host_veth=host_veth)
            return True

    def _retire(self, known: Attachment) -> str:
        """Mark the sandbox's link for deletion. Returns: its name, another one if its renaming was cut short or others did it."""
        mark = partial(
            self._wiring.mark_for_deletion,
            address=known.address,
            route_table=known.route_table,
            is_source_checked=self._is_source_checked(),
            branch=known.branch,
        )
        second = recorded_spec(known).second if known.other_address else None  # without it nothing is parsed
        found = mark(host_veth=known.host_veth, key=known.key, second=second)
        if found.key == known.key if found else not self._is_named_by_pod:
            return known.host_veth
        present = (veth.name for veth in self._wiring.survey().firsts if (veth.key, veth.address) == (known.key, known.address))
        name = next(present, known.host_veth)
        mark(host_veth=name)
        return name

    def _forget(self, key: AttachmentKey) -> Attachment | None:
        """DEL of a key without a row: leave a tombstone, and remove what a crash may have left in the kernel.

        Returns: None; or the row, if the sandbox was adopted in the meantime (an adoption takes no sandbox lock).
        """
        if not self._datastore.is_tombstoned(key):
            with self._datastore.transaction() as uow:
                adopted = self._datastore.attachment(key)  # units of work are serialised: after ours no adoption is possible
                if adopted is not None:
                    return adopted
                uow.put_tombstone(key)
        self._failpoint("detach.tombstoned")
        self._remove(veth_name(key, prefix=self._veth_prefix), key)
        # One that amazon-vpc-cni-k8s wired has its name by pod too; while nobody has confirmed it its address is quarantined.
        if self._is_named_by_pod or self._datastore.addresses(state=AddressState.QUARANTINED):
            survey = self._wiring.survey()
            for veth in survey.firsts:
                if veth.key == key:
                    self._remove(veth.name, key, *leftover_branch(veth, survey, self._datastore))
        return None

    def _remove(self, host_veth: str, key: AttachmentKey, address: IpAddress | None = None, branch: Branch | None = None) -> None:
        """Remove wiring without a row. What it had cools: EC2 may show it only later, and then it is ours to give (I8)."""
        address = self._wiring.remove_leftover(host_veth=host_veth, address=address, key=key, branch=branch)
        if address and branch is None:
            self._cooldown.start(address, dying_veth=None)


def leftover_branch(veth: HostVeth, survey: KernelSurvey, datastore: Datastore) -> tuple[IpAddress | None, Branch | None]:
    """Of a sandbox's veth that no row has: what of its branch ENI goes with it. Nothing, if the pod's next sandbox has that (I2)."""
    link = survey.vlan_of(veth.address) if veth.is_branch else None
    if link is None or any(one.address == link.address for one in datastore.attachments()):
        return None, None
    return link.address, link.branch


# GC: free attachments that the runtime's list of valid ones lacks, if the other witnesses do not contradict it (I2).
#
# The list is a declaration, one more witness that can only name absence. It stands for the lists of CRI that a reap needs, and
# for nothing else: a living namespace or veth keeps its address. The specification lets a plugin remove what the list lacks, but
# the list may be older than an attachment, and incomplete where several runtimes share one configuration (containernetworking/cni
# issue 1086). Candidates come from our datastore only.


@dataclass(frozen=True, slots=True)
class GcOutcome:
    """What GC did, by key."""

    freed: tuple[AttachmentKey, ...]
    kept: tuple[AttachmentKey, ...]


class GcService(Service):
    """GC."""

    def __init__(self, context: ServiceContext, *, runtime: Runtime | None, judge: SandboxJudge, detach: DetachService) -> None:
        super().__init__(context)
        self._runtime = runtime
        self._judge = judge
        self._detach = detach

    def collect(self, valid: frozenset[AttachmentKey], *, network_name: str, deadline: Deadline, steps: Steps) -> GcOutcome:
        """Free the attachments of one network that are not valid any more.

        Args:
            valid: the runtime's `cni.dev/valid-attachments`.
        Returns: what was freed and what was kept against the list.
        Raises: RuntimeUnreachableError if CRI is on and silent or not plausible, KernelDumpError or WiringError if the kernel could
            not be read: then nothing is freed (I11); else the first error, after every candidate was tried.
        """
        attachments = self._datastore.attachments()
        candidates = [a for a in attachments if a.network_name == network_name and a.key not in valid]
        if not candidates:
            return GcOutcome((), ())
        listed, survey = self._listed(attachments), self._wiring.survey()
        freed: list[AttachmentKey] = []
        kept: list[AttachmentKey] = []
        errors: list[Exception] = []
        for attachment in candidates:
            try:
                is_freed = self._decide(attachment, listed, survey, deadline, steps)
            except Exception as error:  # noqa: BLE001  # top of the work on one object; the runtime gets the first error
                log.warning("GC failed sandbox=%s error=%s", attachment.key, log_text(error))
                errors.append(error)
                continue
            (freed if is_freed else kept).append(attachment.key)
        if errors:
            raise errors[0]
        return GcOutcome(tuple(freed), tuple(kept))

    def _decide(
        self, attachment: Attachment, listed: frozenset[str], survey: KernelSurvey, deadline: Deadline, steps: Steps
    ) -> bool:
        _, judgement = self._judge.judge_attachment(attachment, listed=listed, survey=survey, is_declared_gone=True)
        if judgement.verdict is Verdict.KEEP:
            self._judge.record_kept(attachment.key, judgement)
            return False
        self._detach.detach_sandbox(attachment.key, deadline=deadline, steps=steps, reason=f"GC: {'; '.join(judgement.reasons)}")
        return True

    def _listed(self, attachments: tuple[Attachment, ...]) -> frozenset[str]:
        """Sandboxes that CRI knows; with CRI off the list that came with the request is the runtime's only word."""
        if self._runtime is None:
            return frozenset()
        listed = frozenset(sandbox.container_id for sandbox in self._runtime.sandboxes())
        missing_count = self._judge.missing_count(attachments, listed)
        if missing_count > 1:
            raise RuntimeUnreachableError(
                f"implausible: none of {missing_count} wired sandboxes is in a list of {len(listed)}",
                details="nothing is freed on such a list",
            )
        return listed
