"""amazon-vpc-cni-k8s #3702 and #3726 (2026): a pod's IPv4 egress stops within a minute of its start, and never comes back.

An IPv6 pod has its IPv4 address from host-local, which gives the one that was just freed at once. The route of the pod that had it is
still there: its link is being deleted. The plugin adds the same route, the kernel answers EEXIST, and that was taken for success. When
the old link goes its route goes with it, and the new pod has none: whatever it sends over IPv4 is never answered. Repaired by five
tries of 100 ms.

What prevents it here: an address for egress cools with its pool address, until its link is gone (I8), and then every other one of the
range comes first (`datastore/memory_state.py: reserve`). A route that leads elsewhere refuses the ADD (`kernel/wiring.py`; I1).

Bound: 0 s: the new pod reaches the outside as soon as its ADD is answered, and after the old link has gone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.model.attachment import WiringSpec
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.legs import legs_of
from tests.errors import failed
from tests.netns.conftest import World
from tests.netns.egress import OUTSIDE, Node, reaches
from tests.stories.mutations import Mutate
from tests.unit.datastore.support import COOLDOWN, a_key, an_attachment, fill, open_at

pytestmark = pytest.mark.privileged


@pytest.fixture
def node() -> Iterator[Node]:
    """A host whose pods have egress, none of them wired yet."""
    worlds: list[World] = []

    def make(**config: object) -> World:
        worlds.append(World(**config))  # type: ignore[arg-type]
        return worlds[-1]

    yield Node(make, is_wired=False)
    for world in worlds:
        world.close()


def play(node: Node, directory: Path) -> None:
    """A pod goes, slowly in the kernel; another one comes at once, and lives on when the first one's link is gone."""
    store = open_at(directory / "state.db").datastore
    fill(store)

    def add(number: int) -> WiringSpec:
        reserved = store.reserve(a_key(number), extra_family=node.family)
        spec = node.spec(node.sandboxes[number], number)
        spec = replace(spec, address=reserved.address, other_address=reserved.other_address)
        node.wiring.wire(spec)
        with store.transaction() as unit:
            unit.confirm(an_attachment(reserved, a_key(number)))
        return spec

    old = add(0)
    with store.transaction() as unit:  # as the plugin did it: its address is free before the link is gone
        unit.unassign(a_key(0), cooldown=COOLDOWN, reason="DEL")
    new = add(1)
    node.host.sh(f"ip link del {legs_of(old)[1].host_veth}")
    assert reaches(node.sandboxes[1], OUTSIDE[node.family]), "the new pod has no way back"
    assert node.wiring.check(new) == []
    store.close()


def test_the_new_pods_egress_stays(node: Node, tmp_path: Path) -> None:
    """The new pod has another address, and a route of its own."""
    play(node, tmp_path / "run")


def test_a_taken_route_refuses_the_add(node: Node, tmp_path: Path, mutate: Mutate) -> None:
    """Even if the address were given at once, the ADD is refused and repeated: no pod runs without its route."""
    mutate("egress-address-given-at-once")
    with pytest.raises(WiringError, check=failed(FailureCode.STEP_REFUSED)):
        play(node, tmp_path / "run")


def test_it_stops_where_both_are_missing(node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mutate: Mutate) -> None:
    """With the address given at once and EEXIST taken for success the new pod does what was reported."""
    mutate("egress-address-given-at-once")
    monkeypatch.setattr("tests.netns.egress.PATIENCE_S", 3.0)  # nothing can arrive here, however long one waits
    mutate("present-route-tolerated")
    with pytest.raises(AssertionError, match="no way back"):
        play(node, tmp_path / "run")
