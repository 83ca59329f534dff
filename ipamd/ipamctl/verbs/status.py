"""`ipamctl status`: print the verdict, the conditions, the pool and the start of the daemon."""

from __future__ import annotations

import re
from collections.abc import Sequence

from ipamd.ipamctl.layout import Colour, Layout
from ipamd.ipamctl.legs.texts import uplink_lines
from ipamd.ipamctl.tables import LINE_MAX, STATES, Columns, filled, table
from ipamd.ipamctl.verb import Answer, Verb
from ipamd.model.words import CLOUD_NOT_ASKED, counted, fitting, of_limit, pool_size, usable

DEGRADED = "degraded"
INDENT = 9
"""Column of the screen at which the text of a line begins, after its topic."""

SEE_ABOVE = "see above"
_NEXT_TRY = re.compile(r" \(next try [^)]*\)")

_STAGES: Columns = {
    "STAGE": "{name}",
    "STATE": "{state}",
    "MS": lambda stage: f"{1000 * stage['elapsed_s']:.1f}",
    "DETAIL": "{detail}",
}

REPEATED_MIN = 30
"""A text of at least this many characters is not printed twice. Ours: sentences are longer, single words are shorter."""


def render_status(answer: Answer, layout: Layout) -> str:
    """Write the verdict, then each condition with what to do, then one topic per line.

    The start-up stages are shown until the node is ready, and on a wide screen.
    """
    lines = [layout.paint(filled(answer["verdict"], layout), _colour(answer)), ""]
    for line in _conditions(answer):
        if line.startswith(DEGRADED):
            line = layout.paint(DEGRADED, Colour.NOTICE) + line.removeprefix(DEGRADED)
        lines.append(line)
    lines = [filled(line, layout, indent=INDENT) for line in lines]
    printed = [condition["text"] for condition in answer["conditions"]]
    if layout.is_wide or not answer["ready"]:
        stages = [stage | {"detail": _without_repetition(stage["detail"], printed)} for stage in answer["stages"]]
        lines += [table(stages, _STAGES, layout), ""]
    lines += [filled(_without_repetition(line, printed), layout, indent=INDENT) for line in _topics(answer)]
    return "\n".join(lines)


def _colour(answer: Answer) -> Colour:
    if not answer["ready"] or answer["cut_off_count"]:
        return Colour.BAD
    if answer["conditions"]:
        return Colour.NOTICE
    return Colour.GOOD


def targets(answer: Answer) -> str:
    """Write each target that is defined, "none" if there is none, and whether the pool grows by prefixes.

    The number of VPC_IPAMD_MAX_PODS is mostly that of the instance type, which is larger than the number of addresses.
    """
    notes = {"VPC_IPAMD_MAX_PODS": " (a cap; the type's number counts host-network pods too)"}
    defined = [target for target in answer["targets"] if target["defined"]]
    text = ", ".join(f"{target['name']}={target['value']}{notes.get(target['name'], '')}" for target in defined) or "none"
    if answer["prefix_mode"]:
        text += "; prefix mode: each slot holds a /28 of 16 addresses"
    return text


def address_states(pool: Answer) -> str:
    """Write how many addresses of the pool are in each state."""
    return ", ".join(f"{usable(pool[f'{state}_count'])} {state}" for state in STATES)


CONDITION_MAX = 2400
"""The largest number of characters of a condition. Ours: the denials of two calls to EC2, each with role, resource and advice. A
cut in the middle would hide the second action that is to be allowed."""


def _conditions(answer: Answer) -> list[str]:
    """Write each condition, and below it its start, the next step and the page about it."""
    lines = []
    for condition in answer["conditions"]:
        lines.append(f"{DEGRADED} {fitting(condition['text'], CONDITION_MAX)}")
        since = ""
        if condition["since"]:
            since = f"since {condition['since']}; "
        if condition["refusals"] and condition["refused_ago_s"] > 0:
            since += f"EC2 refused last {condition['refused_ago_s']:.0f} s ago; "
        lines.append(f"         {since}{fitting(condition['next'], CONDITION_MAX)}; see {condition['page']}")
    if lines:
        lines.append("")
    return lines


