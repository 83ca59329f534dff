"""Compare the branch ENIs of sandboxes with EC2, in one Describe for all that are due.

The annotation that names a pod's branch ENI is an untrusted claim until EC2 confirms it (docs/adr/0049). A new sandbox in standard
mode has no routes until then, so EC2 is called at once, but not within the ADD (I12). For a sandbox in strict mode EC2 is called
about 10 s later, and the host network reconciler (`ipamd/host/network.py`) cuts the sandbox off while EC2 contradicts the claim. A
contradiction counts only after a second answer, a minute later. The absence of the ENI counts in the same way, but only in answers
that show the trunk (I11). The outcome is stored in the sandbox's row, so that EC2 is called again neither on an idle node nor after a
restart (I13). Rejected: a call within the ADD, which would make each ADD wait for EC2.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection
from math import isfinite

from ipamd.core.backoffs import EC2, schedule_of, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import EniBook
from ipamd.model.attachment import UNCONFIRMED, Attachment
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import DOUBT_AGAIN_S
from ipamd.model.conditions import problem
from ipamd.model.errors import IpamError, UnknownAttachmentError, log_text
from ipamd.model.ids import EniId
from ipamd.model.legs.branch_eni import branch_eni_of
from ipamd.model.legs.branch_evidence import contradiction
from ipamd.model.legs.condition_codes import UPLINKS, LegConditionCode
from ipamd.model.words import first_of
from ipamd.ports.cloud import Ec2

SETTLED_S = 10.0
"""Delay of the call about a new sandbox in strict mode. Ours: sandboxes that start together share a call, and by then EC2 usually
shows the tags of the new branch ENI."""

SPACING_S = 1.0
"""Least time between two calls. Ours: sandboxes that start together share a call, and a second is short compared with the start of a
pod."""

FRUITLESS_SPACING_S = 5.0
"""Least time to the next call after an answer that did not confirm a new sandbox's claim. Ours: if somebody creates pods with forged
annotations again and again, that costs one call in 5 s, a hundredth of the account's limit; other pods wait up to 5 s longer."""

CALL_MAX = 199
"""Most ENIs in one call, in addition to the trunk. Ours: a filter of EC2 takes 200 values. A trunk carries at most 120 branches, so
one call is enough for all."""

NAMED_COUNT = 5
"""How many sandboxes the condition names."""

REPORTED_AFTER_S = 10.0
"""The condition names a new sandbox without a confirmation after this long, or at once if the last call failed. Ours: EC2 usually
answers in a second, so the new sandboxes of a rollout do not appear in the condition."""

ABSENT = "it does not exist"
"""The objection to a claim if two answers did not show the branch ENI."""

CONDITION = UPLINKS
"""Name of the condition. Also the back-off key, with a sandbox's key, of the next call about that sandbox."""

CLAIMED = "branch claim"
"""Back-off key, with an ENI's ID: EC2 has not confirmed a sandbox's claim to this ENI. Other sandboxes' claims to it share the
pause."""

SEEN = "branch contradicted"
"""Back-off key, with a sandbox's key and the objection: one answer contradicted the claim. A second answer with the same objection
counts only after this pause."""

CALL = ("branch call",)
"""Back-off key: the next call, for any sandbox."""

log = logging.getLogger(__name__)


