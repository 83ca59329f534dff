"""Settings that change under running pods: new ones take effect at the restart, and no open flow breaks.

Packets decide: the fabric has a strict reverse path, so an answer that leaves by the wrong ENI is lost.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

import pytest

from ipamd.kernel import uapi
from ipamd.kernel.hostnet import KernelHostNetwork
from ipamd.kernel.netlink import Message
from ipamd.model.repairs import RepairCode
from ipamd.settings import NetworkConfig
from tests.netns.test_host_network import TO_SECONDARY
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.privileged

NODE_PORT = (
    "nft 'add table ip kube; add chain ip kube pre { type nat hook prerouting priority dstnat; };"
    " add rule ip kube pre ip daddr 10.0.0.10 udp dport 30000 dnat to 10.0.1.20:4000'"
)
POD = "10.0.1.20"
OUTSIDE = "203.0.113.9"


class Node:
    """A pod on the secondary ENI, a NodePort to it, and flows that stay open."""

    def __init__(self, world, stack):
        self.world, self.stack = world, stack
        self.vpc = world.fabric()
        self.vpc.sh(TO_SECONDARY)
        self.pod = world.space()
        self.spec = replace(world.spec(self.pod, number=20, table=2), address=IPv4Address(POD))
        self.hostnet = world.hostnet
        self.start(world.config)
        world.wiring.wire(self.spec)
        world.host.sh(NODE_PORT)
        self.server = self.bound(self.pod, "0.0.0.0", 4000)

    def start(self, config):
        """A daemon with these settings starts on the node."""
        self.hostnet = KernelHostNetwork(
            self.world.netns, config=config, nft=self.world.nft, link_wait_s=2.0, attachments=lambda: [self.spec]
        )
        self.hostnet.setup_node(self.world.identity())
        self.hostnet.setup_eni(self.world.eni())

    def renew(self, config):
        """The daemon that runs takes other settings over, and its next pass follows."""
        self.hostnet.apply_settings(config, self.world.identity())
        self.hostnet.reconcile(identity=self.world.identity(), enis=[self.world.eni()])

    def bound(self, space, address="", port=0):
        """A UDP socket in a namespace."""
        made = self.stack.enter_context(space.call(socket.socket, socket.AF_INET, socket.SOCK_DGRAM))
        made.settimeout(PATIENCE_S)
        made.bind((address, port))
        return made

    def from_outside(self):
        """A client of the NodePort."""
        client = self.bound(self.vpc, "10.0.77.7")
        client.connect(("10.0.0.10", 30000))
        return client

    def from_pod(self, address=OUTSIDE):
        """A flow of the pod to a server outside: both ends."""
        server = self.bound(self.vpc, address, 5000 + len(self.world.spaces))
        client = self.bound(self.pod)
        client.connect(server.getsockname())
        return client, server

    def answers(self, client):
        """One exchange over the NodePort."""
        client.send(b"in")
        _, peer = self.server.recvfrom(16)
        self.server.sendto(b"answer", peer)
        assert client.recv(16) == b"answer"

    @staticmethod
    def exchange(client, server):
        """One exchange that the pod began; the pod's address as the server sees it."""
        client.send(b"out")
        _, peer = server.recvfrom(16)
        server.sendto(b"back", peer)
        assert client.recv(16) == b"back"
        return peer[0]


@pytest.fixture
def node(world):
    """A node with default settings and its pod."""
    with contextlib.ExitStack() as stack:
        yield Node(world, stack)


