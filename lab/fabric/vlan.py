"""A stand-in for an 802.1Q link, for kernels without that module: a veth, and two eBPF programs that tag and untag its frames.

The frames on the trunk's link are really tagged, so a link with another VLAN ID receives none of them. As in the kernel, a trunk has
at most one link with a VLAN ID: a second one fails with EEXIST, even under another name. Different from a real VLAN link, the stand-in
does not go down with the trunk's link, is not removed with it (`lose_all` does that), and has the kind veth. All functions work in the
network namespace of the calling thread. Source: net/8021q/vlan.c, bpf-helpers(7).
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
"""First letters of two names: that of the veth's other end, and that of a link that is not finished."""


def make(trunk: str, name: str, vlan: int, *, mac: str = "", group: int = 0) -> int:
    """Make a VLAN link, which is down. Its MTU is the trunk's.

    The link gets its name at the end. If the process dies before, the next call removes the unfinished link.

    Args:
        trunk: name of the link that carries the tagged frames.
        mac: MAC of the new link; by default the kernel chooses it.
        group: link group of the new link, from the beginning.
    Returns: the index of the link. Raises: FileExistsError if the name, or the VLAN ID on this trunk, is taken; FabricError.
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
    # A veth may lose the first frame after it goes up, which a real VLAN link does not (port.interface_sysctls).
    _set(f"ipv4/neigh/{unfinished}/retrans_time_ms", "100")
    peer_index = socket.if_nametoindex(peer)
    tc.add_clsact(peer_index)
    _hang(peer_index, bpf.load_push(vlan, ifindex=trunk_index), name=f"push{vlan}", priority=1)
    tc.add_clsact(trunk_index)
    with suppress(FileNotFoundError):  # an earlier link with this VLAN ID may have left its filter, which sends to a removed link
        tc.delete_filter(trunk_index, tc.Hook.FROM_LINK, priority=vlan)
    _hang(trunk_index, bpf.load_pop(vlan, ifindex=peer_index), name=f"pop{vlan}", priority=vlan)
    _ip(f"link set {peer} up", f"link set {unfinished} name {name}")
    return socket.if_nametoindex(name)


def place(peer: str) -> tuple[int, int]:
    """Return the index of the trunk and the VLAN ID of a stand-in, by the name of its other end; (0, 0) for any other name."""
    match = re.fullmatch(rf"{PEER}(\d+)-(\d+)", peer)
    return (int(match[2]), int(match[1])) if match else (0, 0)


def lose_all(trunk_index: int) -> None:
    """Remove all stand-ins of a trunk, as the kernel removes VLAN links with their parent. Call this after the trunk's link was
    removed, because before, new stand-ins could be made meanwhile."""
    ending = f"-{trunk_index}"
    for _, name in socket.if_nameindex():
        if name.startswith(PEER) and name.endswith(ending):
            with suppress(FabricError):  # its other end was removed meanwhile, and with it this end
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
