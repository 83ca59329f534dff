"""The demo's second part: `kill -9`, life without the daemon, restart, reconciliation; then the same with the datastore lost."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from ipaddress import IPv4Address
from typing import Any

from lab.demo.checks import Verdict
from lab.demo.context import PODS_PER_NODE, DemoContext, brief
from lab.demo.node import DemoNode, Pod
from lab.node.daemon import PLUGIN_PATH
from lab.node.errors import SandboxError

AWAY_REMOVE = "daemon dead: sandboxes are removed and their DELs spooled"
AWAY_REFUSE = "daemon dead: a new sandbox is refused with CNI code 11"
AWAY_TALK = "daemon dead: running sandboxes keep talking"
AWAY_OTHER = "daemon dead: the other node works on"
READY_AGAIN_S = 15.0  # ours, because: the budget is 2 s (design 11); a demo on a busy machine must not fail over seconds
BACK_READY = f"restart: ready again within {READY_AGAIN_S:.0f} s"
BACK_SPOOL = "restart: every spooled DEL is carried out"
BACK_SAME = "restart: survivors keep their addresses and answer"
BACK_RETRY = "restart: the refused sandbox comes up at the retry"
LOST_REBUILT = "datastore lost: rebuilt from kernel and CRI"
LOST_SAME = "datastore lost: sandboxes keep their addresses and answer"
LOST_NEW = "datastore lost: new sandboxes get addresses nobody has"

REMOVED_MEANWHILE = 5
OTHERS_MEANWHILE = 2
TRY_AGAIN = 11  # CNI spec, "try again later"
NEW_AFTER_LOSS = 2


@dataclass(frozen=True)
class _Refusal:
    """What the plugin answers when it is asked directly, as the runtime asks it."""

    code: int
    message: str
    details: str


def without_daemon(context: DemoContext, verdict: Verdict) -> None:
    """Kill the first node's daemon; remove and create sandboxes on both nodes while it is dead."""
    victim, other = context.nodes
    victim.daemon.kill()
    context.progress.say(f"{victim.name}: daemon killed with SIGKILL; {len(victim.pods)} sandboxes run there")
    failures = context.remove_pods(victim.pods[:REMOVED_MEANWHILE], what=f"sandboxes removed on {victim.name}, daemon dead")
    spooled = victim.daemon.spooled_count()
    done = f"{REMOVED_MEANWHILE - len(failures)} sandboxes removed, {spooled} DELs spooled (the runtime sends some twice)"
    verdict(AWAY_REMOVE, not failures and spooled >= REMOVED_MEANWHILE, brief(failures) or done)
    _refuse(context, victim, verdict)
    tried, silent = context.silent([*context.across(sources_per_node=2), *context.from_host()])
    verdict(AWAY_TALK, tried > 0 and not silent, brief(silent) or f"{tried} pings answered")
    names = [f"{other.name}-meanwhile-{number}" for number in range(OTHERS_MEANWHILE)]
    failures = context.run_pods([(other, name) for name in names], what=f"sandboxes up on {other.name}")
    extra = [pod for pod in other.pods if pod.name in names]
    failures += context.remove_pods(extra, what=f"sandboxes removed on {other.name}")
    is_served = not failures and len(extra) == OTHERS_MEANWHILE and other.daemon.status() is not None
    verdict(AWAY_OTHER, is_served, brief(failures) or f"{len(extra)} sandboxes created and removed on {other.name}")


def restart(context: DemoContext, verdict: Verdict) -> None:
    """Start the daemon again and show how it brings datastore, kernel and runtime together."""
    victim, _ = context.nodes
    spooled = victim.daemon.spooled_count()
    status, took_s = _start_again(context, victim)
    verdict(BACK_READY, took_s <= READY_AGAIN_S, f"{took_s:.1f} s after the start; {_stage(status, 'kernel')}")
    left, replayed = victim.daemon.spooled_count(), _stage(status, "spool")
    verdict(BACK_SPOOL, left == 0 and replayed.split(" ")[0] == str(spooled), f"{spooled} were spooled; {replayed}; {left} left")
    problems = _attachment_problems(victim)
    tried, silent = context.silent([*context.across(sources_per_node=2), *context.from_host()])
    held = f"{len(victim.pods)} attachments as the runtime has them; {tried} pings answered"
    verdict(BACK_SAME, tried > 0 and not (problems or silent), brief([*problems, *silent]) or held)
    retried, failures = _retry(context, victim)
    more = [(victim, f"{victim.name}-again-{number}") for number in range(PODS_PER_NODE - len(victim.pods))]
    failures += context.run_pods(more, what=f"sandboxes up again on {victim.name}")
    tried, silent = context.silent(context.from_host())
    came = f"{', '.join(f'{pod.name} got {pod.address}' for pod in retried)}; {len(more)} more; {tried} answer"
    verdict(BACK_RETRY, bool(retried) and not (failures or silent), brief([*failures, *silent]) or came)


