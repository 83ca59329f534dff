"""The ground of the two nodes with moves and pools: the reserved ranges, the pools' subnets and group, and their network file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from ipaddress import ip_network

from ipamd.model.eni_tags import POOL_TAG
from lab.chaos.wishes import GUARDED, POOLS, RANGES, Wish
from lab.lab import Lab
from lab.vpc.model import ReservationKind

NETWORK_FILE = "/run/vpc-ipamd/network.json"


class Pair:
    """What EC2 has for the pair. `prepare_*` before the daemons start; `problem` from any thread."""

    def __init__(self, lab: Lab, *, nodes: Sequence[str], friend: str) -> None:
        """`friend`: the host that the group of the guarded pool names."""
        self._lab = lab
        self._nodes = nodes
        self._friend = friend
        self._group = ""
        self.are_ranges_reserved = False

    def reserve_ranges(self) -> None:
        """Reserve the ranges, so that EC2 gives none of their addresses by itself."""
        vpc = self._lab.vpc
        subnet_id = vpc.instance(self._nodes[0]).subnet_id
        for cidr in RANGES.values():
            vpc.reserve_cidr(subnet_id, str(cidr), ReservationKind.EXPLICIT)
        self.are_ranges_reserved = True

    def prepare_pools(self) -> None:
        """Make the subnets and the group of the pools, and the file that names them."""
        vpc = self._lab.vpc
        self._group = vpc.add_security_group(GUARDED, sources=[ip_network(self._lab.primary_address(self._friend))])
        pools: dict[str, dict[str, object]] = {}
        for name, cidr in POOLS.items():
            pools[name] = {"subnets": [vpc.add_subnet(str(cidr)).subnet_id]}
        pools[GUARDED]["securityGroups"] = [self._group]
        for name in self._nodes:
            self._lab.node(name).write_file(NETWORK_FILE, json.dumps({"pools": pools}).encode())

    def problem(self, wish: Wish, address: str) -> str:
        """Say what is wrong about the ENI of the address that a pod was given; "" if nothing is."""
        if not wish.pool:
            return ""
        for eni in self._lab.vpc.enis():
            if address in map(str, eni.secondary_addresses):
                if eni.tags.get(POOL_TAG) != wish.pool:
                    return f"{eni.eni_id} has the tag of pool {eni.tags.get(POOL_TAG)}"
                if (self._group in eni.security_groups) != (wish.pool == GUARDED):
                    return f"{eni.eni_id} of pool {wish.pool} has the groups {list(eni.security_groups)}"
        return ""
