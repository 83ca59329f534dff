"""SNAT by pod in the kernel: whom the outside sees, what the sets hold, and what brings them back (docs/adr/0082)."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from ipaddress import IPv4Network, ip_address

import pytest

from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.pod_snat_sets import PodSnatSets
from ipamd.kernel.wiring import KernelWiring
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.pod_snat import PodSnat
from ipamd.model.repairs import RepairCode
from tests.errors import failed
from tests.netns.conftest import SECONDARY_MAC
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.privileged

OUTSIDE, NODE, PORT = "203.0.113.9", "10.0.0.10", 7777
ANSWER_S = 2.0
"""Ours: an answer takes a millisecond."""


class Node:
    """A node whose second ENI has the sandboxes, and the router outside. `rows` are what a datastore would have."""

    def __init__(self, make_world, **config):
        self.world = make_world(**config)
        self.rows = []
        self.router = self.world.fabric()
        for number in (5, 6):  # a VPC knows the ENI of an address without ARP
            self.router.sh(f"ip neigh add 10.0.1.{number} lladdr {SECONDARY_MAC} dev p1 nud permanent")
        self.host = self.world.host
        self.start()

    def start(self):
        """Make the adapters as a new process does, and set up node and ENI."""
        world = self.world
        self.sets = PodSnatSets(world.netns, world.nft, is_on=world.config.has_pod_snat, recorded=lambda: self.rows)
        self.wiring = KernelWiring(world.netns, veth_prefix="eni", pod_snat=self.sets)
        self.hostnet = KernelHostNetwork(
            world.netns, config=world.config, nft=world.nft, attachments=lambda: self.rows, pod_snat=self.sets
        )
        self.hostnet.setup_node(world.identity())
        self.hostnet.setup_eni(world.eni())

    def add(self, number, choice):
        """Wire a sandbox of the second ENI; returns its namespace and what was wired."""
        sandbox = self.world.space()
        spec = self.world.spec(sandbox, number=number, table=self.world.eni().route_table)
        spec = replace(spec, address=type(spec.address)(f"10.0.1.{number}"), snat=choice)
        self.wiring.wire(spec)
        return sandbox, spec

    def reconcile(self):
        """A pass over the node; returns the codes of its reports."""
        return [report.code for report in self.hostnet.reconcile(identity=self.world.identity(), enis=[self.world.eni()])]

    def assert_followed(self):
        """What ADD and DEL changed is no difference: the tables count as unchanged, the audit and a pass find nothing."""
        assert self.hostnet.are_tables_in_place() is not False
        assert self.sets.tables.is_unchanged() is True
        assert self.hostnet.differences(identity=self.world.identity(), enis=[self.world.eni()]) == []
        assert self.reconcile() == []

    def sets_shown(self):
        """What nft shows of both sets."""
        shown = {}
        for choice in PodSnat:
            text = self.host.sh(f"nft list set ip vpc-ipamd snat_{choice}")
            _, _, elements = text.partition("elements = {")
            shown[choice] = {part.strip() for part in elements.partition("}")[0].split(",") if part.strip()}
        return shown


@pytest.fixture
def node(make_world):
    """A node where pods may differ from its SNAT."""
    return Node(make_world, snat_annotation_namespaces=("web",))


def ask(client, server, address):
    """Send a question from one namespace to an address in another; returns whom the server saw, None without an answer."""

    def listen():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(ANSWER_S)
        sock.bind((address, PORT))
        return sock

    def question():
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.settimeout(ANSWER_S)
        sock.sendto(b"who am I", (address, PORT))
        return sock

    listening, asking = server.call(listen), client.call(question)
    with listening, asking:
        try:
            _, source = listening.recvfrom(100)
            listening.sendto(b"you", source)
            asking.recv(100)
        except TimeoutError:
            return None
    return source[0]


@pytest.mark.parametrize(
    ("choice", "seen_as"), [(None, NODE), (PodSnat.NONE, "10.0.1.5"), (PodSnat.FORCE, NODE)], ids=["-", "none", "force"]
)
def test_the_outside_sees_what_was_chosen(node, choice, seen_as):
    """With `none` a pod of a secondary ENI is seen as itself, and answers arrive; connections from outside reach it in any case."""
    sandbox, spec = node.add(5, choice)
    assert ask(sandbox, node.router, OUTSIDE) == seen_as
    assert ask(node.router, sandbox, str(spec.address)) is not None
    node.assert_followed()


@pytest.mark.parametrize(
    "config",
    [{"external_snat": True}, {"exclude_snat_cidrs": (IPv4Network("203.0.113.0/24"),)}],
    ids=["external-snat", "excluded"],
)
def test_force_translates_against_the_other_settings(make_world, config):
    """The node's address is seen of a forced pod alone; within the VPC it is seen as itself."""
    node = Node(make_world, snat_annotation_namespaces=("web",), **config)
    forced, _ = node.add(5, PodSnat.FORCE)
    other, _ = node.add(6, None)
    assert ask(forced, node.router, OUTSIDE) == NODE
    assert ask(other, node.router, OUTSIDE) == "10.0.1.6"
    assert ask(forced, node.router, "10.0.77.7") == "10.0.1.5"
    assert node.reconcile() == []


