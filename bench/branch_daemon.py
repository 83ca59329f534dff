"""The daemon that `branch` measures: `python -m bench.branch_daemon`, in place of ipamd.daemon. It writes down what each call took.

What a call takes is the CPU time of the thread that serves it. VLAN links are the lab's stand-in, whose own time is left out; what the
kernel would take for the link is counted by a macvlan's, the nearest kind that every kernel of the lab makes.
"""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
from pathlib import Path

import grpc

from ipamd import daemon
from ipamd.kernel import messages, uapi
from ipamd.kernel.netlink import Message, NetlinkSocket, attribute, text_attribute
from ipamd.model.ids import MacAddress
from ipamd.pb import cni_pb2
from ipamd.rpc.cni import CniServicer
from lab.node.vlan_standin import VlanStandIn

TOOK = Path("/run/bench-took")  # in the node, whose /run is its own
"""A line of JSON for each call: verb, container and ms of CPU."""

_MACVLAN_MODE, _BRIDGE = 1, 4
"""IFLA_MACVLAN_MODE and its value bridge. Source: linux/if_link.h."""

_left_out = threading.local()


class CountedStandIn(VlanStandIn):
    """The stand-in, but that its time is left out and a macvlan's stands for it."""

    def make(self, name: str, *, vlan: int, parent: int, mac: MacAddress) -> bool:
        """See the port."""
        began_s = time.thread_time()
        is_made = super().make(name, vlan=vlan, parent=parent, mac=mac)
        sock = NetlinkSocket()
        _leave_out(began_s)
        sock.carry_out([_macvlan(f"mv{vlan}", parent=parent)], what="a link like a VLAN's")
        began_s = time.thread_time()
        (made,) = sock.request([messages.get_link(f"mv{vlan}")])
        sock.carry_out([messages.delete_link(messages.read_link(made.replies[0]).index, step="delete it")], what="the same")
        sock.close()
        _leave_out(began_s)
        return is_made


def _leave_out(since_s: float) -> None:
    _left_out.s = getattr(_left_out, "s", 0.0) + time.thread_time() - since_s


def _macvlan(name: str, *, parent: int) -> Message:
    mode = attribute(_MACVLAN_MODE, struct.pack("=I", _BRIDGE))
    kind = text_attribute(uapi.IFLA_INFO_KIND, "macvlan") + attribute(uapi.IFLA_INFO_DATA, mode)
    body = messages.LINK.pack(0, 0, 0, 0, 0) + b"".join(
        (
            text_attribute(uapi.IFLA_IFNAME, name),
            attribute(uapi.IFLA_LINK, struct.pack("=I", parent)),
            attribute(uapi.IFLA_LINKINFO, kind),
        )
    )
    return Message(f"create macvlan {name}", uapi.RTM_NEWLINK, uapi.NLM_F_CREATE | uapi.NLM_F_EXCL, body)


def _measured(servicer: CniServicer, request: cni_pb2.ExecRequest, context: grpc.ServicerContext) -> cni_pb2.ExecReply:
    """Serve a call, and write down what it took."""
    _left_out.s, began_s = 0.0, time.thread_time()
    reply = _serve(servicer, request, context)
    took_s = time.thread_time() - began_s - _left_out.s
    with TOOK.open("a") as file:
        file.write(json.dumps({"verb": request.verb, "container_id": request.container_id, "ms": took_s * 1000}) + "\n")
    return reply


if __name__ == "__main__":
    _serve = CniServicer.Exec
    CniServicer.Exec = _measured  # type: ignore[assignment, method-assign]  # the one purpose of this module
    sys.exit(daemon.main(vlan_links=CountedStandIn()))
