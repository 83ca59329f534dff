"""What a link of the node says of itself is no proof: a sandbox with NET_ADMIN deletes another's host veth and puts one of its own in
its place, by name, alias and MAC. It gets no packet of the other's, and no address is lost, doubled or kept from others by it.
"""

from __future__ import annotations

import pytest

from ipamd.model.address import AddressState
from ipamd.model.family import IPV6
from ipamd.report.audit import audit
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6
from tests.netns.test_repair_at_once import node as live_node  # noqa: F401  # a fixture
from tests.rig import wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow, EACH_FAMILY_HEAVY_IPV6]

FORMS = ("alias", "name and alias", "name and MAC", "name, alias and MAC")
"""Of the link that was deleted: what the new one has of it."""


def space_of(node, pod):
    """The namespace of a pod."""
    return next(one for one in node.world.spaces if one.path == pod.netns)


def put(node, thief, name, *, alias="", mac=""):
    """Have a sandbox put a link of its own on the host, up."""
    thief.sh(f"ip link add inner0 type veth peer name outer0 {f'address {mac}' if mac else ''}; ip link set inner0 up")
    thief.sh(f"ip link set outer0 alias '{alias}'; ip link set outer0 name {name} netns {node.world.host.path}")
    node.world.host.sh(f"ip link set {name} up; sysctl -qw net.ipv4.conf.{name}.rp_filter=0")


def findings(node):
    """What audit says of wiring."""
    return audit(node.app.introspection.sources, ask_ec2=False).findings


def leads_to(node, pod):
    """Links through which the host routes to a pod's address, in both tables."""
    return {one["dev"] for table in ("main", "113213") for one in node.world.host.ip(f"route show table {table} {pod.address}")}


def restart(node):
    """Kill the daemon and start it; passes are made by the test from now on."""
    node.threads.close()
    node.crash()
    node.bring_up()


@pytest.mark.parametrize("is_restarted", [False, True])
@pytest.mark.parametrize("form", FORMS)
def test_a_link_in_the_place_of_anothers_gets_nothing_of_it(live_node, form, is_restarted):  # noqa: F811  # the fixture
    """No repair and no restart leads the other's address to it; status and audit name the sandbox, which keeps its address."""
    node = live_node
    victim, robber = node.pods
    host = node.world.host
    (link,) = host.ip(f"link show {victim.host_veth}")
    host.sh(f"ip link del {victim.host_veth}")
    name = victim.host_veth if "name" in form else "evil0"
    alias, mac = link["ifalias"] if "alias" in form else "", link["address"] if "MAC" in form else ""
    put(node, space_of(node, robber), name, alias=alias, mac=mac)
    if is_restarted:
        restart(node)
    for _ in range(2):
        node.host_reconciler.reconcile()
    assert leads_to(node, victim) == set()
    assert str(victim.key) in node.health.conditions_by_subject()["repair of sandboxes"]
    wait_until(  # the audit leaves out a sandbox that a pass of the node's own is at
        lambda: any(one.subject == str(victim.address) and "missing" in one.text for one in findings(node)), what="named"
    )
    assert node.datastore.attachment(victim.key) == victim
    node.delete(victim.key.container_id)
    node.cooldown.sweep()
    assert victim.host_veth not in host.link_names()
    assert leads_to(node, robber) == {robber.host_veth}


CLAIMS = {
    "own, of a free address": "vpc-ipamd/1 {own.container_id} eth0 {free}",
    "own": "vpc-ipamd/1 {own.container_id} eth0 {own_address}",
    "another's": "vpc-ipamd/1 {other.container_id} eth0 {other_address}",
    "another's, of a free address": "vpc-ipamd/1 {other.container_id} eth0 {free}",
    "nobody's, of a free address": "vpc-ipamd/1 nobody eth0 {free}",
    "nobody's, of another's": "vpc-ipamd/1 nobody eth0 {other_address}",
}
"""What a second link of a sandbox says of itself."""


@pytest.mark.parametrize("name", ["evil0", "eni0123456789a"])
@pytest.mark.parametrize("claim", CLAIMS)
def test_what_a_second_link_says_changes_no_record(live_node, claim, name):  # noqa: F811  # the fixture
    """It is named with the sandbox that it leads into, whatever it says, and a restart quarantines, frees and moves nothing."""
    node = live_node
    node.hostnet._confinement._attachments = node.datastore.attachments
    other, own = node.pods
    before = node.datastore.addresses()
    free = next(one.address for one in before if one.state is AddressState.FREE) - (2 if node.world.family is IPV6 else 0)
    alias = CLAIMS[claim].format(free=free, own=own.key, own_address=own.address, other=other.key, other_address=other.address)
    put(node, space_of(node, own), name, alias=alias)

    def is_named():
        node.host_reconciler.reconcile()
        return f"{name} leads into {own.key}" in node.health.conditions_by_subject().get("foreign links", "")

    wait_until(is_named, what="named")
    assert any(one.subject == name and str(own.key) in one.text for one in findings(node))
    restart(node)
    node.host_reconciler.reconcile()
    assert [(one.address, one.state, one.owner) for one in node.datastore.addresses()] == [
        (one.address, one.state, one.owner) for one in before
    ]
    assert (leads_to(node, other), leads_to(node, own)) == ({other.host_veth}, {own.host_veth})


NAMED = {
    "two names swapped": "ip link set {a} down name tmp0; ip link set {b} down name {a}; ip link set tmp0 name {b};"
    " ip link set {a} up; ip link set {b} up; ip route replace {ip} dev {b}; ip route replace {ip} dev {b} table 113213",
    "its name taken by another link": "ip link set {a} down name tmp0 up; ip route replace {ip} dev tmp0;"
    " ip route replace {ip} dev tmp0 table 113213; ip link add {a} type veth peer name tmp1",
    "its name taken by a bridge": "ip link set {a} down name tmp0 up; ip route replace {ip} dev tmp0;"
    " ip route replace {ip} dev tmp0 table 113213; ip link add {a} type bridge",
}


@pytest.mark.parametrize("what", NAMED)
def test_a_del_takes_the_link_that_is_the_sandboxes_whatever_its_name(live_node, what):  # noqa: F811  # the fixture
    """I4: its routes are gone at the reply and the link within a second; the other one is left as it is."""
    node, host = live_node, live_node.world.host
    mine, other = node.pods
    node.threads.close()
    space = space_of(node, mine)
    host.sh(node.world.words(NAMED[what].format(a=mine.host_veth, b=other.host_veth, ip=mine.address)))
    assert leads_to(node, mine) not in (set(), {mine.host_veth})
    node.delete(mine.key.container_id)
    assert leads_to(node, mine) == set()
    node.cooldown.sweep()
    assert space.link_names() == set()
    assert mine.host_veth in host.link_names()
    assert node.datastore.attachment(other.key) == other
    node.host_reconciler.reconcile()
    assert leads_to(node, other) == {other.host_veth}
