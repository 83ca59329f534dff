"""In which subnet a new ENI is made, what follows a refusal for want of room, and which ENIs get nothing new."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from ipaddress import IPv4Network
from pathlib import Path

import pytest

from ipamd.model.blocked import Blocked
from ipamd.model.errors import CloudDeniedError, SubnetExhaustedError
from ipamd.model.ids import SubnetId
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.subnets import CustomNetwork, ZoneNetwork
from ipamd.settings import SubnetsConfig
from tests.fakes.cloud import IDENTITY, PRIMARY, SUBNET, FakeEc2
from tests.fakes.node import FakeNode

SMALL, LARGE = "subnet-small", "subnet-large"
CUSTOM = CustomNetwork({IDENTITY.availability_zone: ZoneNetwork(SubnetId(LARGE), ("sg-pods",))})
ONE_ENI = PoolSettings(warm_ip_target=12)
"""More than the primary ENI's nine slots: one more ENI is made."""


@pytest.fixture
def ec2() -> FakeEc2:
    """The node's subnet with few addresses, and two tagged ones, the second with most."""
    made = FakeEc2(pool_size=100)
    made.add_subnet(SMALL, "10.0.32.0/24", free_count=200, role="1")
    made.add_subnet(LARGE, "10.0.33.0/24", free_count=240, role="1")
    return made


@pytest.fixture
def started(tmp_path: Path) -> Iterator[list[FakeNode]]:
    """Nodes to close."""
    nodes: list[FakeNode] = []
    yield nodes
    for node in nodes:
        node.datastore.close()


def start(started: list[FakeNode], path: Path, ec2: FakeEc2, **options: object) -> FakeNode:
    """Bring a node up."""
    node = FakeNode(path, **{"settings": ONE_ENI, "ec2": ec2, **options})  # type: ignore[arg-type]
    started.append(node)
    node.bring_up()
    return node


def subnets_of(node: FakeNode) -> list[str]:
    """The subnets of the recorded secondary ENIs, by device."""
    return [eni.subnet_id for eni in sorted(node.datastore.enis(), key=lambda eni: eni.device_index) if not eni.is_primary]


def test_the_roomiest_tagged_subnet_is_taken(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """One DescribeSubnets, and the ENI is where most addresses are free; its gateway is of its own subnet."""
    node = start(started, tmp_path, ec2)
    assert subnets_of(node) == [LARGE]
    (eni,) = [eni for eni in node.datastore.enis() if not eni.is_primary]
    assert eni.subnet_cidr == IPv4Network("10.0.33.0/24")
    assert ec2.calls["describe_subnets"] == 1
    node.assert_sound()


def test_a_full_subnet_of_the_node_is_followed_by_a_tagged_one(started: list[FakeNode], tmp_path: Path) -> None:
    """EC2 refuses more on the primary ENI, which has vacant slots, before any ENI was created: the first one is elsewhere."""
    ec2 = FakeEc2(pool_size=5)
    ec2.add_subnet(LARGE, "10.0.33.0/24", free_count=240, role="1")
    node = start(started, tmp_path, ec2, settings=PoolSettings(warm_ip_target=2))
    for number in range(4):
        node.add(f"s{number}")
        node.pool.cycle()
    assert ec2.calls["assign_addresses"] > 0
    assert subnets_of(node) == [LARGE]
    assert node.datastore.counts().free >= 2
    node.assert_sound()


def test_vacant_slots_in_another_subnet_are_used_while_the_nodes_own_is_full(started: list[FakeNode], tmp_path: Path) -> None:
    """All slots of both ENIs in the other subnet."""
    ec2 = FakeEc2(pool_size=5)
    ec2.add_subnet(LARGE, "10.0.33.0/24", free_count=240, role="1")
    node = start(started, tmp_path, ec2, settings=PoolSettings(warm_ip_target=2))
    for number in range(23):
        assert node.datastore.counts().free, f"no address for s{number}"
        node.add(f"s{number}")
        for _ in range(2):
            node.pool.cycle()
            node.clock.advance(2.0)
    by_subnet = Counter(node.datastore.eni(row.eni_id).subnet_id for row in node.datastore.addresses())  # type: ignore[union-attr]
    assert (by_subnet[SUBNET], by_subnet[SubnetId(LARGE)]) == (5, 18)
    node.assert_sound()


def start_with_full_subnet(started: list[FakeNode], path: Path, *, is_full_after_creation: bool) -> tuple[FakeNode, FakeEc2]:
    """Bring a node up that lacks addresses: its own subnet is full, and the other one of the zone has no tag.

    `is_full_after_creation`: the subnet still had room for one ENI, so EC2 refuses only what comes after it.
    """
    ec2 = FakeEc2(pool_size=5 + 10 * is_full_after_creation)
    ec2.add_subnet(LARGE, "10.0.33.0/24", free_count=240)
    node = start(started, path, ec2, settings=PoolSettings(warm_ip_target=2 + 10 * is_full_after_creation))
    for number in range(4):
        node.add(f"s{number}")
        node.pool.run_once()
    ec2.left_count = 0
    own = ec2.subnets[SUBNET]
    ec2.subnets[SUBNET] = replace(own, free_count=0)
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=20))
    node.pool.run_once()
    assert node.demand.status.kind is Blocked.SUBNET_FULL
    assert LARGE not in subnets_of(node)
    return node, ec2


