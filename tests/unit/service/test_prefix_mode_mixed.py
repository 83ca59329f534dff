"""A node whose mode, subnet and ENIs change under its pods, in any order: nobody loses an address, and EC2 is asked for what fits."""

from __future__ import annotations

import random
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.errors import PoolEmptyError
from ipamd.model.pool_settings import RELEASE_HOLD_S, PoolSettings
from tests.fakes.cloud import PRIMARY, FakeEc2
from tests.fakes.node import FakeNode

SETTINGS = (
    PoolSettings(),
    PoolSettings(warm_ip_target=3, minimum_ip_target=6),
    PoolSettings(warm_prefix_target=1, prefix_delegation=True),
    PoolSettings(warm_ip_target=5, prefix_delegation=True),
    PoolSettings(warm_prefix_target=2, max_pods=50, prefix_delegation=True),
)
OPERATIONS = (
    *["add"] * 9,
    *["delete"] * 6,
    *["wait"] * 3,
    "long wait",
    *["switch"] * 2,
    "prefixes",
    "other prefix",
    "other address",
)


class Life:
    """One node and what happens to it, by a seed. `pods`: what each was given."""

    def __init__(self, run_dir: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.node = FakeNode(run_dir, settings=self.rng.choice(SETTINGS), ec2=FakeEc2(pool_size=1500))
        self.pods: dict[str, IPv4Address] = {}
        self.made_count = 0
        self.node.bring_up()
        for _ in range(self.rng.choice((0, 20, 26))):
            self.add()
            self.node.clock.advance(6)
            self.node.pool.run_once()

    def step(self) -> None:
        """One thing happens, and the pool comes to rest."""
        operation = self.rng.choice(OPERATIONS)
        match operation:
            case "add":
                self.add()
            case "delete" if self.pods:
                name = self.rng.choice(sorted(self.pods))
                assert self.node.delete(name)
                del self.pods[name]
            case "wait":
                self.node.cool()
            case "long wait":
                self.node.cool()
                self.node.clock.advance(RELEASE_HOLD_S + 1)
            case "switch":
                self.node.crash()
                self.node.settings = self.rng.choice(SETTINGS)
                self.node.bring_up()
            case "prefixes":
                self.node.ec2.left_prefix_count = self.rng.choice((0, 1, 3, 50))
            case "other prefix" | "other address":
                self.other_hand(operation)
        for _ in range(4):
            self.node.pool.run_once()

    def add(self) -> None:
        """A pod comes; it may find the pool empty for now."""
        self.made_count += 1
        name = f"pod-{self.made_count}"
        try:
            self.pods[name] = self.node.add(name, deadline_s=0.1).address
        except PoolEmptyError:
            assert self.node.datastore.attachment(self.node.key(name)) is None

    def other_hand(self, operation: str) -> None:
        """Somebody assigns to the primary ENI, and the daemon sees it."""
        ec2 = self.node.ec2
        eni = ec2.enis[PRIMARY]
        if len(eni.secondary_addresses) + len(eni.prefixes) == ec2.limits.slots_per_eni or not ec2.left_prefix_count:
            return
        if operation == "other prefix":
            ec2.assign_prefixes(PRIMARY, count=1)
        else:
            ec2.assign_addresses(PRIMARY, count=1)
        self.node.look_twice()

    def check(self) -> None:
        """Pods have what they had, the slots that are counted are those at EC2, and nothing was asked for beyond them."""
        node = self.node
        assert {one.key.container_id: one.address for one in node.datastore.attachments()} == self.pods
        for one in node.datastore.stock().enis:
            eni = node.ec2.enis[one.eni.eni_id]
            assert one.used_slot_count == len(eni.secondary_addresses) + len(eni.prefixes)
            assert one.prefix_count == len(eni.prefixes)
            assert one.used_slot_count <= node.ec2.limits.slots_per_eni
        snapshot = node.pool.snapshot()
        assert snapshot is not None
        assert (snapshot.growth.slot_caps, snapshot.growth.eni_cap) == ({}, None)
        node.assert_sound()


@pytest.mark.parametrize("seed", range(3))
def test_nobody_loses_an_address_whatever_the_mode(tmp_path: Path, seed: int) -> None:
    """100 steps of a life; after each the node, its datastore and EC2 agree."""
    life = Life(tmp_path, seed)
    for _ in range(100):
        life.step()
        life.check()
    assert life.made_count > 20
