"""Every row of what strict and standard mode promise, by packets: who answers, whom it sees, and whom the pod's groups keep away.

The fabric enforces groups where a conversation begins (lab/fabric/groups.py), so a group that admits nobody tells which packets came
by the branch ENI and which stayed on the node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lab.fabric import talk
from lab.fabric.internet import NAT_GATEWAY
from lab.fabric.netns import Netns
from lab.fabric.port import MTU
from lab.node.policy_agent_process import host_veth
from tests.lab.branch.ground import MODES, UNHEARD_S, BranchGround, Sandbox, ground
from tests.patience import PATIENCE_S
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

SNAT = {"default": {}, "external-snat": {"AWS_VPC_K8S_CNI_EXTERNALSNAT": "true"}}
BRANCHES = {"web": "node-a", "api": "node-a", "far": "node-b"}
POOLED = {"pool": "node-a", "pool-far": "node-b"}
EVERYBODY = (*BRANCHES, *POOLED, "node-a", "node-b", "host-a")
ON_NODE = ("api", "pool", "node-a")
ELSEWHERE = ("far", "pool-far", "node-b", "host-a")


class Paths:
    """The ground with its pods: two with branches on node-a, one on node-b, one with a pool address on each."""

    def __init__(self, made: BranchGround, mode: str) -> None:
        self.ground = made
        self.mode = mode
        self.snat = "default"
        self.pods: dict[str, Sandbox] = {}
        for name, node in BRANCHES.items():
            self._know(name, made.run(name, node=node))
        for name, node in POOLED.items():
            self._know(name, made.run(name, node=node, groups=()))

    @property
    def is_strict(self) -> bool:
        """Whether a branch's packets pass it on its own node too."""
        return self.mode == "strict"

    def apply(self, snat: str) -> None:
        """Start node-a's daemon again with a SNAT setting, under its pods; return when its table says so."""
        if snat == self.snat:
            return
        self.ground.rig.restart(env=SNAT[snat])
        show = ["nft", "list", "table", "ip", "vpc-ipamd"]
        is_translating = snat == "default"
        netns = self.ground.rig.node.netns
        wait_until(lambda: ("snat to" in netns.tool(show)) == is_translating, what=f"the table of {snat}")
        self.snat = snat

    def _know(self, name: str, sandbox: Sandbox) -> None:
        """By the pod's name too, as its server answers by the sandbox's."""
        self.pods[name] = sandbox
        self.ground.paths[name] = self.ground.paths[sandbox.name]
        self.ground.addresses[name] = sandbox.address

    def by(self, name: str) -> str:
        """How a server calls itself."""
        return self.pods[name].name if name in self.pods else name

    def branches_of(self, node: str) -> set[str]:
        """Pods with branches on a node."""
        return {name for name, its in BRANCHES.items() if its == node}

    def heard(self, client: str, server: str, *, tcp: bool = False) -> tuple[str, object] | None:
        """Who answered, and whom it saw."""
        return self.ground.heard(client, server, tcp=tcp)

    def is_heard(self, client: str, server: str, *, tcp: bool = False, expected: bool = True) -> bool:
        """Whether a server answers, that is asked for a moment only if no answer is expected."""
        answer = self.ground.ask(client, server, tcp=tcp, timeout_s=PATIENCE_S if expected else UNHEARD_S)
        return answer is not None and answer.by == self.by(server)


AS_KUBE_PROXY = "table inet invalid { chain forward { type filter hook forward priority filter; ct state invalid drop; }; }"
"""Source: kubernetes pkg/proxy/iptables/proxier.go, KUBE-FORWARD; amazon-vpc-cni-k8s issue 1746, where answers fell under it."""


@pytest.fixture(scope="module", params=list(MODES))
def made(request: pytest.FixtureRequest) -> Iterator[Paths]:
    """In each mode; nothing that passes is unknown to connection tracking."""
    with ground(request.param) as found:
        for node in found.rigs:
            found.rigs[node].node.netns.tool(["nft", "-f", "-"], script=AS_KUBE_PROXY)
        paths = Paths(found, request.param)
        yield paths
        found.end_all()
        for node in found.rigs:
            found.assert_no_branch_of(node)


@pytest.fixture
def paths(made: Paths) -> Iterator[Paths]:
    """With a group that admits everybody, and SNAT as it is by default."""
    made.apply("default")
    yield made
    made.ground.admit_all()


