"""Read the tables of iptables-legacy, which nftables does not show: chains, and what decides about forwarded packets.

Read only, by the two socket options that `iptables-legacy -S` uses. Only tables that are there are asked for: asking for another one
would load its module. Source of the layout: linux/netfilter_ipv4/ip_tables.h, linux/netfilter/x_tables.h.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import socket
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ipamd.kernel.filters import Interface, Rule, Scope, Verdict
from ipamd.kernel.netns import HostNetns
from ipamd.model.errors import WiringError

NAMES = Path("/proc/thread-self/net/ip_tables_names")
"""The tables in the namespace of the thread that opens it; without iptables-legacy it is missing."""

LOOKED_AT = {"filter": b"", "nat": b"AWS-"}
"""Tables that are read, and what must be in one for it to be taken apart: kube-proxy's nat table may have 100,000 rules."""

SO_GET_INFO = 64
SO_GET_ENTRIES = 65
FORWARD_HOOK = 2
MAX_BYTES = 32 * 1024 * 1024
"""Largest table that is read. Ours: 100,000 rules of kube-proxy are about 25 MB."""

_INFO = struct.Struct("=32sI5I5III")
_GET_ENTRIES = struct.Struct("=32sI4x")
_ENTRY = struct.Struct("=4s4s4s4s16s16s16s16sHBBIHHI16x")
# struct ipt_entry: source, destination, their masks; the links' names, their masks; protocol, flags, what is inverted; cache; offset
# of the target, size, origin
_TARGET = struct.Struct("=H29sB")
_FLAG_GOTO = 0x02
_INVERT_IN, _INVERT_OUT = 0x01, 0x02
_RETURN = -5  # linux/netfilter/x_tables.h: XT_RETURN is -NF_REPEAT - 1

_libc = ctypes.CDLL(None, use_errno=True)


@dataclass(slots=True)
class LegacyTable:
    """One table: the rules of its chains by name; FORWARD among them if the table has that hook."""

    name: str
    chains: dict[str, list[Rule]] = field(default_factory=dict)
    forward_drops: bool = False


class LegacyTables:
    """Reads those of LOOKED_AT in the host's namespace. Used by one thread at a time."""

    def __init__(self, host: HostNetns) -> None:
        self._host = host
        self._nat: tuple[bytes, bytes] = b"", b""  # number and size of its entries, and what they were

    def read(self) -> list[LegacyTable]:
        """The tables; the table nat only again when it has another size, which every chain and rule changes.

        Raises: WiringError if one cannot be read.
        """
        with self._host.entered():
            try:
                names = sorted(LOOKED_AT.keys() & set(NAMES.read_text(encoding="ascii").split()))
            except FileNotFoundError:
                return []
            except OSError as exc:
                raise WiringError(
                    "the tables of iptables-legacy could not be listed", details=f"{NAMES}: {exc.strerror}"
                ) from exc
            if not names:
                return []
            with socket.socket(socket.AF_INET, socket.SOCK_RAW | socket.SOCK_CLOEXEC, socket.IPPROTO_RAW) as sock:
                answers = [(name, *self._read(sock, name)) for name in names]
        return [parse(name, info, entries) for name, info, entries in answers if LOOKED_AT[name] in entries]

    def _read(self, sock: socket.socket, name: str) -> tuple[bytes, bytes]:
        info = _ask(sock, SO_GET_INFO, name.encode(), _INFO.size, name)
        if name == "nat" and info == self._nat[0]:
            return self._nat
        size = _INFO.unpack(info)[-1]
        if size > MAX_BYTES:
            raise WiringError(f"table {name} of iptables-legacy has {size} bytes", details=f"at most {MAX_BYTES} are read")
        request = _GET_ENTRIES.pack(name.encode(), size)
        answer = _ask(sock, SO_GET_ENTRIES, request, _GET_ENTRIES.size + size, name, sought=LOOKED_AT[name])
        entries = answer[_GET_ENTRIES.size :]
        if name == "nat":
            self._nat = info, entries
        return info, entries


def _ask(sock: socket.socket, option: int, request: bytes, size: int, name: str, *, sought: bytes = b"") -> bytes:
    """A getsockopt whose buffer of `size` bytes is question and answer; Python's own cannot send.

    Returns: the answer; b"" if `sought` is not in it. It is searched in memory of its own, which goes back at once: a large table
    would be copied, and stay in the process as memory that was freed.
    """
    with mmap.mmap(-1, size) as area:
        area[: len(request)] = request
        buffer, length = (ctypes.c_char * size).from_buffer(area), ctypes.c_uint32(size)
        refused = _libc.getsockopt(sock.fileno(), socket.IPPROTO_IP, option, ctypes.byref(buffer), ctypes.byref(length))
        cause = os.strerror(ctypes.get_errno())
        del buffer  # the area cannot be closed before
        answer = area[:] if area.find(sought) >= 0 else b""
    if refused:
        raise WiringError(
            f"table {name} of iptables-legacy could not be read", details=f"{cause}; look with iptables-legacy-save"
        )
    return answer


