"""Two nodes with trunks and daemons, and pods that have branch ENIs or pool addresses, each with a server that says whom it saw.

Sandboxes are bare namespaces, and their annotations are handed to the plugin as containerd does. Who may send to a branch each test
says by the pods' group; what the controller gave is read from its record, never from the daemon.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Any

from lab.branches.controller import Given
from lab.branches.ground import Branches
from lab.branches.messages import annotations_of
from lab.branches.pods import POD_ENI, Pod
from lab.fabric import talk
from lab.fabric.internet import OUTSIDE_HOST, OUTSIDE_HOST_6
from lab.lab import IPV6_CIDR, Lab
from lab.node.kernel_view import VlanLink
from lab.vpc.family import IPV4, IPV6, Family
from lab.vpc.model import Address
from lab.vpc.state import Vpc
from tests.patience import PATIENCE_S
from tests.rig import CniReply, Rig, wait_until

MODULE = "lab.node.vlan_standin"
STRICT = {"ENABLE_POD_ENI": "true", "POD_SECURITY_GROUP_ENFORCING_MODE": "strict", "DISABLE_TCP_EARLY_DEMUX": "true"}
STANDARD = {"ENABLE_POD_ENI": "true", "POD_SECURITY_GROUP_ENFORCING_MODE": "standard"}
MODES = {"strict": STRICT, "standard": STANDARD}
NODES = ("node-a", "node-b")
UNHEARD_S = 0.4
"""Ours: answers take a millisecond; a link that was just made, whose first frame may be lost, a tenth of a second."""

COOLDOWN_S = 0.5
TRY_LATER = 11
"""CNI's error code for a call that the runtime shall repeat."""

AUDIT_S = 45.0
"""Above the 30 s between two repairs of the host network."""

ANNOTATIONS = "io.kubernetes.cri.pod-annotations"


@dataclass(frozen=True)
class Sandbox:
    """One sandbox: its name is its ID; `given` is None for one with a pool address."""

    name: str
    node: str
    pod: Pod
    address: Address
    given: Given | None


