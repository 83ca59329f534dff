"""GC: free attachments that are not in the runtime's list of valid attachments, if no other evidence contradicts the list (I2).

The list is one more source of evidence, and it can only prove absence. It stands in for the several lists of CRI that a reap needs,
but for no other evidence: a sandbox whose namespace or veth exists keeps its address. The CNI specification allows a plugin to remove
every attachment that is not in the list. But the list may be older than an attachment, and it is incomplete where several runtimes
share one configuration (containernetworking/cni issue 1086). Candidates come from our datastore only.
"""

from __future__ import annotations

import logging

from ipamd.core.context import Service, ServiceContext
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import Attachment
from ipamd.model.card_interfaces import pod_key
from ipamd.model.errors import RuntimeUnreachableError, log_text
from ipamd.model.evidence import SandboxVerdict
from ipamd.model.failures import FailureCode, failure
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import KernelSurvey
from ipamd.model.record import dataclass
from ipamd.ports.runtime import Runtime
from ipamd.sandbox.detach import DetachService
from ipamd.sandbox.judge import SandboxJudge

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GcOutcome:
    """The keys that GC freed and kept."""

    freed: tuple[AttachmentKey, ...]
    kept: tuple[AttachmentKey, ...]


class GcService(Service):
    """Serves GC."""

    def __init__(self, context: ServiceContext, *, runtime: Runtime | None, judge: SandboxJudge, detach: DetachService) -> None:
        super().__init__(context)
        self._runtime = runtime
        self._judge = judge
        self._detach = detach

    def collect(self, valid: frozenset[AttachmentKey], *, network_name: str, deadline: Deadline, steps: StepTimer) -> GcOutcome:
        """Free the attachments of one network that are not valid any more.

        Args:
            valid: the keys in the request's `cni.dev/valid-attachments`.
        Returns: the keys that were freed, and the keys that are not valid but were kept.
        Raises: RuntimeUnreachableError if CRI is on and does not answer, or its list is not plausible; KernelDumpError or WiringError
            if the kernel could not be read. After any of these nothing was freed (I11). If single candidates failed, the error of the
            first of them is raised after every candidate was tried.
        """
        attachments = self._datastore.attachments()
        candidates = [a for a in attachments if a.network_name == network_name and not {a.key, pod_key(a.key)} & valid]
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
        self, attachment: Attachment, listed: frozenset[str], survey: KernelSurvey, deadline: Deadline, steps: StepTimer
    ) -> bool:
        _, judgement = self._judge.judge_attachment(attachment, listed=listed, survey=survey, is_declared_gone=True)
        if judgement.verdict is SandboxVerdict.KEEP:
            self._judge.record_kept(attachment.key, judgement)
            return False
        self._detach.detach_sandbox(attachment.key, deadline=deadline, steps=steps, reason=f"GC: {judgement.text}")
        return True

    def _listed(self, attachments: tuple[Attachment, ...]) -> frozenset[str]:
        """Return the container IDs of the sandboxes that CRI lists.

        The result is empty if CRI is off. The list in the request is the only evidence from the runtime then. Raises:
        RuntimeUnreachableError, also if the list has none of several wired sandboxes.
        """
        if self._runtime is None:
            return frozenset()
        listed = frozenset(sandbox.container_id for sandbox in self._runtime.sandboxes())
        missing_count = self._judge.missing_count(attachments, listed)
        if missing_count > 1:
            raise failure(RuntimeUnreachableError, FailureCode.LIST_NOT_BELIEVED, count=missing_count, listed=len(listed))
        return listed
