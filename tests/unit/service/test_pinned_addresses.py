"""Which pods get the address that they ask for, from where, with how many calls, and what becomes of it afterwards (docs/adr/0083)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path
from tempfile import mkdtemp
from time import monotonic
from typing import Any

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.eni.pinned import CERTAIN_S, RESERVATIONS_S, UNCLAIMED_S
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import DescribedEni
from ipamd.model.cni_request import SandboxNames
from ipamd.model.conditions import ConditionCode
from ipamd.model.eni import InstanceLimits
from ipamd.model.eni_tags import NO_MANAGE_TAG
from ipamd.model.errors import CloudError, PoolEmptyError
from ipamd.model.family import IpAddress
from ipamd.model.freeze import FreezeCause
from ipamd.model.history import LedgerEvent
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.ids import EniId, IfName, InstanceId, MacAddress
from ipamd.model.pinned_address import SAME, PinnedRange
from ipamd.model.pinned_refusals import PinnedRefusalCode
from ipamd.model.pod_annotations import ADDRESS, ADDRESS_KEPT
from ipamd.model.pod_pools import PodPool, PodPools
from ipamd.model.pool_settings import PoolSettings
from ipamd.report.explain import explain
from ipamd.settings import NetworkConfig, SubnetsConfig
from tests.fakes.cloud import PRIMARY, SUBNET, FakeEc2
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.refusing import refused_with

RANGE = IPv4Network("10.0.12.0/28")
WANTED = IPv4Address("10.0.12.5")
OTHER_NODE = InstanceId("i-0fedcba9876543210")
CALLS = ("find_holder", "find_address", "withdraw_address", "assign_address", "unassign")
CALLS_MAX = 3
RETRY_S = 10.0
"""Seconds after which kubelet repeats a refused ADD."""
SMALL = PoolSettings(warm_ip_target=2, minimum_ip_target=4)
"""The primary ENI has slots left."""


class Node(FakeNode):
    """A node whose namespace `db` may name addresses of a range; `web` may only keep its own."""

    def __init__(self, run_dir: Path, *, pool: PoolSettings = SMALL, ec2: FakeEc2 | None = None, **network: object) -> None:
        ranges = (PinnedRange("db", RANGE), PinnedRange("db", IPv4Network("10.9.0.0/24")), PinnedRange("web"))
        config = NetworkConfig(**{"pinned_ranges": ranges, **network})  # type: ignore[arg-type]
        super().__init__(run_dir, settings=pool, ec2=ec2, network=config)
        self.bring_up()

    def ask(
        self,
        name: str,
        address: str | None = str(WANTED),
        *,
        kept_s: str | None = None,
        pod: str = "db-0",
        namespace: str = "db",
        deadline_s: float = 60.0,
        **changed: object,
    ) -> Attachment:
        """ADD of a pod with annotations, while pool and cooldown work as their threads do. `address`: None: no annotation."""
        annotations: Mapping[str, str] = {
            key: value for key, value in ((ADDRESS, address), (ADDRESS_KEPT, kept_s)) if value is not None
        }
        asked = replace(self.request(name), names=SandboxNames(namespace, pod, "uid"), annotations=annotations)
        asked = replace(asked, **changed)  # type: ignore[arg-type]
        deadline = Deadline.after(self.clock, deadline_s)
        self.was_triggered()
        with ThreadPoolExecutor(1) as threads:
            future = threads.submit(self.attacher.attach_sandbox, asked, deadline=deadline, steps=StepTimer(self.clock))
            until = monotonic() + PATIENCE_S
            while not future.done():
                if monotonic() > until:
                    self.clock.advance(deadline_s)  # the ADD does not end by itself
                if self.demand.triggered.is_set():  # `was_triggered` would clear a trigger that comes meanwhile
                    self.demand.triggered.clear()
                    self.pool.cycle()
                self.cooldown.work()
            return future.result()

    def ask_again(self, name: str, address: str | None = str(WANTED), **asked: Any) -> Attachment:
        """ADD of a pod whose ADD was refused, after the runtime's pause."""
        self.clock.advance(RETRY_S)
        return self.ask(name, address, **asked)

    def calls(self) -> int:
        """EC2 calls so far, without those by which the pool grows."""
        return sum(self.ec2.calls[name] for name in CALLS)

    def put(self, eni_id: str = "eni-other", *, instance: str = OTHER_NODE, **changed: object) -> EniId:
        """Let another node's ENI have the address that the pod wants."""
        other = DescribedEni(
            EniId(eni_id),
            MacAddress("02:00:00:00:99:01"),
            SUBNET,
            IPv4Address("10.0.12.100"),
            frozenset({WANTED}),
            status="in-use",
            attachment_id="attach-other",
            attachment_status="attached",
            instance_id=instance,
            device_index=1,
        )
        self.ec2.enis[other.eni_id] = replace(other, **changed)  # type: ignore[arg-type]
        return other.eni_id

    def addresses_of(self, eni_id: EniId) -> frozenset[IpAddress]:
        """What EC2 has on an ENI."""
        return self.ec2.enis[eni_id].secondary_addresses

    def state(self, address: IpAddress = WANTED) -> tuple[AddressState, str | None] | None:
        """State of an address, and for whom it is kept; None without a row."""
        row = self.datastore.address(address)
        return None if row is None else (row.state, row.kept_for)


