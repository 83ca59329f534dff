"""Branch ENIs in both families, beside what else is on a node, by packets: groups, services of kube-proxy in both of its modes,
node-local DNS, a policy agent, egress of the other family. `test_paths.py` has every row of the two modes in IPv4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address

import pytest

from lab.fabric import talk
from lab.fabric.netns import Netns
from lab.node.kube_proxy import KubeProxy, Service
from lab.node.policy_agent import PolicyAgent
from lab.vpc.family import FAMILIES, IPV4, IPV6, Family
from lab.vpc.model import Address
from tests.lab.branch.ground import MODES, UNHEARD_S, BranchGround, Sandbox, ground
from tests.rig import wait_until

pytestmark = pytest.mark.privileged

NODE = "node-a"
ON_NODE, ELSEWHERE = (NODE, "pool"), ("host-a", "far")
AGENT = {"NETWORK_POLICY_ENFORCING_MODE": "standard", "VPC_IPAMD_POD_VETH_NAMES": "true"}
CLUSTER_ADDRESS: dict[Family, Address] = {IPV4: IPv4Address("10.100.0.10"), IPV6: IPv6Address("fd00:100::10")}
DNS: dict[Family, Address] = {IPV4: IPv4Address("169.254.20.10"), IPV6: IPv6Address("fd00:53::10")}
SERVED_PORT = 5353


class Beside:
    """The ground, with a pod that has a branch ENI, and others here and on the next node."""

    def __init__(self, made: BranchGround, mode: str, agent: PolicyAgent) -> None:
        self.ground, self.mode, self.agent = made, mode, agent
        self.by: dict[str, Sandbox] = {}
        for name, node, groups in (("web", NODE, None), ("pool", NODE, ()), ("far", "node-b", None)):
            sandbox = self.by[name] = made.run(name, node=node, groups=groups)
            made.paths[name], made.addresses[name] = made.paths[sandbox.name], sandbox.address

    @property
    def is_strict(self) -> bool:
        """Whether its own node meets the groups too."""
        return self.mode == "strict"

    def who(self, name: str) -> str:
        """How a server calls itself."""
        return self.by[name].name if name in self.by else name

    def heard(self, client: str, server: str, *, tcp: bool = True) -> tuple[str, Address | None] | None:
        """Who answered, and whom it saw."""
        return self.ground.heard(client, server, tcp=tcp)

    def asked(self, client: str, address: Address, port: int, *, tcp: bool = True, timeout_s: float = 2.0) -> str | None:
        """Who answers at an address."""
        answer = talk.ask(self.ground.paths[client], address, port=port, tcp=tcp, timeout_s=timeout_s)
        return answer and answer.by


USUAL = (("strict", IPV4), ("standard", IPV6))
"""The other two are in `make test-all`."""


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((mode, family), id=f"{mode}{family.option}", marks=() if (mode, family) in USUAL else pytest.mark.heavy)
        for family in FAMILIES
        for mode in MODES
    ],
)
def made(request: pytest.FixtureRequest) -> Iterator[Beside]:
    """In each mode and family, with an agent on the first node."""
    mode, family = request.param
    agents: list[PolicyAgent] = []

    def begin(found: BranchGround) -> None:
        for rig in found.rigs.values():
            agents.append(PolicyAgent(rig.node, family=family))
            agents[-1].start(wait=False)

    with ground(mode, family=family, env=AGENT, started=begin) as found:
        for agent in agents:
            agent.wait_started()
        yield Beside(found, mode, agents[0])
        found.end_all()
        for node in found.rigs:
            found.assert_no_branch_of(node)


@pytest.fixture
def beside(made: Beside) -> Iterator[Beside]:
    """With a group that admits everybody."""
    yield made
    made.ground.admit_all()


@pytest.mark.parametrize("other", [*ON_NODE, *ELSEWHERE])
def test_it_reaches_and_is_reached_as_itself(beside: Beside, other: str) -> None:
    """Node, pods of both kinds, and hosts: both ways, nobody is translated."""
    assert beside.heard(other, "web") == (beside.who("web"), beside.ground.addresses[other])
    assert beside.heard("web", other) == (beside.who(other), beside.ground.addresses["web"])


def test_its_groups_judge_who_begins(beside: Beside) -> None:
    """Everybody in strict mode; in standard mode whoever is not on its node."""
    beside.ground.admit("host-a")
    assert beside.heard("host-a", "web") is not None
    refused = [*(ON_NODE if beside.is_strict else ()), "far"]
    assert [one for one in refused if beside.ground.ask(one, "web", tcp=True, timeout_s=0.4)] == []
    let_in = [] if beside.is_strict else list(ON_NODE)
    assert [one for one in let_in if beside.heard(one, "web") is None] == []


def test_outside_it_is_the_branch_or_the_node(beside: Beside) -> None:
    """IPv6 translates nobody; of IPv4 `test_outside_sees_the_branch_or_the_node` tells all."""
    answer = beside.heard("web", "outside")
    assert answer is not None
    if beside.ground.family is IPV6:
        assert answer == ("outside", beside.ground.addresses["web"])


def test_it_has_one_family(beside: Beside) -> None:
    """Egress of the other one is not for branch ENIs, as with amazon-vpc-cni-k8s: no second link, and its pool pods have one."""
    links = {name: _links(beside, name) for name in ("web", "pool")}
    assert links["web"] == {"lo", "eth0"}
    assert links["pool"] == ({"lo", "eth0", "v4if0"} if beside.ground.family is IPV6 else {"lo", "eth0"})


def _links(beside: Beside, name: str) -> set[str]:
    node = beside.ground.rig.node
    netns = Netns.at(node.netns_path(f"/run/netns/{beside.by[name].name}"), name=name)
    try:
        shown = netns.tool(["ip", "-o", "link"])
    finally:
        netns.close()
    return {line.split(": ")[1].split("@")[0] for line in shown.splitlines()}


# Services.


@contextmanager
def by_nft(beside: Beside) -> Iterator[None]:
    """kube-proxy's rules in nftables."""
    proxy = KubeProxy(beside.ground.rig.node)
    endpoints = [((beside.ground.addresses[one], talk.PORT),) for one in ("web", "pool")]
    addresses = [CLUSTER_ADDRESS[beside.ground.family] + number for number in range(2)]
    services = [Service(f"s{number}", addresses[number], 80, endpoints[number]) for number in range(2)]
    proxy.sync(services, local=[beside.ground.addresses[one] for one in ("web", "pool")])
    try:
        yield
    finally:
        proxy.stop()


