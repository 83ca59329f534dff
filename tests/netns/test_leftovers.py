"""`ipamd clean-up`: on a node that went back nothing of ours stays but what a pod still needs, and nothing of others goes."""

from __future__ import annotations

import fcntl
import json

import pytest

from ipamd.kernel.leftovers import clean_up
from ipamd.process import clean_up as command
from ipamd.rpc.run_dir import LOCK_NAME
from tests.netns import egress
from tests.netns.confined import Node
from tests.netns.conftest import EACH_FAMILY_HEAVY_IPV6, Space

pytestmark = pytest.mark.privileged

PREFIX = "eni"
OTHERS = (
    "nft add table ip kube-proxy; nft add table inet vpc-ipamdish; ip rule add prio 512 to 10.9.9.9 lookup main;"
    "ip rule add prio 1024 fwmark 0x80/0x80 lookup main; ip rule add prio 1536 from 10.9.9.9 lookup 2"
)
"""Of other software, with a name and numbers that resemble ours."""

OURS = (
    "for family in ip ip6 arp bridge; do nft add table $family vpc-ipamd-confine; done; nft add table ip vpc-ipamd;"
    "nft add table ip vpc-ipamd-egress; ip rule add prio 513 lookup 113213; ip -6 rule add prio 513 lookup 113213;"
    "ip rule add prio 9 fwmark 0x1000/0x1000 iif lo lookup 113214; ip rule add prio 1536 from 10.0.1.16/28 lookup 2;"
    "ip route add unreachable 10.0.1.16/28 table 113213; ip -6 route add unreachable 2001:db8::/80 table 113213;"
    "ip link add eth0 type veth peer name x0; ip link set eth0 up; ip link set x0 up; ip -6 addr add fe80::2/64 dev eth0 nodad;"
    "ip -6 route add default via fe80::1 dev eth0 metric 113213"
)
"""Everything that a daemon of ours leaves, beside pods."""


def state(space: Space) -> str:
    """Tables, rules and routes, without what the kernel adds by itself."""
    routes = "ip -4 route show table all; ip -6 route show table all | grep -v 'fe80::\\|ff00::'"
    return space.sh(f"nft list ruleset; ip rule; ip -6 rule; {routes}")


def cleaned(space: Space, *, is_dry_run: bool = False) -> dict[str, str]:
    """Clean up. Returns: each thing that is there, and why it was kept."""
    found = space.call(lambda: clean_up(veth_prefix=PREFIX, is_dry_run=is_dry_run))
    return {leftover.name: leftover.kept_reason for leftover in found}


def test_everything_of_ours_goes_and_nothing_of_others():
    """Twice: the second time there is nothing. A dry run names the same and changes nothing."""
    space = Space()
    space.sh(OTHERS)
    before = state(space)
    space.sh(OURS)
    with_ours = state(space)
    tried = cleaned(space, is_dry_run=True)
    assert state(space) == with_ours
    assert cleaned(space) == tried
    assert set(tried.values()) == {""}
    assert len(tried) == 13
    space.sh("ip link del eth0")
    assert state(space) == before
    assert cleaned(space) == {}


@EACH_FAMILY_HEAVY_IPV6
def test_pods_keep_their_network_after_an_export(world):
    """Their links, rules and routes stay, packets pass, and what the export did not write is not taken from them."""
    node = Node(world)
    kept = {name for name, reason in cleaned(world.host, is_dry_run=True).items() if reason}
    assert any("513" in name for name in kept), "no export: a pod without a rule of its own would be cut off"
    cleaned(world.host)
    assert "lookup 113213" in world.host.sh("ip rule; ip -6 rule")
    world.wiring.write_former_rules(node.specs)
    assert set(cleaned(world.host).values()) == {""}
    text = world.host.sh("nft list tables; ip rule; ip -6 rule; ip route show table 113213; ip -6 route show table 113213")
    assert "vpc-ipamd" not in text
    assert "113213" not in text
    links = {link["ifname"] for link in world.host.ip("link")}
    assert {spec.host_veth for spec in node.specs} <= links
    for spec in node.specs:
        assert f"dev {spec.host_veth} " in world.host.sh(f"ip route get {spec.address}")


def test_the_table_for_egress_stays_until_the_last_pod_is_gone(make_world):
    """It translates what pods of ours send by their second link."""
    node = egress.Node(make_world)
    node.wiring.write_former_rules(node.specs)
    kept = {name: reason for name, reason in cleaned(node.host).items() if reason}
    assert [name.split()[-1] for name in kept] == ["vpc-ipamd-egress"]
    assert "vpc-ipamd-egress" in node.host.sh("nft list tables")
    for spec in node.specs:
        node.world.mark_for_deletion(spec)
    node.host.sh("ip link del group 113213")
    assert set(cleaned(node.host).values()) == {""}
    assert node.host.sh("nft list tables").strip() == ""


@pytest.fixture
def gone_back(tmp_path, monkeypatch):
    """A node's files as after a return: the other's conflist, and a run directory without a daemon."""
    conflists, run_dir = tmp_path / "etc" / "cni" / "net.d", tmp_path / "run" / "vpc-ipamd"
    for folder in (conflists, run_dir):
        folder.mkdir(parents=True)
    (conflists / "10-aws.conflist").write_text("{}")
    (run_dir / LOCK_NAME).touch()
    for name in command.SETTINGS:
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def run(space, root, *words, is_served=True):
    """Run the command in a namespace. Returns: its exit status."""
    return space.call(lambda: command.main([f"--host-root={root}", *words], is_served_by_other=lambda _: is_served))


def test_a_node_that_has_not_gone_back_is_left_alone(gone_back, capsys):
    """A daemon of ours that runs, no conflist of the other, or none of its daemons that answers: a refusal, and nothing changes."""
    space = Space()
    space.sh(OURS)
    before = state(space)
    assert run(space, gone_back, is_served=False) == command.EXIT_REFUSED
    lock = gone_back / "run" / "vpc-ipamd" / LOCK_NAME
    with lock.open() as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert run(space, gone_back) == command.EXIT_REFUSED
    (gone_back / "etc" / "cni" / "net.d" / "10-aws.conflist").unlink()
    assert run(space, gone_back) == command.EXIT_REFUSED
    assert state(space) == before
    assert capsys.readouterr().out == ""


def test_the_command_removes_our_conflist_too(gone_back, capsys):
    """An export leaves it where the other's was not there yet. A dry run removes neither."""
    space, ours = Space(), gone_back / "etc" / "cni" / "net.d" / "10-vpc-ipamd.conflist"
    space.sh(OURS)
    ours.write_text(json.dumps({}))
    assert run(space, gone_back, "--dry-run") == 0
    assert ours.exists()
    tried = capsys.readouterr().out.splitlines()
    assert run(space, gone_back) == 0
    assert not ours.exists()
    assert [line.removeprefix("removed") for line in capsys.readouterr().out.splitlines()] == [
        line.removeprefix("would remove") for line in tried
    ]
    assert run(space, gone_back) == 0
    assert "vpc-ipamd" not in space.sh("nft list tables")


def test_a_relative_root_is_wrong(gone_back):
    """It would be below wherever the pod's shell stands."""
    assert command.main(["--host-root=host"]) == command.EXIT_REFUSED
