"""The verbs about the pool: plan, retry, capacity, freeze, thaw."""

from __future__ import annotations

import argparse

from ipamd.ipamctl.verb import LINE_MAX, Answer, Ask, Columns, UsageError, Verb, argument, table
from ipamd.ipamctl.verbs.present import targets
from ipamd.model.words import counted, fitting, of_limit, pool_size, usable


def render_plan(answer: Answer) -> str:
    """Write the sentence first, then the actions in order, then what the plan was made from."""
    changed = answer["changed"]
    lines = [f"under {', '.join(changed)}; nothing is changed", ""] if changed else []
    lines += [answer["sentence"], ""]
    lines += [f"{number}. {action['text']}" for number, action in enumerate(answer["actions"], 1)] or ["no action"]
    lines += [
        "",
        f"short     of {counted(answer['deficit_count'], 'address')}; {answer['excess_count']} in excess",
        f"pool      {pool_size(answer['total_count'])}: {answer['in_use_count']} in use, {answer['cooling_count']} cooling, "
        f"{usable(answer['free_count'])} free; {counted(answer['waiting_count'], 'ADD')} waiting",
        f"limits    {answer['instance_type']}: {of_limit(answer['eni_count'], answer['eni_limit'], 'ENI')} attached, "
        f"{counted(answer['slots_per_eni'], 'slot')} each",
        f"targets   {targets(answer)}",
    ]
    if auto := answer.get("auto"):
        lines += [
            f"auto      {'' if auto['in_force'] else 'not in force; would be '}{auto['sentence']}",
            f"demand    {60 * auto['minute_rate']:.1f} ADDs/min over a minute, {60 * auto['ten_minute_rate']:.1f} over ten; "
            f"an allocation takes {auto['allocation_s']:.1f} s, a new ENI {auto['creation_s']:.1f} s",
        ]
    lines += [f"under way {answer['under_way']}"] if answer["under_way"] else []
    if answer["obstacles"]:
        columns: Columns = {
            "IN THE WAY OF": "{subject}",
            "LEFT S": lambda row: f"{row['left_s']:.0f}" if row["left_s"] else "-",
            "REASON": "{reason}",
            "NEXT": "{next}",
        }
        lines += ["", table(answer["obstacles"], columns, empty="-")]
    return "\n".join(lines)


PLAN = Verb(
    help="what the pool would do now and why, also under other settings; changes nothing",
    render=render_plan,
    rpc="Plan",
    fields=("settings", "instance_type"),
    arguments=(
        argument(
            "--set",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            dest="settings",
            help="plan under this setting (repeatable)",
        ),
        argument("--instance-type", metavar="TYPE", default="", help="plan with the limits of this instance type"),
    ),
)


# `ipamctl retry`: what EC2 refused is asked for now, after IAM, a subnet or a quota was mended.


def render_retry(answer: Answer) -> str:
    """Write what was put off, and for how long it would have been."""
    lines = [
        f"asked now  {one['subject']}: {fitting(one['reason'], LINE_MAX)} ({one['left_s']:.0f} s were left)"
        for one in answer["ended"]
    ]
    none = "nothing was put off: EC2 is asked as usual; while it throttles, only for what pods wait for"
    return "\n".join([*(lines or [none]), "next       `ipamctl status` shows what EC2 says"])


RETRY = Verb(help="ask EC2 now for what it refused: after IAM, a subnet or a quota was mended", render=render_retry, rpc="Retry")


# `ipamctl capacity`: how many pods this node, or an instance type, can hold in each mode, and what limits it.


SOURCES = {"ec2": "EC2's answer", "table": "the built-in table", "default": "a safe default, because the type is not known"}

NOTE = "MAX PODS counts two pods on the host's network besides, as EKS does. EKS caps it: 110 below 30 vCPUs, 250 above."


def render_capacity(answer: Answer) -> str:
    """Write one row per mode, an asterisk at the one in force."""
    vcpus = f", {answer['vcpu_count']} vCPUs" if answer["vcpu_count"] else ""
    source = SOURCES.get(answer["limits_source"], answer["limits_source"])
    columns: Columns = {
        "": lambda mode: "*" if mode["in_force"] else "",
        "MODE": "{mode}",
        "PODS WITH AN ADDRESS": "{address_count}",
        "MAX PODS": "{max_pods}",
        "WITHIN EKS'S CAP": lambda mode: mode["recommended"] or "-",
        "FORMULA": "{formula}",
        "LIMITED BY": "{limited_by}",
    }
    branches = answer.get("branch_count", -1)  # a daemon of an earlier release says none
    told = "" if branches < 0 else f"; {counted(branches, 'branch ENI')}" if branches else "; no trunk ENI, so no branch ENIs"
    head = f"{answer['instance_type']}{vcpus}; limits from {source}{told}"
    return "\n".join([head, "", table(answer["modes"], columns), "", NOTE])


def _ask_capacity(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    if not arguments.instance_type:
        return daemon("Capacity")
    # Only here: the built-in table and protobuf cost every other verb time.
    from ipamd.answers import capacity_reply
    from ipamd.cloud.limits import from_table
    from ipamd.ipamctl.client import plain
    from ipamd.model.placement import NodeBounds, capacities
    from ipamd.settings import load

    limits = from_table(arguments.instance_type)
    if limits is None:
        message = f"instance type {arguments.instance_type!r} is not in the built-in table; check its spelling, as in m5.large"
        raise UsageError(message)
    settings = load()
    pool, network = settings.pool, settings.network
    egress = network.egress.egress if network.egress else None
    bounds = NodeBounds(max_eni=pool.max_eni, max_pods=pool.max_pods, vcpu_count=max(arguments.vcpus, 0), egress=egress)
    modes = capacities(limits, bounds, prefixes=pool.prefix_delegation, primary_carries_pods=True, family=network.family)
    return plain(capacity_reply(limits, modes, vcpu_count=bounds.vcpu_count))


CAPACITY = Verb(
    help="how many pods this node, or an instance type, can hold in each mode",
    render=render_capacity,
    rpc="Capacity",
    make=_ask_capacity,
    arguments=(
        argument("--instance-type", metavar="TYPE", default="", help="of this type; the daemon is not asked"),
        argument("--vcpus", metavar="N", type=int, default=0, help="its vCPUs, for EKS's cap"),
    ),
)


# `ipamctl freeze`: make no ENI and release nothing until `ipamctl thaw` or the next boot.


def causes(answer: Answer) -> list[str]:
    """One line per cause that is in force."""
    return [f"frozen  {f['cause']}: {f['reason']} (since {f['since']})" for f in answer["freezings"]]


FREEZE = Verb(
    help="make no ENI and release nothing, until thaw or the next boot",
    render=lambda answer: "\n".join([*causes(answer), *filter(None, [answer["problem"]])]),
    rpc="Freeze",
    fields=("reason",),
    arguments=(argument("--reason", default="", metavar="TEXT", help="for whoever reads `ipamctl status`"),),
    needs_attention=lambda answer: answer["problem"],
)


# `ipamctl thaw`: end what `ipamctl freeze` began. Other causes stay in force: each ends alone.


def render_thaw(answer: Answer) -> str:
    """Write what did not work, and what freezes the pool still."""
    left = causes(answer)
    words = ["still frozen by what ends by itself:", *left] if left else ["thawed"]
    return "\n".join([answer["problem"], *left] if answer["problem"] else words)


THAW = Verb(
    help="end what `ipamctl freeze` began", render=render_thaw, rpc="Thaw", needs_attention=lambda answer: answer["problem"]
)
