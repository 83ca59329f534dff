"""What other hands do in a run, on a VPC without nodes: each deed changes EC2, is in the book before it is done, or is refused."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_address, ip_network
from types import SimpleNamespace
from typing import Any

import pytest

from lab.chaos.book import LINK_S, NOTICE_S, RECENT_S
from lab.chaos.expected_state import ExpectedState, PodRecord
from lab.chaos.hands import OtherHands, pool_of
from lab.chaos.healing import address_count, is_for_sandboxes
from lab.chaos.history import History
from lab.chaos.lies import HANDS, IPV6_HANDS
from lab.chaos.observer import OURS
from lab.lab import IPV6_CIDR
from lab.vpc.addresses import AddressRequest
from lab.vpc.family import IPV4, IPV6, Family
from lab.vpc.hands import NO_MANAGE
from lab.vpc.model import Address
from lab.vpc.state import Vpc


class Stage:
    """Two nodes, each with one ENI of ours that has three addresses, the first of which a sandbox has."""

    def __init__(self, vpc: Vpc, *, family: Family = IPV4) -> None:
        self.vpc = vpc
        subnet = vpc.add_subnet("10.0.0.0/24", ipv6_cidr=f"{vpc.ipv6_cidr.network_address}/64" if vpc.ipv6_cidr else "")
        nodes = {name: vpc.add_instance(name=name, subnet_id=subnet.subnet_id) for name in ("node-a", "node-b")}
        self.settled_at_s: list[float] = []
        settle = lambda: self.settled_at_s.append(self.history.now())  # noqa: E731
        lab: Any = SimpleNamespace(vpc=vpc, nodes=nodes, node=nodes.__getitem__, settle=settle)
        self.history = History()
        self.expected = ExpectedState(clock=self.history.now, cooldown_s=5.0, report=self.history.violate)
        self.eni_ids = {}
        for name, node in nodes.items():
            eni = vpc.interfaces.create(
                subnet.subnet_id, AddressRequest(address_count=3), groups=(), description=f"{OURS}{node.instance_id}"
            )
            vpc.interfaces.attach(eni.eni_id, node.instance_id, device_index=1)
            self.eni_ids[name] = eni.eni_id
            address: Address = eni.secondary_addresses[0]
            if family is IPV6:
                primary = vpc.enis_of(node.instance_id)[0]
                address = vpc.hands.assign_ipv6(primary.eni_id, prefix_count=1).ipv6_prefixes[0][7]
            self.expected.on_created(PodRecord(name, "p", name, str(address), "", 0.0))
        families = dict.fromkeys(nodes, family)
        self.hands = OtherHands(lab, expected=self.expected, history=self.history, families=families)
        self.nodes = nodes

    def do(self, what: str, **args: Any) -> None:
        """Do one deed to node-a, to the first thing it can be done to."""
        self.hands.do("node-a", {"what": what, "pick": 0.0, "type": "interface", "tagged": False, **args})

    @property
    def used(self) -> str:
        """The address of node-a's sandbox."""
        return self.expected.wanted("node-a")[0].address

    def is_hit(self, address: str) -> bool:
        """Whether the book says that node-a lost an address."""
        return self.expected.book.takes().hit("node-a", address, 0.0)


@pytest.fixture
def stage() -> Iterator[Stage]:
    """Return the stage."""
    with Vpc() as vpc:
        yield Stage(vpc)


def test_a_used_eni_is_detached(stage: Stage) -> None:
    """All its addresses are taken; an idle one is chosen for `detach-idle`, and the used one when there is no other."""
    eni = stage.vpc.world.eni(stage.eni_ids["node-a"])
    node_id = stage.nodes["node-a"].instance_id
    idle = stage.vpc.interfaces.create(eni.subnet_id, AddressRequest(), groups=(), description=f"{OURS}{node_id}")
    stage.vpc.interfaces.attach(idle.eni_id, node_id, device_index=2)
    stage.do("detach-idle")
    assert stage.vpc.world.eni(idle.eni_id).attachment is None
    assert stage.vpc.world.eni(eni.eni_id).attachment is not None
    stage.do("detach-idle")
    assert stage.vpc.world.eni(eni.eni_id).attachment is None
    assert all(stage.is_hit(address) for address in pool_of(eni))


