"""eBPF programs and maps by bpf(2): load a filter and the map with its state, pin both, and open them again by their pins.

The programs are the filter of the policy agent's stand-in (`lab/node/policy_agent_process.py`), and the two programs of a VLAN link's
stand-in (`vlan.py`). They are not simulated: the kernel verifies them, runs them in tc hooks, and drops the packets that they drop.
Source: bpf(2), linux/bpf.h, linux/filter.h.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from enum import IntEnum

_SYSCALL = {"x86_64": 321, "aarch64": 280}
"""Machine -> number of the system call bpf. Sources: asm/unistd_64.h, asm-generic/unistd.h."""

_MAP_CREATE, _MAP_LOOKUP, _MAP_UPDATE, _PROG_LOAD, _OBJ_PIN, _OBJ_GET, _INFO = 0, 1, 2, 5, 6, 7, 15
_ARRAY, _SCHED_CLS = 2, 3
_ATTR_BYTES = 128  # bytes that we pass for `union bpf_attr`; the kernel allows zeros behind the fields that it knows
_LOG_BYTES = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)


class PodState(IntEnum):
    """The value in a program's map, which decides what happens to a pod's packets. Source: aws-network-policy-agent
    pkg/ebpf/bpf_client.go."""

    POLICIES_APPLIED = 0
    DEFAULT_ALLOW = 1
    DEFAULT_DENY = 2


def load_filter(state_map: int, *, protocol: int, name: str) -> int:
    """Load a tc program that drops packets of one Ethernet protocol while its map has DEFAULT_DENY. All other packets pass.

    Neighbour discovery always passes, as with the real agent's program (tc.v6ingress.bpf.c).

    Args:
        state_map: descriptor of a map made by `make_state_map`.
        name: name of the program, at most 15 characters.
    Returns: a descriptor. Raises: OSError with the message of the kernel's verifier.
    """
    return _load(_assemble(state_map, protocol), name)


def load_push(vlan: int, *, ifindex: int) -> int:
    """Load a tc program that tags each frame with a VLAN ID and sends it out of the link `ifindex`. Returns: a descriptor. Raises:
    OSError."""
    code = [
        _ins(_MOV, 2, value=_SWAPPED_8021Q),
        _ins(_MOV, 3, value=vlan),
        _ins(_CALL, value=_VLAN_PUSH),
        *_redirect(ifindex),
    ]
    return _load(b"".join(code), f"push{vlan}")


def load_pop(vlan: int, *, ifindex: int) -> int:
    """Load a tc program that removes the tag of frames with this VLAN ID and sends them out of the link `ifindex`.

    All other frames pass to the next filter.

    Returns: a descriptor. Raises: OSError.
    """
    take = [_ins(_MOV_REG, 1, _CONTEXT), _ins(_CALL, value=_VLAN_POP), *_redirect(ifindex)]
    code = [
        _ins(_MOV_REG, _CONTEXT, 1),
        _ins(_LOAD_WORD, 2, 1, at=_SKB_VLAN_PRESENT),
        _ins(_EQUAL, 2, at=3 + len(take), value=0),
        _ins(_LOAD_WORD, 3, 1, at=_SKB_VLAN_TCI),
        _ins(_AND, 3, value=0xFFF),
        _ins(_NOT_EQUAL, 3, at=len(take), value=vlan),
        *take,
        _ins(_MOV, 0, value=_PASS),
        _ins(_EXIT),
    ]
    return _load(b"".join(code), f"pop{vlan}")


def _load(code: bytes, name: str) -> int:
    text, licence, log = (ctypes.create_string_buffer(content) for content in (code, b"GPL", bytes(_LOG_BYTES)))
    pointers = ctypes.addressof(text), ctypes.addressof(licence)
    attr = struct.pack(
        "<IIQQIIQII16s", _SCHED_CLS, len(code) // 8, *pointers, 1, _LOG_BYTES, ctypes.addressof(log), 0, 0, name.encode()
    )
    try:
        return _bpf(_PROG_LOAD, attr)
    except OSError as error:
        raise OSError(error.errno, f"the kernel refuses the program: {log.value.decode()[-600:]}") from None


def make_state_map(name: str) -> int:
    """Make a map with one state, which is POLICIES_APPLIED at first. Returns: a descriptor."""
    return _bpf(_MAP_CREATE, struct.pack("<IIIIIII16s", _ARRAY, 4, 4, 1, 0, 0, 0, name.encode()))


def set_state(state_map: int, state: PodState) -> None:
    """Write the state of a map."""
    key, value = ctypes.c_uint32(0), ctypes.c_uint32(state)
    _bpf(_MAP_UPDATE, struct.pack("<IIQQQ", state_map, 0, ctypes.addressof(key), ctypes.addressof(value), 0))


def state_of(state_map: int) -> PodState:
    """Read the state of a map."""
    key, value = ctypes.c_uint32(0), ctypes.c_uint32(0)
    _bpf(_MAP_LOOKUP, struct.pack("<IIQQQ", state_map, 0, ctypes.addressof(key), ctypes.addressof(value), 0))
    return PodState(value.value)


def program_id(program: int) -> int:
    """Return the kernel's ID of a program, by which a tc filter names it too."""
    info = ctypes.create_string_buffer(8)  # struct bpf_prog_info begins with type and id
    _bpf(_INFO, struct.pack("<IIQ", program, len(info), ctypes.addressof(info)))
    return int(struct.unpack("<II", info.raw)[1])


