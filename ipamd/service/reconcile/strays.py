"""Remove rules that lead nowhere and that nobody owns: a sandbox's namespace went before its DEL, and its row was lost."""

from __future__ import annotations

from ipaddress import IPv4Address

from ipamd.model.address import AddressState
from ipamd.model.kernel import KernelSurvey, stray_rules
from ipamd.service.context import ServiceContext
from ipamd.service.odd_objects import OddObjects


class StrayRules:
    """Used by one thread."""

    def __init__(self, context: ServiceContext) -> None:
        self._datastore = context.datastore
        self._wiring = context.wiring
        self._odd = OddObjects(context.health, work="removal of rules that lead nowhere")
        self._unowned: frozenset[IPv4Address] = frozenset()

    @property
    def are_there(self) -> bool:
        """Whether the last survey showed any."""
        return bool(self._unowned)

    def remove(self, survey: KernelSurvey) -> list[str]:
        """Remove those that this whole survey and the one before show, too: an ADD adds its rules before its row is stored.

        Returns: one sentence per repair.
        """
        strays = stray_rules(survey, {eni.subnet_cidr for eni in self._datastore.enis()})
        unowned = frozenset(address for address in strays if not self._has_owner(address))
        seen_twice, self._unowned = unowned & self._unowned, unowned
        self._odd.keep_only(str(address) for address in seen_twice)
        repairs = []
        for address in sorted(seen_twice):
            with self._odd.skip(str(address)):
                self._wiring.remove_leftover(host_veth=None, address=address)
                repairs.append(f"rules of {address} led nowhere: removed")
        return repairs

    def _has_owner(self, address: IPv4Address) -> bool:
        row = self._datastore.address(address)
        return row is not None and (row.is_in_use or row.state is AddressState.QUARANTINED)
