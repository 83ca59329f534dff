"""Instance metadata shows another hand's change first, and EC2's first Describe is from before it: EC2 is asked again soon."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from ipamd.model.address import AddressState
from ipamd.model.cloud import DescribedEni
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.metadata_evidence import ASK_AGAIN_S, ASK_PAUSES_S
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.external_changes import described, pass_time, settle
from tests.unit.service.external_changes import SECOND, settled_node

SOON_S = 300.0
"""A turn of metadata, two questions to EC2, and the second look at what it does not show."""

FOREIGN = EniId("eni-hand")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and two sandboxes, long after its start."""
    with settled_node(tmp_path) as made:
        yield made


@pytest.fixture
def prefix_node(tmp_path: Path) -> Iterator[FakeNode]:
    """The same with /28s."""
    made = FakeNode(tmp_path, settings=PoolSettings(prefix_delegation=True, warm_prefix_target=2))
    made.bring_up()
    settle(made)
    yield made
    made.datastore.close()


def lag(node: FakeNode, change: Callable[[], None]) -> None:
    """Another hand changes something; EC2's next answer is from before it."""
    before: tuple[DescribedEni, ...] = tuple(sorted(node.ec2.attached(), key=lambda eni: eni.device_index))
    change()
    node.ec2.answers = [before]


def seconds_until(node: FakeNode, is_done: Callable[[], bool]) -> float:
    """How long it takes until something is so, at most an hour."""
    began_s = node.clock.monotonic()
    while not is_done():
        assert node.clock.monotonic() - began_s < ASK_AGAIN_S, node.health.conditions()
        pass_time(node, 10.0)
    return node.clock.monotonic() - began_s


def is_out_of_use(node: FakeNode, address: IPv4Address) -> bool:
    """Whether nobody can be given an address."""
    row = node.datastore.address(address)
    return row is None or row.is_lost or address in node.datastore.withheld()


def test_an_address_that_was_taken_is_out_of_use_soon(node: FakeNode) -> None:
    """One stale answer put the question off for an hour, and the address could be given all the time (I7)."""
    gone = max(row.address for row in node.datastore.addresses(state=AddressState.FREE) if row.eni_id == PRIMARY)
    eni = node.ec2.enis[PRIMARY]

    def take() -> None:
        node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses - {gone})

    before = described(node)
    lag(node, take)
    assert seconds_until(node, lambda: is_out_of_use(node, gone)) < SOON_S
    assert described(node) - before <= 3


def test_a_prefix_that_was_taken_is_out_of_use_soon(prefix_node: FakeNode) -> None:
    """The same for all addresses of a /28."""
    node = prefix_node
    gone = max(node.ec2.enis[PRIMARY].prefixes, key=lambda prefix: int(prefix.network_address))
    assert isinstance(gone, IPv4Network)
    eni = node.ec2.enis[PRIMARY]

    def take() -> None:
        node.ec2.enis[PRIMARY] = replace(eni, prefixes=eni.prefixes - {gone})

    lag(node, take)
    assert seconds_until(node, lambda: all(is_out_of_use(node, address) for address in gone)) < SOON_S


def test_an_address_that_was_added_is_recorded_soon(node: FakeNode) -> None:
    """The other direction: an hour without an address that was ours."""
    eni = node.ec2.enis[SECOND]
    fresh = IPv4Address("10.0.15.77")

    def add() -> None:
        node.ec2.enis[SECOND] = replace(eni, secondary_addresses=eni.secondary_addresses | {fresh})

    lag(node, add)
    assert seconds_until(node, lambda: node.datastore.address(fresh) is not None) < SOON_S


def test_an_eni_that_was_attached_is_noticed_soon(node: FakeNode) -> None:
    """Without a link event, as of an ENI whose driver is slow."""
    made = replace(
        node.ec2.enis[SECOND],
        eni_id=FOREIGN,
        mac=MacAddress("02:00:00:00:00:99"),
        device_index=2,
        primary_address=IPv4Address("10.0.15.99"),
        secondary_addresses=frozenset(),
        prefixes=frozenset(),
    )
    lag(node, lambda: node.ec2.enis.update({FOREIGN: made}))
    assert seconds_until(node, lambda: node.datastore.eni(FOREIGN) is not None) < SOON_S


def test_what_metadata_does_not_show_is_given_last(node: FakeNode) -> None:
    """A hint may add a reason not to give, and must not starve a pod: without another address it is given (I7, I12)."""
    eni_id = node.datastore.attachments()[-1].eni_id  # the densest gives first
    free = [row.address for row in node.datastore.addresses(state=AddressState.FREE)]
    hidden = {row.address for row in node.datastore.addresses(state=AddressState.FREE) if row.eni_id == eni_id}
    assert hidden
    node.metadata.freeze()
    assert node.metadata.frozen is not None
    for mac, shown in node.metadata.frozen.items():
        node.metadata.frozen[mac] = replace(shown, addresses=shown.addresses - hidden)
    for _ in range(4):
        pass_time(node, 75.0)
    assert not hidden & node.datastore.withheld(), "EC2 shows them"
    given = [node.add(f"last-{number}").address for number in range(len(free))]
    assert set(given) == set(free), "all are given in the end"
    assert set(given[: len(free) - len(hidden)]) == set(free) - hidden
    assert set(given[-len(hidden) :]) == hidden


def test_a_difference_that_comes_and_goes_costs_no_more_than_one_that_lasts(node: FakeNode) -> None:
    """Metadata that flaps for a day: the pauses grow as for a difference that stays (I13, I18)."""
    whole = dict(node.metadata.shown())
    hidden = max(node.ec2.enis[SECOND].secondary_addresses)
    before = described(node)
    for number in range(1440):
        node.metadata.frozen = dict(whole)
        if number // 4 % 2:
            for mac, shown in whole.items():
                node.metadata.frozen[mac] = replace(shown, addresses=shown.addresses - {hidden})
        pass_time(node, 60.0)
    assert described(node) - before <= 24 + len(ASK_PAUSES_S)
