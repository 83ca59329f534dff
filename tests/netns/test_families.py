"""One packing for both families: the kernel takes and gives back addresses, routes, rules and neighbours of IPv4 and of IPv6.

What it holds is looked at with `ip`, and read once more by our own dumps.
"""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest

from ipamd.kernel import answers, messages, survey, uapi
from ipamd.kernel.netlink import must
from ipamd.model.family import IPV4, IPV6, family_of

MAC = "02:00:00:00:00:77"

FAMILIES = pytest.mark.parametrize(
    ("dash", "address", "other", "prefix"),
    [
        pytest.param("-4", "10.0.3.7", "10.0.9.9", "10.0.3.0/28", id="ipv4"),
        pytest.param("-6", "2600:1f13::7", "2600:1f13::99", "2600:1f13:0:0:3::/80", id="ipv6"),
    ],
)

BYTES = {
    "add_address": "0220000007000000080002000a000307080001000a000307",
    "add_route": "022000000004fd0100000000080001000a00030708000f003dba01000800040007000000",
    "default": "02000000fe0400010000000008000f00fe00000008000500a9fe01010800040007000000",
    "delete_route": "022000000000ff0000000000080001000a00030708000f003dba010008000400070000000800060009000000",
    "look_up_route": "022020000000000000100000080001000a0003070800100080000000080002000a0009090800030005000000",
    "match_route": "022000000000000000200000080001000a0003070800040007000000",
    "add_neighbour": "02000000070000008000000008000100a9fe01010a0002000200000000010000",
    "get_neighbour": "02000000070000000000000008000100a9fe0101",
    "rule from": "02001c000300000100000000080002000a000300080006000006000008000f0003000000",
    "rule to": "02200000fe00000100000000080001000a000307080006000002000008000f00fe000000",
    "rule of all": "020000000000000100000000080006000102000008000f003dba0100",
}
"""Bodies of IPv4, as they were when no other family could be packed."""


def test_ipv4_is_packed_as_ever():
    """Byte for byte: nodes in service are of IPv4."""
    one, gateway = IPV4.address("10.0.3.7"), IPV4.gateway
    made = {
        "add_address": messages.add_address(7, one, length=32, step="x"),
        "add_route": messages.add_route(one, index=7, table=113213, step="x"),
        "default": messages.add_route(None, index=7, via=gateway, step="x"),
        "delete_route": messages.delete_route(one, length=32, table=113213, index=7, step="x", metric=9),
        "look_up_route": messages.look_up_route(one, ip_address("10.0.9.9"), 5, 0x80),
        "match_route": messages.match_route(one, index=7),
        "add_neighbour": messages.add_neighbour(7, gateway, mac="02:00:00:00:00:01"),
        "get_neighbour": messages.get_neighbour(7, gateway),
        "rule from": messages.add_rule(1536, table=3, source=ip_network("10.0.3.0/28")),
        "rule to": messages.add_rule(512, table=254, destination=one),
        "rule of all": messages.add_rule(513, table=113213),
    }
    assert {name: message.body.hex() for name, message in made.items()} == BYTES


@pytest.fixture
def link(world):
    """A veth that is up, with no address of its own; its index."""
    world.host.sh(
        "ip link add v0 type veth peer name v1; for v in v0 v1; do ip link set $v addrgenmode none; ip link set $v up; done"
    )
    return next(one["ifindex"] for one in world.host.ip("link") if one["ifname"] == "v0")


@pytest.mark.privileged
@FAMILIES
def test_addresses_and_neighbours_of_both_families(world, link, dash, address, other, prefix):
    """An address and a permanent neighbour are added, read back and removed; removing them once more is fine."""
    one, near = ip_address(address), ip_address(other)
    length = one.max_prefixlen
    with world.netns.netlink() as sock:
        add = [
            messages.add_address(link, one, length=length, step="add the address"),
            messages.add_neighbour(link, near, mac=MAC),
        ]
        sock.carry_out(add, operation="test")
        (shown,) = world.host.ip(f"{dash} addr show dev v0")
        assert [(each["local"], each["prefixlen"]) for each in shown["addr_info"]] == [(address, length)]
        (entry,) = world.host.ip(f"{dash} neigh show {other} dev v0")
        assert (entry["lladdr"], entry["state"]) == (MAC, ["PERMANENT"])

        read = [answers.read_address(body) for body in sock.dump(messages.dump_addresses(family_of(one)))]
        assert [(each.address, each.length) for each in read if each.index == link] == [(one, length)]
        (asked,) = sock.request([messages.get_neighbour(link, near)])
        assert answers.read_neighbour(asked.replies[0]) == answers.Neighbour(near, MAC, is_permanent=True)

        gone = messages.delete_address(link, one, length=length, step="remove the address")
        sock.carry_out([gone, gone], operation="test")
    assert [each for each in world.host.ip(f"{dash} addr show dev v0") if each.get("addr_info")] == []


