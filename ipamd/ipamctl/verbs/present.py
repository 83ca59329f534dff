"""The verbs about the present: status, enis, attachments, audit, watch."""

from __future__ import annotations

import argparse
import re
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from ipamd.ipamctl.verb import CELL_MAX, LINE_MAX, STATES, Answer, Ask, AwayError, Columns, Verb, argument, table
from ipamd.model.words import CLOUD_NOT_ASKED, counted, fitting, of_limit, pool_size, rfc3339, usable

REPEATED_MIN = 30
"""Characters of a text that is not told twice on a screen. Ours: a sentence, not a word."""


def render_status(answer: Answer) -> str:
    """Write the verdict, then each condition with what to do, then one topic per line, and the start-up stages as a table."""
    lines = [answer["verdict"], ""] if answer["verdict"] else []  # a daemon of an earlier release says none
    lines += _conditions(answer)
    told = [one["text"] for one in answer.get("conditions", ())]
    rest = [_once(line, told) for line in _topics(answer)]
    return "\n".join([*lines, *rest])


def _conditions(answer: Answer) -> list[str]:
    """Each condition once, with since when, what to do and its page; of a daemon of an earlier release the sentence alone."""
    lines = []
    for one in answer.get("conditions") or [{"text": text} for text in answer["lacks"]]:
        lines.append(f"lacks    {fitting(one['text'], LINE_MAX)}")
        if "next" in one:
            since = f"since {one['since']}; " if one["since"] else ""
            lines.append(f"         {since}{fitting(one['next'], LINE_MAX)}; see {one['page']}")
    return [*lines, ""] if lines else []


def _once(line: str, told: Sequence[str]) -> str:
    """Leave out of a line what a condition has told already."""
    for text in told:
        for core in (text.partition(": ")[2].partition("; ")[0], *re.split(r"[:;] | \(next try", text)):
            if len(core) >= REPEATED_MIN:
                line = line.replace(core, "(told above)")
    line = re.sub(r"\(told above\)(; \(told above\))+", "(told above)", line)
    return line if "\n" in line else fitting(line, LINE_MAX)


def _topics(answer: Answer) -> list[str]:
    """One topic per line, and the start-up stages."""
    pool, cloud = answer["pool"], answer["cloud"]
    readiness = "ready" if answer["ready"] else "not ready"
    reach = f"{_reach(cloud)}, {counted(int(cloud['call_count']), 'call')}; {cloud['detail']}"
    stages = table(answer["stages"], {"STAGE": "{name}", "STATE": "{state}", "MS": "{elapsed_ms:.1f}", "DETAIL": "{detail}"})
    lines = [
        f"vpc-ipamd {answer['version']} on {answer['instance_id'] or 'an unknown instance'}: {answer['phase']}, {readiness}, "
        f"up {answer['uptime_s']:.0f} s",
        "",
        *stages.splitlines(),
        "",
        f"pool     {_pool(pool)}",
        f"targets  {targets(pool)}",
        *([f"auto     {pool['auto']}"] if pool.get("auto") else []),
        f"loop     {pool['last_cycle']}",
        *([f"excess   {counted(int(pool['excess_count']), 'address')}; {pool['kept']}"] if pool.get("kept") else []),
        f"runtime  {_runtime(answer['runtime'])}",
        f"ec2      {CLOUD_NOT_ASKED if cloud['detail'] == CLOUD_NOT_ASKED else reach}",
        f"pending  {counted(answer['spooled_count'], 'spooled DEL')}, {counted(answer['dying_count'], 'dying link')}",
    ]
    if "settings" in answer:  # as below
        lines.append(f"settings {_settings(answer['settings'])}")
    if answer.get("policy_mode", "none") != "none":  # as below
        owed = f"{counted(answer['owed_count'], 'name')} of pods that are gone it may know still"
        lines.append(f"policy   {answer['policy_mode']}: the agent is asked for each new pod; {owed}")
    if (branches := answer.get("branches") or {}).get("mode"):  # as below
        lines.append(f"branches {_branches(branches)}")
    if "confinement" in answer:  # a daemon of an earlier release says none
        lines.append(f"source   {_confinement(answer['confinement'])}")
    lines += [
        f"busy     {b['operation']} on {b['container_id']}/{b['ifname']} for {b['age_s']:.1f} s, waiting behind: {b['waiting_count']}"
        + ("; its caller has left" if b.get("caller_left") else "")  # a daemon of an earlier release does not say
        for b in answer["busy"]
    ]
    lines += [
        f"frozen   {f['cause']}: {f['reason']} (since {f['since']})" for f in answer.get("freezings", ())
    ]  # a daemon of an earlier release names no causes
    for subnet in answer.get("subnets", ()):
        use = f"not used: {subnet['why_not']}" if subnet["why_not"] else "used for new ENIs"
        lines.append(f"subnet   {subnet['subnet_id']} with {counted(int(subnet['free_count']), 'free address')}, {use}")
    lines += [f"link     {sentence}" for sentence in answer.get("confinement", {}).get("foreign_links", ())]
    return [*lines, f"last error  {_last_error(answer.get('last_error'))}"]


