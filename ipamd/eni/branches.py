"""Compare the branch ENIs of sandboxes with EC2: once for each new one, in one Describe for all that are due.

The annotation that names a pod's branch ENI is a stranger's text until EC2 confirms it. What contradicts it counts after a second
answer, a minute later (docs/adr/0049); that EC2 shows no such ENI, or does not answer, contradicts nothing (I11). The outcome is in
the sandbox's row, so that neither an idle node nor a restart asks again (I13). In strict mode a sandbox that is contradicted is cut
off by the host network's passes (`ipamd/host/network.py`) until an answer agrees. Rejected: to ask in the ADD (I12).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from math import inf, isfinite

from ipamd.core.agenda import DENIED, EC2, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import EniBook
from ipamd.model.attachment import Attachment
from ipamd.model.branch import BranchEni, contradiction
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import DOUBT_AGAIN_S
from ipamd.model.errors import CloudDeniedError, IpamError, UnknownAttachmentError, log_text
from ipamd.model.ids import EniId
from ipamd.model.words import first_of
from ipamd.ports import Ec2

SETTLED_S = 10.0
"""From the first sight of a sandbox to the question. Ours: those that start together share a call, and EC2 may lag behind tags."""

UNSHOWN_S = 60.0
"""An ENI that EC2 does not show is asked for with pauses up to this, and then no more in this process. Ours: some two minutes."""

MOST = 200
"""ENIs in one question. Ours: a filter of EC2 takes no more values, and a trunk carries 120 branches."""

SAID_COUNT = 5

CONDITION = "branch"
"""The condition, and in the agenda each sandbox until it is asked about."""

SEEN, CALL = "branch contradicted", ("branch call",)
"""In the agenda: a contradiction that one answer showed; and a question that EC2 refused."""

log = logging.getLogger(__name__)


class BranchComparison(Service):
    """Used by the pool's thread alone."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, book: EniBook, on_change: Callable[[], None]) -> None:
        """`on_change`: a sandbox is to be cut off, or is not any more. It must not block."""
        super().__init__(context)
        self._ec2 = ec2
        self._book = book
        self._on_change = on_change

    def compare(self) -> None:
        """Ask about the sandboxes that are due, if any, and say what is contradicted. Never raises for what EC2 or the disk does."""
        asked = {one.key: one for one in self._datastore.attachments() if one.branch is not None and one.contradiction != ""}
        for what in (CONDITION, SEEN):
            self._agenda.keep_only(what, asked)
        for key in asked.keys() - {known[1] for known in self._agenda.keys(CONDITION)}:
            self._agenda.put((CONDITION, key), in_s=SETTLED_S)
        due = [one for key, one in asked.items() if self._agenda.is_due((CONDITION, key))]
        if due and self._agenda.is_due(CALL):
            self._ask(due[:MOST])
        sentences = sorted(
            f"{one.sandbox_name or one.key} has {one.eni_id}, of which EC2 says: {one.contradiction}"
            + ("; it is cut off" if one.is_cut_off else "")
            for one in self._datastore.attachments()
            if one.contradiction
        )
        self._health.report(CONDITION, f"{CONDITION}: {first_of(sentences, SAID_COUNT)}" if sentences else "")

    def next_s(self) -> float | None:
        """Seconds until something is due; None if nothing will be by itself."""
        waits = (self._agenda.next_s(CONDITION), self._agenda.next_s(*CALL))
        return soonest_s(wait for wait in waits if wait is not None and isfinite(wait))

    def _ask(self, due: list[Attachment]) -> None:
        try:
            found = self._ec2.find_enis([one.eni_id for one in due])
        except Exception as error:  # noqa: BLE001  # whatever it is, it must neither stop the pool nor be repeated without a pause
            pause_s = self._agenda.put_off(CALL, DENIED if isinstance(error, CloudDeniedError) else EC2)
            log.warning("branch ENIs are compared later in_s=%.0f error=%s", pause_s, log_text(error))
            return
        self._agenda.clear(CALL)
        shown, trunk = {eni.eni_id: eni for eni in found if not eni.problem}, self._book.trunk()
        for one in due:
            try:
                self._weigh(one, shown.get(one.eni_id), trunk[0] if trunk else None)
            except UnknownAttachmentError:
                log.debug("its DEL was faster sandbox=%s", one.key)
            except IpamError as error:
                self._agenda.put_off((CONDITION, one.key), EC2)
                log.warning("what EC2 says of a branch ENI is recorded later eni=%s error=%s", one.eni_id, log_text(error))

    def _weigh(self, one: Attachment, shown: DescribedEni | None, trunk: EniId | None) -> None:
        """Draw the conclusion from one answer. Raises: UnknownAttachmentError, DatastoreError."""
        key = (CONDITION, one.key)
        if shown is None:
            if self._agenda.put_off(key, EC2) > UNSHOWN_S and not one.contradiction:
                self._agenda.put(key, in_s=inf)
            return
        said = contradiction(BranchEni.of(one), shown, trunk=trunk)
        doubt = (SEEN, one.key, said)
        if said and said != one.contradiction and doubt not in self._agenda.keys(SEEN):
            self._agenda.put(doubt, in_s=0.0)
            self._agenda.put(key, in_s=DOUBT_AGAIN_S)
            return
        if said:
            self._agenda.put_off(key, EC2)
        if said != one.contradiction:
            with self._datastore.transaction() as uow:
                is_changed = uow.mark_branch(one.key, contradiction=said).is_cut_off != one.is_cut_off
            if is_changed:
                self._on_change()
