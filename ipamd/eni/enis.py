"""Compare EC2's answer about our ENIs with the datastore, and record the difference, one transaction per ENI (I6, I7).

Only a complete and plausible Describe decides which addresses are on which ENI. Addresses in the answer are recorded at once.
Addresses that are missing count as absent only after a second answer (`ipamd/model/cloud_evidence.py`, docs/adr/0017), and a
sandbox keeps even an absent address (I2). An address that is recorded on another ENI, as a primary address or as that of a branch ENI,
and a prefix that is recorded elsewhere, are left out and reported as contradictions. The rest of the answer is recorded.

A doubted address, which only one answer lacks so far, is not assigned. When addresses are absent, free ones are removed and all others
are marked lost: their sandbox keeps them, or they go on cooling (I2, I8), and they are removed when they would become free. An absent
ENI is removed, with its routing, once it has no address left.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from datetime import datetime, timedelta

from ipamd.core.backoffs import EC2
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import EniBook, Place
from ipamd.eni.differences import CloudDifference, CloudDifferences, Contradiction, is_taken
from ipamd.eni.earlier_changes import NOT_SHOWN, remember_open_releases
from ipamd.eni.operations import OperationLog
from ipamd.eni.resync import EniSyncResult, ResyncReason, ResyncScheduler
from ipamd.eni.routing import EniRouting
from ipamd.model.address import Address
from ipamd.model.cloud import DescribedEni, InstanceIdentity, all_addresses
from ipamd.model.cloud_evidence import DOUBT_AGAIN_S, CloudEvidence, CloudKey, Weighed, Witnesses, recorded
from ipamd.model.eni import OPERATOR, Eni, EniState, operator_exclusion
from ipamd.model.eni_tags import POOL_TAG, TRUNK, is_created_by_us, is_managed, pool_of
from ipamd.model.errors import CloudError, IllegalTransitionError, InvariantError, IpamError, log_text
from ipamd.model.family import Family, IpAddress, IpNetwork, members, stand_in
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.intent import Create
from ipamd.model.legs.refusals import no_trunk
from ipamd.model.metadata_evidence import ASK_AGAIN_S
from ipamd.model.network_cards import card_of_pool, card_pool
from ipamd.model.trunk import ASK_FOR_TRUNK
from ipamd.ports.cloud import Ec2
from ipamd.ports.datastore import UnitOfWork
from ipamd.ports.kernel import HostNetwork
from ipamd.sandbox.cooldown import Cooldown

LEAVING = frozenset({"detaching", "detached"})
"""Attachment statuses of an ENI that leaves the instance.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_NetworkInterfaceAttachment.html, status.
"""

TRUNK_LOOK = ("trunk look",)
"""Back-off key of the comparisons with EC2 that look for the trunk ENI, while pods need it and none is known."""

log = logging.getLogger(__name__)

Batch = tuple[IpNetwork | None, list[IpAddress]]
"""Addresses with the prefix that contains them, None for single ones."""

BatchRows = dict[IpAddress, Address | None]
"""The row of each address of a batch, None if it has none."""


class EniService(Service):
    """Brings the rows of this instance's ENIs and addresses into agreement with EC2.

    `resync_due` and `sync_with_ec2` compare all ENIs with a Describe. `record` and `add_addresses` store the answer to one call of
    ours. `forget_unused` removes ENIs that are gone and have no address left.

    Comparisons need no lock: the cloud loop makes the comparisons of the start, before the pool has the limits of the instance type,
    and the pool's thread makes all later ones. `forget_unused` may be called from any thread.

    `book`: the facts about each ENI that its row does not contain.
    `routing`: the host routing of each ENI.
    `left_detached`: the ENIs that other software detached and that were forgotten since the start. EC2 may still have them.
    `last_comparison`: the time and the result of the last comparison with EC2 whose answer was recorded; None before the first.
    """

    def __init__(
        self,
        context: ServiceContext,
        *,
        book: EniBook,
        ec2: Ec2,
        hostnet: HostNetwork,
        cooldown: Cooldown,
        resyncs: ResyncScheduler,
        identity: Callable[[], InstanceIdentity | None],
        exclusion: Callable[[Eni], str],
        on_quarantined: Callable[[], None],
        is_datastore_lost: bool,
        family: Family,
        has_cards: bool = False,
    ) -> None:
        """Keep the collaborators, and record in `book` what earlier processes released.

        Args:
            exclusion: returns why an ENI gets no new sandbox, "" if it may get one.
            on_quarantined: called when EC2 showed an address that a sandbox without a row has, so that the sandbox can be adopted.
                Must not block.
            is_datastore_lost: rows of this boot were lost, so sandboxes may have addresses that no row shows.
            family: the IP family of the pool.
            has_cards: ENIs of further network cards may be for pods.
        """
        self.book = book
        remember_open_releases(book, context)
        self.routing = EniRouting(context, hostnet=hostnet, book=book)
        super().__init__(context)
        self._evidence = CloudEvidence(self._datastore.doubts())
        self._ec2 = ec2
        self.family = family
        self._has_cards = has_cards
        self.differences = CloudDifferences(context)
        self.left_detached: frozenset[EniId] = frozenset()
        self.last_comparison: tuple[datetime, EniSyncResult] | None = None
        self._log = OperationLog(context)
        self._identity = identity
        self._exclusion = exclusion
        self._cooldown = cooldown
        self._resyncs = resyncs
        self._on_quarantined = on_quarantined
        # Until this deadline an address without a row must cool before it is assigned. The monotonic clock counts from the boot, which
        # ended sandboxes without a DEL, so one cooldown after the boot their addresses have cooled. After a lost datastore the
        # deadline is set when the ENIs are recorded.
        self._unrecorded_cool_deadline = math.inf if is_datastore_lost else cooldown.period.total_seconds()
        self._withhold(self._evidence.doubted())

    def resync_due(self) -> None:
        """Make the resync that is due, if any: one Describe for all requests. For the pool's thread, between two plans."""
        identity = self._identity()
        if identity is None:
            return
        result = self._resyncs.run_due(lambda: self.sync_with_ec2(identity))
        if result is not None:
            self.set_up_adopted(result)
            self._demand.trigger()  # the resync's changes may need another plan

    def sync_with_ec2(self, identity: InstanceIdentity) -> EniSyncResult:
        """Describe this instance's ENIs, weigh the answer, and update the datastore. EC2 is called once, and once more for each
        subnet of its ENIs whose CIDR is not known yet.

        What the answer shows and lacks is stored before anything that follows from it. Otherwise, if the process then died or the
        kernel did not answer, an older doubt about an object that this answer shows would stay. A later answer without the object
        would then seem to be the second one in a row (I11).

        Args:
            identity: names the primary ENI, without which no answer is believed.
        Returns: the changes, and when to compare again. An answer that is not believed is a result, not an error.
        Raises: CloudError if EC2 did not answer; then no row has changed (I11). KernelDumpError, WiringError or DatastoreError if the
            kernel or the disk failed; then a part of the answer can be missing, and a resync is requested, because nothing else
            would end what the answer left in doubt.
        """
        began_monotonic_s = self._clock.monotonic()
        described = self._ec2.describe_enis(identity.instance_id)
        primary = [eni for eni in described if eni.eni_id == identity.primary_eni_id]
        if primary:
            self.book.observe(identity.primary_eni_id, connection_tracking=primary[0].connection_tracking)
        recorded_enis = recorded(self._datastore.snapshot(), identity)
        doubted_before = self._evidence.doubted()
        weighed = self._evidence.weigh(
            described,
            recorded_enis,
            recent=self.book.added(),  # read after `recorded_enis`, because the book notes each change before the datastore records it
            witnesses=Witnesses(self.routing.links(), self.book.metadata_view()),
            now_s=self._clock.monotonic(),
        )
        outcome = EniSyncResult(began_monotonic_s, implausible=weighed.implausible, missing=weighed.missing)
        if primary:  # even an implausible answer with the primary ENI proves that the ENIs which it shows are attached
            outcome.attached = _attached_ids(described)
        outcome.compare_again(weighed.again_s)
        self._withhold(weighed.doubted | weighed.absent)
        if doubted_before - weighed.doubted - weighed.absent:
            self._demand.announce_supply()  # at once, because what follows may fail
        try:
            self._store_doubts()
            self._take_weighed(weighed, described, identity, outcome)
        except Exception:
            self._resyncs.request(ResyncReason.OTHER, "an answer could not be recorded")
            raise
        self.last_comparison = self._clock.now(), outcome
        self._resyncs.record_result(outcome)
        if outcome.added_count or outcome.healed_count:
            self._demand.announce_supply()
        return outcome

    def _take_weighed(
        self, weighed: Weighed, described: Collection[DescribedEni], identity: InstanceIdentity, outcome: EniSyncResult
    ) -> None:
        """Record what follows from an answer that was weighed. Raises: KernelDumpError, WiringError, DatastoreError."""
        wired = self.wired_addresses()
        # Record the losses on all ENIs before the additions, because an address may have moved from one ENI to another.
        refused = self._lose(weighed.absent, outcome)
        self._withhold(weighed.doubted | refused)
        if not weighed.implausible:
            self._record_all(described, identity, wired, outcome)
        elif outcome.attached:  # even an implausible answer proves that its ENIs exist and occupy their places
            self.book.set_unrecorded(_places(described), is_whole=False)
        differences = [*outcome.contradictions, *outcome.unreadable]
        self.differences.take(differences, implausible=weighed.implausible, mass_loss=weighed.mass_loss)
        self.forget_unused()

    def _store_doubts(self) -> None:
        """Store the doubts for the next process, which withholds the same addresses and continues to count the answers."""
        doubts = self._evidence.doubts()
        if doubts != self._datastore.doubts():
            with self._datastore.transaction() as uow:
                uow.put_doubts(doubts)

    def trunk_mac(self) -> MacAddress:
        """Return the MAC of the node's trunk ENI, whose link carries the uplinks of sandboxes. From any thread, from memory.

        Returns: "" while a comparison is requested: after a restart only EC2's answer shows the trunk, and a new node gets its trunk
            only some time after it has joined the cluster.
        Raises: UplinkPendingError if none is attached.
        """
        trunk = self.book.trunk()
        if trunk is not None:
            return trunk[1]
        if self._backoffs.is_due(TRUNK_LOOK) and not self._resyncs.is_asked:
            self._backoffs.back_off(TRUNK_LOOK, EC2)
            self._resyncs.request(ResyncReason.OTHER, "a pod must have an ENI of its own, and no trunk is known")
        if not self._resyncs.is_asked:
            raise no_trunk(ASK_FOR_TRUNK)
        return MacAddress("")

    def eni_of(self, described: DescribedEni, identity: InstanceIdentity) -> Eni:
        """Make the record of an attached ENI from EC2's description.

        Raises: CloudError if it has no IPv4 address, or if its subnet is not known and EC2 does not return it.
        """
        if described.primary_address is None:
            raise CloudError(f"ENI {described.eni_id} has no IPv4 address", details="it keeps its place and is not used")
        is_primary = described.eni_id == identity.primary_eni_id
        subnet_cidr = identity.subnet_cidr
        if described.subnet_id != identity.subnet_id:
            subnet_cidr = self._ec2.subnet_cidr(described.subnet_id)
        recorded_eni = self._datastore.eni(described.eni_id)
        eni = Eni(
            eni_id=described.eni_id,
            mac=described.mac,
            device_index=described.device_index,
            network_card=described.network_card,
            subnet_id=described.subnet_id,
            subnet_cidr=subnet_cidr,
            primary_address=described.primary_address,
            is_primary=is_primary,
            state=EniState.ATTACHED,
            created_by_us=is_created_by_us(described, identity),
            managed=is_managed(described, is_primary=is_primary, instance_id=identity.instance_id, has_cards=self._has_cards),
            excluded=operator_exclusion(described) or _excluded_before(recorded_eni),
            pool=self._pool_of(described, recorded_eni, is_primary=is_primary),
        )
        return replace(eni, excluded=self._exclusion(eni))

    def _pool_of(self, described: DescribedEni, recorded_eni: Eni | None, *, is_primary: bool) -> str:
        """Return the pool of an ENI, "" for the node's own pool.

        If further network cards are managed, an ENI on such a card is in the card's pool. Any other ENI is in the pool that its row
        names, or else in the one that its tag names. If that is the pool of a managed card, the ENI is in the node's own pool.
        """
        if self._has_cards and described.network_card:
            return card_pool(described.network_card)
        pool = (recorded_eni.pool if recorded_eni else "") or pool_of(described, is_primary=is_primary)
        return "" if self._has_cards and card_of_pool(pool) else pool

    def record(self, eni: Eni, described: DescribedEni) -> EniSyncResult:
        """Store one ENI as EC2 showed it after our creation or allocation. Its new addresses become free; none of its rows is removed.

        An ENI that is recorded already was described because the answer to an allocation was lost. The description may also contain
        addresses that are older than this allocation. So for one cooldown after a boot or a lost datastore, the addresses of such an
        ENI that have no row cool first (I8).
        Raises: InvariantError if the ENI contradicts a record; WiringError, KernelDumpError.
        """
        self._record_groups(described)
        described = self._without_released(described)
        return self.add_addresses(eni.eni_id, described.secondary_addresses, described.prefixes, eni=eni)

    def add_addresses(
        self,
        eni_id: EniId,
        addresses: frozenset[IpAddress],
        prefixes: frozenset[IpNetwork],
        *,
        asked_count: int = 0,
        eni: Eni | None = None,
    ) -> EniSyncResult:
        """Record addresses that EC2 allocated for us. They become free. Addresses that were marked lost lose the mark.

        Args:
            asked_count: how many addresses the call requested. EC2 may return old addresses with the new ones. If more addresses than
                requested have no row, some are older, and it is not known which: for one cooldown after a boot or a lost datastore,
                all of them cool first (I8).
            eni: the ENI itself, to be recorded too; None if it is recorded already.
        Returns: the changes, with one contradiction per address that stays recorded on another ENI.
        Raises: InvariantError if the ENI is not recorded; WiringError, KernelDumpError.
        """
        new = self.lose_elsewhere(eni_id, addresses, prefixes)
        is_new_eni = eni is not None and self._datastore.eni(eni_id) is None
        if is_new_eni:
            self.book.record_own([eni_id], on=eni_id, is_added=True)
        cooldown = None
        if not is_new_eni and len(new) > asked_count:
            cooldown = self._left_of_cooldown()
        outcome = EniSyncResult()
        self._store(eni_id, addresses, prefixes, outcome, eni=eni, wired=self.wired_addresses(), cooldown=cooldown)
        self._demand.announce_supply()
        return outcome

    def lose_elsewhere(self, eni_id: EniId, addresses: Collection[IpAddress], prefixes: Collection[IpNetwork]) -> list[IpAddress]:
        """Mark addresses as lost that EC2 assigned to `eni_id` in answer to a call of ours, but that are recorded on another ENI (I7).

        An address is on one ENI at a time, so the answer proves that it left the other ENI, whatever a Describe shows. Without the
        mark, a sandbox could still get the address, with the routing of the other ENI.
        Returns: the addresses that are new to this ENI; they are recorded as a change of ours.
        """
        new = []
        moved = []
        for address in sorted(all_addresses(addresses, prefixes)):
            row = self._datastore.address(address)
            if row is not None and row.eni_id == eni_id and not row.is_lost:
                continue
            new.append(address)
            if row is not None and not row.is_lost:
                moved.append(address)
        if moved:
            with self._datastore.transaction() as uow:
                for address in moved:
                    uow.lose(address, reason=f"EC2 has assigned it to {eni_id}")
        self.book.record_own(new, on=eni_id, is_added=True)
        return new

    def may_carry_unrecorded(self, eni: Eni) -> bool:
        """Whether a wired sandbox has an address without a row, which may be on this ENI (I2).

        Raises: KernelDumpError.
        """
        wired = self.wired_addresses()
        return any(address in eni.subnet_cidr and self._datastore.address(address) is None for address in wired)

    def set_up_adopted(self, outcome: EniSyncResult) -> None:
        """Set up the host routing of the ENIs that a comparison adopted. A failure is logged, and retried later."""
        if not outcome.adopted:
            return
        for problem in self.routing.set_up_all():
            log.warning("host routing setup failed error=%s", problem)

    def wired_addresses(self) -> frozenset[IpAddress]:
        """Addresses that the kernel has wired to a sandbox, recorded or not. Raises: KernelDumpError."""
        survey = self._wiring.survey()
        return frozenset(survey.routes) | {veth.address for veth in survey.veths if veth.address and not veth.is_dying}

    def forget_unused(self) -> None:
        """Remove ENIs that are gone and have no address left, with their routing, and report lost addresses. No EC2 call.

        Called after each comparison. The host network reconciler calls it too, because the last sandbox of an ENI may end much later.
        """
        for eni_id in sorted(eni_id for eni_id, facts in self.book.all().items() if facts.is_absent):
            eni = self._datastore.eni(eni_id)
            if eni is None:
                self.book.forget(eni_id)
            elif eni.state is not EniState.DETACHING:
                self.book.observe(eni_id, is_absent=False)
            elif self._is_unused(eni_id):
                self._forget_eni(eni)
        if self.differences.end_resolved():
            self._resyncs.request(ResyncReason.OTHER, "a row that prevented a record is gone")

    def _forget_eni(self, eni: Eni) -> None:
        """Remove the routing of an ENI that is gone, and then its row, unless EC2 has shown the ENI again meanwhile."""
        eni_id = eni.eni_id
        self.routing.tear_down(eni)
        try:
            with self._datastore.transaction() as uow:
                current = self._datastore.eni(eni_id)  # read in the transaction, because EC2 may have shown it again meanwhile
                if current is None or current.state is not EniState.DETACHING or not self._is_unused(eni_id):
                    return
                uow.remove_eni(eni_id, reason=f"{NOT_SHOWN} it attached")
            self.book.forget(eni_id)
            self.left_detached |= {eni_id}
            self._demand.trigger()  # its place on the instance is free
        except IpamError as error:  # must not stop the caller, which repairs the sandboxes' routes next
            log.warning("removing an ENI failed, will retry eni=%s error=%s", eni_id, log_text(error))

    def end_unseen(self, seen: Collection[str]) -> None:
        """End the differences that an audit with a plausible answer of EC2 did not find (those not in `seen`). From any thread."""
        if self.differences.end_unseen(seen):
            self._resyncs.request(ResyncReason.OTHER, "an audit got a plausible answer again")

    def _is_unused(self, eni_id: EniId) -> bool:
        return not any(row.eni_id == eni_id for row in self._datastore.addresses())

    def _record_all(
        self, described: Iterable[DescribedEni], identity: InstanceIdentity, wired: frozenset[IpAddress], outcome: EniSyncResult
    ) -> None:
        """Record every ENI of a believed answer. The book keeps the place of each ENI that is not recorded."""
        occupied: dict[EniId, Place] = {}
        leaving = {intent.eni_id for intent in self._datastore.open_intents() if intent.is_leaving}
        for eni in described:
            self._observe_trunk(eni)
            outcome.eni_count += eni.attachment_status == "attached"
            if eni.eni_id in leaving | self.book.not_on(eni.eni_id):
                continue  # we are deleting it or have deleted it, and EC2 lags
            if not self._record_eni(eni, identity, wired, outcome):
                occupied[eni.eni_id or EniId(f"(no ID) {len(occupied)}")] = (eni.network_card, eni.device_index)
        self.book.set_unrecorded(occupied)
        if self._unrecorded_cool_deadline == math.inf:
            # Before the ENIs were recorded, a DEL could not record the address that it released, so that address must cool now.
            self._unrecorded_cool_deadline = self._clock.monotonic() + self._cooldown.period.total_seconds()
        self._cooldown.resume(())

    def _observe_trunk(self, eni: DescribedEni) -> None:
        """Record whether an ENI is an attached trunk ENI, with its MAC."""
        is_trunk = bool(eni.eni_id) and eni.attachment_status == "attached" and eni.interface_type == TRUNK
        self.book.observe(eni.eni_id, trunk_mac=eni.mac if is_trunk else None)
        if is_trunk:
            self._backoffs.clear(TRUNK_LOOK)

    def _continue_creation(self, eni: DescribedEni) -> None:
        """Reopen a creation whose intent was lost with the datastore, so that EC2 does not keep the ENI after the instance (I9)."""
        if self._log.is_about(eni):
            return  # it is being created or deleted
        log.warning("resuming the creation of an ENI eni=%s", eni.eni_id)
        creation = Create(
            subnet_id=eni.subnet_id,
            device_index=eni.device_index,
            address_count=0,
            prefix_count=0,
            tags={POOL_TAG: card_pool(eni.network_card)} if eni.network_card else {},
            security_group_ids=eni.security_group_ids,
            eni_id=eni.eni_id,
        )
        self._log.open(creation)
        self._demand.trigger()

    def _record_eni(
        self, eni: DescribedEni, identity: InstanceIdentity, wired: frozenset[IpAddress], outcome: EniSyncResult
    ) -> bool:
        """Record one ENI of a believed answer. A contradiction is reported, not raised.

        Returns: False if the ENI is not recorded as attached, and only occupies its place.
        """
        before = self._datastore.eni(eni.eni_id)
        if not eni.is_readable:
            self._report_unreadable(eni, outcome)
            return False
        if eni.attachment_status != "attached":
            if before is not None and eni.attachment_status in LEAVING:
                with self._datastore.transaction() as uow:
                    self._mark_detaching(uow, eni.eni_id)
            outcome.compare_again(DOUBT_AGAIN_S)  # it is being attached or detached
            return False
        try:
            self._record_groups(eni)
            current = self.eni_of(eni, identity)
            present = self._without_released(eni)
            cooldown = self._left_of_cooldown()
            self._store(
                eni.eni_id, present.secondary_addresses, present.prefixes, outcome, eni=current, wired=wired, cooldown=cooldown
            )
        except (CloudError, InvariantError) as error:
            self._report_not_recorded(eni, error, outcome)
            return False
        if self.family.is_sparse and not eni.has_ipv6:
            outcome.foreign.append(f"ENI {eni.eni_id} has no IPv6 address")
        self._follow_up_recorded(eni, before, current, outcome)
        return True

    def _follow_up_recorded(self, eni: DescribedEni, before: Eni | None, current: Eni, outcome: EniSyncResult) -> None:
        """Report a new ENI as adopted, and finish its creation if that was interrupted. Set up the routing of an ENI that is back, or
        has another route table now.
        """
        if before is None:
            outcome.adopted.append(eni.eni_id)
            if current.created_by_us and not eni.delete_on_termination:
                self._continue_creation(eni)
        elif before.state is not EniState.ATTACHED or before.route_table != current.route_table:
            self.book.observe(eni.eni_id, is_absent=False)
            self.routing.set_up_again(eni.eni_id)

    def _report_unreadable(self, eni: DescribedEni, outcome: EniSyncResult) -> None:
        """Report an ENI that cannot be read, or that has no IPv4 address."""
        name = f"ENI {eni.eni_id or '(no ID)'}"
        if eni.problem:
            text = f"{name} cannot be read: {eni.problem}"
            outcome.unreadable.append(CloudDifference(Contradiction.UNREADABLE, eni.eni_id, text))
            outcome.compare_again(ASK_AGAIN_S)  # nothing else would request a comparison
        else:
            outcome.foreign.append(f"{name} has no IPv4 address ({eni.interface_type})")
        self.book.observe(eni.eni_id, is_bare=not eni.problem)

    def _report_not_recorded(self, eni: DescribedEni, error: CloudError | InvariantError, outcome: EniSyncResult) -> None:
        """Report an ENI that contradicts a record, or whose subnet EC2 did not return, and request another comparison."""
        log.error("ENI not recorded eni=%s error=%s", eni.eni_id, log_text(error))
        text = f"ENI {eni.eni_id} is not recorded as EC2 shows it: {log_text(error)}"
        is_address_taken = is_taken(eni.primary_address, self._datastore.snapshot(), by_other_than=eni.eni_id)
        blocking = eni.primary_address if is_address_taken else None
        outcome.add_contradiction(CloudDifference(Contradiction.NOT_RECORDED, eni.eni_id, text, blocking=blocking))
        # Nothing else would request a comparison: the comparison with metadata skips the ENIs that the book has as unrecorded.
        pause_s = DOUBT_AGAIN_S if isinstance(error, CloudError) else ASK_AGAIN_S
        outcome.compare_again(pause_s)

    def _without_released(self, described: DescribedEni) -> DescribedEni:
        """Leave out the addresses that a call of ours removed from this ENI, or added to another one.

        Describe may show them here for minutes, and other nodes may have them by now (I7).
        """
        gone = self.book.not_on(described.eni_id)
        return replace(
            described,
            secondary_addresses=described.secondary_addresses - gone,
            prefixes=frozenset(prefix for prefix in described.prefixes if members(prefix)[0] not in gone),
        )

    def _left_of_cooldown(self) -> timedelta | None:
        """Return how long an address without a row must still cool when EC2 shows it; None if it need not.

        The address may have been released shortly before the boot, or before the datastore was lost (I8). An address that EC2 has just
        assigned in answer to a call of ours need not cool (`add_addresses`).
        """
        left_s = self._unrecorded_cool_deadline - self._clock.monotonic()
        if left_s > 0:
            return min(self._cooldown.period, timedelta(seconds=min(left_s, 1e6)))
        return None

    def _record_groups(self, described: DescribedEni) -> None:
        """Record an ENI's security groups. An answer without groups is ignored: an ENI always has one (I11)."""
        groups = described.security_group_ids
        if groups:
            self.book.observe(described.eni_id, security_groups=groups)

    def _store(
        self,
        eni_id: EniId,
        addresses: Collection[IpAddress],
        prefixes: Collection[IpNetwork],
        outcome: EniSyncResult,
        *,
        eni: Eni | None,
        wired: Collection[IpAddress],
        cooldown: timedelta | None,
    ) -> None:
        """Store addresses of an ENI, and the ENI itself unless `eni` is None. New addresses become free, lost ones are healed.

        Args:
            wired: addresses that the kernel has wired to sandboxes.
            cooldown: how long new addresses cool first; None: not at all (I8).
        Raises: InvariantError if the ENI is not recorded, or itself contradicts a record; WiringError, KernelDumpError. Then nothing
            is stored.
        """
        recorded_eni = eni or self._datastore.eni(eni_id)
        if recorded_eni is not None:
            if self.family.is_sparse:
                prefixes = self._prefixes_for_pods(recorded_eni, prefixes, wired)
            self._remove_stale_prefix_rules(recorded_eni, addresses, prefixes, wired)
        batches: list[Batch] = [(None, sorted(addresses))]
        batches += [(prefix, list(members(prefix))) for prefix in sorted(prefixes)]
        is_any_wired = False
        with self._datastore.transaction() as uow:
            if eni is not None:
                eni = self._with_recorded_state(eni)
                uow.put_eni(eni)
                self.book.observe(eni_id, elsewhere=frozenset())  # `_admit` sets it again
            if eni is None or eni.managed:
                is_any_wired = self._admit(uow, eni_id, batches, outcome, wired=wired, cooldown=cooldown)
        if is_any_wired:
            self._on_quarantined()
        if cooldown is not None:
            self._cooldown.resume(())

    def _remove_stale_prefix_rules(
        self, eni: Eni, addresses: Collection[IpAddress], prefixes: Collection[IpNetwork], wired: Collection[IpAddress]
    ) -> None:
        """Remove the routing rules of earlier prefixes, if they would misroute addresses or prefixes that are new to the datastore.

        Raises: WiringError, KernelDumpError.
        """
        fresh = [address for address in addresses if self._datastore.address(address) is None]
        for prefix in prefixes:
            if not any(map(self._datastore.address, members(prefix))):
                fresh.append(prefix.network_address)
        if fresh:
            rejected = prefixes if self.family.is_sparse else ()
            self.routing.remove_stale_prefix_rules(eni, fresh, wired=wired, rejected=rejected)

    def _with_recorded_state(self, eni: Eni) -> Eni:
        """Copy from the record the facts that EC2 does not show: whether the ENI's routing is in place, and whether we created it."""
        recorded_eni = self._datastore.eni(eni.eni_id)
        if recorded_eni is None:
            return eni
        # If the route table changed, the new one must be set up first (I7).
        is_ready = recorded_eni.host_ready and recorded_eni.route_table == eni.route_table
        return replace(eni, host_ready=is_ready, created_by_us=eni.created_by_us or _stays_ours(recorded_eni, eni))

    def _prefixes_for_pods(self, eni: Eni, prefixes: Collection[IpNetwork], wired: Collection[IpAddress]) -> list[IpNetwork]:
        """Return the /80s of an ENI from which pods get addresses: those that are recorded or have a sandbox.

        If there are none, and `_is_for_pods` allows a new one, return only the lowest /80, so that each start chooses the same one.
        """
        recorded_prefixes = {row.prefix for row in self._datastore.addresses()}
        used_prefixes = []
        for prefix in sorted(prefixes):
            if prefix in recorded_prefixes or any(address in prefix for address in wired):
                used_prefixes.append(prefix)
        if not used_prefixes and self._is_for_pods(eni):
            return sorted(prefixes)[:1]
        return used_prefixes

    def _is_for_pods(self, eni: Eni) -> bool:
        """Whether a new /80 for pods may be on this ENI.

        All pods of the node get their addresses from one /80, which is on the primary ENI, or on another ENI while the primary ENI is
        excluded. Each further network card has a /80 of its own, for the further interfaces of pods.
        """
        if eni.excluded:
            return False
        if card_of_pool(eni.pool):
            return True
        primary = next((eni for eni in self._datastore.enis() if eni.is_primary), None)
        return eni.is_primary or (primary is not None and bool(primary.excluded))

    def _admit(
        self,
        uow: UnitOfWork,
        eni_id: EniId,
        batches: Iterable[Batch],
        outcome: EniSyncResult,
        *,
        wired: Collection[IpAddress],
        cooldown: timedelta | None,
    ) -> bool:
        """Add the addresses that contradict no record. A new address that is wired already is quarantined at once, because after a
        lost datastore a running sandbox may have it (I1, I2). Returns: whether there was such an address.
        """
        is_any_wired = False
        conflicting = self.book.facts_of(eni_id).elsewhere
        primaries: dict[IpAddress, EniId] = {eni.primary_address: eni.eni_id for eni in self._datastore.enis()}
        for prefix, addresses in batches:
            rows = self._rows_of_batch(prefix, addresses)
            rows_elsewhere = [row for row in rows.values() if row is not None and row.eni_id != eni_id]
            taken = self._taken_addresses(rows, rows_elsewhere, primaries)
            for address, (kind, text) in taken.items():
                outcome.add_contradiction(CloudDifference(kind, address, f"{address} is on {eni_id} for EC2, and {text}", eni_id))
            if prefix is None:
                conflicting |= frozenset(taken)
            elif any(row.prefix == prefix for row in rows_elsewhere):
                conflicting |= {rows_elsewhere[0].address}
                continue  # the prefix is recorded on another ENI; it is added here once none of its addresses is recorded there
            fresh = self._add_fresh(uow, eni_id, prefix, rows, taken, cooldown=cooldown)
            outcome.added_count += len(fresh)
            is_any_wired |= self._quarantine_wired(uow, prefix, rows, fresh, wired)
            outcome.healed_count += _heal_shown(uow, rows, taken)
        self.book.observe(eni_id, elsewhere=conflicting)
        return is_any_wired

    def _rows_of_batch(self, prefix: IpNetwork | None, addresses: Iterable[IpAddress]) -> BatchRows:
        """Return the row of each address that EC2 shows, None if it has none. `addresses` has only the last address of a /80
        (`members`), so the rows of its other addresses are added.
        """
        rows = {address: self._datastore.address(address) for address in addresses}
        if self.family.is_sparse and prefix is not None:
            rows |= {row.address: row for row in self._datastore.addresses() if row.prefix == prefix}
        return rows

    def _taken_addresses(
        self, rows: BatchRows, rows_elsewhere: Iterable[Address], primaries: Mapping[IpAddress, EniId]
    ) -> dict[IpAddress, tuple[Contradiction, str]]:
        """Return the addresses that contradict a record, each with the kind of contradiction and its text."""
        taken = {row.address: (Contradiction.ELSEWHERE, f"stays recorded on {row.eni_id}") for row in rows_elsewhere}
        for address in rows.keys() & primaries.keys():
            taken[address] = Contradiction.PRIMARY, f"recorded as the primary address of {primaries[address]}"
        for attachment in self._datastore.attachments():
            if not attachment.is_of_pool and attachment.address in rows:
                taken[attachment.address] = (
                    Contradiction.UPLINK,
                    f"recorded as that of sandbox {attachment.key}",
                )
        return taken

    def _add_fresh(
        self,
        uow: UnitOfWork,
        eni_id: EniId,
        prefix: IpNetwork | None,
        rows: BatchRows,
        taken: Collection[IpAddress],
        *,
        cooldown: timedelta | None,
    ) -> list[IpAddress]:
        """Add the addresses that have no row and are not taken. Each cools for `cooldown`, or for a whole cooldown if it is cooling
        after a DEL.

        Returns: the added addresses.
        """
        fresh = [address for address, row in rows.items() if row is None and address not in taken]
        cooling = filter(self._cooldown.is_cooling, fresh)
        uow.add_addresses(eni_id, cooling, prefix=prefix, cooldown=self._cooldown.period)
        uow.add_addresses(eni_id, fresh, prefix=prefix, cooldown=cooldown)
        return fresh

    def _quarantine_wired(
        self,
        uow: UnitOfWork,
        prefix: IpNetwork | None,
        rows: BatchRows,
        fresh: Collection[IpAddress],
        wired: Collection[IpAddress],
    ) -> bool:
        """Quarantine new addresses that are wired already. Returns: whether there was one."""
        new_and_wired = [address for address in fresh if address in wired]
        if self.family.is_sparse and fresh and prefix:
            # The addresses of a new /80 have no rows of their own: every wired address in it without a row counts.
            new_and_wired += [address for address in wired if address in prefix and address not in rows]
        for address in new_and_wired:
            uow.quarantine(address, reason="wired in the kernel, unknown to the datastore")
        return bool(new_and_wired)

    def _withhold(self, doubted: Collection[CloudKey]) -> None:
        """Withhold the doubted addresses and all addresses of doubted ENIs, and no longer withhold any other address."""
        rows = self._datastore.addresses() if doubted else ()
        self._datastore.withhold(frozenset(row.address for row in rows if row.address in doubted or row.eni_id in doubted))

    def _lose(self, absent: Collection[CloudKey], outcome: EniSyncResult) -> frozenset[CloudKey]:
        """Record that ENIs and addresses are gone. If the datastore refuses to record the loss of an object, the refusal is reported,
        and the other losses are recorded. Returns: the objects whose loss it refused; their addresses must stay withheld (I7).
        """
        refused = set()
        present_rows = [row for row in self._datastore.addresses() if not row.is_lost]
        for key in sorted(absent, key=str):
            rows = [row for row in present_rows if key in (row.address, row.eni_id, stand_in(row.address))]
            if not self._lose_key(key, rows, outcome):
                refused.add(key)
        if outcome.lost_count:
            self._demand.trigger()  # the pool has fewer addresses than planned
        return frozenset(refused)

    def _lose_key(self, key: CloudKey, rows: Collection[Address], outcome: EniSyncResult) -> bool:
        """Record that one ENI or address is gone, with its rows, and count the changes. Returns: False if the datastore refused."""
        eni_id = key if isinstance(key, str) else None
        if not self._store_loss(key, eni_id, rows, outcome):
            return False
        if eni_id:
            # `is_absent` is set after the row is DETACHING, because `forget_unused`, in another thread, unsets it for an ENI whose row
            # is not DETACHING.
            self.book.observe(eni_id, is_absent=True)
            outcome.lost_eni_count += 1
            outcome.forced_eni_count += any(row.is_in_use for row in rows)
        for row in rows:
            self._count_lost(row, outcome)
        return True

    def _store_loss(self, key: CloudKey, eni_id: EniId | None, rows: Iterable[Address], outcome: EniSyncResult) -> bool:
        """Store the loss of one ENI or address, with its rows, in one transaction. Returns: False if the datastore refused it."""
        try:
            with self._datastore.transaction() as uow:
                if eni_id:
                    self._mark_detaching(uow, eni_id)
                for row in rows:
                    uow.lose(row.address, reason=f"{NOT_SHOWN} {'its ENI attached' if eni_id else 'it on this ENI'}")
        except (InvariantError, IllegalTransitionError) as error:
            log.error("recording a loss failed subject=%s error=%s", key, log_text(error))
            text = f"{key} is gone at EC2 and stays recorded: {log_text(error)}"
            outcome.add_contradiction(CloudDifference(Contradiction.NOT_FORGOTTEN, key, text))
            return False
        return True

    def _count_lost(self, row: Address, outcome: EniSyncResult) -> None:
        """Count one lost address, and report it if a sandbox still uses it. `row`: as it was before the loss."""
        outcome.lost_count += 1
        outcome.forced_count += row.is_in_use
        if self._datastore.address(row.address) is None:
            outcome.removed_count += 1
        elif row.is_in_use:
            text = f"{row.address} is in use and {NOT_SHOWN} it on {row.eni_id}"
            outcome.add_contradiction(CloudDifference(Contradiction.LOST_IN_USE, row.address, text))

    def _mark_detaching(self, uow: UnitOfWork, eni_id: EniId) -> None:
        """Record an ENI as detaching: its addresses are not assigned any more (I7), and its sandboxes keep theirs (I2)."""
        recorded_eni = self._datastore.eni(eni_id)
        if recorded_eni is not None:
            uow.put_eni(replace(recorded_eni, state=EniState.DETACHING, host_ready=False))