@contextmanager
def by_iptables(beside: Beside) -> Iterator[None]:
    """The same as iptables makes them: nat, PREROUTING and OUTPUT (kubernetes pkg/proxy/iptables/proxier.go)."""
    family, node = beside.ground.family, beside.ground.rig.node
    tool = "iptables" if family is IPV4 else "ip6tables"
    script = ["*nat", ":KUBE-SERVICES - [0:0]", "-A PREROUTING -j KUBE-SERVICES", "-A OUTPUT -j KUBE-SERVICES"]
    for number, one in enumerate(("web", "pool")):
        to = beside.ground.addresses[one]
        where = f"[{to}]:{talk.PORT}" if family is IPV6 else f"{to}:{talk.PORT}"
        for protocol in ("tcp", "udp"):
            match = f"-d {CLUSTER_ADDRESS[family] + number} -p {protocol} --dport 80"
            script.append(f"-A KUBE-SERVICES {match} -j DNAT --to-destination {where}")
    node.netns.tool([f"{tool}-restore", "--noflush"], script="\n".join([*script, "COMMIT", ""]))
    try:
        yield
    finally:
        for hook in ("PREROUTING", "OUTPUT"):
            node.netns.tool([tool, "-t", "nat", "-D", hook, "-j", "KUBE-SERVICES"])
        node.netns.tool([tool, "-t", "nat", "-F", "KUBE-SERVICES"])
        node.netns.tool([tool, "-t", "nat", "-X", "KUBE-SERVICES"])


@pytest.mark.parametrize("served", [by_nft, by_iptables], ids=["nft", "iptables"])
def test_services_of_both_kinds(beside: Beside, served: Callable[[Beside], Iterator[None]]) -> None:
    """A service whose endpoint has a branch ENI, for node and pods; and a branch pod asks a service of the pool."""
    web, pool = (CLUSTER_ADDRESS[beside.ground.family] + number for number in range(2))
    with served(beside):  # type: ignore[attr-defined]
        found = {client: beside.asked(client, web, 80) for client in ("pool", NODE)}
        assert found == dict.fromkeys(("pool", NODE), beside.who("web"))
        assert beside.asked("web", pool, 80) == beside.who("pool")


