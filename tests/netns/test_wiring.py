"""ADD and DEL in the kernel: ADD wires all or nothing, DEL leaves nothing."""

from __future__ import annotations

import contextlib
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from ipamd.kernel import messages
from ipamd.kernel import uapi as layout
from ipamd.kernel.netlink import NetlinkSocket
from ipamd.model.attachment import sandbox_mac
from ipamd.model.errors import NetnsError, NothingWiredError, WiringError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV6
from ipamd.model.ids import CONTAINER_ID_MAX
from ipamd.model.legs import first_leg
from tests.errors import failed
from tests.netns.conftest import EACH_FAMILY
from tests.patience import PATIENCE_S

pytestmark = [pytest.mark.privileged, EACH_FAMILY]


def talk(server, server_address, client, *, patience_s=PATIENCE_S):
    """Send a line over TCP from one namespace to another; what the server saw as the client's address."""
    with contextlib.ExitStack() as stack:
        kind = socket.AF_INET6 if ":" in server_address else socket.AF_INET
        listener = stack.enter_context(server.call(lambda: socket.create_server((server_address, 0), family=kind)))
        listener.settimeout(patience_s)
        sender = stack.enter_context(client.call(socket.socket, kind))
        sender.settimeout(patience_s)
        sender.connect((server_address, listener.getsockname()[1]))
        accepted, peer = listener.accept()
        with accepted:
            accepted.settimeout(patience_s)
            sender.sendall(b"hello\n")
            assert accepted.recv(16) == b"hello\n"
        return peer[0]


def test_longest_identity_fits(world):
    """Ours: the longest container ID and ifname that the model accepts fit the kernel's alias and names."""
    pod = world.space()
    spec = world.spec(pod, container="c" * CONTAINER_ID_MAX, ifname="i" * 15, table=10203)
    world.wiring.wire(spec)
    assert world.wiring.check(spec) == []
    assert world.wiring.survey().veths[0].key == spec.key


@pytest.mark.parametrize("table", [254, 2])
def test_wired_sandbox_is_complete_on_both_sides(world, table):
    """What `ip` shows after ADD is the data plane of amazon-vpc-cni-k8s (ipamd/model/kernel.py)."""
    pod = world.space()
    spec = world.spec(pod, table=table)
    wired = world.wiring.wire(spec)

    host_link = world.host.ip(f"link show {spec.host_veth}")[0]
    assert host_link["address"] == wired.host_mac == sandbox_mac(spec.key, side="host")
    assert (host_link["ifalias"], host_link["mtu"], host_link["group"]) == (first_leg(spec).alias, 9001, "default")
    assert "UP" in host_link["flags"]
    for name in ("main", "113213"):
        route = world.host.ip(f"route show table {name}")
        assert [(one["dst"], one["dev"]) for one in route] == [(str(spec.address), spec.host_veth)]
        scope = "global" if world.family is IPV6 else "link"  # the kernel has no other of IPv6
        assert all(one["scope"] == scope and "gateway" not in one for one in route)
    rules = [(one["priority"], one.get("src"), one.get("dst"), one["table"]) for one in world.host.ip("rule")]
    assert (513, "all", None, "113213") in rules
    assert ((1536, str(spec.address), None, "2") in rules) == (table == 2)
    assert len(rules) == (1 if table == 2 else 0) + (3 if world.family is IPV6 else 4)
    fixed = [(one["dst"], one["lladdr"]) for one in world.host.ip("neigh show nud permanent")]
    assert fixed == ([(str(spec.address), wired.sandbox_mac)] if world.family is IPV6 else []), "the host asks no IPv6 sandbox"
    assert [one for one in world.host.ip(f"-6 addr show dev {spec.host_veth}") if one] == []

    pod_link = pod.ip("addr show eth0")[0]
    assert pod_link["address"] == wired.sandbox_mac == sandbox_mac(spec.key, side="sandbox")
    assert pod_link["mtu"] == 9001
    inet, gateway = "inet6" if world.family is IPV6 else "inet", str(world.family.gateway)
    addresses = [(one["local"], one["prefixlen"], one["scope"]) for one in pod_link["addr_info"] if one["family"] == inet]
    assert addresses == [(str(spec.address), spec.address.max_prefixlen, "global")], "of IPv6, no link-local one besides"
    assert not any(one.get("tentative") for one in pod_link["addr_info"] if one["family"] == inet), "usable at once"
    routes = {one["dst"]: (one.get("gateway"), one["dev"]) for one in pod.ip("route") if one["protocol"] == "static"}
    assert routes == {"default": (gateway, "eth0"), gateway: (None, "eth0")}
    neighbour = next(one for one in pod.ip("neigh") if one["dst"] == gateway)
    assert (neighbour["lladdr"], neighbour["state"]) == (wired.host_mac, ["PERMANENT"])
    assert wired.netns_identity.inode == os.fstat(pod.fd).st_ino
    assert world.wiring.check(spec) == []


