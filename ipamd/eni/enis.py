"""Compare what EC2 says about our ENIs with what is recorded, and record the difference (I6, I7).

A complete and plausible Describe decides which addresses are on which ENI, and nothing else. What it shows is recorded at once; what
it lacks is gone only after a second look (`ipamd/model/cloud_evidence.py`, docs/adr/0017), and a sandbox keeps even that (I2). One
object that contradicts what is recorded is reported and skipped; it does not stop the others.
"""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from ipamd.core.context import ServiceContext
from ipamd.eni.book import EniBook, Place, remember_named
from ipamd.eni.operations import OperationLog
from ipamd.eni.records import EniRecords
from ipamd.eni.resync import ResyncScheduler
from ipamd.eni.routing import EniRouting
from ipamd.eni.sync_result import UNREADABLE, EniSyncResult, say_result
from ipamd.eni.tags import is_created_by_us, is_managed
from ipamd.model.cloud import INTENT_TAG, ConnectionTracking, DescribedEni, InstanceIdentity, all_addresses
from ipamd.model.cloud_evidence import DOUBT_AGAIN_S, CloudEvidence, Witnesses
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import CloudError, InvariantError, IpamError, log_text
from ipamd.model.ids import EniId
from ipamd.model.intent import Create, IntentKind
from ipamd.model.metadata_evidence import ASK_AGAIN_S, recorded
from ipamd.ports import Ec2, HostNetwork
from ipamd.sandbox.cooldown import Cooldown

LEAVING = frozenset({"detaching", "detached"})
"""Attachment statuses of an ENI that is going.

Source: https://docs.aws.amazon.com/AWSEC2/latest/APIReference/API_NetworkInterfaceAttachment.html, status.
"""

log = logging.getLogger(__name__)


