"""Adopt sandboxes that are wired but not recorded if kernel and runtime agree; until they do, their addresses are quarantined.

A quarantined address is resolved in one of three ways: the runtime lists its sandbox (adopted), its wiring is gone (the address
cools), or its sandbox has been absent from the lists for an hour (the wiring is removed, then the address cools).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address

from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment, NetnsIdentity, Origin, Wired, WiringSpec, sandbox_mac
from ipamd.model.cniresult import build_result
from ipamd.model.errors import BusyError, InvariantError, IpamError, log_text
from ipamd.model.evidence import REAP_LEAKED_NETNS_AGE, REAP_MIN_ABSENT_LISTS
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.sandbox import Sandbox
from ipamd.service.context import ServiceContext
from ipamd.service.cooldown import Cooldown
from ipamd.service.request import Deadline

RESOLVE_WAIT_S = 1.0
"""How long resolving waits for an operation on the same sandbox; the next list tries again. Ours."""

FAILPOINTS = ("adopt.adopted", "adopt.leftover-removed", "adopt.settled")

log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Absence:
    last_counted_monotonic_s: float
    list_count: int


class QuarantineService:
    """Adopts sandboxes and resolves quarantined addresses."""

    def __init__(self, context: ServiceContext, *, cooldown: Cooldown, mtu: int, list_interval_s: float) -> None:
        self._failpoint = context.failpoint
        self._cooldown = cooldown
        self._locks = context.locks
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._clock = context.clock
        self._mtu = mtu
        self._list_interval_s = list_interval_s
        self._absences: dict[IPv4Address, _Absence] = {}

    def adopt(self, veth: HostVeth, sandbox: Sandbox, survey: KernelSurvey) -> str:
        """Record a wired sandbox that the runtime lists.

        Returns: an empty string, or one sentence that says why it must not be adopted.
        """
        if veth.key is None or veth.address is None:
            return "the veth carries no identity"
        row = self._datastore.address(veth.address)
        if row is None:
            return "the address is on no ENI of this node"
        device = survey.routes.get(veth.address)
        others = [
            other for other in survey.veths if other.address == veth.address and other.name != veth.name and not other.is_dying
        ]
        if device != veth.name and (device is not None or others):
            return "alias and route disagree"  # a missing route says nothing (I11): the host network reconciler restores it
        if row.owner is not None:
            return f"recorded for {row.owner}"
        if self._datastore.attachment(veth.key) is not None:
            return "the sandbox is recorded with another address"
        try:
            with self._datastore.transaction() as uow:
                uow.adopt(self._attachment(veth, row, sandbox))
        except InvariantError:
            if not self._datastore.is_tombstoned(veth.key):
                raise
            return "its DEL was done"
        self._failpoint("adopt.adopted")
        log.info("adopted sandbox %s with %s: kernel and runtime agree", veth.key, veth.address)
        return ""

    def resolve_unclaimed(self, claimed: Collection[IPv4Address]) -> int:
        """Start the cooldown of quarantined addresses that are no longer wired; returns how many."""
        resolved = [row for row in self._quarantined() if row.address not in claimed]
        for row in resolved:
            self._resolve(row, "its wiring is gone")
        return len(resolved)

    def resolve_gone(self) -> int:
        """Start the cooldown of quarantined addresses whose wiring is gone, without asking the runtime; returns how many.

        Raises: KernelDumpError.
        """
        if not self._quarantined():
            return 0
        survey = self._wiring.survey()
        wired = {veth.address for veth in survey.veths if veth.address is not None}
        return self.resolve_unclaimed(wired | set(survey.routes))

    def resolve_listed(self, listed: Mapping[str, Sandbox]) -> None:
        """Resolve the quarantined addresses that a complete list of the runtime allows to resolve."""
        rows = self._quarantined()
        if not rows:
            self._absences.clear()
            return
        try:
            survey = self._wiring.survey()
        except IpamError as error:
            log.info("quarantined addresses are checked again at the next list: %s", log_text(error))
            return
        claims = {veth.address: veth for veth in survey.veths if not veth.is_dying and veth.address is not None}
        for row in rows:
            self._resolve_one(row, claims.get(row.address), survey, listed)

    def _resolve_one(self, row: Address, veth: HostVeth | None, survey: KernelSurvey, listed: Mapping[str, Sandbox]) -> None:
        if veth is None or veth.key is None:
            if row.address not in survey.routes:
                self._resolve(row, "its wiring is gone")
            return
        sandbox = listed.get(veth.key.container_id)
        if sandbox is not None:
            self._absences.pop(row.address, None)  # only successive absences count
            refusal = self.adopt(veth, sandbox, survey)
            if refusal:
                log.warning("address %s stays quarantined: %s", row.address, refusal)
            return
        if self._is_long_absent(row):
            try:
                with self._locks.hold(veth.key, "RESOLVE", Deadline.after(self._clock, RESOLVE_WAIT_S)):
                    # The link's name comes from the key: if the sandbox was added again meanwhile, it is the new one's (I2).
                    is_added = self._datastore.attachment(veth.key) is not None
                    self._wiring.remove_leftover(host_veth=None if is_added else veth.name, address=row.address)
            except BusyError as error:
                log.info("address %s is resolved later: %s", row.address, log_text(error))
                return
            self._failpoint("adopt.leftover-removed")
            self._resolve(row, f"sandbox {veth.key} is absent from the runtime: its wiring was removed")

    def _is_long_absent(self, row: Address) -> bool:
        """Whether its sandbox was absent from two lists and for an hour: then namespace and veth are a leak (docs/adr/0010)."""
        now = self._clock.monotonic()
        absence = self._absences.setdefault(row.address, _Absence(now, 1))
        if now - absence.last_counted_monotonic_s >= self._list_interval_s:
            absence.last_counted_monotonic_s, absence.list_count = now, absence.list_count + 1
        return absence.list_count >= REAP_MIN_ABSENT_LISTS and self._clock.now() - row.since >= REAP_LEAKED_NETNS_AGE

    def _resolve(self, row: Address, reason: str) -> None:
        self._absences.pop(row.address, None)
        with self._datastore.transaction() as uow:
            uow.resolve(row.address, cooldown=self._cooldown.period, reason=reason)
        self._failpoint("adopt.settled")
        self._cooldown.start(row.address, dying_veth=None)

    def _quarantined(self) -> list[Address]:
        return list(self._datastore.addresses(state=AddressState.QUARANTINED))

    def _attachment(self, veth: HostVeth, row: Address, sandbox: Sandbox) -> Attachment:
        """Rebuild a record from the kernel's copy. The netns path is not known; MACs are derived as at ADD."""
        if veth.key is None:
            raise ValueError("a veth without identity cannot be recorded")
        eni = next(eni for eni in self._datastore.enis() if eni.eni_id == row.eni_id)
        unknown = NetnsIdentity(0, 0)
        macs = Wired(sandbox_mac(veth.key, side="host"), sandbox_mac(veth.key, side="sandbox"), unknown)
        spec = WiringSpec(veth.key, row.address, eni.route_table, veth.name, "", self._mtu)
        return Attachment(
            key=veth.key,
            address=row.address,
            eni_id=row.eni_id,
            route_table=eni.route_table,
            host_veth=veth.name,
            netns="",
            netns_identity=unknown,
            fingerprint="",
            result=build_result(spec, macs),
            created_at=self._clock.now(),
            origin=Origin.ADOPT,
            pod_namespace=sandbox.pod_namespace,
            pod_name=sandbox.pod_name,
            pod_uid=sandbox.pod_uid,
        )