def _without_repetition(line: str, printed: Sequence[str]) -> str:
    """Replace a condition's sentence, if the line repeats it, by a pointer to the condition above.

    The part of the line before the sentence stays, and so does the time of the next try.
    """
    beginnings = []
    for text in printed:
        for core in _cores(text):
            if core in line:
                beginnings.append(line.find(core))
    if beginnings:
        next_try = _NEXT_TRY.search(line)
        head = line[: min(beginnings)].rstrip(" :;")
        line = SEE_ABOVE
        if head:
            line = f"{head}: {SEE_ABOVE}"
        if next_try:
            line += next_try[0]
    return fitting(line, LINE_MAX)


def _cores(text: str) -> list[str]:
    """Return the parts of a condition's text that other lines may repeat."""
    parts = [text.partition(": ")[2].partition("; ")[0], *re.split(r"[:;] | \(next try", text)]
    return [part for part in parts if len(part) >= REPEATED_MIN]


def _topics(answer: Answer) -> list[str]:
    """Write the lines below the conditions, one topic per line."""
    readiness = "not ready"
    if answer["ready"]:
        readiness = "ready"
    return [
        f"vpc-ipamd {answer['version']} on {answer['instance_id'] or 'an unknown instance'}: {answer['phase']}, {readiness}, "
        f"up {answer['uptime_s']:.0f} s",
        "",
        *_pool_lines(answer["pool"]),
        *pod_pool_lines(answer["pod_pools"]),
        f"runtime  {_runtime(answer['runtime'])}",
        f"ec2      {_cloud(answer['cloud'])}",
        _pending(answer),
        *_feature_lines(answer),
        *(_busy(operation) for operation in answer["busy"]),
        *_freeze_lines(answer),
        *_subnet_lines(answer),
        *(f"beside   {companion['name']}: {companion['detail']}" for companion in answer["companions"]),
        *(f"fact     {fact['text']}" for fact in answer["facts"]),
        *(f"link     {sentence}" for sentence in answer["confinement"]["foreign_links"]),
        f"last error  {_last_error(answer.get('last_error'))}",
    ]


def _pending(answer: Answer) -> str:
    veths = counted(answer["veths_pending_deletion_count"], "veth")
    return f"pending  {counted(answer['spooled_delete_count'], 'spooled DEL')}, {veths} to delete"


def _pool_lines(pool: Answer) -> list[str]:
    lines = [f"pool     {_pool(pool)}", f"targets  {targets(pool)}"]
    if pool["auto"]:
        lines.append(f"auto     {pool['auto']}")
    lines.append(f"loop     {pool['last_cycle']}")
    if pool["excess_kept_reason"]:
        lines.append(f"excess   {counted(int(pool['excess_count']), 'address')}; {pool['excess_kept_reason']}")
    return lines


def pod_pool_lines(pools: Sequence[Answer]) -> list[str]:
    """Write a line for each pool, the node's own pool first; none if the network file names no pools."""
    return [_pod_pool_line(pool) for pool in pools]


def _pod_pool_line(pool: Answer) -> str:
    counts = f"{pool['assigned_count']} assigned, {pool['cooling_count']} cooling, {pool['free_count']} free"
    line = (
        f"of {pool['name']}  {pool_size(pool['total_count'])}: {counts}; {of_limit(pool['eni_count'], pool['eni_limit'], 'ENI')}"
    )
    if pool["share"]:
        line += f" ({pool['share']})"
    if pool["waiting_count"]:
        line += f"; {counted(pool['waiting_count'], 'ADD')} waiting"
    return f"{line}; {pool['last_cycle']}"


def _cloud(cloud: Answer) -> str:
    if cloud["detail"] == CLOUD_NOT_ASKED:
        return CLOUD_NOT_ASKED
    if not cloud["reachable"] and not cloud["call_count"]:
        return f"not called yet; {cloud['detail']}"
    return f"{_reach(cloud)}, {counted(int(cloud['call_count']), 'call')}; {cloud['detail']}"


