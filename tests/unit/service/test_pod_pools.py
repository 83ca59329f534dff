"""Pods of several pools on one node: who gets which address, what is refused, and what a restart finds (docs/adr/0084)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.backoffs import EC2
from ipamd.core.deadline import Deadline, StepTimer
from ipamd.eni.limits import FAULT
from ipamd.model.attachment import Attachment
from ipamd.model.blocked import Blocked
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.eni_tags import POOL_TAG
from ipamd.model.errors import CloudError
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.ids import SubnetId
from ipamd.model.pod_annotations import POOL
from ipamd.model.pod_pools import NOT_IN_FILE, OTHER_GROUPS, OTHER_SUBNET, PodPool, PodPools
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.refusals import RefusalCode
from ipamd.report.explain import explain
from ipamd.sandbox.pod_pool_choice import PodPoolChoice
from ipamd.settings import SubnetsConfig
from tests.crash.test_simulated import KilledHere, kill_at
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.refusing import refused_with

CARDS, BATCH = SubnetId("subnet-cards"), SubnetId("subnet-batch")
POOLS = PodPools(
    {
        "cards": PodPool("cards", (CARDS,), security_group_ids=("sg-cards",)),
        "batch": PodPool("batch", subnet_tags={"kubernetes.io/role/cni": "batch"}),
    }
)
CHOICES = SubnetsConfig(
    discovery=False, pod_pools=("pay=cards", "jobs=batch"), pool_annotations=("web=cards", "web=batch", "pay=batch")
)
MakeNode = Callable[..., FakeNode]
LIMITS = InstanceLimits("m5.large", 3, 3)
"""Two slots an ENI."""


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Nodes that serve, with two pools of pods beside their own."""
    nodes: list[FakeNode] = []

    def make(*, pools: PodPools = POOLS, limits: InstanceLimits = LIMITS, warm: int = 1, batch_free: int = 100) -> FakeNode:
        ec2 = FakeEc2(pool_size=100, limits=limits)
        ec2.add_subnet(CARDS, "10.0.32.0/24", free_count=100)
        ec2.add_subnet(BATCH, "10.0.33.0/24", free_count=batch_free, role="batch")
        node = FakeNode(tmp_path, ec2=ec2, subnets=CHOICES, pod_pools=pools, settings=PoolSettings(warm_ip_target=warm))
        nodes.append(node)
        node.bring_up()
        return node

    yield make
    for node in nodes:
        node.datastore.close()


def request(node: FakeNode, name: str, namespace: str, annotations: Mapping[str, str] | None = None) -> AttachRequest:
    """An ADD of a pod."""
    return replace(node.request(name), names=SandboxNames(namespace, name, f"uid-{name}"), annotations=annotations or {})


def attach(node: FakeNode, asked: AttachRequest, *, seconds: float = 5.0) -> Attachment:
    """ADD, with a pool's thread that plans whenever an ADD begins to wait."""
    real = node.demand.wait

    def wait(**details: object) -> None:
        node.pool.cycle()
        node.clock.advance(0.1)

    node.demand.wait = wait  # type: ignore[method-assign, assignment]
    try:
        return node.attacher.attach_sandbox(asked, deadline=Deadline.after(node.clock, seconds), steps=StepTimer(node.clock))
    finally:
        node.demand.wait = real  # type: ignore[method-assign]


def eni_of(node: FakeNode, attachment: Attachment) -> Eni:
    """The ENI of a sandbox's address."""
    eni = node.datastore.eni(attachment.eni_id)
    assert eni is not None
    return eni


