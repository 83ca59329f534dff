"""The demo's second part: `kill -9`, work without the daemon, restart and reconcile; then the same with a lost datastore."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from lab.demo.checks import Verdict
from lab.demo.context import PODS_PER_NODE, DemoContext, brief
from lab.demo.node import DemoNode
from lab.vpc.model import Address

AWAY_REMOVE = "daemon dead: sandboxes are removed and their DELs spooled"
AWAY_WAIT = "daemon dead: a new sandbox waits for the daemon"
AWAY_TALK = "daemon dead: running sandboxes keep talking"
AWAY_OTHER = "daemon dead: the other node works on"
READY_AGAIN_S = (
    15.0  # ours, because: the budget is 2 s (bench/figures.py), and a demo on a busy machine must not fail over seconds
)
BACK_READY = f"restart: ready again within {READY_AGAIN_S:.0f} s"
BACK_SPOOL = "restart: every spooled DEL is carried out"
BACK_SAME = "restart: survivors keep their addresses and answer"
BACK_WAITED = "restart: the sandbox that waited comes up at its first call"
LOST_REBUILT = "datastore lost: rebuilt from kernel and CRI"
LOST_SAME = "datastore lost: sandboxes keep their addresses and answer"
LOST_NEW = "datastore lost: new sandboxes get addresses nobody has"

REMOVED_MEANWHILE = 5
OTHERS_MEANWHILE = 2
NEW_AFTER_LOSS = 2


def without_daemon(context: DemoContext, verdict: Verdict) -> None:
    """Kill the first node's daemon; remove and create sandboxes on both nodes while it is dead."""
    victim, other = context.nodes
    victim.daemon.kill()
    context.progress.say(f"{victim.name}: daemon killed with SIGKILL; {len(victim.pods)} sandboxes run there")
    failures = context.remove_pods(victim.pods[:REMOVED_MEANWHILE], what=f"sandboxes removed on {victim.name}, daemon dead")
    spooled = victim.daemon.spooled_count()
    done = f"{REMOVED_MEANWHILE - len(failures)} sandboxes removed, {spooled} DELs spooled (the runtime sends some twice)"
    verdict(AWAY_REMOVE, not failures and spooled >= REMOVED_MEANWHILE, brief(failures) or done)
    waiting = f"{victim.name}-waits"
    context.run_aside(victim, waiting)
    tried, silent = context.silent([*context.across(sources_per_node=2), *context.from_host()])
    verdict(AWAY_TALK, tried > 0 and not silent, brief(silent) or f"{tried} pings answered")
    names = [f"{other.name}-meanwhile-{number}" for number in range(OTHERS_MEANWHILE)]
    failures = context.run_pods([(other, name) for name in names], what=f"sandboxes up on {other.name}")
    extra = [pod for pod in other.pods if pod.name in names]
    failures += context.remove_pods(extra, what=f"sandboxes removed on {other.name}")
    is_served = not failures and len(extra) == OTHERS_MEANWHILE and other.daemon.status() is not None
    verdict(AWAY_OTHER, is_served, brief(failures) or f"{len(extra)} sandboxes created and removed on {other.name}")
    ended = context.ended_aside()
    verdict(AWAY_WAIT, not ended, brief(ended) or f"{waiting} waits: nothing was refused, and the runtime need not try again")


def restart(context: DemoContext, verdict: Verdict) -> None:
    """Start the daemon again and show how it brings datastore, kernel and runtime together."""
    victim, _ = context.nodes
    spooled = victim.daemon.spooled_count()
    status, took_s = start_again(context, victim)
    verdict(BACK_READY, took_s <= READY_AGAIN_S, f"{took_s:.1f} s after the start; {_stage(status, 'kernel')}")
    left, replayed = victim.daemon.spooled_count(), _stage(status, "spool")
    verdict(BACK_SPOOL, left == 0 and replayed.split(" ")[0] == str(spooled), f"{spooled} were spooled; {replayed}; {left} left")
    problems = attachment_problems(victim)
    tried, silent = context.silent([*context.across(sources_per_node=2), *context.from_host()])
    held = f"{len(victim.pods)} attachments as the runtime has them; {tried} pings answered"
    verdict(BACK_SAME, tried > 0 and not (problems or silent), brief([*problems, *silent]) or held)
    waited, failures = context.join_aside()
    more = [(victim, f"{victim.name}-again-{number}") for number in range(PODS_PER_NODE - len(victim.pods))]
    failures += context.run_pods(more, what=f"sandboxes up again on {victim.name}")
    tried, silent = context.silent(context.from_host())
    came = f"{', '.join(f'{pod.name} got {pod.address}' for pod in waited)}; {len(more)} more; {tried} answer"
    verdict(BACK_WAITED, bool(waited) and not (failures or silent), brief([*failures, *silent]) or came)


