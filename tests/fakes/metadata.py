"""An instance metadata service that always answers: with what it is told, or with the ENIs that EC2 shows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from ipamd.model.cloud import DescribedEni, InstanceIdentity, MetadataEni
from ipamd.model.eni import Eni
from ipamd.model.errors import CloudError
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import MacAddress
from tests.fakes.cloud import IDENTITY


def metadata_eni(eni: DescribedEni) -> MetadataEni:
    """What metadata shows of an attached ENI when it has caught up."""
    addresses = eni.secondary_addresses.union({eni.primary_address} if eni.primary_address else ())
    return MetadataEni(eni.mac, eni.eni_id, eni.device_index, addresses, eni.prefixes)


class FakeMetadata:
    """Implements `Metadata`: tells `told` and the ENIs of `attached`, or raises the errors in `fail` first.

    `frozen`: what it shows of the ENIs instead, whatever happens at EC2. Counts requests as the adapter makes them.
    """

    def __init__(self, attached: Callable[[], Iterable[DescribedEni]] = tuple) -> None:
        self.told = IDENTITY
        self.fail: list[CloudError] = []
        self.call_count = 0
        self.attached = attached
        self.frozen: dict[MacAddress, MetadataEni] | None = None
        self.own_ipv6 = ""
        self.announced: dict[FreezeCause, str] = {}
        self._requests = 0
        self._read: set[MacAddress] = set()

    def identity(self) -> InstanceIdentity:
        """See the port."""
        self._requests += 2 if self.call_count else 9
        self.call_count += 1
        if self.fail:
            raise self.fail.pop(0)
        return self.told

    def shown(self) -> dict[MacAddress, MetadataEni]:
        """The ENIs, as it shows them now."""
        return self.frozen if self.frozen is not None else {eni.mac: metadata_eni(eni) for eni in self.attached()}

    def freeze(self) -> None:
        """Show from now on what it shows now."""
        self.frozen = dict(self.shown())

    def ipv6_address(self) -> str:
        """See the port."""
        self._requests += 1
        if self.fail:
            raise self.fail.pop(0)
        return self.own_ipv6

    def list_interfaces(self) -> frozenset[MacAddress]:
        """See the port."""
        self._requests += 1
        if self.fail:
            raise self.fail.pop(0)
        return frozenset(self.shown())

    def interface(self, mac: MacAddress, *, described: Eni | None = None) -> MetadataEni:
        """See the port."""
        self._requests += 2 if mac in self._read or described is not None else 4
        if self.fail:
            raise self.fail.pop(0)
        if mac not in self.shown():
            raise CloudError(f"instance metadata does not show {mac}")
        self._read.add(mac)
        return self.shown()[mac]

    def notices(self) -> Mapping[FreezeCause, str]:
        """See the port: `announced`; an on-demand instance's costs nothing."""
        if self.fail:
            raise self.fail.pop(0)
        return dict(self.announced)

    def request_count(self) -> int:
        """See the port."""
        return self._requests
