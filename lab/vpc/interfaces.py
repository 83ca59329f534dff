"""EC2's calls about an ENI: create, attach, detach, delete, and changes of its addresses.

Each method is one API call without HTTP. It is validated and atomic, and raises Ec2Error. Attach and detach are accepted at once, and
a timer of the store completes them later. A Create whose client token an earlier call used returns the ENI of that call in its present
state. If that ENI was deleted, a rule decides (TokenOfDeleted in lab/vpc/rules.py): the call returns the ENI as it was at its
creation, or makes a new one. EC2's documentation says only "the original result".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network
from random import Random

from lab.vpc import errors
from lab.vpc.addresses import AddressRequest, Choice, assign, choose_for_new, unassign
from lab.vpc.attachments import by_attachment, check_attachable, finish_attach, finish_detach
from lab.vpc.faults import Faults
from lab.vpc.ids import Ids
from lab.vpc.ipv6 import Ipv6Request
from lab.vpc.ipv6 import assign as assign_ipv6
from lab.vpc.ipv6 import choose as choose_ipv6
from lab.vpc.ipv6 import unassign as unassign_ipv6
from lab.vpc.limits import MOST_ADDRESSES_PER_ENI, InstanceLimits
from lab.vpc.model import AttachmentStatus, Eni, EniAttachment
from lab.vpc.rules import AssignAnswer, TokenCheck, TokenOfDeleted
from lab.vpc.store import Store, Transaction
from lab.vpc.world import World


@dataclass(frozen=True)
class ClientToken:
    """The idempotency token of a request. `fingerprint`: a text that is equal for two requests if all other parameters are equal."""

    token: str
    fingerprint: str


@dataclass(frozen=True)
class Delays:
    """The time that EC2 takes to attach and detach an ENI, in seconds."""

    attach_s: float = 0.0
    detach_s: float = 0.0


NO_DELAYS = Delays()


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
        seed: int = 0,
    ) -> None:
        self._store = store
        self._ids = ids
        self._limits = limits
        self._faults = faults
        self._delays = delays
        self._wall_clock = wall_clock
        self._rng = Random(seed)
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
        connection_tracking: Mapping[str, int] | None = None,
        ipv6: Ipv6Request | None = None,
        interface_type: str = "interface",
    ) -> Eni:
        """Create an ENI, which is not attached. `groups`: security groups, which the caller has checked."""
        with self._store.transaction("CreateNetworkInterface") as tx:
            if self._faults.rules.token_check is TokenCheck.AFTER_CAPACITY:
                self._choose(tx, subnet_id, want)
            if (made := self._made_before(tx.world, client_token)) is not None:
                return made
            eni = self.create_in(tx, subnet_id, want, groups=groups, description=description, tags=tags, ipv6=ipv6)
            if connection_tracking or interface_type != eni.interface_type:
                eni = replace(eni, connection_tracking=connection_tracking or {}, interface_type=interface_type)
                tx.put_eni(eni)
            if client_token is not None:
                self._tokens[client_token.token] = (client_token.fingerprint, eni)
        self._faults.born(eni.eni_id)
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
        ipv6: Ipv6Request | None = None,
    ) -> Eni:
        """Create an ENI within an open transaction."""
        subnet = tx.world.subnet(subnet_id)
        chosen = self._choose(tx, subnet_id, want)
        addresses, prefixes = choose_ipv6(tx.world, subnet, ipv6 or Ipv6Request(), rng=self._rng, limit=MOST_ADDRESSES_PER_ENI)
        eni = Eni(
            eni_id=self._ids.make("eni"),
            mac=self._ids.mac(),
            subnet_id=subnet_id,
            subnet_cidr=subnet.cidr,
            az=subnet.az,
            primary_address=chosen.primary,
            secondary_addresses=chosen.secondary,
            prefixes=chosen.prefixes,
            ipv6_addresses=addresses,
            ipv6_prefixes=prefixes,
            tags=dict(tags or {}),
            description=description,
            security_groups=groups,
            ordinal=self._store.next_number(),
        )
        tx.put_eni(eni)
        return eni

    def attach(self, eni_id: str, instance_id: str, *, device_index: int, network_card: int = 0) -> EniAttachment:
        """Start to attach an ENI. It becomes attached after the attach delay."""
        with self._store.transaction("AttachNetworkInterface") as tx:
            eni = tx.world.eni(eni_id)
            place = (network_card, device_index)
            check_attachable(tx.world, eni, instance_id, place=place, limits=self._limits, faults=self._faults)
            attachment = self.new_attachment(instance_id, device_index=device_index, network_card=network_card)
            tx.put_eni(replace(eni, attachment=attachment))
            fault = self._faults.take_attach_fault()
            delay_s = self._delays.attach_s + (fault.stuck_s if fault else 0.0)
            tx.after(delay_s, lambda later: finish_attach(later, eni_id, attachment.attachment_id, fault))
        self._faults.born(attachment.attachment_id)
        return attachment

    def new_attachment(self, instance_id: str, *, device_index: int, network_card: int = 0) -> EniAttachment:
        """Make an attachment in the state attaching. Its DeleteOnTermination is off, as EC2 sets it for an Attach after the launch."""
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
        """Start to detach an ENI. If `force` is true or the ENI is still attaching, it is detached at once.

        A second call while the ENI is detaching succeeds (ours: EC2's answer is not documented).
        """
        with self._store.transaction("DetachNetworkInterface") as tx:
            eni, attachment = by_attachment(tx.world, attachment_id)
            if attachment.device_index == 0 and attachment.network_card == 0:
                raise errors.not_permitted("The network interface at device index 0 and networkCard index 0 cannot be detached.")
            if force or attachment.status is AttachmentStatus.ATTACHING:
                tx.put_eni(replace(eni, attachment=None))
            elif attachment.status is AttachmentStatus.ATTACHED:
                leaving = replace(attachment, status=AttachmentStatus.DETACHING)
                tx.put_eni(replace(eni, attachment=leaving))
                tx.after(self._delays.detach_s, lambda later: finish_detach(later, eni.eni_id, attachment_id))

    def delete(self, eni_id: str) -> None:
        """Delete an ENI that is attached to nothing."""
        with self._store.transaction("DeleteNetworkInterface") as tx:
            eni = tx.world.eni(eni_id)
            if eni.attachment is not None or tx.world.branches_of(eni_id):  # unlike a trunk, a branch may be deleted in use
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
        connection_tracking: Mapping[str, int] | None = None,
        source_dest_check: bool | None = None,
    ) -> None:
        """Change attributes of an ENI. None leaves an attribute unchanged. `groups`: security groups, which the caller has checked."""
        with self._store.transaction("ModifyNetworkInterfaceAttribute") as tx:
            eni = tx.world.eni(eni_id)
            if attachment_id is not None and delete_on_termination is not None:
                if eni.attachment is None or eni.attachment.attachment_id != attachment_id:
                    raise errors.attachment_not_found(attachment_id)
                eni = replace(eni, attachment=replace(eni.attachment, delete_on_termination=delete_on_termination))
            if description is not None:
                eni = replace(eni, description=description)
            if groups is not None:
                eni = replace(eni, security_groups=groups)
            if connection_tracking is not None:
                eni = replace(eni, connection_tracking=connection_tracking)
            if source_dest_check is not None:
                eni = replace(eni, source_dest_check=source_dest_check)
            tx.put_eni(eni)

    def assign(
        self, eni_id: str, want: AddressRequest, *, allow_reassignment: bool = False
    ) -> tuple[tuple[IPv4Address, ...], tuple[IPv4Network, ...]]:
        """Assign addresses or prefixes to an ENI.

        Returns: the same as `addresses.assign`, or all secondary addresses and prefixes of the ENI. The rule AssignAnswer decides.
        """
        with self._store.transaction("AssignPrivateIpAddresses") as tx:
            eni = tx.world.eni(eni_id)
            limit = self._address_limit(tx.world, eni)
            added = assign(tx, eni, want, limit=limit, allow_reassignment=allow_reassignment)
            if self._faults.rules.assign_answer is AssignAnswer.NEW:
                return added
            now = tx.world.eni(eni_id)
            return now.secondary_addresses, now.prefixes

    def unassign(self, eni_id: str, *, addresses: tuple[IPv4Address, ...], prefixes: tuple[IPv4Network, ...]) -> None:
        """Remove addresses or prefixes from an ENI; see `addresses.unassign`."""
        with self._store.transaction("UnassignPrivateIpAddresses") as tx:
            unassign(tx, tx.world.eni(eni_id), addresses=addresses, prefixes=prefixes)

    def assign_ipv6(self, eni_id: str, want: Ipv6Request) -> tuple[tuple[IPv6Address, ...], tuple[IPv6Network, ...]]:
        """Assign IPv6 addresses or prefixes to an ENI; see `ipv6.assign`."""
        with self._store.transaction("AssignIpv6Addresses") as tx:
            eni = tx.world.eni(eni_id)
            return assign_ipv6(tx, eni, want, rng=self._rng, limit=self._address_limit(tx.world, eni))

    def unassign_ipv6(self, eni_id: str, *, addresses: tuple[IPv6Address, ...], prefixes: tuple[IPv6Network, ...]) -> None:
        """Remove IPv6 addresses or prefixes from an ENI; see `ipv6.unassign`."""
        with self._store.transaction("UnassignIpv6Addresses") as tx:
            unassign_ipv6(tx, tx.world.eni(eni_id), addresses=addresses, prefixes=prefixes)

    def _choose(self, tx: Transaction, subnet_id: str, want: AddressRequest) -> Choice:
        """Choose the addresses of a new ENI, without assigning them. Raises: Ec2Error, also if the account may not have one more
        ENI."""
        quota = self._faults.interface_quota
        if quota is not None and len(tx.world.enis) >= quota:
            raise errors.interface_quota()
        return choose_for_new(tx, subnet_id, want, limit=MOST_ADDRESSES_PER_ENI)

    def _made_before(self, world: World, client_token: ClientToken | None) -> Eni | None:
        """Return the ENI that an earlier call with this token made; None if a new ENI must be made.

        Raises: Ec2Error if the parameters of the earlier call were different.
        """
        if client_token is None or client_token.token not in self._tokens:
            return None
        fingerprint, eni = self._tokens[client_token.token]
        if fingerprint != client_token.fingerprint:
            raise errors.token_mismatch()
        is_new_one = self._faults.rules.token_of_deleted is TokenOfDeleted.NEW_ENI
        return world.enis.get(eni.eni_id, None if is_new_one else eni)

    def _address_limit(self, world: World, eni: Eni) -> int:
        if eni.attachment is None:
            return MOST_ADDRESSES_PER_ENI
        return self._limits[world.instance(eni.attachment.instance_id).instance_type].addresses_per_eni
