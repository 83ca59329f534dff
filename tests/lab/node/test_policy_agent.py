"""The stand-in of the policy agent filters packets by real programs, and remembers pods by name as the real one does."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from ipaddress import IPv4Address
from pathlib import Path

import grpc
import pytest

from lab.fabric import talk, tc
from lab.lab import Lab
from lab.node.node import Node
from lab.node.policy_agent import PolicyAgent
from lab.node.policy_agent_process import CONFIG_SOCKET, PROGRAMS, SOCKET, host_veth, pod_identifier, program_pin
from tests.errors import refused_by_kernel, refused_rpc
from tests.patience import PATIENCE_S

pytestmark = pytest.mark.privileged

UNHEARD_S = 0.3


@contextmanager
def telling(node: Node, mode: str) -> Iterator[None]:
    """`rpc.ConfigServerBackend` of a daemon with this mode."""
    path = Path(node.root + CONFIG_SOCKET)
    path.parent.mkdir(exist_ok=True)
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    answer = b"\x0a" + bytes([len(mode)]) + mode.encode()  # field 1, a string
    handler = grpc.unary_unary_rpc_method_handler(lambda _request, _context: answer)
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler("rpc.ConfigServerBackend", {"GetNetworkPolicyConfigs": handler}),)
    )
    server.add_insecure_port(f"unix:{path}")
    server.start()
    try:
        yield
    finally:
        server.stop(None).wait(PATIENCE_S)


@dataclass
class Scene:
    """A node with an agent, and pods that are links and namespaces."""

    node: Node
    agent: PolicyAgent
    servers: talk.Servers
    addresses: dict[str, IPv4Address] = field(default_factory=dict)

    def run(self, pod: str) -> None:
        """Make a pod's sandbox; an earlier one of the name has gone."""
        number = len(self.addresses) + 1
        place, link = self.node.make_netns(f"{pod}-{number}"), host_veth("default", pod, prefix="eni")
        self.addresses[pod] = IPv4Address(f"10.9.{number}.2")
        for words in (
            f"link add {link} type veth peer name eth0 netns {place}",
            f"addr add 10.9.{number}.1/30 dev {link}",
            f"link set {link} up",
            f"-n {place.rpartition('/')[2]} addr add 10.9.{number}.2/30 dev eth0",
            f"-n {place.rpartition('/')[2]} link set eth0 up",
        ):
            self.node.run(["ip", *words.split()])
        self.servers.add(pod, self.node.netns_path(place))

    def stop(self, pod: str) -> None:
        """Its link goes."""
        self.node.run(["ip", "link", "del", host_veth("default", pod, prefix="eni")])

    def call(self, method: str, pod: str, *, mode: str = "", timeout_s: float = PATIENCE_S) -> bool:
        """What the daemon calls: fields 1 to 3 are strings, 4 is a number; the answer's field 1 says success."""
        fields = [pod, "default", mode]
        request = (
            b"".join(bytes([8 * n + 2, len(text)]) + text.encode() for n, text in enumerate(fields, 1) if text) + b"\x20\x01"
        )
        # Of its own: a connection that another call could not make is tried again only after a pause.
        with grpc.insecure_channel(f"unix:{self.node.root}{SOCKET}", options=[("grpc.use_local_subchannel_pool", 1)]) as channel:
            answer: bytes = channel.unary_unary(f"/rpc.NPBackend/{method}")(request, timeout=timeout_s)
        return answer == b"\x08\x01"

    def enforce(self, pod: str, *, mode: str = "strict") -> bool:
        """EnforceNpToPod."""
        return self.call("EnforceNpToPod", pod, mode=mode)

    def delete(self, pod: str) -> bool:
        """DeletePodNp."""
        return self.call("DeletePodNp", pod)

    def is_heard(self, pod: str, *, expected: bool = True) -> bool:
        """Whether the pod answers its node, that asks for a moment only if no answer is expected."""
        timeout_s = PATIENCE_S if expected else UNHEARD_S
        heard = talk.ask(self.node.netns_path(), self.addresses[pod], timeout_s=timeout_s)
        return heard is not None and heard.by == pod

    def is_filtered(self, pod: str) -> bool:
        """Whether programs hang on its link, in both directions."""
        return self.agent.filtered(host_veth("default", pod, prefix="eni")).is_whole

    def is_pinned(self, pod: str) -> bool:
        """Whether its programs are pinned."""
        return Path(f"{self.node.root}{PROGRAMS}/{pod_identifier('default', pod)}_handle_ingress").exists()