@pytest.mark.parametrize(
    "changed",
    [
        {"connmark": 0x200},
        {"veth_prefix": "pod"},
        {"veth_prefix": "pod", "connmark": 0x200},
        {"external_snat": True},
        {"external_snat": True, "node_port_support": False},
        {"node_port_support": False},
        {"exclude_snat_cidrs": (IPv4Network("203.0.113.0/24"),)},
        {"randomize_snat": "none"},
        {"eni_mtu": 1500},
    ],
    ids=lambda changed: "+".join(changed),
)
def test_open_flows_live_on(node, changed):
    """Flows of both directions go on after a restart with the changed setting, and after the next comparison, too."""
    client, flow = node.from_outside(), node.from_pod()
    node.answers(client)
    seen = node.exchange(*flow)
    assert seen == "10.0.0.10"
    node.start(NetworkConfig(**changed))
    for _ in range(2):
        node.answers(client)
        assert node.exchange(*flow) == seen
        assert node.hostnet.reconcile(identity=node.world.identity(), enis=[node.world.eni()]) == []
        assert node.hostnet.differences(identity=node.world.identity(), enis=[node.world.eni()]) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"connmark": 0x200},
        {"external_snat": True},
        {"node_port_support": False},
        {"exclude_snat_cidrs": (IPv4Network("203.0.113.0/24"),)},
        {"randomize_snat": "none"},
        {"eni_mtu": 1500},
        {"external_service_cidrs": (IPv4Network("198.51.100.0/24"),)},
    ],
    ids=lambda changed: "+".join(changed),
)
def test_open_flows_live_on_without_a_restart(node, changed):
    """The same for what is live, and taking the change back leaves nothing that differs."""
    client, flow = node.from_outside(), node.from_pod()
    node.answers(client)
    seen = node.exchange(*flow)
    for config in (NetworkConfig(**changed), NetworkConfig()):
        node.renew(config)
        node.answers(client)
        assert node.exchange(*flow) == seen
        assert node.hostnet.differences(identity=node.world.identity(), enis=[node.world.eni()]) == []


@pytest.mark.parametrize("changed", [{"connmark": 0x200}, {"veth_prefix": "pod"}], ids=lambda changed: "+".join(changed))
def test_new_flows_of_old_pods_take_the_new_settings(node, changed):
    """A pod that was wired before the change is served like any other."""
    node.start(NetworkConfig(**changed))
    node.answers(node.from_outside())
    assert node.exchange(*node.from_pod()) == "10.0.0.10"
    assert hex(changed.get("connmark", 0x80)) in node.world.host.sh("ip rule show prio 1024")


def test_excluded_cidrs_take_effect(node):
    """New flows to an excluded CIDR keep the pod's address."""
    node.vpc.sh("ip addr add 203.0.113.10/32 dev lo")
    node.start(NetworkConfig(exclude_snat_cidrs=(IPv4Network("203.0.113.10/32"),)))
    assert node.exchange(*node.from_pod("203.0.113.10")) == POD


def test_old_prefix_is_covered_while_a_veth_has_it(node):
    """It stays in the table until the start after the last one has gone: nothing differs in between."""
    recorded = [node.spec]
    config = NetworkConfig(veth_prefix="pod")

    def start():
        made = KernelHostNetwork(node.world.netns, config=config, nft=node.world.nft, attachments=lambda: recorded)
        made.setup_node(node.world.identity())
        return made, node.world.host.sh("nft list table ip vpc-ipamd")

    hostnet, text = start()
    assert '"eni*"' in text
    recorded.clear()
    assert hostnet.differences(identity=node.world.identity(), enis=[]) == []
    assert hostnet.reconcile(identity=node.world.identity(), enis=[]) == []
    _, text = start()
    assert '"eni*"' not in text
    assert '"pod*"' in text


