"""containerd #7843 (1.6.9 to 1.6.14, 2022): after a restart of containerd the status of every sandbox has an empty address.

CRI reported `ip: ""` for sandboxes that ran and had one. Two things followed in the field: kubelet took the sandboxes for
changed and made every pod of the node anew, and whoever rebuilds "who has which address" from CRI's status finds that nobody
has any, and gives addresses of the living to the next pods.

What prevents it here: the runtime is a source for existence only (`ports.Runtime` has no question for an address). Who has
which address is in our datastore, and a second copy is the host veth's alias (`model/attachment.py: encode_alias`), from which
`sandbox/quarantine.py` makes the rows again when the datastore is lost as well (docs/adr/0010; I1, I2). The new
sandboxes of the same pods are attachments of their own, because pod names decide nothing.

Bound: rows are whole before the first ADD is served (0 fake seconds); replaced sandboxes give back their addresses with their
DEL and one cooldown.
"""

from __future__ import annotations

import pytest

from tests.fakes.node import FakeNode
from tests.families import in_both
from tests.stories.mutations import Mutate

PODS = 4


def play(node: FakeNode) -> None:
    """containerd restarts and forgets addresses; our datastore is lost in the same minute; kubelet replaces every sandbox."""
    before = {made.key: made.address for made in (node.add(f"pod{number}-0") for number in range(PODS))}
    for key in before:
        node.runtime.run(key.container_id)  # listed; that its status says no address is nothing that we could read
    node.crash(keep_datastore=False)
    node.bring_up()
    assert {a.key: a.address for a in node.datastore.attachments()} == before, "the living lost their rows"
    assert node.health.uptime_s() == 0

    for number in range(PODS):  # "sandbox changed": kubelet makes the new one, then the old one gets its DEL
        new = node.add(f"pod{number}-1")
        node.runtime.run(new.key.container_id)
        assert new.address not in before.values(), "an address of the living was given again"
        assert node.delete(f"pod{number}-0")
        del node.runtime.listed[f"pod{number}-0"]
    assert {a.key.container_id for a in node.datastore.attachments()} == {f"pod{number}-1" for number in range(PODS)}
    node.cool()
    assert node.datastore.counts().cooling == 0
    node.assert_sound()


@in_both("node")
def test_a_runtime_that_forgets_addresses_costs_nobody_an_address(node: FakeNode) -> None:
    """Rows are rebuilt from the kernel's copy of the identity, never from what CRI says of addresses (I1, I2)."""
    play(node)


@in_both("node")
def test_rows_are_lost_without_the_alias(node: FakeNode, mutate: Mutate) -> None:
    """With veths that do not say whose they are, nobody knows any more who has which address."""
    mutate("no-aliases")
    with pytest.raises(AssertionError, match="the living lost their rows"):
        play(node)
