"""`ipamctl path` beside real packets: what it says of a pod and a destination is what a server there sees, and what drops is named.

Pods of the pool on both ENIs, both families, with and without SNAT; egress of the other family. Branch ENIs: `tests/lab/branch`.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from operator import methodcaller
from typing import Any

import pytest

from lab.fabric import talk
from lab.fabric.netns import run_inside
from lab.vpc.family import IPV4
from lab.vpc.model import Address
from tests.lab.packets.ground import OUTSIDE, SETTINGS, Ground, ground
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

PODS = ("pod-a", "pod-a-eth1")
SILENT_S = 0.3
PASSES_S = 60.0
"""Above the 30 s between two passes over the sandboxes."""


@pytest.fixture(scope="module", params=["secondary", "prefix", "ipv6"])
def made(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """One ground for each mode of the pool; in prefix mode sandboxes have egress of IPv6."""
    with ground(request.param) as present:
        yield present
        # What the tests did to rules, filters and a pod is undone, and found to be at the daemon's next pass.
        wait_until(lambda: findings(present) == [], what="the audit finds nothing", timeout_s=PASSES_S)


def findings(made: Ground) -> list[dict[str, Any]]:
    """What the daemon of node-a finds now."""
    answer = made.rigs["node-a"].client(methodcaller("ask", "Audit"))
    assert answer is not None
    return list(answer["findings"])


def path(made: Ground, pod: str, destination: object) -> dict[str, Any]:
    """What the daemon of node-a says."""
    rig = made.rigs["node-a"]
    answer = rig.client(methodcaller("ask", "Path", subject=str(made.addresses[pod]), destination=str(destination)))
    assert answer is not None
    return answer


def eni_of(made: Ground, pod: str) -> str | None:
    """The ENI that has a pod's address, as EC2 has it."""
    return made.rigs["node-a"].eni_of(made.addresses[pod])


def seen_inside(made: Ground, pod: str, target: str) -> str:
    """The source that a server in the VPC sees."""
    heard = made.ask(pod, target)
    assert heard is not None
    return str(heard.seen_as)


@pytest.mark.parametrize("setting", ["default", "external-snat"])
@pytest.mark.parametrize("pod", PODS)
def test_the_source_and_the_eni_are_those_of_the_packets(made: Ground, pod: str, setting: str) -> None:
    """Within the VPC and outside: the translation, the mark, the ENI by EC2, and the rule of the answer."""
    made.apply(SETTINGS[setting])
    primary = made.lab.vpc.enis_of(made.rigs["node-a"].node.instance_id)[0]
    node = made.lab.own_address("node-a", made.family)
    inside = path(made, pod, made.addresses["host-a"])
    assert (inside["verdict"], inside["cause"], inside["kind"]) == ("leaves", "leaves-node", "pool"), inside
    assert inside["seen_as"] == seen_inside(made, pod, "host-a")
    assert inside["eni"]["eni_id"] == eni_of(made, pod)
    outside = path(made, pod, f"[{made.addresses['outside']}]:443" if made.family is not IPV4 else made.addresses["outside"])
    heard = made.ask(pod, "outside")
    assert heard is not None
    assert heard.seen_as == made.translated(pod, "outside")
    assert outside["translated"] == made.node_translates
    assert outside["seen_as"] == str(node if made.node_translates else made.addresses[pod])
    assert outside["eni"]["eni_id"] == (primary.eni_id if made.node_translates else eni_of(made, pod))
    answers = [lookup for lookup in outside["lookups"] if lookup["place"] == "answer"]
    assert [(answer["rule"], answer["table"], answer["result"]) for answer in answers] == [(513, 113213, "forwarded")]
    assert outside["eni"]["subnet_id"] == primary.subnet_id
    # A daemon that has just started learns the groups of an ENI from its first Describe.
    wait_until(lambda: path(made, pod, str(made.addresses["outside"]))["eni"]["security_group_ids"], what="its security groups")


@pytest.mark.parametrize("pod", PODS)
def test_what_stays_on_the_node_is_reached(made: Ground, pod: str) -> None:
    """Another pod and the node itself, of which everything is seen."""
    for target, cause in (("pod-a-too", "pod-on-node"), ("node-a", "node")):
        answer = path(made, pod, made.addresses[target])
        assert (answer["verdict"], answer["cause"]) == ("reaches", cause), answer
        assert made.ask(pod, target) is not None


@contextmanager
def done(made: Ground, command: str, undo: str) -> Iterator[None]:
    """Something that others do on node-a, until the end of the block."""
    netns = made.rigs["node-a"].node.netns
    netns.tool(["sh", "-c", command])
    try:
        yield
    finally:
        netns.tool(["sh", "-c", undo])