def tag(ec2: FakeEc2, subnet_id: str) -> None:
    """Tag a subnet for ENIs, as an operator does when the node's own is full."""
    ec2.subnets[SubnetId(subnet_id)] = replace(ec2.subnets[SubnetId(subnet_id)], tags={"kubernetes.io/role/cni": "1"})


@pytest.mark.parametrize("is_full_after_creation", [False, True])
def test_a_subnet_that_was_tagged_is_used_after_retry(
    started: list[FakeNode], tmp_path: Path, *, is_full_after_creation: bool
) -> None:
    """The operator tags a subnet, and `ipamctl retry` makes an ENI there, however recent the last answer about subnets is."""
    node, ec2 = start_with_full_subnet(started, tmp_path, is_full_after_creation=is_full_after_creation)
    tag(ec2, LARGE)
    node.app._retry()
    for _ in range(3):
        node.pool.run_once()
    assert LARGE in subnets_of(node)
    node.assert_sound()


def test_a_subnet_that_only_lacks_the_tag_is_named(started: list[FakeNode], tmp_path: Path) -> None:
    """The next step names it, for events of pods and for the condition; not one that is full, nor one that is excluded by its tag."""
    node, ec2 = start_with_full_subnet(started, tmp_path, is_full_after_creation=False)
    blocked = node.demand.status.blocked
    assert blocked is not None
    assert LARGE in blocked.next_step
    assert LARGE in node.demand.status.step()
    subnets = node.app.pool.subnets
    for change in ({"free_count": 0}, {"tags": {"kubernetes.io/role/cni": "0"}}):
        listed = ec2.subnets[SubnetId(LARGE)]
        ec2.subnets[SubnetId(LARGE)] = replace(listed, **change)
        subnets.describe_again()
        subnets.describe_if_asked(IDENTITY)
        assert subnets.taggable_step() == ""
        ec2.subnets[SubnetId(LARGE)] = listed


@pytest.mark.parametrize("is_full_after_creation", [False, True])
def test_a_subnet_that_was_tagged_is_used_by_itself(
    started: list[FakeNode], tmp_path: Path, *, is_full_after_creation: bool
) -> None:
    """Nobody runs `ipamctl retry`: the tag counts within the longest pause after a refusal for want of room."""
    node, ec2 = start_with_full_subnet(started, tmp_path, is_full_after_creation=is_full_after_creation)
    tag(ec2, LARGE)
    for _ in range(121):
        node.clock.advance(30)
        node.pool.run_once()
    assert LARGE in subnets_of(node)
    node.assert_sound()


