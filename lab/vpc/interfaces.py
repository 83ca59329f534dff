"""The life of an ENI as EC2 runs it: create, attach, detach, delete, and its addresses.

Each method is one API call without its wire: validated, atomic, raising Ec2Error. Attach and detach are accepted at
once and finished later, through the store's timers. A client token returns the first call's ENI again, as it is now, or
as it was when it has since been deleted: a replay after a crash must notice that by itself (ours; EC2 says only "the
original result").
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network

from lab.vpc import errors
from lab.vpc.addresses import AddressRequest, assign, choose_for_new, unassign
from lab.vpc.faults import AttachFault, Faults
from lab.vpc.ids import Ids
from lab.vpc.limits import MOST_ADDRESSES_PER_ENI, InstanceLimits
from lab.vpc.model import AttachmentStatus, Eni, EniAttachment
from lab.vpc.store import Store, Transaction
from lab.vpc.world import World


@dataclass(frozen=True)
class ClientToken:
    """A caller's idempotency token and a fingerprint of the rest of its request."""

    token: str
    fingerprint: str


@dataclass(frozen=True)
class Delays:
    """How long EC2 takes to plug and unplug an interface, in seconds."""

    attach_s: float = 0.0
    detach_s: float = 0.0


class Interfaces:
    """The API calls that change ENIs."""

    def __init__(
        self,
        store: Store,
        *,
        ids: Ids,
        limits: Mapping[str, InstanceLimits],
        faults: Faults,
        delays: Delays,
        wall_clock: Callable[[], datetime],
    ) -> None:
        self._store = store
        self._ids = ids
        self._limits = limits
        self._faults = faults
        self._delays = delays
        self._wall_clock = wall_clock
        self._tokens: dict[str, tuple[str, Eni]] = {}

    def create(
        self,
        subnet_id: str,
        want: AddressRequest,
        *,
        groups: tuple[str, ...],
        description: str = "",
        tags: Mapping[str, str] | None = None,
        client_token: ClientToken | None = None,
    ) -> Eni:
        """Create an ENI, attached to nothing. `groups` have been checked by the caller."""
        with self._store.transaction() as tx:
            if client_token is not None and client_token.token in self._tokens:
                fingerprint, eni = self._tokens[client_token.token]
                if fingerprint != client_token.fingerprint:
                    raise errors.token_mismatch()
                return tx.world.enis.get(eni.eni_id, eni)
            eni = self.create_in(tx, subnet_id, want, groups=groups, description=description, tags=tags)
            if client_token is not None:
                self._tokens[client_token.token] = (client_token.fingerprint, eni)
        return eni

    def create_in(
        self,
        tx: Transaction,
        subnet_id: str,
        want: AddressRequest,
        *,
        groups: tuple[str, ...],
        description: str = "",
        tags: Mapping[str, str] | None = None,
    ) -> Eni:
        """Create an ENI within an open transaction."""
        subnet = tx.world.subnet(subnet_id)
        quota = self._faults.interface_quota
        if quota is not None and len(tx.world.enis) >= quota:
            raise errors.interface_quota()
        chosen = choose_for_new(tx, subnet_id, want, limit=MOST_ADDRESSES_PER_ENI)
        eni = Eni(
            eni_id=self._ids.make("eni"),
            mac=self._ids.mac(),
            subnet_id=subnet_id,
            subnet_cidr=subnet.cidr,
            az=subnet.az,
            primary_address=chosen.primary,
            secondary_addresses=chosen.secondary,
            prefixes=chosen.prefixes,
            tags=dict(tags or {}),
            description=description,
            security_groups=groups,
            ordinal=self._store.next_number(),
        )
        tx.put_eni(eni)
        return eni

    def attach(self, eni_id: str, instance_id: str, *, device_index: int, network_card: int = 0) -> EniAttachment:
        """Start to attach an ENI; it appears in the instance after the attach delay."""
        with self._store.transaction() as tx:
            eni = tx.world.eni(eni_id)
            self._check_attachable(tx.world, eni, instance_id, device_index, network_card)
            attachment = self.new_attachment(instance_id, device_index=device_index, network_card=network_card)
            tx.put_eni(replace(eni, attachment=attachment))
            fault = self._faults.take_attach_fault()
            delay_s = self._delays.attach_s + (fault.stuck_s if fault else 0.0)
            tx.after(delay_s, lambda later: _finish_attach(later, eni_id, attachment.attachment_id, fault))
        return attachment

    def new_attachment(self, instance_id: str, *, device_index: int, network_card: int = 0) -> EniAttachment:
        """Make an attachment that is still attaching; not deleted on termination, as EC2 does for a later attach."""
        return EniAttachment(
            instance_id=instance_id,
            device_index=device_index,
            network_card=network_card,
            attachment_id=self._ids.make("eni-attach"),
            status=AttachmentStatus.ATTACHING,
            delete_on_termination=False,
            attached_at=self._wall_clock(),
        )

    def detach(self, attachment_id: str, *, force: bool = False) -> None:
        """Start to detach; at once when forced or not yet attached. Repeating it while detaching succeeds (ours)."""
        with self._store.transaction() as tx:
            eni, attachment = _by_attachment(tx.world, attachment_id)
            if attachment.device_index == 0 and attachment.network_card == 0:
                raise errors.not_permitted("The network interface at device index 0 and networkCard index 0 cannot be detached.")
            if force or attachment.status is AttachmentStatus.ATTACHING:
                tx.put_eni(replace(eni, attachment=None))
            elif attachment.status is AttachmentStatus.ATTACHED:
                leaving = replace(attachment, status=AttachmentStatus.DETACHING)
                tx.put_eni(replace(eni, attachment=leaving))
                tx.after(self._delays.detach_s, lambda later: _finish_detach(later, eni.eni_id, attachment_id))

    def delete(self, eni_id: str) -> None:
        """Delete an ENI that is attached to nothing."""
        with self._store.transaction() as tx:
            if tx.world.eni(eni_id).attachment is not None:
                raise errors.interface_not_deletable(eni_id)
            tx.drop_eni(eni_id)

    def modify(
        self,
        eni_id: str,
        *,
        description: str | None = None,
        groups: tuple[str, ...] | None = None,
        attachment_id: str | None = None,
        delete_on_termination: bool | None = None,
    ) -> None:
        """Change attributes of an ENI; `groups` have been checked by the caller."""
        with self._store.transaction() as tx:
            eni = tx.world.eni(eni_id)
            if attachment_id is not None and delete_on_termination is not None:
                if eni.attachment is None or eni.attachment.attachment_id != attachment_id:
                    raise errors.attachment_not_found(attachment_id)
                eni = replace(eni, attachment=replace(eni.attachment, delete_on_termination=delete_on_termination))
            if description is not None:
                eni = replace(eni, description=description)
            if groups is not None:
                eni = replace(eni, security_groups=groups)
            tx.put_eni(eni)

    def assign(
        self, eni_id: str, want: AddressRequest, *, allow_reassignment: bool = False
    ) -> tuple[tuple[IPv4Address, ...], tuple[IPv4Network, ...]]:
        """Give addresses or prefixes to an ENI; see `addresses.assign`."""
        with self._store.transaction() as tx:
            eni = tx.world.eni(eni_id)
            limit = self._address_limit(tx.world, eni)
            return assign(tx, eni, want, limit=limit, allow_reassignment=allow_reassignment)

    def unassign(self, eni_id: str, *, addresses: tuple[IPv4Address, ...], prefixes: tuple[IPv4Network, ...]) -> None:
        """Take addresses or prefixes from an ENI; see `addresses.unassign`."""
        with self._store.transaction() as tx:
            unassign(tx, tx.world.eni(eni_id), addresses=addresses, prefixes=prefixes)

    def _address_limit(self, world: World, eni: Eni) -> int:
        if eni.attachment is None:
            return MOST_ADDRESSES_PER_ENI
        return self._limits[world.instance(eni.attachment.instance_id).instance_type].addresses_per_eni

    def _check_attachable(self, world: World, eni: Eni, instance_id: str, device_index: int, card: int) -> None:
        instance = world.instance(instance_id)
        if not instance.running:
            raise errors.Ec2Error("IncorrectInstanceState", f"Instance '{instance_id}' is not in a valid state")
        if eni.attachment is not None:
            raise errors.interface_in_use(eni.eni_id)
        if eni.az != instance.az:
            raise errors.invalid_combination(
                "You may not attach a network interface to an instance if they are not in the same availability zone"
            )
        limits = self._limits[instance.instance_type]
        if not 0 <= card < len(limits.enis_per_card):
            raise errors.invalid_value(f"Network card index {card} does not exist on {instance.instance_type}")
        bound = [other.attachment for other in world.attached_to(instance_id)]
        on_card = [at for at in bound if at is not None and at.network_card == card]
        if device_index < 0 or any(at.device_index == device_index for at in on_card):
            raise errors.device_index_taken(instance_id, device_index)
        if len(on_card) + 1 > limits.enis_per_card[card]:
            raise errors.attachment_limit(len(on_card) + 1, instance.instance_type)
        if len(eni.addresses) + len(eni.prefixes) > limits.addresses_per_eni:
            raise errors.address_limit()


def _by_attachment(world: World, attachment_id: str) -> tuple[Eni, EniAttachment]:
    for eni in world.enis.values():
        if eni.attachment is not None and eni.attachment.attachment_id == attachment_id:
            return eni, eni.attachment
    raise errors.attachment_not_found(attachment_id)


def _finish_attach(tx: Transaction, eni_id: str, attachment_id: str, fault: AttachFault | None) -> None:
    eni = tx.world.enis.get(eni_id)
    if eni is None or eni.attachment is None or eni.attachment.attachment_id != attachment_id:
        return
    if fault is not None and fault.vanishes:
        tx.put_eni(replace(eni, attachment=None))
    else:
        tx.put_eni(replace(eni, attachment=replace(eni.attachment, status=AttachmentStatus.ATTACHED)))


def _finish_detach(tx: Transaction, eni_id: str, attachment_id: str) -> None:
    eni = tx.world.enis.get(eni_id)
    if eni is not None and eni.attachment is not None and eni.attachment.attachment_id == attachment_id:
        tx.put_eni(replace(eni, attachment=None))
