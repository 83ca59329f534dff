"""Collect what every witness says of a sandbox, and ask the one verdict (`ipamd/model/evidence.py`).

Reaper, GC, quarantine, start and `ipamctl explain` share one object of this class: one memory of the runtime's lists, one clock.
It changes nothing but the ledger's notes on why somebody was kept.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from ipamd.core.context import Service, ServiceContext
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, Origin, is_imported_alias
from ipamd.model.errors import IpamError, NetnsError
from ipamd.model.evidence import (
    REAP_MIN_ABSENT_LOOKS,
    REAP_MIN_AGE_S,
    Absences,
    Evidence,
    Judgement,
    Presence,
    Record,
    Verdict,
    judge,
)
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey

LIST_INTERVAL_S = 10.0
"""Least time between two lists that count as successive evidence. Ours: as often as the runtime is listed
without events (ipamd/sandbox/runtime.py)."""


class SandboxJudge(Service):
    """Collects evidence and judges. Safe from any thread; its lock is a leaf."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._lock = threading.Lock()
        self._absences: Absences[str] = Absences(gap_s=LIST_INTERVAL_S)
        self._started_monotonic_s = context.clock.monotonic()
        self._listed_once: frozenset[str] = frozenset()
        self._kept: dict[AttachmentKey, tuple[str, ...]] = {}

    def look(self, attachments: Iterable[Attachment], listed: Collection[str], *, unrecorded: Iterable[str] | None) -> None:
        """Count one believed list of the runtime.

        Args:
            attachments: read before the list was asked for, so that none is younger than it.
            listed: container IDs, complete and plausible.
            unrecorded: container IDs of wired sandboxes without an attachment; None if the kernel could not be read: then what
                was absent before and still is stays counted.
        """
        recorded = {attachment.key.container_id for attachment in attachments}
        with self._lock:
            wired = frozenset(self._absences.absent) if unrecorded is None else frozenset(unrecorded)
            self._absences.look((recorded | wired) - set(listed), now_s=self._clock.monotonic())
            self._listed_once = frozenset((self._listed_once | set(listed)) & recorded)
            self._kept = {key: why for key, why in self._kept.items() if key.container_id in recorded - set(listed)}

    def suspects(self, attachments: Iterable[Attachment]) -> list[Attachment]:
        """The attachments that enough lists lack: those that are worth a look at the kernel."""
        with self._lock:
            return [a for a in attachments if self._absences.count(a.key.container_id) >= REAP_MIN_ABSENT_LOOKS]

    def missing_count(self, attachments: Collection[Attachment], listed: Collection[str]) -> int:
        """Count the wired sandboxes, recorded or quarantined, if a list has none of them: such a list is not plausible. Else 0.

        The kernel is asked only if the answer matters: attachments are old enough to be judged, or addresses are quarantined.
        """
        if any(attachment.key.container_id in listed for attachment in attachments):
            return 0
        oldest_s = max((self._age_s(attachment) for attachment in attachments), default=0.0)
        quarantined_count = sum(row.state is AddressState.QUARANTINED for row in self._datastore.addresses())
        is_settled = len(attachments) > 1 and oldest_s >= REAP_MIN_AGE_S
        if not is_settled and quarantined_count < 2:
            return 0
        try:
            survey = self._wiring.survey()
        except IpamError:
            return len(attachments) + quarantined_count
        wired = [veth for veth in survey.firsts if not veth.is_dying]
        if any(veth.key and veth.key.container_id in listed for veth in wired):
            return 0
        return len(wired)

    def judge_veth(
        self,
        veth: HostVeth,
        *,
        listed: Collection[str] | None,
        is_datastore_whole: bool = False,
        is_unpromised: bool = False,
    ) -> Judgement:
        """Judge a live veth with our alias whose sandbox is not recorded.

        `is_datastore_whole`: no ADD is under way, and the datastore has the row of every ADD that was answered. `is_unpromised`: so
        it was when this veth was first judged; its address has been quarantined since, because the kernel refused to remove it.
        """
        container_id = veth.key.container_id if veth.key else ""
        is_whole = is_datastore_whole and (listed is not None or not veth.is_branch)
        record = Record.NEVER_PROMISED if is_unpromised else self._record_of(veth, is_datastore_whole=is_whole)
        with self._lock:
            count, age_s = self._absence_of(container_id)
        return judge(
            Evidence(
                record=record,
                runtime=_runtime_presence(container_id, listed),
                netns=Presence.PRESENT,
                host_veth=Presence.PRESENT,
                absent_look_count=count,
                absent_age_s=age_s,
            )
        )

    def judge_unclaimed(self, *, is_routed: bool) -> Judgement:
        """Judge a quarantined address that no live veth carries; `is_routed`: a route still leads somewhere."""
        wiring = Presence.PRESENT if is_routed else Presence.ABSENT
        return judge(Evidence(record=Record.QUARANTINED, runtime=Presence.UNKNOWN, netns=wiring, host_veth=wiring))

    def judge_attachment(
        self,
        attachment: Attachment,
        *,
        listed: Collection[str] | None,
        survey: KernelSurvey | None,
        is_declared_gone: bool = False,
    ) -> tuple[Evidence, Judgement]:
        """Judge a recorded sandbox by what every witness says. `listed` and `survey` are None where the source was silent."""
        container_id = attachment.key.container_id
        host_veth = Presence.UNKNOWN
        if survey is not None:
            names = survey.living_names
            host_veth = Presence.PRESENT if attachment.host_veth in names else Presence.ABSENT
        netns = host_veth  # of one that was adopted, its path is not known; a veth pair dies with its namespace
        if attachment.netns:
            try:
                is_same = self._wiring.identify_netns(attachment.netns) == attachment.netns_identity
                netns = Presence.PRESENT if is_same else Presence.ABSENT
            except NetnsError:
                netns = Presence.ABSENT
            except IpamError:
                netns = Presence.UNKNOWN
        with self._lock:
            count, absent_age_s = self._absence_of(container_id)
            is_own = attachment.origin is Origin.ADOPT or bool(attachment.pod_name) or container_id in self._listed_once
        evidence = Evidence(
            record=Record.RECORDED,
            runtime=_runtime_presence(container_id, listed),
            netns=netns,
            host_veth=host_veth,
            absent_look_count=count,
            absent_age_s=absent_age_s,
            age_s=self._age_s(attachment),
            is_declared_gone=is_declared_gone,
            is_runtimes_own=is_own,
        )
        return evidence, judge(evidence)

    def record_kept(self, key: AttachmentKey, judgement: Judgement) -> None:
        """Record the reasons to keep only when their kinds change, not after every list. Raises: DatastoreError."""
        if judgement.verdict is not Verdict.KEEP:
            return
        kinds = tuple(reason.split(" ")[0] for reason in judgement.reasons)
        with self._lock:
            if self._kept.get(key) == kinds:
                return
            self._kept[key] = kinds
        with self._datastore.transaction() as uow:
            uow.record_event(LedgerEvent.KEPT, key=key, detail="; ".join(judgement.reasons))

    def _record_of(self, veth: HostVeth, *, is_datastore_whole: bool) -> Record:
        """What the datastore says of a veth without attachment.

        An ADD that died took its address from a free row, and the row is still there. A veth whose address has no row, or one that
        somebody else has, is no remainder of an ADD: EC2 may not have shown the address when a lost datastore was rebuilt.
        """
        if veth.key and self._datastore.is_tombstoned(veth.key):
            return Record.DELETED
        row = self._datastore.address(veth.address) if veth.address else None
        if row and row.state is AddressState.QUARANTINED:
            return Record.QUARANTINED
        is_unowned = row is not None and row.state in (AddressState.FREE, AddressState.COOLING)
        # Its address has no row in any case; nor has the sandbox, if a lost datastore was rebuilt while its VLAN link was gone, which
        # only the runtime can tell.
        is_unowned = is_unowned or (veth.is_branch and row is None)
        if is_imported_alias(veth.alias):
            return Record.MISSING  # no ADD of ours: amazon-vpc-cni-k8s promised it
        return Record.NEVER_PROMISED if is_datastore_whole and is_unowned else Record.MISSING

    def _absence_of(self, container_id: str) -> tuple[int, float]:
        return self._absences.count(container_id), self._absences.age_s(container_id, now_s=self._clock.monotonic())

    def _age_s(self, attachment: Attachment) -> float:
        """Seconds since the ADD, on the clock that is never set. A row of a release that did not record it is as old as we are."""
        row, since_s = self._datastore.address(attachment.address), attachment.since_monotonic_s
        if row is not None and row.owner == attachment.key:
            since_s = row.since_monotonic_s
        return max(self._clock.monotonic() - (self._started_monotonic_s if since_s is None else since_s), 0.0)


def _runtime_presence(container_id: str, listed: Collection[str] | None) -> Presence:
    if listed is None:
        return Presence.UNKNOWN
    return Presence.PRESENT if container_id in listed else Presence.ABSENT
