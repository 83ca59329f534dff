"""Attach and detach events make interfaces appear and disappear, as on EC2."""

from __future__ import annotations

import time

import pytest

from lab.fabric.netns import Netns
from lab.fabric.port import MTU
from lab.lab import NODE_SUBNET, SECOND_NODE_SUBNET, SECOND_ZONE, Lab
from lab.vpc.interfaces import Delays
from lab.vpc.state import Vpc
from tests.lab.fabric.conftest import assign, attach, eventually, primary, speak_as

pytestmark = pytest.mark.privileged


def test_primary_interface_is_as_dhcp_leaves_it(net: Lab) -> None:
    """The node boots with eth0 up: the ENI's MAC, address and mask, MTU 9001, a default route by the router."""
    eni = primary(net, "node-a")
    netns = net.node("node-a").netns
    assert netns.interfaces()["eth0"] == eni.mac
    shown = netns.tool(["ip", "address", "show", "eth0"])
    assert f"{eni.primary_address}/{eni.subnet_cidr.prefixlen}" in shown
    assert f"mtu {MTU}" in shown
    routes = netns.tool(["ip", "route"])
    assert f"default via {eni.subnet_cidr.network_address + 1} dev eth0" in routes


def test_attached_interface_appears_down_and_bare_and_goes_again(net: Lab) -> None:
    """A second ENI is eth1 with its MAC, down and without address; detached, it is gone and its source is dropped."""
    node = net.node("node-a")
    eni = attach(net, node, device_index=1)
    assert node.netns.interfaces()["eth1"] == eni.mac
    shown = node.netns.tool(["ip", "address", "show", "eth1"])
    assert "state DOWN" in shown
    assert "inet" not in shown
    assert eni.attachment is not None
    net.vpc.interfaces.detach(eni.attachment.attachment_id)
    net.settle()
    assert "eth1" not in node.netns.interfaces()
    assert not net.fabric.is_wired(eni.eni_id)


def test_device_index_can_be_used_again_at_once(net: Lab) -> None:
    """Ten times attach and detach on one device index leave one interface, with the last MAC, and no problem."""
    node = net.node("node-b")
    index = 2
    for _ in range(10):
        eni = attach(net, node, device_index=index)
        assert node.netns.interfaces()[f"eth{index}"] == eni.mac
        assert eni.attachment is not None
        net.vpc.interfaces.detach(eni.attachment.attachment_id)
    net.settle()
    assert f"eth{index}" not in node.netns.interfaces()
    assert net.fabric.problems == []


def test_attach_delay_is_waited_out() -> None:
    """With an attach delay the interface appears only after it, while EC2 answered at once."""
    with Lab(
        name=f"delay-{time.monotonic_ns()}", nodes=["node-a"], vpc=Vpc(delays=Delays(attach_s=0.3)), containerd=False
    ) as lab:
        node, started = lab.node("node-a"), time.monotonic()
        attach(lab, node, device_index=1)
        assert time.monotonic() - started >= 0.3
        assert "eth1" in node.netns.interfaces()


def test_terminated_instance_loses_its_wires(net: Lab) -> None:
    """Terminating an instance removes its interface from its namespace."""
    netns = net.add_host("host-b")
    assert "eth0" in netns.interfaces()
    net.vpc.terminate_instance(net.vpc.instance("host-b").instance_id)
    net.settle()
    assert netns.interfaces() == {}


def test_bare_sandbox_behind_the_node_is_reached(net: Lab) -> None:
    """A namespace wired by hand as the daemon will do it is reached from a host, and can be removed."""
    node = net.node("node-a")
    (address,) = assign(net, primary(net, "node-a"))
    path = node.make_netns("pod-1")
    node.run(["ip", "link", "add", "veth1", "type", "veth", "peer", "name", "eth0", "netns", path])
    node.netns.ip(["link set veth1 up", f"route add {address} dev veth1 scope link"])
    node.netns.sysctl({"ipv4/ip_forward": "1", "ipv4/conf/veth1/proxy_arp": "1", "ipv4/neigh/veth1/proxy_delay": "0"})
    pod = Netns.at(node.netns_path(path), name="pod-1")
    pod.ip(
        [
            "link set eth0 up",
            f"addr add {address}/32 dev eth0",
            "route add 169.254.1.1 dev eth0",
            "route add default via 169.254.1.1 dev eth0",
        ]
    )
    assert net.ping(source="host-a", targets=[address])[address]
    target = primary(net, "host-a").primary_address
    assert net.ping(source=(node, path), targets=[target])[target]
    pod.close()
    node.remove_netns("pod-1")
    assert eventually(lambda: "veth1" not in node.netns.interfaces())


def test_ec2_and_metadata_answer_inside_the_node(net: Lab) -> None:
    """Both of Amazon's endpoints are at their addresses in the node, and the metadata is this node's."""
    node = net.node("node-a")
    script = """if True:
        import urllib.request as u
        token = u.urlopen(u.Request("http://169.254.169.254/latest/api/token", method="PUT",
                          headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}), timeout=5).read().decode()
        print(u.urlopen(u.Request("http://169.254.169.254/latest/meta-data/instance-id",
                        headers={"X-aws-ec2-metadata-token": token}), timeout=5).read().decode())
        print(u.urlopen("http://169.254.169.253:8000/?Action=DescribeInstances", timeout=5).read().decode())
    """
    shown = node.run(["/usr/bin/env", "python3", "-c", script]).stdout
    assert shown.splitlines()[0] == node.instance_id
    assert f"<instanceId>{node.instance_id}</instanceId>" in shown


def test_two_labs_do_not_meet(net: Lab) -> None:
    """A second lab at the same time has the same addresses and other wires: nothing crosses."""
    with Lab(name=f"other-{time.monotonic_ns()}", nodes=["node-a"], hosts=["host-a"], containerd=False) as other:
        mine, theirs = primary(net, "host-a").primary_address, primary(other, "host-a").primary_address
        assert other.ping(source="node-a", targets=[theirs])[theirs]
        (address,) = [a for a in assign(net, primary(net, "node-a"), 2) if other.vpc.owner_of(a) is None][:1]
        speak_as(net.node("node-a"), address)
        assert net.ping(source="host-a", targets=[address])[address]
        assert not other.ping(source="host-a", targets=[address], timeout_s=0.3)[address]
        assert other.node("node-a").pid != net.node("node-a").pid
        assert net.ping(source="node-b", targets=[mine])[mine]


def test_a_node_may_stand_in_a_second_zone() -> None:
    """It is in a subnet of its own there, its ENIs are of that zone, and the two nodes reach each other."""
    name = f"zones-{time.monotonic_ns()}"
    with Lab(name=name, nodes=["node-a", "node-b"], second_zone=["node-b"], containerd=False) as lab:
        first, second = primary(lab, "node-a"), primary(lab, "node-b")
        assert [lab.vpc.instance(node).az for node in lab.nodes] == ["us-west-2a", SECOND_ZONE]
        assert (first.az, second.az) == ("us-west-2a", SECOND_ZONE)
        assert [str(first.subnet_cidr), str(second.subnet_cidr)] == [NODE_SUBNET, SECOND_NODE_SUBNET]
        target = lab.primary_address("node-b")
        assert lab.ping(source="node-a", targets=[target])[target]
