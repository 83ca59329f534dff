"""A pod with NET_ADMIN puts a link of its own in the place of another pod's, by name, MAC and alias, while the daemon runs."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from tests.lab.branch.ground import BranchGround, Sandbox, ground
from tests.rig import wait_until

pytestmark = pytest.mark.privileged


TRIES = 20


@pytest.fixture(scope="module")
def made() -> Iterator[BranchGround]:
    """One node in strict mode."""
    with ground("strict", nodes=("node-a",), outside=False) as found:
        yield found


def link(node: BranchGround, name: str) -> dict[str, object]:
    """What the node has of a link."""
    (shown,) = json.loads(node.ip("node-a", "-j", "link", "show", name))
    return {key: shown.get(key) for key in ("ifindex", "address", "ifalias")}


def replace_link(node: BranchGround, attacker: Sandbox, name: str) -> dict[str, object]:
    """Have a pod put a veth into itself in the place of a link of the node; what that has of it. The daemon makes a VLAN link again
    within a second, so the pod tries until it is faster.
    """
    before, node_path = link(node, name), node.rig.node.netns_path()
    inside, outside = f"nsenter --net={node.paths[attacker.name]}", f"nsenter --net={node_path}"
    veth = f"outer0 address {before['address']} type veth peer name inner0"
    prepare = (
        f"ip link add {veth}; ip link set inner0 up; ip link set outer0 alias '{before['ifalias']}'; "
        f"ip link set outer0 name {name}"
    )
    subprocess.run([*inside.split(), "sh", "-ec", prepare], check=True, timeout=60)
    attack = f"{outside} ip link del {name}; {inside} ip link set {name} netns {node_path}"
    for _ in range(TRIES):
        if not subprocess.run(["sh", "-c", attack], check=False, timeout=60).returncode:
            break
    node.ip("node-a", "link", "set", name, "up")
    return link(node, name)


def is_named(node: BranchGround, sandbox: Sandbox) -> bool:
    """Whether a condition of the status names a sandbox."""
    return any(sandbox.name in str(condition) for condition in (node.rig.status() or {}).get("conditions", []))


def routes_by(node: BranchGround, name: str) -> str:
    """Routes of the node that lead through a link, in any table, but for the kernel's own."""
    shown = node.ip("node-a", "route", "show", "table", "all", "dev", name)
    return "\n".join(line for line in shown.splitlines() if "table local" not in line and "proto kernel" not in line)


def findings(node: BranchGround) -> list[dict[str, str]]:
    """What the audit finds."""
    return node.rig.client(lambda client: client.ask("Audit"))["findings"]


def test_in_the_place_of_a_vlan_link(node: BranchGround) -> None:
    """The victim is cut off and named, nothing is led to the impostor, and the link is made again once that is gone."""
    victim, attacker = node.run("victim"), node.run("attacker", groups=())
    assert node.is_heard("host-a", victim.name)
    assert victim.given is not None
    name = f"vlan.eth.{victim.given.vlan}"
    ours, impostor = link(node, name), replace_link(node, attacker, name)
    assert impostor["ifindex"] != ours["ifindex"]
    wait_until(lambda: is_named(node, victim), what="a condition names the victim")
    assert routes_by(node, name) == ""
    assert not node.is_heard("host-a", victim.name, expected=False)
    assert not node.is_heard(victim.name, "host-a", expected=False)
    assert link(node, name) == impostor
    assert any(finding["subject"] == str(victim.address) and name in finding["text"] for finding in findings(node))
    node.ip("node-a", "link", "del", name)
    wait_until(lambda: not is_named(node, victim), what="the condition is over")
    assert node.is_heard("host-a", victim.name)


def test_in_the_place_of_a_host_veth(node: BranchGround) -> None:
    """Nothing is led to the impostor, by the branch's table neither, and DEL leaves nothing."""
    victim, attacker = node.run("victim"), node.run("attacker", groups=())
    (veth,) = [veth.name for veth in node.rig.kernel().branch_veths]
    impostor = replace_link(node, attacker, veth)
    wait_until(lambda: is_named(node, victim), what="a condition names the victim")
    assert routes_by(node, veth) == ""
    assert link(node, veth) == impostor
