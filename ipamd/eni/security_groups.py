"""Keep the security groups of the node's secondary ENIs equal to those of its primary ENI.

Pods on a secondary ENI are filtered by that ENI's groups. An operator changes the groups of the primary ENI and expects every pod
to follow (amazon-vpc-cni-k8s issue 964). Instance metadata shows the change without an EC2 call; each ENI that differs costs
one ModifyNetworkInterfaceAttribute, once per change. ENIs that are not managed keep their groups (amazon-vpc-cni-k8s issue 2470).
The groups of each ENI are known from the Describe that records it, so they cost no call of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ipamd.core.backoff import Retry, soonest_s
from ipamd.core.context import ServiceContext
from ipamd.model.cloud import DescribedEni, InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import CloudNotFoundError, log_text
from ipamd.model.ids import EniId
from ipamd.model.words import counted
from ipamd.ports import Ec2

RETRY_FIRST_S = 60.0
RETRY_MAX_S = 3600.0
"""Pauses after EC2 refused the change for an ENI. Ours: a missing IAM permission costs 24 calls a day at most, and is named."""

CONDITION = "security groups"

log = logging.getLogger(__name__)


class SecurityGroups:
    """Remembers the groups of each ENI of this node. Used by one thread at a time, as the provisioner is."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, follows_primary: Callable[[Eni], bool] = lambda _: True) -> None:
        """`follows_primary`: whether an ENI's groups are the primary ENI's, not custom networking's."""
        self._datastore = context.datastore
        self._demand = context.demand
        self._health = context.health
        self._clock = context.clock
        self._ec2 = ec2
        self._follows_primary = follows_primary
        self._known: dict[EniId, tuple[str, ...]] = {}
        self._refused: dict[EniId, Retry] = {}

    def note(self, described: DescribedEni) -> None:
        """Remember the groups that EC2 shows of an ENI; an answer without groups is ignored (I11)."""
        if described.security_group_ids:
            self._known[described.eni_id] = described.security_group_ids

    def follow(self, identity: InstanceIdentity) -> int:
        """Give the next managed secondary ENI whose groups differ the groups of the primary ENI; the pool is triggered for the rest.

        One per look: a call that EC2 throttles takes up to 40 s, and an ADD may wait for the pool meanwhile.
        Returns: how many were changed. An ENI that EC2 refuses holds no other up: it is a condition, and is tried again after a
            pause. Never raises for what EC2 or its adapter does.
        """
        wanted = identity.security_group_ids
        enis = [eni for eni in self._datastore.enis() if eni.is_in_pool]
        secondary = {eni.eni_id for eni in enis if not eni.is_primary and self._follows_primary(eni)}
        self._known = {eni_id: groups for eni_id, groups in self._known.items() if eni_id in secondary}
        # An ENI always has at least one group: an empty list is metadata that has not caught up (EC2 would refuse it too).
        changed = [eni_id for eni_id in sorted(secondary) if wanted and self._known.get(eni_id, wanted) != wanted]
        self._refused = {eni_id: self._refused[eni_id] for eni_id in changed if eni_id in self._refused}
        due = [eni_id for eni_id in changed if self._is_due(eni_id)]
        count = sum(self._change(eni_id, wanted) for eni_id in due[:1])
        if due[1:]:
            self._demand.trigger()
        if count:
            log.info("%s got the primary ENI's security groups: %s", counted(count, "ENI"), ", ".join(wanted))
        if not any(self._known.get(eni_id, wanted) != wanted for eni_id in changed):
            self._health.clear_condition(CONDITION)
        return count

    def next_retry_s(self) -> float | None:
        """Seconds until a refused change is due again; None if none is."""
        now_s = self._clock.monotonic()
        return soonest_s(one.left_s(now_s=now_s) for one in self._refused.values())

    def _is_due(self, eni_id: EniId) -> bool:
        refused = self._refused.get(eni_id)
        return refused is None or refused.is_due(now_s=self._clock.monotonic())

    def _change(self, eni_id: EniId, wanted: tuple[str, ...]) -> bool:
        try:
            self._ec2.set_security_groups(eni_id, security_group_ids=wanted)
        except CloudNotFoundError:
            self._known.pop(eni_id, None)  # the next Describe shows whether the ENI still exists
            return False
        except Exception as error:  # noqa: BLE001  # whatever it is, it must neither stop the pool nor be repeated without a pause
            refused = self._refused.setdefault(eni_id, Retry(first_s=RETRY_FIRST_S, max_s=RETRY_MAX_S))
            refused.put_off(now_s=self._clock.monotonic())
            sentence = f"ENI {eni_id} keeps its former security groups, not {', '.join(wanted)}: {log_text(error)}"
            self._health.record_error(CONDITION, error)
            self._health.set_condition(CONDITION, f"security groups: {sentence}")
            log.warning("%s", sentence)
            return False
        self._known[eni_id] = wanted
        self._refused.pop(eni_id, None)
        return True