def test_packets_flow_between_sandboxes_and_host(world):
    """A wired sandbox reaches another one and the host, and both reach it."""
    one, two = world.space(), world.space()
    five, six, node = (str(world.address(number)) for number in (5, 6, 0x10))
    world.host.sh(f"sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1; ip addr add {node} dev lo")
    world.wiring.wire(world.spec(one, number=5))
    world.wiring.wire(world.spec(two, number=6))
    assert talk(one, five, two) == six
    assert talk(two, six, one) == five
    assert talk(one, five, world.host) == node
    assert talk(world.host, node, two) == six


def test_marking_leaves_no_route_or_rule_at_once_and_sweep_no_link(world):
    """I4: after DEL neither route nor rule remains at the reply, and no veth after the sweep."""
    pod = world.space()
    before = world.host.snapshot()
    spec = world.spec(pod, table=2)
    world.wiring.wire(spec)
    world.mark_for_deletion(spec)
    after = world.host.snapshot()
    assert (after["rule"], after["route show table all"]) == (before["rule"], before["route show table all"])
    link = world.host.ip(f"link show {spec.host_veth}")[0]
    assert "UP" not in link["flags"]
    assert int(link["group"], 0) == layout.DYING_GROUP
    world.mark_for_deletion(spec)
    world.wiring.sweep()
    assert world.host.snapshot() == before
    assert pod.link_names() == set()


def test_marking_sweep_and_unwire_of_nothing_succeed(world):
    """I3: a repeated or unknown DEL succeeds."""
    spec = world.spec(world.space(), table=2)
    before = world.host.snapshot()
    world.mark_for_deletion(spec)
    world.wiring.sweep()
    world.wiring.unwire(spec)
    world.wiring.remove_leftover(host_veth=spec.host_veth, address=spec.address)
    assert world.host.snapshot() == before


def test_unwire_removes_everything_before_it_returns(world):
    """I5: after a rollback both namespaces are as they were."""
    pod = world.space()
    before = world.host.snapshot(), pod.snapshot()
    spec = world.spec(pod, table=3)
    world.wiring.wire(spec)
    world.wiring.unwire(spec)
    assert (world.host.snapshot(), pod.snapshot()) == before


def steps_of(world, spec):
    """Every step that a wiring takes, as the failpoint hears it."""
    heard = []
    wiring = world.new_wiring(failpoint=lambda step: bool(heard.append(step)))
    wiring.wire(spec)
    wiring.unwire(spec)
    return heard


def test_refusal_of_any_message_leaves_nothing(world):
    """I5: whichever message the kernel refuses, both namespaces are as before and the error names the step."""
    pod = world.space()
    spec = world.spec(pod, table=2)
    before = world.host.snapshot(), pod.snapshot()
    steps = steps_of(world, spec)
    assert len(steps) == len(set(steps)) == (16 if world.family is IPV6 else 13)
    for step in steps:
        with pytest.raises(WiringError) as caught:
            world.new_wiring(failpoint=step.__eq__).wire(spec)
        assert step in caught.value.message
        assert "Operation not supported" in caught.value.details
        assert (world.host.snapshot(), pod.snapshot()) == before, step
    world.wiring.wire(spec)
    assert world.wiring.check(spec) == []


@pytest.mark.parametrize(
    ("setup", "step"),
    [
        ("ip link add eth0 type bridge", "create veth"),
        ("ip DASH route add default dev lo", "add default route"),
        ("ip DASH route add GATEWAY dev lo", "add route GATEWAY"),
    ],
)
def test_what_the_sandbox_has_already_is_not_overwritten(world, setup, step):
    """I5: an interface or route that is there before ADD makes ADD fail, and is still there after."""
    pod = world.space()
    step = step.replace("GATEWAY", str(world.family.gateway))
    pod.sh(setup.replace("GATEWAY", str(world.family.gateway)).replace("DASH", world.dash))
    before = world.host.snapshot(), pod.snapshot()
    with pytest.raises(WiringError) as caught:
        world.wiring.wire(world.spec(pod))
    assert caught.value.failure in (FailureCode.INTERFACE_EXISTS, FailureCode.STEP_REFUSED)
    assert caught.value.fields["step"].startswith(step)
    assert (world.host.snapshot(), pod.snapshot()) == before


