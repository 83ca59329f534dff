"""Pods with an interface of each network card: who gets which, all or none, and what a restart finds (docs/adr/0086)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.host.conflist import render
from ipamd.migration.export import ExportService
from ipamd.model.attachment import Attachment, Wired, WiringSpec, pod_veth_name
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.errors import TryAgainError, WiringError
from ipamd.model.family import IPV6
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.ids import AttachmentKey, EniId, parse_key
from ipamd.model.pod_annotations import CARDS, MULTI_NIC, NIC_CONFIG, POD_ANNOTATIONS
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.refusals import RefusalCode
from ipamd.report.audit import audit
from ipamd.report.explain import explain
from ipamd.report.pod_pools import pod_pool_reports
from ipamd.sandbox.multi_nic_choice import MultiNicChoice
from ipamd.settings import NetworkConfig, Settings
from tests.crash.test_simulated import KilledHere, kill_at, look_often, vanish
from tests.fakes.aws_node import OURS, SAVED
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode
from tests.refusing import refused_with

LIMITS = InstanceLimits("two.cards", 3, 5, network_card_count=2)
THREE_CARDS = InstanceLimits("three.cards", 3, 5, network_card_count=3, further_card_enis=(2, 2))
NETWORK = NetworkConfig(multi_nic=True, multi_nic_namespaces=("fast",))
NETWORK_V6 = replace(NETWORK, ipv4=False, ipv6=True)
MakeNode = Callable[..., FakeNode]


@pytest.fixture
def make_node(tmp_path: Path) -> Iterator[MakeNode]:
    """Nodes that serve, on an instance with several network cards."""
    nodes: list[FakeNode] = []

    def make(*, network: NetworkConfig = NETWORK, limits: InstanceLimits = LIMITS, is_up: bool = True) -> FakeNode:
        ec2 = FakeEc2(pool_size=100, limits=limits, family=network.family)
        settings = None if network.ipv6 else PoolSettings(warm_ip_target=2, minimum_ip_target=2)
        node = FakeNode(tmp_path, ec2=ec2, network=network, settings=settings)
        nodes.append(node)
        if is_up:
            node.bring_up()
        return node

    yield make
    for node in nodes:
        node.datastore.close()


def request_of(node: FakeNode, name: str, *, namespace: str = "fast", value: str | None = MULTI_NIC) -> AttachRequest:
    """An ADD for a pod of a namespace, with the annotation. `value`: None for a pod without it."""
    annotations = {} if value is None else {NIC_CONFIG: value}
    return replace(node.request(name), names=SandboxNames(namespace, name, f"uid-{name}"), annotations=annotations)


def attach(node: FakeNode, request: AttachRequest, *, deadline_s: float = 0.9) -> Attachment:
    """ADD, which must find its addresses free: the clock of a test stands still."""
    deadline = Deadline.after(node.clock, deadline_s)
    return node.attacher.attach_sandbox(request, deadline=deadline, steps=StepTimer(node.clock))


def add_pod(node: FakeNode, name: str, **choice: str | None) -> Attachment:
    """ADD of a pod, which asks by the annotation unless `choice` says otherwise."""
    return attach(node, request_of(node, name, **choice))  # type: ignore[arg-type]


def names_of(node: FakeNode, name: str) -> list[str]:
    """The interfaces of a sandbox that the datastore has, in order."""
    return sorted(item.key.ifname for item in node.datastore.attachments() if item.key.container_id == name)


def enis_of_card(node: FakeNode, card: int) -> list[Eni]:
    """The recorded ENIs of a network card."""
    return [eni for eni in node.datastore.enis() if eni.network_card == card]


def key_of(name: str, number: int) -> AttachmentKey:
    """The key of a sandbox's interface by its number."""
    return parse_key(name, f"mNicIf{number}" if number else "eth0")


def run_pool(node: FakeNode) -> None:
    """Let the pool plan until nothing is left to do."""
    node.pool.cycle()
    node.clock.advance(70)
    node.pool.cycle()