@dataclass
class BranchGround:
    """Nodes, daemons, sandboxes and servers. `group`: that of the pods, which admits whom a test says."""

    lab: Lab
    branches: Branches
    rigs: dict[str, Rig]
    servers: talk.Servers
    group: str
    family: Family
    sandboxes: dict[str, Sandbox] = field(default_factory=dict)
    paths: dict[str, str] = field(default_factory=dict)
    addresses: dict[str, Address] = field(default_factory=dict)
    next_port: int = 5100
    made: int = 0
    mode: str = ""

    @property
    def rig(self) -> Rig:
        """That of node-a."""
        return self.rigs["node-a"]

    def pod(self, name: str, *, node: str = "node-a", groups: tuple[str, ...] | None = None, **options: Any) -> Pod:
        """A pod that must have the group, as its controller has told it; with `groups=()` an ordinary one."""
        wanted = (self.group,) if groups is None else groups
        made = self.branches.pods.create(name, node=node, groups=wanted, **options)
        if made.wants_branch:
            wait_until(lambda: POD_ENI in self.branches.pods.get(made).annotations, what=f"the annotation of {name}")
        return self.branches.pods.get(made)

    def conf(self, pod: Pod) -> dict[str, Any]:
        """What the runtime adds to the configuration for a sandbox that is begun now."""
        return {"runtimeConfig": {ANNOTATIONS: annotations_of(self.branches.pods.get(pod))}}

    def add(self, pod: Pod, *, sandbox: str = "", awaits: bool = True) -> tuple[str, CniReply]:
        """ADD of a new sandbox of a pod; of one that is refused nothing is left. `awaits`: until EC2 has confirmed its branch ENI."""
        self.made += 1
        name, rig = sandbox or f"{pod.name}-{self.made}", self.rigs[pod.node]
        reply = rig.add(name, pod=pod.name, uid=pod.uid, conf=self.conf(pod))
        if not reply.ok:
            rig.node.remove_netns(name)
            return name, reply
        present = self.branches.pods.get(pod)
        address = reply.any_address
        given = self.branches.controller.given(pod)
        self.sandboxes[name] = Sandbox(
            name, pod.node, present, address, given if given and str(address) in given.addresses else None
        )
        self._place(name, rig.node.netns_path(f"/run/netns/{name}"), address)
        if awaits and self.sandboxes[name].given is not None:
            wait_until(lambda: self.unconfirmed_count(pod.node) == 0, what=f"EC2 confirms the branch ENI of {name}")
            wait_until(lambda: name in rig.kernel().wired_to_branches, what=f"a pass wires {name}")
        return name, reply

    def unconfirmed_count(self, node: str = "node-a") -> int:
        """How many sandboxes of a node have no network until EC2 confirms their branch ENIs; -1 if the daemon does not answer."""
        status = self.rigs[node].status()
        return -1 if status is None else int(status["branches"]["unconfirmed_count"])

    def run(self, pod_name: str, **options: Any) -> Sandbox:
        """A new pod with a sandbox that must be made; one that must have the group has the address that its controller gave."""
        pod = self.pod(pod_name, **options)
        name, reply = self.add(pod)
        assert reply.ok, reply.body
        made = self.sandboxes[name]
        assert (made.given is not None) == bool(pod.groups), (made, pod)
        return made

    def delete(self, sandbox: Sandbox) -> CniReply:
        """Its DEL, and its namespace goes; the pod stays."""
        reply = self.rigs[sandbox.node].cni("DEL", sandbox.name, pod=sandbox.pod.name, uid=sandbox.pod.uid)
        self.servers.remove(sandbox.name)
        self.rigs[sandbox.node].node.remove_netns(sandbox.name)
        del self.sandboxes[sandbox.name]
        return reply

    def end(self, sandbox: Sandbox) -> None:
        """DEL, which succeeds, and the end of the pod."""
        reply = self.delete(sandbox)
        assert reply.ok, reply.body
        self.branches.pods.delete(sandbox.pod)

    def end_all(self) -> None:
        """Every sandbox and every pod; and everybody may send to the group again."""
        for sandbox in tuple(self.sandboxes.values()):
            self.end(sandbox)
        for pod in self.branches.pods.pods():
            self.branches.pods.delete(pod)
        self.admit_all()

    def await_cooled(self) -> None:
        """Wait until EC2 has no branch of a pod that is gone."""
        pods = {pod.uid for pod in self.branches.pods.pods()}
        record = self.branches.controller
        wait_until(
            lambda: all(one.uid in pods or one.deleted_at_s is not None for one in record.record), what="the branches have cooled"
        )

    def admit(self, *names: str) -> None:
        """Let these alone begin a conversation with the group's members."""
        self.lab.vpc.admit(self.group, [ip_network(self.addresses[name]) for name in names])
        self.lab.settle()

    def admit_all(self) -> None:
        """Let everybody."""
        self.lab.vpc.admit(self.group, None)
        self.lab.settle()

    def ask(self, client: str, server: str, *, tcp: bool = False, timeout_s: float = talk.TIMEOUT_S) -> talk.Heard | None:
        """Ask from one place to another, by name; from a port of its own."""
        self.next_port += 1
        port = 0 if tcp else self.next_port
        return talk.ask(self.paths[client], self.addresses[server], tcp=tcp, source_port=port, timeout_s=timeout_s)

    def heard(self, client: str, server: str, *, tcp: bool = False) -> tuple[str, Address | None] | None:
        """Who answered, and whom it saw."""
        answer = self.ask(client, server, tcp=tcp)
        return answer and (answer.by, answer.seen_as)

    def is_heard(self, client: str, server: str, *, tcp: bool = False, expected: bool = True) -> bool:
        """Whether a server answers, that is asked for a moment only if no answer is expected; a refused connection is no answer."""
        answer = self.ask(client, server, tcp=tcp, timeout_s=PATIENCE_S if expected else UNHEARD_S)
        return answer is not None and answer.by == server

    def vlan_link(self, sandbox: Sandbox) -> VlanLink | None:
        """The VLAN link of a sandbox's branch, by its ID; None if there is none that is not dying."""
        assert sandbox.given is not None
        links = self.rigs[sandbox.node].kernel().vlans
        return next((link for link in links if link.vlan == sandbox.given.vlan and not link.is_dying), None)

    def ip(self, node: str, *words: str) -> str:
        """What `ip` says in a node."""
        return self.rigs[node].node.netns.tool(["ip", *words])

    def place_nodes(self) -> None:
        """Nodes, hosts and the host outside, by name."""
        for name, rig in self.rigs.items():
            self._place(name, rig.node.netns_path(), self.lab.own_address(name, self.family))
        for name, netns in self.lab.hosts.items():
            self._place(name, netns.path, self.lab.own_address(name, self.family))

    def _place(self, name: str, path: str, address: Address) -> None:
        self.paths[name], self.addresses[name] = path, address
        self.servers.add(name, path, address=address)

    def place_outside(self, address: Address) -> None:
        """The host beyond the gateways."""
        self._place("outside", self.lab.internet.outside.path, address)

    def assert_sound(self, node: str = "node-a") -> None:
        """Rows, kernel and the controller's record tell the same of every sandbox of a node, and nothing else is there."""
        rig, mine = self.rigs[node], [one for one in self.sandboxes.values() if one.node == node]
        branches = {one.name: one for one in mine if one.given is not None}
        wait_until(
            lambda: (rig.status() or {"veths_pending_deletion_count": 1})["veths_pending_deletion_count"] == 0,
            what="no veth is left to delete",
        )
        assert rig.attachments() == {one.name: one.address for one in mine}
        kernel = rig.kernel()
        wired = {name: veth.address for name, veth in kernel.wired_to_branches.items()}
        assert wired == {name: str(one.address) for name, one in branches.items()}
        assert set(kernel.wired) == {one.name for one in mine} - set(branches)
        links = {link.vlan: link.mac for link in kernel.vlans if not link.is_dying}
        assert links == {one.given.vlan: one.given.mac for one in branches.values() if one.given is not None}
        worst: list[Any] = []

        def is_clean() -> bool:
            answer = rig.client(lambda client: client.ask("Audit"))
            worst[:] = (
                [one for one in answer["findings"] if one["severity"] != "pending"] if answer is not None else ["no answer"]
            )
            return not worst

        wait_until(is_clean, what=f"the audit finds nothing: {worst}", timeout_s=AUDIT_S)

    def assert_no_branch_of(self, node: str) -> None:
        """Nothing of a branch is left on a node: neither links nor tables nor rules."""
        kernel = self.rigs[node].kernel()
        assert [veth.name for veth in kernel.branch_veths if not veth.is_dying] == []
        wait_until(lambda: not self.rigs[node].kernel().vlans, what="no VLAN link is left")
        rules = self.ip(node, self.family.option, "rule", "show")
        assert "vlan" not in rules, rules

    @property
    def trunk_link(self) -> str:
        """Name of node-a's trunk."""
        return self.branches.trunk_link("node-a")


