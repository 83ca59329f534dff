"""An ENI's link that is up and has no carrier is named, once it is no moment's."""

from __future__ import annotations

import pytest

from ipamd.kernel import carrier
from ipamd.kernel.carrier import GRACE_S, CarrierMonitor
from ipamd.model.ids import EniId
from tests.netns.conftest import World
from tests.rig import wait_until

pytestmark = pytest.mark.privileged


@pytest.fixture
def host(world: World, monkeypatch: pytest.MonkeyPatch):
    """Set up with both ENIs; the second look may follow at once. Returns: the world, and the VPC's end of the wires."""
    monkeypatch.setattr(carrier, "GRACE_S", 0.0)
    vpc = world.fabric()
    world.hostnet.setup_node(world.identity())
    world.hostnet.setup_eni(world.eni())
    for name in ("p0", "p1"):
        set_wire(world, vpc, "up", name=name)
    return world, vpc


def subjects(world: World) -> set[str]:
    """What audit names."""
    return {found.subject for found in world.hostnet.differences(identity=world.identity(), enis=[world.eni()])}


def set_wire(world: World, vpc, state: str, *, name: str) -> None:
    """Take the VPC's end of a wire down or up, and wait until the kernel has told the node's end."""
    vpc.sh(f"ip link set {name} {state}")
    link = {"p0": "eth0", "p1": "eth1"}[name]
    is_up = state == "up"
    wait_until(lambda: ("LOWER_UP" in world.host.ip(f"link show {link}")[0]["flags"]) is is_up, what=f"{link} {state}")


@pytest.mark.parametrize(("wire", "subject"), [("p0", "eni-1"), ("p1", "eni-2")], ids=["primary", "secondary"])
def test_a_wire_that_is_cut_is_named_with_its_eni(host, wire, subject):
    """By audit and by each pass, which has nothing to repair; both end with the carrier."""
    world, vpc = host
    assert subjects(world) == set()
    set_wire(world, vpc, "down", name=wire)
    assert subjects(world) == {subject}
    (refused,) = world.hostnet.reconcile(identity=world.identity(), enis=[world.eni()])
    assert refused.is_refusal
    set_wire(world, vpc, "up", name=wire)
    assert subjects(world) == set()
    assert world.hostnet.reconcile(identity=world.identity(), enis=[world.eni()]) == []


def test_a_moment_without_carrier_is_nothing(host, monkeypatch):
    """Only a second look counts, long enough after the first, and with the same link missing it in between."""
    world, vpc = host
    monkeypatch.setattr(carrier, "GRACE_S", GRACE_S)
    eni_id, now_s = EniId("eni-2"), [100.0]
    carriers = CarrierMonitor(monotonic=lambda: now_s[0])

    def missing():
        with world.netns.netlink() as sock:
            links = world.hostnet.state_reader.links(sock, [world.eni().mac])
        return [found.subject for found in carriers.links_without_carrier({eni_id: links[world.eni().mac]})]

    set_wire(world, vpc, "down", name="p1")
    assert missing() == []
    now_s[0] += GRACE_S / 2
    assert missing() == []
    set_wire(world, vpc, "up", name="p1")
    assert missing() == []
    set_wire(world, vpc, "down", name="p1")
    now_s[0] += GRACE_S / 2
    assert missing() == [], "it had one in between"
    now_s[0] += GRACE_S
    assert missing() == [eni_id]
