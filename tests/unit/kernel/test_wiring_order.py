"""The order of a wiring's messages: no message changes a link that is up, because the kernel then walks all IPv6 routes."""

from __future__ import annotations

from ipaddress import IPv6Address

import pytest

from ipamd.kernel import messages, uapi, wiring_messages
from ipamd.kernel.netlink import Message
from ipamd.model.attachment import WiringSpec, veth_name
from ipamd.model.family import IpAddress, read_address
from ipamd.model.ids import parse_key
from ipamd.model.legs import Leg, first_leg
from ipamd.model.record import replace

INDEX = 7
WAITING_KINDS = {uapi.RTM_SETLINK, uapi.RTM_NEWADDR, uapi.RTM_NEWNEIGH}
"""Requests for which the kernel takes its lock for links, which it holds while it announces a carrier."""


def a_leg(address: IpAddress, *, is_kept_down: bool = False) -> Leg:
    """The first leg of a sandbox with this address, on a secondary ENI."""
    key = parse_key("a" * 64, "eth0")
    spec = WiringSpec(key, address, 2, veth_name(key, prefix="eni"), "/run/netns/a", 9001)
    return first_leg(replace(spec, is_kept_down=is_kept_down))


def is_raising(message: Message) -> bool:
    """Whether a message raises a link and does nothing else."""
    return message.body == messages.change_link(INDEX, step="", is_up=True).body


@pytest.mark.parametrize("address", ["10.0.0.5", "2001:db8::5"])
def test_links_are_changed_only_while_they_are_down(address):
    """In each batch the message that raises the link is the last one for which the kernel takes its lock for links."""
    leg = a_leg(read_address(address))
    host_side = wiring_messages.name_host_veth(leg, INDEX, {1: 1})
    sandbox_side = wiring_messages.sandbox_side(leg, INDEX)
    for batch in (host_side, sandbox_side):
        raising = [number for number, message in enumerate(batch) if is_raising(message)]
        waiting = [number for number, message in enumerate(batch) if message.kind in WAITING_KINDS]
        assert raising == [waiting[-1]]
    assert host_side[-1].kind == uapi.RTM_SETLINK


def test_a_link_that_is_kept_down_gets_its_alias_and_is_not_raised():
    """The repair raises it later, when EC2 has confirmed the ENI."""
    leg = a_leg(IPv6Address("2001:db8::5"), is_kept_down=True)
    host_side = wiring_messages.name_host_veth(leg, INDEX, {1: 1})
    assert leg.alias.encode() in host_side[-1].body
    assert not any(is_raising(message) for message in host_side)
