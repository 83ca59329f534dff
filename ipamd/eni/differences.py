"""Keep the contradictions between EC2 and the datastore, object by object, and the conditions about them.

A comparison with EC2 is made only on request, and on a quiet node that may be hours later. A condition that only the next comparison
ends would last too long: an operator deletes the pods with lost addresses, as the condition's page advises, and the condition stays.
So each difference names its ENI or address. It ends when the rows no longer contradict EC2's answer, or when an audit that called EC2
does not find it. If a row prevented the datastore from recording an object, a comparison is requested when this row is gone. Rejected:
a comparison every few minutes while a condition lasts, which costs calls and shows only what the rows show too (I13).
"""

from __future__ import annotations

import threading
from collections.abc import Collection
from enum import StrEnum

from ipamd.core.context import Service, ServiceContext
from ipamd.model.address import Address
from ipamd.model.cloud_evidence import CloudKey
from ipamd.model.conditions import ConditionCode, problem, problem_of
from ipamd.model.eni import EniState
from ipamd.model.ids import EniId
from ipamd.model.record import dataclass
from ipamd.model.snapshot import Snapshot
from ipamd.model.words import counted, first_of

ANSWER, DIFFERENCES, LOST, MASS_LOSS = "ec2 answer", "ec2 differences", "lost addresses", "mass loss"
"""Conditions. ANSWER: the last answer was not believed. DIFFERENCES: EC2 and the datastore contradict each other about an ENI or
address. LOST: EC2 no longer shows addresses that are recorded. MASS_LOSS: a loss was concluded from implausible answers."""

NAMED_COUNT = 5
"""How many differences a condition names. Ours: few are enough, because `ipamctl audit` has all."""


class Contradiction(StrEnum):
    """How EC2 and the datastore contradict each other about one object."""

    LOST_IN_USE = "lost-in-use"  # EC2 no longer has an address that a sandbox uses
    ELSEWHERE = "elsewhere"  # EC2 has an address on one ENI, and its row names another ENI
    PRIMARY = "primary"  # an address that EC2 shows as secondary is recorded as the primary address of an ENI
    UPLINK = "uplink"  # an address that EC2 shows on an ENI of the pool is recorded as that of a branch ENI
    NOT_FORGOTTEN = "not-forgotten"  # EC2 does not have an ENI or address any more, and the datastore refused to record that
    NOT_RECORDED = "not-recorded"  # an ENI contradicts a row, or EC2 did not return its subnet
    UNREADABLE = "unreadable"  # EC2's description of an ENI could not be read


AWAITED = frozenset({Contradiction.ELSEWHERE, Contradiction.PRIMARY, Contradiction.UPLINK, Contradiction.NOT_RECORDED})
"""Contradictions about an object that EC2 shows and that could not be recorded. As soon as the object can be recorded, a comparison is
requested."""


@dataclass(frozen=True, slots=True)
class CloudDifference:
    """One contradiction, with a sentence for people.

    `subject`: the address or the ENI.
    `blocking`: only for NOT_RECORDED: the address whose row, or whose ENI, prevents the datastore from recording the subject. None if
        no row prevents it, and for all other kinds.
    `eni_id`: the ENI on which EC2 has the address; "" if EC2 does not have the address, or the subject is an ENI.
    """

    kind: Contradiction
    subject: CloudKey
    text: str
    eni_id: EniId = EniId("")
    blocking: CloudKey | None = None

    def __str__(self) -> str:
        return self.text

    def is_over(self, rows: Snapshot) -> bool:
        """Whether the rows, as they are now, no longer contradict EC2's answer. Pure."""
        row = None if isinstance(self.subject, str) else rows.addresses.get(self.subject)
        match self.kind:
            case Contradiction.LOST_IN_USE:
                return not _is_lost_in_use(row)
            case Contradiction.ELSEWHERE:
                return not _is_on_other_eni(row, self.eni_id)
            case Contradiction.PRIMARY:
                return not _is_primary_address(self.subject, rows)
            case Contradiction.UPLINK:
                return not _is_outside_pool(self.subject, rows)
            case Contradiction.NOT_FORGOTTEN:
                return self._is_loss_recorded(row, rows)
            case Contradiction.NOT_RECORDED:
                return self._is_unblocked(rows)
            case Contradiction.UNREADABLE:
                return False  # only another answer of EC2 can end it

    def _is_loss_recorded(self, row: Address | None, rows: Snapshot) -> bool:
        """Whether the rows agree that EC2 does not have the subject any more."""
        if isinstance(self.subject, str):
            eni = rows.enis.get(self.subject)
            return eni is None or eni.state is EniState.DETACHING
        return row is None or row.is_lost

    def _is_unblocked(self, rows: Snapshot) -> bool:
        """Whether the row that prevented a record of the ENI is gone. False if no row did: only another answer of EC2 can end that."""
        return self.blocking is not None and not is_taken(self.blocking, rows, by_other_than=str(self.subject))