def test_each_pod_gets_an_address_of_its_pool(make_node: MakeNode) -> None:
    """By namespace, by annotation before namespace, else the node's own; each ENI has its pool's subnet, groups and tag."""
    node = make_node(limits=InstanceLimits("t", 4, 4))
    chosen = {
        "own": request(node, "own", "default"),
        "cards": request(node, "card", "pay"),
        "batch": request(node, "job", "jobs"),
        "by annotation": request(node, "web", "web", {POOL: "cards"}),
        "annotation first": request(node, "pay", "pay", {POOL: "batch"}),
        "without annotation": request(node, "web-own", "web"),
    }
    enis = {name: eni_of(node, attach(node, asked)) for name, asked in chosen.items()}
    assert {name: eni.pool for name, eni in enis.items()} == {
        "own": "",
        "cards": "cards",
        "batch": "batch",
        "by annotation": "cards",
        "annotation first": "batch",
        "without annotation": "",
    }
    cards, batch = node.ec2.enis[enis["cards"].eni_id], node.ec2.enis[enis["batch"].eni_id]
    assert (cards.subnet_id, cards.security_group_ids, cards.tags[POOL_TAG]) == (CARDS, ("sg-cards",), "cards")
    assert (batch.subnet_id, batch.security_group_ids, batch.tags[POOL_TAG]) == (BATCH, IDENTITY.security_group_ids, "batch")
    assert POOL_TAG not in node.ec2.enis[enis["own"].eni_id].tags
    node.assert_sound()


@pytest.mark.parametrize(
    ("namespace", "annotations", "code"),
    [
        ("default", {POOL: "cards"}, RefusalCode.POOL_NOT_ALLOWED),
        ("jobs", {POOL: "cards"}, RefusalCode.POOL_NOT_ALLOWED),
        ("pay", {POOL: "cards"}, RefusalCode.POOL_NOT_ALLOWED),
        ("web", {POOL: "gone"}, RefusalCode.POOL_NOT_ALLOWED),
        ("web", {POOL: ""}, RefusalCode.POOL_NOT_ALLOWED),
        ("", {POOL: "cards"}, RefusalCode.POOL_NOT_ALLOWED),
    ],
)
def test_an_annotation_gets_only_what_its_namespace_may_have(
    make_node: MakeNode, namespace: str, annotations: dict[str, str], code: RefusalCode
) -> None:
    """The refusal gives nothing instead, and nothing is asked of EC2 for it."""
    node = make_node()
    enis = node.datastore.enis()
    with refused_with(code):
        attach(node, request(node, "a", namespace, annotations))
    assert node.datastore.attachments() == ()
    assert node.datastore.enis() == enis


def test_a_pod_with_an_eni_of_its_own_may_not_ask_for_a_pool(make_node: MakeNode) -> None:
    """Its address is in no pool. A list of namespaces passes over it."""
    choice, node = PodPoolChoice(CHOICES.pod_pools, CHOICES.pool_annotations), make_node()
    with refused_with(RefusalCode.POOL_NOT_APPLICABLE, value="cards"):
        choice.refuse_for_uplink(request(node, "a", "web", {POOL: "cards"}))
    choice.refuse_for_uplink(request(node, "b", "pay"))


def test_the_plugin_of_amazon_vpc_cni_k8s_gets_the_pool_of_the_namespace(make_node: MakeNode) -> None:
    """It hands over no annotations, and none is missed."""
    node = make_node()
    asked = replace(request(node, "card", "pay"), annotations=None, is_wired_by_caller=True)
    assert PodPoolChoice(CHOICES.pod_pools, CHOICES.pool_annotations).of(asked) == "cards"


def test_a_pod_whose_annotations_are_unknown_is_refused_where_they_may_choose(make_node: MakeNode) -> None:
    """Elsewhere nothing is asked for."""
    node = make_node()
    with refused_with(RefusalCode.POOL_ANNOTATION_UNKNOWN):
        attach(node, replace(request(node, "a", "web"), annotations=None))
    assert eni_of(node, attach(node, replace(request(node, "b", "default"), annotations=None))).pool == ""


def test_a_full_pool_refuses_its_pods_and_no_others(make_node: MakeNode) -> None:
    """Its subnet is full: the refusal names pool and cause, and the other pools go on."""
    node = make_node(batch_free=1, limits=InstanceLimits("t", 4, 4))
    with refused_with(RefusalCode.POOL_WITHOUT_ADDRESS, pool="batch"):
        attach(node, request(node, "job", "jobs"))
    assert node.demand.status_of("batch").kind is Blocked.SUBNET_FULL
    assert node.demand.status_of("cards").blocked is None
    assert node.demand.status.blocked is None
    assert eni_of(node, attach(node, request(node, "card", "pay"))).pool == "cards"
    for number in range(4):
        assert eni_of(node, attach(node, request(node, f"own-{number}", "default"))).pool == ""


