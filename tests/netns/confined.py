"""A host with two ENIs and a confined sandbox on each, for the tests beside it."""

from __future__ import annotations

import contextlib
import json
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network

from tests.netns import packets
from tests.netns.test_host_network import TO_SECONDARY

PRIMARY, SECONDARY, NODE, VPC, WORLD = "10.0.0.30", "10.0.1.20", "10.0.0.10", "10.0.77.7", "203.0.113.9"

OPEN = "nft flush ruleset; for each in /proc/sys/net/ipv4/conf/eni*/rp_filter; do echo 0 > $each; done"
"""What a node is like without all this."""


class Node:
    """A host with both ENIs, set up, and a sandbox on each."""

    def __init__(self, world, *, all_rp_filter=0, src_valid_mark=0):
        self.world, self.host = world, world.host
        self.vpc = world.fabric()
        self.vpc.sh(f"ip route add {PRIMARY}/32 dev p0; ip neigh add {PRIMARY} dev p0 lladdr 02:00:00:00:00:01; {TO_SECONDARY}")
        # One name more in each file: a fabric that checks sources itself would hide a packet that came through.
        self.host.sh(f"sysctl -qw net.ipv4.conf.all.rp_filter={all_rp_filter} net.ipv4.conf.all.src_valid_mark={src_valid_mark}")
        world.hostnet.setup_node(world.identity())
        world.hostnet.setup_eni(world.eni())
        world.hostnet.confine_sandboxes()
        self.primary, self.secondary = world.space(), world.space()
        self.specs = [
            world.spec(self.primary, number=30),
            replace(world.spec(self.secondary, number=20, table=2), address=IPv4Address(SECONDARY)),
        ]
        for spec in self.specs:
            world.wiring.wire(spec)

    @property
    def veths(self):
        """Names of both host veths."""
        return [spec.host_veth for spec in self.specs]

    def spoof(self, sender, own, sources, *, targets):
        """Send from foreign sources to all targets, then from the own address; what arrives anywhere of the first."""
        with contextlib.ExitStack() as stack:
            links = [(self.vpc, "p0"), (self.vpc, "p1"), (self.primary, "eth0"), (self.secondary, "eth0")]
            ear = packets.Ear(stack, links=[one for one in links if one[0] is not sender], ports=[self.host])
            frames = [packets.udp(source, target, b"spoofed") for source in sources for target in targets]
            packets.send(sender, "eth0", [*frames, *(packets.udp(own, target, b"honest") for target in targets)])
            heard = ear.heard(b"spoofed", until=b"honest")
            return [one for one in heard if one == b"spoofed" or one[9] == packets.UDP]  # not the errors that answer them

    def dropped_now(self, reason):
        """One counter, read without a repair, which would set the veths too."""
        family = "ip6" if reason == "ipv6" else "ip"
        listed = json.loads(self.host.sh(f"nft -j list counter {family} vpc-ipamd-confine dropped_{reason}"))
        return next(one["counter"]["packets"] for one in listed["nftables"] if "counter" in one)

    def dropped(self):
        """The counters, read now."""
        assert self.world.hostnet.confine_sandboxes() == []
        return self.world.hostnet.dropped_packets()


RELEASE_BEFORE = {
    family: f"(echo delete table {family} vpc-ipamd-confine; nft list table {family} vpc-ipamd-confine"
    " | sed 's/prerouting priority -450/prerouting priority raw/') | nft -f -"
    for family in ("ip", "ip6")
}
"""Makes a table that of the release before, which saw what a sandbox sends after the kernel had put fragments together."""

EXTRA = (IPv4Network("10.0.0.0/8"), IPv4Network("192.0.2.0/24"))
