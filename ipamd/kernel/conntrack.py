"""The port `ConnectionTracking`: delete the entries of nf_conntrack that contain one of the given addresses.

An entry outlives the sandbox of its connection, by 30 s to five days, and it decides where packets go: the kernel evaluates no service
rule again for a tracked connection. A reassigned address would therefore receive packets of its former owner's connections.

Each entry has four addresses: source and destination of the original direction and of the reply. With a service in between only one of
the four is the sandbox's, so all four are compared. The kernel can filter by one of the four at a time (CTA_FILTER, Linux 5.8). So if
the addresses are few and the table is large, each address takes four filtered dumps. In all other cases one dump of the whole family
is read, and only the matching entries are kept. The entries of a filtered dump are compared again, because a kernel without this
filter returns every entry.

Source: the kernel's net/netfilter/nf_conntrack_netlink.c (ctnetlink_dump_table, ctnetlink_filter_match, ctnetlink_del_conntrack) and
include/uapi/linux/netfilter/nfnetlink_conntrack.h.
"""

from __future__ import annotations

import errno
import struct
from collections.abc import Collection

from ipamd.kernel import sysctls, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, attribute, attributes
from ipamd.kernel.netns import HostNetns
from ipamd.model.errors import KernelDumpError, WiringError
from ipamd.model.family import IPV4, IPV6, Family, IpAddress, family_of
from ipamd.ports.process import ConnectionTracking

WHOLE_DUMP_MAX = 10_000
"""The largest number of entries in the table for which one dump of the whole table is cheaper than four filtered dumps for one
address. For n addresses the bound is multiplied by n * n, which approximates the measurements. Measured on two cores with 262,144 hash
buckets: a filtered dump that matches nothing takes 9 ms if the table is empty, and 47 ms if it has 200,000 entries; a dump of all
200,000 entries takes 0.7 s."""

COUNT = "net/netfilter/nf_conntrack_count"
BUCKETS = "net/netfilter/nf_conntrack_buckets"

NEEDS = (
    "the daemon needs CAP_NET_ADMIN, and the kernel nf_conntrack_netlink (CONFIG_NF_CT_NETLINK): `modprobe nf_conntrack_netlink`"
)

_GENERIC_HEADER = struct.Struct("=BBH")  # nfgenmsg: family, version, resource ID
_FLAGS = struct.Struct("=I")
# The beginning of a tuple, up to its second address: headers of the tuple, of CTA_TUPLE_IP and of the source; the source; header
# of the destination; the destination.
_TUPLE = {IPV4.number: struct.Struct("=HHHHHH4sHH4s"), IPV6.number: struct.Struct("=HHHHHH16sHH16s")}


class KernelConnectionTracking(ConnectionTracking):
    """The connections that the host's namespace tracks.

    Concurrency: safe from any thread; holds no lock.
    """

    def __init__(self, host: HostNetns) -> None:
        self._host = host

    def remove(self, addresses: Collection[IpAddress]) -> int:
        """See `ConnectionTracking.remove`. For few addresses in a large table the kernel filters, in four dumps for each address."""
        count, buckets = self._table_size()
        if count == 0:
            return 0
        removed = 0
        for family in (IPV4, IPV6):
            packed = frozenset(address.packed for address in addresses if family_of(address) is family)
            if packed:
                removed += self._remove_of_family(family, packed, is_small=count <= WHOLE_DUMP_MAX * len(packed) ** 2)
        if self._table_size()[1] != buckets:
            # The kernel does not mark a dump as interrupted by a resize, but the dump may lack an entry that moved (I11).
            raise KernelDumpError("the connection tracking table was resized during a dump", details="it is tried again")
        return removed

    def _table_size(self) -> tuple[int, int]:
        """Number of entries and of hash buckets; 0 and 0 if nf_conntrack is not loaded. Raises: WiringError."""
        with self._host.entered():
            try:
                count, buckets = ((sysctls.SYSCTL_ROOT / key).read_text(encoding="ascii") for key in (COUNT, BUCKETS))
            except FileNotFoundError:  # nf_conntrack is not loaded
                return 0, 0
            except OSError as exc:
                raise WiringError("the size of the connection tracking table cannot be read", details=str(exc)) from exc
        return int(count), int(buckets)

    def _remove_of_family(self, family: Family, packed: frozenset[bytes], *, is_small: bool) -> int:
        dumps: list[Message] = []
        if is_small:
            dumps.append(_dump(family))
        else:
            for address in packed:
                for side, flag in _PLACES:
                    dumps.append(_filtered_dump(family, side, flag, address))
        entries: dict[bytes, None] = {}
        with self._host.netfilter() as sock:
            for dump in dumps:
                entries |= dict.fromkeys(_matching(sock, dump, packed))
            sock.carry_out([_deletion(family, identity) for identity in entries], operation="deletion of tracked connections")
        return len(entries)