def test_a_branch_is_wired_as_the_table_says(paths: Paths) -> None:
    """Names, MAC, table, rules, the kernel's local rule. Source: amazon-vpc-cni-k8s cmd/routed-eni-cni-plugin/driver/driver.go."""
    found, web = paths.ground, paths.pods["web"]
    assert web.given is not None
    link, kernel = found.vlan_link(web), found.rig.kernel()
    assert link is not None
    assert (link.name, link.mac, link.is_up) == (f"vlan.eth.{web.given.vlan}", web.given.mac, True)
    veth = kernel.wired_to_branches[web.name]
    assert veth.name == host_veth("default", "web", prefix="vlan" if paths.is_strict else "eni")
    table, gateway = str(100 + web.given.vlan), "10.0.0.1"
    routes = {(one.destination, one.device) for one in kernel.routes if one.table == table}
    own = {(str(web.address), veth.name)}
    end = ("default", "")  # ours: nothing is led past the table
    assert routes == {(gateway, link.name), ("default", link.name), end} | (own if paths.is_strict else set())
    assert (kernel.host_routes.get(str(web.address)) == veth.name) == (not paths.is_strict)
    rules = found.ip("node-a", "rule", "show")
    for name in (link.name, veth.name):
        assert (f"10:\tfrom all iif {name} lookup {table}" in rules) == paths.is_strict, rules
    assert (f"1536:\tfrom {web.address} lookup {table}" in rules) == (not paths.is_strict), rules
    assert ("0:\tfrom all lookup local" in rules.splitlines()) == (not paths.is_strict), rules
    assert ("20:\tfrom all lookup local" in rules) == paths.is_strict, rules


@pytest.mark.parametrize("client", EVERYBODY)
@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
def test_everybody_reaches_everybody_as_himself(paths: Paths, client: str, *, tcp: bool) -> None:
    """Within the VPC nobody translates: branches, pool addresses, nodes and hosts, on a node and across."""
    unheard = set() if tcp or not paths.is_strict else paths.branches_of(client)  # `test_connected_udp_of_the_own_node` says why
    servers = [server for server in EVERYBODY if server != client and server not in unheard]
    heard = {server: paths.heard(client, server, tcp=tcp) for server in servers}
    assert heard == {server: (paths.by(server), paths.ground.addresses[client]) for server in servers}


@pytest.mark.parametrize("server", ["far", "pool", "pool-far", "host-a"])
def test_packets_of_9001_bytes_pass_both_ways(paths: Paths, server: str) -> None:
    """A tag costs the frame four bytes and the packet none."""
    for client, target in (("web", server), (server, "web")):
        answer = talk.ask(paths.ground.paths[client], paths.ground.addresses[target], size_bytes=MTU)
        assert answer is not None, (client, target)
        assert answer.seen_as == paths.ground.addresses[client]


@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
def test_groups_judge_who_begins_a_conversation(paths: Paths, *, tcp: bool) -> None:
    """From other hosts in both modes; from the pod's own node in strict mode alone."""
    paths.ground.admit("host-a")
    admitted = {"host-a"} | (set() if paths.is_strict else set(ON_NODE))
    asked = [client for client in EVERYBODY if client != "web"]
    assert {client for client in asked if paths.is_heard(client, "web", tcp=tcp, expected=client in admitted)} == admitted


def test_groups_let_the_answers_in(paths: Paths) -> None:
    """A pod that nobody may speak to reaches everybody whose own groups admit it."""
    paths.ground.admit()
    members = {"api", "far"} if paths.is_strict else {"far"}
    open_to_all = [server for server in (*ON_NODE, *ELSEWHERE) if server not in members]
    heard = {server: paths.heard("web", server) for server in open_to_all}
    assert heard == {server: (paths.by(server), paths.ground.addresses["web"]) for server in open_to_all}
    assert [server for server in members if paths.is_heard("web", server, expected=False)] == []


@pytest.mark.parametrize("client", ON_NODE)
def test_who_is_admitted_on_the_own_node_is_heard(paths: Paths, client: str) -> None:
    """In strict mode too: out by one wire and in by another."""
    paths.ground.admit(client)
    assert paths.is_heard(client, "web", tcp=True)
    assert not paths.is_heard("host-a", "web", expected=False)


def test_kubelets_tcp_probe_passes(paths: Paths) -> None:
    """A node's own connection to its pod; in strict mode the group must admit the node, and early demultiplexing must be off."""
    paths.ground.admit("node-a")
    assert paths.heard("node-a", "web", tcp=True) == (paths.by("web"), paths.ground.addresses["node-a"])
    value = paths.ground.rig.node.run(["cat", "/proc/sys/net/ipv4/tcp_early_demux"]).stdout.strip()
    assert value == ("0" if paths.is_strict else "1")


