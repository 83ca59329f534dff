"""A place that another hand's ENI takes is known from an answer that is not believed: what it shows is there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from ipamd.model.eni import InstanceLimits
from ipamd.model.ids import EniId, MacAddress
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.other_hands import settle
from tests.stories.stale_reads import run_sandboxes


def test_no_second_eni_is_made_for_a_taken_place(tmp_path: Path) -> None:
    """Chaos seed 803: a hand had attached an ENI as device 3, and EC2's answers were not believed, because they lacked every address
    of running sandboxes. Each try made an ENI for device 3, which EC2 refused to attach there: 120 calls in a minute (I13)."""
    node = FakeNode(tmp_path, ec2=FakeEc2(limits=InstanceLimits("m5.large", 4, 10)))
    node.bring_up()
    run_sandboxes(node, "a", "b")
    settle(node)
    primary = node.ec2.enis[PRIMARY]
    other = EniId("eni-other")
    node.ec2.enis[other] = replace(
        primary,
        eni_id=other,
        mac=MacAddress("02:00:00:00:00:77"),
        device_index=3,
        secondary_addresses=frozenset(),
        prefixes=frozenset(),
    )
    node.ec2.enis[PRIMARY] = replace(primary, secondary_addresses=frozenset())
    outcome = node.enis.sync_with_ec2(IDENTITY)
    assert "lacks 2 of 2 addresses" in outcome.implausible
    assert (0, 3) in node.provisioner.occupied()
    snapshot = node.pool.snapshot()
    assert snapshot is not None
    assert 3 in snapshot.unmanaged_device_indexes
    assert node.datastore.eni(other) is None, "nothing is recorded from such an answer"
    node.datastore.close()