def _attached_ids(described: Iterable[DescribedEni]) -> frozenset[EniId]:
    """Return the ENIs that an answer shows attached."""
    return frozenset(eni.eni_id for eni in described if eni.attachment_status == "attached")


def _places(described: Iterable[DescribedEni]) -> dict[EniId, Place]:
    """Return where the ENIs of an answer are attached."""
    return {eni.eni_id: (eni.network_card, eni.device_index) for eni in described if eni.eni_id}


def _heal_shown(uow: UnitOfWork, rows: BatchRows, taken: Collection[IpAddress]) -> int:
    """Heal the lost addresses that EC2 shows again. Returns: how many."""
    healed_count = 0
    for row in rows.values():
        if row is not None and row.is_lost and row.address not in taken:
            uow.heal(row.address, reason="EC2 shows it again")
            healed_count += 1
    return healed_count


def _excluded_before(recorded_eni: Eni | None) -> str:
    """Return why an ENI was excluded before this answer, "" if it was not.

    The exclusion of an ENI that an AWS service manages is left out, because it ends when EC2 no longer shows the service.
    """
    if recorded_eni is None or recorded_eni.excluded.startswith(OPERATOR):
        return ""
    return recorded_eni.excluded


def _stays_ours(recorded_eni: Eni, described: Eni) -> bool:
    """Whether an ENI that we created is still ours to delete: not if a service manages it now."""
    return recorded_eni.created_by_us and not described.excluded.startswith(OPERATOR)