@contextmanager
def ground(
    mode: str,
    *,
    env: Mapping[str, str] | None = None,
    nodes: tuple[str, ...] = NODES,
    family: Family = IPV4,
    outside: bool = True,
    started: Callable[[BranchGround], None] = lambda _: None,
) -> Iterator[BranchGround]:
    """Build it; everything is gone afterwards. `started`: called once the daemons run, before they are ready."""
    vpc = Vpc(ipv6_cidr=IPV6_CIDR if family is IPV6 else "")
    with ExitStack() as stack:
        name = f"branch-{time.monotonic_ns()}"
        lab = stack.enter_context(Lab(name=name, nodes=nodes, hosts=["host-a", "host-b"], containerd=False, vpc=vpc))
        servers = stack.enter_context(talk.Servers())
        group = vpc.add_security_group("pods")
        if outside:
            lab.add_internet()
        branches = stack.enter_context(Branches(lab, nodes=nodes, cooldown_s=COOLDOWN_S))
        settings = MODES[mode] | {"IP_COOLDOWN_PERIOD": "30"} | family.settings | dict(env or {})
        rigs = {name: Rig(lab, lab.node(name), env=settings, module=MODULE) for name in nodes}
        made = BranchGround(lab, branches, rigs, servers, group, family)
        for rig in rigs.values():
            rig.start(wait=False)
        started(made)
        for rig in rigs.values():
            rig.wait_ready()
        made.place_nodes()
        if outside:
            made.place_outside(OUTSIDE_HOST_6 if family is IPV6 else OUTSIDE_HOST)
        yield made
        assert lab.fabric.problems == []
        assert branches.controller.problems == []
