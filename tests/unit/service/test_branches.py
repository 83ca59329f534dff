"""Pods with security groups of their own: what a sandbox gets by what is known of its pod, the node and other sandboxes (I19)."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.health import Phase
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment, WiringSpec, pod_veth_name, veth_name
from ipamd.model.cni_request import AttachRequest, SandboxNames
from ipamd.model.conditions import ConditionCode
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.eni import Eni
from ipamd.model.errors import (
    BusyError,
    CheckFailedError,
    DatastoreError,
    IpamError,
    NotServingError,
    PodFactsError,
    PolicyAgentSilentError,
    TombstonedError,
    UplinkPendingError,
    VethNameTakenError,
    WiringError,
)
from ipamd.model.family import IPV4, IPV6
from ipamd.model.ids import AttachmentKey, IfName
from ipamd.model.kernel_numbers import STRICT_VETH_PREFIX
from ipamd.model.legs.branch_eni import KERNELS_TABLES
from ipamd.model.legs.branch_errors import BranchAnnotationError
from ipamd.model.legs.branch_requirement import NOBODY_MARKS
from ipamd.model.legs.refusals import BranchRefusalCode
from ipamd.model.pod_annotations import SNAT
from ipamd.model.pod_facts import GroupRequirement, PodFacts
from ipamd.model.refusals import RefusalCode
from ipamd.model.sandbox import SandboxState
from ipamd.ports.process import no_failpoint
from ipamd.sandbox.detach import leftover_uplink
from ipamd.sandbox.legs.branch import FACTS, MARKS, WAIT_MARGIN_S, WAITING_LIMIT
from ipamd.settings import NetworkConfig
from tests.conditions import codes
from tests.crash.test_simulated import KilledHere, kill_at
from tests.fakes.cloud import FakeEc2
from tests.fakes.kernel import TRUNK
from tests.fakes.node import FakeNode
from tests.fakes.pod_facts import annotation
from tests.families import family_for, in_both, network_of
from tests.patience import PATIENCE_S
from tests.refusing import refused_with
from tests.rig import wait_until
from tests.stories.external_changes import pass_time
from tests.unit.service.branches import TRUNK_ENI


def made(path: Path, *, mode: str = "strict", trunk: bool = True, policy_mode: str = "none", network: NetworkConfig) -> FakeNode:
    """A node that serves such pods, and serves."""
    ec2 = FakeEc2(family=network.family)
    ec2.enis |= {TRUNK_ENI.eni_id: replace(TRUNK_ENI, has_ipv6=True)} if trunk else {}
    node = FakeNode(path, ec2=ec2, network=replace(network, pod_eni=True, pod_groups_mode=mode), policy_mode=policy_mode)
    node.bring_up()
    return node


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """In strict mode, of the family that a test asks for."""
    one = made(tmp_path, network=network_of(family_for(request)))
    yield one
    one.assert_sound()
    one.datastore.close()


@pytest.fixture(params=["strict", "standard"])
def either(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeNode]:
    """In each mode."""
    one = made(tmp_path, mode=request.param, network=NetworkConfig())
    yield one
    one.assert_sound()
    one.datastore.close()


def request(node: FakeNode, sandbox: str, *, pod: str = "", ifname: str = "eth0") -> AttachRequest:
    """An ADD for a sandbox of a pod, one of its own if none is named."""
    asked = node.request(sandbox)
    key = AttachmentKey(asked.key.container_id, IfName(ifname))
    return replace(asked, key=key, names=SandboxNames("default", pod or sandbox, "uid"))


def add(node: FakeNode, sandbox: str, *, deadline_s: float = 60.0, pod: str = "", steps: StepTimer | None = None) -> Attachment:
    """ADD."""
    deadline = Deadline.after(node.clock, deadline_s)
    made = node.attacher.attach_sandbox(request(node, sandbox, pod=pod), deadline=deadline, steps=steps or StepTimer(node.clock))
    node.runtime.run(sandbox)
    return made


def branch(node: FakeNode, sandbox: str, vlan: int, *, pod: str = "", **changed: object) -> Attachment:
    """ADD of a pod that the control plane has told its branch ENI."""
    node.pod_facts.put(sandbox, annotation(vlan, **changed))  # type: ignore[arg-type]  # fields of the annotation
    return add(node, sandbox, pod=pod)


def confirm(node: FakeNode, attachment: Attachment) -> None:
    """EC2 has said the same of its branch ENI as its annotation, and a pass of the host network has followed."""
    with node.datastore.transaction() as uow:
        uow.record_contradiction(attachment.key, contradiction="")
    node.host_reconciler.reconcile()


def refused(node: FakeNode, sandbox: str, error: type[IpamError], **options: float | str) -> IpamError:
    """An ADD that is refused with code 11 and a next step; nothing of it is left, and no address was spent."""
    before = node.wiring.survey(), node.datastore.attachments(), node.datastore.counts()
    with pytest.raises(error) as refusal:
        add(node, sandbox, **options)  # type: ignore[arg-type]  # of a table
    assert (node.wiring.survey(), node.datastore.attachments(), node.datastore.counts()) == before
    assert refusal.value.cni_code == 11
    assert refusal.value.details, "I14"
    assert node.locks.holders() == []
    return refusal.value


def restart(node: FakeNode, *, keep_datastore: bool = True) -> None:
    """kill -9, and a start."""
    node.crash(keep_datastore=keep_datastore)
    node.bring_up()


def test_a_further_interface_is_refused_at_once(node: FakeNode) -> None:
    """Multus's net1 of a pod with security groups of its own gets neither its branch ENI nor an address of the pool (I19)."""
    first = branch(node, "a", 2)
    before = node.datastore.attachments(), node.datastore.counts(), node.clock.monotonic()
    with pytest.raises(BranchAnnotationError) as refusal:
        node.attacher.attach_sandbox(
            request(node, "a", ifname="net1"), deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock)
        )
    assert refusal.value.cni_code == 11
    assert (node.datastore.attachments(), node.datastore.counts(), node.clock.monotonic()) == before
    assert node.datastore.attachment(first.key) == first