def lose_datastore(context: DemoContext, verdict: Verdict) -> None:
    """Kill the second node's daemon, delete its database, start it: every sandbox is adopted."""
    _, victim = context.nodes
    victim.daemon.kill()
    files = victim.daemon.lose_datastore()
    context.datastore_lost_at[victim.name] = time.monotonic()
    context.progress.say(f"{victim.name}: daemon killed with SIGKILL, {', '.join(files) or 'nothing'} deleted")
    status, took_s = _start_again(context, victim)
    rows = victim.daemon.ipamctl_json("attachments")["attachments"]
    adopted = [row for row in rows if row["origin"] == "adopt"]
    problems = _attachment_problems(victim, rows)
    if len(adopted) != len(victim.pods):
        problems.append(f"{len(adopted)} of {len(victim.pods)} sandboxes adopted")
    told = f"ready after {took_s:.1f} s; {_stage(status, 'datastore')}; {_stage(status, 'kernel')}"
    verdict(LOST_REBUILT, bool(files) and bool(adopted) and not problems, brief(problems) or told)
    tried, silent = context.silent([*context.across(sources_per_node=2), *context.from_host()])
    verdict(LOST_SAME, tried > 0 and not (problems or silent), brief([*problems, *silent]) or f"{tried} pings answered")
    before: set[IPv4Address] = {pod.address for pod in context.pods}
    wanted = [(victim, f"{victim.name}-new-{number}") for number in range(NEW_AFTER_LOSS)]
    failures = context.run_pods(wanted, what=f"new sandboxes on {victim.name}")
    new = [pod for pod in victim.pods if (victim, pod.name) in wanted]
    taken = [f"{pod.name} got {pod.address}, which another one has" for pod in new if pod.address in before]
    tried, silent = context.silent(context.from_host())
    got = f"{', '.join(str(pod.address) for pod in new)}; all {tried} sandboxes answer"
    is_good = len(new) == NEW_AFTER_LOSS and not (failures or taken or silent)
    verdict(LOST_NEW, is_good, brief([*failures, *taken, *silent]) or got)


def _start_again(context: DemoContext, node: DemoNode) -> tuple[dict[str, Any], float]:
    """Start a daemon, wait until it is ready, show its stages; its status and the seconds it took."""
    node.daemon.start()
    started_s = context.progress.elapsed_s
    status = node.daemon.wait_status(lambda status: bool(status["ready"]), what="ready again", timeout_s=2 * READY_AGAIN_S)
    took_s = context.progress.elapsed_s - started_s
    for stage in status["stages"]:
        context.progress.say(f"{node.name}: {stage['name']:<12} {stage['elapsed_ms']:7.1f} ms  {stage['detail']}".rstrip())
    return status, took_s


def _refuse(context: DemoContext, node: DemoNode, verdict: Verdict) -> None:
    """Ask the runtime for a sandbox it cannot have now, and the plugin for the code that CRI's text does not carry."""
    name = f"{node.name}-refused"
    refusal = _ask_plugin(node)
    try:
        pod = node.run_pod(name)
    except SandboxError as exc:
        said = str(exc)
    else:
        verdict(AWAY_REFUSE, False, f"{name} got {pod.address} from nobody knows whom")
        return
    context.refused.append(name)
    context.progress.say(f"{node.name}: the runtime says: {said}")
    is_ours = refusal.code == TRY_AGAIN and bool(refusal.message) and refusal.message in said
    verdict(AWAY_REFUSE, is_ours, f"code {refusal.code}: {refusal.message}; {refusal.details}" if is_ours else said)


def _ask_plugin(node: DemoNode) -> _Refusal:
    """Execute the plugin's ADD in the node as the runtime does, for a sandbox that does not exist; the daemon is dead."""
    env = {
        "CNI_COMMAND": "ADD",
        "CNI_CONTAINERID": "demo-asks-for-the-code",
        "CNI_NETNS": f"/proc/{node.lab_node.pid}/ns/net",
        "CNI_IFNAME": "eth0",
        "CNI_PATH": "/opt/cni/bin",
    }
    config = json.dumps({"cniVersion": "1.0.0", "name": "vpc-ipamd", "type": "vpc-cni"})
    done = node.lab_node.run([PLUGIN_PATH], env=env, stdin_bytes=config.encode(), timeout_s=70.0, check=False)
    document = json.loads(done.stdout or "{}")
    return _Refusal(int(document.get("code", 0)), str(document.get("msg", "")), str(document.get("details", "")))


def _retry(context: DemoContext, node: DemoNode) -> tuple[list[Pod], list[str]]:
    """Do as the kubelet does: the same pod, the next attempt."""
    came, failures = [], []
    for name in context.refused:
        try:
            came.append(node.run_pod(name, attempt=1))
        except SandboxError as exc:
            failures.append(str(exc))
    return came, failures


def _stage(status: dict[str, Any], name: str) -> str:
    return next((str(stage["detail"]) for stage in status["stages"] if stage["name"] == name), f"no stage {name}")


def _attachment_problems(node: DemoNode, rows: Sequence[dict[str, Any]] | None = None) -> list[str]:
    """Where the daemon's attachments are not what the runtime runs, in words."""
    rows = node.daemon.ipamctl_json("attachments")["attachments"] if rows is None else rows
    found = {row["container_id"]: row["address"] for row in rows}
    wanted = {pod.sandbox_id: str(pod.address) for pod in node.pods}
    return [
        f"{node.name}: sandbox {key[:13]} has {wanted.get(key, 'nothing')}, the daemon says {found.get(key, 'nothing')}"
        for key in sorted(wanted.keys() | found.keys())
        if wanted.get(key) != found.get(key)
    ]