@pytest.mark.parametrize("network", [NETWORK, NETWORK_V6], ids=["ipv4", "ipv6"])
def test_each_managed_card_gets_an_eni_of_its_own(make_node: MakeNode, network: NetworkConfig) -> None:
    """The device index is counted for each card, and the route table follows from both."""
    node = make_node(network=network, limits=THREE_CARDS)
    for card in (1, 2):
        (eni,) = enis_of_card(node, card)
        assert (eni.device_index, eni.managed, eni.host_ready, eni.created_by_us) == (1, True, True, True)
        assert (eni.pool, eni.route_table) == (f"card:{card}", 10000 + 100 * card + 1)
    if network.family is IPV6:
        assert all(eni.prefixes for eni in node.ec2.attached()), "each ENI has a /80 of its own"
        return
    further = [node.ec2.enis[eni.eni_id] for eni in node.datastore.enis() if eni.network_card]
    assert [len(eni.secondary_addresses) for eni in further] == [1, 1], "whatever the targets of card 0 are"


def test_without_the_setting_nothing_of_a_further_card_is_touched(make_node: MakeNode) -> None:
    """No ENI is made there, and no pod gets more than one interface."""
    node = make_node(network=NetworkConfig())
    assert {eni.network_card for eni in node.datastore.enis()} == {0}
    assert node.pool.pools.names == ("",)
    add_pod(node, "pod")
    assert names_of(node, "pod") == ["eth0"], "the annotation is not read"


@pytest.mark.parametrize("network", [NETWORK, NETWORK_V6], ids=["ipv4", "ipv6"])
def test_a_pod_gets_an_interface_of_each_card(make_node: MakeNode, network: NetworkConfig) -> None:
    """Each has an address of its card, and the CNI result lists all."""
    node = make_node(network=network, limits=THREE_CARDS)
    first = add_pod(node, "pod")
    assert names_of(node, "pod") == ["eth0", "mNicIf1", "mNicIf2"]
    by_number = [node.datastore.attachment(key_of("pod", number)) for number in range(3)]
    cards = [next(eni.network_card for eni in node.datastore.enis() if eni.eni_id == item.eni_id) for item in by_number if item]
    assert cards == [0, 1, 2], "each has an address of its own card"
    result = json.loads(first.result)
    inside = [interface["name"] for interface in result["interfaces"] if interface.get("sandbox")]
    assert [name for name in inside if not name.startswith("v4if")] == ["eth0", "mNicIf1", "mNicIf2"]
    addresses = [configuration["address"].partition("/")[0] for configuration in result["ips"]]
    assert addresses == [str(item.address) for item in by_number if item], "the pod's first address first"
    gateways = [configuration["gateway"] for configuration in result["ips"]]
    family = network.family
    assert gateways == [str(family.gateway + number) for number in range(3)]
    assert [route["gw"] for route in result["routes"]] == [str(family.gateway)], "only the first interface has a default route"
    node.assert_sound()


@pytest.mark.parametrize("value", ["MULTI-NIC-ATTACHMENT", "multi-nic-attachment ", "", None])
def test_only_the_exact_value_asks(make_node: MakeNode, value: str | None) -> None:
    """Any other value is ignored, as amazon-vpc-cni-k8s does."""
    node = make_node()
    add_pod(node, "pod", value=value)
    assert names_of(node, "pod") == ["eth0"]


def name_cards(node: FakeNode, name: str, cards: str, **others: str | None) -> AttachRequest:
    """An ADD for a pod that names the cards of which it wants an interface."""
    request = request_of(node, name, value=None, **others)  # type: ignore[arg-type]
    return replace(request, annotations={CARDS: cards})


@pytest.mark.parametrize("network", [NETWORK, NETWORK_V6], ids=["ipv4", "ipv6"])
@pytest.mark.parametrize(
    ("cards", "expected"),
    [("2", [0, 2]), ("1", [0, 1]), ("2, 1", [0, 1, 2]), ("0,2", [0, 2]), ("0", [0])],
)
def test_a_pod_may_name_its_cards(make_node: MakeNode, network: NetworkConfig, cards: str, expected: list[int]) -> None:
    """It gets an interface of card 0 and one of each card that it names; the numbers of the interfaces have no gap."""
    node = make_node(network=network, limits=THREE_CARDS)
    attach(node, name_cards(node, "pod", cards))
    assert names_of(node, "pod") == ["eth0", "mNicIf1", "mNicIf2"][: len(expected)]
    attachments = [node.datastore.attachment(key_of("pod", number)) for number in range(len(expected))]
    card_by_eni = {eni.eni_id: eni.network_card for eni in node.datastore.enis()}
    assert [card_by_eni[item.eni_id] for item in attachments if item and item.eni_id] == expected
    node.assert_sound()