def test_a_place_that_another_pool_needs_is_not_taken(make_node: MakeNode) -> None:
    """Two ENIs beside the primary one: cards may not have the second, though its pods wait, because batch has none yet."""
    node = make_node()
    for number in range(2):
        attach(node, request(node, f"card-{number}", "pay"))
    with refused_with(RefusalCode.POOL_WITHOUT_ADDRESS, pool="cards"):
        attach(node, request(node, "card-2", "pay"))
    assert node.demand.status_of("cards").kind is Blocked.NODE_FULL
    for number in range(2):
        assert eni_of(node, attach(node, request(node, f"job-{number}", "jobs"))).pool == "batch"


def test_a_starved_pool_gets_the_surplus_of_another(make_node: MakeNode) -> None:
    """An ENI that its pool needs no more is released within the next wake-ups, and not after an hour."""
    pools = PodPools({name: replace(pool, reserved_enis=0) for name, pool in POOLS.by_name.items()})
    node = make_node(pools=pools)
    for number in range(4):
        attach(node, request(node, f"card-{number}", "pay"))
    with refused_with(RefusalCode.POOL_WITHOUT_ADDRESS, pool="batch"):
        attach(node, request(node, "job", "jobs"))
    for number in range(4):
        assert node.delete(f"card-{number}")
    node.clock.advance(120.0)
    node.cool()
    with refused_with(RefusalCode.POOL_WITHOUT_ADDRESS, pool="batch"):
        attach(node, request(node, "job-2", "jobs"))
    for _ in range(8):
        node.pool.cycle()
        node.clock.advance(5.0)
    assert eni_of(node, attach(node, request(node, "job-3", "jobs"))).pool == "batch"


@pytest.mark.parametrize("keep_datastore", [True, False])
def test_a_restart_keeps_the_pool_of_an_eni(make_node: MakeNode, keep_datastore: bool) -> None:
    """From the datastore, and from EC2's tag if that is lost; a pod of the pool gets an address of the same ENI again."""
    node = make_node()
    before = eni_of(node, attach(node, request(node, "card", "pay")))
    node.crash(keep_datastore=keep_datastore)
    node.bring_up()
    after = node.datastore.eni(before.eni_id)
    assert after is not None
    assert (after.pool, after.excluded) == ("cards", "")
    if keep_datastore:
        assert eni_of(node, attach(node, request(node, "card-2", "pay"))).eni_id == before.eni_id
    assert eni_of(node, attach(node, request(node, "own", "default"))).pool == ""


@pytest.mark.parametrize(
    ("pools", "reason"),
    [
        (PodPools({"batch": POOLS.by_name["batch"]}), f"{NOT_IN_FILE}cards"),
        (
            PodPools({**POOLS.by_name, "cards": replace(POOLS.by_name["cards"], security_group_ids=("sg-new",))}),
            f"{OTHER_GROUPS}cards",
        ),
    ],
)
def test_an_eni_of_a_changed_pool_gets_no_new_pod(make_node: MakeNode, pools: PodPools, reason: str) -> None:
    """Its sandbox stays (I2); no pod of another pool gets its addresses, and its groups are left alone."""
    node = make_node()
    card = attach(node, request(node, "card", "pay"))
    eni, groups = eni_of(node, card), node.ec2.enis[card.eni_id].security_group_ids
    node.pod_pools = pools
    node.subnets_config = SubnetsConfig(discovery=False)
    node.crash()
    node.bring_up()
    node.enis.sync_with_ec2(IDENTITY)
    node.app.pool.subnets.mark_exclusions()
    after = node.datastore.eni(eni.eni_id)
    assert after is not None
    assert after.excluded == reason
    assert node.datastore.attachments() == (card,)
    assert eni_of(node, attach(node, request(node, "other", "pay"))).pool == ""
    node.pool.security_groups.follow(IDENTITY)
    assert node.ec2.enis[eni.eni_id].security_group_ids == groups


