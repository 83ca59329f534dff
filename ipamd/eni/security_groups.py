"""Keep the security groups of the node's secondary ENIs equal to those of its primary ENI.

Pods on a secondary ENI are filtered by that ENI's groups. An operator changes the groups of the primary ENI and expects every pod
to follow (amazon-vpc-cni-k8s issue 964). Instance metadata shows the change without an EC2 call; each ENI that differs costs
one ModifyNetworkInterfaceAttribute, once per change. ENIs that are not managed keep their groups (amazon-vpc-cni-k8s issue 2470).
The groups of each ENI are known from the Describe that records it, so they cost no call of their own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from ipamd.core.agenda import DENIED, EC2, soonest_s
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import EniBook
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import CloudDeniedError, CloudNotFoundError, log_text
from ipamd.model.ids import EniId
from ipamd.ports import Ec2

CONDITION = "security groups"
"""The condition, and the key in the agenda of an ENI for which EC2 refused the change."""

log = logging.getLogger(__name__)


class SecurityGroups(Service):
    """Used by one thread at a time, as the provisioner is; what is known of each ENI's groups is in the book."""

    def __init__(self, context: ServiceContext, *, ec2: Ec2, book: EniBook, follows_primary: Callable[[Eni], bool]) -> None:
        """`follows_primary`: whether an ENI's groups are the primary ENI's, not custom networking's."""
        super().__init__(context)
        self._ec2 = ec2
        self._book = book
        self._follows_primary = follows_primary

    def follow(self, identity: InstanceIdentity) -> int:
        """Give the next managed secondary ENI whose groups differ the groups of the primary ENI; the pool is triggered for the rest.

        One per look: a call that EC2 throttles takes up to 40 s, and an ADD may wait for the pool meanwhile.
        Returns: how many were changed. An ENI that EC2 refuses holds no other up: it is a condition, and is tried again after a
            pause. Never raises for what EC2 or its adapter does.
        """
        changed = self._changed(identity.security_group_ids)
        self._agenda.keep_only(CONDITION, changed)
        due = [eni_id for eni_id in changed if self._agenda.is_due((CONDITION, eni_id))]
        if due[1:]:
            self._demand.trigger()
        is_done = bool(due) and self._change(due[0], identity.security_group_ids)
        if not self._changed(identity.security_group_ids):
            self._health.report(CONDITION, "")
        return is_done

    def next_retry_s(self) -> float | None:
        """Seconds until a refused change is due again; None if none is."""
        return soonest_s(map(self._agenda.left_s, self._agenda.keys(CONDITION)))

    def _changed(self, wanted: tuple[str, ...]) -> list[EniId]:
        """ENIs whose groups are known and differ. An ENI always has at least one group: an empty list is metadata that has not caught
        up (EC2 would refuse it too)."""
        enis = [eni for eni in self._datastore.enis() if eni.is_in_pool and not eni.is_primary and self._follows_primary(eni)]
        known = {eni.eni_id: self._book.of(eni.eni_id).security_groups for eni in enis}
        return sorted(eni_id for eni_id, groups in known.items() if wanted and groups not in ((), wanted))

    def _change(self, eni_id: EniId, wanted: tuple[str, ...]) -> bool:
        groups = wanted
        try:
            self._ec2.set_security_groups(eni_id, security_group_ids=wanted)
        except CloudNotFoundError:
            groups = ()  # the next Describe shows whether the ENI still exists
        except Exception as error:  # noqa: BLE001  # whatever it is, it must neither stop the pool nor be repeated without a pause
            self._agenda.put_off((CONDITION, eni_id), DENIED if isinstance(error, CloudDeniedError) else EC2)
            sentence = (
                f"security groups: ENI {eni_id} keeps its former security groups, not {', '.join(wanted)}: {log_text(error)}"
            )
            self._health.report(CONDITION, sentence, error=error)
            return False
        self._book.observe(eni_id, security_groups=groups)
        self._agenda.clear((CONDITION, eni_id))
        if groups:
            log.info("got the primary ENI's security groups eni=%s groups=%s", eni_id, ", ".join(wanted))
        return bool(groups)
