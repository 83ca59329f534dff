"""Record what EC2 says about our ENIs, and set up each ENI's routing on the host (I6, I7).

A complete Describe decides which addresses are on which ENI, and nothing else: an address that EC2 no longer shows is forgotten
only if no sandbox has it; otherwise it is kept and reported (I2).
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv4Network

from ipamd.model.cloud import DescribedEni, InstanceIdentity
from ipamd.model.eni import Eni, EniState
from ipamd.model.errors import IpamError, log_text
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.ledger import LedgerEvent
from ipamd.model.words import counted
from ipamd.ports import Ec2, HostNetwork, UnitOfWork
from ipamd.service.context import ServiceContext
from ipamd.service.cooldown import Cooldown
from ipamd.service.pool.security_groups import SecurityGroups
from ipamd.service.pool.tags import is_created_by_us, is_managed

log = logging.getLogger(__name__)


@dataclass(slots=True)
class EniSyncResult:
    """What the sync with EC2 changed, counted; shown as the detail of its stage."""

    eni_count: int = 0
    added_count: int = 0
    removed_count: int = 0
    kept: list[str] = field(default_factory=list)

    def keep(self, sentence: str) -> None:
        """Report something that was left as it is; a repeated sentence counts once."""
        if sentence not in self.kept:
            self.kept.append(sentence)

    def __str__(self) -> str:
        text = f"{counted(self.eni_count, 'ENI')}, {counted(self.added_count, 'address')} added, {self.removed_count} forgotten"
        return f"{text}; kept: {'; '.join(self.kept)}" if self.kept else text


class EniService:
    """ENIs of this instance."""

    def __init__(
        self,
        context: ServiceContext,
        *,
        ec2: Ec2,
        hostnet: HostNetwork,
        cooldown: Cooldown,
        security_groups: SecurityGroups,
        is_datastore_lost: bool,
    ) -> None:
        self._datastore = context.datastore
        self._ec2 = ec2
        self._security_groups = security_groups
        self._hostnet = hostnet
        self._wiring = context.wiring
        self._cooldown = cooldown
        self._is_datastore_lost = is_datastore_lost
        self._demand = context.demand
        self._health = context.health

    def sync_with_ec2(self, identity: InstanceIdentity) -> EniSyncResult:
        """Describe this instance's ENIs (one call) and update the datastore.

        Raises: CloudError if EC2 did not answer; then nothing has changed (I11).
        """
        described = self._ec2.describe_enis(identity.instance_id)
        attached = [eni for eni in described if eni.attachment_status == "attached"]
        outcome = EniSyncResult(eni_count=len(attached))
        # Forget on all ENIs before adding to any: an address may have moved from one ENI to another.
        self._forget_absent({eni.eni_id for eni in described}, outcome)
        for eni in attached:
            self._forget_gone(eni, outcome)
        for eni in attached:
            self.record(self.eni_of(eni, identity), eni, outcome, may_be_warm=self._is_datastore_lost)
        self._is_datastore_lost = False
        self._cooldown.resume(())
        if outcome.added_count:
            self._demand.announce_supply()
        return outcome

    def eni_of(self, described: DescribedEni, identity: InstanceIdentity) -> Eni:
        """Make the record of an attached ENI from what EC2 shows. Raises: CloudError if its subnet is not known and not told."""
        is_primary = described.eni_id == identity.primary_eni_id
        is_in_our_subnet = described.subnet_id == identity.subnet_id
        return Eni(
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
        )

    def record(self, eni: Eni, described: DescribedEni, outcome: EniSyncResult, *, may_be_warm: bool = False) -> None:
        """Store one ENI as EC2 described it: new addresses become free, vanished unassigned ones are forgotten.

        `may_be_warm`: new to us, but perhaps given and released before our datastore was lost; then they cool first (I8).
        """
        self._security_groups.note(described)
        known = self._datastore.eni(eni.eni_id)
        if known is not None:
            eni = replace(eni, host_ready=known.host_ready, created_by_us=known.created_by_us or eni.created_by_us)
        self._forget_gone(described, outcome)
        wired = self._wired_addresses() if eni.managed else frozenset()
        with self._datastore.transaction() as uow:
            uow.put_eni(eni)
            if eni.managed:
                self._admit(uow, eni.eni_id, described.secondary_addresses, described.prefixes, wired, outcome, may_be_warm)

    def add_addresses(self, eni_id: EniId, addresses: frozenset[IPv4Address], prefixes: frozenset[IPv4Network]) -> list[str]:
        """Record addresses that EC2 allocated for us: they are free now.

        Returns: one sentence per address that is recorded on another ENI, and was left there.
        """
        wired, outcome = self._wired_addresses(), EniSyncResult()
        with self._datastore.transaction() as uow:
            self._admit(uow, eni_id, addresses, prefixes, wired, outcome)
        self._demand.announce_supply()
        return outcome.kept

    def _forget_gone(self, described: DescribedEni, outcome: EniSyncResult) -> None:
        """Forget the addresses that EC2 no longer shows on an ENI, except those in use (I2)."""
        known = self._datastore.eni(described.eni_id)
        if known is None or not known.managed:
            return
        on_eni = _addresses_on(described)
        gone = [row for row in self._datastore.addresses() if row.eni_id == known.eni_id and row.address not in on_eni]
        unused = [row.address for row in gone if not row.is_in_use]
        if unused:
            with self._datastore.transaction() as uow:
                uow.remove_addresses(unused, reason="EC2 no longer shows it on this ENI")
        outcome.removed_count += len(unused)
        for row in gone:
            if row.is_in_use:
                outcome.keep(f"{row.address} is in use and EC2 no longer shows it on {known.eni_id}")

    def _wired_addresses(self) -> frozenset[IPv4Address]:
        """Addresses that the kernel has wired to a sandbox, recorded or not. Raises: KernelDumpError."""
        survey = self._wiring.survey()
        return frozenset(survey.routes) | {veth.address for veth in survey.veths if veth.address and not veth.is_dying}

    def _admit(
        self,
        uow: UnitOfWork,
        eni_id: EniId,
        addresses: frozenset[IPv4Address],
        prefixes: frozenset[IPv4Network],
        wired: frozenset[IPv4Address],
        outcome: EniSyncResult,
        may_be_warm: bool = False,
    ) -> None:
        """Add addresses that EC2 confirmed. An address that is new to us but wired already is quarantined at once: after a lost
        datastore a live sandbox may have it (I1, I2)."""
        batches: list[tuple[IPv4Network | None, list[IPv4Address]]] = [(None, sorted(addresses))]
        batches += [(prefix, list(prefix)) for prefix in sorted(prefixes)]
        for prefix, batch in batches:
            rows = [self._datastore.address(address) for address in batch]
            elsewhere = {row.address: row.eni_id for row in rows if row is not None and row.eni_id != eni_id}
            for address, other_id in elsewhere.items():
                outcome.keep(f"{address} is on {eni_id} for EC2, and stays recorded on {other_id}")
            fresh = [address for address, row in zip(batch, rows, strict=True) if row is None]
            batch = [address for address in batch if address not in elsewhere]
            outcome.added_count += len(fresh)
            uow.add_addresses(eni_id, batch, prefix=prefix, cooldown=self._cooldown.period if may_be_warm else None)
            for address in fresh:
                if address in wired:
                    uow.quarantine(address, reason="wired in the kernel, unknown to the datastore")

    def await_link(self, mac: MacAddress) -> None:
        """Wait, bounded, for the link of an ENI that is being attached: the kernel shows it before EC2, so EC2 is asked once."""
        try:
            self._hostnet.await_link(mac)
        except IpamError as error:
            log.info("the link has not appeared, EC2 is asked instead: %s", log_text(error))

    def set_up_eni_routings(self) -> list[str]:
        """Set up host routing of every attached ENI; only then are its addresses assignable (I7).

        Returns: one sentence per ENI that could not be set up; the others are set up all the same.
        """
        problems = []
        for eni in self._datastore.enis():
            if not (eni.managed and eni.state is EniState.ATTACHED):
                continue
            try:
                self.set_up_eni_routing(eni)
            except IpamError as error:
                self._health.record_error(f"host routing of {eni.eni_id}", error)
                problems.append(f"{eni.eni_id}: {log_text(error)}")
        return problems

    def set_up_eni_routing(self, eni: Eni) -> None:
        """Set up host routing of one ENI. Raises: WiringError; then its addresses stay unassignable."""
        if not eni.is_primary:
            try:
                self._hostnet.setup_eni(eni)
            except IpamError:
                self._mark(eni.eni_id, host_ready=False)
                raise
        if self._mark(eni.eni_id, host_ready=True):
            self._demand.announce_supply()

    def _mark(self, eni_id: EniId, *, host_ready: bool) -> bool:
        """Change `host_ready` of the recorded ENI; do nothing if it was forgotten while its routing was set up."""
        known = self._datastore.eni(eni_id)
        if known is None or known.host_ready == host_ready:
            return False
        with self._datastore.transaction() as uow:
            known = self._datastore.eni(eni_id)  # units of work are serialised: nobody changes it before ours ends
            if known is not None:
                uow.put_eni(replace(known, host_ready=host_ready))
        return True

    def _forget_absent(self, present: set[EniId], outcome: EniSyncResult) -> None:
        for eni in self._datastore.enis():
            if eni.eni_id in present:
                continue
            with self._datastore.transaction() as uow:  # from here on it gives no address (I7)
                uow.put_eni(replace(eni, state=EniState.DETACHING))
            rows = [row for row in self._datastore.addresses() if row.eni_id == eni.eni_id]
            unused = [row.address for row in rows if not row.is_in_use]
            if len(unused) < len(rows):
                outcome.keep(f"{eni.eni_id} has sandboxes and is no longer attached")
                outcome.removed_count += len(unused)
                with self._datastore.transaction() as uow:
                    uow.remove_addresses(unused, reason="EC2 no longer shows its ENI attached")
                    uow.note(LedgerEvent.KEPT, eni_id=eni.eni_id, detail="no longer attached; in use")
                continue
            try:
                self._hostnet.teardown_eni(eni)
            except IpamError as error:
                log.warning("routing of absent ENI %s stays behind: %s", eni.eni_id, log_text(error))
            with self._datastore.transaction() as uow:
                uow.remove_eni(eni.eni_id, reason="EC2 no longer shows it attached")
            outcome.removed_count += len(rows)


def _addresses_on(described: DescribedEni) -> set[IPv4Address]:
    return set(described.secondary_addresses) | {a for prefix in described.prefixes for a in prefix}