MakeNode = Callable[..., Node]


@pytest.fixture
def make_node(tmp_path: Path) -> MakeNode:
    """Nodes with settings of the test's choice."""
    return lambda **settings: Node(tmp_path, **settings)


def test_a_named_address_comes_from_ec2(make_node: MakeNode) -> None:
    """Two calls: who has it, and the assignment; the pod has it, and nothing else has changed."""
    node = make_node()
    before = node.calls()
    made = node.ask("a")
    assert (made.address, made.kept_s) == (WANTED, 0)
    assert node.calls() - before == 2
    assert WANTED in node.addresses_of(PRIMARY)
    node.assert_sound()


def test_a_released_address_goes_back_at_once(make_node: MakeNode) -> None:
    """By default a named address is not kept: once link and connections are gone EC2 has it, before any cooldown is over."""
    node = make_node()
    node.ask("a")
    assert node.delete("a")
    assert node.state() == (AddressState.COOLING, "db/db-0")
    node.cooldown.work()
    node.pool.cycle()
    assert (node.state(), WANTED in node.addresses_of(PRIMARY)) == (None, False)


def test_a_kept_address_stays_for_its_time(make_node: MakeNode) -> None:
    """Nobody else gets it, named or not; its pod gets it again without EC2 and without waiting for the cooldown."""
    node = make_node()
    node.ask("a", kept_s="300")
    node.delete("a")
    with refused_with(PinnedRefusalCode.KEPT_FOR_OTHER, holder_pod="db/db-0"):
        node.ask("b", pod="db-1")
    before = node.ec2.calls["assign_address"]
    began_s = node.clock.monotonic()
    assert node.ask("c", kept_s="300").address == WANTED
    assert (node.ec2.calls["assign_address"], node.clock.monotonic()) == (before, began_s)
    node.delete("c")
    node.cool()
    node.pool.cycle()
    assert node.state() == (AddressState.FREE, "db/db-0")
    node.clock.advance(300.0)
    node.pool.cycle()
    assert node.state() is None
    assert WANTED not in node.addresses_of(PRIMARY)


def test_same_as_last_time(make_node: MakeNode) -> None:
    """By namespace and name of the pod, over a restart of the daemon; after its time anybody may have the address."""
    node = make_node()
    first = node.ask("a", SAME, namespace="web").address
    node.delete("a")
    node.crash()
    node.bring_up()
    others = {node.ask(f"other-{number}", None, pod=f"p-{number}").address for number in range(3)}
    assert first not in others
    assert node.ask("b", SAME, namespace="db").address != first
    assert node.ask("c", SAME, namespace="web", kept_s="5").address == first
    node.delete("c")
    node.cool()
    node.pool.cycle()
    assert node.state(first) == (AddressState.FREE, "web/db-0")
    node.clock.advance(31.0)
    node.pool.cycle()
    assert node.state(first) == (AddressState.FREE, None)
    assert node.datastore.event_counts()[LedgerEvent.KEEPING_ENDED] == 1