def _feature_lines(answer: Answer) -> list[str]:
    """Write the lines about settings, policy, branch ENIs and the source check; a feature that is off has no line."""
    lines = [f"settings {_settings(answer['settings'])}"]
    lines += [f"differs  {sentence}" for sentence in answer["settings"]["differences"]]
    if answer["policy_mode"] != "none":
        names = counted(answer["pending_policy_cleanup_count"], "name")
        lines.append(
            f"policy   {answer['policy_mode']}: the agent is asked about each new pod; it may still remember {names} of deleted pods"
        )
    return [*lines, *uplink_lines(answer), f"source   {_confinement(answer['confinement'])}"]


def _busy(operation: Answer) -> str:
    sandbox = f"{operation['container_id']}/{operation['ifname']}"
    line = f"busy     {operation['operation']} on {sandbox} for {operation['age_s']:.1f} s"
    line += f", waiting behind: {operation['waiting_count']}"
    if operation["caller_left"]:
        line += "; its caller has left"
    return line


def _freeze_lines(answer: Answer) -> list[str]:
    """Write a line for each cause of a freeze."""
    return [f"frozen   {freezing['cause']}: {freezing['reason']} (since {freezing['since']})" for freezing in answer["freezes"]]


def _subnet_lines(answer: Answer) -> list[str]:
    lines = []
    for subnet in answer["subnets"]:
        use = "used for new ENIs"
        if subnet["unusable_reason"]:
            use = f"not used: {subnet['unusable_reason']}"
        line = f"subnet   {subnet['subnet_id']} with {counted(int(subnet['free_count']), 'free address')}, {use}"
        if subnet["answer_age_s"]:  # older daemons omit the age
            line += f" (EC2's answer is {subnet['answer_age_s']:.0f} s old)"
        lines.append(line)
    return lines


def _last_error(last: Answer | None) -> str:
    if not last:
        return "none since start"
    line = f"{last['at']} {last['subject']}: {last['message']}"
    if last["resolved_at"]:
        line = f"resolved at {last['resolved_at']}: {line}"
    return line


def _reach(answer: Answer) -> str:
    if answer["reachable"]:
        return "reachable"
    return "not reachable"


def _pool(pool: Answer) -> str:
    states = address_states(pool)
    if pool["lost_count"]:
        states += f", {pool['lost_count']} lost"
    enis = of_limit(pool["eni_count"], pool["eni_limit"], "ENI")
    return f"{pool_size(pool['total_count'])}: {states}; {enis} with {counted(pool['slots_per_eni'], 'slot')} each"


def _confinement(confinement: Answer) -> str:
    state = "not checked, or others are allowed too (VPC_IPAMD_EXTRA_SOURCE_CIDRS)"
    if confinement["source_check_enforced"]:
        state = "checked for every packet of a sandbox"
    dropped = ", ".join(f"{packets['count']} {packets['reason']}" for packets in confinement["dropped"])
    return f"{state}; dropped: {dropped or 'not counted yet'}"


def _settings(settings: Answer) -> str:
    line = f"generation {settings['generation']} since the daemon's start, of environment"
    if settings["file"]:
        line += f" and {settings['file']}"
    if not settings["valid"]:
        line += ", kept because the settings that were read last are wrong"
    if settings["awaiting_restart"]:
        line += f"; needs a restart: {', '.join(settings['awaiting_restart'])}"
    return line


def _runtime(runtime: Answer) -> str:
    if not runtime["socket"]:
        return str(runtime["detail"])
    events = "without events"
    if runtime["events"]:
        events = "with events"
    sandboxes = counted(runtime["sandbox_count"], "sandbox")
    listed = "not listed yet"
    if runtime["list_age_s"] >= 0:
        listed = f"listed {runtime['list_age_s']:.0f} s ago: {sandboxes} then"
    line = f"{runtime['name']} {runtime['version']} at {runtime['socket']}: {_reach(runtime)}, {events}, {listed}"
    if runtime["detail"] not in (sandboxes, listed):
        line += f"; {runtime['detail']}"
    return line


STATUS = Verb(
    help="phase, stages with timings, pool, runtime, last error",
    about="Begin here. The first line shows whether pods can run on this node, and if not, why and what to do. Conditions, pool, "
    "runtime and last error follow.",
    examples=("ipamctl status",),
    lay_out=render_status,
    rpc="GetStatus",
    needs_attention=lambda answer: not answer["ready"],
)