def test_an_annotation_about_snat_is_refused(tmp_path: Path) -> None:
    """Packets of a pod with a branch ENI leave by that: its annotation is refused by a code, and lists do not concern it."""
    network = NetworkConfig(snat_annotation_namespaces=("default",), snat_exempt_pods=("default",))
    node = made(tmp_path, network=network)
    node.pod_facts.put("a", annotation(2))
    asked = replace(request(node, "a"), annotations={SNAT: "none"})
    with refused_with(RefusalCode.SNAT_NOT_APPLICABLE):
        node.attacher.attach_sandbox(asked, deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock))
    served = node.attacher.attach_sandbox(
        replace(asked, annotations={}), deadline=Deadline.after(node.clock, 60.0), steps=StepTimer(node.clock)
    )
    assert (served.is_of_pool, served.snat) == (False, None)
    node.datastore.close()


# What a sandbox gets by what is known of its pod.

ANNOTATED = annotation(2)

OUTCOMES: list[tuple[str, GroupRequirement, str, type[IpamError] | str]] = [
    ("told, and wanted", GroupRequirement.YES, ANNOTATED, "branch"),
    ("wanted, and not told yet", GroupRequirement.YES, "", UplinkPendingError),
    ("not wanted", GroupRequirement.NO, "", "pool"),
    ("not wanted, and told", GroupRequirement.NO, ANNOTATED, BranchAnnotationError),
    ("nobody tells", GroupRequirement.UNKNOWN, "", PodFactsError),
    ("nobody tells, and told", GroupRequirement.UNKNOWN, ANNOTATED, PodFactsError),
    ("no mark, where nobody marks", GroupRequirement.UNMARKED, "", "pool"),
    ("no mark, and told", GroupRequirement.UNMARKED, ANNOTATED, "branch"),
    ("older than who marks", GroupRequirement.OLDER, "", PodFactsError),
    ("older, and told", GroupRequirement.OLDER, ANNOTATED, "branch"),
]


@in_both("node")
@pytest.mark.parametrize(("wish", "told", "outcome"), [row[1:] for row in OUTCOMES], ids=[row[0] for row in OUTCOMES])
def test_what_is_known_decides(node: FakeNode, wish: GroupRequirement, told: str, outcome: type[IpamError] | str) -> None:
    """Branch ENI, pool address, or a refusal that can be retried; a pod that must have groups never gets an address of the pool."""
    node.pod_facts.put("a", told, requirement=wish)
    node.pod_facts.tells_later = False
    if not isinstance(outcome, str):
        refused(node, "a", outcome)
        return
    one = add(node, "a")
    assert (one.uplink is not None) == (outcome == "branch")
    assert (node.datastore.address(one.address) is None) == (outcome == "branch")


@in_both("node")
def test_what_it_gets(node: FakeNode) -> None:
    """The annotation's address of the pool's family, its ENI, VLAN and MAC; no row and no cooldown of an address, at ADD or DEL."""
    before = node.datastore.counts()
    node.was_triggered()
    one = branch(node, "a", 2)
    assert node.was_triggered(), "the pool's thread compares it with EC2"
    told = "10.0.129.102" if node.network.family is IPV4 else "2001:db8:9::66"
    gateway = "10.0.128.1" if node.network.family is IPV4 else "fe80:ec2::1"
    assert one.uplink is not None
    assert (str(one.address), one.eni_id, one.route_table) == (told, "eni-00002", 102)
    assert (one.uplink.vlan, one.uplink.mac, str(one.uplink.gateway), one.uplink.is_strict) == (
        2,
        "06:00:00:00:00:02",
        gateway,
        True,
    )
    assert one.host_veth == pod_veth_name("default", "a", prefix=STRICT_VETH_PREFIX)
    node.checker.check_sandbox(request(node, "a"), deadline=Deadline.after(node.clock, 1.0))
    assert node.delete("a")
    assert node.datastore.counts() == before
    assert node.cooldown.next_due_s() is None
    assert node.cooldown.dying_count() == 2
    node.cooldown.work()
    assert (node.wiring.vlans, node.wiring.wired, node.cooldown.dying_count()) == ({}, {}, 0)
    assert not node.delete("a")
    with pytest.raises(TombstonedError):
        add(node, "a")


