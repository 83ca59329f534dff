"""The number that nftables counts up with every change of its rules: what was read at the same number is still true.

Asking for it costs microseconds; listing the chains of a node with thousands of services costs a tenth of a second of CPU.
Source: linux/netfilter/nf_tables.h, NFT_MSG_GETGEN; the kernel's net/netfilter/nf_tables_api.c, nf_tables_fill_gen_info.
"""

from __future__ import annotations

from ipamd.kernel import uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, attributes
from ipamd.kernel.netns import HostNetns
from ipamd.model.errors import WiringError

NFGENMSG_BYTES = 4
"""nfgenmsg: family, version, and a resource ID that is the lower half of the generation, so it is left out of what is compared."""


def generation(host: HostNetns) -> bytes | None:
    """The number in the host's namespace; None if the kernel does not say."""
    try:
        with host.netfilter() as sock:
            return generation_by(sock)
    except WiringError:
        return None


def generation_by(sock: NetlinkSocket) -> bytes:
    """The number in a socket's namespace. Raises: WiringError if the kernel does not say."""
    (outcome,) = sock.request([Message("look at the ruleset's generation", uapi.NFT_MSG_GETGEN, 0, bytes(NFGENMSG_BYTES))])
    found = attributes(outcome.replies[0], NFGENMSG_BYTES).get(uapi.NFTA_GEN_ID) if outcome.replies else None
    if not found:
        raise WiringError(f"{outcome.message.step} failed", details=outcome.cause)
    return found
