"""Which addresses can be given now: a pure count, the same for readiness, `ipamctl status` and the metrics."""

from __future__ import annotations

from ipamd.model.address import AddressState
from ipamd.model.eni import EniState
from ipamd.model.snapshot import Snapshot


def assignable_count(snapshot: Snapshot) -> int:
    """Count the free addresses on attached, managed ENIs whose host routing is in place (I7)."""
    giving = {eni.eni_id for eni in snapshot.enis.values() if eni.managed and eni.host_ready and eni.state is EniState.ATTACHED}
    return sum(row.state is AddressState.FREE and row.eni_id in giving for row in snapshot.addresses.values())