@pytest.mark.parametrize(
    ("code", "address", "changed"),
    [
        (PinnedRefusalCode.NOT_ALLOWED, str(WANTED), {"namespace": "default"}),
        (PinnedRefusalCode.NOT_ALLOWED, SAME, {"namespace": ""}),
        (PinnedRefusalCode.OUTSIDE_RANGES, "10.0.12.16", {}),
        (PinnedRefusalCode.OUTSIDE_RANGES, str(WANTED), {"namespace": "web"}),
        (PinnedRefusalCode.VALUE_UNKNOWN, "10.0.12.300", {}),
        (PinnedRefusalCode.VALUE_UNKNOWN, "Same", {}),
        (PinnedRefusalCode.VALUE_UNKNOWN, "", {}),
        (PinnedRefusalCode.KEPT_UNKNOWN, str(WANTED), {"kept_s": "601"}),
        (PinnedRefusalCode.KEPT_UNKNOWN, str(WANTED), {"kept_s": "-1"}),
        (PinnedRefusalCode.KEPT_UNKNOWN, SAME, {"kept_s": "0"}),
        (PinnedRefusalCode.ANNOTATIONS_UNKNOWN, str(WANTED), {"annotations": None}),
        (PinnedRefusalCode.OTHER_SUBNET, "10.9.0.7", {}),
    ],
)
def test_what_may_not_be_had_is_refused_without_a_call(
    make_node: MakeNode, code: PinnedRefusalCode, address: str, changed: Mapping[str, object]
) -> None:
    """The pod gets nothing instead, and the refusal can be repeated."""
    node = make_node()
    calls, counts = node.calls(), node.datastore.counts()
    with refused_with(code) as refused:
        node.ask("a", address, **changed)  # type: ignore[arg-type]
    assert refused.value.retryable
    assert (node.calls(), node.datastore.counts(), node.wiring.wired) == (calls, counts, {})


def test_a_live_sandbox_keeps_its_address(make_node: MakeNode) -> None:
    """Also against its own pod's next sandbox, until its DEL (I2)."""
    node = make_node(pinned_take_namespaces=("db",))
    node.ask("a")
    for pod in ("db-0", "db-1"):
        with refused_with(PinnedRefusalCode.IN_USE_HERE, holder=node.key("a"), holder_pod="db/db-0"):
            node.ask("b", pod=pod)
    assert node.state() == (AddressState.ASSIGNED, None)
    node.assert_sound()


def test_primary_addresses_and_prefixes_are_nobodys(make_node: MakeNode) -> None:
    """Neither an ENI's own address (I6), nor one inside a /28 of somebody."""
    node = make_node(pinned_take_namespaces=("db",))
    other = node.put(primary_address=WANTED, secondary_addresses=frozenset())
    with refused_with(PinnedRefusalCode.IS_PRIMARY, eni=other):
        node.ask("a")
    node.put(secondary_addresses=frozenset(), prefixes=frozenset({RANGE}))
    before = node.calls()
    with refused_with(PinnedRefusalCode.IN_PREFIX):
        node.ask_again("b")
    assert node.calls() - before == CALLS_MAX


@pytest.mark.parametrize("state", ["running", "stopping", "shutting-down", "pending"])
def test_who_is_not_proven_gone_keeps_it(make_node: MakeNode, state: str) -> None:
    """One call, which names holder and state; nothing is withdrawn."""
    node = make_node()
    other = node.put()
    node.ec2.states[OTHER_NODE] = state
    before = node.calls()
    with refused_with(PinnedRefusalCode.HELD, eni=other, instance=OTHER_NODE, state=state):
        node.ask("a")
    assert (node.calls() - before, set(node.addresses_of(other))) == (1, {WANTED})


@pytest.mark.parametrize(("state", "takers"), [("stopped", ()), ("terminated", ()), ("running", ("db",))])
def test_it_is_taken_where_that_is_proven_or_allowed(make_node: MakeNode, state: str, takers: tuple[str, ...]) -> None:
    """Three calls: who has it, withdraw it there, assign it here; the history says from whom."""
    node = make_node(pinned_take_namespaces=takers)
    other = node.put()
    node.ec2.states[OTHER_NODE] = state
    before = node.calls()
    assert node.ask("a").address == WANTED
    assert (node.calls() - before, node.addresses_of(other)) == (CALLS_MAX, frozenset())
    (moved,) = [record for record in node.datastore.history(str(WANTED), limit=50) if record.event == LedgerEvent.MOVED]
    assert OTHER_NODE in moved.detail
    node.assert_sound()