def test_address_that_is_routed_already_is_refused(world):
    """I1: a second sandbox with the same address is refused, and the first keeps its route and rules."""
    first, second = world.space(), world.space()
    one = world.spec(first, container="first", table=2)
    world.wiring.wire(one)
    before = world.host.snapshot()
    with pytest.raises(WiringError, check=failed(FailureCode.STEP_REFUSED)):
        world.wiring.wire(world.spec(second, container="second", table=2))
    assert world.host.snapshot() == before
    assert world.wiring.check(one) == []


def test_leftover_of_the_same_sandbox_is_replaced(world):
    """I5: what a crash left of the same key, even before the alias was set, does not stop the next ADD."""
    pod = world.space()
    spec = world.spec(pod, table=2)
    world.wiring.wire(spec)
    world.wiring.wire(spec)
    assert world.wiring.check(spec) == []
    world.host.sh(f"ip link set {spec.host_veth} alias ''")
    world.wiring.wire(spec)
    assert world.wiring.check(spec) == []
    assert world.host.link_names() == {spec.host_veth}


def test_strangers_link_of_the_same_name_is_left_alone(world):
    """I2: a link that carries our name but another identity is neither changed nor removed."""
    pod = world.space()
    spec = world.spec(pod)
    world.host.sh(f"ip link add {spec.host_veth} type veth peer name x; ip link set {spec.host_veth} alias theirs")
    before = world.host.snapshot()
    with pytest.raises(NothingWiredError, check=failed(FailureCode.VETH_NAME_OF_STRANGER, link=spec.host_veth)):
        world.wiring.wire(spec)
    assert world.host.snapshot() == before
    world.host.sh("ip link add eni0bridge type bridge")
    world.host.sh(f"ip link set eni0bridge alias '{first_leg(spec).alias}'")
    before = world.host.snapshot()
    in_its_place = world.wiring.mark_for_deletion(replace(spec, host_veth="eni0bridge"))
    assert in_its_place is not None
    assert in_its_place.key is None
    world.wiring.remove_leftover(host_veth="eni0bridge", address=spec.address)
    assert world.host.snapshot() == before
    with pytest.raises(WiringError, check=failed(FailureCode.LINK_NOT_OURS)):
        world.wiring.veth("eni0bridge")


def test_bad_namespace_paths_are_refused(world, tmp_path):
    """A path that is gone, is no namespace, is of another kind, or is the host's own is a NetnsError and changes nothing."""
    (tmp_path / "file").write_text("no")
    os.mkfifo(tmp_path / "fifo")
    before = world.host.snapshot()
    bad = ["", "/gone/netns", str(tmp_path), str(tmp_path / "file"), str(tmp_path / "fifo"), "/dev/null"]
    for path in [*bad, "/proc/self/ns/mnt", "/proc/self/ns/uts", "nul\0byte"]:
        with pytest.raises(NetnsError):
            world.wiring.identify_netns(path)
        with pytest.raises(NetnsError):
            world.wiring.wire(world.spec(path))
    with pytest.raises(NetnsError, check=failed(FailureCode.HOST_NETNS)):
        world.wiring.wire(world.spec(world.host))
    assert world.host.snapshot() == before


def test_thread_that_cannot_come_back_ends_the_process(world):
    """A thread stranded in a sandbox is fatal: it must never serve anybody else."""
    from ipamd.kernel import netns

    class StrandedError(Exception):
        pass

    def fatal(reason):
        raise StrandedError(reason)

    def strand():
        pod = os.open(world.space().path, os.O_RDONLY)
        real = netns._setns
        entered_fds = []

        def refuse_return(fd):
            entered_fds.append(fd)
            return real(fd) if len(entered_fds) == 1 else 1

        netns._setns = refuse_return
        try:
            with netns.entered(pod, fatal=fatal):
                pass
        finally:
            netns._setns = real
            os.close(pod)

    with ThreadPoolExecutor(1) as thread, pytest.raises(StrandedError):
        thread.submit(strand).result(timeout=120)


def test_thirty_wires_at_once(world):
    """I1: thirty sandboxes wired from thirty threads have thirty links, and each is complete; DEL of all leaves nothing."""
    before = world.host.snapshot()
    specs = [world.spec(world.space(), number=20 + i, table=2) for i in range(30)]
    with ThreadPoolExecutor(30) as threads:
        list(threads.map(world.wiring.wire, specs, timeout=120))
        assert list(threads.map(world.wiring.check, specs, timeout=120)) == [[]] * 30
        assert world.host.link_names() == {spec.host_veth for spec in specs}
        assert len(world.host.link_names()) == 30
        list(threads.map(world.mark_for_deletion, specs, timeout=120))
    world.wiring.sweep()
    assert world.host.snapshot() == before


