"""`ipamctl path` of pods with branch ENIs beside real packets, in both modes and both families: what it says is what a server sees."""

from __future__ import annotations

from collections.abc import Iterator
from operator import methodcaller
from typing import Any

import pytest

from lab.fabric.internet import NAT_GATEWAY
from lab.vpc.family import IPV4, IPV6, Family
from tests.lab.branch.ground import MODES, BranchGround, Sandbox, ground

pytestmark = [pytest.mark.privileged, pytest.mark.slow]


class Stage:
    """A ground with a pod that has a branch ENI, and one that has a pool address, on node-a."""

    def __init__(self, made: BranchGround, mode: str) -> None:
        self.ground, self.mode = made, mode
        self.web = made.run("web")
        self.pool = made.run("pool", groups=())

    def path(self, sandbox: Sandbox, destination: object) -> dict[str, Any]:
        """What the daemon says."""
        answer = self.ground.rig.client(methodcaller("ask", "Path", subject=sandbox.name, destination=str(destination)))
        assert answer is not None
        return answer


def on_node(answer: dict[str, Any]) -> list[dict[str, Any]]:
    """The decisions about the packet on the node."""
    return [lookup for lookup in answer["lookups"] if lookup["place"] == "node"]


@pytest.fixture(
    scope="module",
    params=[(mode, family) for mode in MODES for family in (IPV4, IPV6)],
    ids=lambda pair: f"{pair[0]}-{pair[1].nft}",
)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """In each mode, in each family."""
    mode: str = request.param[0]
    family: Family = request.param[1]
    with ground(mode, family=family, nodes=("node-a",), env=family.settings) as made:
        yield Stage(made, mode)
        made.end_all()


def test_it_leaves_by_the_branch_as_itself(stage: Stage) -> None:
    """Within the VPC the branch ENI is named with its VLAN link and table, and the node translates nothing."""
    web, made = stage.web, stage.ground
    answer = stage.path(web, made.addresses["host-a"])
    assert web.given is not None
    assert (answer["cause"], answer["kind"]) == ("leaves-node", f"branch-{stage.mode}"), answer
    assert answer["eni"]["eni_id"] == web.given.eni_id
    assert (answer["eni"]["link"], answer["eni"]["device_index"]) == (f"vlan.eth.{web.given.vlan}", -1)
    rule = 10 if stage.mode == "strict" else 1536
    assert [(lookup["rule"], lookup["table"]) for lookup in on_node(answer)] == [(rule, 100 + web.given.vlan)]
    heard = made.heard(web.name, "host-a")
    assert heard is not None
    assert (answer["seen_as"], answer["translated"]) == (str(heard[1]), False)


def test_outside_the_vpc_the_mode_decides(stage: Stage) -> None:
    """In standard mode and IPv4 the node's SNAT takes the packet past the branch: the primary ENI's groups apply to it."""
    web, made = stage.web, stage.ground
    answer = stage.path(web, made.addresses["outside"])
    heard = made.heard(web.name, "outside")
    assert web.given is not None
    assert heard is not None
    is_past_branch = stage.mode == "standard" and made.family is IPV4
    assert answer["translated"] == is_past_branch, answer
    assert (answer["eni"]["eni_id"] == web.given.eni_id) != is_past_branch
    node = made.lab.own_address("node-a", made.family)
    assert answer["seen_as"] == str(node if is_past_branch else web.address)
    assert [lookup["rule"] for lookup in on_node(answer)] == [1024 if is_past_branch else 10 if stage.mode == "strict" else 1536]
    if made.family is IPV6:
        assert str(heard[1]) == answer["seen_as"]
    else:  # the internet gateway knows the node by a public address, and the NAT gateway gives its own to all others
        assert (heard[1] == NAT_GATEWAY) != is_past_branch


def test_its_own_node_is_beyond_the_branch_in_strict_mode_only(stage: Stage) -> None:
    """In strict mode nothing stays on the node, so the groups decide; in standard mode the node delivers it."""
    for target, cause in ((stage.pool.name, "pod-on-node"), ("node-a", "node")):
        answer = stage.path(stage.web, stage.ground.addresses[target])
        expected = ("leaves", "leaves-node") if stage.mode == "strict" else ("reaches", cause)
        assert (answer["verdict"], answer["cause"]) == expected, answer
        assert stage.ground.is_heard(stage.web.name, target)


def test_a_group_that_admits_nobody_cannot_be_seen(stage: Stage) -> None:
    """What AWS drops is in the list, under the console's name, and is never called reached."""
    answer = stage.path(stage.pool, stage.web.address)
    names = [part["console"] for part in answer["unseen"]]
    if stage.mode == "strict":
        assert (answer["verdict"], answer["cause"]) == ("leaves", "leaves-node"), answer
        assert any("Security groups" in name for name in names)
    else:
        assert (answer["verdict"], answer["cause"]) == ("reaches", "pod-on-node"), answer
    assert stage.ground.is_heard(stage.pool.name, stage.web.name)
