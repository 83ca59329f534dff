"""`ipamctl status`: what the daemon is doing, and what it is missing."""

from __future__ import annotations

from ipamd.ipamctl.verb import EXIT_ATTENTION, STATE_COLUMNS, Answer, Verb, table
from ipamd.model.words import CLOUD_NOT_ASKED, counted


def render(answer: Answer) -> str:
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


VERB = Verb(
    help="phase, stages with timings, pool, runtime, last error",
    ask=lambda daemon, _: daemon("GetStatus"),
    render=render,
    exit_status=lambda answer: 0 if answer["ready"] else EXIT_ATTENTION,
    position=1,
)