def test_the_mode_decides_the_name(either: FakeNode) -> None:
    """`vlan` in strict mode, as SNAT and others know it; else the prefix of all."""
    one = branch(either, "a", 3)
    assert one.uplink is not None
    prefix = STRICT_VETH_PREFIX if one.uplink.is_strict else "eni"
    assert one.host_veth == pod_veth_name("default", "a", prefix=prefix)
    assert one.address not in either.wiring.routes, "in standard mode not before EC2 has confirmed it"
    confirm(either, one)
    assert (one.address in either.wiring.routes) == (not one.uplink.is_strict)


@pytest.mark.parametrize(
    "text", ["{", "[]", annotation(0), annotation(4095), annotation(7, privateIp="10.8.0.1"), annotation(7, eniId="x")]
)
def test_a_strangers_annotation(node: FakeNode, text: str) -> None:
    """What cannot be is refused before anything is done."""
    node.pod_facts.put("a", text)
    refused(node, "a", BranchAnnotationError)
    assert node.wiring.vlans == {}


def test_a_silent_source_is_a_condition(node: FakeNode) -> None:
    """It says that pods get no address, and ends with the first answer."""
    node.pod_facts.put("a", requirement=GroupRequirement.UNKNOWN)
    refused(node, "a", PodFactsError)
    assert codes(node.health, FACTS) == {ConditionCode.POD_FACTS_MISSING}
    node.health.require_status()
    add(node, "b")
    assert FACTS not in node.health.conditions_by_subject()


def test_what_concerns_one_pod_is_no_condition(node: FakeNode) -> None:
    """A pod that was deleted while its ADD waited is not known to kubelet any more: others get their addresses, and nobody says no."""
    gone = PodFacts(GroupRequirement.UNKNOWN, "kubelet does not have pod uid", is_of_pod=True)
    node.pod_facts.put("a")
    node.pod_facts.meanwhile = lambda: node.pod_facts.of.update({node.key("a").container_id: gone})
    refused(node, "a", PodFactsError)
    assert FACTS not in node.health.conditions_by_subject()
    node.pod_facts.put("c", requirement=GroupRequirement.UNKNOWN)
    refused(node, "c", PodFactsError)
    assert FACTS in node.health.conditions_by_subject()
    refused(node, "a", PodFactsError)
    assert FACTS not in node.health.conditions_by_subject(), "the source tells again, though nothing of this pod"


def test_unmarked_pods_are_a_condition_until_one_is_marked(node: FakeNode) -> None:
    """Nobody marks pods; then somebody does, which is remembered over a restart."""
    node.pod_facts.put("a", requirement=GroupRequirement.UNMARKED)
    add(node, "a")
    assert node.health.conditions_by_subject()[MARKS] == NOBODY_MARKS
    node.pod_facts.put("b", requirement=GroupRequirement.NO, is_marked=True)
    add(node, "b")
    assert MARKS not in node.health.conditions_by_subject()
    assert node.datastore.are_pods_marked()
    restart(node)
    assert node.datastore.are_pods_marked()


# The wait.


def test_told_while_it_waits(node: FakeNode) -> None:
    """It waits with neither place nor lock, and attaches as soon as it is told; what it waited for is a step of its own."""
    node.pod_facts.put("a")
    held: list[object] = []

    def told_later() -> None:
        held.append((node.locks.holders(), node.attacher._places._value))
        if len(node.pod_facts.waits) == 3:
            node.pod_facts.put("a", annotation(2))

    free = node.attacher._places._value
    node.pod_facts.meanwhile = told_later
    steps = StepTimer(node.clock)
    assert add(node, "a", steps=steps).uplink is not None
    assert held == [([], free)] * 3
    assert steps.durations_ms["branch"] == pytest.approx(3000)
    assert node.app.branches is not None
    assert node.app.branches.waiting_keys() == ()


@pytest.mark.parametrize(("trunk", "step"), [(True, "VPC resource controller"), (False, "has-trunk-attached")])
def test_the_deadline_passes(tmp_path: Path, trunk: bool, step: str) -> None:
    """Refused so long before the caller's deadline that there would have been time to wire, with a step that helps (I14)."""
    node = made(tmp_path, trunk=trunk, network=NetworkConfig())
    node.pod_facts.put("a")
    node.pod_facts.meanwhile = lambda: None if trunk else (node.pool.run_once(), None)[1]
    began = node.clock.monotonic()
    assert step in refused(node, "a", UplinkPendingError, deadline_s=20.0).details
    assert node.clock.monotonic() - began == pytest.approx(20.0 - WAIT_MARGIN_S)
    node.datastore.close()


def test_a_source_that_tells_nothing_later(node: FakeNode) -> None:
    """Refused at once: the runtime makes another sandbox, with the annotations of then."""
    node.pod_facts.put("a")
    node.pod_facts.tells_later = False
    began = node.clock.monotonic()
    refused(node, "a", UplinkPendingError)
    assert node.clock.monotonic() == began


def test_the_caller_leaves(node: FakeNode) -> None:
    """Within a look; nothing is left."""
    node.pod_facts.put("a")
    deadline = Deadline.after(node.clock, 60.0, is_cancelled=lambda: len(node.pod_facts.waits) == 2)
    with refused_with(RefusalCode.CALLER_LEFT):
        node.attacher.attach_sandbox(request(node, "a"), deadline=deadline, steps=StepTimer(node.clock))
    assert node.app.branches is not None
    assert node.app.branches.waiting_keys() == ()
    assert node.wiring.wired == {}