def test_without_discovery_the_nodes_own_is_taken(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """ENABLE_SUBNET_DISCOVERY=false: tags of other subnets do not matter."""
    assert subnets_of(start(started, tmp_path, ec2, subnets=SubnetsConfig(discovery=False))) == [str(SUBNET)]


def test_a_subnet_of_another_zone_is_not_taken(started: list[FakeNode], tmp_path: Path) -> None:
    """EC2 attaches no ENI across zones."""
    ec2 = FakeEc2(pool_size=100)
    ec2.add_subnet(LARGE, "10.0.33.0/24", zone="us-west-2b", role="1")
    assert subnets_of(start(started, tmp_path, ec2)) == [str(SUBNET)]


@pytest.mark.parametrize(("valid_s", "subnet"), [(300, SMALL), (1, LARGE)])
def test_a_new_tag_is_seen_at_the_next_eni_if_answers_are_not_reused(
    started: list[FakeNode], tmp_path: Path, valid_s: int, subnet: str
) -> None:
    """A tag that follows DescribeSubnets by seconds counts for the next ENI only with VPC_IPAMD_SUBNETS_VALID_SECONDS=1.

    Then the subnets are described once for each new ENI.
    """
    ec2 = FakeEc2(pool_size=100)
    ec2.add_subnet(SMALL, "10.0.32.0/24", free_count=200, role="1")
    ec2.add_subnet(LARGE, "10.0.33.0/24", free_count=240)
    node = start(started, tmp_path, ec2, subnets=SubnetsConfig(answer_valid_s=valid_s))
    assert subnets_of(node) == [SMALL]
    ec2.add_subnet(LARGE, "10.0.33.0/24", free_count=240, role="1")
    node.clock.advance(14)
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=24))
    node.pool.cycle()
    assert subnets_of(node) == [SMALL, subnet]
    assert ec2.calls["describe_subnets"] == (2 if subnet == LARGE else 1)


def test_an_idle_node_does_not_ask(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """Subnets are asked for when the pool grows, never at idle (I13)."""
    node = start(started, tmp_path, ec2)
    node.provisioner.leaked_enis.disable()  # its one look comes a minute or two after the start
    before = dict(ec2.calls)
    for _ in range(100):
        node.clock.advance(600)
        node.pool.run_once()
    assert dict(ec2.calls) == before


def test_a_node_without_address_asks_beside_the_question_for_its_limits(
    started: list[FakeNode], tmp_path: Path, ec2: FakeEc2
) -> None:
    """Before the limits are known, once, whether EC2 answers or not; and the growth that follows them does not ask again."""
    node = FakeNode(tmp_path, settings=ONE_ENI, ec2=ec2)
    started.append(node)
    node.pool.cycle()
    assert ec2.calls["describe_subnets"] == 0, "it is not known who this node is"
    node.node_info.learn_identity()
    for _ in range(3):
        node.pool.cycle()
    assert ec2.calls["describe_subnets"] == 1
    node.bring_up()
    assert ec2.calls["describe_subnets"] == 1
    assert subnets_of(node) == [LARGE]


def test_a_refusal_is_followed_by_the_next_subnet_at_once(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """EC2 counts free addresses and refuses all the same: no pause, the next subnet; the refused one cools off for two minutes."""
    ec2.fail["create_eni"] = [SubnetExhaustedError(f"subnet {LARGE} is full")]
    node = start(started, tmp_path, ec2)
    assert subnets_of(node) == [SMALL]
    assert ec2.calls["create_eni"] == 2
    views = {view.subnet_id: view for view in node.app.pool.subnets.views(IDENTITY)}
    assert "full" in views[SubnetId(LARGE)].why_not
    assert views[SubnetId(SMALL)].why_not == ""
    node.assert_sound()


@pytest.mark.parametrize(("after_s", "expected"), [(30, SMALL), (301, LARGE)])
def test_a_refused_subnet_cools_off(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2, after_s: int, expected: str) -> None:
    """For two minutes it is asked for no more than half of what it refused; then it may be the first again.

    Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd_test.go, TestIPAMContext_InInsufficientCidrCoolingPeriod: 30 s cools, 120 s does not.
    """
    ec2.fail["create_eni"] = [SubnetExhaustedError(f"subnet {LARGE} is full")]
    node = start(started, tmp_path, ec2)
    ec2.subnets[SubnetId(LARGE)] = replace(ec2.subnets[SubnetId(LARGE)], free_count=3 if after_s < 120 else 240)
    node.clock.advance(after_s)
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=24))
    node.pool.cycle()
    assert subnets_of(node)[-1] == expected