@pytest.mark.parametrize("later", [0x100, 0x180], ids=["another bit", "a mark that contains it"])
@pytest.mark.parametrize("is_live", [False, True], ids=["restart", "live"])
def test_an_old_mark_stays_as_long_as_a_connection_carries_it(node, later, is_live):
    """Its rule and its place in the table go with the last of its connections, by a repair that is told once."""
    node.exchange(*node.from_pod())
    (node.renew if is_live else node.start)(NetworkConfig(connmark=later))
    node.answers(node.from_outside())
    node.hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert "0x80/0x80" in node.world.host.sh("ip rule show prio 1024")
    forget_connections(node.world)
    node.answers(node.from_outside())
    repaired, followed = node.hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert (repaired.code, repaired.target) == (RepairCode.REMOVED, "rule 1024 fwmark 0x80 of a former setting")
    assert followed.code is RepairCode.TABLE_FOLLOWED
    assert "0x80/0x80" not in node.world.host.sh("ip rule show prio 1024")
    assert "0x00000080" not in node.world.host.sh("nft list table ip vpc-ipamd")
    assert node.hostnet.reconcile(identity=node.world.identity(), enis=[]) == []
    assert node.hostnet.differences(identity=node.world.identity(), enis=[]) == []


def forget_connections(world):
    """Let the host's kernel forget every connection (ctnetlink's delete without a tuple)."""
    sock = world.netns.open_netlink(protocol=uapi.NETLINK_NETFILTER)
    sock.carry_out([Message("forget connections", uapi.IPCTNL_MSG_CT_GET + 1, 0, bytes(4))], operation="the test")
    sock.close()


def test_an_old_mark_is_given_up_with_its_rule(node):
    """Removing the rule of the old mark by hand frees the bit: the table follows, and the rule does not come back."""
    node.exchange(*node.from_pod())
    node.start(NetworkConfig(connmark=0x200))
    assert "0x00000080" in node.world.host.sh("nft list table ip vpc-ipamd")
    node.world.host.sh("ip rule del prio 1024 fwmark 0x80/0x80")
    node.hostnet.reconcile(identity=node.world.identity(), enis=[])
    assert "0x00000080" not in node.world.host.sh("nft list table ip vpc-ipamd")
    assert node.hostnet.reconcile(identity=node.world.identity(), enis=[]) == []
    assert "0x80" not in node.world.host.sh("ip rule show prio 1024")


class YieldingLock:
    """A lock whose holder lets others go first when it has let go: each gap between two steps is one that a pass falls into."""

    def __init__(self):
        self._lock = threading.Lock()

    def __enter__(self):
        return self._lock.acquire()

    def __exit__(self, *_):
        self._lock.release()
        time.sleep(0.01)


def test_a_pass_beside_a_change_calls_nothing_a_repair(node):
    """Passes without pause while settings change: nobody broke anything, and the node is set up by the last ones."""
    identity, said, ended = node.world.identity(), [], threading.Event()
    node.hostnet._lock = YieldingLock()

    def look():
        while not ended.is_set():
            said.extend(node.hostnet.reconcile(identity=identity, enis=[node.world.eni()]))

    passes = threading.Thread(target=look)
    passes.start()
    try:
        for number in range(40):
            cidrs = tuple(IPv4Network((f"198.51.100.{number}", 32)) for _ in range(number % 2))
            node.hostnet.apply_settings(NetworkConfig(external_snat=number % 3 == 0, external_service_cidrs=cidrs), identity)
    finally:
        ended.set()
        passes.join(timeout=120)
    assert [one for one in said if one.is_repair] == []
    assert "198.51.100.39" in node.world.host.sh("ip rule")
    assert "snat" not in node.world.host.sh("nft list table ip vpc-ipamd")


def test_a_smaller_mtu_of_the_eni(node):
    """A pod that was wired with a large MTU is told the way's; its next large packet arrives in pieces."""
    client, server = node.from_pod("10.0.77.7")
    node.start(NetworkConfig(eni_mtu=1500))
    node.vpc.sh("ip link set p1 mtu 1500")
    client.send(b"x" * 4000)  # answered by "fragmentation needed"
    server.settimeout(1)
    with contextlib.suppress(TimeoutError):
        server.recv(8000)
    with contextlib.suppress(OSError):
        client.send(b"x" * 4000)  # it may be told here
    server.settimeout(PATIENCE_S)
    client.send(b"y" * 4000)
    got = server.recv(8000)
    while got[:1] != b"y":
        got = server.recv(8000)
    assert len(got) == 4000