def _matching(sock: NetlinkSocket, dump: Message, packed: frozenset[bytes]) -> list[bytes]:
    """Return the identity (see `_identity`) of each entry that has one of the addresses. Raises: WiringError, KernelDumpError."""

    def is_wanted(body: bytes) -> bool:
        return not packed.isdisjoint(_addresses(body))

    try:
        bodies = sock.dump_chosen(dump, is_wanted)
    except WiringError as exc:
        raise WiringError("tracked connections cannot be listed", details=f"{exc}; {NEEDS}") from exc
    return [_identity(body) for body in bodies]


def _addresses(body: bytes) -> tuple[bytes, bytes, bytes, bytes]:
    """Return the four addresses of an entry, from fixed offsets: a table may have hundreds of thousands of entries.

    Raises: KernelDumpError if the entry does not begin with both tuples, as every kernel writes them.
    """
    start = _GENERIC_HEADER.size
    try:
        layout = _TUPLE[body[0]]
        length, kind, _, first, _, _, source, _, _, destination = layout.unpack_from(body, start)
        second = start + ((length + 3) & ~3)
        _, reply_kind, _, reply_first, _, _, reply_source, _, _, reply_destination = layout.unpack_from(body, second)
    except (struct.error, LookupError) as exc:  # too short, even without a first byte, or another family
        raise _unreadable_entry() from exc
    kinds = (
        kind & uapi.NLA_TYPE_MASK,
        first & uapi.NLA_TYPE_MASK,
        reply_kind & uapi.NLA_TYPE_MASK,
        reply_first & uapi.NLA_TYPE_MASK,
    )
    if kinds != (uapi.CTA_TUPLE_ORIG, uapi.CTA_TUPLE_IP, uapi.CTA_TUPLE_REPLY, uapi.CTA_TUPLE_IP):
        raise _unreadable_entry()
    return source, destination, reply_source, reply_destination


def _unreadable_entry() -> KernelDumpError:
    return KernelDumpError("an entry of the connection tracking table was not understood", details="report the kernel's version")


def _identity(body: bytes) -> bytes:
    """Return the attributes by which a deletion selects this entry and no later one of the same tuple: tuple, zone and ID."""
    payloads = attributes(body, _GENERIC_HEADER.size)
    identity = attribute(uapi.NLA_F_NESTED | uapi.CTA_TUPLE_ORIG, payloads[uapi.CTA_TUPLE_ORIG])
    for kind in (uapi.CTA_ZONE, uapi.CTA_ID):
        if kind in payloads:
            identity += attribute(kind, payloads[kind])
    return identity


def _deletion(family: Family, identity: bytes) -> Message:
    """Return the message that deletes one entry.

    Without a tuple this message would delete the whole table; `_identity` always has one.
    """
    head = _GENERIC_HEADER.pack(family.number, 0, 0)
    return Message("delete a tracked connection", uapi.IPCTNL_MSG_CT_DELETE, 0, head + identity, frozenset({errno.ENOENT}))


_PLACES = (
    (uapi.CTA_TUPLE_ORIG, uapi.CTA_FILTER_IP_SRC),
    (uapi.CTA_TUPLE_ORIG, uapi.CTA_FILTER_IP_DST),
    (uapi.CTA_TUPLE_REPLY, uapi.CTA_FILTER_IP_SRC),
    (uapi.CTA_TUPLE_REPLY, uapi.CTA_FILTER_IP_DST),
)
"""Where an entry may have an address: the tuple, and the flag that compares its source or destination."""


def _dump(family: Family) -> Message:
    return Message("dump of tracked connections", uapi.IPCTNL_MSG_CT_GET, 0, _GENERIC_HEADER.pack(family.number, 0, 0))


def _filtered_dump(family: Family, side: int, flag: int, packed: bytes) -> Message:
    """Return the request for the entries that have an address as source (or destination) of their original (or reply) tuple.

    `side`, `flag`: one of `_PLACES`.
    """
    source, destination = (uapi.CTA_IP_V4_SRC, uapi.CTA_IP_V4_DST) if family is IPV4 else (uapi.CTA_IP_V6_SRC, uapi.CTA_IP_V6_DST)
    kind = destination
    if flag == uapi.CTA_FILTER_IP_SRC:
        kind = source
    place = attribute(uapi.NLA_F_NESTED | uapi.CTA_TUPLE_IP, attribute(kind, packed))
    is_original = side == uapi.CTA_TUPLE_ORIG
    flags = attribute(uapi.CTA_FILTER_ORIG_FLAGS, _FLAGS.pack(flag * is_original))
    flags += attribute(uapi.CTA_FILTER_REPLY_FLAGS, _FLAGS.pack(flag * (not is_original)))
    body = attribute(uapi.NLA_F_NESTED | side, place) + attribute(uapi.NLA_F_NESTED | uapi.CTA_FILTER, flags)
    dump = _dump(family)
    return Message(dump.step, dump.kind, dump.flags, dump.body + body)
