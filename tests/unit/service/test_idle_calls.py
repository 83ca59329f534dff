"""What an idle node that lacks something costs at EC2: at most six calls an hour in every state, and as few as sense allows (I13).

The figures are those of docs/performance.md. Nobody waits: an ADD asks sooner (test_refusals.py).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from ipamd.model.errors import (
    CloudDeniedError,
    CloudError,
    CloudQuotaError,
    EniLimitError,
    IpamError,
    ThrottledError,
)
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import SUBNET, FakeEc2
from tests.fakes.node import FakeNode

HOUR_S, DAY_S = 3600.0, 24 * 3600.0
PAGE = Path(__file__).parents[3] / "docs" / "performance.md"
ROW = re.compile(r"^\| ([^|]+) \| (\d+) \| (\d+) \| (\d+) \|$", re.M)
CALLS_MAX = 6
WARM = PoolSettings(warm_ip_target=12)
"""Three more than the primary ENI has."""

ODD = CloudError("odd", code="Odd")
ODD.may_have_happened = False
NO_SLOTS = EniLimitError("limit", code="PrivateIpAddressLimitExceeded")


def healthy(ec2: FakeEc2) -> PoolSettings:
    """Nothing is missing."""
    return PoolSettings()


def full_subnet(ec2: FakeEc2) -> PoolSettings:
    """No free address in the node's subnet."""
    ec2.left_count = 0
    return PoolSettings()


def full_subnets(ec2: FakeEc2) -> PoolSettings:
    """Neither there nor in three others that are tagged."""
    ec2.left_count = 9
    for number in range(3):
        ec2.add_subnet(f"subnet-{2 + number}", f"10.0.{32 + number}.0/24", free_count=0, role="1")
    return WARM


def no_prefix(ec2: FakeEc2) -> PoolSettings:
    """No /28 in the subnet."""
    ec2.left_prefix_count = 0
    return PoolSettings(warm_prefix_target=1, prefix_delegation=True)


def full_instance(ec2: FakeEc2) -> PoolSettings:
    """Volumes have the places of ENIs."""
    ec2.attached_count_max = 1
    return WARM


def excluded_subnet(ec2: FakeEc2) -> PoolSettings:
    """The node's subnet is excluded by tag, and no other is tagged."""
    ec2.add_subnet(str(SUBNET), "10.0.0.0/20", role="0")
    return PoolSettings()


def refusing(error: IpamError, *methods: str) -> Callable[[FakeEc2], PoolSettings]:
    """EC2 answers some calls with an error, always."""

    def make(ec2: FakeEc2) -> PoolSettings:
        for method in methods:
            ec2.fail[method] = [error] * 10_000
        return WARM

    return make


STATES: dict[str, Callable[[FakeEc2], PoolSettings]] = {
    "healthy": healthy,
    "no free address in the subnet": full_subnet,
    "none in four subnets": full_subnets,
    "no free /28": no_prefix,
    "the instance takes no further ENI": full_instance,
    "no ENI takes a further address": refusing(NO_SLOTS, "assign_addresses", "create_eni"),
    "the subnet is excluded by tag, and no other is tagged": excluded_subnet,
    "IAM denies AssignPrivateIpAddresses": refusing(CloudDeniedError("denied"), "assign_addresses"),
    "IAM denies CreateNetworkInterface": refusing(CloudDeniedError("denied"), "create_eni"),
    "IAM denies both": refusing(CloudDeniedError("denied"), "assign_addresses", "create_eni"),
    "IAM denies AttachNetworkInterface": refusing(CloudDeniedError("denied"), "attach_eni"),
    "IAM denies DescribeSubnets": refusing(CloudDeniedError("denied"), "describe_subnets"),
    "the account's quota of ENIs is used up": refusing(CloudQuotaError("quota"), "create_eni"),
    "EC2 throttles each call": refusing(ThrottledError("EC2 throttles"), "assign_addresses", "create_eni", "describe_subnets"),
    "EC2 answers no creation": refusing(CloudError("no answer"), "create_eni"),
    "EC2 answers no allocation": refusing(CloudError("no answer"), "assign_addresses"),
    "EC2 answers an allocation with an unknown code": refusing(ODD, "assign_addresses"),
    "EC2 answers a creation with an unknown code": refusing(ODD, "create_eni"),
}


def calls_by_hour(node: FakeNode) -> list[int]:
    """A day of the pool's thread, which sleeps for as long as it likes; EC2 calls of each hour."""
    start_s, counts = node.clock.monotonic(), [sum(node.ec2.calls.values())]
    while len(counts) <= DAY_S / HOUR_S:
        failed = node.ec2.failed.total()
        pause_s = node.pool.turn()
        if node.ec2.failed.total() > failed and "throttles" in str(node.ec2.fail):
            node.ec2.throttled = (start_s, node.clock.monotonic())  # as the adapter remembers it
        if node.demand.triggered.is_set():
            node.demand.triggered.clear()
            pause_s = 0.0
        due_s = node.clock.monotonic() + (DAY_S if pause_s is None else max(pause_s, 1.0))
        while len(counts) <= DAY_S / HOUR_S and start_s + HOUR_S * len(counts) < due_s:
            node.clock.advance(start_s + HOUR_S * len(counts) - node.clock.monotonic())
            counts.append(sum(node.ec2.calls.values()))
        node.clock.advance(due_s - node.clock.monotonic())
    return [after - before for before, after in pairwise(counts)]


@pytest.mark.parametrize("state", STATES)
def test_an_idle_node_asks_seldom_whatever_it_lacks(tmp_path: Path, state: str) -> None:
    """The hour after the first refusal, the worst later one and the day cost no more than the page says."""
    ec2 = FakeEc2()
    node = FakeNode(tmp_path, ec2=ec2, settings=STATES[state](ec2))
    node.provisioner.leaked_enis.disable()  # one look, a minute or two after the start
    node.bring_up()
    hours = calls_by_hour(node)
    found = (hours[0], max(hours[1:]), sum(hours))
    rows = {
        name: tuple(map(int, figures))
        for name, *figures in ROW.findall(PAGE.read_text().partition("## EC2 calls of an idle node")[2])
    }
    assert set(rows) == set(STATES)
    assert max(hours[1:]) <= CALLS_MAX
    assert all(count <= told for count, told in zip(found, rows[state], strict=True)), found
    node.datastore.close()