def _last_error(last: Answer | None) -> str:
    if not last:
        return "none since start"
    resolved = f"resolved at {last['resolved_at']}: " if last.get("resolved_at") else ""
    return f"{resolved}{last['at']} {last['what']}: {last['message']}"


def targets(answer: Answer) -> str:
    """Write the targets that have an effect."""
    return ", ".join(f"{one['name']}={one['value']}" for one in answer["targets"] if one["defined"]) or "none"


def _reach(answer: Answer) -> str:
    return "reachable" if answer["reachable"] else "not reachable"


def _pool(pool: Answer) -> str:
    states = _states(pool)
    states += f", {pool['lost_count']} lost" if pool["lost_count"] else ""
    enis = of_limit(pool["eni_count"], pool["eni_limit"], "ENI")
    return f"{pool_size(pool['total_count'])}: {states}; {enis} with {counted(pool['slots_per_eni'], 'slot')} each"


def _states(pool: Answer) -> str:
    return ", ".join(f"{usable(pool[f'{state}_count'])} {state}" for state in STATES)


def _branches(branches: Answer) -> str:
    most = f" of {branches['branch_count']}" if branches["branch_count"] >= 0 else ""
    trunk = f"on trunk {branches['trunk']}" if branches["trunk"] else "no trunk ENI is attached"
    waiting = f"; {counted(branches['waiting_count'], 'ADD')} waiting for the control plane" if branches["waiting_count"] else ""
    contradicted = f"; EC2 contradicts {branches['contradicted_count']}" if branches["contradicted_count"] else ""
    return f"{branches['mode']}: {branches['count']}{most}, {trunk}{waiting}{contradicted}"


def _confinement(confinement: Answer) -> str:
    checked = "checked for every packet of a sandbox"
    state = checked if confinement["source_checked"] else "not checked, or not only its own is allowed"
    dropped = ", ".join(f"{each['count']} {each['reason']}" for each in confinement["dropped"])
    return f"{state}; dropped: {dropped or 'not counted yet'}"


def _settings(settings: Answer) -> str:
    source = f"environment and {settings['file']}" if settings["file"] else "environment"
    kept = "" if settings["valid"] else ", kept because what was read last is wrong"
    restart = f"; needs a restart: {', '.join(settings['needs_restart'])}" if settings["needs_restart"] else ""
    return f"generation {settings['generation']} of {source}{kept}{restart}"


def _runtime(runtime: Answer) -> str:
    if not runtime.get("socket"):
        return str(runtime.get("detail", ""))
    events = "with events" if runtime["events"] else "without events"
    listed, seen = "not listed yet", counted(runtime["sandbox_count"], "sandbox")
    if runtime["list_age_s"] >= 0:
        listed = f"listed {runtime['list_age_s']:.0f} s ago: {seen} then"
    more = "" if runtime["detail"] in (seen, listed) else f"; {runtime['detail']}"
    return f"{runtime['name']} {runtime['version']} at {runtime['socket']}: {_reach(runtime)}, {events}, {listed}{more}"


STATUS = Verb(
    help="phase, stages with timings, pool, runtime, last error",
    render=render_status,
    rpc="GetStatus",
    needs_attention=lambda answer: not answer["ready"],
)


# `ipamctl enis`: network interfaces and their addresses.


def render_enis(answer: Answer) -> str:
    """Write one row per ENI, its addresses counted by state, then a line per frozen or excluded ENI; LOST only if an address is."""
    from ipamd.model.eni import MAIN_TABLE  # here, because importing it costs every other verb 20 ms

    enis = answer["enis"]
    states = (*STATES, "lost") if any(eni["lost_count"] for eni in enis) else STATES
    text = table(
        enis,
        {
            "ENI": "{eni_id}",
            "DEVICE": "{device_index}",
            "STATE": "{state}",
            "PRIMARY ADDRESS": "{primary_address}",
            "SUBNET": "{subnet_id} {subnet_cidr}",
            "TABLE": lambda eni: "main" if eni["route_table"] == MAIN_TABLE else eni["route_table"],
            "HOST": lambda eni: "frozen" if eni["frozen"] else "ready" if eni["host_ready"] else "not ready",
            **{state.upper(): f"{{{state}_count}}" for state in states},
            "FREE": lambda eni: usable(eni["free_count"]),
        },
    )
    frozen = [f"{eni['eni_id']} is frozen: {eni['frozen']}" for eni in enis if eni["frozen"]]
    excluded = [f"{eni['eni_id']} gets no new sandbox: {eni['excluded']}" for eni in enis if eni.get("excluded")]
    return "\n".join([text, *frozen, *excluded])


ENIS = Verb(help="network interfaces and their addresses", render=render_enis, rpc="ListEnis")


# `ipamctl attachments`: which sandbox has which address.


