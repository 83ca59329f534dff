"""What runs as the first and only process of the machine of test_vlan_links.py: our wiring on a kernel that has VLAN links itself.

Each thing that holds is printed as a line; an exception is printed, and ends the machine without the last line. No pytest is there.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import threading
import traceback
from dataclasses import replace
from pathlib import Path

from ipamd.kernel import answers, checks, messages, sandbox_repair, uapi
from ipamd.kernel.netlink import attribute, text_attribute
from ipamd.kernel.netns import HostNetns
from ipamd.kernel.wiring import KernelWiring
from ipamd.model.attachment import WiringSpec, veth_name
from ipamd.model.errors import UplinkPendingError
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import EniId, MacAddress, parse_key
from ipamd.model.legs.branch_eni import Branch
from ipamd.model.wiring_comparison import wiring_differences

CLONE_NEWNET, POWER_OFF, FINIT_MODULE = 0x40000000, 0x4321FEDC, 313
SOL_PACKET, PACKET_AUXDATA, ETH_P_ALL, ETH_P_8021AD = 263, 8, 0x0003, 0x88A8
TRUNK_MAC = MacAddress("02:00:00:00:00:03")
libc = ctypes.CDLL(None, use_errno=True)


def say(what: str) -> None:
    """Print a line; the console is what is read."""
    print(what, flush=True)  # noqa: T201  # see above


def must(result: int, what: str) -> None:
    """Raise for a call of the C library that failed."""
    if result < 0:
        raise OSError(ctypes.get_errno(), what)


def sandbox() -> str:
    """A path to a new network namespace."""
    found: list[int] = []

    def enter() -> None:
        must(libc.unshare(CLONE_NEWNET), "unshare")
        found.append(os.open("/proc/thread-self/ns/net", os.O_RDONLY))

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    return f"/proc/{os.getpid()}/fd/{found[0]}"


class Machine:
    """The node: a trunk's link, eth2, whose other end is `port`, and the adapter under test, without a seam."""

    def __init__(self, family: Family) -> None:
        self.family = family
        self.host = HostNetns()
        self.wiring = KernelWiring(self.host, veth_prefix="eni", families=lambda: (family,))
        own = os.open("/proc/self/ns/net", os.O_RDONLY)
        self.send(
            messages.create_veth("eth2", mac=TRUNK_MAC, peer_name="port", peer_mac="02:00:00:00:00:99", peer_netns=own, mtu=1500)
        )
        os.close(own)
        self.parent, self.port = self.link("eth2").index, self.link("port").index
        for index in (self.parent, self.port):
            self.send(messages.change_link(index, step="raise it", is_up=True))
        self.send(sandbox_repair.own_table_rule(family))  # the node's

    def send(self, message: messages.Message) -> int:
        """One message of ours; the kernel's errno."""
        with self.host.netlink() as sock:
            (outcome,) = sock.request([message])
        return outcome.errno

    def link(self, name: str) -> answers.Link:
        """A link that is there."""
        with self.host.netlink() as sock:
            found = checks.find_link(sock, name)
        assert found is not None, f"no link {name}: {[name for _, name in socket.if_nameindex()]}"
        return found

    def spec(self, *, vlan: int, is_strict: bool) -> WiringSpec:
        """What to wire."""
        is_ipv4, key = self.family is IPV4, parse_key(f"branch{vlan}", "eth0")
        gateway = self.family.address("10.0.2.1" if is_ipv4 else "fe80:ec2::1")
        address = self.family.address("10.0.2.200" if is_ipv4 else "2001:db8:2::200") + vlan
        branch = Branch(vlan, MacAddress(f"02:00:00:00:05:{vlan:02x}"), gateway, is_strict)
        name = veth_name(key, prefix="vlan" if is_strict else "eni")
        return WiringSpec(
            key, address, branch.route_table, name, sandbox(), 1500, uplink=branch, eni_id=EniId("eni-0abc"), trunk_mac=TRUNK_MAC
        )  # fmt: skip

    def tag_of_a_frame_by(self, link: str) -> int:
        """Send a frame by a link; the VLAN ID with which it arrives at the other end of the trunk's."""
        with (
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ETH_P_ALL)) as hears,
            socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as speaks,
        ):
            hears.setsockopt(SOL_PACKET, PACKET_AUXDATA, 1)
            hears.bind(("port", ETH_P_ALL))
            hears.settimeout(20)
            speaks.bind((link, 0))
            speaks.send(b"\xff" * 6 + bytes.fromhex(self.link(link).mac.replace(":", "")) + b"\x88\xb5" + b"tagged" * 10)
            while True:
                data, extra, _, _ = hears.recvmsg(2048, 256)
                if b"taggedtagged" in data:
                    return struct.unpack("=IIIHHHH", extra[0][2])[5] & 0xFFF


def impostors(node: Machine, spec: WiringSpec) -> dict[str, messages.Message]:
    """What a sandbox with NET_ADMIN may put in the place of the VLAN link, each with the name and the MAC that this had."""
    branch = spec.uplink
    assert branch is not None
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    veth = messages.create_veth(
        branch.link, mac=branch.mac, peer_name="inside", peer_mac="02:00:00:00:66:66", peer_netns=own, mtu=1500
    )
    on_trunk = messages.create_vlan(branch.link, vlan=branch.vlan, parent=node.parent, mac=branch.mac)
    identity = attribute(uapi.IFLA_VLAN_ID, struct.pack("=H", branch.vlan))
    by_802_1ad = identity + attribute(uapi.IFLA_VLAN_PROTOCOL, struct.pack(">H", ETH_P_8021AD))
    return {
        "another kind": veth,
        "another link below": messages.create_vlan(branch.link, vlan=branch.vlan, parent=node.port, mac=branch.mac),
        "another ID": messages.create_vlan(branch.link, vlan=branch.vlan + 1000, parent=node.parent, mac=branch.mac),
        "another protocol": replace(on_trunk, body=with_vlan_data(on_trunk.body, identity, by_802_1ad)),
    }