@pytest.mark.parametrize("takers", [(), ("db",)])
def test_nothing_is_taken_from_who_could_go_on_sending(make_node: MakeNode, takers: tuple[str, ...]) -> None:
    """EC2's source check is the fence: where it is off, the address stays."""
    node = make_node(pinned_take_namespaces=takers)
    other = node.put(is_source_checked=False)
    node.ec2.states[OTHER_NODE] = "stopped"
    with refused_with(PinnedRefusalCode.SOURCE_UNCHECKED, eni=other):
        node.ask("a")
    assert node.addresses_of(other) == {WANTED}


def test_it_is_taken_from_an_eni_without_instance(make_node: MakeNode) -> None:
    """The first ADD learns that with three calls; the next one takes it with three."""
    node = make_node()
    other = node.put(instance="", attachment_id="", attachment_status="", status="available")
    for expected in (PinnedRefusalCode.HELD_UNATTACHED, None):
        before = node.calls()
        if expected is None:
            assert node.ask_again("b").address == WANTED
        else:
            with refused_with(expected, eni=other):
                node.ask("a")
        assert node.calls() - before == CALLS_MAX
    assert node.addresses_of(other) == frozenset()


def test_the_slower_of_two_nodes_gets_nothing(make_node: MakeNode) -> None:
    """Another node assigns it between our withdrawal and our assignment: it keeps it, and is not asked to give it up."""
    node = make_node()
    node.put()
    node.ec2.states[OTHER_NODE] = "stopped"

    def another_is_faster(name: str) -> None:
        if name == "pinned.withdrawn":
            node.put("eni-faster", instance="i-0faster", primary_address=IPv4Address("10.0.12.101"))

    node.failpoint = another_is_faster
    before = node.calls()
    with refused_with(PinnedRefusalCode.PENDING):
        node.ask("a")
    assert (node.calls() - before, set(node.addresses_of(EniId("eni-faster")))) == (CALLS_MAX, {WANTED})


def test_a_full_eni_makes_room(make_node: MakeNode) -> None:
    """One free address goes back to EC2 first: three calls. If the wanted one must be withdrawn too, the next ADD goes on."""
    node = make_node(pool=PoolSettings(), ec2=FakeEc2(limits=InstanceLimits("t3.small", 1, 10)))
    taken_from = len(node.addresses_of(PRIMARY))
    before = node.calls()
    assert node.ask("a").address == WANTED
    assert node.calls() - before == CALLS_MAX
    assert len(node.addresses_of(PRIMARY)) == taken_from
    node.delete("a")
    node.cooldown.work()
    node.pool.cycle()
    node.pool.cycle()
    node.put()
    node.ec2.states[OTHER_NODE] = "stopped"
    with refused_with(PinnedRefusalCode.NO_SLOT):
        node.ask("b")
    assert node.ask_again("c").address == WANTED


def test_an_assignment_that_ec2_refuses_on_a_full_eni_costs_no_fourth_call(make_node: MakeNode) -> None:
    """The first ADD makes room, the second learns who has the address, and the third takes it."""
    node = make_node(pool=PoolSettings(), ec2=FakeEc2(limits=InstanceLimits("t3.small", 1, 10)))
    other = node.put(instance="", attachment_id="", attachment_status="", status="available")
    for name, expected in (("a", PinnedRefusalCode.PENDING), ("b", PinnedRefusalCode.HELD_UNATTACHED), ("c", None)):
        before = node.calls()
        if expected is None:
            assert node.ask_again(name).address == WANTED
        else:
            with refused_with(expected):
                node.ask_again(name)
        assert node.calls() - before == CALLS_MAX
    assert node.addresses_of(other) == frozenset()
    node.assert_sound()


