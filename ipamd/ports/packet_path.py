"""What the kernel would do with a packet, without sending it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.family import IpAddress
from ipamd.model.ids import MacAddress
from ipamd.model.packet_path import NewConnection, RouteAnswer, RoutedPacket, Translation
from ipamd.model.routing_difference import RoutingDifference


class PacketPaths(Protocol):
    """Queries of the kernel and of our own rules about one packet. Nothing is sent or changed. From any thread."""

    def inside(self, netns: str, packet: RoutedPacket) -> RouteAnswer:
        """Look up the route in a sandbox, of a packet that a process there sends. Bounded, whatever the sandbox has (I16).

        Raises: NetnsError if the namespace is gone; WiringError.
        """

    def on_node(self, packet: RoutedPacket) -> RouteAnswer:
        """Look up the route on the host, of a packet that comes by a link or that the host sends.

        Raises: WiringError, KernelDumpError.
        """

    def translation(self, packet: NewConnection, identity: InstanceIdentity) -> Translation:
        """Return what our nftables rules do with a new connection, by the settings in force. From memory."""

    def eni_links(self, macs: Iterable[MacAddress]) -> Mapping[MacAddress, str]:
        """Return the names of the links of ENIs that are present. Raises: WiringError, KernelDumpError."""

    def filters(self, addresses: Container[IpAddress]) -> list[RoutingDifference]:
        """Return what filters of other software drop, or may drop, of all sandboxes and of these addresses."""
