"""Today's daemon takes over a node of schema level 8 under running pods: no packet is lost for long, and every pod's DEL works.

The pods have what that release could give them: addresses of the primary and of a secondary ENI, egress of the other family, branch
ENIs. Today's daemon makes changes in the kernel at its first pass: buckets of rules, other tables of nftables, a route that ends a
branch's table.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from lab.branches.ground import Branches
from lab.branches.messages import annotations_of
from lab.branches.pods import POD_ENI
from lab.fabric import talk
from lab.fabric.internet import OUTSIDE_HOST, OUTSIDE_HOST_6
from lab.fabric.netns import run_inside
from lab.lab import IPV6_CIDR, Lab
from lab.node.kernel_view import FROM_PRIORITY
from lab.vpc.family import IPV4, IPV6, egress_by, family_by, family_of
from lab.vpc.limits import InstanceLimits
from lab.vpc.model import Address
from lab.vpc.state import Vpc
from tests.lab.branch.ground import ANNOTATIONS, MODULE, STRICT
from tests.rig import CniReply, Rig, wait_until
from tests.upgrade.release import Release, lacks_commit
from tests.upgrade.test_level_8 import COMMIT

EVERY_S = 0.05
SILENT_COUNT = 20
"""Questions without an answer, one after another, that make a stream silent: a second. They are counted and not timed, because a busy
machine asks later."""

SETTLED_S = 3.0
"""Ours: longer than the first pass over the host network takes."""

BRANCHES = {**STRICT, "ENABLE_V6_EGRESS": "true", "WARM_IP_TARGET": "2"}
LIMITS = {"m5.large": InstanceLimits((40,), 4, branches=9), "t3.nano": InstanceLimits((2,), 2)}
"""Three addresses on each of so many ENIs that today's daemon puts rules into buckets; and what a host is."""

OUTSIDE: Mapping[Any, Address] = {IPV4: OUTSIDE_HOST, IPV6: OUTSIDE_HOST_6}