def test_its_del_comes_while_it_waits(node: FakeNode) -> None:
    """The DEL waits for nobody, and the ADD is refused for good (I4)."""
    node.pod_facts.put("a")
    began = []

    def deleted() -> None:
        before = node.clock.monotonic()
        assert not node.delete("a")
        began.append(node.clock.monotonic() - before)
        node.pod_facts.put("a", annotation(2))
        node.pod_facts.meanwhile = lambda: None

    node.pod_facts.meanwhile = deleted
    with pytest.raises(TombstonedError):
        add(node, "a")
    assert began == [0.0]
    assert node.wiring.vlans == {}


def test_it_is_attached_by_a_repetition_while_it_waits(node: FakeNode) -> None:
    """The runtime repeats a request that it gave up: both get the same answer."""
    node.pod_facts.put("a")
    made: list[Attachment] = []

    def repeated() -> None:
        node.pod_facts.meanwhile = lambda: None
        node.pod_facts.put("a", annotation(2))
        made.append(add(node, "a"))

    node.pod_facts.meanwhile = repeated
    assert add(node, "a") == made[0]
    assert node.attacher.replayed_count == 1


def test_the_node_shuts_down_while_it_waits(node: FakeNode) -> None:
    """It is left to the successor."""
    node.pod_facts.put("a")
    node.pod_facts.meanwhile = lambda: node.health.enter(Phase.DRAINING)
    with pytest.raises(NotServingError):
        add(node, "a")


def test_too_many_wait(node: FakeNode) -> None:
    """Beyond the bound an ADD is refused at once, whoever waits goes on waiting, and pods of the pool are served meanwhile."""
    branches = node.app.branches
    assert branches is not None
    others = [branches.waiting(request(node, f"w{number}"), Deadline.after(node.clock, 60.0)) for number in range(WAITING_LIMIT)]
    for one in others:
        one.__enter__()
    node.pod_facts.put("a")
    assert f"{WAITING_LIMIT} ADDs wait" in str(refused(node, "a", BusyError))
    assert add(node, "p").uplink is None
    assert branch(node, "b", 4).uplink is not None, "one that need not wait needs no thread"
    others[0].__exit__(None, None, None)
    node.pod_facts.meanwhile = lambda: node.pod_facts.put("a", annotation(2))
    assert add(node, "a").uplink is not None
    for one in others[1:]:
        one.__exit__(None, None, None)
    assert node.app.rpc_limit == node.shipped.daemon.max_concurrent_rpcs + WAITING_LIMIT


def test_it_takes_no_place_of_an_add(node: FakeNode) -> None:
    """All places are taken while one waits: it goes on, and attaches."""
    node.pod_facts.put("a")
    taken = 0

    def crowded() -> None:
        nonlocal taken
        while node.attacher._places.acquire(blocking=False):
            taken += 1
        node.pod_facts.put("a", annotation(2))

    node.pod_facts.meanwhile = crowded
    assert add(node, "a").uplink is not None
    with pytest.raises(BusyError):
        add(node, "p")
    for _ in range(taken):
        node.attacher._places.release()


# Against what others have.


def live(node: FakeNode) -> None:
    """A live sandbox has VLAN 2, eni-00002 and the address of host 102."""
    branch(node, "live", 2)


def pool_address(node: FakeNode) -> str:
    """One that the pool has to give."""
    return str(node.datastore.addresses(state=AddressState.FREE)[0].address)


def primary(node: FakeNode) -> Eni:
    """The primary ENI."""
    return next(one for one in node.datastore.enis() if one.is_primary)


CLASHES: dict[str, Callable[[FakeNode], dict[str, object]]] = {
    "the VLAN of another": lambda _: {"vlan": 2, "host": 150, "eni": "eni-00009"},
    "the address of another": lambda _: {"vlan": 5, "host": 102, "eni": "eni-00009"},
    "the ENI of another": lambda _: {"vlan": 5, "host": 150, "eni": "eni-00002"},
    "the MAC of another": lambda _: {"vlan": 5, "host": 150, "ifAddress": "06:00:00:00:00:02"},
    "an address of the pool": lambda node: {"vlan": 5, "privateIp": pool_address(node), "subnetCidr": "10.0.0.0/16"},
    "a primary address": lambda _: {"vlan": 5, "privateIp": "10.0.0.10", "subnetCidr": "10.0.0.0/16"},
    "the trunk's MAC": lambda _: {"vlan": 5, "ifAddress": TRUNK_ENI.mac},
    "the primary ENI's MAC": lambda node: {"vlan": 5, "ifAddress": primary(node).mac},
    "the trunk itself": lambda _: {"vlan": 5, "eni": TRUNK_ENI.eni_id},
    "a table of the kernel": lambda _: {"vlan": KERNELS_TABLES[1] - 100},
}


@pytest.mark.parametrize("clash", CLASHES)
def test_what_others_have(node: FakeNode, clash: str) -> None:
    """Refused: neither the live sandbox nor the pool loses anything, whoever wrote the annotation."""
    live(node)
    refused_branch(node, "b", **CLASHES[clash](node))  # type: ignore[arg-type]  # fields of the annotation


def test_the_address_of_another_with_a_zone(tmp_path: Path) -> None:
    """To the kernel it is the same one, and it would take what is sent to the other."""
    node = made(tmp_path, network=network_of(IPV6))
    live(node)
    refused_branch(node, "b", vlan=5, host=150, ipv6Addr="2001:db8:9::66%lo")
    node.datastore.close()