@pytest.mark.parametrize("keep_datastore", [True, False])
@pytest.mark.parametrize(
    "failpoint", ["growth.created", "growth.named", "growth.attach-asked", "growth.attached", "growth.stored"]
)
def test_a_kill_while_the_eni_of_a_pool_is_made_loses_nothing(make_node: MakeNode, failpoint: str, keep_datastore: bool) -> None:
    """The next process finishes the creation for the same pool, or deletes the ENI: none is left, none is of another pool (I9)."""
    node = make_node()
    node.failpoint = kill_at(failpoint)
    with pytest.raises(KilledHere):
        attach(node, request(node, "card", "pay"))
    node.crash(keep_datastore=keep_datastore)
    node.bring_up()
    node.cool()  # after a lost datastore what EC2 shows cools first (I8)
    assert eni_of(node, attach(node, request(node, "card-2", "pay"))).pool == "cards"
    pools = {eni.eni_id: eni.pool for eni in node.datastore.enis() if not eni.is_primary}
    assert list(pools.values()) == ["cards"]
    attached = {eni.eni_id for eni in node.ec2.attached()}
    assert attached == {*pools, PRIMARY}


@pytest.mark.parametrize("tags", [{}, {POOL_TAG: "batch"}])
def test_a_changed_tag_moves_no_eni(make_node: MakeNode, tags: dict[str, str]) -> None:
    """Its pods have the groups of its pool, whatever the tag says later."""
    node = make_node()
    card = attach(node, request(node, "card", "pay"))
    node.ec2.enis[card.eni_id] = replace(node.ec2.enis[card.eni_id], tags=tags)
    node.look_twice()
    assert (eni_of(node, card).pool, eni_of(node, card).excluded) == ("cards", "")


def test_an_eni_whose_pool_is_gone_is_released_when_it_is_empty(make_node: MakeNode) -> None:
    """Beside other pools too: the node's own plan has it."""
    node = make_node()
    card = attach(node, request(node, "card", "pay"))
    node.pod_pools = PodPools({"batch": POOLS.by_name["batch"]})
    node.subnets_config = SubnetsConfig(discovery=False, pod_pools=("jobs=batch",))
    node.crash()
    node.bring_up()
    assert node.datastore.attachments() == (card,)
    assert node.delete("card")
    node.cool()
    for _ in range(4):
        node.clock.advance(60.0)
        node.pool.cycle()
    assert node.datastore.eni(card.eni_id) is None
    assert card.eni_id not in node.ec2.enis
    assert eni_of(node, attach(node, request(node, "job", "jobs"))).pool == "batch"


