"""When the next pass over the host is due after a change: at once, and less often while changes mean nothing.

A burst of changes makes one pass, COALESCE_S after its first. Passes that a change asked for and that found nothing to repair make the
next one wait longer, up to GAP_MAX_S, so that software which changes the host without pause costs little (kube-proxy rewrites
nftables every second on a busy cluster).
"""

from __future__ import annotations

from enum import StrEnum

from ipamd.core.agenda import soonest_s
from ipamd.model import kernel as dataplane
from ipamd.model.cniresult import recorded_spec
from ipamd.model.kernel import ChangeKind, HostChange, veth_differences
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


class Triggers:
    """The scopes that are due, and when. `mark` from any thread; the rest from the thread that makes the passes.

    No lock: single steps of dictionaries. A mark that comes while its scope is taken is served by the pass that follows.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._due: dict[Scope, float] = {}
        self._gaps: dict[Scope, tuple[float, float]] = {}
        """When the last pass for nothing ended, and how long the next one waits after it."""

    def mark(self, scope: Scope) -> None:
        """Something of a scope changed: a pass is due soon."""
        ended_s, gap_s = self._gaps.get(scope, (0.0, 0.0))
        self._due.setdefault(scope, max(self._clock.monotonic() + COALESCE_S, ended_s + gap_s))

    def wait_s(self) -> float | None:
        """Seconds until a scope is due; None if nothing is marked."""
        now_s = self._clock.monotonic()
        return soonest_s(max(at_s - now_s, 0.0) for at_s in tuple(self._due.values()))

    def take(self) -> frozenset[Scope]:
        """The scopes that are due now; they are due no more."""
        now_s = self._clock.monotonic()
        due = frozenset(scope for scope in Scope if self._due.get(scope, float("inf")) <= now_s)
        for scope in due:
            del self._due[scope]
        return due

    def done(self, scope: Scope, *, has_repaired: bool) -> None:
        """A pass that was asked for has ended: one for nothing makes the next wait longer."""
        if has_repaired:
            self._gaps.pop(scope, None)
            return
        now_s = self._clock.monotonic()
        ended_s, gap_s = self._gaps.get(scope, (float("-inf"), 0.0))
        self._gaps[scope] = now_s, COALESCE_S if now_s - ended_s > CALM_S else min(gap_s * 2, GAP_MAX_S)


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


def scope_of(change: HostChange, datastore: Datastore) -> Scope | None:
    """What must be looked at after a change; None if nothing of ours is concerned. From any thread."""
    match change.kind:
        case ChangeKind.NFT:
            return Scope.TABLE
        case ChangeKind.VETH_GONE:  # nothing can be put back at once; most tell of our own DELs
            is_ours = False
        case ChangeKind.SYSCTL | ChangeKind.MISSED:
            is_ours = True
        case ChangeKind.LINK:
            is_ours = _is_link_damaged(change, datastore)
        case _:
            is_ours = _concerns_us(change, datastore)
    return Scope.EVERYTHING if is_ours else None


def _is_link_damaged(change: HostChange, datastore: Datastore) -> bool:
    veth = change.veth
    if veth is None or veth.is_dying:
        return veth is None
    # An ADD names its veth before its row is stored: an alias without a row is no damage. Without an alias the name tells.
    if veth.key is not None:
        attachment = datastore.attachment(veth.key)
    else:
        attachment = next((one for one in datastore.attachments() if one.host_veth == veth.name), None)
    return attachment is not None and (
        veth.name != attachment.host_veth or bool(veth_differences(recorded_spec(attachment), veth))
    )


def _concerns_us(change: HostChange, datastore: Datastore) -> bool:
    """Whether an address, a route or a rule is of our addresses, subnets, tables or priorities."""
    address, kind = change.address, change.kind
    if address is not None and datastore.address(address) is not None:
        return True
    enis = datastore.enis()
    if kind is ChangeKind.ADDRESS:
        return address is not None and any(address in eni.subnet_cidr for eni in enis)
    if any(change.table == eni.route_table and not eni.is_primary for eni in enis):
        return True
    if kind is ChangeKind.RULE:
        return change.priority in OUR_PRIORITIES
    return address is None or any(address == eni.subnet_cidr.network_address for eni in enis)
