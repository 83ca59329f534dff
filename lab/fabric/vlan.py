"""A stand-in of an 802.1Q link, for kernels without that module: a veth, and two eBPF programs that tag and untag its frames.

The frames on the trunk are truly tagged, so a link of another ID hears nothing. One link of an ID stands on a trunk, as the kernel
has it (EEXIST, whatever the second one's name). What the stand-in cannot do: its link does not go down with the trunk's, and does not
go away with it (`lose_all` does that), and its kind is veth. Works in the network namespace of the calling thread.
Source: net/8021q/vlan.c, bpf-helpers(7).
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import socket
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

from lab.fabric import bpf, tc
from lab.fabric.errors import FabricError

COMMAND_TIMEOUT_S = 30.0
_SIOCGIFMTU = 0x8921  # linux/sockios.h
PEER, UNFINISHED = "q", "n"
"""How the names of the veth's other end, and of a link that is not finished, begin."""


def make(trunk: str, name: str, vlan: int, *, mac: str = "", group: int = 0) -> int:
    """Make a link, which is down. Whoever dies in here leaves no link of that name, and the next call removes what is left.

    Args:
        trunk: name of the link that carries the tagged frames.
        mac: of the new link, by default the kernel's choice; its MTU is the trunk's.
        group: that it is in from the beginning.
    Returns: its index. Raises: FileExistsError if the name, or the ID on this trunk, is taken; FabricError.
    """
    trunk_index = socket.if_nametoindex(trunk)
    peer, unfinished = f"{PEER}{vlan}-{trunk_index}", f"{UNFINISHED}{vlan}-{trunk_index}"
    if _index(unfinished):
        _ip(f"link del {unfinished}")
    if _index(name) or _index(peer):
        raise FileExistsError(errno.EEXIST, f"{os.strerror(errno.EEXIST)}: {name}, VLAN ID {vlan} on {trunk}")
    mtu, address = _mtu(trunk), f" address {mac}" if mac else ""
    _ip(f"link add {unfinished} mtu {mtu}{address} group {group} type veth peer name {peer} mtu {mtu}")
    _set(f"ipv6/conf/{peer}/disable_ipv6", "1")
    # The first frame after the link goes up may be lost by a veth, which no real VLAN link does (port.interface_sysctls).
    _set(f"ipv4/neigh/{unfinished}/retrans_time_ms", "100")
    peer_index = socket.if_nametoindex(peer)
    tc.add_clsact(peer_index)
    _hang(peer_index, bpf.load_push(vlan, ifindex=trunk_index), name=f"push{vlan}", priority=1)
    tc.add_clsact(trunk_index)
    with suppress(FileNotFoundError):  # of an earlier link, which led to a link that is no more
        tc.delete_filter(trunk_index, tc.Hook.FROM_LINK, priority=vlan)
    _hang(trunk_index, bpf.load_pop(vlan, ifindex=peer_index), name=f"pop{vlan}", priority=vlan)
    _ip(f"link set {peer} up", f"link set {unfinished} name {name}")
    return socket.if_nametoindex(name)


def place(peer: str) -> tuple[int, int]:
    """Index of the trunk and VLAN ID of the link whose other end has a name; twice 0 for the name of anything else."""
    found = re.fullmatch(rf"{PEER}(\d+)-(\d+)", peer)
    return (int(found[2]), int(found[1])) if found else (0, 0)


def lose_all(trunk_index: int) -> None:
    """Remove the links of a trunk whose link has gone, as the kernel does. While it is there another may be made on it meanwhile."""
    ending = f"-{trunk_index}"
    for _, name in socket.if_nameindex():
        if name.startswith(PEER) and name.endswith(ending):
            with suppress(FabricError):  # its other end has been removed meanwhile, and this one with it
                _ip(f"link del {name}")


def _hang(ifindex: int, program: int, *, name: str, priority: int) -> None:
    try:
        tc.add_filter(ifindex, tc.Hook.FROM_LINK, program=program, name=name, priority=priority)
    finally:
        os.close(program)


def _mtu(name: str) -> int:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
        answer = fcntl.ioctl(sock, _SIOCGIFMTU, name.encode().ljust(40, b"\0"))
    return int(struct.unpack_from("=i", answer, 16)[0])


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:
        return 0


def _set(key: str, value: str) -> None:
    with suppress(FileNotFoundError):  # a kernel without IPv6
        Path("/proc/sys/net", key).write_text(value, encoding="ascii")


def _ip(*lines: str) -> None:
    done = subprocess.run(
        ["ip", "-batch", "-"], input="\n".join(lines), capture_output=True, text=True, timeout=COMMAND_TIMEOUT_S, check=False
    )
    if done.returncode:
        raise FabricError(f"ip: {done.stderr.strip()}: {'; '.join(lines)}")
