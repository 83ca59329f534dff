"""Changes by others to our ENIs while the real daemon runs: an ENI detached at EC2, a link taken away and given back."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lab.vpc.model import Eni
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

TWO_LOOKS_S = 90.0
"""Bound on waiting for what needs two looks at EC2, half a minute apart."""


def with_two_enis(made: Rig) -> Eni:
    """Sandboxes until there is a second ENI that nobody uses; returns it."""
    assert made.add("a").ok
    wait_until(lambda: made.pool()["free_count"] == 17, what="a second ENI", timeout_s=PATIENCE_S)
    return next(eni for eni in made.lab.vpc.enis_of(made.node.instance_id) if eni.attachment and eni.attachment.device_index)


def calls(made: Rig) -> Callable[[], int]:
    """Counts Describe calls from now on."""
    before = made.lab.vpc.call_counts()["DescribeNetworkInterfaces"]
    return lambda: made.lab.vpc.call_counts()["DescribeNetworkInterfaces"] - before


def says(made: Rig, *words: str) -> bool:
    """Whether one of the conditions in the status has all the words."""
    status = made.status()
    return status is not None and any(all(word in lack for word in words) for lack in status["degraded"])


@pytest.mark.slow
def test_an_eni_detached_by_hand_gives_nothing_and_is_replaced() -> None:
    """I7: its link goes, and from then on no sandbox gets its addresses; EC2 is looked at twice, then the pool has regrown."""
    with rig() as made:
        gone, vpc = with_two_enis(made), made.lab.vpc
        looks = calls(made)
        assert gone.attachment is not None
        vpc.interfaces.detach(gone.attachment.attachment_id)
        wait_until(lambda: says(made, gone.eni_id, "external changes"), what="the status names the ENI")
        given = [made.add(f"after-{number}") for number in range(8)]
        assert not {reply.address for reply in given} & set(gone.secondary_addresses), "I7: addresses of a detached ENI"
        wait_until(lambda: looks() >= 1, what="EC2 is looked at")
        vpc.interfaces.delete(gone.eni_id)
        wait_until(lambda: not says(made, gone.eni_id), what="the ENI is forgotten", timeout_s=TWO_LOOKS_S)
        wait_until(lambda: made.pool()["free_count"] >= 9, what="the pool has regrown", timeout_s=PATIENCE_S)
        assert made.add("on-the-new-one").address not in gone.secondary_addresses
        assert looks() <= 4, "two looks, and one for each new ENI"
        made.assert_sound(expected=10)


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_link_that_is_taken_away_and_given_back(is_restarted: bool) -> None:
    """The ENI stays attached at EC2: frozen while its link is in another namespace, and in use again when it is back.

    The same if the daemon dies meanwhile.
    """
    with rig() as made:
        eni = with_two_enis(made)
        looks = calls(made)
        name = made.node.run(["sh", "-c", f"ip -o link | grep {eni.mac}"]).stdout.split()[1].split("@")[0].rstrip(":")
        made.node.make_netns("away")
        made.node.run(["ip", "link", "set", name, "netns", "away"])
        wait_until(lambda: says(made, eni.eni_id, "external changes"), what="the status names the ENI")
        if is_restarted:
            made.restart()
            assert says(made, eni.eni_id, "external changes"), "a restart changes nothing"
        given = [made.add(f"meanwhile-{number}") for number in range(8)]
        assert not {reply.address for reply in given} & set(eni.secondary_addresses)
        made.node.run(["ip", "-n", "away", "link", "set", name, "netns", "1"])
        wait_until(lambda: not says(made, eni.eni_id), what="the ENI is in use again")
        looked = looks()  # before the next ADD, for which the pool makes an ENI
        assert made.add("afterwards").address in eni.secondary_addresses
        assert looked <= 3 + is_restarted, "one when it went, one when it came back, one at a start"
        made.node.remove_netns("away")
        made.assert_sound(expected=10)
