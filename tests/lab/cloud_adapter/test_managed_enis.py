"""ENIs that AWS services manage: EC2 hides them from a list that does not ask for them; an older endpoint does not know them."""

from __future__ import annotations

import pytest

from ipamd.cloud.ec2 import INCLUDE_MANAGED, INCLUDE_MANAGED_AGAIN_S
from ipamd.model.errors import CloudError
from ipamd.model.ids import EniId
from tests.errors import refused_by_ec2
from tests.lab.cloud_adapter.conftest import Bench

OLDER = {"rules": {"managed_resources": "unknown-parameter"}}
LISTS = "DescribeNetworkInterfaces"


def sent(bench: Bench) -> list[bool]:
    """Of each list of ENIs since the last look, whether it asked for managed ones."""
    calls = [call for call in bench.vpc.calls() if call.api == LISTS]
    bench.vpc.clear_calls()
    return [INCLUDE_MANAGED in call.params for call in calls]


def test_a_list_shows_what_ec2_hides_by_default(bench: Bench) -> None:
    """The ENI takes its place on the instance, so the pool must see it."""
    eni_id = bench.attached()
    bench.vpc.hands.manage(eni_id, "eks.amazonaws.com")
    assert [eni.operator for eni in bench.ec2.describe_enis(bench.instance_id)] == ["", "eks.amazonaws.com"]


def test_an_older_endpoint_is_asked_without_the_parameter(bench: Bench) -> None:
    """Once it has refused the parameter no list sends it, until an hour is over; then it is tried again."""
    eni_id = bench.attached()
    bench.vpc.faults.apply(OLDER)
    bench.vpc.clear_calls()
    for _ in range(2):
        assert len(bench.ec2.describe_enis(bench.instance_id)) == 2
    assert [eni.eni_id for eni in bench.ec2.find_enis([eni_id, EniId("eni-0123456789abcdef0")])] == [eni_id]
    assert sent(bench) == [True, False, False, False]
    bench.clock.sleep(INCLUDE_MANAGED_AGAIN_S)
    bench.vpc.faults.clear()
    bench.vpc.hands.manage(eni_id, "eks.amazonaws.com")
    assert len(bench.ec2.describe_enis(bench.instance_id)) == 2
    assert sent(bench) == [True]


def test_another_unknown_parameter_is_an_error_and_is_not_remembered(bench: Bench) -> None:
    """What is refused with and without the parameter was not refused for it."""
    bench.fault(LISTS, error={"code": "UnknownParameter", "count": 2})
    with pytest.raises(CloudError, check=refused_by_ec2("UnknownParameter")):
        bench.ec2.describe_enis(bench.instance_id)
    assert sent(bench) == [True, False]
    assert len(bench.ec2.describe_enis(bench.instance_id)) == 1
    assert sent(bench) == [True]


def test_every_page_of_a_list_is_asked_for_alike(bench: Bench) -> None:
    """A list of several pages from an older endpoint is whole."""
    for index in (1, 2):
        bench.attached(device_index=index, addresses=1)
    bench.vpc.faults.apply({**OLDER, "large_account": {"page_size": 1, "sparse": True}})
    assert len(bench.ec2.describe_enis(bench.instance_id)) == 3
    assert sent(bench)[-3:] == [False] * 3