@pytest.mark.parametrize("way", ["unwire", "mark_for_deletion", "remove_leftover"])
def test_nothing_remains_of_a_deleted_sandbox(node, way):
    """Rollback, DEL and the removal of what has no owner take the address out, and only that one; no repair reports it."""
    _, kept = node.add(6, PodSnat.FORCE)
    _, spec = node.add(5, PodSnat.NONE)
    assert node.sets_shown() == {PodSnat.NONE: {str(spec.address)}, PodSnat.FORCE: {str(kept.address)}}
    if way == "remove_leftover":
        node.wiring.remove_leftover(host_veth=spec.host_veth, address=None, key=spec.key)
    else:
        getattr(node.wiring, way)(spec)
    assert node.sets_shown() == {PodSnat.NONE: set(), PodSnat.FORCE: {str(kept.address)}}
    node.assert_followed()


def test_the_next_sandbox_of_an_address_has_its_own_choice(node, monkeypatch):
    """Even if nftables refused to take an address out, no later sandbox gets the choice of an earlier one."""
    _, spec = node.add(5, PodSnat.NONE)
    with monkeypatch.context() as patch:
        patch.setattr(node.world.nft, "run", refuse)
        node.wiring.unwire(spec)
    assert str(spec.address) in node.sets_shown()[PodSnat.NONE]
    sandbox, _ = node.add(5, None)
    assert node.sets_shown() == {PodSnat.NONE: set(), PodSnat.FORCE: set()}
    assert ask(sandbox, node.router, OUTSIDE) == NODE


def refuse(commands, **_):
    """Refuse as nftables does."""
    raise WiringError("refused")


def test_a_flush_is_repaired_with_the_addresses(node):
    """After `nft flush ruleset` a pass restores the table with its sets; CHECK names the difference until then."""
    sandbox, spec = node.add(5, PodSnat.NONE)
    node.host.sh("nft flush ruleset")
    assert DifferenceCode.SNAT_CHOICE in [difference.code for difference in node.wiring.check(spec)]
    assert RepairCode.ADDED in node.reconcile()
    assert node.sets_shown()[PodSnat.NONE] == {str(spec.address)}
    assert node.wiring.check(spec) == []
    assert ask(sandbox, node.router, OUTSIDE) == str(spec.address)


def test_a_replacement_keeps_the_addresses(node):
    """A further CIDR of the VPC replaces the table, and its sets have their addresses in the same transaction."""
    _, spec = node.add(5, PodSnat.NONE)
    node.world.vpc_cidrs = (*node.world.vpc_cidrs, IPv4Network("100.64.0.0/16"))
    assert node.reconcile() == [RepairCode.TABLE_FOLLOWED]
    assert node.sets_shown()[PodSnat.NONE] == {str(spec.address)}