def test_an_answer_that_was_lost_is_found(make_node: MakeNode) -> None:
    """EC2 has it on this node, and the ADD did not hear of it: the next one needs no assignment."""
    node = make_node()
    lost = CloudError("no answer")
    lost.may_have_happened = True
    node.ec2.lose["assign_address"] = [lost]
    with refused_with(PinnedRefusalCode.PENDING):
        node.ask("a")
    assert node.ask_again("b").address == WANTED
    assert node.ec2.calls["assign_address"] == 1


@pytest.mark.parametrize("failpoint", ["pinned.assigned", "pinned.recorded", "attach.reserved", "attach.wired"])
def test_a_crash_in_between_gives_it_to_nobody_else(make_node: MakeNode, failpoint: str) -> None:
    """It is on our ENI after the start; pods that ask for nothing do not get it, and its pod does."""
    node = make_node()

    def die(name: str) -> None:
        if name == failpoint:
            raise SystemExit(name)

    node.failpoint = die
    with pytest.raises(SystemExit):
        node.ask("a")
    node.crash()
    node.bring_up()
    assert all(node.ask(f"other-{number}", None, pod=f"p-{number}").address != WANTED for number in range(6))
    node.cool()
    assert node.ask("b").address == WANTED
    node.assert_sound()


def test_what_no_add_claims_goes_back(make_node: MakeNode) -> None:
    """After a minute, as when the runtime does not repeat a failed ADD."""
    node = make_node()
    node.ask("a", kept_s="0")
    with node.datastore.transaction() as uow:
        uow.unassign(node.key("a"), cooldown=node.cooldown.period, reason="DEL")
        uow.free(WANTED, reason="cooled")
        uow.end_keeping(WANTED, reason="test")
    node.pool.cycle()
    assert node.state() == (AddressState.FREE, None)
    node.clock.advance(UNCLAIMED_S)
    node.pool.cycle()
    assert node.state() is None


def test_a_frozen_pool_asks_ec2_for_nothing(make_node: MakeNode) -> None:
    """Somebody else may give this node's addresses then (I20)."""
    node = make_node()
    node.app.context.freeze.set(FreezeCause.OPERATOR, "test")
    before = node.calls()
    with refused_with(PinnedRefusalCode.PENDING):
        node.ask("a")
    assert node.calls() == before


def test_without_the_setting_nothing_is_read(make_node: MakeNode) -> None:
    """Off by default: a pod with the annotation is as any other."""
    node = make_node(pinned_ranges=())
    assert node.app.pinned is None
    assert node.app.pool.pinned is None
    made = node.ask("a", "rubbish")
    assert (made.kept_s, node.datastore.pinned()) == (None, frozenset())


def test_other_interfaces_and_pods_are_as_before(make_node: MakeNode) -> None:
    """A further interface has no annotation of its own; a pod without one gets any address."""
    node = make_node()
    assert node.ask("a", None).kept_s is None
    further = node.key("b")
    assert node.ask("b", key=replace(further, ifname=IfName("net1"))).kept_s is None


@pytest.mark.parametrize("address", [str(WANTED), SAME])
def test_pods_of_ipv6_are_refused(tmp_path: Path, address: str) -> None:
    """An address of a /80 belongs to its node; the ranges mean nothing there."""
    network = NetworkConfig(ipv4=False, ipv6=True, pinned_ranges=(PinnedRange("db", RANGE),))
    node = FakeNode(tmp_path, network=network)
    node.bring_up()
    asked = replace(node.request("a"), names=SandboxNames("db", "db-0", "uid"), annotations={ADDRESS: address})
    with refused_with(PinnedRefusalCode.NOT_APPLICABLE):
        node.attacher.attach_sandbox(asked, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))


def test_it_is_explained(make_node: MakeNode) -> None:
    """What the pod asked for, for whom the address is kept, and that a range gives named addresses only; the metric counts both."""
    node = make_node()
    node.ask("a", kept_s="300")

    def explained() -> str:
        return " | ".join(explain(node.app.introspection.sources, HistoryQuestion(str(WANTED), 10)).sentences)

    assert "kept for its pod for 300 s" in explained()
    assert pinned_counts(node) == {"in use": 1, "kept": 0}
    node.delete("a")
    node.cool()
    assert "kept for pod db/db-0" in explained()
    assert pinned_counts(node) == {"in use": 0, "kept": 1}
    assert pinned_counts(make_node_without(node)) == {}