class BranchComparison(Service):
    """Compares branch ENIs with EC2, and stores the outcome in the rows of their sandboxes. Used only by the pool's thread."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, book: EniBook, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a sandbox must be cut off, or connected again. It must not block."""
        super().__init__(context)
        self._ec2 = ec2
        self._book = book
        self._on_change = on_change
        self._refusal = ""

    def compare(self) -> None:
        """Compare the sandboxes that are due, and report contradictions. Never raises for an error of EC2 or the disk."""
        attachments = self._datastore.attachments()
        rows = {row.key: row for row in attachments if row.uplink is not None and row.contradiction != ""}
        self._forget_all_but(rows.values())
        for key in rows.keys() - {backoff_key[1] for backoff_key in self._backoffs.keys(CONDITION)}:
            self._backoffs.put((CONDITION, key), in_s=_first_pause_s(rows[key]))
        rows_due = [row for row in rows.values() if self._is_due(row)]
        if rows_due and self._backoffs.is_due(CALL):
            self._ask(rows_due[:CALL_MAX])
        self._report()

    def next_s(self) -> float | None:
        """Seconds until something is due by the clock; None if nothing is."""
        if not self._backoffs.keys(CONDITION):
            return None
        waits = (self._backoffs.next_s(CONDITION), self._backoffs.next_s(CLAIMED), self._backoffs.next_s(*CALL))
        return soonest_s(wait for wait in waits if wait is not None and isfinite(wait))

    def _forget_all_but(self, rows: Collection[Attachment]) -> None:
        keys, eni_ids = {row.key for row in rows}, {row.eni_id for row in rows}
        for backoff_key in (CONDITION, SEEN):
            self._backoffs.retain(backoff_key, keys)
        # The pause of a claim outlives its sandbox, so that a pod that is created repeatedly does not cost a call each time.
        self._backoffs.clear(
            *(key for key in self._backoffs.keys(CLAIMED) if key[1] not in eni_ids and self._backoffs.is_due(key))
        )

    def _is_due(self, row: Attachment) -> bool:
        if row.is_unconfirmed and not self._backoffs.is_due((CLAIMED, row.eni_id)):
            return False
        return self._backoffs.is_due((CONDITION, row.key))

    def _ask(self, rows: list[Attachment]) -> None:
        """Describe the branch ENIs of `rows` and the trunk in one call, and draw the conclusion for each sandbox."""
        eni_ids = [row.eni_id for row in rows]
        trunk = self._book.trunk()
        trunk_id = None
        if trunk is not None:
            trunk_id = trunk[0]
            eni_ids.insert(0, trunk_id)
        try:
            described = self._ec2.find_enis(list(dict.fromkeys(eni_ids)))
        except Exception as error:  # noqa: BLE001  # no error may stop the pool, or be repeated without a pause
            self._back_off_call(rows, error)
            return
        self._refusal = ""
        is_fruitless = self._weigh_all(rows, described, trunk_id)
        self._backoffs.put(CALL, in_s=FRUITLESS_SPACING_S if is_fruitless else SPACING_S)

    def _weigh_all(self, rows: Collection[Attachment], described: Collection[DescribedEni], trunk_id: EniId | None) -> bool:
        """Draw the conclusion for each sandbox. Returns: whether the claim of at least one new sandbox was not confirmed."""
        readable = {eni.eni_id: eni for eni in described if not eni.problem}
        unreadable = {eni.eni_id for eni in described if eni.problem}
        is_fruitless = False
        for row in rows:
            # An answer without the trunk is no evidence of absence, nor is an unreadable branch ENI (I11).
            is_absence = trunk_id in readable and row.eni_id not in unreadable
            is_confirmed = self._try_weigh(row, readable.get(row.eni_id), trunk_id, is_absence=is_absence)
            if row.is_unconfirmed and is_confirmed is False:
                is_fruitless = True
        return is_fruitless

    def _back_off_call(self, rows: Collection[Attachment], error: Exception) -> None:
        """Back off after a failed call. While pods without network wait for the answer, the pause is as short as for a waiting ADD."""
        schedule = schedule_of(error)
        longest_s = schedule.longest_s
        if any(row.is_unconfirmed for row in rows):
            longest_s = min(schedule.urgent_s, longest_s)
        pause_s = self._backoffs.back_off(CALL, schedule, longest_s=longest_s)
        self._refusal = log_text(error)
        log.warning("comparing branch ENIs failed, will retry in_s=%.0f error=%s", pause_s, self._refusal)

    def _try_weigh(
        self, row: Attachment, described: DescribedEni | None, trunk_id: EniId | None, *, is_absence: bool
    ) -> bool | None:
        """Draw the conclusion for one sandbox. Returns: whether EC2 confirms its claim; None if the outcome was not recorded."""
        try:
            return self._weigh(row, described, trunk_id, is_absence=is_absence)
        except UnknownAttachmentError:
            log.debug("sandbox deleted before the answer sandbox=%s", row.key)
        except IpamError as error:
            self._backoffs.back_off((CONDITION, row.key), EC2)
            log.warning("recording a branch ENI failed, will retry eni=%s error=%s", row.eni_id, log_text(error))
        return None

    def _weigh(self, row: Attachment, described: DescribedEni | None, trunk_id: EniId | None, *, is_absence: bool) -> bool:
        """Compare one sandbox's claim with an answer, and store the outcome. Returns: whether EC2 confirms the claim.

        Raises: UnknownAttachmentError, DatastoreError.
        """
        if (described is None and not is_absence) or (row.is_unconfirmed and trunk_id is None):
            self._back_off(row)
            return False
        objection = ABSENT if described is None else contradiction(branch_eni_of(row), described, trunk=trunk_id)
        self._forget_doubts(row, but=objection)
        if not objection:
            self._backoffs.clear((CLAIMED, row.eni_id))
            self._store(row, "")
            return True
        if objection != row.objection and not self._is_second(row, objection):
            return False
        self._back_off(row)
        outcome = f"{UNCONFIRMED}: {objection}" if row.is_unconfirmed else objection
        self._store(row, outcome)
        return False

    def _store(self, row: Attachment, outcome: str) -> None:
        """Store the outcome in the sandbox's row. Call `on_change` if that cuts the sandbox off, or connects it again."""
        if outcome == row.contradiction:
            return
        with self._datastore.transaction() as uow:
            is_changed = uow.record_contradiction(row.key, contradiction=outcome).must_be_cut_off != row.must_be_cut_off
        if is_changed:
            self._on_change()

    def _forget_doubts(self, row: Attachment, *, but: str) -> None:
        """Forget the objections that earlier answers raised to a sandbox's claim, except `but`, the objection of this answer.

        An objection counts only if two answers in a row raise it. The others are forgotten before anything is stored, so that no old
        objection stays if the disk refuses.
        """
        doubts = self._backoffs.keys(SEEN, row.key)
        self._backoffs.clear(*(doubt for doubt in doubts if doubt[2] != but))

    def _is_second(self, row: Attachment, objection: str) -> bool:
        """Whether an earlier answer, at least a minute ago, contradicted the row in the same way. Otherwise remember this answer."""
        doubt = (SEEN, row.key, objection)
        is_known = doubt in self._backoffs.keys(SEEN)
        if is_known and self._backoffs.is_due(doubt):
            return True
        if not is_known:
            self._backoffs.put(doubt, in_s=DOUBT_AGAIN_S)
        if row.is_unconfirmed:
            self._back_off(row)  # a shorter pause, because the sandbox has no network until EC2 confirms its claim
        else:
            self._backoffs.put((CONDITION, row.key), in_s=DOUBT_AGAIN_S)
        return False

    def _back_off(self, row: Attachment) -> None:
        self._backoffs.back_off((CONDITION, row.key), EC2)
        if row.is_unconfirmed:
            self._backoffs.back_off((CLAIMED, row.eni_id), EC2)

    def _report(self) -> None:
        sentences = []
        for row in self._datastore.attachments():
            sentence = self._describe_problem(row)
            if sentence:
                sentences.append(sentence)
        named = first_of(sorted(sentences), NAMED_COUNT)
        contradicted = problem(LegConditionCode.BRANCHES_CONTRADICTED, sandboxes=named) if named else None
        self._health.report(CONDITION, contradicted)

    def _describe_problem(self, row: Attachment) -> str:
        """Return a sentence about a sandbox whose branch ENI EC2 contradicts, or has left unconfirmed for a long time; "" if neither
        is true.
        """
        name = row.sandbox_name or str(row.key)
        if row.objection:
            suffix = "; it is cut off" if row.must_be_cut_off else ""
            return f"{name} has {row.eni_id}, of which EC2 says: {row.objection}{suffix}"
        if not row.is_unconfirmed:
            return ""
        waited_s = self._clock.monotonic() - (row.since_monotonic_s or 0.0)
        if not self._refusal and waited_s < REPORTED_AFTER_S:
            return ""
        cause = self._refusal or "its answers do not show it"
        return f"{name} has no network until EC2 confirms {row.eni_id}: {cause}; EC2 is asked again"


def _first_pause_s(row: Attachment) -> float:
    """Seconds until the first call about a new sandbox."""
    if row.is_unconfirmed:
        return 0.0
    return SETTLED_S