def test_named_cards_come_before_all_cards(make_node: MakeNode) -> None:
    """A pod that has both annotations gets what it names."""
    node = make_node(limits=THREE_CARDS)
    request = name_cards(node, "pod", "2")
    attach(node, replace(request, annotations={CARDS: "2", NIC_CONFIG: MULTI_NIC}))
    assert names_of(node, "pod") == ["eth0", "mNicIf1"]


@pytest.mark.parametrize("cards", ["", "one", "1,", "1,1", "-1", "32", "1 2", "\u0661"])
def test_a_list_of_cards_that_is_none_is_refused(make_node: MakeNode, cards: str) -> None:
    """The pod gets nothing, because nobody knows what it wants."""
    node = make_node(limits=THREE_CARDS)
    with refused_with(RefusalCode.MULTI_NIC_VALUE_UNKNOWN):
        attach(node, name_cards(node, "pod", cards))
    assert names_of(node, "pod") == []


def test_a_card_that_is_not_managed_is_refused(make_node: MakeNode) -> None:
    """The instance has no card of that number, or the card is left alone. The pod gets nothing instead."""
    node = make_node(limits=replace(THREE_CARDS, further_card_enis=(2, 1)))
    for cards in ("2", "1,2", "3"):
        with refused_with(RefusalCode.MULTI_NIC_CARD_NOT_MANAGED, cards=cards[-1], managed="0, 1"):
            attach(node, name_cards(node, "pod", cards))
    assert names_of(node, "pod") == []
    node.assert_sound()


def test_only_listed_namespaces_may_name_cards(make_node: MakeNode) -> None:
    """As with the other annotation; with the setting off it is not read."""
    node = make_node(limits=THREE_CARDS)
    for cards in ("1", "junk"):
        with refused_with(RefusalCode.MULTI_NIC_NOT_ALLOWED, namespace="slow"):
            attach(node, name_cards(node, "pod", cards, namespace="slow"))
    assert names_of(node, "pod") == []


@pytest.mark.parametrize(
    ("annotations", "is_refused"), [({CARDS: "1"}, True), ({CARDS: "0"}, True), ({NIC_CONFIG: MULTI_NIC}, False)]
)
def test_a_pod_with_an_eni_of_its_own_may_not_name_cards(
    make_node: MakeNode, annotations: dict[str, str], is_refused: bool
) -> None:
    """Its branch ENI is its only interface. The annotation of amazon-vpc-cni-k8s is ignored there, as that does."""
    choice, node = MultiNicChoice(is_on=True, namespaces=("fast",)), make_node()
    request = replace(request_of(node, "pod"), annotations=annotations)
    with refused_with(RefusalCode.MULTI_NIC_NOT_APPLICABLE) if is_refused else nullcontext():
        choice.refuse_for_uplink(request)


def test_without_the_setting_named_cards_are_not_read(make_node: MakeNode) -> None:
    """The node manages card 0 only."""
    node = make_node(network=NetworkConfig(), limits=THREE_CARDS)
    attach(node, name_cards(node, "pod", "2"))
    assert names_of(node, "pod") == ["eth0"]


def test_a_pod_on_one_managed_card_has_one_interface(make_node: MakeNode) -> None:
    """This is no error."""
    node = make_node(limits=InstanceLimits("one.card", 3, 5))
    add_pod(node, "pod")
    assert names_of(node, "pod") == ["eth0"]


def test_a_namespace_that_is_not_listed_is_refused(make_node: MakeNode) -> None:
    """Only for pods with the annotation."""
    node = make_node()
    with refused_with(RefusalCode.MULTI_NIC_NOT_ALLOWED, namespace="slow"):
        add_pod(node, "pod", namespace="slow")
    add_pod(node, "other", namespace="slow", value=None)
    assert names_of(node, "pod") == []