def parse(name: str, info: bytes, entries: bytes) -> LegacyTable:
    """Read a table from the kernel's two answers. Raises: WiringError if their layout is not the known one. Pure."""
    unpacked = _INFO.unpack(info)
    hooks, underflows = unpacked[2:7], unpacked[7:12]
    table = LegacyTable(name)
    try:
        found = dict(_entries(entries))
    except (struct.error, ValueError) as exc:
        raise WiringError(f"table {name} of iptables-legacy was not understood", details=str(exc)) from exc
    starts = {hooks[FORWARD_HOOK]: "FORWARD"} if unpacked[1] & (1 << FORWARD_HOOK) else {}
    others = {offset for index, offset in enumerate(hooks) if unpacked[1] & (1 << index)} - starts.keys()
    chains = {offset + size: chain for offset, (size, chain, _) in found.items() if chain} | starts
    current: list[Rule] | None = None
    for offset, (_, chain, rule) in found.items():
        if offset in starts:
            current = table.chains.setdefault("FORWARD", [])
        elif offset in others:
            current = None
        if chain:
            current = None if chain == "ERROR" else table.chains.setdefault(chain, [])
        elif current is not None and rule is not None:
            current.append(_with_name(rule, chains))
    if starts:
        last = found.get(underflows[FORWARD_HOOK], (0, "", None))[2]
        table.forward_drops = last is not None and last.verdict is Verdict.DROP
    return table


def _entries(data: bytes) -> Iterator[tuple[int, tuple[int, str, Rule | None]]]:
    """Every entry by its offset: its size, the chain that it begins, its rule."""
    offset = 0
    while offset < len(data):
        *head, _, target_offset, size, _ = _ENTRY.unpack_from(data, offset)
        if not _ENTRY.size <= target_offset <= size - _TARGET.size:
            raise ValueError(f"an entry of {size} bytes at {offset}")
        target_size, raw, _ = _TARGET.unpack_from(data, offset + target_offset)
        target = raw.split(b"\0")[0].decode("ascii", "replace")
        body = data[offset + target_offset + _TARGET.size : offset + target_offset + target_size]
        if target == "ERROR":
            yield offset, (size, body[:30].split(b"\0")[0].decode("ascii", "replace"), None)
        else:
            matches = data[offset + _ENTRY.size : offset + target_offset]
            yield offset, (size, "", _rule(head, matches, target, body))
        offset += size


def _rule(head: Sequence[Any], matches: bytes, target: str, body: bytes) -> Rule:
    *masks, incoming, outgoing, in_mask, out_mask, protocol, flags, inverted = head
    scope = Scope.BY_ADDRESS if any(masks[2] + masks[3]) else Scope.ALL
    if protocol or any(name != "comment" for name in _match_names(matches)):
        scope = Scope.PART
    verdict, chain_offset = _verdict(target, body, is_goto=bool(flags & _FLAG_GOTO))
    return Rule(
        verdict,
        _interface(incoming, in_mask, inverted & _INVERT_IN),
        _interface(outgoing, out_mask, inverted & _INVERT_OUT),
        scope,
        str(chain_offset) if verdict in (Verdict.JUMP, Verdict.GOTO) else "",
    )


def _match_names(data: bytes) -> Iterator[str]:
    offset = 0
    while offset + _TARGET.size <= len(data):
        size, raw, _ = _TARGET.unpack_from(data, offset)
        if size < _TARGET.size:
            raise ValueError(f"a match of {size} bytes")
        yield raw.split(b"\0")[0].decode("ascii", "replace")
        offset += size


def _verdict(target: str, body: bytes, *, is_goto: bool) -> tuple[Verdict, int]:
    if target:
        return (Verdict.DROP if target == "REJECT" else Verdict.NONE), 0
    (number,) = struct.unpack_from("=i", body)
    if number >= 0:
        return (Verdict.GOTO if is_goto else Verdict.JUMP), number
    return {-1: Verdict.DROP, -2: Verdict.ACCEPT, _RETURN: Verdict.RETURN}.get(number, Verdict.NONE), 0


def _interface(name: bytes, mask: bytes, is_negated: int) -> tuple[Interface, ...]:
    """A name whose mask ends before its terminator is the beginning of one; the tool keeps the `+` that says so."""
    text = name.split(b"\0")[0].decode("ascii", "replace")
    if not text:
        return ()
    counted = len(mask.rstrip(b"\0"))
    return (Interface(text if counted > len(text) else f"{text[:counted]}*", bool(is_negated)),)


def _with_name(rule: Rule, chains: dict[int, str]) -> Rule:
    """Name the chain of a jump, which the kernel tells by the offset of its first entry."""
    if rule.verdict not in (Verdict.JUMP, Verdict.GOTO):
        return rule
    target = chains.get(int(rule.target), "")
    # An unconditional jump to the next entry is how the kernel says "no target": it is no chain.
    return Rule(rule.verdict if target else Verdict.NONE, rule.incoming, rule.outgoing, rule.scope, target)