def make_node_without(node: Node) -> FakeNode:
    """A node of default settings."""
    return FakeNode(Path(mkdtemp(dir=node.run_dir)))


def pinned_counts(node: FakeNode) -> dict[str, float]:
    """The samples of `ipamd_pinned_addresses`."""
    samples = [sample for family in node.app.metrics.registry.collect() for sample in family.samples]
    return {sample.labels["state"]: sample.value for sample in samples if sample.name == "ipamd_pinned_addresses"}


def test_ranges_that_ec2_may_give_to_others_are_named(make_node: MakeNode) -> None:
    """Once an hour, and not in an ADD; a reservation that covers the range ends the condition."""
    node = make_node()
    node.pool.run_once()
    (told,) = [text for subject, text in node.health.conditions_by_subject().items() if subject == "pinned addresses"]
    assert str(RANGE) in str(told)
    node.ec2.reservations[SUBNET] = (IPv4Network("10.0.12.0/24"),)
    node.pool.run_once()
    assert node.ec2.calls["explicit_reservations"] == 1
    node.clock.advance(RESERVATIONS_S)
    node.pool.run_once()
    assert "pinned addresses" not in node.health.conditions_by_subject()


def _supply_condition(node: Node) -> dict[str, str] | None:
    """The fields of the condition that a subnet has no address left for other pods; None without it."""
    reports = node.health.conditions_since()
    problems = reports["pinned addresses"].problems if "pinned addresses" in reports else ()
    (fields, *more) = [dict(one.fields) for one in problems if one.code is ConditionCode.RANGES_TAKE_SUBNET] or [None]
    assert not more
    return fields


@pytest.mark.parametrize(
    ("cidrs", "is_named"),
    [
        (["10.0.0.0/20"], True),
        (["10.0.0.0/16"], True),
        (["10.0.0.0/21", "10.0.8.0/21"], True),
        (["10.0.0.0/21", "10.0.8.0/22"], False),
        (["10.9.0.0/16"], False),
    ],
)
def test_ranges_that_leave_a_subnet_no_address_for_other_pods_are_named(
    make_node: MakeNode, cidrs: list[str], is_named: bool
) -> None:
    """The pool would get addresses from EC2 that it may give to nobody."""
    node = make_node(pinned_ranges=tuple(PinnedRange("db", IPv4Network(cidr)) for cidr in cidrs))
    node.pool.run_once()
    fields = _supply_condition(node)
    assert (fields is not None) == is_named
    if fields is not None:
        assert set(fields) == {"ranges", "subnets"}
        assert (fields["subnets"], fields["ranges"]) == (SUBNET, ", ".join(cidrs))


def test_a_subnet_of_prefixes_is_left_to_all_pods(make_node: MakeNode) -> None:
    """Addresses of a /28 are given to every pod, also inside a range."""
    prefixes = PoolSettings(prefix_delegation=True, warm_prefix_target=1)
    node = make_node(pool=prefixes, pinned_ranges=(PinnedRange("db", IPv4Network("10.0.0.0/16")),))
    node.pool.run_once()
    assert _supply_condition(node) is None


def test_marks_of_earlier_settings_end(make_node: MakeNode) -> None:
    """Without the setting a kept address is anybody's after its time, and never before a cooldown (I8)."""
    node = make_node()
    node.ask("a", kept_s="300")
    node.delete("a")
    node.cool()
    node.network = NetworkConfig()
    node.crash()
    node.bring_up()
    assert node.state() == (AddressState.FREE, "db/db-0")
    node.clock.advance(300.0)
    node.pool.cycle()
    assert node.state() == (AddressState.FREE, None)


