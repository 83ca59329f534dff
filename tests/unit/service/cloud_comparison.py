"""Nodes whose EC2 answers oddly, for the tests beside it."""

from __future__ import annotations

from ipaddress import IPv4Address

from ipamd.model.attachment import Attachment
from ipamd.model.cloud import DescribedEni
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.ids import EniId, MacAddress
from tests.fakes.cloud import INSTANCE, SUBNET
from tests.fakes.node import FakeNode
from tests.stories.stale_reads import give_the_threads_their_turn

OTHER = EniId("eni-2")


def fill(node: FakeNode, count: int) -> list[Attachment]:
    """Run sandboxes until `count` of them have an address; long after our own calls when it returns."""
    give_the_threads_their_turn(node)
    made = []
    for number in range(count):
        made.append(node.add(f"s{number}"))
        node.runtime.run(f"s{number}")
        node.pool.cycle()
    node.clock.advance(RECENT_S)
    return made


def foreign(eni_id: str, device_index: int, **changes: object) -> DescribedEni:
    """An attached ENI that nobody of ours created."""
    values: dict[str, object] = {
        "eni_id": EniId(eni_id),
        "mac": MacAddress("02:00:00:00:ff:01"),
        "subnet_id": SUBNET,
        "primary_address": IPv4Address("10.0.15.250"),
        "status": "in-use",
        "attachment_id": f"attach-{eni_id}",
        "attachment_status": "attached",
        "instance_id": INSTANCE,
        "device_index": device_index,
    }
    return DescribedEni(**(values | changes))  # type: ignore[arg-type]
