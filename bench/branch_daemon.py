"""The daemon that `branch` measures: `python -m bench.branch_daemon`, in place of ipamd.daemon. It writes the CPU time of each call to
a file.

The CPU time is that of the thread that serves the call. Not every kernel can make VLAN links, so this daemon makes a macvlan instead,
the most similar kind of link that every kernel can make. The daemon creates it by the same messages as a VLAN link. No packets are
sent through it.
"""

from __future__ import annotations

import json
import struct
import sys
import time
from pathlib import Path

import grpc

from ipamd import daemon
from ipamd.kernel import messages, uapi
from ipamd.kernel.netlink import Message, attribute, text_attribute
from ipamd.pb import cni_pb2
from ipamd.rpc.cni import CniServicer

TOOK = Path("/run/bench-took")
"""File in the node's own /run, with a line of JSON for each call: verb, container ID and CPU time in ms."""

KIND = "macvlan"
IFLA_MACVLAN_MODE, MACVLAN_MODE_BRIDGE, IFLA_MACVLAN_BC_QUEUE_LEN = 1, 4, 7
"""Attributes of a macvlan. The queue length (from Linux 5.11 on) can be any number, so it stores the VLAN ID. Source:
linux/if_link.h."""


def create(name: str, *, vlan: int, parent: int, mac: str) -> Message:
    """Return the message that creates a macvlan, in place of `messages.create_vlan`."""
    data = attribute(IFLA_MACVLAN_MODE, struct.pack("=I", MACVLAN_MODE_BRIDGE))
    data += attribute(IFLA_MACVLAN_BC_QUEUE_LEN, struct.pack("=I", vlan))
    info = text_attribute(uapi.IFLA_INFO_KIND, KIND) + attribute(uapi.IFLA_INFO_DATA | uapi.NLA_F_NESTED, data)
    body = messages.LINK.pack(0, 0, 0, 0, 0) + b"".join(
        (
            text_attribute(uapi.IFLA_IFNAME, name),
            attribute(uapi.IFLA_LINK, struct.pack("=I", parent)),
            attribute(uapi.IFLA_ADDRESS, bytes.fromhex(mac.replace(":", ""))),
            attribute(uapi.IFLA_GROUP, struct.pack("=I", uapi.MAKING_GROUP)),
            attribute(uapi.IFLA_LINKINFO | uapi.NLA_F_NESTED, info),
        )
    )
    return Message(f"create {KIND} {name} on link {parent}", uapi.RTM_NEWLINK, uapi.NLM_F_CREATE | uapi.NLM_F_EXCL, body)


def _measured(servicer: CniServicer, request: cni_pb2.ExecRequest, context: grpc.ServicerContext) -> cni_pb2.ExecReply:
    """Serve a call, and append its CPU time to TOOK."""
    began_s = time.thread_time()
    reply = _serve(servicer, request, context)
    took_s = time.thread_time() - began_s
    with TOOK.open("a") as file:
        file.write(json.dumps({"verb": request.verb, "container_id": request.container_id, "ms": took_s * 1000}) + "\n")
    return reply


if __name__ == "__main__":
    _serve = CniServicer.Exec
    CniServicer.Exec = _measured  # type: ignore[assignment, method-assign]  # replaced on purpose, to measure it
    uapi.VLAN_KIND, uapi.IFLA_VLAN_ID = KIND, IFLA_MACVLAN_BC_QUEUE_LEN
    messages.create_vlan = create  # all callers call it as an attribute of the module
    sys.exit(daemon.main())