def render_attachments(answer: Answer) -> str:
    """Write one row per attachment, oldest first; a column tells the lost addresses if there is one."""
    rows = answer["attachments"]
    lost = {"LOST SINCE": "{lost_since}"} if any(row["lost_since"] for row in rows) else {}
    vlans: Columns = {"VLAN": lambda row: row.get("vlan") or "-"} if any(row.get("vlan") for row in rows) else {}  # as below
    egress = {"EGRESS": "{other_address}"} if any(row.get("other_address") for row in rows) else {}  # as below
    columns = {
        "ADDRESS": "{address}",
        **egress,
        "SANDBOX": "{container_id}",
        "IFNAME": "{ifname}",
        "NAME": "{sandbox_name}",
        "ENI": "{eni_id}",
        **vlans,
        "HOST VETH": "{host_veth}",
        "SINCE": "{created_at}",
        "ORIGIN": "{origin}",
    }
    return table(rows, columns | lost, empty="-")


ATTACHMENTS = Verb(help="which sandbox has which address", render=render_attachments, rpc="ListAttachments")


# `ipamctl audit`: compare datastore, kernel, runtime and EC2.


def render_audit(answer: Answer) -> str:
    """Write silent sources first, then one row per finding, worst first."""
    lines = [f"silent: {sentence}" for sentence in answer["silent"]]
    if not answer["findings"]:
        agree = "the sources that answered agree" if answer["silent"] else "the sources agree"
        return "\n".join([*lines, f"{counted(answer['address_count'], 'address')} compared: {agree}"])
    columns = {"SEVERITY": "{severity}", "SUBJECT": "{subject}", "WHAT DIFFERS": "{what}", "NEXT": "{next}"}
    return "\n".join([*lines, table(answer["findings"], columns)])


AUDIT = Verb(
    help="compare datastore, kernel, EC2 and runtime; exit 1 on a violation",
    render=render_audit,
    rpc="Audit",
    fields=("skip_ec2",),
    arguments=(argument("--skip-ec2", action="store_true", help="make no EC2 call"),),
    needs_attention=lambda answer: any(finding["severity"] == "violation" for finding in answer["findings"]),
)


# `ipamctl watch`: changes of the verdict, the pool and the attachments, a line each, until Ctrl-C.


INTERVAL_S = 2.0
INTERVAL_MIN_S = 0.2
"""Ours: two questions cost the daemon a millisecond or two."""

INTERVAL_MAX_S = 3600.0


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no number of seconds from {INTERVAL_MIN_S} to {INTERVAL_MAX_S:.0f}")
    return seconds


def _watch(daemon: Ask, arguments: argparse.Namespace) -> Iterator[Answer]:
    before: dict[str, dict[str, str]] = {}
    looks = 0
    while True:
        now = _look(daemon)
        at = rfc3339(datetime.now(UTC))
        for what, texts in now.items():
            known = before.get(what, {})
            changes = [
                f"+ {text}" if name and name not in known else text for name, text in texts.items() if known.get(name) != text
            ]
            gone = [f"- {text}" for name, text in known.items() if name not in texts]
            yield from ({"at": at, "what": what, "text": text} for text in (*changes, *gone))
        # While the daemon is away nothing is known of the rest: what was there before is compared once it is back.
        before |= now
        looks += 1
        if looks == arguments.count:
            return
        time.sleep(arguments.interval)


def _look(daemon: Ask) -> dict[str, dict[str, str]]:
    """What there is now, by kind: name -> text."""
    try:
        status, rows = daemon("GetStatus"), daemon("ListAttachments")["attachments"]
    except AwayError as error:
        return {"daemon": {"": str(error)}}
    pool = status["pool"]
    attachments = {}
    for row in rows:
        sandbox, lost = f"{row['container_id']}/{row['ifname']}", f", lost since {row['lost_since']}" if row["lost_since"] else ""
        attachments[sandbox] = f"{row['address']} {fitting(row['sandbox_name'] or '-', CELL_MAX)} {sandbox}{lost}"
    return {
        "daemon": {"": f"vpc-ipamd {status['version']} answers, {status['phase']}"},
        "verdict": {"": status["verdict"]},
        "pool": {
            "": f"{pool_size(pool['total_count'])}: {_states(pool)}; {counted(pool['eni_count'], 'ENI')}; {pool['last_cycle']}"
        },
        "attachment": attachments,
    }


WATCH = Verb(
    help="changes of verdict, pool and attachments, a line each, until Ctrl-C",
    render=lambda answer: f"{answer['at']}  {answer['what']:<10}  {fitting(answer['text'], LINE_MAX)}",
    make=_watch,
    arguments=(
        argument(
            "--interval",
            type=_seconds,
            default=INTERVAL_S,
            metavar="S",
            help=f"seconds between two looks (default {INTERVAL_S:.0f})",
        ),
        argument("--count", type=int, default=0, metavar="N", help="end after N looks (default: Ctrl-C ends it)"),
    ),
)
