"""What every `HostNetwork` promises of its read-only look: the fake of the service tests, and netlink in real namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from ipamd.model.cloud import InstanceIdentity
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import Eni
from ipamd.model.routing_difference import RoutingDifference
from ipamd.ports.kernel import HostNetwork
from tests.fakes.cloud import IDENTITY
from tests.fakes.host_network import FakeHostNetwork
from tests.netns.conftest import World


@dataclass(frozen=True)
class Host:
    """One host, whichever, with a secondary ENI plugged in; `unplug` takes that ENI's link away."""

    hostnet: HostNetwork
    identity: InstanceIdentity
    eni: Eni
    unplug: Callable[[], None]

    def differences(self) -> list[RoutingDifference]:
        """A look at everything."""
        return self.hostnet.differences(identity=self.identity, enis=[self.eni])


@pytest.fixture(params=["fake", pytest.param("netlink", marks=pytest.mark.privileged)])
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    """Both implementations, the node's own part set up."""
    if request.param == "fake":
        fake = FakeHostNetwork()
        yield Host(fake, IDENTITY, World.eni(), lambda: fake.unplugged.add(World.eni().mac))
        return
    world = World()
    world.fabric()
    world.hostnet.setup_node(world.identity())
    yield Host(world.hostnet, world.identity(), world.eni(), lambda: world.host.sh("ip link del eth1"))
    world.close()


def test_a_look_finds_what_is_not_set_up_and_does_not_set_it_up(host: Host) -> None:
    """An ENI without routing is named at every look, by its ID, as what a reconciliation repairs; a set-up ends that."""
    first = host.differences()
    assert {(found.subject, found.will_be_repaired) for found in first} == {(host.eni.eni_id, True)}
    assert host.differences() == first
    host.hostnet.setup_eni(host.eni)
    assert host.differences() == []


def test_a_link_that_is_gone_is_beyond_repair(host: Host) -> None:
    """The ENI is named with its MAC, and no reconciliation brings the link back."""
    host.hostnet.setup_eni(host.eni)
    host.unplug()
    (found,) = host.differences()
    assert (found.subject, found.will_be_repaired) == (host.eni.eni_id, False)
    assert (found.code, found.fields) == (DifferenceCode.ENI_LINK_MISSING, {"mac": str(host.eni.mac)})
    host.hostnet.reconcile(identity=host.identity, enis=[host.eni])
    assert host.differences() == [found]
