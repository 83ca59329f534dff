"""`ipamctl capacity`: how many pods this node, or an instance type, can hold in each mode, and what limits it."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import EXIT_USAGE, Answer, Ask, Verb, VerbError, table

SOURCES = {"ec2": "EC2's answer", "table": "the built-in table", "default": "a safe default, because the type is not known"}

NOTE = "MAX PODS counts two pods on the host's network besides, as EKS does. EKS caps it: 110 below 30 vCPUs, 250 above."


def render(answer: Answer) -> str:
    """Write one row per mode, an asterisk at the one in force."""
    vcpus = f", {answer['vcpu_count']} vCPUs" if answer["vcpu_count"] else ""
    source = SOURCES.get(answer["limits_source"], answer["limits_source"])
    rows = [
        (
            "*" if mode["in_force"] else "",
            mode["mode"],
            mode["address_count"],
            mode["max_pods"],
            mode["recommended"] or "-",
            mode["formula"],
            mode["limited_by"],
        )
        for mode in answer["modes"]
    ]
    header = ("", "MODE", "PODS WITH AN ADDRESS", "MAX PODS", "WITHIN EKS'S CAP", "FORMULA", "LIMITED BY")
    return "\n".join([f"{answer['instance_type']}{vcpus}; limits from {source}", "", table(header, rows), "", NOTE])


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--instance-type", metavar="TYPE", default="", help="of this type; the daemon is not asked")
    parser.add_argument("--vcpus", metavar="N", type=int, default=0, help="its vCPUs, for EKS's cap")


def _ask(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    if not arguments.instance_type:
        return daemon("Capacity")
    # Only here: the built-in table and protobuf cost every other verb time.
    from ipamd.answers import capacity_reply
    from ipamd.cloud.limits import from_table
    from ipamd.ipamctl.client import plain
    from ipamd.model.capacity import NodeBounds, capacities
    from ipamd.model.errors import SettingsError
    from ipamd.settings import load

    limits = from_table(arguments.instance_type)
    if limits is None:
        message = f"instance type {arguments.instance_type!r} is not in the built-in table; check its spelling, as in m5.large"
        raise VerbError(message, exit_status=EXIT_USAGE)
    try:
        pool = load().pool
    except SettingsError as error:
        raise VerbError(str(error), exit_status=EXIT_USAGE) from error
    bounds = NodeBounds(max_eni=pool.max_eni, max_pods=pool.max_pods, vcpu_count=max(arguments.vcpus, 0))
    modes = capacities(limits, bounds, prefixes=pool.prefix_delegation, primary_carries_pods=True)
    return plain(capacity_reply(limits, modes, vcpu_count=bounds.vcpu_count))


VERB = Verb(
    help="how many pods this node, or an instance type, can hold in each mode",
    ask=_ask,
    render=render,
    arguments=_arguments,
    position=7,
)