@pytest.mark.parametrize(
    "change", ["delete element ip vpc-ipamd snat_none { 10.0.1.5 }", "add element ip vpc-ipamd snat_none { 10.0.1.9 }"]
)
def test_a_change_by_others_is_repaired(node, change):
    """What other software takes out of a set or puts into it is corrected, and reported."""
    node.add(5, PodSnat.NONE)
    assert node.reconcile() == []
    node.host.sh(f"nft {change!r}")
    assert node.hostnet.are_tables_in_place() is not True
    assert node.reconcile() == [RepairCode.TABLE_RESTORED]
    assert node.sets_shown()[PodSnat.NONE] == {"10.0.1.5"}


@pytest.mark.parametrize("is_lost", [False, True], ids=["rows", "kernel"])
def test_a_restart_keeps_the_addresses(node, is_lost):
    """A new process has them from the rows; if these are lost, from what the kernel still has, also for the survey."""
    _, spec = node.add(5, PodSnat.NONE)
    if not is_lost:
        node.rows.append(spec)
        node.host.sh("nft flush ruleset")
    node.start()
    assert node.sets_shown()[PodSnat.NONE] == {str(spec.address)}
    assert node.wiring.survey().snat == {spec.address: PodSnat.NONE}


def test_an_address_that_cannot_be_entered_is_refused(node):
    """An ADD for which nftables has no table fails, and leaves no link and no entry."""
    node.host.sh("nft flush ruleset")
    before = node.host.link_names()
    with pytest.raises(WiringError, check=failed(FailureCode.NFT_REFUSED)):
        node.add(5, PodSnat.NONE)
    assert node.host.link_names() == before
    node.reconcile()
    assert node.sets_shown() == {PodSnat.NONE: set(), PodSnat.FORCE: set()}


def test_without_a_setting_there_are_no_sets(make_world):
    """The table is that of a node without the feature until a recorded sandbox has a choice from earlier settings."""
    node = Node(make_world)
    assert "snat_none" not in node.host.sh("nft list table ip vpc-ipamd")
    assert node.wiring.survey().snat is None
    spec = replace(node.world.spec("/nowhere"), snat=PodSnat.NONE)
    node.rows.append(spec)
    node.start()
    assert node.sets_shown()[PodSnat.NONE] == {str(spec.address)}


def test_the_answer_about_a_packet_follows_the_choice(node):
    """`ipamctl path` asks the same values as the table is made of."""
    from ipamd.model.packet_path import NewConnection

    _, spec = node.add(5, PodSnat.NONE)
    packet = NewConnection(spec.address, ip_address(OUTSIDE), spec.host_veth, "eth1")
    answer = node.hostnet.translation(packet, node.world.identity())
    assert (answer.mark, answer.source) == (0, None)
    answer = node.hostnet.translation(replace(packet, source=spec.address + 1), node.world.identity())
    assert (answer.mark, str(answer.source)) == (0x80, NODE)


def test_an_add_beside_a_replacement_is_not_lost(node, monkeypatch):
    """An address that an ADD enters while a repair is about to replace the table is in the new one when the ADD goes on."""
    run, address = node.world.nft.run, ip_address("10.0.1.5")
    threads = []

    def run_beside_an_add(commands, **options):
        if "delete table ip vpc-ipamd\n" in commands and not threads:
            threads.append(threading.Thread(target=node.sets.enter, args=(address, PodSnat.NONE)))
            threads[0].start()
            threads[0].join(0.2)  # without the lock it would be done by now
        return run(commands, **options)

    monkeypatch.setattr(node.world.nft, "run", run_beside_an_add)
    node.world.vpc_cidrs = (*node.world.vpc_cidrs, IPv4Network("100.64.0.0/16"))
    assert node.reconcile() == [RepairCode.TABLE_FOLLOWED]
    threads[0].join(PATIENCE_S)
    assert node.sets_shown()[PodSnat.NONE] == {str(address)}