def pin(fd: int, path: str) -> None:
    """Pin a program or map to a path in a bpf file system. Raises: FileExistsError if the path is taken; OSError."""
    text = ctypes.create_string_buffer(path.encode())
    _bpf(_OBJ_PIN, struct.pack("<QII", ctypes.addressof(text), fd, 0))


def pinned(path: str) -> int:
    """Open the program or map that is pinned at `path`. Returns: a new descriptor. Raises: FileNotFoundError."""
    text = ctypes.create_string_buffer(path.encode())
    return _bpf(_OBJ_GET, struct.pack("<QII", ctypes.addressof(text), 0, 0))


def _bpf(command: int, attr: bytes) -> int:
    buffer = ctypes.create_string_buffer(attr, _ATTR_BYTES)
    result = int(_libc.syscall(_SYSCALL[platform.machine()], command, buffer, _ATTR_BYTES))
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result


# linux/bpf_common.h, linux/bpf.h: operation codes, registers, helpers
_MOV_REG, _MOV, _ADD, _LOAD_WORD, _STORE_WORD, _LOAD_BYTE, _MAP_FD = 0xBF, 0xB7, 0x07, 0x61, 0x62, 0x71, 0x18
_EQUAL, _NOT_EQUAL, _LESS, _ABOVE, _CALL, _EXIT = 0x15, 0x55, 0xA5, 0x25, 0x85, 0x95
_AND = 0x57
_LOOKUP, _LOAD_BYTES = 1, 26  # helpers bpf_map_lookup_elem, bpf_skb_load_bytes
_VLAN_PUSH, _VLAN_POP, _REDIRECT_TO = 18, 19, 23  # helpers bpf_skb_vlan_push, bpf_skb_vlan_pop, bpf_redirect
_SWAPPED_8021Q = 0x0081  # 0x8100 in network byte order, as a little-endian machine reads it
_SKB_PROTOCOL, _SKB_VLAN_PRESENT, _SKB_VLAN_TCI = 16, 20, 24  # struct __sk_buff
_IPV6, _ICMPV6, _NEXT_HEADER_AT, _ICMPV6_TYPE_AT = 0x86DD, 58, 14 + 6, 14 + 40
_ROUTER_SOLICITATION, _REDIRECT = 133, 137  # RFC 4861
_PASS, _DROP = -1, 2  # TC_ACT_UNSPEC: the next filter decides; TC_ACT_SHOT (linux/pkt_cls.h)
_CONTEXT, _FRAME = 6, 10


def _assemble(state_map: int, protocol: int) -> bytes:
    """Return the instructions of the filter. It drops a packet that has the protocol and is no neighbour discovery, if the state is
    DEFAULT_DENY or cannot be read. Every other packet passes to the next filter."""
    discovery = _if_discovery() if protocol == _IPV6 else []
    verdict = [
        _ins(_STORE_WORD, _FRAME, at=-4, value=0),
        _ins(_MAP_FD, 1, 1, value=state_map),  # a 64-bit value takes two instructions; the upper half is zero
        _ins(0),
        _ins(_MOV_REG, 2, _FRAME),
        _ins(_ADD, 2, value=-4),
        _ins(_CALL, value=_LOOKUP),
        _ins(_EQUAL, 0, at=2, value=0),
        _ins(_LOAD_WORD, 1, 0),
        _ins(_NOT_EQUAL, 1, at=2, value=PodState.DEFAULT_DENY),
        _ins(_MOV, 0, value=_DROP),
        _ins(_EXIT),
    ]
    skipped = len(discovery) + len(verdict)
    swapped = int.from_bytes(protocol.to_bytes(2, "little"), "big")  # network byte order, as a little-endian machine reads it
    head = [_ins(_MOV_REG, _CONTEXT, 1), _ins(_LOAD_WORD, 2, 1, at=_SKB_PROTOCOL), _ins(_NOT_EQUAL, 2, at=skipped, value=swapped)]
    return b"".join([*head, *discovery, *verdict, _ins(_MOV, 0, value=_PASS), _ins(_EXIT)])


def _if_discovery() -> list[bytes]:
    """Return instructions that pass messages of router and neighbour discovery. For other packets the program continues behind
    them."""
    return [
        *_byte_at(_NEXT_HEADER_AT),
        _ins(_NOT_EQUAL, 1, at=12, value=_ICMPV6),
        *_byte_at(_ICMPV6_TYPE_AT),
        _ins(_LESS, 1, at=3, value=_ROUTER_SOLICITATION),
        _ins(_ABOVE, 1, at=2, value=_REDIRECT),
        _ins(_MOV, 0, value=_PASS),
        _ins(_EXIT),
    ]


def _byte_at(offset: int) -> list[bytes]:
    """Return eight instructions that load the byte at `offset` of the packet into register 1; 0 if the packet is shorter."""
    return [
        _ins(_STORE_WORD, _FRAME, at=-4, value=0),
        _ins(_MOV_REG, 1, _CONTEXT),
        _ins(_MOV, 2, value=offset),
        _ins(_MOV_REG, 3, _FRAME),
        _ins(_ADD, 3, value=-4),
        _ins(_MOV, 4, value=1),
        _ins(_CALL, value=_LOAD_BYTES),
        _ins(_LOAD_BYTE, 1, _FRAME, at=-4),
    ]


def _redirect(ifindex: int) -> list[bytes]:
    return [_ins(_MOV, 1, value=ifindex), _ins(_MOV, 2, value=0), _ins(_CALL, value=_REDIRECT_TO), _ins(_EXIT)]


def _ins(code: int, to: int = 0, source: int = 0, *, at: int = 0, value: int = 0) -> bytes:
    return struct.pack("<BBhi", code, (source << 4) | to, at, value)