@pytest.fixture(scope="module")
def scene() -> Iterator[Scene]:
    """An agent that a daemon in strict mode let start."""
    with Lab(nodes=["node-a"], containerd=False) as lab, talk.Servers() as servers:
        node = lab.node("node-a")
        with telling(node, "strict"):
            made = Scene(node, PolicyAgent(node), servers)
            made.agent.start()
            yield made


@pytest.mark.parametrize(
    ("pod", "namespace", "identifier"),
    [
        ("web-7d9f-abcde", "default", "web-7d9f@default"),
        ("single", "a", "single@a"),
        ("job-29301-xyz", "batch", "job-29301@batch"),
        ("a.b-0", "c", "a_b@c"),
    ],
)
def test_replicas_have_one_identifier(pod: str, namespace: str, identifier: str) -> None:
    """The name without its last part, and the namespace; by that their programs are pinned."""
    assert pod_identifier(namespace, pod) == identifier
    assert program_pin(identifier, "ingress") == f"/sys/fs/bpf/globals/aws/programs/{identifier}_handle_ingress"


def test_without_a_valid_mode_it_ends() -> None:
    """A daemon that says none, and one that is not there."""
    with Lab(name="npa-modes", nodes=["node-a"], containerd=False) as lab:
        agent = PolicyAgent(lab.node("node-a"))
        with telling(agent.node, "none"):
            agent.start(wait=False)
            assert agent.process is not None
            assert agent.process.wait(PATIENCE_S) == 1
        agent.start(wait=False, wait_s=0.2)
        assert agent.process.wait(PATIENCE_S) == 1
        assert [entry.did for entry in agent.record()] == ["exits", "exits"]


def test_strict_denies_until_a_policy_comes_and_standard_allows(scene: Scene) -> None:
    """The verdict is in the packets, in both modes, and what a policy says is remembered for the next replica of a new program."""
    for pod, mode in (("strict-0", "strict"), ("standard-0", "standard")):
        scene.run(pod)
        assert scene.is_heard(pod)
        assert scene.enforce(pod, mode=mode)
        assert scene.is_filtered(pod)
        assert scene.is_heard(pod, expected=mode == "standard") is (mode == "standard")
        assert scene.agent.policy_comes("default", pod, passes=mode == "strict")
        assert scene.is_heard(pod, expected=mode == "strict") is (mode == "strict")


def test_a_second_sandbox_of_a_name_runs_unfiltered(scene: Scene) -> None:
    """The trap: without Delete in between, the name is answered with success, and its new link has no filter."""
    scene.run("twice-0")
    assert scene.enforce("twice-0")
    scene.stop("twice-0")
    scene.run("twice-0")
    assert scene.enforce("twice-0")
    assert scene.agent.record()[-1].did == "attached already"
    assert not scene.is_filtered("twice-0")
    assert scene.is_heard("twice-0")
    assert scene.delete("twice-0")
    assert scene.enforce("twice-0")
    assert scene.is_filtered("twice-0")
    assert not scene.is_heard("twice-0", expected=False)


def test_a_late_delete_takes_what_the_new_sandbox_uses(scene: Scene) -> None:
    """The other trap: the filter stays on the link, and no policy reaches it any more."""
    scene.run("late-0")
    assert scene.enforce("late-0")
    assert scene.delete("late-0")
    assert scene.is_filtered("late-0")
    assert not scene.agent.policy_comes("default", "late-0", passes=True)
    view = scene.agent.view()
    assert view.links[host_veth("default", "late-0", prefix="eni")].ifindex in view.stale
    assert not scene.is_heard("late-0", expected=False)