def test_an_address_of_a_prefix(tmp_path: Path) -> None:
    """Of a /80 every address is the pool's, those without a row too."""
    node = made(tmp_path, network=network_of(IPV6))
    prefix = next(row.prefix for row in node.datastore.addresses() if row.prefix)
    refused_branch(node, "b", vlan=5, ipv6Addr=str(prefix[12345]), subnetV6Cidr=str(prefix.supernet(new_prefix=64)))
    node.datastore.close()


def test_the_table_of_an_eni(node: FakeNode) -> None:
    """An ENI at a high device index has the table that the VLAN would have."""
    eni = next(one for one in node.datastore.enis() if not one.is_primary)
    with node.datastore.transaction() as uow:
        uow.put_eni(replace(eni, device_index=104))
    assert refused_branch(node, "b", vlan=5).refusal == BranchRefusalCode.BRANCH_CONFLICT


def test_an_address_beyond_the_vpc(node: FakeNode) -> None:
    """A stranger named a host of the internet: in standard mode what the node sends there would go to the sandbox."""
    error = refused_branch(node, "b", vlan=5, privateIp="198.51.100.7", subnetCidr="198.51.100.0/24")
    assert error.refusal == BranchRefusalCode.BRANCH_CONFLICT


def refused_branch(
    node: FakeNode, sandbox: str, *, pod: str = "", error: type[IpamError] = BranchAnnotationError, **of: object
) -> IpamError:
    """An ADD with an annotation, refused."""
    node.pod_facts.put(sandbox, annotation(**of))  # type: ignore[arg-type]  # fields of the annotation
    return refused(node, sandbox, error, pod=pod)


def test_the_pool_gets_the_address_of_a_sandbox(node: FakeNode) -> None:
    """EC2 gives the pool an address that a stranger's annotation had named before: the sandbox keeps it, the pool goes without, and
    says so."""
    eni = next(one for one in node.ec2.attached() if one.device_index == 0)
    told = IPv4Address("10.0.3.33")
    one = branch(node, "a", 5, privateIp=str(told), subnetCidr="10.0.0.0/16")
    node.ec2.enis[eni.eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses | {told})
    result = node.look_twice()
    assert node.datastore.attachment(one.key) == one
    assert node.datastore.address(told) is None
    assert any("recorded as that of sandbox" in str(kept) for kept in result.contradictions)


def test_both_at_once(node: FakeNode) -> None:
    """Two ADDs that are told the same VLAN: one waits for the other, and is refused; the link of the first is not touched."""
    node.pod_facts.put("a", annotation(2))
    node.pod_facts.put("b", annotation(2, host=150, eni="eni-00009"))
    refusals: list[BaseException] = []

    def second() -> None:
        try:
            add(node, "b")
        except IpamError as error:
            refusals.append(error)

    thread = threading.Thread(target=second)

    def while_wiring(spec: WiringSpec) -> None:
        node.wiring.before_wire = lambda _: None
        thread.start()
        wait_until(lambda: any(one.waiting_count for one in node.locks.holders()), what="the second waits")

    node.wiring.before_wire = while_wiring
    assert add(node, "a").uplink is not None
    thread.join(PATIENCE_S)
    assert [type(one) for one in refusals] == [BranchAnnotationError]


# Sandboxes of one pod, one after the other.


def test_the_pods_next_sandbox(either: FakeNode) -> None:
    """While the first one is recorded it keeps the branch ENI, though the runtime says that it is not ready; after its DEL the next
    one has it, at once, and a late DEL of the first touches nothing of the second."""
    node = either
    first = branch(node, "a", 2, pod="web-0")
    node.runtime.run("a", state=SandboxState.NOTREADY)
    refusal = refused_branch(node, "b", vlan=2, pod="web-0", error=UplinkPendingError)
    assert refusal.refusal == BranchRefusalCode.BRANCH_OF_PREDECESSOR
    assert node.delete("a")
    second = add(node, "b", pod="web-0")
    assert (second.address, second.host_veth) == (first.address, first.host_veth)
    before = node.wiring.survey()
    assert not node.delete("a")
    node.cooldown.work()
    assert node.wiring.survey() == before
    confirm(node, second)
    node.checker.check_sandbox(request(node, "b"), deadline=Deadline.after(node.clock, 1.0))


def test_a_pod_of_that_name_with_another_branch(either: FakeNode) -> None:
    """A StatefulSet's next pod: its own branch ENI, and the name of the first one's link, which is not ready any more."""
    node = either
    first = branch(node, "a", 2, pod="web-0")
    refused_branch(node, "b", vlan=3, pod="web-0", error=VethNameTakenError)
    node.runtime.run("a", state=SandboxState.NOTREADY)
    second = add(node, "b", pod="web-0")
    moved = node.datastore.attachment(first.key)
    assert moved is not None
    prefix = second.host_veth[:-11]
    assert (second.host_veth, moved.host_veth) == (first.host_veth, veth_name(first.key, prefix=prefix))
    assert {link.vlan for link in node.wiring.survey().vlans} == {2, 3}
    assert node.delete("a")
    node.cooldown.work()
    assert {link.vlan for link in node.wiring.survey().vlans} == {3}
    assert list(node.wiring.wired) == [second.host_veth]