def test_what_drops_is_named(made: Ground) -> None:
    """A rule ahead, by its number, for the packet and for its answer; a port's rule only where the port is asked for."""
    ip = "ip" if made.family is IPV4 else "ip -6"
    pod, target = made.addresses["pod-a"], made.addresses["host-a"]
    bracketed = f"[{target}]" if made.family is not IPV4 else str(target)
    # Ahead of nothing that the daemon repairs: it reports such a rule and leaves it.
    with done(made, f"{ip} rule add prio 400 from {pod} to {target} prohibit", f"{ip} rule del prio 400"):
        answer = path(made, "pod-a", target)
        assert (answer["verdict"], answer["cause"]) == ("dropped", "node-refuses"), answer
        assert answer["lookups"][-1]["rule"] == 400
        assert made.ask("pod-a", "host-a", timeout_s=SILENT_S) in (None, talk.REFUSED)
    with done(made, f"{ip} rule add prio 401 from {target} to {pod} blackhole", f"{ip} rule del prio 401"):
        answer = path(made, "pod-a", target)
        # IPv4 drops the packet itself: the reverse-path filter of the host veth asks for the way back.
        cause = "reverse-path" if made.family is IPV4 else "answer-refused"
        assert (answer["verdict"], answer["cause"]) == ("dropped", cause), answer["lookups"]
        assert answer["lookups"][-1]["rule"] == 401
        assert made.ask("pod-a", "host-a", timeout_s=SILENT_S) in (None, talk.REFUSED)
    with done(made, f"{ip} rule add prio 402 to {target} ipproto tcp dport 77 prohibit", f"{ip} rule del prio 402"):
        answer = path(made, "pod-a", f"{bracketed}:77")
        assert (answer["cause"], answer["lookups"][-1]["rule"]) == ("node-refuses", 402)
        assert path(made, "pod-a", f"{bracketed}:78")["cause"] == "leaves-node"
    assert path(made, "pod-a", target)["cause"] == "leaves-node"
    assert made.ask("pod-a", "host-a") is not None


def test_a_filter_of_others_is_named(made: Ground) -> None:
    """A drop of the pod's address is found by its table and chain."""
    word = "ip" if made.family is IPV4 else "ip6"
    pod = made.addresses["pod-a"]
    table = f"nft 'table {word} theirs {{ chain y {{ type filter hook forward priority 0; {word} saddr {pod} drop; }}; }}'"
    with done(made, table, f"nft delete table {word} theirs"):
        answer = path(made, "pod-a", made.addresses["host-a"])
        assert (answer["verdict"], answer["cause"]) in {("dropped", "filtered"), ("unseen", "may-be-filtered")}, answer
        assert "theirs y" in answer["text"]
        assert path(made, "pod-a-eth1", made.addresses["host-a"])["cause"] == "leaves-node"
        assert made.ask("pod-a", "host-a", timeout_s=SILENT_S) in (None, talk.REFUSED)
    assert path(made, "pod-a", made.addresses["host-a"])["verdict"] == "leaves", "the filter is gone"
    assert made.ask("pod-a", "host-a") is not None


def test_a_pods_own_route_that_refuses_is_named(made: Ground) -> None:
    """Its kernel decides first."""
    target, dash = made.addresses["host-a"], "-4" if made.family is IPV4 else "-6"

    def change(verb: str) -> None:
        command = ["ip", dash, "route", verb, "unreachable", str(target)]
        run_inside(made.paths["pod-a"], lambda: subprocess.run(command, check=True, timeout=60))

    change("add")
    try:
        answer = path(made, "pod-a", target)
        assert (answer["verdict"], answer["cause"]) == ("dropped", "pod-refuses"), answer
    finally:
        change("del")


def egress_address(made: Ground, pod: str) -> Address | None:
    """Whether the pod has a second address for the family that the pool has not."""
    family = made.rigs["node-a"].driver.egress
    if family is None:
        return None
    show = ["ip", "-json", family.option, "address", "show", "dev", family.egress_link, "scope", "global"]
    shown = run_inside(
        made.paths[pod], lambda: subprocess.run(show, capture_output=True, text=True, check=True, timeout=60).stdout
    )
    assert json.loads(shown)
    return OUTSIDE[family]


@pytest.mark.parametrize("pod", PODS)
def test_egress_is_seen_as_the_node(made: Ground, pod: str) -> None:
    """The other family leaves by the primary ENI with the node's own address; without egress the pod has none."""
    family = made.rigs["node-a"].driver.egress
    rig = made.rigs["node-a"]
    if family is None:
        answer = rig.client(methodcaller("ask", "Path", subject=pod_container(made, pod), destination="2001:db8::9"))
        assert answer is not None
        assert (answer["verdict"], answer["cause"]) == ("dropped", "no-address-of-family"), answer
        return
    outside = egress_address(made, pod)
    answer = rig.client(methodcaller("ask", "Path", subject=pod_container(made, pod), destination=str(outside)))
    assert answer is not None
    node = made.lab.own_address("node-a", family)
    assert (answer["kind"], answer["cause"], answer["translated"]) == ("egress", "leaves-node", True), answer
    assert answer["seen_as"] == str(node)
    made.servers.add("world", made.lab.internet.outside.path, address=OUTSIDE[family])
    heard = talk.ask(made.paths[pod], OUTSIDE[family])
    made.servers.remove("world")
    assert heard is not None
    if family is not IPV4:  # in IPv4 the internet gateway translates once more
        assert str(heard.seen_as) == answer["seen_as"]


def pod_container(made: Ground, pod: str) -> str:
    """The container ID by which the daemon knows a pod of the ground."""
    listed = made.rigs["node-a"].client(methodcaller("ask", "ListAttachments"))
    assert listed is not None
    return next(row["container_id"] for row in listed["attachments"] if row["address"] == str(made.addresses[pod]))


def test_the_node_itself_sends_as_itself(made: Ground) -> None:
    """A pod in the node's own network is asked for by the node's address: no translation is needed."""
    made.apply(SETTINGS["default"])
    answer = path(made, "node-a", made.addresses["host-a"])
    assert (answer["kind"], answer["cause"], answer["translated"]) == ("host-network", "leaves-node", False), answer
    assert answer["seen_as"] == seen_inside(made, "node-a", "host-a")