@pytest.mark.parametrize(("what", "is_used"), [("unassign-used", True), ("unassign-free", False)])
def test_an_address_is_unassigned(stage: Stage, what: str, is_used: bool) -> None:
    """The one of a sandbox, or another one."""
    before = pool_of(stage.vpc.world.eni(stage.eni_ids["node-a"]))
    stage.do(what)
    (gone,) = set(before) - set(pool_of(stage.vpc.world.eni(stage.eni_ids["node-a"])))
    assert (gone == stage.used) == is_used
    assert [address for address in before if stage.is_hit(address)] == [gone]


def test_an_address_moves_to_the_other_node(stage: Stage) -> None:
    """A used one, and only node-a lost it."""
    stage.do("move")
    holders = {
        name for name, node in stage.nodes.items() for eni in stage.vpc.enis_of(node.instance_id) if stage.used in pool_of(eni)
    }
    assert holders == {"node-b"}
    assert stage.is_hit(stage.used)
    assert not stage.expected.book.takes().hit("node-b", stage.used, 0.0)


def test_a_refused_deed_is_not_in_the_book(stage: Stage) -> None:
    """EC2 has no room on the other ENI: the address stays, and nobody is excused."""
    for eni in stage.vpc.enis_of(stage.nodes["node-b"].instance_id):
        stage.vpc.interfaces.assign(eni.eni_id, AddressRequest(address_count=9 - len(eni.secondary_addresses)))
    stage.do("move")
    assert stage.used in pool_of(stage.vpc.world.eni(stage.eni_ids["node-a"]))
    assert not stage.is_hit(stage.used)


def test_addresses_are_given(stage: Stage) -> None:
    """One more than before, and nothing taken."""
    before = address_count(stage.vpc.enis_of(stage.nodes["node-a"].instance_id))
    stage.do("give")
    assert address_count(stage.vpc.enis_of(stage.nodes["node-a"].instance_id)) == before + 1
    assert stage.expected.book.takes().until_s == {}


def test_a_prefix_is_given(stage: Stage) -> None:
    """Sixteen more than before, and nothing taken."""
    before = address_count(stage.vpc.enis_of(stage.nodes["node-a"].instance_id))
    stage.do("give-prefix")
    assert address_count(stage.vpc.enis_of(stage.nodes["node-a"].instance_id)) == before + 16
    assert stage.expected.book.takes().until_s == {}


def test_an_eni_is_deleted(stage: Stage) -> None:
    """With all its addresses."""
    eni = stage.vpc.world.eni(stage.eni_ids["node-a"])
    stage.do("delete")
    assert stage.eni_ids["node-a"] not in stage.vpc.world.enis
    assert all(stage.is_hit(address) for address in pool_of(eni))


def test_a_branch_is_no_business_of_the_node(stage: Stage) -> None:
    """It hangs on its trunk and on no instance, so nobody asks later whether it still hangs there."""
    stage.do("attach", type="branch")
    assert stage.expected.book.foreign() == {}
    assert any(eni.interface_type == "branch" for eni in stage.vpc.enis())


@pytest.mark.parametrize(
    ("kind", "tagged", "usable"), [("interface", False, True), ("interface", True, False), ("efa-only", False, False)]
)
def test_foreign_enis_are_brought(stage: Stage, kind: str, tagged: bool, usable: bool) -> None:
    """They are in the book, and no deed is done to them afterwards."""
    stage.do("attach", type=kind, tagged=tagged)
    (eni_id,) = stage.expected.book.foreign()
    eni = stage.vpc.world.eni(eni_id)
    assert is_for_sandboxes(eni) == usable
    assert (eni.tags == NO_MANAGE) == tagged
    stage.do("detach-idle")
    assert stage.vpc.world.eni(eni_id).attachment is not None


def test_groups_are_changed(stage: Stage) -> None:
    """Of the primary ENI."""
    before = stage.vpc.enis_of(stage.nodes["node-a"].instance_id)[0].security_groups
    stage.do("groups")
    assert stage.vpc.enis_of(stage.nodes["node-a"].instance_id)[0].security_groups != before


@pytest.mark.parametrize("what", HANDS)
def test_every_deed_that_is_drawn_can_be_done(stage: Stage, what: str) -> None:
    """On a node that has nothing but its primary ENI too."""
    stage.do(what)
    stage.vpc.hands.delete(stage.eni_ids["node-b"])
    stage.hands.do("node-b", {"what": what, "pick": 0.99, "type": "interface", "tagged": False})
    assert stage.history.violations == []


