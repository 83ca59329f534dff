"""Collect the evidence about a sandbox from all sources, and judge it (`ipamd/model/evidence.py`).

Reaper, GC, quarantine, start and `ipamctl explain` share one `SandboxJudge`, and so one memory of the runtime's lists. It writes
nothing but ledger entries with the reasons why a sandbox was kept.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable

from ipamd.core.context import Service, ServiceContext
from ipamd.model.absences import Absences
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, Origin, is_imported_alias
from ipamd.model.errors import IpamError, NetnsError
from ipamd.model.evidence import (
    REAP_MIN_ABSENT_LOOKS,
    REAP_MIN_AGE_S,
    Evidence,
    Judgement,
    Presence,
    Record,
    SandboxVerdict,
    judge,
)
from ipamd.model.history import LedgerEvent
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.repeats import pod_of, recorded_by_pod
from ipamd.model.sandbox_links import present_links

LIST_INTERVAL_S = 10.0
"""Least time between two lists that both count as evidence. Ours: the interval between lists without events
(ipamd/sandbox/runtime.py)."""


class SandboxJudge(Service):
    """Collects evidence and judges. Safe from any thread: no other lock is taken while its own is held."""

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._lock = threading.Lock()
        self._absences: Absences[str] = Absences(gap_s=LIST_INTERVAL_S)
        self._started_monotonic_s = context.clock.monotonic()
        # Container IDs of recorded sandboxes that the runtime has listed at least once, which proves that they are the runtime's own.
        self._listed_once: frozenset[str] = frozenset()
        # For each kept sandbox, the kinds of reasons in its last ledger entry.
        self._kept: dict[AttachmentKey, tuple[str, ...]] = {}
        self.unplaced_count = 0
        """The number of wired sandboxes that are not recorded and whose address has no row; set by the QuarantineService."""

    def record_list(
        self, attachments: Iterable[Attachment], listed: Collection[str], *, unrecorded: Iterable[str] | None
    ) -> None:
        """Count one plausible list of the runtime.

        Args:
            attachments: the recorded sandboxes, read before the list was requested, so that the list can have all of them.
            listed: the container IDs of a complete and plausible list.
            unrecorded: container IDs of wired sandboxes without an attachment; None if the kernel could not be read. With None, the
                sandboxes that earlier lists lacked are taken as still wired, so that this list can count as a further absence.
        """
        recorded = _container_ids(attachments)
        with self._lock:
            wired = frozenset(self._absences.absent) if unrecorded is None else frozenset(unrecorded)
            self._absences.record_answer((recorded | wired) - set(listed), now_s=self._clock.monotonic())
            self._listed_once = frozenset((self._listed_once | set(listed)) & recorded)
            absent = recorded - set(listed)
            self._kept = {key: reasons for key, reasons in self._kept.items() if key.container_id in absent}

    def suspects(self, attachments: Iterable[Attachment]) -> list[Attachment]:
        """Return the attachments that were absent from `REAP_MIN_ABSENT_LOOKS` lists or more, so that they may be reaped."""
        with self._lock:
            return [
                attachment
                for attachment in attachments
                if self._absences.count(attachment.key.container_id) >= REAP_MIN_ABSENT_LOOKS
            ]

    def is_second_list_due(self, attachments: Collection[Attachment], listed: Collection[str]) -> bool:
        """Whether the next list should come soon, because it may free the address of a pod's earlier sandbox.

        That is so if a pod has several recorded sandboxes, and one of them is absent from this list, but was not absent from enough
        lists to be reaped. The pod's other sandbox is a reason to request a list, and no evidence that the earlier sandbox is gone
        (I2).
        """
        recorded = recorded_by_pod(attachments)
        for attachment in attachments:
            container_id, pod = attachment.key.container_id, pod_of(attachment)
            if pod is None or recorded[pod] < 2 or container_id in listed:
                continue
            with self._lock:
                if self._absences.count(container_id) < REAP_MIN_ABSENT_LOOKS:
                    return True
        return False

    def missing_count(self, attachments: Collection[Attachment], listed: Collection[str]) -> int:
        """Count the wired sandboxes that a list lacks, if it lacks all of them. The caller rejects the list if the result is above 1.

        The interfaces of one sandbox count once.
        Returns: 0 if the list has a recorded or a wired sandbox, or if no sandbox could be judged by the list. One could be judged
            only if several sandboxes are recorded and one of them is at least REAP_MIN_AGE_S old, or if quarantined addresses and
            unplaced sandboxes (`unplaced_count`) together are at least two. If the kernel cannot be surveyed, all recorded sandboxes,
            quarantined addresses and unplaced sandboxes count as wired sandboxes.
        """
        if any(attachment.key.container_id in listed for attachment in attachments):
            return 0
        quarantined_count = sum(row.state is AddressState.QUARANTINED for row in self._datastore.addresses())
        unrecorded_count = quarantined_count + self.unplaced_count
        if unrecorded_count < 2 and not self._is_any_old_enough(attachments):
            return 0
        try:
            survey = self._wiring.survey()
        except IpamError:
            return len(_container_ids(attachments)) + unrecorded_count
        return _wired_count_unless_listed(survey, listed)

    def _is_any_old_enough(self, attachments: Collection[Attachment]) -> bool:
        """Whether the attachments are of several sandboxes, and one of them is old enough to be judged by a list."""
        if len(_container_ids(attachments)) <= 1:
            return False
        return max(self.age_s(attachment) for attachment in attachments) >= REAP_MIN_AGE_S

    def is_plausible_at_start(self, survey: KernelSurvey, listed: Collection[str], *, is_datastore_whole: bool) -> bool:
        """Whether the first list of a start is plausible.

        A runtime that has just restarted may answer before it has read its own state. So the list must have at least one of our wired
        sandboxes. There are two exceptions: no sandbox is wired; or only one is wired and the datastore is whole, because this sandbox
        may have ended without a DEL. If rows were lost, the list is the only evidence, so it must have even a single wired sandbox.
        """
        wired = {
            veth.key.container_id
            for veth in survey.firsts
            if veth.key and not veth.is_dying and not self._datastore.is_tombstoned(veth.key)
        }
        may_be_absent_count = 1 if is_datastore_whole else 0
        return len(wired) <= may_be_absent_count or not wired.isdisjoint(listed)

    def judge_veth(
        self,
        veth: HostVeth,
        *,
        listed: Collection[str] | None,
        is_datastore_whole: bool = False,
        was_never_promised: bool = False,
    ) -> Judgement:
        """Judge a live veth with our alias whose sandbox is not recorded.

        Args:
            listed: container IDs of the runtime's sandboxes, None if it did not answer.
            is_datastore_whole: no ADD is under way, and the datastore has the row of every ADD that was answered.
            was_never_promised: at the start this veth had to be removed, usually because no ADD was answered for it, and the kernel
                refused. Its address is quarantined since then, so the row of the address does not show that fact.
        """
        container_id = veth.key.container_id if veth.key else ""
        is_whole = is_datastore_whole and (listed is not None or veth.is_of_pool)
        record = Record.NEVER_PROMISED if was_never_promised else self._record_of(veth, is_datastore_whole=is_whole)
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

    def judge_without_veth(self, *, is_routed: bool) -> Judgement:
        """Judge a quarantined address that no live veth has. `is_routed`: the host still has a route to it."""
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
        """Judge a recorded sandbox by all evidence.

        Args:
            listed: container IDs of the runtime's sandboxes, None if it did not answer.
            survey: None if the kernel could not be read.
            is_declared_gone: whether the sandbox is missing from the runtime's list of valid attachments in a GC.
        Returns: the evidence, and the judgement that follows from it.
        """
        container_id = attachment.key.container_id
        host_veth = Presence.UNKNOWN
        if survey is not None:
            host_veth = Presence.PRESENT if attachment.host_veth in survey.living_names else Presence.ABSENT
        # The netns path of an adopted sandbox is unknown. Its veth is evidence instead: a veth pair is deleted with its namespace.
        netns = self._netns_presence(attachment) if attachment.netns else host_veth
        age_s = self.age_s(attachment)
        is_proven_gone, links = False, Presence.UNKNOWN
        if age_s < REAP_MIN_AGE_S and netns is Presence.ABSENT and attachment.netns:
            is_proven_gone, links = self._wiring.is_netns_gone(attachment.netns), _links_presence(attachment, survey)
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
            age_s=age_s,
            is_declared_gone=is_declared_gone,
            is_runtimes_own=is_own,
            is_netns_proven_gone=is_proven_gone,
            links=links,
        )
        return evidence, judge(evidence)

    def record_kept(self, key: AttachmentKey, judgement: Judgement) -> None:
        """Write to the ledger why a sandbox was kept, but only when the kinds of reasons change. Raises: DatastoreError."""
        if judgement.verdict is not SandboxVerdict.KEEP:
            return
        kinds = tuple(reason.code for reason in judgement.reasons)
        with self._lock:
            if self._kept.get(key) == kinds:
                return
            self._kept[key] = kinds
        with self._datastore.transaction() as uow:
            uow.record_event(LedgerEvent.KEPT, key=key, detail=judgement.text)

    def _record_of(self, veth: HostVeth, *, is_datastore_whole: bool) -> Record:
        """Classify the records of the datastore about a veth whose sandbox has no attachment.

        If an ADD ended before its reply, the row of the address that it had reserved is free or cooling. A veth whose address has no
        row, or a row with an owner, was not left by such an ADD. Its own row may be missing because EC2 did not show the address when
        a lost datastore was rebuilt.
        """
        if veth.key and self._datastore.is_tombstoned(veth.key):
            return Record.DELETED
        row = self._datastore.address(veth.address) if veth.address else None
        if row and row.state is AddressState.QUARANTINED:
            return Record.QUARANTINED
        if is_imported_alias(veth.alias) or not is_datastore_whole:
            return Record.MISSING  # an imported alias: amazon-vpc-cni-k8s answered the ADD
        is_unowned = self._has_lost_no_row(veth) if row is None else row.state in (AddressState.FREE, AddressState.COOLING)
        return Record.NEVER_PROMISED if is_unowned else Record.MISSING

    def _has_lost_no_row(self, veth: HostVeth) -> bool:
        """Whether it is normal that a veth's address has no row: the address is outside the pool, and the row of the veth's sandbox
        cannot have been lost.

        An address outside the pool never has a row of its own. The row of the sandbox can have been lost if a lost datastore was
        rebuilt while the sandbox's uplink was gone. Then only the runtime's list shows whether the sandbox exists.
        """
        return not veth.is_of_pool and not (veth.key is not None and self._datastore.may_have_lost_row_of(veth.key))

    def _netns_presence(self, attachment: Attachment) -> Presence:
        """Whether the recorded path still leads to the recorded network namespace; UNKNOWN if the path cannot be examined."""
        try:
            is_same = self._wiring.identify_netns(attachment.netns) == attachment.netns_identity
        except NetnsError:
            return Presence.ABSENT
        except IpamError:
            return Presence.UNKNOWN
        return Presence.PRESENT if is_same else Presence.ABSENT

    def _absence_of(self, container_id: str) -> tuple[int, float]:
        return self._absences.count(container_id), self._absences.age_s(container_id, now_s=self._clock.monotonic())

    def age_s(self, attachment: Attachment) -> float:
        """Return the seconds since the ADD by the monotonic clock.

        If an old version of the daemon did not record the time of the ADD, return the seconds since our start.
        """
        row = self._datastore.address(attachment.address)
        since_s = attachment.since_monotonic_s
        if row is not None and row.owner == attachment.key:
            since_s = row.since_monotonic_s
        if since_s is None:
            since_s = self._started_monotonic_s
        return max(self._clock.monotonic() - since_s, 0.0)


def _runtime_presence(container_id: str, listed: Collection[str] | None) -> Presence:
    if listed is None:
        return Presence.UNKNOWN
    return Presence.PRESENT if container_id in listed else Presence.ABSENT


def _links_presence(attachment: Attachment, survey: KernelSurvey | None) -> Presence:
    """Whether the host has a link of the sandbox; UNKNOWN if there is no survey, or if the survey was interrupted."""
    if survey is None or not survey.is_whole:
        return Presence.UNKNOWN
    return Presence.PRESENT if present_links(attachment, survey) else Presence.ABSENT


def _container_ids(attachments: Iterable[Attachment]) -> set[str]:
    return {attachment.key.container_id for attachment in attachments}


def _wired_count_unless_listed(survey: KernelSurvey, listed: Collection[str]) -> int:
    """Count the sandboxes with a host veth that is not dying; 0 if the list has one of them."""
    wired = set[str]()
    for veth in survey.firsts:
        if veth.is_dying:
            continue
        container_id = veth.key.container_id if veth.key else veth.name
        if container_id in listed:
            return 0
        wired.add(container_id)
    return len(wired)
