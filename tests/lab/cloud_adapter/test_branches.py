"""A trunk and its branch ENIs as the daemon's adapter gets them from EC2: what is compared is there, and nothing of it is ours."""

from __future__ import annotations

from ipamd.model.eni_tags import INSTANCE_TAG, TRUNK, is_managed
from ipamd.model.family import read_address
from ipamd.model.ids import EniId, MacAddress
from ipamd.model.legs.branch_eni import BranchEni
from ipamd.model.legs.branch_evidence import TRUNK_TAG, VLAN_TAG, contradiction
from tests.lab.cloud_adapter.conftest import Bench


def test_the_trunk_is_described_with_its_type(bench: Bench) -> None:
    """Attached at the highest index of card 0, with our ENIs' tag, and not for sandboxes."""
    made = bench.vpc.trunks.create_trunk(bench.instance_id, description="trunk-eni", tags={INSTANCE_TAG: bench.instance_id})
    assert made is not None
    bench.ec2.describe_attached_eni(EniId(made.eni_id))
    (shown,) = (eni for eni in bench.ec2.describe_enis(bench.instance_id) if eni.interface_type == TRUNK)
    assert (shown.eni_id, shown.mac, shown.attachment_status) == (made.eni_id, made.mac, "attached")
    assert shown.tags[INSTANCE_TAG] == bench.instance_id
    assert not is_managed(shown, is_primary=False, instance_id=bench.instance_id)


def test_a_branch_is_described_as_its_annotation_says(bench: Bench) -> None:
    """MAC, address and both tags, in one call for all that are asked for; a wrong VLAN ID or address is told."""
    trunk = bench.vpc.trunks.create_trunk(bench.instance_id, description="trunk-eni", tags={})
    assert trunk is not None
    known = []
    for vlan in (1, 2):
        tags = {VLAN_TAG: str(vlan), TRUNK_TAG: trunk.eni_id}
        made = bench.vpc.trunks.create_branch(trunk.eni_id, groups=trunk.security_groups, description="branch-eni", tags=tags)
        bench.vpc.trunks.associate(trunk.eni_id, made.eni_id, vlan)
        address = read_address(str(made.primary_address))
        known.append(BranchEni(EniId(made.eni_id), MacAddress(made.mac), address, vlan, read_address("10.0.0.1")))
    before = bench.vpc.call_counts().get("DescribeNetworkInterfaces", 0)
    shown = {eni.eni_id: eni for eni in bench.ec2.find_enis([one.eni_id for one in known] + [EniId("eni-0123456789abcdef0")])}
    assert bench.vpc.call_counts()["DescribeNetworkInterfaces"] == before + 1
    assert len(shown) == 2
    assert [contradiction(one, shown[one.eni_id], trunk=EniId(trunk.eni_id)) for one in known] == ["", ""]
    first, second = known
    said = contradiction(first, shown[second.eni_id], trunk=EniId("eni-0000000000000beef"))
    assert all(word in said for word in ("MAC", "address", VLAN_TAG, TRUNK_TAG))
    bench.vpc.trunks.disassociate(bench.vpc.trunks.branches_of(trunk.eni_id)[0].association.association_id)  # type: ignore[union-attr]
    bench.vpc.trunks.delete(first.eni_id)
    assert [eni.eni_id for eni in bench.ec2.find_enis([first.eni_id])] == []