def test_an_address_on_another_pools_eni_is_refused(tmp_path: Path) -> None:
    """EC2 may give an ENI of a pool of pods an address of a range that is not reserved: a pod of the node's own pool that names it
    would get that pool's security groups.
    """
    pools = PodPools({"cards": PodPool("cards", (SUBNET,), security_group_ids=("sg-cards",), warm_ip_target=2)})
    node = FakeNode(
        tmp_path,
        settings=PoolSettings(warm_ip_target=1),
        network=NetworkConfig(pinned_ranges=(PinnedRange("db", IPv4Network("10.0.0.0/20")),)),
        subnets=SubnetsConfig(discovery=False, pod_pools=("pay=cards",)),
        pod_pools=pools,
    )
    node.bring_up()
    cards = {eni.eni_id for eni in node.datastore.enis() if eni.pool}
    row = next(row for row in node.datastore.addresses() if row.eni_id in cards)
    asked = replace(node.request("a"), names=SandboxNames("db", "db-0", "uid"), annotations={ADDRESS: str(row.address)})
    with refused_with(PinnedRefusalCode.PENDING):
        node.attacher.attach_sandbox(asked, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))
    with pytest.raises(PoolEmptyError):
        node.datastore.reserve(node.key("b"), address=row.address, pod="db/db-0")
    assert node.wiring.wired == {}


@pytest.mark.parametrize("kept_s", ["0", "300"])
def test_marks_that_a_present_sandbox_will_make_end(make_node: MakeNode, kept_s: str) -> None:
    """The setting is turned off while the pod runs: its DEL keeps the address, and nothing withholds it for ever."""
    node = make_node()
    node.ask("a", kept_s=kept_s)
    node.network = NetworkConfig()
    node.crash()
    node.bring_up()
    assert node.delete("a")
    node.cool()
    node.clock.advance(300.0)
    node.pool.cycle()
    assert node.state() == (AddressState.FREE, None)


def test_the_end_of_keeping_leaves_an_add_alone(make_node: MakeNode) -> None:
    """The ADD of its pod reserves the address between the look at what is due and the transaction: neither fails."""
    node = make_node()
    node.ask("a", kept_s="300")
    node.delete("a")
    node.cool()
    node.datastore.reserve(node.key("b"), address=WANTED, pod="db/db-0")
    with node.datastore.transaction() as uow:
        uow.end_keeping(WANTED, reason="its time is over")
    assert node.state() == (AddressState.RESERVED, "db/db-0")
    with node.datastore.transaction() as uow:
        uow.return_unused(WANTED, cooldown=node.cooldown.period, reason="test")
    assert node.state() == (AddressState.FREE, "db/db-0")


def test_room_is_made_on_the_eni_that_has_some(make_node: MakeNode) -> None:
    """All ENIs are full, and only another one than the first has free addresses: the default targets keep one such ENI."""
    node = make_node(pool=PoolSettings(), ec2=FakeEc2(limits=InstanceLimits("t", 2, 4)))
    for number in range(4):
        node.ask(f"other-{number}", None, pod=f"p-{number}")
        node.pool.cycle()
    assert [(stock.used_slot_count, stock.counts.free) for stock in node.datastore.stock().enis] == [(3, 0), (3, 2)]
    made = node.ask("a")
    assert (made.address, made.eni_id == PRIMARY) == (WANTED, False)


def test_an_eni_that_is_not_managed_any_more_is_left_alone(make_node: MakeNode) -> None:
    """An address of a range on it is nobody's business: it stays at EC2, and the pool's thread sleeps (I13)."""
    node = make_node(pool=PoolSettings(), ec2=FakeEc2(limits=InstanceLimits("t", 3, 4)))
    for number in range(4):
        node.ask(f"other-{number}", None, pod=f"p-{number}")
        node.pool.cycle()
    eni_id = next(eni.eni_id for eni in node.datastore.enis() if not eni.is_primary)
    shown = node.ec2.enis[eni_id]
    shown = replace(shown, secondary_addresses=shown.secondary_addresses | {WANTED}, tags={**shown.tags, NO_MANAGE_TAG: "true"})
    node.ec2.enis[eni_id] = replace(shown, tags={})
    node.look_twice()
    node.ec2.enis[eni_id] = shown
    node.look_twice()
    for _ in range(4):
        node.clock.advance(UNCLAIMED_S)
        node.was_triggered()
        node.pool.run_once()
    assert (node.state(), WANTED in node.addresses_of(eni_id)) == ((AddressState.FREE, None), True)
    assert node.pool._pause_s() != 0.0


