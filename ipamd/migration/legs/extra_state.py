"""Read and write the files in which the egress plugins of amazon-vpc-cni-k8s record the addresses that they have assigned."""

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path

from ipamd.migration.shared_files import _done_or_refused, read_bounded, replace
from ipamd.model.aws_node import Allocation
from ipamd.model.family import Family, IpAddress, IpNetwork
from ipamd.model.ids import AttachmentKey
from ipamd.model.legs.aws_node_extra import EGRESS_STATE, egress_file
from ipamd.settings import TakeoverConfig

FILE_MAX_BYTES = 4096
"""The largest size of a file that is read. Ours: a file has a container ID and an interface's name, less than 100 bytes."""

log = logging.getLogger(__name__)


class ExtraLegState:
    """Reads and replaces the files of the egress plugins. Any thread may read them, because each call reads the disk. Only one thread
    may call `write`.
    """

    def __init__(self, config: TakeoverConfig, *, network_name: Callable[[], str]) -> None:
        """`network_name`: returns the name of the network in the conflist of amazon-vpc-cni-k8s.

        The files are in a directory of that name.
        """
        self._directory = config.egress_state
        self._network_name = network_name

    def addresses(self, family: Family) -> Mapping[str, IpAddress]:
        """Return the addresses that the plugin of a family has recorded, by container ID.

        If a file cannot be read, that is logged, and the files after it are not read.
        """
        folder = self._directory / EGRESS_STATE[family] / self._network_name()
        by_container = dict[str, IpAddress]()
        try:
            for address in _addresses_in(folder):
                raw = read_bounded(folder / str(address), most=FILE_MAX_BYTES) or b""
                container_id = raw.decode("ascii", "replace").partition("\r\n")[0].strip()
                by_container[container_id] = address
        except OSError as error:
            log.warning("egress addresses of amazon-vpc-cni-k8s not readable path=%s error=%s", error.filename, error.strerror)
        return by_container

    def write(self, allocations: Iterable[Allocation], *, routed: Container[IpAddress]) -> None:
        """Write a file for each egress address in `allocations`, and remove the files of addresses that are neither in `allocations`
        nor in `routed`.

        Raises: TakeoverError.
        """
        with _done_or_refused(f"{self._directory} cannot be written", advice=": mount it into the daemon's pod"):
            self._write(allocations, routed)

    def _write(self, allocations: Iterable[Allocation], routed: Container[IpAddress]) -> None:
        """See `write`. A file that is not named after an address of the range belongs to the plugin and stays. Raises: OSError."""
        for family, name in EGRESS_STATE.items():
            folder = self._directory / name / self._network_name()
            network = family.local_range.network
            owners = _owners_in(network, allocations)
            for address in _addresses_in(folder):
                if address in network and address not in owners and address not in routed:
                    (folder / str(address)).unlink(missing_ok=True)
            for address, key in owners.items():
                folder.mkdir(mode=0o755, parents=True, exist_ok=True)
                replace(folder / str(address), egress_file(key), mode=0o600)


def _addresses_in(folder: Path) -> Iterator[IpAddress]:
    """Yield the addresses after which files in a folder are named. Raises: OSError."""
    if folder.is_dir():
        for path in list(folder.iterdir()):
            with suppress(ValueError):
                yield ip_address(path.name)


def _owners_in(network: IpNetwork, allocations: Iterable[Allocation]) -> dict[IpAddress, AttachmentKey]:
    """Return the sandbox of each egress address that is in `network`."""
    owners = {}
    for allocation in allocations:
        address = allocation.other_address
        if address is not None and address in network:
            owners[address] = allocation.key
    return owners
