"""A node with security groups for pods, its trunk and branch ENIs, and sandboxes that are led to them, without their ADDs."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import IPv4Address
from pathlib import Path

from ipamd.model.attachment import Attachment
from ipamd.model.cloud import DescribedEni
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.cniresult import recorded_spec
from ipamd.model.eni_tags import INSTANCE_TAG
from ipamd.model.family import read_address
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.legs.branch_evidence import TRUNK_TAG, VLAN_TAG
from ipamd.settings import NetworkConfig
from tests.fakes.cloud import INSTANCE, SUBNET
from tests.fakes.kernel import TRUNK
from tests.fakes.node import FakeNode

TRUNK_ENI = DescribedEni(
    EniId("eni-0000000000000000f"),
    TRUNK,
    SUBNET,
    IPv4Address("10.0.0.200"),
    status="in-use",
    interface_type="trunk",
    description="trunk-eni",
    tags={INSTANCE_TAG: INSTANCE},
    attachment_id="attach-trunk",
    attachment_status="attached",
    instance_id=INSTANCE,
    device_index=2,
)


def branch_eni(vlan: int, **changes: object) -> DescribedEni:
    """The branch ENI of a VLAN as the controller made it."""
    made = DescribedEni(
        EniId(f"eni-0000000000000{vlan:04x}"),
        MacAddress(f"02:00:00:00:01:{vlan:02x}"),
        SUBNET,
        IPv4Address(f"10.0.4.{vlan}"),
        status="in-use",
        interface_type="branch",
        tags={VLAN_TAG: str(vlan), TRUNK_TAG: TRUNK_ENI.eni_id},
    )
    return replace(made, **changes)  # type: ignore[arg-type]


def node_with_trunk(path: Path) -> FakeNode:
    """A node that serves, with its trunk attached."""
    made = FakeNode(path, network=NetworkConfig(pod_eni=True))
    made.ec2.enis[TRUNK_ENI.eni_id] = TRUNK_ENI
    made.bring_up()
    return made


def attach(node: FakeNode, vlan: int, *, is_strict: bool = True) -> Attachment:
    """A sandbox that is wired to its branch ENI and recorded, as its annotation says."""
    eni, key = branch_eni(vlan), node.key(f"sandbox-{vlan}")
    branch = Branch(vlan, eni.mac, read_address("10.0.0.1"), is_strict)
    netns = node.wiring.make_netns(f"/run/netns/{key.container_id}")
    attachment = Attachment(
        key,
        read_address(str(eni.primary_address)),
        eni.eni_id,
        branch.route_table,
        f"vlan{vlan:011x}",
        netns,
        NetnsIdentity(4, 1),
        "fingerprint",
        b"{}",
        datetime(2026, 1, 1, tzinfo=UTC),
        pod_namespace="default",
        pod_name=f"pod-{vlan}",
        uplink=branch,
    )
    node.wiring.wire(replace(recorded_spec(attachment), trunk_mac=TRUNK))
    with node.datastore.transaction() as uow:
        uow.confirm(attachment)
    return attachment