def is_taken(address: CloudKey | None, rows: Snapshot, *, by_other_than: str) -> bool:
    """Whether an address is recorded: in the pool, as that of a sandbox with an uplink, or as the primary address of an ENI.

    `by_other_than`: an ENI whose own primary address does not count.
    """
    is_primary = any(eni.primary_address == address and eni.eni_id != by_other_than for eni in rows.enis.values())
    return _is_outside_pool(address, rows) or is_primary or address in rows.addresses


def _is_lost_in_use(row: Address | None) -> bool:
    return row is not None and row.is_lost and row.is_in_use


def _is_on_other_eni(row: Address | None, eni_id: EniId) -> bool:
    return row is not None and row.eni_id != eni_id


def _is_primary_address(address: CloudKey, rows: Snapshot) -> bool:
    return any(eni.primary_address == address for eni in rows.enis.values())


def _is_outside_pool(address: CloudKey | None, rows: Snapshot) -> bool:
    return any(not row.is_of_pool and row.address == address for row in rows.attachments.values())


class CloudDifferences(Service):
    """The differences between the rows and EC2's last believed answer, and the conditions about EC2's answers.

    Safe from any thread.
    """

    def __init__(self, context: ServiceContext) -> None:
        super().__init__(context)
        self._lock = threading.Lock()
        self._standing: tuple[CloudDifference, ...] = ()
        self._answer = context.health.claim(ANSWER)
        self._differences = context.health.claim(DIFFERENCES)
        self._lost = context.health.claim(LOST)
        self._mass_loss = context.health.claim(MASS_LOSS)
        self._is_believed = True

    def take(self, differences: Collection[CloudDifference], *, implausible: str, mass_loss: str) -> None:
        """Replace the differences after a comparison. An answer that is not believed changes none (I11).

        `implausible`: why the answer is not believed, "" if it is.
        `mass_loss`: the loss that was concluded although the answers were not believed, or "".
        """
        if mass_loss:
            self._mass_loss.report(problem(ConditionCode.MASS_LOSS, cause=mass_loss))
        with self._lock:
            self._is_believed = not implausible
            self._answer.report(problem_of(ConditionCode.EC2_ANSWER_IMPLAUSIBLE, implausible))
            if not implausible:
                self._replace(differences)

    def end_resolved(self) -> bool:
        """End the differences whose rows have changed so that they no longer contradict EC2.

        Returns: whether to compare again, because an object that EC2 shows could not be recorded before, and can be now.
        """
        with self._lock:
            over = self._over()
            if over:
                self._replace([difference for difference in self._standing if difference not in over])
        lost_count = self._datastore.counts().lost
        lost = problem(ConditionCode.ADDRESSES_LOST, count=counted(lost_count, "address")) if lost_count else None
        self._lost.report(lost)
        if not lost_count:
            self._mass_loss.report(None)
        return any(difference.kind in AWAITED for difference in over)

    def end_unseen(self, seen: Collection[str]) -> bool:
        """End all differences that an audit did not find, although it got a plausible answer of EC2.

        `seen`: the subjects of the differences that the audit found, as texts. Returns: whether to compare again, because the last
        comparison did not believe EC2's answer.
        """
        with self._lock:
            self._replace([difference for difference in self._standing if str(difference.subject) in seen])
            return not self._is_believed

    def _over(self) -> list[CloudDifference]:
        if not self._standing:
            return []  # without `snapshot`, which copies all rows and so costs time
        rows = self._datastore.snapshot()
        return [difference for difference in self._standing if difference.is_over(rows)]

    def _replace(self, differences: Collection[CloudDifference]) -> None:
        self._standing = tuple(differences)
        named = first_of([str(difference) for difference in differences], NAMED_COUNT)
        differs = problem(ConditionCode.EC2_DIFFERS, differences=named) if named else None
        self._differences.report(differs)