@pytest.mark.privileged
@FAMILIES
def test_routes_of_both_families(world, link, dash, address, other, prefix):
    """A sandbox's route and the way out by the gateway are added, looked up and removed, in main and in another table."""
    one, family = ip_address(address), family_of(ip_address(address))
    with world.netns.netlink() as sock:
        add = [
            messages.add_route(one, index=link, table=113213, step="add the route"),
            messages.add_route(family.gateway, index=link, step="add the gateway"),
            messages.add_route(None, index=link, via=family.gateway, step="add the way out"),
        ]
        sock.carry_out(add, operation="test")
        assert [each["dst"] for each in world.host.ip(f"{dash} route show table 113213")] == [address]
        (default,) = world.host.ip(f"{dash} route show default")
        assert (default["gateway"], default["dev"]) == (str(family.gateway), "v0")
        again = messages.add_route(one, index=link, table=113213, step="once more")
        (refused,) = sock.request([again])
        assert refused.is_refused, "an address is routed once (I1)"
        sock.carry_out([messages.add_route(one, index=link, table=113213, step="instead", is_replaced=True)], operation="test")

        bodies = sock.dump(messages.dump_routes(113213, family=family))
        (route,) = [each for each in map(answers.read_route, bodies) if each.table == 113213]
        assert route.is_to(one)
        assert (route.index, route.via, route.route_type) == (link, None, uapi.RTN_UNICAST)
        looked, matched = sock.request([messages.look_up_route(family.outside), messages.match_route(family.outside, index=link)])
        must([looked, matched], "test")
        found = answers.read_route(looked.replies[0])
        assert (found.via, found.index, found.table) == (family.gateway, link, uapi.RT_TABLE_MAIN)
        taken = answers.read_route(matched.replies[0])
        assert (taken.destination, taken.length, taken.via) == (None, 0, family.gateway)

        gone = messages.delete_route(one, length=one.max_prefixlen, table=113213, index=link, step="remove the route")
        sock.carry_out([gone, gone], operation="test")
    assert world.host.ip(f"{dash} route show table 113213") == []


@pytest.mark.privileged
@FAMILIES
def test_rules_of_both_families(world, dash, address, other, prefix):
    """Rules to a sandbox, from one and from a prefix, by a mark, and to our own table: each in its own family alone."""
    one, network = ip_address(address), ip_network(prefix)
    family = family_of(one)
    with world.netns.netlink() as sock:
        before = {each: set(sock.dump(messages.dump_rules(each))) for each in (IPV4, IPV6)}
        add = [
            messages.add_rule(512, table=254, destination=one),
            messages.add_rule(1536, table=3, source=one),
            messages.add_rule(1536, table=4, source=network),
            messages.add_rule(1024, table=254, mark=0x80, family=family),
            messages.add_rule(514, table=113213, family=family),
        ]
        sock.carry_out(add + add, operation="test")
        shown = world.host.sh(f"ip {dash} rule").splitlines()
        for message in add:
            words = message.step.removeprefix("add rule ").split(maxsplit=1)[1]
            wanted = words if words.startswith("from") else f"from all {words}"
            assert any(line.partition("\t")[2].strip() == wanted for line in shown), (wanted, shown)

        rules = [answers.read_rule(body) for body in set(sock.dump(messages.dump_rules(family))) - before[family]]
        assert [rule.destination for rule in rules if survey.is_to_sandbox(rule)] == [one]
        assert [(rule.source, rule.table) for rule in rules if survey.is_from_sandbox(rule)] == [(one, 3)]
        assert [survey.from_prefix(rule) for rule in rules if survey.from_prefix(rule)] == [network]
        away = IPV6 if family is IPV4 else IPV4
        assert set(sock.dump(messages.dump_rules(away))) == before[away]

        gone = [
            messages.delete_rule(512, table=254, destination=one),
            messages.delete_rule(1536, table=3, source=one),
            messages.delete_rule(1536, table=4, source=network),
            messages.delete_rule(514, table=113213, family=family),
        ]
        sock.carry_out(gone + gone, operation="test")
        left = [answers.read_rule(body).priority for body in set(sock.dump(messages.dump_rules(family))) - before[family]]
    assert left == [1024]