def test_when_all_are_full_the_reason_names_them_and_nothing_is_asked(
    started: list[FakeNode], tmp_path: Path, ec2: FakeEc2
) -> None:
    """No subnet has room: ADDs hear it, and the calls of an hour are looks, a few per subnet (I13, I14)."""
    ec2.left_count = 9
    for subnet_id in (SMALL, LARGE):
        ec2.subnets[SubnetId(subnet_id)] = replace(ec2.subnets[SubnetId(subnet_id)], free_count=0)
    node = start(started, tmp_path, ec2)
    assert node.demand.status.kind is Blocked.SUBNET_FULL
    before = sum(ec2.calls.values())
    for _ in range(120):
        node.clock.advance(30)
        node.pool.run_once()
    assert ec2.calls["create_eni"] == 0
    assert sum(ec2.calls.values()) - before <= 60
    ec2.subnets[SubnetId(SMALL)] = replace(ec2.subnets[SubnetId(SMALL)], free_count=50)
    for _ in range(60):
        node.clock.advance(30)
        node.pool.run_once()
    assert subnets_of(node) == [SMALL]
    node.assert_sound()


def test_less_is_asked_for_where_less_is_free(started: list[FakeNode], tmp_path: Path) -> None:
    """A request that EC2 would refuse whole is cut to what the roomiest subnet has."""
    ec2 = FakeEc2(pool_size=9)  # the primary ENI takes them all
    ec2.add_subnet(LARGE, "10.0.33.0/24", free_count=3, role="1")
    node = start(started, tmp_path, ec2)
    assert subnets_of(node) == [LARGE]
    assert node.datastore.counts().total == 9 + 2
    assert ec2.calls["create_eni"] == 1


def test_prefixes_spill_over_too(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """A subnet without a whole /28 is followed by the next one; single addresses are for when none has one."""
    ec2.fail["create_eni"] = [SubnetExhaustedError("InsufficientCidrBlocks")]
    settings = PoolSettings(prefix_delegation=True, warm_ip_target=150)
    node = start(started, tmp_path, ec2, settings=settings)
    assert subnets_of(node) == [SMALL]
    assert all(row.prefix is not None for row in node.datastore.addresses())


def test_a_denied_look_means_the_nodes_own_subnet(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """IAM lacks ec2:DescribeSubnets: the pool grows as before discovery, and a condition says what is missing, once."""
    denied = CloudDeniedError("EC2 DescribeSubnets failed", details="UnauthorizedOperation")
    ec2.fail["describe_subnets"] = [denied for _ in range(9)]
    node = start(started, tmp_path, ec2)
    assert subnets_of(node) == [str(SUBNET)]
    assert any("ec2:DescribeSubnets" in condition for condition in node.health.conditions())
    assert ec2.calls["describe_subnets"] == 1
    ec2.fail["describe_subnets"] = []
    node.clock.advance(700)
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=24))
    node.pool.cycle()
    assert subnets_of(node)[-1] == LARGE
    assert not any("ec2:DescribeSubnets" in condition for condition in node.health.conditions())


def test_no_subnet_is_allowed(started: list[FakeNode], tmp_path: Path) -> None:
    """The node's own is excluded and no other is tagged: growth is refused with the tags that do it, and asks seldom."""
    ec2 = FakeEc2()
    ec2.add_subnet(str(SUBNET), "10.0.0.0/20", role="0")
    node = start(started, tmp_path, ec2)
    assert subnets_of(node) == []
    assert ec2.calls["create_eni"] == ec2.calls["assign_addresses"] == 0
    assert node.demand.status.kind is Blocked.SUBNET_CHOICE