def test_sweep_takes_only_the_dying_group(world):
    """I2: a sweep deletes dying links and no other, and a request for group 0 cannot be made."""
    world.host.sh("ip link add other type veth peer name rehto; ip link add br0 type bridge; ip link set br0 group 77")
    live = world.spec(world.space(), number=5)
    dead = world.spec(world.space(), number=6)
    world.wiring.wire(live)
    world.wiring.wire(dead)
    world.mark_for_deletion(dead)
    world.wiring.sweep()
    assert world.host.link_names() == {"other", "rehto", "br0", live.host_veth}
    with pytest.raises(ValueError, match="group 0"):
        messages.delete_group(0)
    with pytest.raises(ValueError, match="names no link"):
        messages.delete_link(0, step="none")


def test_leftover_is_removed_whatever_the_table(world):
    """I4: wiring that nobody owns goes completely: link, routes and rules in any table, also copies."""
    pod = world.space()
    before = world.host.snapshot()
    spec = world.spec(pod, table=2)
    world.wiring.wire(spec)
    ip, one, other = f"ip {world.dash}", spec.address, world.address(6)
    far = ("2001:db8:7::/48", "2001:db8:8::/48") if world.family is IPV6 else ("10.1.0.0/16", "10.2.0.0/16")
    world.host.sh(
        f"{ip} route add {one} dev {spec.host_veth} table 9; {ip} rule add prio 1536 from {one} lookup 3;"
        f"{ip} rule add prio 1536 from {one} lookup 10203; {ip} rule add prio 1536 from {other} lookup 3;"
        f"{ip} rule add prio 1536 from {one} to {far[0]} lookup 3; {ip} rule add prio 1536 from {one} to {far[1]} lookup 3"
    )
    world.wiring.remove_leftover(host_veth=None, address=spec.address)
    assert f"{one} " not in world.host.sh(f"{ip} route show table all; {ip} rule")
    assert f"{other} " in world.host.sh(f"{ip} rule")
    world.host.sh(f"{ip} rule del prio 1536 from {other} lookup 3")
    world.wiring.remove_leftover(host_veth=spec.host_veth, address=None)
    assert world.host.snapshot() == before


def test_caller_in_another_namespace_wires_the_host_all_the_same(world):
    """The ambient namespace of the calling thread does not matter, and the thread is back in it afterwards."""
    pod, elsewhere = world.space(), world.space()
    spec = world.spec(pod)
    elsewhere.call(world.wiring.wire, spec)
    assert world.host.link_names() == {spec.host_veth}
    assert elsewhere.link_names() == set()
    assert elsewhere.call(lambda: os.stat("/proc/thread-self/ns/net").st_ino) == os.fstat(elsewhere.fd).st_ino


@pytest.mark.parametrize("turned_off", ["eth0", "all"])
def test_a_namespace_with_ipv6_turned_off_gets_it_where_it_needs_it(world, turned_off):
    """Runtimes make namespaces without IPv6: it is turned on for our interface and the loopback, and of IPv4 nobody asks."""
    pod = world.space()
    pod.sh(
        f"sysctl -qw net.ipv6.conf.default.disable_ipv6=1; [ {turned_off} = eth0 ] || sysctl -qw net.ipv6.conf.all.disable_ipv6=1"
    )
    spec = world.spec(pod)
    world.wiring.wire(spec)
    assert world.wiring.check(spec) == []
    told = pod.sh("cat /proc/sys/net/ipv6/conf/eth0/disable_ipv6 /proc/sys/net/ipv6/conf/lo/disable_ipv6").split()
    assert told == (["0", "0"] if world.family is IPV6 else ["1", "0" if turned_off == "eth0" else "1"])
    assert talk(pod, str(spec.address), pod) == str(spec.address)


def test_a_sandbox_is_wired_in_three_sends(world, monkeypatch):
    """Of IPv6 as of IPv4, with three messages more: nothing is asked or waited for in between."""
    world.wiring.wire(world.spec(world.space(), number=4))  # opens the socket that is lent from then on
    spec, sent, real = world.spec(world.space()), [], NetlinkSocket.request
    monkeypatch.setattr(NetlinkSocket, "request", lambda sock, batch: (sent.append(len(batch)), real(sock, batch))[1])
    world.wiring.wire(spec)
    assert sent == ([2, 6, 7] if world.family is IPV6 else [2, 5, 5])