def test_a_pod_without_groups_of_that_name(node: FakeNode) -> None:
    """It has a link of another name, and an address of the pool."""
    node.network = replace(node.network, pod_veth_names=True)
    restart(node)
    branch(node, "a", 2, pod="web-0")
    node.runtime.run("a", state=SandboxState.NOTREADY)
    assert add(node, "b", pod="web-0").uplink is None
    assert len(node.wiring.wired) == 2


def test_a_pod_with_groups_after_one_without(node: FakeNode) -> None:
    """In strict mode its link's name begins otherwise. A policy agent takes the first of both that is there: so the predecessor gives
    its name away all the same, or the pod would run without a filter (I21).
    """
    node.network = replace(node.network, pod_veth_names=True)
    restart(node)
    first = add(node, "a", pod="web-0")
    refused_branch(node, "b", vlan=2, pod="web-0", error=VethNameTakenError)
    node.runtime.run("a", state=SandboxState.NOTREADY)
    second = add(node, "b", pod="web-0")
    moved = node.datastore.attachment(first.key)
    assert moved is not None
    assert moved.host_veth == veth_name(first.key, prefix="eni")
    assert node.wiring.wired.keys() == {moved.host_veth, second.host_veth}
    add(node, "c", pod="web-1")
    assert node.delete("c")
    last = branch(node, "d", 3, pod="web-1")
    assert node.wiring.wired.keys() == {moved.host_veth, second.host_veth, last.host_veth}, "a link that is dying is gone"


STALE = {
    "of ours": ("10.0.129.77", 2),
    "of the same address": ("10.0.129.102", 2),
    "without our alias": (None, 2),
}


@pytest.mark.parametrize("stale", STALE)
def test_a_stale_link_of_a_dead_sandbox(node: FakeNode, stale: str) -> None:
    """Nobody needs it any more: it is replaced, and nothing of the new sandbox goes with it."""
    address, vlan = STALE[stale]
    node.wiring.leave_vlan(vlan, IPv4Address(address) if address else None)
    one = branch(node, "a", 2)
    assert node.wiring.vlans[2].address == one.address
    node.quarantine.inspect_wiring(node.wiring.survey())
    assert node.wiring.vlans[2].address == one.address


def test_stale_links_are_swept(node: FakeNode) -> None:
    """Those of ours that nobody has, at the next look and at the next start; one of other software is left alone."""
    node.wiring.leave_vlan(7, IPv4Address("10.0.129.77"))
    node.wiring.leave_vlan(8, None)
    live(node)
    node.quarantine.inspect_wiring(node.wiring.survey())
    assert node.wiring.vlans.keys() == {2, 8}
    node.wiring.leave_vlan(7, IPv4Address("10.0.129.77"))
    restart(node)
    assert node.wiring.vlans.keys() == {2, 8}


def test_the_link_of_a_recorded_sandbox_is_not_swept(node: FakeNode) -> None:
    """Its veth is missing: whoever judges that sandbox decides about both."""
    one = branch(node, "a", 2)
    del node.wiring.wired[one.host_veth]
    node.quarantine.inspect_wiring(node.wiring.survey())
    assert node.wiring.vlans.keys() == {2}


def test_what_is_left_of_a_predecessor_is_nothing_of_the_next(node: FakeNode) -> None:
    """A sweep that began before the pod's next sandbox came, and a veth that no row has: what that sandbox has is left alone (I2)."""
    first = branch(node, "a", 2, pod="web-0")
    node.delete("a")
    batch = dict(node.cooldown._dying)
    assert len(batch) == 2
    branch(node, "b", 2, pod="web-0")
    before = node.wiring.survey()
    assert node.cooldown._remove_one_by_one(batch) == {}
    assert node.wiring.survey() == before
    veth = replace(before.uplinked[0], name="vlanother", key=first.key)
    assert leftover_uplink(veth, before, node.datastore) == (None, None)
    assert node.delete("b")
    assert leftover_uplink(veth, before, node.datastore) == (first.address, first.uplink)


def test_a_link_that_an_add_is_making_is_not_swept(node: FakeNode) -> None:
    """The look at the kernel came between its link and its veth."""
    node.pod_facts.put("a", annotation(2))

    def look(_: WiringSpec) -> None:
        node.wiring.leave_vlan(2, IPv4Address("10.0.129.102"))
        node.quarantine.inspect_wiring(node.wiring.survey())
        assert node.wiring.vlans.keys() == {2}

    node.wiring.before_wire = look
    add(node, "a")


# What refuses.


@pytest.mark.parametrize(
    "how", ["no trunk", "no link of the trunk", "the kernel refuses", "the disk refuses", "the agent refuses"]
)
def test_what_refuses_leaves_nothing(tmp_path: Path, how: str) -> None:
    """Typed, with a next step; links are gone, and the branch ENI is free for the next ADD (I5)."""
    node = made(tmp_path, trunk=how != "no trunk", network=NetworkConfig(pod_veth_names=True), policy_mode="strict")
    node.pod_facts.put("a", annotation(2))
    error: type[IpamError] = UplinkPendingError
    if how == "no link of the trunk":
        node.wiring.trunks.clear()
    elif how == "the kernel refuses":
        node.wiring.fail["wire"], error = [WiringError("no", details="see the log")], WiringError
    elif how == "the disk refuses":
        error = DatastoreError
        node.failpoint = full_disk
    elif how == "the agent refuses":
        node.policy_agent.is_silent, error = True, PolicyAgentSilentError
    with pytest.raises(error):
        add(node, "a")
    assert (node.wiring.vlans, node.wiring.wired, node.datastore.attachments()) == ({}, {}, ())
    if how != "no trunk":
        node.wiring.trunks, node.failpoint, node.policy_agent.is_silent = {TRUNK}, no_failpoint, False
        assert add(node, "a").uplink is not None
        assert node.policy_agent.unfiltered == []
        node.assert_sound()
    node.datastore.close()


