"""A node's trunk with as many branch ENIs as it takes, with many at once, and a trunk that goes and comes back."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from lab.branches.pods import POD_ENI
from tests.lab.branch.ground import COOLDOWN_S, TRY_LATER, BranchGround
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

MOST = 9
"""Branches of an m5.large."""


def test_a_full_trunk_waits_one_cooldown(node: BranchGround) -> None:
    """Nine pods, the tenth is told when one has gone and cooled; until then it has no address."""
    running = [node.run(f"web-{number}") for number in range(MOST)]
    late = node.branches.pods.create("late", node="node-a", groups=(node.group,))
    _, refused = node.add(late)
    assert (refused.ok, refused.code) == (False, TRY_LATER), refused.body
    node.end(running[4])
    ended_s = time.monotonic()
    wait_until(lambda: POD_ENI in node.branches.pods.get(late).annotations, what="its annotation")
    assert time.monotonic() - ended_s >= COOLDOWN_S * 0.9
    name, reply = node.add(late)
    assert reply.ok, reply.body
    assert (node.sandboxes[name].given or running[0].given) is not None
    assert all(node.is_heard("host-a", one.name) for one in node.sandboxes.values())
    node.assert_sound()


def test_a_trunk_that_goes_takes_the_branches_along_and_they_come_back(node: BranchGround) -> None:
    """Somebody detaches it: pods of the pool are served, a new one with groups is refused; when it is back everybody is heard."""
    first, pooled = node.run("web-0"), node.run("plain", groups=())
    trunk = node.branches.wait_trunk("node-a")
    node.lab.vpc.hands.detach(trunk.eni_id, force=True)
    node.lab.settle()
    assert not node.is_heard("host-a", first.name, expected=False)
    assert node.is_heard("host-a", pooled.name)
    node.lab.vpc.hands.attach_existing(trunk.eni_id, node.rig.node.instance_id)
    node.lab.settle()
    wait_until(lambda: node.is_heard("host-a", first.name), what="it is heard again", timeout_s=90)
    node.assert_sound()
    second = node.run("web-1")
    assert node.is_heard("host-a", second.name)


def test_an_add_under_way_and_its_del(node: BranchGround) -> None:
    """Many at once, of both kinds: each gets what it must have, and nothing is left."""
    names = [f"web-{number}" for number in range(5)]
    pods = [node.pod(name) for name in names] + [node.pod(f"plain-{number}", groups=()) for number in range(4)]
    with ThreadPoolExecutor(len(pods)) as pool:
        replies = list(pool.map(node.add, pods))
    assert all(reply.ok for _, reply in replies), [reply.body for _, reply in replies]
    assert [node.sandboxes[name].given is not None for name, _ in replies] == [True] * 5 + [False] * 4
    assert all(node.is_heard("host-a", name) for name, _ in replies)
    node.assert_sound()