@pytest.mark.parametrize("discovery", [True, False])
def test_an_excluded_subnet_keeps_its_sandboxes_and_gets_no_new_ones(
    started: list[FakeNode], tmp_path: Path, ec2: FakeEc2, discovery: bool
) -> None:
    """The tag came later: pods on the node's own subnet stay, new ones go elsewhere, also after a restart (I2)."""
    node = start(started, tmp_path, ec2, settings=PoolSettings(warm_ip_target=3), subnets=SubnetsConfig(discovery=discovery))
    first = node.add("a")
    assert first.eni_id == PRIMARY
    own = ec2.subnets[SUBNET]
    ec2.subnets[SUBNET] = replace(own, tags={"kubernetes.io/role/cni": "0"})
    node.clock.advance(301)
    node.pool.set_limits(node.ec2.limits, settings=ONE_ENI)
    node.pool.cycle()
    assert node.datastore.eni(PRIMARY).excluded  # type: ignore[union-attr]
    assert set(subnets_of(node)) == ({LARGE} if discovery else set())
    assert node.datastore.attachments()[0].address == first.address
    assert node.datastore.audit() == []
    node.crash()
    assert node.datastore.eni(PRIMARY).excluded  # type: ignore[union-attr]
    if discovery:
        node.bring_up()
        assert node.add("b").eni_id != PRIMARY
        ec2.subnets[SUBNET] = own
        node.clock.advance(601)
        node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_ip_target=26))
        node.pool.cycle()
        assert not node.datastore.eni(PRIMARY).excluded  # type: ignore[union-attr]
    node.assert_sound()


def test_custom_networking_takes_subnet_and_groups_of_the_file(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """No pod is on the primary ENI, and the primary ENI's groups are not followed by the others."""
    node = start(started, tmp_path, ec2, custom_network=CUSTOM, settings=PoolSettings(warm_ip_target=5))
    assert subnets_of(node) == [LARGE]
    assert ec2.calls["assign_addresses"] == 0
    attachment = node.add("a")
    assert attachment.eni_id != PRIMARY
    assert ec2.enis[attachment.eni_id].security_group_ids == ("sg-pods",)
    node.metadata.told = replace(IDENTITY, security_group_ids=("sg-new",))
    node.node_info.learn_identity()
    node.pool.run_once()
    assert ec2.calls["set_security_groups"] == 0
    node.assert_sound()


def test_without_groups_in_the_file_those_of_the_primary_eni_are_taken_and_followed(
    started: list[FakeNode], tmp_path: Path, ec2: FakeEc2
) -> None:
    """As in amazon-vpc-cni-k8s, which takes them when the ENIConfig's list is empty."""
    custom = CustomNetwork({"default": ZoneNetwork(SubnetId(LARGE))})
    node = start(started, tmp_path, ec2, custom_network=custom, settings=PoolSettings(warm_ip_target=5))
    (made,) = [eni for eni in ec2.enis.values() if eni.eni_id != PRIMARY]
    assert made.security_group_ids == IDENTITY.security_group_ids
    node.metadata.told = replace(IDENTITY, security_group_ids=("sg-new",))
    node.node_info.learn_identity()
    node.pool.run_once()
    assert ec2.enis[made.eni_id].security_group_ids == ("sg-new",)


def test_the_primary_eni_may_carry_pods_too(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """If the file says so it is filled first, as without custom networking."""
    custom = replace(CUSTOM, primary_carries_pods=True)
    node = start(started, tmp_path, ec2, custom_network=custom, settings=PoolSettings(warm_ip_target=5))
    assert node.add("a").eni_id == PRIMARY
    assert subnets_of(node) == []


@pytest.mark.parametrize(
    ("custom", "placed", "said"),
    [
        (CustomNetwork({"us-west-2b": ZoneNetwork(SubnetId(LARGE))}), {}, "names no subnet for us-west-2a"),
        (CUSTOM, {"zone": "us-west-2c"}, "of another zone (us-west-2c)"),
        (CUSTOM, {"vpc_id": "vpc-2"}, "of another VPC (vpc-2)"),
    ],
    ids=["no zone", "other zone", "other VPC"],
)
def test_a_file_that_cannot_be_right_stops_growth(
    started: list[FakeNode], tmp_path: Path, custom: CustomNetwork, placed: dict[str, str], said: str
) -> None:
    """No ENI is made that EC2 would not attach; the refusal names the file's entry and what to do (I14)."""
    ec2 = FakeEc2()
    ec2.add_subnet(LARGE, "10.0.33.0/24", **placed)
    node = start(started, tmp_path, ec2, custom_network=custom, settings=PoolSettings(warm_ip_target=5))
    assert ec2.calls["create_eni"] == 0
    status = node.demand.status
    assert said in str(status.blocked)
    assert "VPC_IPAMD_NETWORK_FILE" in status.step()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (None, CUSTOM),
        (CustomNetwork({"default": ZoneNetwork(SubnetId(SMALL), ("sg-pods",))}), CUSTOM),
        (CustomNetwork({"default": ZoneNetwork(SubnetId(LARGE), ("sg-former",))}), CUSTOM),
        (CUSTOM, CustomNetwork({IDENTITY.availability_zone: ZoneNetwork(SubnetId(SMALL))})),
    ],
    ids=["switched on", "other subnet", "other groups", "other subnet, the primary ENI's groups"],
)
def test_new_pods_get_the_subnet_and_groups_of_the_file_as_it_is_now(
    started: list[FakeNode], tmp_path: Path, ec2: FakeEc2, before: CustomNetwork | None, after: CustomNetwork
) -> None:
    """The file says another subnet, or other groups, than the ENIs have that were made before: a pod that runs keeps its address, a
    new one gets none of theirs, and they are released once nobody uses them."""
    own_only, pod_count = SubnetsConfig(discovery=False), 11 if before is None else 3  # the primary ENI has nine
    settings = PoolSettings(warm_ip_target=pod_count + 1)
    node = start(started, tmp_path, ec2, custom_network=before, subnets=own_only, settings=settings)
    pods = [node.add(f"old-{number}") for number in range(pod_count)]
    old = {eni.eni_id for eni in node.datastore.enis()}
    assert {pod.eni_id for pod in pods} >= old - {PRIMARY}
    node.settings = PoolSettings(warm_ip_target=5)
    node.custom_network = after
    node.crash()
    node.bring_up()
    for _ in range(3):
        node.pool.run_once()
    wanted = after.of_zone(IDENTITY.availability_zone)
    assert wanted is not None
    for number in range(5):
        eni = ec2.enis[node.add(f"new-{number}", deadline_s=1.0).eni_id]
        assert (eni.subnet_id, eni.eni_id in old) == (wanted.subnet_id, False)
        assert eni.security_group_ids == (wanted.security_group_ids or IDENTITY.security_group_ids)
    assert {one.address for one in node.datastore.attachments()} >= {pod.address for pod in pods}, "I2: running pods keep theirs"
    for number in range(pod_count):
        node.delete(f"old-{number}")
    node.cool()
    for _ in range(20):
        node.clock.advance(400)
        node.pool.run_once()
    assert {eni.eni_id for eni in node.datastore.enis()} & old == {PRIMARY}, "what was made before is released"
    node.assert_sound()


