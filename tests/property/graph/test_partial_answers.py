"""The EC2 of the randomised graph answers in part, and never so that a right daemon had to believe it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from ipamd.model.eni import InstanceLimits
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import EniId
from tests.fakes.cloud import INSTANCE, PRIMARY
from tests.property.graph.ec2 import RoughEc2, Weather
from tests.property.graph.world import World, installed

OTHER = EniId("eni-foreign-1")
ANSWER_COUNT = 200


def answers(world: World, ec2: RoughEc2, family: Family, *, survives: bool) -> list[bool]:
    """Which of many answers lack the other ENI, in IPv6 a part of the primary one. `survives`: the process that asks, every other
    answer too.
    """
    lacking: list[bool] = []

    def ask() -> None:
        told = {eni.eni_id: eni for eni in ec2.describe_enis(INSTANCE)}
        lacking.append(not told[PRIMARY].prefixes if family is IPV6 else OTHER not in told)

    for number in range(ANSWER_COUNT):
        world.spawn(ask)
        world.run(world.monotonic() + 2.0)
        if not survives and number % 2:
            world.kill()
        world.run(world.monotonic() + 40.0)
    return lacking


def rough(world: World, family: Family) -> RoughEc2:
    """An EC2 that answers in part whenever it may, and a node with something to leave out."""
    made = RoughEc2(world, limits=InstanceLimits("of a test", 3, 10), seed=1, family=family)
    made.attach_foreign()
    made.add_addresses(PRIMARY, 1)
    made.weather = Weather(partial=1.0)
    return made


@pytest.mark.parametrize("family", [IPV4, IPV6], ids=str)
def test_what_one_answer_lacks_the_next_one_has(family: Family) -> None:
    """Twice in a row would be proof. Every other answer lacks it: as often as that allows."""
    world = World(1)
    with installed(world):
        lacking = answers(world, rough(world, family), family, survives=True)
    assert lacking == [True, False] * (ANSWER_COUNT // 2)


@pytest.mark.parametrize("family", [IPV4, IPV6], ids=str)
def test_an_answer_over_which_the_process_dies_does_not_count(family: Family) -> None:
    """Whoever dies over the answer that shows the ENI has seen it only in the answers before and after: it is shown again."""
    world = World(1)
    with installed(world):
        lacking = answers(world, rough(world, family), family, survives=False)
    taken_in = [lacks for number, lacks in enumerate(lacking) if not number % 2]
    assert not any(first and second for first, second in pairwise(taken_in))
    assert any(taken_in)