def test_annotations_that_the_runtime_keeps_back_refuse_the_pod(make_node: MakeNode) -> None:
    """It is not known whether the pod asks."""
    node = make_node()
    with refused_with(RefusalCode.MULTI_NIC_ANNOTATION_UNKNOWN):
        attach(node, replace(request_of(node, "pod"), annotations=None))


def test_before_the_limits_are_known_the_cards_are_not(make_node: MakeNode) -> None:
    """An ADD without time to wait is refused."""
    node = make_node()
    for limits in (None, replace(LIMITS, source="default")):
        node.pool.limits = limits
        with refused_with(RefusalCode.MULTI_NIC_CARDS_UNKNOWN):
            add_pod(node, "pod")


def test_a_card_whose_enis_are_not_for_pods_is_left_alone(make_node: MakeNode) -> None:
    """The pod gets interfaces of the other cards."""
    node = make_node(limits=THREE_CARDS, is_up=False)
    primary = next(iter(node.ec2.enis.values()))
    efa = replace(
        primary,
        eni_id=EniId("eni-efa"),
        mac=primary.mac[:-2] + "ef",
        primary_address=None,
        secondary_addresses=frozenset(),
        interface_type="efa-only",
        network_card=1,
        device_index=1,
    )
    node.ec2.enis[efa.eni_id] = efa
    node.bring_up()
    assert [eni.eni_id for eni in node.ec2.attached() if eni.network_card == 1] == ["eni-efa"]
    add_pod(node, "pod")
    assert names_of(node, "pod") == ["eth0", "mNicIf1"]
    second = node.datastore.attachment(key_of("pod", 1))
    assert second is not None
    assert second.eni_id == enis_of_card(node, 2)[0].eni_id, "numbers follow the cards in use"


def test_a_del_frees_every_interface(make_node: MakeNode) -> None:
    """By one DEL of the first one; a second DEL finds nothing."""
    node = make_node()
    add_pod(node, "pod")
    assert node.delete("pod")
    assert node.datastore.attachments() == ()
    assert all(node.datastore.is_tombstoned(key_of("pod", number)) for number in (0, 1))
    node.cool()
    assert [veth for veth in node.wiring.survey().veths if not veth.is_dying] == []
    assert not node.delete("pod")
    node.assert_sound()


def test_a_kernel_that_refuses_the_second_interface_leaves_nothing(make_node: MakeNode) -> None:
    """The first interface was wired already."""
    node = make_node()
    before = node.datastore.counts()
    wire = node.wiring.wire

    def refuse_further(spec: WiringSpec) -> Wired:
        if spec.is_further:
            raise WiringError("refused")
        return wire(spec)

    node.wiring.wire = refuse_further  # type: ignore[method-assign]
    with pytest.raises(WiringError):
        add_pod(node, "pod")
    node.wiring.wire = wire  # type: ignore[method-assign]
    assert (node.datastore.attachments(), node.wiring.survey().veths) == ((), ())
    node.cool()
    assert node.datastore.counts().free == before.free
    add_pod(node, "other")
    node.assert_sound()


def test_an_empty_card_leaves_nothing_of_the_pod(make_node: MakeNode) -> None:
    """The pod gets no address of card 0 either."""
    node = make_node()
    free = node.datastore.counts().free
    for eni in enis_of_card(node, 1):
        with node.datastore.transaction() as uow:
            uow.put_eni(replace(eni, host_ready=False))
    with pytest.raises(TryAgainError):
        attach(node, request_of(node, "pod"), deadline_s=0.5)
    assert (node.datastore.attachments(), node.wiring.survey().veths) == ((), ())
    assert node.datastore.counts().free == free, "an address that was never wired is free at once"
    add_pod(node, "other", value=None)
    assert names_of(node, "other") == ["eth0"], "card 0 serves on"


