"""The port `PacketPaths`: questions about what the kernel would do with a packet. No packet is sent."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.family import IpAddress
from ipamd.model.ids import MacAddress
from ipamd.model.packet_path import NewConnection, RouteAnswer, RoutedPacket, Translation
from ipamd.model.routing_difference import RoutingDifference


class PacketPaths(Protocol):
    """Answers what the kernel and our own rules would do with one packet. Nothing is sent or changed. Safe from any thread."""

    def inside(self, netns: str, packet: RoutedPacket) -> RouteAnswer:
        """Look up the route for a packet that a process in a sandbox sends. Time and memory are bounded, whatever the sandbox
        contains (I16).

        Raises: NetnsError if the namespace is gone; WiringError.
        """

    def on_node(self, packet: RoutedPacket) -> RouteAnswer:
        """Look up the host's route for a packet that arrives by a link or that the host sends.

        Raises: WiringError, KernelDumpError.
        """

    def translation(self, packet: NewConnection, identity: InstanceIdentity) -> Translation:
        """Return what our nftables rules do with a new connection. Computed from the settings in force, without asking the kernel."""

    def eni_links(self, macs: Iterable[MacAddress]) -> Mapping[MacAddress, str]:
        """Return the names of ENIs' links, by MAC; MACs without a link are left out. Raises: WiringError, KernelDumpError."""

    def filters(self, addresses: Container[IpAddress]) -> list[RoutingDifference]:
        """Return what other software changes, or may drop, in packets of all sandboxes or of the addresses in `addresses`.

        The result is as in `HostNetwork.other_software`, but read now; if nftables cannot be read, it is that of the last inspection.
        """
