"""`ipamctl capacity`: how many pods this node, or an instance type, can hold in each mode, and what limits it."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.legs.texts import trunk_capacity
from ipamd.ipamctl.tables import Columns, filled, table
from ipamd.ipamctl.verb import Answer, Ask, UsageError, Verb, argument

SOURCES = {"ec2": "EC2's answer", "table": "the built-in table", "default": "a safe default, because the type is not known"}

NOTE = "MAX PODS includes two pods on the host's network, as in EKS. EKS limits it to 110 with fewer than 30 vCPUs, else to 250."


POOL_COLUMNS: Columns = {
    "POOL": "{name}",
    "ENIS": "{eni_count}",
    "ENIS AT MOST": "{eni_limit}",
    "ADDRESSES": "{total_count}",
    "ADDRESSES AT MOST": "{address_limit}",
    "BOUND": lambda pool: pool["share"] or "-",
}
"""Columns of the table of pools that share the node. The limits of each pool include all places for ENIs that are free now, so their
sum can exceed the limits of the node."""


def render_capacity(answer: Answer, layout: Layout) -> str:
    """Write one row per mode, with an asterisk at the mode in force."""
    vcpus = ""
    if answer["vcpu_count"]:
        vcpus = f", {answer['vcpu_count']} vCPUs"
    source = SOURCES.get(answer["limits_source"], answer["limits_source"])
    columns: Columns = {
        "": lambda mode: "*" * bool(mode["in_force"]),
        "MODE": "{mode}",
        "PODS WITH AN ADDRESS": "{address_count}",
        "MAX PODS": "{max_pods}",
        "WITHIN EKS'S CAP": lambda mode: mode["recommended_max_pods"] or "-",
        "FORMULA": "{formula}",
        "LIMITED BY": "{limited_by}",
    }
    head = f"{answer['instance_type']}{vcpus}; limits from {source}{trunk_capacity(answer)}"
    lines = [filled(head, layout), "", table(answer["modes"], columns, layout)]
    if answer["pools"]:
        lines += ["", table(answer["pools"], POOL_COLUMNS, layout)]
    return "\n".join([*lines, "", filled(NOTE, layout)])


def _ask_capacity(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    if not arguments.instance_type:
        return daemon("Capacity")
    # Imported late: the built-in table and protobuf cost time.
    from ipamd.answers import capacity_reply
    from ipamd.cloud.limits import from_table
    from ipamd.ipamctl.client import plain
    from ipamd.model.capacity import NodeBounds, capacities
    from ipamd.settings import load

    limits = from_table(arguments.instance_type)
    if limits is None:
        message = f"instance type {arguments.instance_type!r} is not in the built-in table; check its spelling, as in m5.large"
        raise UsageError(message)
    settings = load()
    pool, network = settings.pool, settings.network
    local_range = None
    if network.extra_family:
        local_range = network.extra_family.local_range
    bounds = NodeBounds(max_eni=pool.max_eni, max_pods=pool.max_pods, vcpu_count=max(arguments.vcpus, 0), local_range=local_range)
    modes = capacities(limits, bounds, prefixes=pool.prefix_delegation, primary_carries_pods=True, family=network.family)
    return plain(capacity_reply(limits, modes, vcpu_count=bounds.vcpu_count))


CAPACITY = Verb(
    help="how many pods this node, or an instance type, can hold in each mode",
    about="Shows how many pods fit on this node or on an instance type, by mode, what limits them, and the maxPods for kubelet.",
    examples=("ipamctl capacity --instance-type m5.large",),
    lay_out=render_capacity,
    rpc="Capacity",
    make=_ask_capacity,
    arguments=(
        argument("--instance-type", metavar="TYPE", default="", help="count for this instance type, without the daemon"),
        argument("--vcpus", metavar="N", type=int, default=0, help="vCPUs of that type, for EKS's limit on pods"),
    ),
)