def test_leaving_custom_networking_gives_the_primary_eni_back(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """A restart without it: the primary ENI carries pods, the others keep theirs."""
    node = start(started, tmp_path, ec2, custom_network=CUSTOM, settings=PoolSettings(warm_ip_target=5))
    before = node.add("a")
    node.custom_network = None
    node.crash()
    node.app.pool.subnets.mark_exclusions()
    assert not node.datastore.eni(PRIMARY).excluded  # type: ignore[union-attr]
    node.bring_up()
    assert node.datastore.attachments()[0].address == before.address
    node.assert_sound()


def test_no_slot_is_made_on_an_eni_that_gets_no_new_pods(started: list[FakeNode], tmp_path: Path, ec2: FakeEc2) -> None:
    """I18: custom networking is switched on with prefixes: what the primary ENI holds goes whole, after the ENI that pods wait for."""
    node = start(started, tmp_path, ec2, subnets=SubnetsConfig(discovery=False), settings=PoolSettings(warm_ip_target=9))
    assert node.datastore.counts().free == 9
    node.settings = PoolSettings(warm_prefix_target=1, prefix_delegation=True)
    node.custom_network = CUSTOM
    node.crash()
    order, call = list[str](), ec2._call

    def noted(method: str) -> None:
        order.extend({method} & {"unassign", "create_eni", "assign_prefixes"})
        call(method)

    ec2._call = noted  # type: ignore[method-assign]
    node.bring_up()
    for _ in range(40):
        node.pool.cycle()
        node.clock.advance(1)
    assert not ec2.enis[PRIMARY].secondary_addresses
    assert order == ["create_eni", "unassign"]
