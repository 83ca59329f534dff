"""Answers that lag behind, and who holds what in the kernel: shared by the stories about stale data."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address

from ipamd.model.cloud import DescribedEni
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode


@contextmanager
def ec2_tells(ec2: FakeEc2, enis: Iterable[DescribedEni]) -> Iterator[None]:
    """While inside, a Describe of the whole instance answers with `enis`; everything else is as it is."""
    told = tuple(enis)
    ec2.describe_enis = lambda instance_id: told  # type: ignore[method-assign]
    try:
        yield
    finally:
        del ec2.describe_enis  # the class's own shows again


def give_the_threads_their_turn(node: FakeNode) -> None:
    """While an ADD waits for an address nobody sleeps: the clock goes on, what has cooled is freed, and the pool loop looks."""

    def wait(*, timeout_s: float, **_: object) -> None:
        node.clock.advance(timeout_s)
        node.cooldown.free_cooled()
        node.pool.cycle()

    node.demand.wait = wait  # type: ignore[method-assign]


def run_sandboxes(node: FakeNode, *names: str) -> dict[str, IPv4Address]:
    """ADD sandboxes that the runtime lists afterwards, the pool loop having its turn after each; name -> address."""
    given = {}
    give_the_threads_their_turn(node)
    for name in names:
        given[name] = node.add(name).address
        node.runtime.run(name)
        node.pool.cycle()
    return given


def recorded(node: FakeNode) -> dict[str, IPv4Address]:
    """Container ID -> address, as the datastore has it."""
    return {row.key.container_id: row.address for row in node.datastore.attachments()}


def assert_each_its_own(node: FakeNode) -> None:
    """I1 in the kernel: no two wired sandboxes carry one address, and each has its route."""
    wired = [(spec.address, name) for name, spec in node.wiring.wired.items()]
    assert len({address for address, _ in wired}) == len(wired), f"one address in two sandboxes: {sorted(wired)}"
    assert all(node.wiring.routes.get(address) == name for address, name in wired), "a sandbox lost its route"
