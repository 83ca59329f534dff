"""What every `ConnectionTracking` promises: the fake of the service tests, and the kernel's table in a real namespace."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import permutations

import pytest

from ipamd.kernel.conntrack import KernelConnectionTracking
from ipamd.model.family import Family, IpAddress
from ipamd.ports.process import ConnectionTracking
from tests.fakes.connections import Connection, FakeConnectionTracking
from tests.netns import tracking
from tests.netns.conftest import EACH_FAMILY, FIRST, World

pytestmark = EACH_FAMILY


@dataclass(frozen=True)
class Table:
    """One table of connections, whichever. `add` has connections tracked, `present` returns what is."""

    connections: ConnectionTracking
    add: Callable[[list[Connection]], None]
    present: Callable[[], set[Connection]]
    family: Family

    def address(self, number: int) -> IpAddress:
        """One of many."""
        return FIRST[self.family] + number


@pytest.fixture(params=["fake", pytest.param("netlink", marks=pytest.mark.privileged)])
def table(request: pytest.FixtureRequest, family: Family) -> Iterator[Table]:
    """Both implementations."""
    if request.param == "fake":
        fake = FakeConnectionTracking()
        yield Table(fake, fake.entries.update, lambda: set(fake.entries), family)
        return
    world = World(family)

    def add(wanted: list[Connection]) -> None:
        tracking.track(world.host, [tracking.entry(*one, port=1000 + number) for number, one in enumerate(wanted)])

    def present() -> set[Connection]:
        return {Connection(*one) for one in tracking.tracked(world.host)}

    yield Table(world.host.call(lambda: KernelConnectionTracking(world.netns)), add, present, family)
    world.close()


def test_every_entry_that_names_an_address_goes_and_no_other(table: Table) -> None:
    """In whichever of the four places it is; of several addresses at once; a repetition finds nothing."""
    gone, other, *more = (table.address(number) for number in range(5, 10))
    stale = [Connection(*places) for places in dict.fromkeys(permutations([gone, *more]))]
    kept = [Connection(*places) for places in dict.fromkeys(permutations([other, *more]))]
    table.add([*stale, *kept])
    assert table.present() == {*stale, *kept}
    assert table.connections.remove([gone]) == len(stale)
    assert table.present() == set(kept)
    assert table.connections.remove([gone, table.address(77)]) == 0
    assert table.connections.remove([other, gone]) == len(kept)
    assert table.present() == set()


def test_without_connections_or_addresses_nothing_is_to_be_done(table: Table) -> None:
    """An empty table, and no address."""
    assert table.connections.remove([table.address(5)]) == 0
    entry = Connection(*(table.address(number) for number in range(5, 9)))
    table.add([entry])
    assert table.connections.remove([]) == 0
    assert table.present() == {entry}