MISSING = lacks_commit(COMMIT)
pytestmark = [pytest.mark.slow, pytest.mark.privileged, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


class Streams:
    """Asks servers again and again, from sockets that stay, and counts the questions without an answer. Use as a context."""

    def __init__(self) -> None:
        self._unanswered: dict[str, int] = {}
        self._most: dict[str, int] = {}
        self._selector = selectors.DefaultSelector()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="streams")

    def add(self, name: str, path: str, target: Address) -> None:
        """Begin a stream from the namespace at `path`, before the context is entered."""

        def connect() -> socket.socket:
            sock = socket.socket(family_of(target).number, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
            sock.connect((str(target), talk.PORT))
            return sock

        self._selector.register(run_inside(path, connect), selectors.EVENT_READ, name)
        self._unanswered[name] = self._most[name] = 0

    def __enter__(self) -> Streams:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._closed.set()
        self._thread.join()
        for key in tuple(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]
        self._selector.close()

    def silent(self) -> dict[str, int]:
        """Return the streams that were silent, each with the most questions in a row that had no answer."""
        return {name: count for name, count in tuple(self._most.items()) if count >= SILENT_COUNT}

    def _run(self) -> None:
        while not self._closed.wait(EVERY_S):
            for key in tuple(self._selector.get_map().values()):
                self._unanswered[key.data] += 1
                self._most[key.data] = max(self._most[key.data], self._unanswered[key.data])
                with suppress(OSError):
                    key.fileobj.send(b"\0")  # type: ignore[union-attr]
            for key, _ in self._selector.select(EVERY_S):
                with suppress(OSError):
                    key.fileobj.recv(100)  # type: ignore[union-attr]
                    self._unanswered[key.data] = 0


class Node:
    """A node with its pods. `results`: of the ADDs of the pods that no DEL has ended."""

    def __init__(self, rig: Rig, branches: Branches | None) -> None:
        self.rig, self._branches = rig, branches
        self.results: dict[str, CniReply] = {}
        self._conf: dict[str, dict[str, Any]] = {}

    @property
    def addresses(self) -> dict[str, Address]:
        """Those of the pods."""
        return {name: reply.any_address for name, reply in self.results.items()}

    def add(self, name: str) -> None:
        """ADD of a pod, which succeeds. One named branch-N must have a branch ENI."""
        self._conf[name] = {}
        if self._branches is not None:
            pods, groups = self._branches.pods, (self.rig.lab.vpc.default_group_id,) if "branch" in name else ()
            pod = pods.create(name, node="node-a", groups=groups)
            wait_until(lambda: bool(groups) == (POD_ENI in pods.get(pod).annotations), what="the controller's annotation")
            self._conf[name] = {"runtimeConfig": {ANNOTATIONS: annotations_of(pods.get(pod))}}
        reply = self.rig.add(name, conf=self._conf[name])
        assert reply.ok, reply.body
        self.results[name] = reply

    def path(self, name: str) -> str:
        """That by which a pod's namespace is opened."""
        return self.rig.node.netns_path(f"/run/netns/{name}")

    def failed_checks(self) -> list[Any]:
        """CHECK every pod. Returns: the answers that are errors."""
        confs = {name: {**self._conf[name], "prevResult": result.body} for name, result in self.results.items()}
        replies = [self.rig.cni("CHECK", name, conf=conf) for name, conf in confs.items()]
        return [reply.body for reply in replies if not reply.ok]

    def delete(self, *names: str) -> None:
        """DEL of pods, which succeeds. Their namespaces stay."""
        for name in names:
            reply = self.rig.cni("DEL", name)
            assert reply.ok, reply.body
            del self.results[name]


@contextmanager
def node_with(env: Mapping[str, str]) -> Iterator[Node]:
    """A node without a daemon; with ENABLE_POD_ENI it has a trunk."""
    vpc = Vpc(limits=LIMITS, ipv6_cidr=IPV6_CIDR)
    with ExitStack() as stack:
        lab = stack.enter_context(Lab(nodes=["node-a"], hosts=["host-a"], containerd=False, vpc=vpc))
        lab.add_internet()
        branches = stack.enter_context(Branches(lab, nodes=["node-a"])) if "ENABLE_POD_ENI" in env else None
        yield Node(Rig(lab, lab.node("node-a"), env={"IP_COOLDOWN_PERIOD": "60", **env}), branches)


def begin(node: Node, servers: talk.Servers, streams: Streams, names: list[str]) -> None:
    """Begin streams from each of these pods to the next one, and outside in each family that it has, and from a host to the pod."""
    lab, addresses = node.rig.lab, node.addresses
    families = [each for each in (node.rig.family, egress_by(node.rig.env)) if each is not None]
    for each in families:
        servers.add(f"outside-{each.version}", lab.internet.outside.path, address=OUTSIDE[each])
    for name, following in zip(names, names[1:] + names[:1], strict=True):
        servers.add(name, node.path(name), address=addresses[name])
        streams.add(f"{name} to {following}", node.path(name), addresses[following])
        streams.add(f"host-a to {name}", lab.hosts["host-a"].path, addresses[name])
        for each in families[:1] if "branch" in name else families:
            streams.add(f"{name} to the outside by IPv{each.version}", node.path(name), OUTSIDE[each])


def places(rig: Rig) -> set[int]:
    """The priorities of the rules for single sandboxes."""
    return {rule.priority for rule in rig.kernel().rules if rule.is_sandbox}


@pytest.mark.parametrize("env", [BRANCHES, IPV6.settings], ids=["ipv4-and-branches", "ipv6"])
def test_running_pods_are_taken_over(tmp_path: Path, env: Mapping[str, str]) -> None:
    """No stream is silent for a second. The DELs and the ADD that found no daemon are carried out; CHECK, and DEL of all, succeed."""
    before, after = Release.at_commit(COMMIT, tmp_path), Release.of_checkout(tmp_path)
    is_ipv4 = family_by(env) is IPV4
    with node_with(env) as node, talk.Servers() as servers, ThreadPoolExecutor(max_workers=1) as caller:
        rig, streams = node.rig, Streams()
        before.install_plugin(rig)
        daemon = before.start_daemon(rig, module=MODULE)
        for name in (*(f"pool-{number}" for number in range(7)), *(f"branch-{number}" for number in range(3 * is_ipv4))):
            node.add(name)
        enis = {rig.eni_of(address) for name, address in node.addresses.items() if "pool" in name}
        assert len(enis) == (3 if is_ipv4 else 1)
        spooled = [name for name in ("pool-0", "pool-6", "branch-2") if name in node.results]
        begin(node, servers, streams, [name for name in node.results if name not in spooled])
        with streams:
            time.sleep(SETTLED_S)
            assert streams.silent() == {}, "under the daemon of before"
            daemon.kill()
            node.delete(*spooled)
            waiting = caller.submit(node.add, "waiting")
            daemon = after.start_daemon(rig, module=MODULE)
            waiting.result()
            assert rig.attachments() == node.addresses
            time.sleep(SETTLED_S)
            wait_until(lambda: FROM_PRIORITY not in places(rig), what="the rules of before are in today's buckets")
            wait_until(lambda: node.failed_checks() == [], what="a pass has added what today's wiring has besides")
            assert streams.silent() == {}
        assert bool(places(rig)) == is_ipv4
        after.install_plugin(rig)
        node.delete(*node.results)
        rig.assert_sound(expected=0)
        assert [link for link in rig.kernel().vlans if not link.is_dying] == []
        daemon.kill()
