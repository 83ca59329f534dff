"""Pods beside what Calico's Felix programs in policy-only mode: they keep their network, its policies act, and nobody is blamed.

A Felix itself is not here: docs/host.md says what was tried with one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import pytest

from lab.fabric import talk
from lab.node.felix import Felix, Workload
from lab.vpc.family import FAMILIES, IPV4, Family
from lab.vpc.model import Address
from tests.lab.policy.policed import UNHEARD_S, link
from tests.rig import Rig, rig

pytestmark = pytest.mark.privileged

ENV = {"VPC_IPAMD_POD_VETH_NAMES": "true", "ENABLE_V4_EGRESS": "false"}
PODS = ("web", "api")
EVERYBODY = (*PODS, "node-a", "host-a")


@dataclass
class Beside:
    """A node with two pods that Felix knows."""

    rig: Rig
    felix: Felix
    workloads: dict[str, Workload]
    paths: dict[str, str]
    addresses: dict[str, Address]

    def heard(self, client: str) -> dict[str, tuple[str, Address | None] | None]:
        """Who answers a client, and whom each saw."""
        found = {}
        for server in EVERYBODY:
            if server != client:
                answer = talk.ask(self.paths[client], self.addresses[server], tcp=True, timeout_s=talk.TIMEOUT_S)
                found[server] = answer and (answer.by, answer.seen_as)
        return found

    def assert_heard(self) -> None:
        """Everybody hears everybody as himself."""
        for client in EVERYBODY:
            assert self.heard(client) == {server: (server, self.addresses[client]) for server in EVERYBODY if server != client}, (
                client
            )

    def assert_nobody_blamed(self) -> None:
        """Neither by the status nor by the audit, which look anew."""
        status = self.rig.status()
        assert status is not None
        assert [one["subject"] for one in status["conditions"]] == ["cri"], "the rig's daemon follows no runtime"
        assert status["cut_off_count"] == 0
        self.rig.assert_sound(expected=len(PODS))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param((family, tool), id=tool if tool.startswith("ip") else f"{tool}{family.option}")
        for family in FAMILIES
        for tool in ("nft", "iptables-nft" if family is IPV4 else "ip6tables-nft")
    ],
)
def beside(request: pytest.FixtureRequest) -> Iterator[Beside]:
    """In each family and by each tool."""
    family: Family
    family, tool = request.param
    with rig(env=ENV, family=family) as made, talk.Servers() as servers:
        paths = {"node-a": made.node.netns_path(), "host-a": made.lab.hosts["host-a"].path}
        addresses = {name: made.lab.own_address(name, family) for name in paths}
        for pod in PODS:
            reply = made.add(pod, pod=pod)
            paths[pod], addresses[pod] = made.node.netns_path(f"/run/netns/{pod}"), reply.any_address
        for name in EVERYBODY:
            servers.add(name, paths[name], address=addresses[name])
        felix, workloads = Felix(made.node, family=family, tool=tool), {link(pod): Workload(addresses[pod]) for pod in PODS}
        felix.sync(workloads)
        yield Beside(made, felix, workloads, paths, addresses)


def test_pods_keep_their_network_and_nobody_is_blamed(beside: Beside) -> None:
    """With its routes in place of the daemon's, its bits of mark beside ours; after a restart too."""
    beside.assert_heard()
    beside.assert_nobody_blamed()
    routes = beside.rig.node.netns.tool(["ip", beside.rig.family.option, "route", "show", "proto", "static"])
    assert not any(link(pod) in routes for pod in PODS), "its routes are left alone"
    beside.rig.restart()
    beside.assert_heard()
    beside.assert_nobody_blamed()


def test_its_policies_act(beside: Beside) -> None:
    """A pod that nobody may ask: its own questions are answered, and its node reaches it."""
    web = link("web")
    beside.felix.sync(beside.workloads | {web: replace(beside.workloads[web], passes=False)})
    try:
        for client in ("api", "host-a"):
            assert talk.ask(beside.paths[client], beside.addresses["web"], tcp=True, timeout_s=UNHEARD_S) is None
        assert set(beside.heard("web").values()) == {(server, beside.addresses["web"]) for server in EVERYBODY if server != "web"}
        assert beside.heard("node-a")["web"] == ("web", beside.addresses["node-a"])
        beside.assert_nobody_blamed()
    finally:
        beside.felix.sync(beside.workloads)
    beside.assert_heard()


def test_del_leaves_no_route(beside: Beside) -> None:
    """Its route goes with the link; the next pod is without network until Felix knows it."""
    made = beside.rig
    reply = made.add("late", pod="late")
    assert talk.ask(beside.paths["host-a"], reply.any_address, tcp=True, timeout_s=UNHEARD_S) is None
    late = {link("late"): Workload(reply.any_address)}
    beside.felix.sync(beside.workloads | late)
    with talk.Servers() as servers:
        servers.add("late", made.node.netns_path("/run/netns/late"), address=reply.any_address)
        assert talk.ask(beside.paths["host-a"], reply.any_address, tcp=True) is not None
    assert made.delete("late", pod="late").ok
    beside.assert_nobody_blamed()
    assert str(reply.any_address) not in made.node.netns.tool(["ip", made.family.option, "route", "show", "table", "all"])