@pytest.mark.parametrize("wanted_count", [1, 20])
def test_a_pool_grows_by_prefixes_in_prefix_mode(make_node: MakeNode, wanted_count: int) -> None:
    """As the node's own pool does: /28s on an ENI of its own."""
    node = make_node()
    node.pool.set_limits(node.ec2.limits, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True))
    for number in range(wanted_count):
        job = attach(node, request(node, f"job-{number}", "jobs"))
    eni = node.ec2.enis[job.eni_id]
    assert (len(eni.prefixes), eni.secondary_addresses) == (-(-wanted_count // 16), frozenset())


def test_the_primary_enis_groups_are_followed_by_a_pool_without_own(make_node: MakeNode) -> None:
    """And by no other pool's ENI."""
    node = make_node()
    job, card = attach(node, request(node, "job", "jobs")), attach(node, request(node, "card", "pay"))
    changed = replace(IDENTITY, security_group_ids=("sg-2",))
    for _ in range(3):
        node.pool.security_groups.follow(changed)
    assert node.ec2.enis[job.eni_id].security_group_ids == ("sg-2",)
    assert node.ec2.enis[card.eni_id].security_group_ids == ("sg-cards",)


def test_each_pool_has_its_own_targets(make_node: MakeNode) -> None:
    """A pool without a target asks EC2 for nothing before its first pod; one with a target is warm at the start."""
    node = make_node()
    assert [eni.pool for eni in node.datastore.enis()] == [""]
    assert node.ec2.calls["create_eni"] == 0
    node.pod_pools = PodPools({**POOLS.by_name, "cards": replace(POOLS.by_name["cards"], warm_ip_target=2)})
    node.crash()
    node.bring_up()
    assert [eni.pool for eni in node.datastore.enis()] == ["", "cards"]
    node.assert_sound()


def test_pods_of_other_pools_count_for_max_pods(make_node: MakeNode) -> None:
    """Three pods fit: two of cards leave one for the node's own pool."""
    node = make_node(limits=InstanceLimits("t", 4, 4))
    node.pool.settings = replace(node.pool.settings, max_pods=3)
    for number in range(2):
        attach(node, request(node, f"card-{number}", "pay"))
    assert node.pool.settings_of("").max_pods == 1
    assert node.pool.settings_of("cards").max_pods == 3


def test_a_pause_of_the_pools_thread_is_told_to_every_pool(make_node: MakeNode) -> None:
    """The ADDs of each pool are refused with the cause, and do not wait for their deadlines."""
    node = make_node()
    node.pool._refused.back_off(FAULT, CloudError("test"), EC2)
    for pool in POOLS.by_name:
        generation = node.demand.join(pool=pool)
    node.pool.cycle()
    statuses = [node.demand.status_of(pool) for pool in POOLS.by_name]
    assert [(status.generation, status.kind) for status in statuses] == [(generation, Blocked.ERROR)] * len(statuses)
    assert node.ec2.calls["create_eni"] == 0


@pytest.mark.parametrize("is_ours", [True, False], ids=["of the node's own pool", "attached by hand"])
def test_a_tag_written_by_hand_gives_nobody_other_groups(make_node: MakeNode, is_ours: bool) -> None:
    """An ENI that was not made for the pool is not of its subnet and groups: no pod gets its addresses, and sandboxes stay (I2)."""
    node = make_node(limits=InstanceLimits("t", 6, 4))
    own = [attach(node, request(node, f"own-{number}", "default")) for number in range(4)]
    eni_id = next(attachment.eni_id for attachment in own if attachment.eni_id != PRIMARY)
    described = node.ec2.enis[eni_id]
    tags = dict(described.tags) if is_ours else {}
    node.ec2.enis[eni_id] = replace(described, tags={**tags, POOL_TAG: "cards"})
    for attachment in own:
        node.runtime.run(attachment.key.container_id)
    if not is_ours:  # no row says that it was of another pool
        node.crash(keep_datastore=False)
        node.bring_up()
    node.look_twice()
    eni = node.datastore.eni(eni_id)
    assert eni is not None
    assert (eni.pool, eni.excluded) == ("cards", f"{OTHER_SUBNET}cards")
    node.cool()
    for name, namespace in (("card", "pay"), ("own-9", "default")):
        assert attach(node, request(node, name, namespace), seconds=20.0).eni_id != eni_id
    assert {attachment.address for attachment in own} <= {attachment.address for attachment in node.datastore.attachments()}


def test_explain_names_the_pool(make_node: MakeNode) -> None:
    """Of an address and of a pod; on a node without pools nothing is added."""
    node = make_node()
    card, own = attach(node, request(node, "card", "pay")), attach(node, request(node, "own", "default"))

    def explained(subject: str) -> str:
        return " | ".join(explain(node.app.introspection.sources, HistoryQuestion(subject, 10)).sentences)

    for subject in (str(card.address), "pay/card"):
        assert f"{card.eni_id} is of pool cards" in explained(subject)
    assert f"{own.eni_id} is of pool default" in explained("default/own")
    plain = FakeNode(node.run_dir / "plain")
    plain.bring_up()
    address = next(row.address for row in plain.datastore.addresses())
    sentences = explain(plain.app.introspection.sources, HistoryQuestion(str(address), 10)).sentences
    assert not any("pool" in sentence for sentence in sentences)