def with_vlan_data(body: bytes, before: bytes, after: bytes) -> bytes:
    """The body of a message that makes a VLAN link with other data of that kind: these are its last attribute."""
    kind = text_attribute(uapi.IFLA_INFO_KIND, uapi.VLAN_KIND)

    def info(data: bytes) -> bytes:
        return attribute(uapi.IFLA_LINKINFO | uapi.NLA_F_NESTED, kind + attribute(uapi.IFLA_INFO_DATA | uapi.NLA_F_NESTED, data))

    assert body.endswith(info(before))
    return body.removesuffix(info(before)) + info(after)


def refuse_impostors(node: Machine, spec: WiringSpec) -> None:
    """A repair leads nothing to any of them, changes nothing of it, and makes the right link again once it is gone."""
    node.wiring.wire(spec)
    name = f"vlan.eth.{spec.route_table - 100}"
    alias = node.link(name).alias
    for what, creation in impostors(node, spec).items():
        node.send(messages.delete_link(node.link(name).index, step="the link goes"))
        assert node.send(creation) == 0, what
        impostor = node.link(name)
        node.send(messages.change_link(impostor.index, step="forge it", is_up=True, alias=alias, group=0))
        said = node.wiring.repair([spec])
        assert [one for one in said if one.target == name and one.needs_operator], (what, said)
        now = node.link(name)
        assert (now.index, now.mac, now.alias) == (impostor.index, impostor.mac, alias), what
        left = node.wiring.survey()
        assert not [route for route in left.uplink_routes if route.device == name], (what, left.uplink_routes)
        assert [one for one in wiring_differences(spec, left) if one.kind is None], what
        node.send(messages.delete_link(impostor.index, step="the impostor goes"))
        node.wiring.repair([spec])
        assert node.wiring.check(spec) == [], (what, node.wiring.check(spec))


def live(family: Family) -> None:
    """What holds in one family."""
    node, name = Machine(family), family.nft
    strict, standard = node.spec(vlan=5, is_strict=True), node.spec(vlan=6, is_strict=False)
    for spec in (strict, standard):
        node.wiring.wire(spec)
        assert node.wiring.check(spec) == [], node.wiring.check(spec)
        link = node.link(f"vlan.eth.{spec.route_table - 100}")
        assert (link.kind, link.vlan, link.peer_index, link.mtu) == ("vlan", spec.route_table - 100, node.parent, 1500), link
    assert "vlan.eth.5     | 5  | eth2" in Path("/proc/net/vlan/config").read_text(encoding="ascii")
    assert node.tag_of_a_frame_by("vlan.eth.5") == 5
    say(f"held: {name}: two links are made and compared as they are; frames have the ID")

    another = messages.create_vlan("another", vlan=5, parent=node.parent, mac="02:00:00:00:00:77")
    assert node.send(another) == errno.EEXIST
    node.wiring.wire(strict)
    assert node.wiring.check(strict) == []
    node.wiring.unwire(strict)
    assert node.send(another) == 0
    node.wiring.wire(strict)
    assert (node.wiring.check(strict), "another" in dict(map(reversed, socket.if_nameindex()))) == ([], False)
    say(f"held: {name}: the kernel refuses a second link of an ID, whatever its name; what is in the way is replaced")

    node.send(messages.change_link(node.parent, step="take the trunk down", is_up=False))
    assert not node.link("vlan.eth.5").is_up
    assert wiring_differences(strict, node.wiring.survey())
    for spec in (strict, standard):
        assert node.wiring.repair([spec])
        assert node.wiring.check(spec) == [], node.wiring.check(spec)
    say(f"held: {name}: what goes with the trunk's link being down is put back")

    node.wiring.mark_for_deletion(strict, owner=strict.key)
    node.wiring.sweep()
    seen = node.wiring.survey()
    assert [one.name for one in seen.vlans] == ["vlan.eth.6"]
    assert not seen.incoming_rules
    say(f"held: {name}: DEL marks the link, and it goes with its group")

    refuse_impostors(node, strict)
    node.wiring.unwire(strict)
    say(f"held: {name}: a link of the name that is no VLAN link of this ID on the trunk's is refused, and the sandbox is cut off")

    node.send(messages.delete_link(node.parent, step="the trunk goes"))
    assert node.wiring.survey().vlans == ()
    assert "the trunk ENI is not known" not in [one.cause for one in node.wiring.repair([standard])]
    try:
        node.wiring.wire(replace(strict, netns=sandbox()))
    except UplinkPendingError:
        say(f"held: {name}: links go with the trunk's, and without that none is made")
    node.wiring.unwire(standard)


def main() -> None:
    """Load what VLAN links need, and live in both families."""
    for kind, path in (("proc", "/proc"), ("sysfs", "/sys")):
        must(libc.mount(kind.encode(), path.encode(), kind.encode(), 0, None), f"mount {path}")
    for module in ("llc", "stp", "garp", "mrp", "8021q", "veth"):
        fd = os.open(f"/modules/{module}.ko", os.O_RDONLY)
        must(libc.syscall(FINIT_MODULE, fd, b"", 0), module)
        os.close(fd)
    say(f"held: Linux {os.uname().release}, with 8021q")
    for family in (IPV4, IPV6):
        live(family)
    say("the program ended well")


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001  # nobody else reads it
        say(traceback.format_exc())
    libc.reboot(POWER_OFF)
