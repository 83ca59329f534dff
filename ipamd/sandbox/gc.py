"""GC: free attachments that the runtime's list of valid ones lacks, if the other witnesses do not contradict it (I2).

The list is a declaration, one more witness that can only name absence. It stands for the lists of CRI that a reap needs, and for
nothing else: a living namespace or veth keeps its address. The specification lets a plugin remove what the list lacks, but the list
may be older than an attachment, and incomplete where several runtimes share one configuration (containernetworking/cni issue 1086).
Candidates come from our datastore only.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from ipamd.core.context import ServiceContext
from ipamd.core.deadline import Deadline, Steps
from ipamd.model.attachment import Attachment
from ipamd.model.errors import RuntimeUnreachableError, log_text
from ipamd.model.evidence import Verdict
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import KernelSurvey
from ipamd.ports import Runtime
from ipamd.sandbox.detach import DetachService
from ipamd.sandbox.judge import SandboxJudge

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class GcOutcome:
    """What GC did, by key."""

    freed: tuple[AttachmentKey, ...]
    kept: tuple[AttachmentKey, ...]


class GcService:
    """GC."""

    def __init__(self, context: ServiceContext, *, runtime: Runtime | None, judge: SandboxJudge, detach: DetachService) -> None:
        self._datastore = context.datastore
        self._wiring = context.wiring
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
                log.warning("GC of sandbox %s: %s", attachment.key, log_text(error))
                errors.append(error)
                continue
            (freed if is_freed else kept).append(attachment.key)
        if errors:
            raise errors[0]
        return GcOutcome(tuple(freed), tuple(kept))

    def _decide(
        self, attachment: Attachment, listed: frozenset[str], survey: KernelSurvey, deadline: Deadline, steps: Steps
    ) -> bool:
        judgement = self._judge.judge_attachment(attachment, listed=listed, survey=survey, is_declared_gone=True)
        if judgement.verdict is Verdict.KEEP:
            self._judge.note_kept(attachment.key, judgement)
            return False
        self._detach.detach_sandbox(attachment.key, deadline=deadline, steps=steps, reason="GC")
        log.info("GC freed sandbox %s: %s", attachment.key, "; ".join(judgement.reasons))
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
