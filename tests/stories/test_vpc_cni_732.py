"""amazon-vpc-cni-k8s #732 and #391 (2019): an ENI was detached by other hands, and ipamd went on giving its addresses to pods.

In #391 a person detached and deleted an ENI in the console; the node scaled up again, every pod ran and got an address, and no packet
arrived. In #732 the ENI went away after a reboot; because some of its addresses were assigned it stayed in the pool, and new pods
got the others. The cure was to find the broken pods and to delete them by hand.

Here the kernel says within milliseconds that the ENI's link is gone, and from then on the ENI gives no address
(`ipamd/eni/links.py`). EC2 is looked at twice, half a minute apart, then the ENI's free addresses and its place are gone
and the pool has grown on another ENI. Sandboxes that are on it keep their addresses and are reported (I2). Bound: no address from
the notification on, 0 s; a new ENI after 31 s (fake).
"""

from __future__ import annotations

import pytest

from ipamd.model.ids import EniId
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.external_changes import detach_by_hand, link_event, pass_time
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import run_sandboxes

SECOND = EniId("eni-2")


def play(node: FakeNode) -> None:
    """Ten sandboxes on two ENIs; the second ENI is detached and deleted; four more sandboxes at once, four more a minute later."""
    run_sandboxes(node, *(f"s{number}" for number in range(10)))
    on_it = {one.key for one in node.datastore.attachments() if one.eni_id == SECOND}
    assert len(on_it) == 1
    node.delete("s0")
    node.cool()
    eni = detach_by_hand(node, SECOND)
    del node.ec2.enis[SECOND]
    link_event(node, eni.mac)
    given = node.add("at-once")
    assert given.address not in eni.secondary_addresses, "an address of an ENI that is gone was given"
    for _ in range(2):
        pass_time(node, 31.0)
    later = run_sandboxes(node, *(f"later-{number}" for number in range(4)))
    assert not set(later.values()) & eni.secondary_addresses, "an address of an ENI that is gone was given"
    kept = [one for one in node.datastore.attachments() if one.key in on_it]
    assert len(kept) == 1, "I2: a sandbox keeps its address until its DEL"
    row = node.datastore.address(kept[0].address)
    assert row is not None
    assert row.is_lost
    assert {one.eni_id for one in node.datastore.attachments()} > {PRIMARY, SECOND}


def test_an_eni_that_was_detached_gives_no_address(node: FakeNode) -> None:
    """Frozen at once, forgotten after two looks, replaced."""
    play(node)


def test_without_link_notifications_it_goes_on_giving(node: FakeNode, mutate: Mutate) -> None:
    """What #732 reports."""
    mutate("links-not-watched")
    with pytest.raises(AssertionError, match="an ENI that is gone was given"):
        play(node)
