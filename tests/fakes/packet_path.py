"""The kernel's decisions about packets as a list that a test writes, and our rules as they are."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping

from ipamd.kernel.translation import translation_of
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.errors import IpamError
from ipamd.model.family import IpAddress
from ipamd.model.ids import MacAddress
from ipamd.model.packet_path import NewConnection, RouteAnswer, RoutedPacket, RouteResult, Translation
from ipamd.model.routing_difference import RoutingDifference
from ipamd.settings import NetworkConfig

NOWHERE = RouteAnswer(RouteResult.REFUSED, error="ENETUNREACH")

Decide = Callable[[RoutedPacket], RouteAnswer | None]


class FakePacketPaths:
    """Implements `PacketPaths`. `pod` and `node` decide about packets; None, and without them, nothing leads anywhere."""

    def __init__(self) -> None:
        self.pod: Decide = lambda _: None
        self.node: Decide = lambda _: None
        self.config = NetworkConfig()
        self.extra_source: IpAddress | None = None
        self.links: dict[MacAddress, str] = {}
        self.problems: list[RoutingDifference] = []
        self.fail: list[IpamError] = []
        self.asked: list[RoutedPacket] = []

    def inside(self, netns: str, packet: RoutedPacket) -> RouteAnswer:
        """See the port."""
        if self.fail:
            raise self.fail.pop(0)
        return self.pod(packet) or NOWHERE

    def on_node(self, packet: RoutedPacket) -> RouteAnswer:
        """See the port; what was asked is in `asked`."""
        self.asked.append(packet)
        return self.node(packet) or NOWHERE

    def translation(self, packet: NewConnection, identity: InstanceIdentity) -> Translation:
        """See the port."""
        return translation_of(
            packet,
            self.config,
            vpc_cidrs=identity.vpc_cidrs,
            primary_address=identity.primary_address,
            extra_source=self.extra_source,
        )

    def eni_links(self, macs: Iterable[MacAddress]) -> Mapping[MacAddress, str]:
        """See the port."""
        return {mac: self.links[mac] for mac in macs if mac in self.links}

    def filters(self, addresses: Container[IpAddress]) -> list[RoutingDifference]:
        """See the port."""
        return self.problems