@pytest.mark.parametrize("takers", [(), ("db",)], ids=["while EC2 called it stopped", "from a running node"])
def test_an_address_that_was_taken_meanwhile_is_not_given_again(make_node: MakeNode, takers: tuple[str, ...]) -> None:
    """The node keeps it for the pod, and another node took it: the row goes, and the other one keeps the address (I1, I7)."""
    node = make_node(pinned_take_namespaces=takers)
    node.ask("a", kept_s="300")
    node.delete("a")
    node.cool()
    mine = next(eni_id for eni_id, eni in node.ec2.enis.items() if WANTED in eni.secondary_addresses)
    left = node.ec2.enis[mine].secondary_addresses - {WANTED}
    node.ec2.enis[mine] = replace(node.ec2.enis[mine], secondary_addresses=left)
    taker = node.put()
    if not takers:
        node.crash()
        node.bring_up()
    with refused_with(PinnedRefusalCode.PENDING):
        node.ask("b", kept_s="300")
    assert node.addresses_of(taker) == {WANTED}
    if takers:
        assert node.ask_again("c", kept_s="300").address == WANTED
    else:
        with refused_with(PinnedRefusalCode.HELD):
            node.ask_again("c", kept_s="300")


@pytest.mark.parametrize(("takers", "calls"), [((), 0), (("db",), 1)], ids=["nobody may take it", "others may take it"])
def test_a_kept_address_costs_a_call_only_if_it_may_have_been_taken(
    make_node: MakeNode, takers: tuple[str, ...], calls: int
) -> None:
    """One DescribeInstances, by which EC2 shows that the node still has it."""
    node = make_node(pinned_take_namespaces=takers)
    node.ask("a", kept_s="300")
    node.delete("a")
    node.cool()
    node.clock.advance(CERTAIN_S + 1)
    before = node.calls()
    assert node.ask("b", kept_s="300").address == WANTED
    assert node.calls() - before == calls


def test_a_cooling_address_that_is_kept_is_nobody_elses(make_node: MakeNode) -> None:
    """An ADD of another pod does not wait for it, and is not told that it will be free."""
    node = make_node()
    node.ask("a", kept_s="300")
    assert node.delete("a")
    assert node.cooldown.next_due_s() is not None
    assert node.cooldown.next_free_s() is None
    node.ask("b", None, pod="db-1")
    assert node.delete("b")
    assert node.cooldown.next_free_s() is not None


def test_after_a_lost_datastore_the_sandbox_keeps_its_address(make_node: MakeNode) -> None:
    """Its row comes from its link and the runtime. How long the address was to be kept is lost: it goes back to EC2 a minute after
    the DEL, and is given to nobody else meanwhile.
    """
    node = make_node()
    node.ask("a", kept_s="300")
    node.runtime.run("a")
    node.crash(keep_datastore=False)
    node.bring_up()
    assert node.state() == (AddressState.ASSIGNED, None)
    assert node.delete("a")
    node.cool()
    assert node.state() == (AddressState.FREE, None)
    assert node.ask("b", None, pod="db-1").address != WANTED
    node.clock.advance(UNCLAIMED_S + 1.0)
    node.pool.cycle()
    assert WANTED not in {address for eni in node.ec2.enis.values() for address in eni.secondary_addresses}


@pytest.mark.parametrize(("kept_s", "is_free"), [("0", True), ("300", False)], ids=["it goes back to EC2", "it is kept"])
def test_a_repeated_del_does_not_prolong_a_cooldown_that_was_ended(make_node: MakeNode, kept_s: str, is_free: bool) -> None:
    """The runtime sends it while the link of the first DEL is still there; else the pod's next node waits for a whole cooldown."""
    node = make_node()
    made = node.ask("a", kept_s=kept_s)
    assert node.delete("a")
    node.wiring.wired[made.host_veth] = made.wiring  # the link is still being deleted
    assert not node.delete("a")
    assert made.host_veth not in node.wiring.wired
    node.cooldown.work()
    row = node.datastore.address(WANTED)
    assert row is not None
    assert row.is_free is is_free
