"""What goes nowhere, in both modes: to addresses without a sandbox, with a false source, and what would change the node's routing.

Node and fabric are looked at together: most false sources never leave the node; the others are dropped at the ENI's port.
"""

from __future__ import annotations

import subprocess
import time
from ipaddress import IPv4Address, IPv6Address

import pytest

from lab.fabric import forge, talk
from lab.fabric.netns import run_inside
from tests.lab.packets.ground import NODES, PODS, Ground

pytestmark = pytest.mark.privileged

SILENT_S = 0.3
ASKERS = ("pod-a", "pod-a-eth1", "pod-b", "node-a", "node-b", "host-a")
SENDERS = ("pod-a", "pod-a-eth1")
TARGETS = ("pod-a-too", "pod-b", "pod-b-eth1", "node-a", "node-b", "host-a", "outside")
FALSE_SOURCES = (*PODS, *NODES, "host-a", "outside", "nobody", "metadata", "loopback")
"""Of sandboxes on the same ENI, another ENI and another node; of nodes, the VPC and the world; of nobody."""


def silent(made: Ground, target: IPv4Address) -> dict[str, object]:
    """Who of ASKERS hears nothing from an address, by UDP and by TCP; the others with what they heard."""
    return {
        f"{asker} {'tcp' if tcp else 'udp'}": heard
        for asker in ASKERS
        for tcp in (False, True)
        if (heard := made.ask(asker, target, tcp=tcp, timeout_s=SILENT_S)) is not None
    }


def source_of(made: Ground, name: str) -> IPv4Address:
    """The address that a name of FALSE_SOURCES stands for."""
    special = {"nobody": unassigned(made), "metadata": IPv4Address("169.254.169.254"), "loopback": IPv4Address("127.0.0.1")}
    return special.get(name) or made.addresses[name]


def unassigned(made: Ground) -> IPv4Address:
    """An address of node-a's subnet that is on no ENI."""
    subnet = made.lab.vpc.enis_of(made.rigs["node-a"].node.instance_id)[0].subnet_cidr
    return next(address for address in reversed(list(subnet.hosts())) if made.lab.vpc.owner_of(address) is None)


def test_a_cooling_address_answers_nothing(made: Ground) -> None:
    """I8: from the reply to DEL on, nobody hears anything from the address, though the sandbox's namespace may live on."""
    rig = made.rigs["node-a"]
    address = rig.add("short-lived").address
    path = rig.node.netns_path("/run/netns/short-lived")
    made.servers.add("short-lived", path)
    assert talk.ask(made.paths["pod-b"], address) is not None
    assert rig.cni("DEL", "short-lived").ok
    assert silent(made, address) == {}
    assert rig.pool()["cooling_count"] >= 1
    assert rig.delete("short-lived").ok


def test_a_free_address_answers_nothing(made: Ground) -> None:
    """An address that is on the node's ENI and given to no sandbox."""
    rig = made.rigs["node-a"]
    taken = set(rig.attachments().values())
    free = [address for address in rig.ec2_addresses() if address not in taken]
    assert free
    assert silent(made, free[-1]) == {}


def test_an_address_on_no_eni_answers_nothing(made: Ground) -> None:
    """An address of the subnet that EC2 gave to nobody."""
    assert silent(made, unassigned(made)) == {}


@pytest.mark.parametrize("sender", SENDERS)
def test_a_false_source_goes_nowhere(made: Ground, sender: str) -> None:
    """I16: of all packets that a sandbox sends as somebody else none arrives, on its node, across nodes or outside; its own do."""
    numbers = {}
    for source in FALSE_SOURCES:
        for target in TARGETS:
            numbers[source, target] = question = f"{sender} as {source} to {target}".encode()
            forge.udp(made.paths[sender], source=source_of(made, source), target=made.addresses[target], payload=question)
    # What a sandbox sends later arrives later: when these have been heard, the false ones have had their time.
    for target in TARGETS:
        assert made.ask(sender, target) is not None
    heard = {pair: made.servers.who_heard(question) for pair, question in numbers.items()}
    own = {(sender, target): [target] for target in TARGETS}
    assert {pair: names for pair, names in heard.items() if names} == own


@pytest.mark.parametrize("sender", SENDERS)
def test_a_router_advertisement_changes_nothing(made: Ground, sender: str) -> None:
    """I16, CVE-2020-10749: the node takes neither a route nor an address from a sandbox that says it is a router."""
    path = made.paths["node-a"]
    before = inside(path, "ip -6 route show default")
    forge.router_advertisement(made.paths[sender], link="eth0", prefix=IPv6Address("2001:db8::"))
    time.sleep(SILENT_S)  # the kernel takes one at once, and tells nobody that it did not
    assert inside(path, "ip -6 route show default") == before
    assert "2001:db8" not in inside(path, "ip -6 address")


@pytest.mark.parametrize("sender", SENDERS)
@pytest.mark.parametrize("victim", ["node-a", "pod-a-too"])
def test_a_redirect_changes_nothing(made: Ground, sender: str, victim: str) -> None:
    """I16: a sandbox that says it is the victim's router leads none of its traffic to itself."""
    subnet = made.lab.vpc.enis_of(made.rigs["node-a"].node.instance_id)[0].subnet_cidr
    router = subnet.network_address + 1 if victim == "node-a" else IPv4Address("169.254.1.1")
    target = made.addresses["host-a"]
    way = f"ip -4 route get {target}"
    before = inside(made.paths[victim], way)
    forge.redirect(made.paths[sender], source=router, target=made.addresses[victim], of=target, to=made.addresses[sender])
    assert made.ask(sender, victim) is not None
    assert inside(made.paths[victim], way) == before
    assert made.ask(victim, "host-a") is not None


def inside(path: str, command: str) -> str:
    """What a command prints in a namespace."""
    return run_inside(
        path, lambda: subprocess.run(command.split(), capture_output=True, text=True, check=True, timeout=10)
    ).stdout
