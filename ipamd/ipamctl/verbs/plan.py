"""`ipamctl plan`: show what the pool would request from EC2 now, or with other settings."""

from __future__ import annotations

from typing import Any

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import Columns, filled, table
from ipamd.ipamctl.verb import Answer, Ask, RefusedError, UsageError, Verb, argument
from ipamd.ipamctl.verbs.network_plan import loses_something, read_network, render_network
from ipamd.ipamctl.verbs.status import targets
from ipamd.model.words import MANY, counted, of_limit, pool_size, usable


def render_plan(answer: Answer, layout: Layout) -> str:
    """Write a plan: the answer's `sentence`, the actions in order, and the numbers from which the plan was made; or what a
    file of custom networking would do.
    """
    if answer.get("network"):
        return render_network(answer["network"], layout)
    changed = answer["changed"]
    lines = []
    if answer["pool"]:
        lines = [f"of pool {answer['pool']}", ""]
    if changed:
        lines += [f"under {', '.join(changed)}; nothing is changed", ""]
    lines += [answer["sentence"], ""]
    lines += [f"{number}. {action['text']}" for number, action in enumerate(answer["actions"], 1)] or ["no action"]
    lines += [
        "",
        f"short     of {counted(answer['deficit_count'], 'address')}; {answer['excess_count']} in excess",
        f"pool      {pool_size(answer['total_count'])}: {answer['in_use_count']} in use, {answer['cooling_count']} cooling, "
        f"{usable(answer['free_count'])} free{_unusable(answer)}; {counted(answer['waiting_count'], 'ADD')} waiting",
        f"limits    {answer['instance_type']}: {of_limit(answer['eni_count'], answer['eni_limit'], 'ENI')} attached, "
        f"{counted(answer['slots_per_eni'], 'slot')} each{_address_limit(answer)}",
        f"targets   {targets(answer)}",
    ]
    lines += _auto_lines(answer.get("auto"))
    if answer["in_progress"]:
        lines.append(f"in progress  {answer['in_progress']}")
    lines = [filled(line, layout, indent=10) for line in lines]
    if answer["obstacles"]:
        columns: Columns = {
            "IN THE WAY OF": "{subject}",
            "RETRY IN S": lambda row: row["retry_in_s"] and f"{row['retry_in_s']:.0f}",
            "REASON": "{reason}",
            "NEXT": "{next}",
        }
        lines += ["", table(answer["obstacles"], columns, layout, empty="-")]
    return "\n".join(lines)


def _address_limit(answer: Answer) -> str:
    """Write how many addresses the pool could have at most; "" if an older daemon omits the number."""
    limit = answer["address_limit"]
    return f"; at most {usable(limit)} addresses" if limit else ""


def _auto_lines(auto: Answer | None) -> list[str]:
    """Write the lines about the target of VPC_IPAMD_WARM_TARGET_MODE=auto; none if the answer has no such target."""
    if not auto:
        return []
    sentence = auto["sentence"]
    if not auto["in_force"]:
        sentence = f"not in force; would be {sentence}"
    return [
        f"auto      {sentence}",
        f"demand    {60 * auto['adds_per_s_1m']:.1f} ADDs/min over a minute, {60 * auto['adds_per_s_10m']:.1f} over ten; "
        f"an allocation takes {auto['allocation_s']:.1f} s, a new ENI {auto['creation_s']:.1f} s",
    ]


def _unusable(answer: Answer) -> str:
    """Write the number of addresses that are not in use, cooling or free, so that the counts add up to the total.

    Returns: "" if the number is 0, or for a /80, whose addresses are not counted exactly.
    """
    if answer["total_count"] >= MANY:
        return ""
    count = answer["total_count"] - answer["in_use_count"] - answer["cooling_count"] - answer["free_count"]
    if count <= 0:
        return ""
    return f", {count} quarantined or lost"


def ask_plan(daemon: Ask, arguments: Any) -> Answer:
    """Ask for the plan, with the content of a file of custom networking if one is named. Raises: VerbError."""
    request: Answer = {"settings": arguments.settings, "instance_type": arguments.instance_type, "pool": arguments.pool}
    if not arguments.network:
        return daemon("Plan", **request)
    if arguments.settings or arguments.instance_type or arguments.pool:
        raise UsageError("--network is judged under the settings in force: give it without --set, --instance-type and --pool")
    content, source = read_network(arguments.network)
    answer = daemon("Plan", **request, network_file=content, network_source=source)
    if not answer.get("network"):  # the daemon of another release ignored the field
        raise RefusedError("the daemon is of another release and does not know --network: use its own ipamctl")
    return answer


def _needs_attention(answer: Answer) -> bool:
    return "network" in answer and loses_something(answer["network"])


PLAN = Verb(
    help="what the pool would do now and why, also under other settings; changes nothing",
    about="Shows what the pool would request from EC2 now, and what blocks it; also under other settings. Nothing is changed. "
    "With --network: what a start with another file of custom networking would do to this node's ENIs and pods; "
    "the status is 1 if the file is refused, or takes something away.",
    examples=("ipamctl plan --set WARM_IP_TARGET=10", "ipamctl plan --network network.json"),
    lay_out=render_plan,
    rpc="Plan",
    make=ask_plan,
    needs_attention=_needs_attention,
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
        argument("--network", metavar="FILE", default="", help="judge this file of custom networking; - is standard input"),
        argument("--pool", metavar="NAME", default="", help="plan this pool of the network file; default: the node's own"),
    ),
)