def lose_datastore(context: DemoContext, verdict: Verdict) -> None:
    """Kill the second node's daemon, delete its database, start it: every sandbox is adopted."""
    _, victim = context.nodes
    victim.daemon.kill()
    files = victim.daemon.lose_datastore()
    context.datastore_lost_at[victim.name] = time.monotonic()
    context.progress.say(f"{victim.name}: daemon killed with SIGKILL, {', '.join(files) or 'nothing'} deleted")
    status, took_s = start_again(context, victim)
    rows = victim.daemon.ipamctl_json("attachments")["attachments"]
    adopted = [row for row in rows if row["origin"] == "adopt"]
    problems = attachment_problems(victim, rows)
    if len(adopted) != len(victim.pods):
        problems.append(f"{len(adopted)} of {len(victim.pods)} sandboxes adopted")
    told = f"ready after {took_s:.1f} s; {_stage(status, 'datastore')}; {_stage(status, 'kernel')}"
    verdict(LOST_REBUILT, bool(files) and bool(adopted) and not problems, brief(problems) or told)
    tried, silent = context.silent([*context.across(sources_per_node=2), *context.from_host()])
    verdict(LOST_SAME, tried > 0 and not (problems or silent), brief([*problems, *silent]) or f"{tried} pings answered")
    before: set[Address] = {pod.address for pod in context.pods}
    wanted = [(victim, f"{victim.name}-new-{number}") for number in range(NEW_AFTER_LOSS)]
    failures = context.run_pods(wanted, what=f"new sandboxes on {victim.name}")
    new = [pod for pod in victim.pods if (victim, pod.name) in wanted]
    taken = [f"{pod.name} got {pod.address}, which another one has" for pod in new if pod.address in before]
    tried, silent = context.silent(context.from_host())
    got = f"{', '.join(str(pod.address) for pod in new)}; all {tried} sandboxes answer"
    is_good = len(new) == NEW_AFTER_LOSS and not (failures or taken or silent)
    verdict(LOST_NEW, is_good, brief([*failures, *taken, *silent]) or got)


def start_again(context: DemoContext, node: DemoNode) -> tuple[dict[str, Any], float]:
    """Start a daemon, wait until it is ready, show its stages; its status and the seconds it took."""
    node.daemon.start()
    started_s = context.progress.elapsed_s
    status = node.daemon.wait_status(lambda status: bool(status["ready"]), what="ready again", timeout_s=2 * READY_AGAIN_S)
    took_s = context.progress.elapsed_s - started_s
    for stage in status["stages"]:
        context.progress.say(f"{node.name}: {stage['name']:<12} {1000 * stage['elapsed_s']:7.1f} ms  {stage['detail']}".rstrip())
    return status, took_s


def _stage(status: dict[str, Any], name: str) -> str:
    return next((str(stage["detail"]) for stage in status["stages"] if stage["name"] == name), f"no stage {name}")


def attachment_problems(node: DemoNode, rows: Sequence[dict[str, Any]] | None = None) -> list[str]:
    """Where the daemon's attachments are not what the runtime runs, in words."""
    rows = node.daemon.ipamctl_json("attachments")["attachments"] if rows is None else rows
    found = {row["container_id"]: row["address"] for row in rows}
    wanted = {pod.sandbox_id: str(pod.address) for pod in node.pods}
    return [
        f"{node.name}: sandbox {key[:13]} has {wanted.get(key, 'nothing')}, the daemon says {found.get(key, 'nothing')}"
        for key in sorted(wanted.keys() | found.keys())
        if wanted.get(key) != found.get(key)
    ]
