"""When the next pass over the host is due after a change: at once, and less often while changes mean nothing.

A burst of changes makes one pass, COALESCE_S after its first. Passes that a change asked for and that found nothing to repair make the
next one wait longer, up to GAP_MAX_S, so that software which changes the host without pause costs little (kube-proxy rewrites
nftables every second on a busy cluster).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from ipaddress import IPv4Address

from ipamd.core.agenda import soonest_s
from ipamd.model import kernel as dataplane
from ipamd.model.attachment import Attachment, encode_alias, sandbox_mac
from ipamd.model.cniresult import others_mac, wired_mtu
from ipamd.model.errors import IpamError
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import ChangeKind, HostChange, HostVeth, KernelSurvey
from ipamd.ports import Clock, Datastore

COALESCE_S = 0.2
"""From the first change to its pass. Ours: short against the second in which it must be repaired, long against a burst."""

GAP_MAX_S = 5.0
"""Longest gap between two passes that changes ask for. Ours."""

CALM_S = 60.0
"""After so long without a pass for nothing the next change is looked at at once again. Ours."""


class Scope(StrEnum):
    """What a pass looks at. Everything includes the nftables table."""

    EVERYTHING = "everything"
    TABLE = "table"


class _Gap:
    """The growing gap of one scope."""

    def __init__(self) -> None:
        self.next_s = COALESCE_S
        self.earliest_monotonic_s = 0.0
        self.vain_monotonic_s = float("-inf")


class Triggers:
    """The scopes that are due, and when. `mark` from any thread; the rest from the thread that makes the passes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._due: dict[Scope, float] = {}
        self._gaps = {scope: _Gap() for scope in Scope}

    def mark(self, scope: Scope) -> None:
        """Something of a scope changed: a pass is due soon."""
        with self._lock:
            if scope not in self._due:
                self._due[scope] = max(self._clock.monotonic() + COALESCE_S, self._gaps[scope].earliest_monotonic_s)

    def wait_s(self) -> float | None:
        """Seconds until a scope is due; None if nothing is marked."""
        now_s = self._clock.monotonic()
        with self._lock:
            return soonest_s(max(at_s - now_s, 0.0) for at_s in self._due.values())

    def take(self) -> frozenset[Scope]:
        """The scopes that are due now; they are due no more."""
        now_s = self._clock.monotonic()
        with self._lock:
            due = frozenset(scope for scope, at_s in self._due.items() if at_s <= now_s)
            for scope in due:
                del self._due[scope]
        return due

    def done(self, scope: Scope, *, has_repaired: bool) -> None:
        """A pass that was asked for has ended: one for nothing makes the next wait longer."""
        now_s = self._clock.monotonic()
        with self._lock:
            gap = self._gaps[scope]
            if has_repaired or now_s - gap.vain_monotonic_s > CALM_S:
                gap.next_s = COALESCE_S
            if not has_repaired:
                gap.vain_monotonic_s = now_s
            gap.earliest_monotonic_s = now_s + gap.next_s
            gap.next_s = min(gap.next_s * 2, GAP_MAX_S)


# Whether a pass by the clock must read all links, addresses, routes and rules: not while the kernel announces no change of them.
#
# Reading them is the dearest part of a pass, and the kernel announces whatever it could find. So on a node to which nothing
# happens only one of SURVEY_TURNS passes reads them, as a net, and with them the settings of host veths, which are not announced
# and are a second line only (docs/adr/0021). Other sysctls, nftables and the filters of other software are compared each time.


SURVEYED = frozenset(
    {ChangeKind.LINK, ChangeKind.VETH_GONE, ChangeKind.ADDRESS, ChangeKind.ROUTE, ChangeKind.RULE, ChangeKind.MISSED}
)
"""What is read, or may be; nftables, which kube-proxy changes every second, is not among it."""

SURVEY_TURNS = 4
"""Passes by the clock of which one reads the sandboxes' wiring in any case: with one pass each 30 s every two minutes. Ours: the
announcements have been tested for all that a survey shows, so this guards against what nobody thought of."""


class Silence:
    """`heard` from any thread; the rest from the thread that makes the passes."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._was_heard = False
        self._is_in_order = False
        self._left_out = 0

    def heard(self, change: HostChange) -> None:
        """The kernel announced a change, or may have without being heard."""
        if change.kind in SURVEYED:
            with self._lock:
                self._was_heard = True

    def may_leave_out(self) -> bool:
        """Whether a pass may do without a survey: all was in order at the last one, nothing was announced since, it is recent."""
        with self._lock:
            was_heard, self._was_heard = self._was_heard, False  # what comes during the survey is for the next one
        if was_heard:
            self._is_in_order = False
        if not self._is_in_order or self._left_out + 1 >= SURVEY_TURNS:
            return False
        self._left_out += 1
        return True

    def surveyed(self, survey: KernelSurvey, *, is_odd: bool) -> None:
        """A survey was made; `is_odd`: something had to be repaired, or is not as it should be and is waited for."""
        self._is_in_order, self._left_out = survey.is_whole and not is_odd, 0


# Which of the kernel's notifications may need a repair: the others, most of them about our own ADDs, cost no look at the host.
#
# A notification is compared with what is recorded, in memory. What this leaves out wrongly is found on the clock.


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