def full_disk(name: str) -> None:
    """At the commit of an attachment."""
    if name == "attach.wired":
        raise DatastoreError("the disk is full", details="make room")


def test_a_rollback_that_fails(node: FakeNode) -> None:
    """The links are deleted later, both of them; until then the VLAN is refused to others, and the pool goes on."""
    node.pod_facts.put("a", annotation(2))
    node.failpoint = full_disk
    no = WiringError("busy", details="later")
    node.wiring.fail |= {"unwire": [no], "mark_for_deletion": [no]}
    with pytest.raises(DatastoreError):
        add(node, "a")
    node.failpoint = no_failpoint
    assert node.wiring.vlans
    node.wiring.fail["remove_leftover"] = [no]
    with pytest.raises(IpamError):
        branch(node, "b", 2, host=150, eni="eni-00009")
    add(node, "p")
    node.cooldown.work()
    assert (node.wiring.vlans, node.cooldown.dying_count()) == ({}, 0)
    assert branch(node, "b", 2, host=150, eni="eni-00009").uplink is not None


def test_links_that_cannot_be_swept_as_a_group(node: FakeNode) -> None:
    """They are removed one by one, and never those of the pod's next sandbox."""
    branch(node, "a", 2, pod="web-0")
    node.delete("a")
    node.wiring.fail["sweep"] = [WiringError("no")] * 2
    with pytest.raises(BusyError):
        branch(node, "b", 2, pod="web-0")
    node.cooldown.work()
    assert node.wiring.vlans == {}
    add(node, "b", pod="web-0")


def test_check_tells_what_is_wrong(node: FakeNode) -> None:
    """A VLAN link that is gone, and what EC2 says against the annotation."""
    one = branch(node, "a", 2)
    asked = request(node, "a")
    with node.datastore.transaction() as uow:
        assert uow.record_contradiction(one.key, contradiction="").contradiction == ""
    node.checker.check_sandbox(asked, deadline=Deadline.after(node.clock, 1.0))
    del node.wiring.vlans[2]
    with node.datastore.transaction() as uow:
        uow.record_contradiction(one.key, contradiction="its MAC is another")
    with pytest.raises(CheckFailedError) as refusal:
        node.checker.check_sandbox(asked, deadline=Deadline.after(node.clock, 1.0))
    assert DifferenceCode.UPLINK_MISSING in refusal.value.differences
    assert "its MAC is another" in refusal.value.lost
    assert (refusal.value.address, refusal.value.eni_id) == (str(one.address), one.eni_id)
    node.wiring.leave_vlan(2, one.address, eni_id=one.eni_id)


# Without a DEL, and after a loss.


@in_both("node")
def test_a_restart_keeps_it(node: FakeNode) -> None:
    """The same row, the same wiring; the same request gets the same answer."""
    one = branch(node, "a", 2)
    before = node.wiring.survey()
    restart(node)
    assert node.datastore.attachments() == (one,)
    assert node.wiring.survey() == before
    assert add(node, "a") == one
    assert node.pod_facts.asked == ["a"]


@in_both("node")
@pytest.mark.parametrize("cri", ["answers", "is silent", "does not list it"])
def test_a_lost_datastore(node: FakeNode, cri: str) -> None:
    """Rebuilt from the aliases of veth and VLAN link if the runtime lists the sandbox; otherwise nothing of it is touched, and its
    VLAN is refused to others until that is settled (I2, I11)."""
    one = branch(node, "a", 2)
    add(node, "p")
    if cri == "is silent":
        node.runtime.is_down = True
    elif cri == "does not list it":
        del node.runtime.listed[one.key.container_id]
    before = node.wiring.survey()
    restart(node, keep_datastore=False)
    found = node.datastore.attachment(one.key)
    assert node.wiring.survey() == before
    if cri == "answers":
        assert found is not None
        assert (found.uplink, found.address, found.eni_id, found.host_veth) == (
            one.uplink,
            one.address,
            one.eni_id,
            one.host_veth,
        )
        return
    assert found is None
    assert codes(node.health, "unrecorded sandboxes") == {ConditionCode.UNRECORDED_SANDBOXES}
    refused_branch(node, "b", vlan=2, host=150, eni="eni-00009", error=UplinkPendingError)
    node.runtime.is_down = False
    node.runtime.run("a")
    node.runtime.run("p")
    node.runtime_reconciler.reconcile_once()
    found = node.datastore.attachment(one.key)
    assert found is not None
    assert found.uplink == one.uplink
    assert "unrecorded sandboxes" not in node.health.conditions_by_subject()
    refused_branch(node, "b", vlan=2, host=150, eni="eni-00009")