@contextmanager
def early_demux(paths: Paths, protocol: str, value: str) -> Iterator[None]:
    """Whether node-a's kernel finds the socket of a packet before it knows where the packet goes."""
    path, node = f"/proc/sys/net/ipv4/{protocol}_early_demux", paths.ground.rig.node
    before = node.run(["cat", path]).stdout.strip()
    node.run(["sh", "-c", f"echo {value} > {path}"])
    try:
        yield
    finally:
        node.run(["sh", "-c", f"echo {before} > {path}"])


def test_tcp_probes_fail_while_sockets_are_found_early(paths: Paths) -> None:
    """Why the setting is there: an answer on its way out by the branch has met its socket, and is dropped when it is forwarded."""
    with early_demux(paths, "tcp", "1"):
        assert paths.is_heard("node-a", "web", tcp=True, expected=not paths.is_strict) == (not paths.is_strict)


def test_connected_udp_of_the_own_node(paths: Paths) -> None:
    """The same of UDP, for which amazon-vpc-cni-k8s has no setting and kubelet no probe: in strict mode the answer is dropped, unless
    the node's administrator turns that off too.
    """
    assert paths.is_heard("node-a", "web", expected=not paths.is_strict) == (not paths.is_strict)
    with early_demux(paths, "udp", "0"):
        assert paths.is_heard("node-a", "web")


@pytest.mark.parametrize("tcp", [False, True], ids=["udp", "tcp"])
@pytest.mark.parametrize("snat", list(SNAT))
def test_outside_sees_the_branch_or_the_node(paths: Paths, snat: str, *, tcp: bool) -> None:
    """By the branch, so as the NAT gateway, in strict mode always and in standard mode with EXTERNALSNAT; else as the node."""
    paths.apply(snat)
    own = paths.ground.lab.internet.associate(paths.ground.lab.primary_address("node-a"))
    by_node = not paths.is_strict and snat == "default"
    assert paths.heard("web", "outside", tcp=tcp) == ("outside", own if by_node else NAT_GATEWAY)
    assert paths.heard("pool", "outside", tcp=tcp) == ("outside", own if snat == "default" else NAT_GATEWAY)


def test_the_gateway_is_resolved_and_not_permanent(paths: Paths) -> None:
    """The node asks with the address of another link, and the VPC answers."""
    link = paths.ground.vlan_link(paths.pods["web"])
    assert link is not None
    assert paths.heard("web", "host-a") is not None
    known = paths.ground.ip("node-a", "neigh", "show", "10.0.0.1", "dev", link.name)
    assert "lladdr" in known, known
    assert "PERMANENT" not in known, known


def test_a_branch_cannot_speak_as_another(paths: Paths) -> None:
    """What confines sandboxes knows branches too: nothing with another's address leaves the pod, for the wire or for a neighbour."""
    web, node = paths.pods["web"], paths.ground.rig.node
    forged = paths.ground.addresses["pool"]
    inside, targets = f"/run/netns/{web.name}", [paths.ground.addresses[server] for server in ("api", "host-a", "node-a")]
    netns = Netns.at(node.netns_path(inside), name="web")
    try:
        netns.ip([f"addr add {forged}/32 dev lo"])
        answers = paths.ground.lab.ping(source=(node, inside), targets=targets, source_address=forged, timeout_s=0.4)
        netns.ip([f"addr del {forged}/32 dev lo"])
    finally:
        netns.close()
    assert not any(answers.values()), answers
    assert [drop for drop in paths.ground.lab.fabric.drops() if drop.source == forged] == [], "it left the node"


def test_pods_keep_the_mode_in_which_they_were_wired(made: Paths) -> None:
    """A change of the setting is for new pods; both kinds are heard beside each other."""
    other = MODES["standard" if made.is_strict else "strict"]
    made.ground.rig.restart(env=other)
    try:
        assert made.heard("host-a", "web") == (made.by("web"), made.ground.addresses["host-a"])
        young = made.ground.run("young")
        # In standard mode the host veth is raised once EC2 has confirmed the branch ENI.
        wait_until(lambda: young.name in made.ground.rig.kernel().wired_to_branches, what="the new pod's link is up")
        veth = made.ground.rig.kernel().wired_to_branches[young.name]
        assert veth.name.startswith("eni" if made.is_strict else "vlan")
        assert made.ground.heard("host-a", young.name) == (young.name, made.ground.addresses["host-a"])
        assert made.ground.heard("host-b", "web") is not None
        made.ground.end(young)
    finally:
        made.ground.rig.restart()
