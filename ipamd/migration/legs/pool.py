"""Take over sandboxes that have an address of the pool, with their extra legs."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from ipamd.migration.legs.leg import ExtraLegImport, ImportPass, Takeover
from ipamd.model.aws_node import identify
from ipamd.model.errors import log_text
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth
from ipamd.model.words import counted
from ipamd.ports.datastore import Datastore
from ipamd.ports.leg_adoption import LegAdoption

log = logging.getLogger(__name__)

FAILPOINTS = ("import.stamped",)


class PoolImport:
    """Takes over every sandbox that no importer of another kind of first leg has recognised. See `FirstLegImport`."""

    def __init__(
        self,
        adoption: LegAdoption,
        datastore: Datastore,
        *,
        extra: Sequence[ExtraLegImport],
        prefix: str,
        failpoint: Callable[[str], None],
    ) -> None:
        """`extra`: the importers of extra legs. `prefix`: the beginning of the names that amazon-vpc-cni-k8s gives to host veths."""
        self._adoption = adoption
        self._datastore = datastore
        self._extra = extra
        self._prefix = prefix
        self._failpoint = failpoint

    def take_over(self, veth: HostVeth, addresses: tuple[IpAddress, ...], import_pass: ImportPass) -> Takeover | None:
        """See `FirstLegImport`."""
        return Takeover(addresses, self._take_over(veth, addresses, import_pass))

    def _take_over(self, veth: HostVeth, addresses: tuple[IpAddress, ...], import_pass: ImportPass) -> str:
        """Write our aliases on one veth and the sandbox's extra legs. Returns: why they were not written, "" if they were."""
        if len(addresses) != 1:
            return f"table main has {counted(len(addresses), 'route')} to single addresses through it, not one"
        (address,) = addresses
        identified = self._identify(veth, address, import_pass)
        if isinstance(identified, str):
            return identified
        key, witness = identified
        try:
            for kind in self._extra:
                kind.take_over(veth, key, import_pass)
            import_pass.firsts[veth.name] = self._adoption.stamp(veth, key=key, address=address)
        except Exception as error:  # noqa: BLE001  # top of the work on one veth: other veths must not wait for it
            return log_text(error)
        self._failpoint("import.stamped")
        log.info("imported veth=%s address=%s sandbox=%s witness=%s", veth.name, address, key, witness)
        return ""

    def _identify(self, veth: HostVeth, address: IpAddress, import_pass: ImportPass) -> tuple[AttachmentKey, str] | str:
        """Return the sandbox of a veth and the name of the source that identifies it; or one sentence why the sandbox is not known."""
        for row in self._datastore.attachments():
            if row.host_veth == veth.name and row.address == address:
                return row.key, "its row"
        return identify(veth.name, address, allocations=import_pass.allocations, listed=import_pass.listed, prefix=self._prefix)
