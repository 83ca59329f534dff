"""The state itself, without HTTP: it stays coherent under any sequence of operations and from many threads."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv4Address
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lab.vpc.addresses import AddressRequest
from lab.vpc.errors import Ec2Error
from lab.vpc.interfaces import Delays
from lab.vpc.model import AddressesChanged, EniAttached, EniDetached, VpcEvent
from lab.vpc.space import AddressChoice
from lab.vpc.state import Vpc

STEPS = (
    "create", "attach", "detach", "delete", "assign", "prefix", "named", "steal", "unassign", "unprefix", "advance",
    "hold", "restore", "terminate",
)  # fmt: skip


class Game:
    """A VPC with two nodes and two small subnets, moved by numbered steps; refusals are fine, incoherence is not."""

    def __init__(self, seed: int) -> None:
        self.now = 0.0
        choice = list(AddressChoice)[seed % 3]
        self.vpc = Vpc(clock=lambda: self.now, delays=Delays(2, 3), seed=seed, choice=choice)
        self.subnets = [self.vpc.add_subnet(cidr).subnet_id for cidr in ("10.0.0.0/26", "10.0.1.0/25")]
        types = ("t3.small", "c6in.32xlarge")
        self.nodes = [
            self.vpc.add_instance(name=kind, instance_type=kind, subnet_id=subnet).instance_id
            for kind, subnet in zip(types, self.subnets, strict=True)
        ]

    def play(self, step: str, a: int, b: int) -> None:
        """Play one step; `a` picks the ENI, `b` the rest."""
        enis = self.vpc.enis()
        eni = enis[a % len(enis)] if enis else None
        calls = self.vpc.interfaces
        subnet = self.subnets[b % 2]
        if step == "create":
            calls.create(subnet, AddressRequest(prefix_count=b % 3) if a % 2 else AddressRequest(address_count=b), groups=())
        elif step == "advance":
            self.now += b
        elif step == "hold":
            (self.vpc.fragment_subnet if a % 2 else self.vpc.exhaust_subnet)(subnet)
        elif step == "restore":
            self.vpc.restore_subnet(subnet)
        elif eni is not None:
            if step == "attach":
                calls.attach(eni.eni_id, self.nodes[b % 2], device_index=b % 5, network_card=b // 5 % 2)
            elif step == "detach" and eni.attachment:
                calls.detach(eni.attachment.attachment_id, force=b % 4 == 0)
            elif step == "delete":
                calls.delete(eni.eni_id)
            elif step == "assign":
                calls.assign(eni.eni_id, AddressRequest(address_count=b))
            elif step == "prefix":
                calls.assign(eni.eni_id, AddressRequest(prefix_count=b % 3))
            elif step in ("named", "steal"):
                want = AddressRequest(addresses=tuple(eni.subnet_cidr[b + n] for n in range(3)))
                calls.assign(eni.eni_id, want, allow_reassignment=step == "steal")
            elif step == "unassign":
                calls.unassign(eni.eni_id, addresses=eni.addresses[b % 4 : b % 4 + 2], prefixes=())
            elif step == "unprefix":
                calls.unassign(eni.eni_id, addresses=(), prefixes=eni.prefixes[:1])
            elif step == "terminate" and b == 0:
                self.vpc.terminate_instance(self.nodes[a % 2])

    def check(self) -> None:
        """Compare everything that is kept twice."""
        owners = Counter(address for eni in self.vpc.enis() for address in eni.addresses)
        owners.update(address for eni in self.vpc.enis() for prefix in eni.prefixes for address in prefix)
        assert set(owners.values()) <= {1}
        for eni in self.vpc.enis():
            assert {self.vpc.owner_of(address) for address in eni.addresses} == {eni.eni_id}
            assert {self.vpc.owner_of(prefix[7]) for prefix in eni.prefixes} <= {eni.eni_id}
            assert eni.primary_address not in eni.secondary_addresses
        for subnet in self.vpc.subnets():
            free = [address for address in subnet.cidr if self.vpc.owner_of(address) is None]
            assert len(free) - 5 - subnet.held_count == self.vpc.world.free_count(subnet)
        for node in self.nodes:
            bonds = [eni.attachment for eni in self.vpc.world.attached_to(node)]
            places = [(bond.network_card, bond.device_index) for bond in bonds if bond is not None]
            assert len(set(places)) == len(places)


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 99),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 14)), min_size=10, max_size=40),
)
def test_any_sequence_keeps_the_state_coherent(seed: int, steps: list[tuple[str, int, int]]) -> None:
    """After any steps each address has one owner, both indexes agree, and the free counts are right."""
    game = Game(seed)
    for step in steps:
        before = game.vpc.world
        try:
            game.play(*step)
        except Ec2Error:
            assert game.vpc.world is before  # a refusal changes nothing
        game.check()


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 99),
    steps=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 14)), min_size=10, max_size=40),
    late=st.integers(0, 40),
)
def test_events_rebuild_the_state(seed: int, steps: list[tuple[str, int, int]], late: int) -> None:
    """A listener that comes at any time can rebuild who is plugged in where, and with which addresses."""
    game = Game(seed)
    plugged: dict[str, str] = {}
    said: dict[str, AddressesChanged] = {}

    def listen(event: VpcEvent) -> None:
        if isinstance(event, EniAttached):
            assert event.eni.eni_id not in plugged
            plugged[event.eni.eni_id] = event.instance_name
        elif isinstance(event, EniDetached):
            assert plugged.pop(event.eni_id) == event.instance_name
        else:
            assert plugged.get(event.eni_id) == event.instance_name
            said[event.eni_id] = event

    with game.vpc as vpc:
        for number, step in enumerate(steps):
            if number == late:
                vpc.subscribe(listen)
            try:
                game.play(*step)
            except Ec2Error:
                continue
        if late >= len(steps):
            vpc.subscribe(listen)
        vpc.tick()
        vpc.drain()
        assert vpc.listener_errors == []
        world = vpc.world
        real = {eni.eni_id: node.name for eni in vpc.enis() if (node := world.plugged_into(eni)) is not None}
        assert plugged == real
        assert {key: (e.addresses, e.prefixes) for key, e in said.items() if e.addresses} == {
            eni.eni_id: (eni.addresses, eni.prefixes) for eni in vpc.enis()
        }


@pytest.fixture
def hasty_threads() -> Iterator[None]:
    """Make the interpreter switch threads as often as it can, so that a missing lock shows."""
    usual = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(usual)


@pytest.mark.usefixtures("hasty_threads")
def test_many_threads_on_one_subnet() -> None:
    """Eight threads that assign and unassign in one subnet never share an address and lose no update."""
    vpc = Vpc(choice=AddressChoice.LOWEST)
    subnet = vpc.add_subnet("10.0.0.0/23").subnet_id
    enis = [vpc.interfaces.create(subnet, AddressRequest(), groups=()).eni_id for _ in range(4)]

    def work(number: int) -> list[IPv4Address]:
        kept: list[IPv4Address] = []
        for _ in range(40):
            addresses, _ = vpc.interfaces.assign(enis[number % 4], AddressRequest(address_count=3))
            assert {vpc.owner_of(address) for address in addresses} == {enis[number % 4]}
            vpc.interfaces.unassign(enis[number % 4], addresses=addresses, prefixes=())
        kept.extend(vpc.interfaces.assign(enis[number % 4], AddressRequest(address_count=5))[0])
        return kept

    with ThreadPoolExecutor(8) as pool:
        kept = [address for part in pool.map(work, range(8)) for address in part]
    assert len(set(kept)) == 40
    held: Any = {address for eni in vpc.enis() for address in eni.secondary_addresses}
    assert held == set(kept)