def test_replicas_share_programs_until_the_last_one_goes(scene: Scene) -> None:
    """One of two is deleted: the other's pins stay. A name that nobody knows deletes nothing."""
    for pod in ("rep-0", "rep-1"):
        scene.run(pod)
        assert scene.enforce(pod)
    assert scene.delete("rep-2")
    assert scene.delete("rep-0")
    assert scene.is_pinned("rep-1")
    assert scene.agent.policy_comes("default", "rep-1", passes=True)
    assert scene.is_heard("rep-1")
    assert scene.agent.view().links[host_veth("default", "rep-1", prefix="eni")].ifindex not in scene.agent.view().stale
    assert scene.delete("rep-1")
    assert not scene.is_pinned("rep-1")


def test_what_a_start_finds_and_what_it_forgets(scene: Scene) -> None:
    """Again: names are forgotten, filters stay. Upgraded: new filters. Forgetful: none, and the record says whose."""
    scene.run("start-0")
    assert scene.enforce("start-0")
    link = host_veth("default", "start-0", prefix="eni")
    program = scene.agent.filtered(link)
    scene.agent.restart()
    assert scene.agent.names() == frozenset()
    assert scene.agent.filtered(link) == program
    assert scene.enforce("start-0")
    assert scene.agent.names() == {"default/start-0"}
    assert scene.agent.filtered(link) == program
    scene.agent.restart(how="upgraded")
    assert scene.agent.filtered(link).is_whole
    assert scene.agent.filtered(link) != program
    scene.agent.restart(how="forgetful")
    view = scene.agent.view()
    assert not view.links[link].is_whole
    assert view.links[link].ifindex in view.removed
    assert link in [entry.link for entry in scene.agent.record() if entry.did == "removed"]
    assert not scene.is_pinned("start-0")


def test_it_can_refuse_and_be_slow_silent_and_dead(scene: Scene) -> None:
    """success=false; an answer after the caller's patience; a connection without an answer; no connection."""
    scene.run("bad-0")
    scene.agent.order(refuses=True)
    assert not scene.enforce("bad-0")
    scene.agent.order(refuses=False, slow_s=0.3)
    with pytest.raises(grpc.RpcError, check=refused_rpc(grpc.StatusCode.DEADLINE_EXCEEDED)):
        scene.call("DeletePodNp", "bad-0", timeout_s=0.1)
    assert scene.enforce("bad-0"), "in its turn: what nobody waits for any more is done before"
    assert [entry.did for entry in scene.agent.record()[-2:]] == ["not known", "attached"]
    scene.agent.order(slow_s=0)
    scene.agent.fall_silent()
    with pytest.raises(grpc.RpcError, check=refused_rpc(grpc.StatusCode.DEADLINE_EXCEEDED)):
        scene.call("DeletePodNp", "bad-0", timeout_s=0.1)
    scene.agent.speak()
    assert scene.delete("bad-0")
    with pytest.raises(grpc.RpcError, check=refused_rpc(grpc.StatusCode.UNKNOWN)):
        scene.enforce("nobody-0")
    scene.agent.kill()
    with pytest.raises(grpc.RpcError, check=refused_rpc(grpc.StatusCode.UNAVAILABLE)):
        scene.delete("bad-0")
    scene.agent.start()


@pytest.mark.parametrize("order", [("ingress", "clsact"), ("clsact", "ingress")])
def test_clsact_and_the_bandwidth_plugins_qdisc_exclude_each_other(scene: Scene, order: tuple[str, str]) -> None:
    """In either order, in the kernel's words; so a pod cannot have both."""
    add = {"ingress": tc.add_ingress, "clsact": tc.add_clsact}
    link = host_veth("default", "-".join(order), prefix="eni")
    scene.node.netns.ip([f"link add {link} type veth peer name {link[3:]}"])

    def play() -> list[str]:
        ifindex = socket.if_nametoindex(link)
        add[order[0]](ifindex)
        with pytest.raises(OSError, check=refused_by_kernel(errno.EEXIST)):
            add[order[1]](ifindex)
        return tc.qdiscs(ifindex)

    assert order[0] in scene.node.netns.call(play)
