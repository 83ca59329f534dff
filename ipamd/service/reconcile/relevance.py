"""Which of the kernel's notifications may need a repair: the others, most of them about our own ADDs, cost no look at the host.

A notification is compared with what is recorded, in memory. What this leaves out wrongly is found on the clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from ipaddress import IPv4Address

from ipamd.model import dataplane
from ipamd.model.attachment import Attachment, encode_alias, sandbox_mac
from ipamd.model.cniresult import others_mac, wired_mtu
from ipamd.model.errors import IpamError
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import ChangeKind, HostChange, HostVeth
from ipamd.ports import Datastore
from ipamd.service.reconcile.triggers import Scope

OUR_PRIORITIES = frozenset(
    {
        dataplane.TO_SANDBOX_PRIORITY,
        dataplane.MARK_PRIORITY,
        dataplane.EXTERNAL_SERVICE_PRIORITY,
        dataplane.FROM_SANDBOX_PRIORITY,
        dataplane.FROM_ENI_PRIORITY,
    }
)


@dataclass(frozen=True, slots=True)
class _Expected:
    """What a sandbox's host veth must be like; `mtu` 0, `mac` "": the record does not say."""

    attachment: Attachment
    alias: str
    mac: str
    mtu: int


class ExpectedVeths:
    """Compares host veths with their records; remembers what it worked out. Safe from any thread: dictionary steps only."""

    def __init__(self) -> None:
        self._known: dict[AttachmentKey, _Expected] = {}

    def fits(self, attachment: Attachment, veth: HostVeth) -> bool:
        """Whether name, state, alias, MAC and MTU of a host veth are what the record of its sandbox says."""
        wanted = self._known.get(attachment.key)
        if wanted is None or wanted.attachment is not attachment:
            wanted = self._known[attachment.key] = _expected(attachment)
        return (
            (veth.name, veth.alias) == (attachment.host_veth, wanted.alias)
            and veth.is_up
            and (not wanted.mac or veth.mac in (wanted.mac, ""))
            and (veth.mtu in (wanted.mtu, 0) or wanted.mtu == 0)
        )

    def keep_only(self, attachments: Iterable[Attachment]) -> None:
        """Forget all sandboxes but these."""
        gone = self._known.keys() - {attachment.key for attachment in attachments}
        for key in gone:
            self._known.pop(key, None)


class Relevance:
    """Decides what a notification makes due. Safe from any thread."""

    def __init__(self, datastore: Datastore, *, veths: ExpectedVeths) -> None:
        self._datastore = datastore
        self._veths = veths
        self._judges: dict[ChangeKind, Callable[[HostChange], bool]] = {
            ChangeKind.LINK: self._is_link_damaged,
            ChangeKind.VETH_GONE: lambda _: False,  # nothing can be put back at once; most tell of our own DELs
            ChangeKind.ADDRESS: self._concerns_address,
            ChangeKind.ROUTE: self._concerns_route,
            ChangeKind.RULE: self._concerns_rule,
            ChangeKind.SYSCTL: lambda _: True,
            ChangeKind.MISSED: lambda _: True,
        }

    def scope(self, change: HostChange) -> Scope | None:
        """What must be looked at after a change; None if nothing of ours is concerned."""
        if change.kind is ChangeKind.NFT:
            return Scope.TABLE
        return Scope.EVERYTHING if self._judges[change.kind](change) else None

    def _is_link_damaged(self, change: HostChange) -> bool:
        veth = change.veth
        if veth is None:
            return True
        if veth.is_dying:
            return False
        # An ADD names its veth before its row is stored: an alias without a row is no damage. Without an alias the name tells.
        attachment = self._datastore.attachment(veth.key) if veth.key is not None else self._named(veth.name)
        return attachment is not None and not self._veths.fits(attachment, veth)

    def _named(self, name: str) -> Attachment | None:
        return next((one for one in self._datastore.attachments() if one.host_veth == name), None)

    def _concerns_address(self, change: HostChange) -> bool:
        address = change.address
        return address is not None and (
            self._is_ours(address) or any(address in eni.subnet_cidr for eni in self._datastore.enis())
        )

    def _concerns_route(self, change: HostChange) -> bool:
        if change.address is None or self._is_ours(change.address):
            return True
        return any(
            (change.table == eni.route_table and not eni.is_primary) or change.address == eni.subnet_cidr.network_address
            for eni in self._datastore.enis()
        )

    def _concerns_rule(self, change: HostChange) -> bool:
        if change.priority in OUR_PRIORITIES or (change.address is not None and self._is_ours(change.address)):
            return True
        return any(change.table == eni.route_table and not eni.is_primary for eni in self._datastore.enis())

    def _is_ours(self, address: IPv4Address) -> bool:
        return self._datastore.address(address) is not None


def _expected(attachment: Attachment) -> _Expected:
    try:
        mtu = wired_mtu(attachment.result, attachment.host_veth)
    except IpamError:
        mtu = 0
    others = others_mac(attachment)
    alias = encode_alias(attachment.key, attachment.address, is_imported=others is not None)
    return _Expected(
        attachment, alias, sandbox_mac(attachment.key, side="host") if others is None else others, 0 if others == "" else mtu
    )
