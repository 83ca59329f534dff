"""What users of the policy agent met that is its own, played beside the daemon: it causes none of it, and takes none for a fault.

Three are open issues of aws-network-policy-agent (288, 305, 549), one of Bottlerocket (4674). Strict mode.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from ipaddress import IPv4Address, IPv6Address

import pytest

from lab.fabric import talk
from lab.node.kube_proxy import KubeProxy, Service
from lab.vpc.family import FAMILIES, IPV4, IPV6, Family
from lab.vpc.model import Address
from tests.lab.policy.policed import UNHEARD_S, Policed, policed

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

CLUSTER_ADDRESS: dict[Family, Address] = {IPV4: IPv4Address("10.100.0.10"), IPV6: IPv6Address("fd00:100::10")}
NODE_PORT = 30080
IN_IPV4, IN_IPV6, IN_BOTH = (
    pytest.mark.parametrize("node", families, indirect=True, ids=lambda family: family.option)
    for families in ((IPV4,), (IPV6,), FAMILIES)
)


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest) -> Iterator[Policed]:
    """A node of a family; a test removes what it made."""
    with policed(family=request.param) as made:
        yield made
        made.rig.assert_sound(expected=0)


@contextmanager
def allowed(node: Policed, pod: str) -> Iterator[str]:
    """A sandbox that its policy lets be heard; it and what filters it are gone afterwards."""
    sandbox = node.run(pod)
    try:
        node.assert_policed(sandbox)
        yield sandbox
    finally:
        node.remove(sandbox)
        node.await_forgotten(pod)


def assert_nobody_blamed(node: Policed, *, count: int) -> None:
    """Neither status, which is ready, nor audit finds anything."""
    status = node.rig.status()
    assert status is not None
    assert (status["ready"], status["cut_off_count"]) == (True, 0)
    assert [one for one in status["degraded"] if "polic" in one] == []
    node.rig.assert_sound(expected=count)


def is_asked(node: Policed, client: str, address: Address, port: int, *, expected: bool) -> bool:
    """Whether somebody at an address answers a client: a sandbox, or a host of the VPC."""
    path = node.rig.lab.hosts[client].path if client == "host-a" else node.rig.node.netns_path(f"/run/netns/{client}")
    timeout_s = talk.TIMEOUT_S if expected else UNHEARD_S
    return talk.ask(path, address, port=port, tcp=True, timeout_s=timeout_s) is not None


# 288: pods that a policy allows everything are denied hours later.


def replica(node: Policed) -> None:
    """A pod that shares its programs comes and goes."""
    sandbox = node.run("api-1")
    assert node.is_heard(sandbox), "the policy of its siblings is its own"
    node.remove(sandbox)
    node.await_forgotten("api-1")


def replaced(node: Policed) -> None:
    """One whose DEL comes after its successor's ADD."""
    old = node.run("api-2")
    node.lose(old)
    new = node.run("api-2")
    node.delete(old)
    node.remove(new)
    node.await_forgotten("api-2")


def refused(node: Policed) -> None:
    """One that the agent refuses."""
    node.agent.order(refuses=True)
    assert node.add("api-3")[1].code == 11
    node.agent.order(refuses=False)


def restarted(node: Policed) -> None:
    """The daemon anew and a sibling, then the agent. (What the agent forgot, it takes from siblings that it knows by itself.)"""
    node.rig.restart()
    replica(node)
    node.agent.restart()


@IN_IPV4
@pytest.mark.parametrize("happens", [replica, replaced, refused, restarted], ids=lambda one: one.__name__)
def test_what_befalls_its_siblings_denies_nothing_to_a_pod(node: Policed, happens: Callable[[Policed], None]) -> None:
    """Nothing that we tell the agent takes away the programs or the policy of a pod that lives."""
    with allowed(node, "api-0") as pod:
        before = node.filtered("api-0")
        happens(node)
        assert node.is_heard(pod)
        assert node.filtered("api-0") == before
        assert before.ifindex not in node.agent.view().stale
        assert node.agent.policy_comes("default", "api-0", passes=False), "no policy reaches it any more"
        assert not node.is_heard(pod, expected=False)
        assert_nobody_blamed(node, count=1)


# 305: a policy that comes in several parts denies for a moment.


@IN_IPV4
def test_a_moments_denial_is_no_fault_of_the_pod(node: Policed) -> None:
    """Neither status nor audit names the pod, CHECK finds it right, nothing is repaired, and others start."""
    with allowed(node, "parts-0") as pod:
        did, filters = node.did("parts-0"), node.filtered("parts-0")
        for other in ("first-0", "second-0"):
            assert node.agent.policy_comes("default", "parts-0", passes=False)
            assert not node.is_heard(pod, expected=False)
            assert node.rig.cni("CHECK", pod, pod="parts-0").ok
            assert_nobody_blamed(node, count=1)
            with allowed(node, other):
                assert node.agent.policy_comes("default", "parts-0", passes=True)
                assert node.is_heard(pod)
        assert (node.did("parts-0"), node.filtered("parts-0")) == (did, filters)


# 549: of IPv6, policies are not enforced; or pods stay apart after their policies went; or the daemon ends again and again.


@IN_IPV6
def test_what_is_denied_is_denied_and_is_heard_when_all_policies_are_gone(node: Policed) -> None:
    """Pod to pod on one node; the agent is upgraded, then gone with all its filters; the daemon starts anew beside both."""
    with allowed(node, "six-0") as server, allowed(node, "ask-0") as client:
        for how in ("again", "upgraded"):
            node.agent.restart(how=how)
            node.rig.restart()
            for passes in (False, True):
                assert node.agent.policy_comes("default", "six-0", passes=passes), how
                assert is_asked(node, client, node.addresses[server], talk.PORT, expected=passes) == passes, how
        node.agent.restart(how="forgetful")
        node.rig.restart()
        assert not node.filtered("six-0").is_whole
        assert is_asked(node, client, node.addresses[server], talk.PORT, expected=True)
        assert_nobody_blamed(node, count=2)


# bottlerocket 4674: kube-proxy in nftables mode, with policies.


@IN_BOTH
def test_services_in_nftables_reach_what_policies_allow(node: Policed) -> None:
    """By ClusterIP from a pod and by NodePort from a host, before and after a denial, and after our tables and its were made anew."""
    with allowed(node, "svc-0") as server, allowed(node, "cli-0") as client:
        made, family = node.rig, node.rig.family
        cluster_address, endpoints = CLUSTER_ADDRESS[family], ((node.addresses[server], talk.PORT),)
        service = Service("svc", cluster_address, 80, endpoints, node_port=NODE_PORT)
        proxy, own = KubeProxy(made.node), made.lab.own_address(made.node.name, family)

        def ways(*, expected: bool) -> set[bool]:
            return {
                is_asked(node, client, cluster_address, 80, expected=expected),
                is_asked(node, "host-a", own, NODE_PORT, expected=expected),
            }

        def sync() -> None:
            proxy.sync([service], local=[node.addresses[server]])

        def anew() -> None:
            made.node.netns.tool(["nft", "flush", "ruleset"])
            sync()
            made.restart()

        try:
            for change in (sync, anew):
                change()
                assert ways(expected=True) == {True}
                for passes in (False, True):
                    assert node.agent.policy_comes("default", "svc-0", passes=passes)
                    assert ways(expected=passes) == {passes}
            assert node.filtered("svc-0").is_whole
            assert_nobody_blamed(node, count=2)
        finally:
            proxy.stop()
