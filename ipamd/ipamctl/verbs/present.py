"""The verbs about the present: status, enis, attachments, audit, watch."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ipamd.ipamctl.verb import EXIT_ATTENTION, EXIT_AWAY, STATE_COLUMNS, Answer, Ask, Verb, VerbError, table
from ipamd.model.words import CLOUD_NOT_ASKED, counted

if TYPE_CHECKING:
    from collections.abc import Iterator


def render_status(answer: Answer) -> str:
    """Write the verdict, then one topic per line, and the start-up stages as a table."""
    pool, runtime, cloud = answer.get("pool", {}), answer.get("runtime", {}), answer.get("cloud", {})
    readiness = "ready" if answer["ready"] else "not ready"
    lines = [answer["verdict"], ""] if answer["verdict"] else []  # a daemon of an earlier release says none
    lines += [
        f"vpc-ipamd {answer['version']} on {answer['instance_id'] or 'an unknown instance'}: {answer['phase']}, {readiness}, "
        f"up {answer['uptime_s']:.0f} s",
        "",
        table(
            ("STAGE", "STATE", "MS", "DETAIL"),
            [(s["name"], s["state"], f"{s['elapsed_ms']:.1f}", s["detail"]) for s in answer["stages"]],
        ),
        "",
        f"pool     {_pool(pool)}",
        "targets  " + (", ".join(f"{t['name']}={t['value']}" for t in pool["targets"] if t["defined"]) or "none"),
        *([f"auto     {pool['auto']}"] if pool.get("auto") else []),
        f"loop     {pool['last_cycle']}",
        *([f"excess   {counted(int(pool['excess_count']), 'address')}; {pool['kept']}"] if pool.get("kept") else []),
        f"runtime  {_runtime(runtime)}",
        f"ec2      {_cloud(cloud)}",
        f"pending  {counted(answer['spooled_count'], 'spooled DEL')}, {counted(answer['dying_count'], 'dying link')}",
    ]
    if "settings" in answer:  # as below
        lines.append(f"settings {_settings(answer['settings'])}")
    if "confinement" in answer:  # a daemon of an earlier release says none
        lines.append(f"source   {_confinement(answer['confinement'])}")
    lines += [
        f"busy     {b['operation']} on {b['container_id']}/{b['ifname']} for {b['age_s']:.1f} s, waiting behind: {b['waiting_count']}"
        + ("; its caller has left" if b.get("caller_left") else "")  # a daemon of an earlier release does not say
        for b in answer["busy"]
    ]
    # a daemon of an earlier release names no causes
    lines += [f"frozen   {f['cause']}: {f['reason']} (since {f['since']})" for f in answer.get("freezings", ())]
    lines += [f"subnet   {_subnet(subnet)}" for subnet in answer.get("subnets", ())]
    lines += [f"lacks    {sentence}" for sentence in answer["lacks"]]
    last = answer.get("last_error")
    lines.append(f"last error  {last['at']} {last['what']}: {last['message']}" if last else "last error  none since start")
    return "\n".join(lines)


def _pool(pool: Answer) -> str:
    states = ", ".join(f"{pool[f'{state}_count']} {state}" for state in STATE_COLUMNS)
    states += f", {pool['lost_count']} lost" if pool["lost_count"] else ""
    enis = f"{pool['eni_count']} of {counted(pool['eni_limit'], 'ENI')} with {counted(pool['slots_per_eni'], 'slot')} each"
    return f"{counted(pool['total_count'], 'address')}: {states}; {enis}"


def _cloud(cloud: Answer) -> str:
    if cloud["detail"] == CLOUD_NOT_ASKED:
        return CLOUD_NOT_ASKED
    return f"{'reachable' if cloud['reachable'] else 'not reachable'}, {counted(int(cloud['call_count']), 'call')}; {cloud['detail']}"


def _subnet(subnet: Answer) -> str:
    use = f"not used: {subnet['why_not']}" if subnet["why_not"] else "used for new ENIs"
    return f"{subnet['subnet_id']} with {counted(int(subnet['free_count']), 'free address')}, {use}"


def _confinement(confinement: Answer) -> str:
    state = (
        "checked for every packet of a sandbox"
        if confinement["source_checked"]
        else "not checked, or not only its own is allowed"
    )
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
    reach = "reachable" if runtime["reachable"] else "not reachable"
    events = "with events" if runtime["events"] else "without events"
    listed, seen = "not listed yet", counted(runtime["sandbox_count"], "sandbox")
    if runtime["list_age_s"] >= 0:
        listed = f"listed {runtime['list_age_s']:.0f} s ago: {seen} then"
    more = "" if runtime["detail"] in (seen, listed) else f"; {runtime['detail']}"
    return f"{runtime['name']} {runtime['version']} at {runtime['socket']}: {reach}, {events}, {listed}{more}"


STATUS = Verb(
    help="phase, stages with timings, pool, runtime, last error",
    ask=lambda daemon, _: daemon("GetStatus"),
    render=render_status,
    exit_status=lambda answer: 0 if answer["ready"] else EXIT_ATTENTION,
    position=1,
)


# `ipamctl enis`: network interfaces and their addresses.


def render_enis(answer: Answer) -> str:
    """Write one row per ENI, its addresses counted by state, then a line per frozen or excluded ENI; LOST only if an address is."""
    from ipamd.model.eni import MAIN_TABLE  # here, because importing it costs every other verb 20 ms

    states = (*STATE_COLUMNS, "lost") if any(eni["lost_count"] for eni in answer["enis"]) else STATE_COLUMNS
    header = ("ENI", "DEVICE", "STATE", "PRIMARY ADDRESS", "SUBNET", "TABLE", "HOST", *map(str.upper, states))
    text = table(
        header,
        [
            (
                eni["eni_id"],
                eni["device_index"],
                eni["state"],
                eni["primary_address"],
                f"{eni['subnet_id']} {eni['subnet_cidr']}",
                "main" if eni["route_table"] == MAIN_TABLE else eni["route_table"],
                _host(eni),
                *(eni[f"{state}_count"] for state in states),
            )
            for eni in answer["enis"]
        ],
    )
    enis = answer["enis"]
    frozen = [f"{eni['eni_id']} is frozen: {eni['frozen']}" for eni in enis if eni["frozen"]]
    excluded = [f"{eni['eni_id']} gets no new sandbox: {eni['excluded']}" for eni in enis if eni.get("excluded")]
    return "\n".join([text, *frozen, *excluded])


def _host(eni: Answer) -> str:
    if eni["frozen"]:
        return "frozen"
    return "ready" if eni["host_ready"] else "not ready"


ENIS = Verb(
    help="network interfaces and their addresses",
    ask=lambda daemon, _: daemon("ListEnis"),
    render=render_enis,
    position=2,
)


# `ipamctl attachments`: which sandbox has which address.


def render_attachments(answer: Answer) -> str:
    """Write one row per attachment, oldest first; a column tells the lost addresses if there is one."""
    is_any_lost = any(row["lost_since"] for row in answer["attachments"])
    return table(
        ("ADDRESS", "SANDBOX", "IFNAME", "NAME", "ENI", "HOST VETH", "SINCE", "ORIGIN", *["LOST SINCE"] * is_any_lost),
        [
            (
                row["address"],
                row["container_id"],
                row["ifname"],
                row["sandbox_name"] or "-",
                row["eni_id"],
                row["host_veth"],
                row["created_at"],
                row["origin"],
                *[row["lost_since"] or "-"] * is_any_lost,
            )
            for row in answer["attachments"]
        ],
    )


ATTACHMENTS = Verb(
    help="which sandbox has which address",
    ask=lambda daemon, _: daemon("ListAttachments"),
    render=render_attachments,
    position=3,
)


# `ipamctl audit`: compare datastore, kernel, runtime and EC2.


def render_audit(answer: Answer) -> str:
    """Write silent sources first, then one row per finding, worst first."""
    lines = [f"silent: {sentence}" for sentence in answer["silent"]]
    if not answer["findings"]:
        return "\n".join([*lines, f"{counted(answer['address_count'], 'address')} compared: the sources agree"])
    rows = [(f["severity"], f["subject"], f["what"], f["next"]) for f in answer["findings"]]
    return "\n".join([*lines, table(("SEVERITY", "SUBJECT", "WHAT DIFFERS", "NEXT"), rows)])


def _audit_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--skip-ec2", action="store_true", help="make no EC2 call")


def _audit_exit_status(answer: Answer) -> int:
    return EXIT_ATTENTION if any(finding["severity"] == "violation" for finding in answer["findings"]) else 0


AUDIT = Verb(
    help="compare datastore, kernel, EC2 and runtime; exit 1 on a violation",
    ask=lambda daemon, arguments: daemon("Audit", skip_ec2=arguments.skip_ec2),
    render=render_audit,
    arguments=_audit_arguments,
    exit_status=_audit_exit_status,
    position=5,
)


# `ipamctl watch`: changes of the verdict, the pool and the attachments, a line each, until Ctrl-C.


INTERVAL_S = 2.0
INTERVAL_MIN_S = 0.2
"""Ours: two questions cost the daemon a millisecond or two."""

INTERVAL_MAX_S = 3600.0


def render_watch(answer: Answer) -> str:
    """Write one line."""
    return f"{answer['at']}  {answer['what']:<10}  {answer['text']}"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not INTERVAL_MIN_S <= seconds <= INTERVAL_MAX_S:
        raise argparse.ArgumentTypeError(f"{text[:20]!r} is no number of seconds from {INTERVAL_MIN_S} to {INTERVAL_MAX_S:.0f}")
    return seconds


def _watch_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval", type=_seconds, default=INTERVAL_S, metavar="S", help=f"seconds between two looks (default {INTERVAL_S:.0f})"
    )
    parser.add_argument("--count", type=int, default=0, metavar="N", help="end after N looks (default: Ctrl-C ends it)")


def _stream(daemon: Ask, arguments: argparse.Namespace) -> Iterator[Answer]:
    import time
    from datetime import UTC, datetime

    from ipamd.model.words import rfc3339

    before: dict[str, dict[str, str]] = {}
    looks = 0
    while True:
        now = _look(daemon)
        at = rfc3339(datetime.now(UTC))
        for what, text in _changes(before, now):
            yield {"at": at, "what": what, "text": text}
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
    except VerbError as error:
        if error.exit_status != EXIT_AWAY:
            raise
        return {"daemon": {"": str(error)}}
    pool = status.get("pool", {})
    counts = ", ".join(f"{pool.get(f'{state}_count', 0)} {state}" for state in STATE_COLUMNS)
    return {
        "daemon": {"": f"vpc-ipamd {status['version']} answers, {status['phase']}"},
        "verdict": {"": status["verdict"]},
        "pool": {
            "": f"{pool.get('total_count', 0)} addresses: {counts}; {pool.get('eni_count', 0)} ENIs; {pool.get('last_cycle', '')}"
        },
        "attachment": {f"{row['container_id']}/{row['ifname']}": _attachment(row) for row in rows},
    }


def _attachment(row: Answer) -> str:
    lost = f", lost since {row['lost_since']}" if row["lost_since"] else ""
    return f"{row['address']} {row['sandbox_name'] or '-'} {row['container_id']}/{row['ifname']}{lost}"


def _changes(before: dict[str, dict[str, str]], now: dict[str, dict[str, str]]) -> Iterator[tuple[str, str]]:
    for what, texts in now.items():
        known = before.get(what, {})
        for name, text in texts.items():
            if known.get(name) != text:
                yield what, f"+ {text}" if name and name not in known else text
        yield from ((what, f"- {text}") for name, text in known.items() if name not in texts)


WATCH = Verb(
    help="changes of verdict, pool and attachments, a line each, until Ctrl-C",
    ask=lambda daemon, _: daemon("GetStatus"),
    render=render_watch,
    arguments=_watch_arguments,
    stream=_stream,
    position=9,
)


VERBS = {"status": STATUS, "enis": ENIS, "attachments": ATTACHMENTS, "audit": AUDIT, "watch": WATCH}