@pytest.mark.parametrize("is_local", [False, True], ids=["cluster", "local"])
def test_a_node_port_of_its_node(beside: Beside, is_local: bool) -> None:
    """With externalTrafficPolicy Cluster the pod sees its node, with Local the client, which hears it in standard mode alone: in
    strict mode its answer leaves by its own ENI. So it does in standard mode with IPv6 under both: no connection is marked there.
    """
    found, proxy, port = beside.ground, KubeProxy(beside.ground.rig.node), 30080 + is_local
    endpoints = ((found.addresses["web"], talk.PORT),)
    service = Service("web", CLUSTER_ADDRESS[found.family] + 5, 80, endpoints, node_port=port, is_local=is_local)
    is_heard = not is_local if beside.is_strict else found.family is IPV4
    answer = (beside.who("web"), found.addresses["host-a" if is_local else NODE])
    proxy.sync([service], local=[found.addresses["web"]])
    try:
        for tcp in (False, True):
            timeout_s = talk.TIMEOUT_S if is_heard else UNHEARD_S
            heard = talk.ask(found.paths["host-a"], found.addresses[NODE], port=port, tcp=tcp, timeout_s=timeout_s)
            assert (heard and (heard.by, heard.seen_as)) == (answer if is_heard else None)
    finally:
        proxy.stop()


def test_services_of_ipvs(beside: Beside) -> None:
    """Every service has its address on kube-proxy's link, and IPVS takes what is delivered to the node: so what comes from a pod in
    strict mode does not get to it, which status and audit say. A server at that address is IPVS here: whether a packet is delivered
    is the kernel's routing, and this kernel has no `ip_vs`.
    """
    found, node, pods = beside.ground, beside.ground.rig.node, ("web", "pool")
    address, nodad = CLUSTER_ADDRESS[found.family] + 7, " nodad" if found.family is IPV6 else ""
    assert IPVS not in told(beside)
    node.netns.ip(["link add kube-ipvs0 type veth peer name ipvs-peer", "link set kube-ipvs0 up"])
    try:
        node.netns.ip([f"addr add {address}/{address.max_prefixlen} dev kube-ipvs0{nodad}"])
        found.servers.add("ipvs", node.netns_path(), port=SERVED_PORT, address=address)
        reaches = {"web": not beside.is_strict, "pool": True}
        for pod in pods:
            timeout_s = talk.TIMEOUT_S if reaches[pod] else UNHEARD_S
            assert [beside.asked(pod, address, SERVED_PORT, tcp=tcp, timeout_s=timeout_s) for tcp in (True, False)] == [
                "ipvs" if reaches[pod] else None
            ] * 2
        assert (IPVS in told(beside)) == beside.is_strict
        if beside.is_strict:
            wait_until(lambda: IPVS in str((found.rig.status() or {}).get("conditions")), what="status says so")
    finally:
        found.servers.remove("ipvs")
        node.netns.ip(["link del kube-ipvs0"])
    assert IPVS not in told(beside)


IPVS = "kube-proxy is in IPVS mode"


def told(beside: Beside) -> str:
    """What audit finds, which looks anew."""
    audit = beside.ground.rig.client(lambda client: client.ask("Audit"))
    assert audit is not None
    return str(audit["findings"])


def test_node_local_dns(beside: Beside) -> None:
    """In standard mode it is reached; in strict mode nothing of the node is, but by the VPC (docs/security-groups.md)."""
    family, node = beside.ground.family, beside.ground.rig.node
    address, nodad = DNS[family], " nodad" if family is IPV6 else ""
    node.netns.ip(["link add nodelocaldns type veth peer name dns-peer", "link set nodelocaldns up"])
    node.netns.ip([f"addr add {address}/{address.max_prefixlen} dev nodelocaldns{nodad}"])
    beside.ground.servers.add("dns", node.netns_path(), port=SERVED_PORT, address=address)
    assert beside.asked("pool", address, SERVED_PORT, tcp=False) == "dns"
    expected = None if beside.is_strict else "dns"
    timeout_s = 0.4 if beside.is_strict else 2.0
    assert beside.asked("web", address, SERVED_PORT, tcp=False, timeout_s=timeout_s) == expected


def test_the_policy_agent_filters_it(beside: Beside) -> None:
    """By its link's name in either mode: a policy that passes nothing keeps everybody out, and one that passes lets them in."""
    agent = beside.agent
    assert beside.heard("host-a", "web") is not None
    assert agent.policy_comes("default", "web", passes=False), "no policy reaches its filter"
    assert beside.ground.ask("host-a", "web", timeout_s=0.4) is None
    assert beside.heard("host-a", "pool") is not None
    assert agent.policy_comes("default", "web", passes=True)
    assert beside.heard("host-a", "web") is not None


def test_the_policy_agent_filters_the_next_of_a_name(beside: Beside) -> None:
    """After a pod without groups one with: in strict mode its link has another name, and the agent looks for the former one first."""
    found, agent = beside.ground, beside.agent
    for groups in ((), None, (), None):
        pod = found.run("turn", groups=groups)
        kernel = found.rig.kernel()
        veth = {**kernel.wired, **kernel.wired_to_branches}[pod.name]
        assert agent.filtered(veth.name).is_whole, veth.name
        found.end(pod)