def test_a_lost_datastore_without_its_vlan_link(node: FakeNode) -> None:
    """Its veth does not tell its ENI: it stays as it is, and its DEL removes it."""
    branch(node, "a", 2)
    node.wiring.vlans.clear()
    restart(node, keep_datastore=False)
    assert node.datastore.attachments() == ()
    assert "unrecorded sandboxes" in node.health.conditions_by_subject()
    assert not node.delete("a")
    assert node.wiring.wired == {}


def test_del_after_a_lost_datastore(node: FakeNode) -> None:
    """Veth and VLAN link go, though no row tells them."""
    branch(node, "a", 2)
    node.runtime.is_down = True
    restart(node, keep_datastore=False)
    assert not node.delete("a")
    assert (node.wiring.wired, node.wiring.vlans) == ({}, {})


def test_what_an_add_left(node: FakeNode) -> None:
    """Killed between wiring and commit: nobody was promised anything, and both links are removed at the next start."""
    node.pod_facts.put("a", annotation(2))
    node.failpoint = kill_at("attach.wired")
    node.attacher._roll_back = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(KilledHere):
        add(node, "a")
    assert node.wiring.vlans
    restart(node)
    assert (node.wiring.wired, node.wiring.vlans, node.datastore.attachments()) == ({}, {}, ())
    add(node, "a")


def test_no_del_ever_comes(node: FakeNode) -> None:
    """Reaped by the same verdict as all others: not before it is old enough, on the clock that is never set."""
    node.clock.advance(400.0)
    one = branch(node, "a", 2)
    add(node, "p")
    del node.runtime.listed[one.key.container_id]
    del node.wiring.netns[one.netns]
    del node.wiring.wired[one.host_veth]
    for seconds in (11.0, 11.0, 200.0):
        node.clock.advance(seconds)
        assert node.runtime_reconciler.reconcile_once() == []
    node.clock.advance(100.0)
    assert node.runtime_reconciler.reconcile_once() == [one.key]
    node.cooldown.work()
    assert node.wiring.vlans == {}


def test_gc_frees_it(node: FakeNode) -> None:
    """By the runtime's list of valid attachments, once veth and namespace are gone."""
    one = branch(node, "a", 2)
    add(node, "p")
    steps, deadline = StepTimer(node.clock), Deadline.after(node.clock, 10.0)
    collect = partial(
        node.collector.collect, frozenset({node.key("p")}), network_name="vpc-ipamd", deadline=deadline, steps=steps
    )
    assert collect().kept == (one.key,)
    del node.wiring.netns[one.netns]
    del node.wiring.wired[one.host_veth]
    del node.runtime.listed[one.key.container_id]
    node.clock.advance(301.0)
    assert collect().freed == (one.key,)


def test_off_nothing_of_it_is_imported(tmp_path: Path) -> None:
    """Nor asked; and what it left is kept, and ends with its DEL."""
    node = made(tmp_path, network=NetworkConfig())
    one = branch(node, "a", 2)
    node.network = NetworkConfig()
    restart(node)
    assert node.app.branches is None
    assert node.datastore.attachments() == (one,)
    node.pod_facts.of.clear()
    assert add(node, "b").uplink is None
    assert node.delete("a")
    node.cooldown.work()
    assert node.wiring.vlans == {}
    node.assert_sound()
    node.datastore.close()
    code = "import ipamd.process.bootstrap, ipamd.process.adapters, sys; sys.exit('ipamd.sandbox.legs.branch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_living_sandbox_that_could_not_be_adopted_outlives_a_silent_runtime(either: FakeNode) -> None:
    """Datastore and VLAN link were lost together (chaos, seed 2360): that it has no row says nothing of its ADD."""
    one = branch(either, "a", 2)
    del either.wiring.vlans[2]
    restart(either, keep_datastore=False)
    assert not list(either.datastore.attachments())
    either.runtime.is_down = True
    restart(either)
    assert one.host_veth in either.wiring.wired
    either.runtime.is_down = False
    restart(either)
    assert one.host_veth in either.wiring.wired
    either.delete("a")
    assert not either.wiring.wired


def test_what_an_add_left_waits_for_a_silent_runtime(either: FakeNode) -> None:
    """It was not promised; nobody says so before the runtime does."""
    either.pod_facts.put("a", annotation(2))
    either.failpoint = kill_at("attach.wired")
    either.attacher._roll_back = lambda *_, **__: None  # type: ignore[method-assign]
    with pytest.raises(KilledHere):
        add(either, "a")
    either.runtime.is_down = True
    restart(either)
    assert either.wiring.wired
    either.runtime.is_down = False
    restart(either)
    assert not either.wiring.wired


def test_the_instance_is_not_asked_for_a_branch_eni(node: FakeNode) -> None:
    """I13: a sandbox of a branch ENI has no row, and no answer about the instance's own ENIs can give it one."""
    branch(node, "a", 2)
    node.wiring.vlans.clear()
    restart(node, keep_datastore=False)
    assert codes(node.health, "unrecorded sandboxes") == {ConditionCode.UNRECORDED_SANDBOXES}
    for _ in range(100):
        pass_time(node, 60)
    before = node.ec2.calls["describe_enis"]
    for _ in range(12 * 60):
        pass_time(node, 60)
    assert node.ec2.calls["describe_enis"] == before
