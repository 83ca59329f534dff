"""Every path of a packet, in all pool modes and under every SNAT setting: who answers, and whom does it see?

And in all modes: addresses without a sandbox answer nobody.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.fabric import talk
from lab.fabric.port import MTU
from lab.vpc.family import pool_of
from lab.vpc.model import Address
from tests.lab.packets.ground import NODES, PODS, Ground, service_of

pytestmark = pytest.mark.privileged

SILENT_S = 0.3
"""Ours: answers take a millisecond; what is asked here was reached a moment before, or its neighbours were."""

LOCAL_PODS = ("pod-a", "pod-a-eth1")
"""Of the node whose setting changes: one on each ENI."""

ASKERS = ("pod-a", "pod-a-eth1", "pod-b", "node-a", "node-b", "host-a")
EVERYBODY = (*PODS, *NODES, "host-a")
NODE_PORTS = [(node, pod) for node in NODES for pod in ("pod-a", "pod-a-eth1", "pod-b-eth1")]
NODE_PORT_IDS = [f"{node}-{pod}" for node, pod in NODE_PORTS]


def answered(by: str, seen_as: object) -> tuple[str, object]:
    """What is expected of an answer."""
    return by, seen_as


def told(heard: talk.Heard | None) -> tuple[str, object] | None:
    """What an answer said, without the port."""
    return heard and (heard.by, heard.seen_as)


@pytest.mark.parametrize("client", EVERYBODY)
def test_within_the_vpc_nobody_translates(everywhere: Ground, client: str) -> None:
    """Sandboxes, nodes and hosts of the VPC reach each other as themselves, over either ENI, whatever the setting."""
    servers = [server for server in EVERYBODY if server != client]
    heard = [told(everywhere.ask(client, server)) for server in servers]
    assert heard == [answered(server, everywhere.addresses[client]) for server in servers]


@pytest.mark.parametrize("client", [*LOCAL_PODS, "node-b"])
def test_packets_of_9001_bytes_pass_within_the_vpc(everywhere: Ground, client: str) -> None:
    """Both ways, unfragmented, over either ENI, on the node and across."""
    servers = [server for server in ("pod-a-too", "pod-b", "pod-b-eth1", "host-a") if server != client]
    heard = [told(everywhere.ask(client, server, size_bytes=MTU)) for server in servers]
    assert heard == [answered(server, everywhere.addresses[client]) for server in servers]


@pytest.mark.parametrize("pod", LOCAL_PODS)
@pytest.mark.parametrize("outside", ["outside", "excluded"])
def test_outside_sees_who_is_to_translate(everywhere: Ground, pod: str, outside: str) -> None:
    """The node's public address where the node translates; the NAT gateway's where it must not; in IPv6 the sandbox's; UDP and TCP."""
    for tcp in (False, True):
        assert told(everywhere.ask(pod, outside, tcp=tcp)) == answered(outside, everywhere.translated(pod, outside))


@pytest.mark.parametrize("pod", LOCAL_PODS)
def test_source_ports_are_chosen_as_the_setting_says(everywhere: Ground, pod: str) -> None:
    """RANDOMIZESNAT none keeps the port while it is free, as does a node that does not translate; the default almost never.

    One of the four may be taken: a question asked under the default a minute ago was given any port above 1023.
    """
    ports = everywhere.unused_ports(4)
    heard = [everywhere.ask(pod, "outside", source_port=port) for port in ports]
    kept = [answer is not None and answer.seen_port == port for answer, port in zip(heard, ports, strict=True)]
    setting = everywhere.setting
    assert all(answer is not None for answer in heard)
    assert sum(kept) >= 3 if setting.keeps_ports or not everywhere.node_translates else sum(kept) <= 1, heard


@pytest.mark.parametrize("pod", LOCAL_PODS)
def test_the_path_mtu_outside_is_learnt(everywhere: Ground, pod: str) -> None:
    """The gateway's "fragmentation needed" finds its way back through the node's translation: 1500 bytes pass then, 1501 do not."""
    outside = everywhere.addresses["outside"]
    assert talk.path_mtu(everywhere.paths[pod], outside, size_bytes=MTU) == 1500
    assert told(everywhere.ask(pod, "outside", size_bytes=1500)) == answered("outside", everywhere.translated(pod, "outside"))
    assert everywhere.ask(pod, "outside", size_bytes=1501, timeout_s=SILENT_S) is None


@pytest.mark.parametrize(("node", "pod"), NODE_PORTS, ids=NODE_PORT_IDS)
def test_node_port_with_policy_cluster(everywhere: Ground, node: str, pod: str) -> None:
    """Any node sends the connection on, as itself; its answer leaves by the primary ENI, where the connection came in."""
    port = service_of(pod).node_port
    for client, target in (("outside", everywhere.public(node)), ("host-a", everywhere.addresses[node])):
        assert told(everywhere.ask(client, target, port=port)) == answered(pod, everywhere.addresses[node])


