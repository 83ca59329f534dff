"""Keep the security groups of the node's secondary ENIs equal to those of its primary ENI.

Pods on a secondary ENI are filtered by that ENI's groups. An operator who changes the groups of the primary ENI expects every pod to
follow (amazon-vpc-cni-k8s issue 964). Instance metadata shows the change without an EC2 call; each ENI that differs costs one
ModifyNetworkInterfaceAttribute per change. ENIs that are not managed keep their groups (amazon-vpc-cni-k8s issue 2470). The Describe
that records an ENI shows its present groups, so no further call is needed to learn them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ipamd.core.backoffs import Key, schedule_of, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.core.failure_isolation import NAMED_MAX
from ipamd.eni.book import EniBook
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.eni import Eni
from ipamd.model.errors import CloudNotFoundError, log_text
from ipamd.model.ids import EniId
from ipamd.model.words import first_of
from ipamd.ports.cloud import Ec2

CONDITION = "security groups"
"""Name of the condition. Also the back-off key, with an ENI's ID, after EC2 refused to change the groups of that ENI."""

log = logging.getLogger(__name__)


class SecurityGroups(Service):
    """Applies the primary ENI's security groups to the secondary ENIs. Used by the pool's thread.

    The book has each ENI's groups as EC2 showed them last.
    """

    def __init__(self, context: ServiceContext, *, ec2: Ec2, book: EniBook, follows_primary: Callable[[Eni], bool]) -> None:
        """`follows_primary` returns whether an ENI must have the primary ENI's groups, not groups that the network file names."""
        super().__init__(context)
        self._ec2 = ec2
        self._book = book
        self._follows_primary = follows_primary
        self._condition = context.health.claim(CONDITION)
        self._refused: dict[EniId, str] = {}

    def follow(self, identity: InstanceIdentity) -> int:
        """Set the primary ENI's groups on the next managed secondary ENI whose groups differ, and trigger the pool for the rest.

        Only one ENI is changed per call, because a call that EC2 throttles takes up to 40 s, and an ADD may wait for the pool
        meanwhile. An ENI that EC2 refuses does not delay the others: it is reported in a condition, and retried after a pause.
        Never raises for an error of EC2 or its adapter. Returns: how many ENIs were changed, 0 or 1.
        """
        changed = self._changed(identity.security_group_ids)
        self._backoffs.retain(CONDITION, changed)
        self._refused = {eni_id: reason for eni_id, reason in self._refused.items() if eni_id in changed}
        due_enis = [eni_id for eni_id in changed if self._backoffs.is_due((CONDITION, eni_id))]
        if due_enis[1:]:
            self._demand.trigger()
        is_done = bool(due_enis) and self._change(due_enis[0], identity.security_group_ids)
        self._report(identity.security_group_ids)
        return is_done

    def refusals(self) -> dict[Key, str]:
        """Return EC2's reason for each refused change of groups, by the back-off key of its pause. From any thread."""
        return {(CONDITION, eni_id): reason for eni_id, reason in self._refused.items()}

    def next_retry_s(self) -> float | None:
        """Seconds until a refused change is due again; None if none is."""
        return soonest_s(map(self._backoffs.left_s, self._backoffs.keys(CONDITION)))

    def _changed(self, wanted: tuple[str, ...]) -> list[EniId]:
        """Return the ENIs whose groups are known and differ from `wanted`. An empty `wanted` means that metadata is not up to date
        yet, because an ENI always has at least one group.
        """
        enis = [eni for eni in self._datastore.enis() if eni.is_in_pool and not eni.is_primary and self._follows_primary(eni)]
        groups_of = {eni.eni_id: self._book.facts_of(eni.eni_id).security_groups for eni in enis}
        return sorted(eni_id for eni_id, groups in groups_of.items() if wanted and groups not in ((), wanted))

    def _change(self, eni_id: EniId, wanted: tuple[str, ...]) -> bool:
        groups = wanted
        try:
            self._ec2.set_security_groups(eni_id, security_group_ids=wanted)
        except CloudNotFoundError:
            groups = ()  # the next Describe shows whether the ENI still exists
        except Exception as error:  # noqa: BLE001  # no error may stop the pool, or be repeated without a pause
            self._backoffs.back_off((CONDITION, eni_id), schedule_of(error))
            self._refused = {**self._refused, eni_id: log_text(error)}
            self._report(wanted, error=error)
            return False
        self._refused = {refused_id: reason for refused_id, reason in self._refused.items() if refused_id != eni_id}
        self._book.observe(eni_id, security_groups=groups)
        self._backoffs.clear((CONDITION, eni_id))
        if groups:
            log.info("security groups changed eni=%s groups=%s", eni_id, ", ".join(wanted))
        return bool(groups)

    def _report(self, wanted: tuple[str, ...], *, error: BaseException | None = None) -> None:
        """Report every ENI that EC2 refused, and why."""
        if not self._refused:
            self._condition.report(None, error=error)
            return
        sentences = []
        for eni_id, reason in sorted(self._refused.items()):
            sentences.append(f"ENI {eni_id} keeps its former security groups: {reason}")
        enis, groups = first_of(sentences, NAMED_MAX), ", ".join(wanted)
        self._condition.report(problem(ConditionCode.GROUPS_KEPT, groups=groups, enis=enis), error=error)