@pytest.mark.parametrize("place", ["attach.reserved", "attach.interface-wired", "attach.wired", "attach.committed"])
def test_a_daemon_that_is_killed_in_the_middle_loses_nothing(make_node: MakeNode, place: str) -> None:
    """Wherever it is killed, the next DEL and the next start free all."""
    node = make_node()
    node.failpoint = kill_at(place)
    with pytest.raises(KilledHere):
        add_pod(node, "pod")
    node.crash()
    node.bring_up()
    node.delete("pod")
    del node.wiring.netns["/run/netns/pod"]
    node.cool()
    node.clock.advance(120)
    node.cool()
    assert node.datastore.attachments() == ()
    counts = node.datastore.counts()
    assert counts.free == counts.total, "no address is lost"
    add_pod(node, "next")
    assert names_of(node, "next") == ["eth0", "mNicIf1"]
    node.assert_sound()


def test_a_restart_keeps_every_interface(make_node: MakeNode) -> None:
    """A repeated ADD and a CHECK find them."""
    node = make_node()
    add_pod(node, "pod")
    addresses = {item.key: item.address for item in node.datastore.attachments()}
    node.crash()
    node.bring_up()
    assert {item.key: item.address for item in node.datastore.attachments()} == addresses
    request = request_of(node, "pod")
    assert attach(node, request).address == addresses[request.key], "a repeated ADD gets the stored answer"
    node.checker.check_sandbox(request, deadline=Deadline.after(node.clock, 5.0))
    assert node.delete("pod")
    assert node.datastore.attachments() == ()


def test_a_lost_datastore_is_rebuilt_from_the_aliases(make_node: MakeNode) -> None:
    """Each interface has an alias of its own."""
    node = make_node()
    add_pod(node, "pod")
    addresses = {item.key: item.address for item in node.datastore.attachments()}
    node.runtime.run("pod")
    node.crash(keep_datastore=False)
    node.bring_up()
    assert {item.key: item.address for item in node.datastore.attachments()} == addresses
    assert node.delete("pod")
    assert node.datastore.attachments() == ()


def test_gc_keeps_the_further_interfaces_of_a_valid_pod(make_node: MakeNode) -> None:
    """The runtime's list names the first interface only."""
    node = make_node()
    add_pod(node, "pod")
    outcome = node.collector.collect(
        frozenset({key_of("pod", 0)}),
        network_name="vpc-ipamd",
        deadline=Deadline.after(node.clock, 5.0),
        steps=StepTimer(node.clock),
    )
    assert (outcome.freed, outcome.kept) == ((), ())
    assert names_of(node, "pod") == ["eth0", "mNicIf1"]


def test_the_eni_of_a_card_is_never_released(make_node: MakeNode) -> None:
    """Whatever is in excess."""
    node = make_node()
    add_pod(node, "pod")
    node.delete("pod")
    for _ in range(3):
        node.cool()
        node.clock.advance(4000)
        run_pool(node)
    assert len(enis_of_card(node, 1)) == 1
    assert len(node.ec2.enis[enis_of_card(node, 1)[0].eni_id].secondary_addresses) == 1, "its surplus addresses are"


def test_a_full_card_does_not_bound_the_others(make_node: MakeNode) -> None:
    """Both of its ENIs are full, and a pod with one interface is served."""
    node = make_node(limits=InstanceLimits("two.cards", 3, 3, network_card_count=2, further_card_enis=(2,)))
    for number in range(4):
        add_pod(node, f"pod{number}")
        run_pool(node)
    with pytest.raises(TryAgainError):
        attach(node, request_of(node, "pod4"), deadline_s=0.5)
    run_pool(node)
    assert len(enis_of_card(node, 1)) == 2
    add_pod(node, "single", value=None)
    assert names_of(node, "single") == ["eth0"]
    node.assert_sound()


def test_after_the_setting_is_off_the_cards_are_left_alone_and_pods_end(make_node: MakeNode) -> None:
    """A running pod keeps its interfaces, and its DEL frees them (I2, I4)."""
    node = make_node()
    add_pod(node, "pod")
    node.network = NetworkConfig()
    node.crash()
    node.bring_up()
    assert [eni.managed for eni in enis_of_card(node, 1)] == [False]
    assert names_of(node, "pod") == ["eth0", "mNicIf1"], "I2"
    add_pod(node, "other")
    assert names_of(node, "other") == ["eth0"]
    assert node.delete("pod")
    assert names_of(node, "pod") == []