@pytest.mark.parametrize(("node", "pod"), NODE_PORTS, ids=NODE_PORT_IDS)
def test_node_port_with_policy_local(everywhere: Ground, node: str, pod: str) -> None:
    """The sandbox's own node keeps the client's address, for sandboxes of either ENI; another node answers nothing."""
    port = service_of(pod, is_local=True).node_port
    if everywhere.node_of(pod) != node:
        assert everywhere.ask("host-a", node, port=port, timeout_s=SILENT_S) is None
        return
    for client, target in (("outside", everywhere.public(node)), ("host-a", everywhere.addresses[node])):
        assert told(everywhere.ask(client, target, port=port)) == answered(pod, everywhere.addresses[client])


def test_load_balancer_to_instances(everywhere: Ground) -> None:
    """A load balancer finds by its health check the one node that has the sandbox, and the sandbox sees the client's address."""
    pod = "pod-a-eth1"
    port = service_of(pod, is_local=True).node_port
    targets = [(everywhere.addresses[node], port) for node in NODES]
    assert everywhere.balancer.listen(80, targets) == targets[:1]
    heard = everywhere.ask("outside", everywhere.balancer.public, port=80, tcp=True)
    assert told(heard) == answered(pod, everywhere.addresses["outside"])


@pytest.mark.parametrize("pod", LOCAL_PODS)
def test_load_balancer_to_sandboxes(everywhere: Ground, pod: str) -> None:
    """IP mode: straight to the sandbox on its own ENI and back by it, with the client's address or the balancer's."""
    target = (everywhere.addresses[pod], talk.PORT)
    for keeps_client, seen_as in ((True, "outside"), (False, "nlb")):
        assert everywhere.balancer.listen(81, [target], keeps_client=keeps_client) == [target]
        heard = everywhere.ask("outside", everywhere.balancer.public, port=81, tcp=True)
        assert told(heard) == answered(pod, everywhere.addresses[seen_as])


@pytest.mark.parametrize("pod", LOCAL_PODS)
@pytest.mark.parametrize("is_local", [False, True], ids=["cluster", "local"])
def test_hairpin(everywhere: Ground, pod: str, is_local: bool) -> None:
    """A sandbox that reaches itself by its service's address or by a NodePort of its node sees the node as the client."""
    service = service_of(pod, is_local=is_local, family=everywhere.family)
    node = everywhere.addresses["node-a"]
    for address, port in ((service.cluster_address, service.port), (node, service.node_port)):
        assert told(everywhere.ask(pod, address, port=port)) == answered(pod, node)


@pytest.mark.parametrize("client", [*LOCAL_PODS, "node-a"])
@pytest.mark.parametrize("pod", ["pod-a-too", "pod-b", "pod-b-eth1"])
def test_cluster_address(everywhere: Ground, client: str, pod: str) -> None:
    """A service's address leads to its sandbox on this node or another, and the sandbox sees the true client."""
    service = service_of(pod, family=everywhere.family)
    heard = everywhere.ask(client, service.cluster_address, port=service.port)
    assert told(heard) == answered(pod, everywhere.addresses[client])


@pytest.mark.parametrize("pod", LOCAL_PODS)
def test_node_port_of_another_node(everywhere: Ground, pod: str) -> None:
    """A sandbox may use another node's NodePort, which leads back to a sandbox of its own node."""
    heard = everywhere.ask(pod, "node-b", port=service_of("pod-a-too").node_port)
    assert told(heard) == answered("pod-a-too", everywhere.addresses["node-b"])


def heard_from(made: Ground, target: Address) -> dict[tuple[str, bool], talk.Heard]:
    """What those of ASKERS heard who heard anything from an address, by UDP (False) or TCP (True)."""
    questions = [(asker, tcp) for asker in ASKERS for tcp in (False, True)]
    with ThreadPoolExecutor(len(questions)) as pool:
        heard = pool.map(lambda each: made.ask(each[0], target, tcp=each[1], timeout_s=SILENT_S), questions)
        return {question: answer for question, answer in zip(questions, heard, strict=True) if answer is not None}


def test_a_cooling_address_answers_nothing(made: Ground) -> None:
    """I8: from the reply to DEL on, nobody hears anything from the address, though the sandbox's namespace may live on."""
    rig = made.rigs["node-a"]
    address = rig.add("short-lived").any_address
    path = rig.node.netns_path("/run/netns/short-lived")
    made.servers.add("short-lived", path, address=address)
    assert talk.ask(made.paths["pod-b"], address) is not None
    assert rig.cni("DEL", "short-lived").ok
    assert heard_from(made, address) == {}
    assert rig.pool()["cooling_count"] >= 1
    assert rig.delete("short-lived").ok


def test_a_free_address_answers_nothing(made: Ground) -> None:
    """An address that is on the node's ENI and given to no sandbox."""
    rig = made.rigs["node-a"]
    taken = set(rig.attachments().values())
    pools = [network for eni in made.lab.vpc.enis_of(rig.node.instance_id) for network in pool_of(eni, made.family)]
    # Of a /80 those at the ends stand for all.
    free = [
        one for pool in pools for one in (pool if pool.num_addresses <= 16 else (pool[0], pool[1], pool[-1])) if one not in taken
    ]
    assert free
    assert heard_from(made, free[-1]) == {}


def test_an_address_on_no_eni_answers_nothing(made: Ground) -> None:
    """An address of the subnet that EC2 gave to nobody."""
    assert heard_from(made, made.unassigned()) == {}
