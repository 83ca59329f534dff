"""Compare what EC2 says about our ENIs with what is recorded, and record the difference, one transaction per ENI (I6, I7).

A complete and plausible Describe decides which addresses are on which ENI, and nothing else. What it shows is recorded at once; what
it lacks is gone only after a second look (`ipamd/model/cloud_evidence.py`, docs/adr/0017), and a sandbox keeps even that (I2). What
contradicts a record is left out and reported: an address that is recorded on another ENI, or is some ENI's primary address, a prefix
that is recorded elsewhere. The rest is recorded all the same.

Doubted: nobody gets it. Absent: free addresses are forgotten, all others are lost: their sandbox keeps them, they keep cooling (I2,
I8), and they are forgotten when they would become free. An ENI is forgotten, with its routing, once no address of it is left.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from datetime import timedelta

from ipamd.core.agenda import EC2
from ipamd.core.context import Service, ServiceContext
from ipamd.eni.book import NOT_SHOWN, EniBook, Place, remember_named
from ipamd.eni.operations import OperationLog
from ipamd.eni.resync import LOST, MASS_LOSS, UNREADABLE, EniSyncResult, ResyncReason, ResyncScheduler, say_result
from ipamd.eni.routing import EniRouting
from ipamd.model.branch import ASK_FOR_TRUNK
from ipamd.model.cloud import DescribedEni, InstanceIdentity, all_addresses
from ipamd.model.cloud_evidence import DOUBT_AGAIN_S, CloudEvidence, CloudKey, Witnesses, recorded
from ipamd.model.eni import TRUNK, Eni, EniState, is_created_by_us, is_managed
from ipamd.model.errors import BranchPendingError, CloudError, IllegalTransitionError, InvariantError, IpamError, log_text
from ipamd.model.family import Family, IpAddress, IpNetwork, members, stand_in
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.intent import Create
from ipamd.model.metadata_evidence import ASK_AGAIN_S
from ipamd.model.words import counted
from ipamd.ports import Ec2, HostNetwork, UnitOfWork
from ipamd.sandbox.cooldown import Cooldown

LEAVING = frozenset({"detaching", "detached"})
"""Attachment statuses of an ENI that is going.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_NetworkInterfaceAttachment.html, status.
"""

TRUNK_LOOK = ("trunk look",)
"""In the agenda: the next look at EC2 for the trunk, while pods need it and none is known."""

log = logging.getLogger(__name__)

Batch = tuple[IpNetwork | None, list[IpAddress]]
"""Addresses with the prefix that contains them, None for single ones."""


class EniService(Service):
    """ENIs of this instance. Comparisons need no lock: the cloud loop makes those of the start, before the pool has limits and its
    thread may call anything here, and from then on that thread makes all. `forget_unused` may be called from any thread.

    `book`: what is known of each ENI beside its row. `routing`: the host's part of each.
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
    ) -> None:
        """`exclusion`: why an ENI gets no new sandbox, "" if it does. `on_quarantined`: EC2 has shown the address of a sandbox that is
        not recorded: it can be adopted. It must not block. `family`: of the pool."""
        self.book = book
        remember_named(book, context)
        self.routing = EniRouting(context, hostnet=hostnet, book=book)
        super().__init__(context)
        self._evidence = CloudEvidence(self._datastore.doubts())
        self._ec2 = ec2
        self.family = family
        self._log = OperationLog(context)
        self._identity = identity
        self._exclusion = exclusion
        self._cooldown = cooldown
        self._resyncs = resyncs
        self._on_quarantined = on_quarantined
        # The clock counts from the boot, which ended sandboxes without a DEL: a cooldown later their addresses have cooled.
        self._warm_deadline = math.inf if is_datastore_lost else cooldown.period.total_seconds()
        self._hold(self._evidence.doubted())

    def resync_due(self) -> None:
        """Make the resync that is due, if any: one Describe for all that asked. For the pool's thread, between two plans."""
        identity = self._identity()
        if identity is not None and (result := self._resyncs.run_due(lambda: self.sync_with_ec2(identity))) is not None:
            self.set_up_adopted(result)
            self._demand.trigger()  # with what it found another plan may be right

    def sync_with_ec2(self, identity: InstanceIdentity) -> EniSyncResult:
        """Describe this instance's ENIs (one call), weigh the answer, and update the datastore.

        Args:
            identity: names the primary ENI, without which no answer is believed.
        Returns: what was changed, and when to look again. An answer that is not believed is a result, not an error.
        Raises: CloudError if EC2 did not answer, KernelDumpError if the kernel did not; then nothing has changed (I11).
        """
        began_monotonic_s = self._clock.monotonic()
        described = self._ec2.describe_enis(identity.instance_id)
        primary = [eni for eni in described if eni.eni_id == identity.primary_eni_id]
        if primary:
            self.book.observe(identity.primary_eni_id, connection_tracking=primary[0].connection_tracking)
        wired = self.wired_addresses()
        known = recorded(self._datastore.snapshot(), identity)
        held = self._evidence.doubted()
        weighed = self._evidence.weigh(
            described,
            known,
            recent=self.book.added(),  # after `known`: what is noted is noted before it is recorded
            witnesses=Witnesses(self.routing.links(), self.book.metadata_view()),
            now_s=self._clock.monotonic(),
        )
        outcome = EniSyncResult(began_monotonic_s, implausible=weighed.implausible, doubted=weighed.doubted)
        outcome.look_again(weighed.again_s)
        # Lose on all ENIs before adding to any: an address may have moved from one ENI to another.
        self._lose(weighed.absent, outcome)
        self._hold(weighed.doubted)
        doubts = self._evidence.doubts()
        if doubts != self._datastore.doubts():
            with self._datastore.transaction() as uow:
                uow.put_doubts(doubts)  # for the next process: it holds the same back, and its first look may be the second one
        if not weighed.implausible:
            self._record_all(described, identity, wired, outcome)
        elif primary:  # what even such an answer shows is there, and takes its place
            self.book.show({eni.eni_id: (eni.network_card, eni.device_index) for eni in described if eni.eni_id}, is_whole=False)
        say_result(self._health, outcome, mass_loss=weighed.mass_loss)
        self.forget_unused()
        self._resyncs.record_result(outcome)
        if outcome.added_count or outcome.healed_count or held - weighed.doubted:
            self._demand.announce_supply()
        return outcome

    def trunk_mac(self) -> MacAddress:
        """MAC of the node's trunk ENI, on whose link the VLAN links of branch ENIs are. From any thread, from memory.

        Returns: "" while EC2 is asked: after a restart only its answer tells, and a node gets its trunk soon after it joined, which
            metadata tells a minute later.
        Raises: BranchPendingError if none is attached.
        """
        if (found := self.book.trunk()) is not None:
            return found[1]
        if self._agenda.is_due(TRUNK_LOOK) and not self._resyncs.is_asked:
            self._agenda.put_off(TRUNK_LOOK, EC2)
            self._resyncs.request(ResyncReason.OTHER, "a pod must have a branch ENI, and no trunk is known")
        if not self._resyncs.is_asked:
            raise BranchPendingError("this node has no trunk ENI", details=f"the control plane attaches it; {ASK_FOR_TRUNK}")
        return MacAddress("")

    def eni_of(self, described: DescribedEni, identity: InstanceIdentity) -> Eni:
        """Make the record of an attached ENI from what EC2 shows.

        Raises: CloudError if it has no IPv4 address, or if its subnet is not known and not told.
        """
        if described.primary_address is None:
            raise CloudError(f"ENI {described.eni_id} has no IPv4 address", details="it takes its place and is left alone")
        is_primary = described.eni_id == identity.primary_eni_id
        is_in_our_subnet = described.subnet_id == identity.subnet_id
        known = self._datastore.eni(described.eni_id)
        eni = Eni(
            eni_id=described.eni_id,
            mac=described.mac,
            device_index=described.device_index,
            network_card=described.network_card,
            subnet_id=described.subnet_id,
            subnet_cidr=identity.subnet_cidr if is_in_our_subnet else self._ec2.subnet_cidr(described.subnet_id),
            primary_address=described.primary_address,
            is_primary=is_primary,
            state=EniState.ATTACHED,
            created_by_us=is_created_by_us(described, identity),
            managed=is_managed(described, is_primary=is_primary, instance_id=identity.instance_id),
            excluded=known.excluded if known else "",
        )
        return replace(eni, excluded=self._exclusion(eni))

    def record(self, eni: Eni, described: DescribedEni) -> EniSyncResult:
        """Store one ENI as the answer to a call of ours described it: its new addresses become free. Nothing is forgotten.

        If it is recorded already, a Describe read it again, and what that shows may be older than the call: after a lost datastore it
        cools first. Raises: InvariantError if the ENI contradicts what is recorded.
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
        """Record addresses that EC2 allocated for us: they are free now, and those that were lost are not lost any more.

        Args:
            asked_count: addresses that the call asked for. EC2 may name old ones with the new, and what was there before is no recent
                change of ours. If more than so many are new to us, a Describe before lacked some, and nobody knows which: after a lost
                datastore all of them cool first (I8).
            eni: the ENI itself, if it is to be recorded too.
        Returns: what was added, with one sentence per address that is recorded on another ENI, and was left there.
        Raises: InvariantError if the ENI is not recorded; KernelDumpError.
        """
        new = self.lose_elsewhere(eni_id, addresses, prefixes)
        is_new = eni is not None and self._datastore.eni(eni_id) is None
        if is_new:
            self.book.record_own([eni_id], on=eni_id, is_added=True)
        cooldown = self._left_of_cooldown() if not is_new and len(new) > asked_count else None
        outcome = EniSyncResult()
        self._store(eni_id, addresses, prefixes, outcome, eni=eni, wired=self.wired_addresses(), cooldown=cooldown)
        self._demand.announce_supply()
        return outcome

    def lose_elsewhere(self, eni_id: EniId, addresses: Collection[IpAddress], prefixes: Collection[IpNetwork]) -> list[IpAddress]:
        """Lose the addresses that are recorded on another ENI than the one to which EC2 gave them in answer to a call of ours (I7).

        An address is on one ENI at a time, so the answer proves that it has left the other one, whatever a Describe says of that.
        Without it the address would count as a recent change of ours on the ENI that has lost it, and be given there (I7).
        Returns: those that are new to this ENI; from now on they are a recent change of ours.
        """
        rows = {address: self._datastore.address(address) for address in sorted(all_addresses(addresses, prefixes))}
        new = [address for address, row in rows.items() if row is None or row.is_lost or row.eni_id != eni_id]
        if moved := [one for one in new if (row := rows[one]) and not row.is_lost]:
            with self._datastore.transaction() as uow:
                for address in moved:
                    uow.lose(address, reason=f"EC2 has given it to {eni_id}")
        self.book.record_own(new, on=eni_id, is_added=True)
        return new

    def may_carry_unrecorded(self, eni: Eni) -> bool:
        """Whether a sandbox is wired whose address has no row: EC2 does not show it yet, and it may be on any ENI of its subnet (I2).

        Raises: KernelDumpError.
        """
        return any(one in eni.subnet_cidr and self._datastore.address(one) is None for one in self.wired_addresses())

    def set_up_adopted(self, outcome: EniSyncResult) -> None:
        """Set up the host routing of the ENIs that a comparison recorded first; what refuses is logged, and tried again."""
        for problem in self.routing.set_up_all() if outcome.adopted else ():
            log.warning("host routing is not in place error=%s", problem)

    def wired_addresses(self) -> frozenset[IpAddress]:
        """Addresses that the kernel has wired to a sandbox, recorded or not. Raises: KernelDumpError."""
        survey = self._wiring.survey()
        return frozenset(survey.routes) | {veth.address for veth in survey.veths if veth.address and not veth.is_dying}

    def forget_unused(self) -> None:
        """Forget the ENIs that are gone and have no address left, with their routing; tell people what is still lost. No EC2 call.

        Called after each comparison, and by the host network reconciler, because the last sandbox may leave long after.
        """
        for eni_id in sorted(eni_id for eni_id, facts in self.book.all().items() if facts.is_absent):
            eni = self._datastore.eni(eni_id)
            if eni is None:
                self.book.forget(eni_id)
            elif eni.state is not EniState.DETACHING:
                self.book.observe(eni_id, is_absent=False)
            elif self._is_unused(eni_id):
                self.routing.tear_down(eni)
                try:
                    with self._datastore.transaction() as uow:
                        eni = self._datastore.eni(eni_id)  # units of work are serialised; EC2 may have shown it again meanwhile
                        if eni is None or eni.state is not EniState.DETACHING or not self._is_unused(eni_id):
                            continue
                        uow.remove_eni(eni_id, reason=f"{NOT_SHOWN} it attached")
                    self.book.forget(eni_id)
                    self._demand.trigger()  # its place is free
                except IpamError as error:  # a full disk must not stop the repair of the sandboxes' routes, which comes next
                    log.warning("an ENI is forgotten later eni=%s error=%s", eni_id, log_text(error))
        lost_count = self._datastore.counts().lost
        lost = f"{counted(lost_count, 'address')} lost: EC2 does not show them; see `ipamctl audit`"
        self._health.report(LOST, lost if lost_count else "")
        if not lost_count:
            self._health.report(MASS_LOSS, "")  # it is over when none is left

    def _is_unused(self, eni_id: EniId) -> bool:
        return not any(row.eni_id == eni_id for row in self._datastore.addresses())

    def _record_all(
        self, described: Iterable[DescribedEni], identity: InstanceIdentity, wired: frozenset[IpAddress], outcome: EniSyncResult
    ) -> None:
        """Record every ENI of a believed answer; those that are not recorded are remembered by their place."""
        occupied: dict[EniId, Place] = {}
        leaving = {one.eni_id for one in self._datastore.open_intents() if one.is_leaving}
        for eni in described:
            is_attached = eni.attachment_status == "attached"
            outcome.eni_count += is_attached
            is_trunk = bool(eni.eni_id) and is_attached and eni.interface_type == TRUNK
            self.book.observe(eni.eni_id, trunk_mac=eni.mac if is_trunk else None)
            if is_trunk:
                self._agenda.clear(TRUNK_LOOK)
            if eni.eni_id in leaving | self.book.not_on(eni.eni_id):
                continue  # we delete it, or have: EC2 lags
            if not self._record_one(eni, identity, wired, outcome):
                occupied[eni.eni_id or EniId(f"(no ID) {len(occupied)}")] = (eni.network_card, eni.device_index)
        self.book.show(occupied)
        if self._warm_deadline == math.inf:
            # Until now a DEL could not know which address it released; what EC2 did not show yet may be one of those.
            self._warm_deadline = self._clock.monotonic() + self._cooldown.period.total_seconds()
        self._cooldown.resume(())

    def _continue_creation(self, eni: DescribedEni) -> None:
        """Reopen a creation whose intent was lost with the datastore: EC2 would keep the ENI after its instance (I9)."""
        if self._log.is_about(eni):
            return  # it is being made, or deleted
        log.warning("not deleted with the instance, its creation goes on eni=%s", eni.eni_id)
        made = Create(
            subnet_id=eni.subnet_id,
            device_index=eni.device_index,
            address_count=0,
            prefix_count=0,
            tags={},
            security_group_ids=eni.security_group_ids,
            eni_id=eni.eni_id,
        )
        self._log.open(made)
        self._demand.trigger()

    def _record_one(
        self, eni: DescribedEni, identity: InstanceIdentity, wired: frozenset[IpAddress], outcome: EniSyncResult
    ) -> bool:
        """Record one ENI of a believed answer; returns False if it only takes its place. Raises nothing for a contradiction."""
        known = self._datastore.eni(eni.eni_id)
        if not eni.is_readable:
            why = f"{UNREADABLE}: {eni.problem}" if eni.problem else f"has no IPv4 address ({eni.interface_type})"
            outcome.foreign.append(f"ENI {eni.eni_id or '(no ID)'} {why}")
            self.book.observe(eni.eni_id, is_bare=not eni.problem)
            return False
        if eni.attachment_status != "attached":
            if known is not None and eni.attachment_status in LEAVING:
                with self._datastore.transaction() as uow:
                    self._mark_detaching(uow, eni.eni_id)
            outcome.look_again(DOUBT_AGAIN_S)  # it comes or goes
            return False
        try:
            self._record_groups(eni)
            now = self.eni_of(eni, identity)
            there = self._without_released(eni)
            left = self._left_of_cooldown()
            self._store(eni.eni_id, there.secondary_addresses, there.prefixes, outcome, eni=now, wired=wired, cooldown=left)
        except (CloudError, InvariantError) as error:
            log.error("not recorded as EC2 shows it eni=%s error=%s", eni.eni_id, log_text(error))
            outcome.keep(f"ENI {eni.eni_id} is not recorded as EC2 shows it: {log_text(error)}")
            # Nobody else would ask: an ENI whose place is counted is no difference for metadata.
            outcome.look_again(DOUBT_AGAIN_S if isinstance(error, CloudError) else ASK_AGAIN_S)
            return False
        if self.family.is_sparse and not eni.has_ipv6:
            outcome.foreign.append(f"ENI {eni.eni_id} has no IPv6 address")
        if known is None:
            outcome.adopted.append(eni.eni_id)
            if now.created_by_us and not eni.delete_on_termination:
                self._continue_creation(eni)
        elif known.state is not EniState.ATTACHED or known.route_table != now.route_table:
            self.book.observe(eni.eni_id, is_absent=False)
            self.routing.set_up_again(eni.eni_id)
        return True

    def _without_released(self, described: DescribedEni) -> DescribedEni:
        """Leave out what a call of ours took from this ENI, or was given on another one: Describe may show it here for minutes, and
        others may have it by now (I7)."""
        gone = self.book.not_on(described.eni_id)
        return replace(
            described,
            secondary_addresses=described.secondary_addresses - gone,
            prefixes=frozenset(prefix for prefix in described.prefixes if members(prefix)[0] not in gone),
        )

    def _left_of_cooldown(self) -> timedelta | None:
        """How long what EC2 only shows, and is new to us, may still be warm: released before the boot, or before our datastore was
        lost (I8); None: it is not. What a call of ours has just been given was not."""
        left_s = self._warm_deadline - self._clock.monotonic()
        return min(self._cooldown.period, timedelta(seconds=min(left_s, 1e6))) if left_s > 0 else None

    def _record_groups(self, described: DescribedEni) -> None:
        """An answer without groups is ignored: an ENI always has one (I11)."""
        if groups := described.security_group_ids:
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
        """Store addresses of an ENI, and the ENI itself if it is given: new ones become free, lost ones heal.

        `wired`: what the kernel has wired. `cooldown`: how long those cool that are new to us; None: not (I8).
        Raises: InvariantError if the ENI is not recorded, or itself contradicts a record; WiringError, KernelDumpError. Nothing of it
            is stored then.
        """
        is_wired = False
        recorded = eni or self._datastore.eni(eni_id)
        if recorded is not None and self.family.is_sparse:
            prefixes = self._serving(recorded, prefixes, wired)
        fresh = [one for one in addresses if self._datastore.address(one) is None]
        fresh += [one.network_address for one in prefixes if not any(map(self._datastore.address, members(one)))]
        if recorded is not None and fresh:
            self.routing.claim(recorded, fresh, wired=wired, answered=prefixes if self.family.is_sparse else ())
        batches: list[Batch] = [(None, sorted(addresses)), *((prefix, list(members(prefix))) for prefix in sorted(prefixes))]
        with self._datastore.transaction() as uow:
            if eni is not None:
                known = self._datastore.eni(eni_id)
                if known is not None:
                    is_ready = known.host_ready and known.route_table == eni.route_table  # another table is set up first (I7)
                    eni = replace(eni, host_ready=is_ready, created_by_us=known.created_by_us or eni.created_by_us)
                uow.put_eni(eni)
                self.book.observe(eni_id, elsewhere=frozenset())  # all that is on it is looked at
            if eni is None or eni.managed:
                is_wired = self._admit(uow, eni_id, batches, outcome, wired=wired, cooldown=cooldown)
        if is_wired:
            self._on_quarantined()
        if cooldown is not None:
            self._cooldown.resume(())

    def _serving(self, eni: Eni, prefixes: Collection[IpNetwork], wired: Collection[IpAddress]) -> list[IpNetwork]:
        """Of the /80s of an ENI those that serve: what is recorded or has a sandbox; else one, of the ENI that is for pods.

        The lowest, so that each start chooses the same. That ENI is the primary one, or another while that one is excluded.
        """
        recorded = {row.prefix for row in self._datastore.addresses()}
        serving = [one for one in sorted(prefixes) if one in recorded or any(address in one for address in wired)]
        known = next((one for one in self._datastore.enis() if one.is_primary), None)
        is_for_pods = not eni.excluded and (eni.is_primary or (known is not None and bool(known.excluded)))
        return serving or (sorted(prefixes)[:1] if is_for_pods else [])

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
        """Add what does not contradict a record. An address that is new to us but wired already is quarantined at once: after a lost
        datastore a live sandbox may have it (I1, I2). Returns: whether there was one."""
        is_any_wired, filled = False, self.book.of(eni_id).elsewhere
        primaries: dict[IpAddress, EniId] = {eni.primary_address: eni.eni_id for eni in self._datastore.enis()}
        for prefix, batch in batches:
            rows = {address: self._datastore.address(address) for address in batch}
            if self.family.is_sparse and prefix is not None:
                rows |= {row.address: row for row in self._datastore.addresses() if row.prefix == prefix}
            elsewhere = [row for row in rows.values() if row is not None and row.eni_id != eni_id]
            taken = {row.address: f"stays recorded on {row.eni_id}" for row in elsewhere}
            for address in rows.keys() & primaries.keys():
                taken[address] = f"recorded as the primary address of {primaries[address]}"
            for one in self._datastore.attachments():
                if one.branch is not None and one.address in rows:
                    taken[one.address] = f"recorded as that of the branch ENI of sandbox {one.key}"
            for address, why in taken.items():
                outcome.keep(f"{address} is on {eni_id} for EC2, and {why}")
            if prefix is None:
                filled |= frozenset(taken)
            elif any(row.prefix == prefix for row in elsewhere):
                filled |= {elsewhere[0].address}
                continue  # a prefix is recorded on one ENI: the whole of it waits until no address of it is left there
            fresh = [address for address, row in rows.items() if row is None and address not in taken]
            outcome.added_count += len(fresh)
            uow.add_addresses(eni_id, filter(self._cooldown.is_cooling, fresh), prefix=prefix, cooldown=self._cooldown.period)
            uow.add_addresses(eni_id, fresh, prefix=prefix, cooldown=cooldown)
            # Of a /80 that is new every wired address that has no row.
            within = (
                [one for one in wired if prefix and one in prefix and one not in rows] if self.family.is_sparse and fresh else ()
            )
            for address in (*filter(wired.__contains__, fresh), *within):
                uow.quarantine(address, reason="wired in the kernel, unknown to the datastore")
                is_any_wired = True
            for shown in rows.values():
                if shown is not None and shown.is_lost and shown.address not in taken:
                    uow.heal(shown.address, reason="EC2 shows it again")
                    outcome.healed_count += 1
        self.book.observe(eni_id, elsewhere=filled)
        return is_any_wired

    def _hold(self, doubted: Collection[CloudKey]) -> None:
        """Let nobody have the addresses that EC2 did not show once, nor those of ENIs that it did not show; replaces the last call."""
        rows = self._datastore.addresses() if doubted else ()
        self._datastore.hold(frozenset(row.address for row in rows if row.address in doubted or row.eni_id in doubted))

    def _lose(self, absent: Collection[CloudKey], outcome: EniSyncResult) -> None:
        """Record that these are gone. One that the datastore refuses is reported, and does not stop the others."""
        known = [row for row in self._datastore.addresses() if not row.is_lost]
        for key in sorted(absent, key=str):
            eni_id = key if isinstance(key, str) else None
            rows = [row for row in known if key in (row.address, row.eni_id, stand_in(row.address))]
            try:
                with self._datastore.transaction() as uow:
                    if eni_id:
                        self._mark_detaching(uow, eni_id)
                    for row in rows:
                        uow.lose(row.address, reason=f"{NOT_SHOWN} {'its ENI attached' if eni_id else 'it on this ENI'}")
            except (InvariantError, IllegalTransitionError) as error:
                log.error("gone at EC2 and stays recorded subject=%s error=%s", key, log_text(error))
                outcome.keep(f"{key} is gone at EC2 and stays recorded: {log_text(error)}")
                continue
            if eni_id:  # after it is recorded as detaching: `forget_unused` of another thread goes by both
                self.book.observe(eni_id, is_absent=True)
                outcome.lost_eni_count += 1
                outcome.forced_eni_count += any(row.is_in_use for row in rows)
            for row in rows:
                outcome.lost_count += 1
                outcome.forced_count += row.is_in_use
                if self._datastore.address(row.address) is None:
                    outcome.removed_count += 1
                elif row.is_in_use:
                    outcome.keep(f"{row.address} is in use and {NOT_SHOWN} it on {row.eni_id}")
        if outcome.lost_count:
            self._demand.trigger()  # the pool has less than it planned with

    def _mark_detaching(self, uow: UnitOfWork, eni_id: EniId) -> None:
        """From here on it gives no address (I7), and its sandboxes keep theirs (I2)."""
        known = self._datastore.eni(eni_id)
        if known is not None:
            uow.put_eni(replace(known, state=EniState.DETACHING, host_ready=False))
