"""What EC2's refusal of an Attach means: our own attachment, whose answer was lost, or that the ENI cannot be there."""

from __future__ import annotations

import pytest

from ipamd.model.errors import CloudError, DeviceIndexTakenError
from tests.errors import refused_by_ec2
from tests.lab.cloud_adapter.conftest import Bench


@pytest.mark.parametrize("check", ["eni-first", "place-first"])
def test_a_lost_attach_answer_is_found_again(bench: Bench, check: str) -> None:
    """When the answer of Attach is lost, the retry hears that the ENI is in use, or its place taken, and returns the attachment
    that is there (I9)."""
    bench.vpc.faults.apply({"rules": {"attach_check": check}})
    made = bench.ec2.create_eni(bench.request(addresses=1))
    bench.fault("AttachNetworkInterface", lost_answers={"count": 1})
    attachment_id = bench.ec2.attach_eni(made.eni_id, instance_id=bench.instance_id, device_index=1, network_card=0)
    found = bench.vpc.eni(made.eni_id).attachment
    assert found is not None
    assert found.attachment_id == attachment_id


def test_our_own_attachment_does_not_teach_a_lower_cap(bench: Bench) -> None:
    """If the first try took the instance's last place, the refusal of the second is no limit: the attachment is found (I9)."""
    made = bench.ec2.create_eni(bench.request(addresses=1))
    there = bench.vpc.interfaces.attach(made.eni_id, bench.instance_id, device_index=2, network_card=0)
    bench.fault("AttachNetworkInterface", error={"code": "AttachmentLimitExceeded"})
    found = bench.ec2.attach_eni(made.eni_id, instance_id=bench.instance_id, device_index=2, network_card=0)
    assert found == there.attachment_id


def test_a_taken_place_costs_one_call(bench: Bench) -> None:
    """An Attach that was answered at once is no attachment of ours: nothing is described (I13). If it is one, no second is made."""
    bench.vpc.faults.apply({"rules": {"attach_check": "place-first"}})
    eni_id = bench.attached(device_index=1)
    before = bench.vpc.call_counts().get("DescribeNetworkInterfaces", 0)
    with pytest.raises(DeviceIndexTakenError):
        bench.ec2.attach_eni(eni_id, instance_id=bench.instance_id, device_index=1, network_card=0)
    assert bench.vpc.call_counts().get("DescribeNetworkInterfaces", 0) == before
    with pytest.raises(CloudError, check=refused_by_ec2("InvalidNetworkInterface.InUse")):
        bench.ec2.attach_eni(eni_id, instance_id=bench.instance_id, device_index=2, network_card=0)


def test_an_attach_elsewhere_is_an_error(bench: Bench) -> None:
    """A device index that another ENI has, and an ENI that is attached at another index, are errors, not our attachment."""
    bench.attached(device_index=1)
    made = bench.ec2.create_eni(bench.request(token="second", addresses=1))
    with pytest.raises(CloudError, check=refused_by_ec2("InvalidParameterValue")):
        bench.ec2.attach_eni(made.eni_id, instance_id=bench.instance_id, device_index=1, network_card=0)
    bench.ec2.attach_eni(made.eni_id, instance_id=bench.instance_id, device_index=2, network_card=0)
    with pytest.raises(CloudError, check=refused_by_ec2("InvalidNetworkInterface.InUse")):
        bench.ec2.attach_eni(made.eni_id, instance_id=bench.instance_id, device_index=3, network_card=0)
