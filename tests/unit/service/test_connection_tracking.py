"""New ENIs track connections for as long as the primary ENI does: idle flows of pods end there as they do on the node."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipamd.model.errors import CloudDeniedError, CloudError, IpamError
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode

TIMEOUTS = (("TcpEstablishedTimeout", 350), ("UdpTimeout", 40))


def _grow(node: FakeNode, timeouts: tuple[tuple[str, int], ...] = TIMEOUTS) -> list[tuple[tuple[str, int], ...]]:
    """Set the primary ENI's timeouts, and have another ENI made. Returns: the timeouts of ENIs made by it."""
    node.ec2.enis[PRIMARY] = replace(node.ec2.enis[PRIMARY], connection_tracking=timeouts)
    node.enis.sync_with_ec2(IDENTITY)
    before = set(node.ec2.enis)
    node.add("a")
    node.pool.cycle()
    return [eni.connection_tracking for eni_id, eni in node.ec2.enis.items() if eni_id not in before]


def _unknown() -> CloudError:
    error = CloudError("EC2 CreateNetworkInterface failed", code="UnknownParameter")
    error.may_have_happened = False
    return error


def _is_named(node: FakeNode) -> bool:
    return any("connection tracking" in sentence for sentence in node.health.conditions())


def test_a_new_eni_has_the_primary_enis_timeouts(node: FakeNode) -> None:
    """Those that are set, and no others."""
    assert _grow(node) == [TIMEOUTS]
    assert not _is_named(node)


@pytest.mark.parametrize("refusal", [_unknown(), CloudDeniedError("not allowed", code="UnauthorizedOperation")])
def test_a_refused_parameter_stops_no_creation(node: FakeNode, refusal: IpamError) -> None:
    """It is tried once without, which is named (I15); the line ends with the first ENI that has them."""
    node.ec2.fail["create_eni"] = [refusal]
    assert _grow(node) == [()]
    assert node.ec2.calls["create_eni"] == 2
    assert _is_named(node)
    for number in range(12):
        node.add(f"b{number}")
        node.pool.cycle()
    assert not _is_named(node)


def test_another_refusal_is_not_tried_without(node: FakeNode) -> None:
    """What says nothing about a parameter costs no second call; nor does a creation without timeouts."""
    node.ec2.fail["create_eni"] = [_unknown()]
    assert _grow(node, ()) == []
    node.clock.advance(120)
    node.ec2.fail["create_eni"] = [IpamError("ours")]
    calls = node.ec2.calls["create_eni"]
    assert _grow(node) == []
    assert node.ec2.calls["create_eni"] == calls + 1


def test_the_line_ends_with_the_enis_that_lack_them(node: FakeNode) -> None:
    """No ENI is made any more, and those without the timeouts are gone: nothing is amiss."""
    node.ec2.fail["create_eni"] = [_unknown()]
    assert _grow(node) == [()]
    assert _is_named(node)
    (eni_id,) = set(node.ec2.enis) - {PRIMARY}
    node.pool.cycle()
    assert _is_named(node)
    with node.datastore.transaction() as uow:
        uow.remove_addresses([row.address for row in node.datastore.addresses() if row.eni_id == eni_id], reason="released")
        uow.remove_eni(eni_id, reason="released")
    node.ec2.fail["create_eni"] = [IpamError("no other ENI is made meanwhile")]
    node.pool.cycle()
    assert not _is_named(node)