def test_a_prefix_that_waits_for_a_sandbox_is_not_counted(stage: Stage) -> None:
    """A hand took it from one ENI, EC2 gave it to another, and a sandbox still has an address of it."""
    stage.do("give-prefix")
    enis = stage.vpc.enis_of(stage.nodes["node-a"].instance_id)
    (eni,) = [eni for eni in enis if eni.prefixes]
    address = eni.prefixes[0][3]
    assert address_count(enis) - address_count(enis, lost={"eni-another": [address]}) == 16
    assert address_count(enis) == address_count(enis, lost={eni.eni_id: [address]})
    single = next(eni for eni in enis if eni.secondary_addresses).secondary_addresses[0]
    assert address_count(enis) - address_count(enis, lost={"eni-another": [single]}) == 1


@pytest.mark.parametrize("what", ["give", "give-prefix"])
def test_a_node_without_an_eni_is_given_nothing(stage: Stage, what: str) -> None:
    """Its last one was taken before, or is not attached yet: a run goes on."""
    for eni in stage.vpc.enis_of(stage.nodes["node-a"].instance_id):
        stage.expected.book.brought(eni.eni_id, "node-a")
    before = address_count(stage.vpc.enis_of(stage.nodes["node-a"].instance_id))
    stage.do(what)
    assert address_count(stage.vpc.enis_of(stage.nodes["node-a"].instance_id)) == before
    assert not stage.history.counts[f"fault hands {what}"]


@pytest.fixture
def ipv6_stage() -> Iterator[Stage]:
    """The same in a VPC with IPv6; node-a's sandbox has an address of its /80."""
    with Vpc(ipv6_cidr=IPV6_CIDR) as vpc:
        yield Stage(vpc, family=IPV6)


def prefixes(stage: Stage) -> list[str]:
    """The /80s of node-a's primary ENI."""
    return pool_of(stage.vpc.enis_of(stage.nodes["node-a"].instance_id)[0], IPV6)


def test_a_prefix_is_taken_with_all_that_is_in_it(ipv6_stage: Stage) -> None:
    """In use or not; the only one that the node has goes only when it is in use: else nothing would be left to take."""
    ipv6_stage.do("unassign-free")
    assert len(prefixes(ipv6_stage)) == 1
    ipv6_stage.do("give-prefix")
    used, other = sorted(prefixes(ipv6_stage), key=lambda one: ip_address(ipv6_stage.used) not in ip_network(one))
    ipv6_stage.do("unassign-free")
    assert prefixes(ipv6_stage) == [used]
    assert not ipv6_stage.is_hit(ipv6_stage.used)
    assert ipv6_stage.is_hit(str(ip_network(other)[5]))
    ipv6_stage.do("unassign-used")
    assert prefixes(ipv6_stage) == []
    assert ipv6_stage.is_hit(ipv6_stage.used)


@pytest.mark.parametrize("what", IPV6_HANDS)
def test_every_deed_to_a_node_with_ipv6_can_be_done(ipv6_stage: Stage, what: str) -> None:
    """Once it was done there is something in the history, and a second time it is done or refused."""
    ipv6_stage.do("give-prefix")
    ipv6_stage.do(what)
    assert ipv6_stage.history.counts[f"fault hands {what}"]
    ipv6_stage.do(what)
    assert ipv6_stage.history.violations == []


def test_a_link_that_goes_late_is_excused_from_then_on(stage: Stage) -> None:
    """The lab unplugs when it comes to it; what the daemon gives until then nobody could know better."""
    stage.do("detach-used")
    (settled_at_s,) = stage.settled_at_s
    assert stage.expected.book.takes().until_s["node-a", stage.used] >= settled_at_s + LINK_S


@pytest.mark.parametrize(("age_s", "fresh_s"), [(20.0, RECENT_S - 20.0), (RECENT_S, 0.0), (2 * RECENT_S + 1.0, 0.0)])
def test_what_came_lately_is_missed_later(age_s: float, fresh_s: float) -> None:
    """A daemon does not believe for some minutes that EC2 lacks what it has just been given; both bounds are later by the rest."""
    now_s = [0.0]
    with Vpc(clock=lambda: now_s[0]) as vpc:
        stage = Stage(vpc)
        now_s[0] += age_s
        vpc.tick()
        stage.do("unassign-used")
        takes, key = stage.expected.book.takes(), ("node-a", stage.used)
        bound_s = NOTICE_S + fresh_s
        assert (takes.until_s[key] - takes.since_s[key], takes.agreed_s[key] - takes.since_s[key]) == pytest.approx(
            (bound_s, bound_s)
        )