def test_the_policy_agent_learns_how_many_interfaces_there_are(tmp_path: Path) -> None:
    """It finds the links by the names that it computes from the pod's name and the number."""
    ec2, network = FakeEc2(pool_size=100, limits=LIMITS), replace(NETWORK, pod_veth_names=True)
    node = FakeNode(tmp_path, ec2=ec2, network=network, policy_mode="standard")
    node.bring_up()
    add_pod(node, "pod")
    add_pod(node, "other", value=None)
    assert node.policy_agent.interface_counts == [2, 1]
    further = node.datastore.attachment(key_of("pod", 1))
    assert further is not None
    assert further.host_veth == pod_veth_name("fast", "pod", prefix="eni", number=1)
    node.datastore.close()


@pytest.mark.parametrize("network", [NETWORK, NETWORK_V6], ids=["ipv4", "ipv6"])
def test_an_audit_and_an_explanation_know_every_interface(make_node: MakeNode, network: NetworkConfig) -> None:
    """Nothing is wrong with a pod that has several, each address is explained, and each card has its report."""
    node = make_node(network=network)
    node.runtime.run("pod")
    add_pod(node, "pod")
    sources = node.app.introspection.sources
    assert audit(sources, ask_ec2=True).findings == ()
    further = node.datastore.attachment(key_of("pod", 1))
    assert further is not None
    assert "mNicIf1" in " ".join(explain(sources, HistoryQuestion(str(further.address), 50)).sentences)
    assert [report.name for report in pod_pool_reports(sources)] == ["default", "card:1"]


def test_an_export_is_refused_while_a_pod_has_several_interfaces(make_node: MakeNode) -> None:
    """Its file would have one address of the pod, and another pod would get the others (I1)."""
    node = make_node()
    add_pod(node, "pod")
    node.health.mark_ready()
    node.aws_node.conflists = {SAVED, OURS}
    service = ExportService(node.app.context, cooldown=node.cooldown, aws_node=node.aws_node, prefix="eni")
    (problem,) = service.export().problems
    assert "fast/pod" in problem
    assert not node.aws_node.is_exporting
    node.delete("pod")
    assert service.export().problems == []


def test_a_card_that_ec2_refuses_an_eni_does_not_bound_the_others(make_node: MakeNode) -> None:
    """EC2 allows fewer ENIs there than it said: card 0 gets its next one all the same."""
    node = make_node(limits=InstanceLimits("two.cards", 3, 3, network_card_count=2, further_card_enis=(2,)))
    node.ec2.limits = replace(LIMITS, ipv4_per_eni=3, further_card_enis=(1,))
    for number in range(2):
        add_pod(node, f"pod{number}")
        run_pool(node)
    assert len(enis_of_card(node, 1)) == 1
    assert node.pool.preview("card:1").growth.eni_cap == 1  # type: ignore[union-attr]
    assert node.pool.preview().growth.eni_cap is None  # type: ignore[union-attr]
    for number in range(2):
        add_pod(node, f"single{number}", value=None)
        run_pool(node)
    assert len(enis_of_card(node, 0)) == 3
    node.assert_sound()


def test_a_pod_that_ends_without_a_del_is_reaped_whole(make_node: MakeNode) -> None:
    """Each interface has the same evidence, and the first one takes the others along."""
    node = make_node()
    node.runtime.run("pod")
    add_pod(node, "pod")
    del node.runtime.listed["pod"]
    vanish(node, "pod")
    further = node.datastore.attachment(key_of("pod", 1))
    assert further is not None
    del node.wiring.wired[further.host_veth]
    look_often(node)
    assert names_of(node, "pod") == []
    node.cool()
    node.assert_sound()


def test_the_conflist_asks_for_annotations() -> None:
    """Also without a namespace in the list, so that a pod which may not ask is refused."""
    (ours,) = [
        entry for entry in render(Settings(network=NetworkConfig(multi_nic=True)))["plugins"] if entry["type"] == "vpc-cni"
    ]
    assert ours["capabilities"] == {POD_ANNOTATIONS: True}