class EniService:
    """ENIs of this instance. One comparison runs at a time; everything else may be called from any thread.

    `book`: what is known of each ENI beside its row. `routing`: the host's part of each. `connection_tracking`: timeouts that are set
    on the primary ENI, which new ones get too.
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
    ) -> None:
        """`exclusion`: why an ENI gets no new sandbox, "" if it does. `on_quarantined`: a sandbox that is not recorded can be adopted
        now."""
        self.book = book
        remember_named(book, context)
        self.routing = EniRouting(context, hostnet=hostnet, book=book)
        self._records = EniRecords(context, book=book, routing=self.routing, cooldown=cooldown, on_quarantined=on_quarantined)
        self._context = context
        self._datastore = context.datastore
        self._evidence = CloudEvidence(self._datastore.doubts())
        self._records.hold(self._evidence.doubted())
        self._ec2 = ec2
        self._log = OperationLog(context)
        self._identity = identity
        self._exclusion = exclusion
        self._cooldown = cooldown
        self._resyncs = resyncs
        self._warm_deadline = math.inf if is_datastore_lost else -math.inf
        self._comparing = threading.Lock()
        self.connection_tracking: ConnectionTracking = ()

    def resync_due(self) -> None:
        """Make the resync that is due, if any: one Describe for all that asked. For the pool's thread, between two plans."""
        identity = self._identity()
        due = self._resyncs.take() if identity is not None else None
        if identity is None or due is None:
            return
        try:
            result = self.sync_with_ec2(identity)
        except Exception as error:
            self._resyncs.put_off(due, error)  # also after a defect: an ENI would stay frozen
            if isinstance(error, IpamError):
                return
            raise
        self._resyncs.answer(due, result)
        self.set_up_adopted(result)
        self._context.demand.trigger()  # with what it found another plan may be right

    def sync_with_ec2(self, identity: InstanceIdentity) -> EniSyncResult:
        """Describe this instance's ENIs (one call), weigh the answer, and update the datastore.

        Args:
            identity: names the primary ENI, without which no answer is believed.
        Returns: what was changed, and when to look again. An answer that is not believed is a result, not an error.
        Raises: CloudError if EC2 did not answer, KernelDumpError if the kernel did not; then nothing has changed (I11).
        """
        with self._comparing:
            described = self._ec2.describe_enis(identity.instance_id)
            self.connection_tracking = next(
                (eni.connection_tracking for eni in described if eni.eni_id == identity.primary_eni_id), self.connection_tracking
            )
            wired = self._records.wired_addresses()
            known = recorded(self._datastore.snapshot(), identity)
            held = self._evidence.doubted()
            weighed = self._evidence.weigh(
                described,
                known,
                recent=self.book.added(),  # after `known`: what is noted is noted before it is recorded
                witnesses=Witnesses(self.routing.links(), self._shown_by_metadata()),
                now_s=self._context.clock.monotonic(),
            )
            outcome = EniSyncResult(implausible=weighed.implausible, doubted=weighed.doubted)
            outcome.look_again(weighed.again_s)
            # Lose on all ENIs before adding to any: an address may have moved from one ENI to another.
            self._records.lose(weighed.absent, outcome)
            self._records.hold(weighed.doubted)
            self._record_doubts()
            if not weighed.implausible:
                self._record_all(described, identity, wired, outcome)
            elif any(eni.eni_id == identity.primary_eni_id for eni in described):
                # What even such an answer shows is there, and takes its place.
                there = {eni.eni_id: (eni.network_card, eni.device_index) for eni in described if eni.eni_id}
                self.book.show(there, is_whole=False)
            say_result(self._context.health, outcome, mass_loss=weighed.mass_loss)
            self._records.forget_unused()
        self._resyncs.note(outcome)
        if outcome.added_count or outcome.healed_count or held - weighed.doubted:
            self._context.demand.announce_supply()
        return outcome

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
            excluded=known.excluded if known is not None else "",
        )
        return replace(eni, excluded=self._exclusion(eni))

    def record(self, eni: Eni, described: DescribedEni, outcome: EniSyncResult) -> None:
        """Store one ENI as the answer to a call of ours described it: its new addresses become free. Nothing is forgotten.

        If it is recorded already, a Describe read it again, and what that shows may be older than the call: after a lost datastore it
        cools first. Raises: InvariantError if the ENI contradicts what is recorded.
        """
        self._note_groups(described)
        described = self._without_given_back(described)
        self._records.lose_elsewhere(eni.eni_id, described.secondary_addresses, described.prefixes)
        is_new = self._datastore.eni(eni.eni_id) is None
        new = self._records.new_to_us(described.secondary_addresses, described.prefixes)
        self.book.note_added(eni.eni_id, addresses=new, is_new=is_new)
        may_be_warm = not is_new and self._may_be_warm()
        self._records.store(eni, described, outcome, wired=self._records.wired_addresses(), may_be_warm=may_be_warm)

    def lose_elsewhere(self, made: DescribedEni) -> None:
        """Nobody is given from now on what EC2 has put on a new ENI of ours, though rows of other ENIs have it still (I7)."""
        primary = () if made.primary_address is None else (made.primary_address,)
        self._records.lose_elsewhere(made.eni_id, made.secondary_addresses.union(primary), made.prefixes)

    def add_addresses(
        self, eni_id: EniId, addresses: frozenset[IPv4Address], prefixes: frozenset[IPv4Network], *, asked_count: int
    ) -> list[str]:
        """Record addresses that EC2 allocated for us: they are free now, and those that were lost are not lost any more.

        `asked_count`: addresses that the call asked for. EC2 may name old ones with the new; if more than so many are new to us, a
        Describe before lacked some, and nobody knows which: after a lost datastore all of them cool first (I8).
        Returns: one sentence per address that is recorded on another ENI, and was left there.
        """
        self._records.lose_elsewhere(eni_id, addresses, prefixes)
        new = self._records.new_to_us(addresses, prefixes)
        self.book.note_added(eni_id, addresses=new)
        outcome = EniSyncResult()
        may_be_warm = len(new) > asked_count and self._may_be_warm()
        self._records.add(eni_id, addresses, prefixes, outcome, may_be_warm=may_be_warm)
        self._context.demand.announce_supply()
        return outcome.kept

    def occupied(self) -> Mapping[EniId, Place]:
        """Attached ENIs that are not recorded (no IPv4 address, unreadable, coming or going), each with the place that it takes."""
        return self.book.shown()

    def may_carry_unrecorded(self, eni: Eni) -> bool:
        """Whether a sandbox is wired whose address has no row: EC2 does not show it yet, and it may be on any ENI of its subnet (I2).

        Raises: KernelDumpError.
        """
        wired = self._records.wired_addresses()
        return any(one in eni.subnet_cidr and self._datastore.address(one) is None for one in wired)

    def forget_unused(self) -> None:
        """Forget the ENIs that are gone and that no sandbox uses any more, with their routing. Makes no EC2 call."""
        self._records.forget_unused()

    def set_up_adopted(self, outcome: EniSyncResult) -> None:
        """Set up the host routing of the ENIs that a comparison recorded first; what refuses is logged, and tried again."""
        for problem in self.routing.set_up_all() if outcome.adopted else ():
            log.warning("host routing: %s", problem)

    def _record_doubts(self) -> None:
        """Keep what is in doubt for the next process: it holds the same back, and its first look may be the second one."""
        doubts = self._evidence.doubts()
        if doubts != self._datastore.doubts():
            with self._datastore.transaction() as uow:
                uow.put_doubts(doubts)

    def _record_all(
        self, described: Iterable[DescribedEni], identity: InstanceIdentity, wired: frozenset[IPv4Address], outcome: EniSyncResult
    ) -> None:
        """Record every ENI of a believed answer; those that are not recorded are remembered by their place."""
        occupied: dict[EniId, Place] = {}
        removed = self.book.removed().keys() | self._leaving()
        for eni in described:
            if eni.attachment_status == "attached":
                outcome.eni_count += 1
            if eni.eni_id in removed:
                continue  # we delete it, or have: EC2 lags
            if not self._record_one(eni, identity, wired, outcome):
                occupied[eni.eni_id or EniId(f"(no ID) {len(occupied)}")] = (eni.network_card, eni.device_index)
        self.book.show(occupied)
        if self._warm_deadline == math.inf:
            # Until now a DEL could not know which address it released; what EC2 did not show yet may be one of those.
            self._warm_deadline = self._context.clock.monotonic() + self._cooldown.period.total_seconds()
        self._cooldown.resume(())

    def _leaving(self) -> frozenset[EniId]:
        """Recorded ENIs that we are deleting: Describe says nothing new about them."""
        intents = self._datastore.open_intents()
        asked = {EniId(one.payload.get("eni_id", "")) for one in intents if one.kind is IntentKind.DELETE_ENI}
        known = [self._datastore.eni(eni_id) for eni_id in asked]
        return frozenset(eni.eni_id for eni in known if eni is not None and eni.state is EniState.DETACHING)

    def _without_given_back(self, described: DescribedEni) -> DescribedEni:
        """Leave out what a call of ours took from this ENI: Describe may show it for minutes, and others may have it by now (I7)."""
        gone = {key for key, on in self.book.removed().items() if on == described.eni_id}
        if not gone:
            return described
        return replace(
            described,
            secondary_addresses=described.secondary_addresses - gone,
            prefixes=frozenset(prefix for prefix in described.prefixes if prefix.network_address not in gone),
        )

    def _may_be_warm(self) -> bool:
        """Whether what EC2 only shows, and is new to us, may have been released less than a cooldown ago, before our datastore was
        lost (I8). What a call of ours has just been given was not."""
        return self._context.clock.monotonic() < self._warm_deadline

    def _note_groups(self, described: DescribedEni) -> None:
        """An answer without groups is ignored: an ENI always has one (I11)."""
        if groups := described.security_group_ids:
            self.book.observe(described.eni_id, security_groups=groups)

    def _shown_by_metadata(self) -> frozenset[IPv4Address] | None:
        view = self.book.metadata_view()
        return None if view is None else frozenset().union(*(all_addresses(eni.addresses, eni.prefixes) for eni in view))

    def _continue_creation(self, eni: DescribedEni) -> None:
        """Reopen a creation whose intent was lost with the datastore: EC2 would keep the ENI after its instance (I9)."""
        known = {(one.eni_id, one.client_token) for one in self._log.all_open()}
        if any(eni.eni_id == eni_id or eni.tags.get(INTENT_TAG) == token for eni_id, token in known):
            return  # it is being made, or deleted
        log.warning("ENI %s of this node is not deleted with the instance: its creation goes on", eni.eni_id)
        made = Create(eni.subnet_id, eni.device_index, 0, 0, {}, eni.security_group_ids, eni_id=eni.eni_id)
        self._log.open(made)
        self._context.demand.trigger()

    def _record_one(
        self, eni: DescribedEni, identity: InstanceIdentity, wired: frozenset[IPv4Address], outcome: EniSyncResult
    ) -> bool:
        """Record one ENI of a believed answer; returns False if it only takes its place. Raises nothing for a contradiction."""
        known = self._datastore.eni(eni.eni_id)
        if not eni.is_readable:
            why = f"{UNREADABLE}: {eni.problem}" if eni.problem else f"has no IPv4 address ({eni.interface_type})"
            outcome.foreign.append(f"ENI {eni.eni_id or '(no ID)'} {why}")
            return False
        if eni.attachment_status != "attached":
            if known is not None and eni.attachment_status in LEAVING:
                self._records.mark_leaving(eni.eni_id)
            outcome.look_again(DOUBT_AGAIN_S)  # it comes or goes
            return False
        try:
            self._note_groups(eni)
            now = self.eni_of(eni, identity)
            self._records.store(now, self._without_given_back(eni), outcome, wired=wired, may_be_warm=self._may_be_warm())
        except (CloudError, InvariantError) as error:
            log.error("ENI %s is not recorded as EC2 shows it: %s", eni.eni_id, log_text(error))
            outcome.keep(f"ENI {eni.eni_id} is not recorded as EC2 shows it: {log_text(error)}")
            # Nobody else would ask: an ENI whose place is counted is no difference for metadata.
            outcome.look_again(DOUBT_AGAIN_S if isinstance(error, CloudError) else ASK_AGAIN_S)
            return False
        if known is None:
            outcome.adopted.append(eni.eni_id)
            if now.created_by_us and not eni.delete_on_termination:
                self._continue_creation(eni)
        elif known.state is not EniState.ATTACHED or known.route_table != now.route_table:
            self._records.is_back(eni.eni_id)
            self.routing.set_up_again(eni.eni_id)
        return True
