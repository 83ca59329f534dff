"""amazon-vpc-cni-k8s #3681 (2026; #3122 before it, and #2386): an ENI without IPv4 address stopped the daemon of the whole node.

Somebody attached an IPv6-only ENI, or an EFA-only one, beside those of the daemon. The daemon asked for its IPv4 addresses, took their
absence for an error, and gave up its start, again and again; no pod of the node got a network.

Here: an entry without IPv4 address is a valid entry, one that is malformed is reported, and neither fails the answer that it is part
of (`ipamd/cloud/answers.py: described_enis`). Such an ENI takes its place, which is not asked for, and is never touched. Bound: 0 s
(fake) after the first Describe, at a first start and at a restart.
"""

from __future__ import annotations

from typing import Any

import pytest

from ipamd.cloud import answers
from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import EniId, InstanceId
from tests.errors import failed
from tests.fakes.cloud import INSTANCE, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.mutations import Mutate
from tests.stories.stale_reads import recorded, run_sandboxes

SIBLINGS: list[dict[str, Any]] = [
    {
        "NetworkInterfaceId": f"eni-{kind}",
        "MacAddress": f"02:00:00:00:ff:0{number}",
        "SubnetId": "subnet-1",
        "InterfaceType": interface_type,
        "Status": "in-use",
        "Ipv6Addresses": [{"Ipv6Address": "2001:db8::1"}] if kind == "v6" else [],
        "Attachment": {
            "AttachmentId": f"attach-{kind}",
            "InstanceId": INSTANCE,
            "Status": "attached",
            "DeviceIndex": number,
            "NetworkCardIndex": 0,
        },
    }
    for number, (kind, interface_type) in enumerate([("v6", "interface"), ("efa", "efa-only")], start=1)
]


def play(node: FakeNode) -> None:
    """A restart of a node to which the siblings were attached, sandboxes before and after."""
    real = FakeEc2.describe_enis

    def describe_enis(instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        return (*real(node.ec2, instance_id), *answers.described_enis(SIBLINGS))

    node.ec2.describe_enis = describe_enis  # type: ignore[method-assign]
    given = run_sandboxes(node, "before")
    before = set(node.ec2.enis)
    node.crash()
    node.bring_up()
    assert node.enis.book.unrecorded_enis() == {EniId("eni-v6"): (0, 1), EniId("eni-efa"): (0, 2)}
    given |= run_sandboxes(node, *(f"s{number}" for number in range(8)))
    assert recorded(node) == given
    assert set(node.ec2.enis) == before, "an ENI was made for a place that is taken"
    assert {"eni-v6", "eni-efa"}.isdisjoint(eni.eni_id for eni in node.datastore.enis())
    node.assert_sound()


def test_siblings_without_ipv4_take_their_places_and_stop_nothing(node: FakeNode) -> None:
    """Start, sandboxes and growth go on beside an IPv6-only and an EFA-only ENI."""
    play(node)


def test_the_start_fails_if_every_eni_must_have_an_address(node: FakeNode, mutate: Mutate) -> None:
    """With the rule of amazon-vpc-cni-k8s in its place the same restart ends with the answer's error."""
    mutate("ipv4-required")
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_ANSWER_INCOMPLETE)):
        play(node)
