"""The demo's last part: remove everything, and prove by kernel, datastore, EC2 and the observers that nothing is left."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from lab.demo import moves
from lab.demo.checks import Verdict
from lab.demo.context import EVERY_NODE, PODS_PER_NODE, DemoContext, brief
from lab.demo.node import DemoNode
from lab.errors import LabError
from lab.node.kernel_view import read_kernel
from lab.vpc.family import IPV6, pool_of

ALL_REMOVED = "all sandboxes are removed"
NOTHING_LEFT = {name: f"{name}: no rule, route, veth or row is left" for name in EVERY_NODE}
COOLED = "released addresses have cooled, and each node is back to one ENI"
IDLE = "idle: no EC2 call in 5 s"
AGREE = "EC2 and the datastores agree"
NO_LEAK = "no ENI is left unattached"
AUDITED = "`ipamctl audit` finds nothing on any node"
NEVER_TWICE = "no address was ever given to two sandboxes at once"
NEVER_HOT = "no address was given again before it had cooled"
NO_DROPS = "the VPC dropped no packet of ours"
LAB_SOUND = "the lab itself had no fault"

GONE_WITHIN_S = 5.0  # ours, because: I4 allows a second for the veth; a busy machine gets five
COOLDOWN_S = 30.0  # the daemon's default, IP_COOLDOWN_PERIOD
GIVEN_BACK_WITHIN_S = 30.0  # ours, because: EC2 detaches an ENI in some seconds, and two go one after the other
COOLED_WITHIN_S = COOLDOWN_S + 15.0 + GIVEN_BACK_WITHIN_S
QUIET_S = 5.0  # an ENI that is detached is deleted 3 s later (ipamd/eni/steps.py)
QUIET_WITHIN_S = 20.0
IDLE_S = 5.0
POLL_S = 0.1


def remove_all(context: DemoContext, verdict: Verdict) -> None:
    """Remove every sandbox, and wait until the daemons have deleted the links."""
    pods = context.pods
    started_s = context.progress.elapsed_s
    failures = context.remove_pods(pods)
    left = [f"{node.name} still lists {sandbox.name}" for node in context.every_node for sandbox in node.lab_node.cri.list()]
    took_s = context.progress.elapsed_s - started_s
    is_done = len(pods) >= PODS_PER_NODE and not (failures or left)
    verdict(ALL_REMOVED, is_done, brief([*failures, *left]) or f"{len(pods)} sandboxes, in {took_s:.1f} s")


def nothing_left(context: DemoContext, verdict: Verdict) -> None:
    """Look for leftovers of any sandbox in each node's kernel and datastore."""
    for node in context.every_node:
        deadline = time.monotonic() + GONE_WITHIN_S
        while (left := _left(node, context)) and time.monotonic() < deadline:
            time.sleep(POLL_S)  # dying links are deleted in the background
        nothing = "0 host veths, 0 sandbox routes, 0 rules of theirs, 0 namespaces; 0 attachments, 0 spooled DELs, 0 dying links"
        verdict(NOTHING_LEFT[node.name], not left, brief(left, most=6) or nothing)


def agree(context: DemoContext, verdict: Verdict) -> None:
    """Let the addresses cool, demand five idle seconds, then compare ENIs and addresses of EC2 and datastore."""
    context.progress.say(f"waiting until released addresses have cooled ({COOLDOWN_S:.0f} s by default)")
    pools: dict[str, dict[str, Any]] = {}

    def cool(node: DemoNode) -> list[str]:
        pool = pools[node.name] = _cooled_pool(node)
        free_count, total_count = pool["free_count"], pool["total_count"]
        return [] if free_count == total_count > 0 else [f"{node.name}: {free_count} of {total_count} free"]

    hot = _each(context, cool)
    free = ", ".join(f"{name} {pool['free_count']} of {pool['total_count']}" for name, pool in pools.items())
    verdict(COOLED, not hot, brief(hot) or f"free: {free}; WARM_ENI_TARGET=1 keeps no more")
    total = _wait_for_quiet(context)
    time.sleep(IDLE_S)  # the promise is about time passing
    calls = context.lab.vpc.calls()
    apis = ", ".join(f"{api} {count}" for api, count in context.lab.vpc.call_counts().most_common())
    told = f"{total} calls before, since the start: {apis}"
    verdict(IDLE, len(calls) == total > 0, brief([f"{call.instance}: {call.api}" for call in calls[total:]]) or told)
    problems = _each(context, lambda node: _disagreements(context, node))
    counts = ", ".join(f"{node.name} {len(_ec2_view(context, node))} ENIs" for node in context.every_node)
    verdict(AGREE, not problems, brief(problems) or f"{counts}; the same addresses per ENI in number, none assigned")
    findings = _each(context, _audit)
    verdict(AUDITED, not findings, brief(findings) or "datastore, kernel, EC2 and runtime tell the same")
    stray = [eni.eni_id for eni in context.lab.vpc.enis() if eni.attachment is None]
    verdict(NO_LEAK, not stray, brief(stray) or f"{len(context.lab.vpc.enis())} ENIs, all attached")


def observers(context: DemoContext, verdict: Verdict) -> None:
    """Report what the observers saw from the start."""
    context.lab.settle()
    context.observer.stop()
    kernel, kubelets = context.observer.ledger, context.kubelets
    problems = [*kernel.conflicts, *kubelets.conflicts, *context.observer.lost]
    if kernel.given_count < kubelets.given_count:
        problems.append(f"the kernels showed {kernel.given_count} addresses given, the runtimes {kubelets.given_count}")
    problems += [f"{holder} never let go of {address}" for address, holder in kernel.held.items()]
    seen = f"addresses were given {kernel.given_count} times as the kernels saw it, {kubelets.given_count} as the runtimes did"
    verdict(NEVER_TWICE, kubelets.given_count >= 2 * PODS_PER_NODE and not problems, brief(problems) or seen)
    _hear_of_reuse(context, verdict)
    drops = [f"{drop.packet_count} packets from {drop.source} on {drop.eni_id}" for drop in context.lab.fabric.drops()]
    verdict(NO_DROPS, not drops, brief(drops) or "every packet came from the ENI that EC2 has its source address on")
    faults = [*context.lab.fabric.problems, *map(str, context.lab.vpc.listener_errors)]
    verdict(LAB_SOUND, not faults, brief(faults) or "no event was lost between EC2 and the wires")


def _hear_of_reuse(context: DemoContext, verdict: Verdict) -> None:
    """Check each reuse by the runtimes' ledger (from StopPodSandbox's call, before the DEL, to RunPodSandbox's answer).

    The pod that names its address gets it again before (docs/adr/0083).
    Cooldowns are stored in the datastore and lost with it: a reuse after the datastore was deleted is reported, not checked.
    """
    lost_at = context.datastore_lost_at
    excused = [r for r in context.kubelets.reuses if r.at_s > lost_at.get(r.holder.partition("/")[0], math.inf)]
    judged = [reuse for reuse in context.kubelets.reuses if reuse not in excused and reuse.address != moves.STAYING]
    hot = [f"{r.address} after {r.after_s:.1f} s" for r in judged if r.after_s < COOLDOWN_S]
    told = f"{len(judged)} given again, none within {COOLDOWN_S:.0f} s"
    if excused:
        soonest = min(reuse.after_s for reuse in excused)
        told += (
            f"; {len(excused)} more where the datastore was deleted and its cooldowns with it, the soonest after {soonest:.0f} s"
        )
    verdict(NEVER_HOT, not hot, brief(hot) or told)


def _each(context: DemoContext, look: Callable[[DemoNode], list[str]]) -> list[str]:
    """Problems of all nodes; one that cannot be looked at is a problem, and does not hide the other."""
    problems = []
    for node in context.every_node:
        try:
            problems += look(node)
        except LabError as exc:
            problems.append(str(exc))
    return problems


def _cooled_pool(node: DemoNode) -> dict[str, Any]:
    status = node.daemon.wait_status(
        lambda status: status["pool"]["cooling_count"] == 0 and status["pool"]["eni_count"] == 1,
        what="all addresses free again, and one ENI left",
        timeout_s=COOLED_WITHIN_S,
    )
    pool: dict[str, Any] = status["pool"]
    return pool


def _audit(node: DemoNode) -> list[str]:
    """Findings of `ipamctl audit`; a source that was silent counts as one."""
    answer = node.daemon.ipamctl_json("audit")
    found = [f"{item['severity']}: {item['subject']}: {item['text']}" for item in answer["findings"]]
    return [f"{node.name}: {sentence}" for sentence in (*found, *answer["unavailable_sources"])]


def _left(node: DemoNode, context: DemoContext) -> list[str]:
    """Everything of a sandbox that is still there, in words."""
    ever = {str(address) for address in context.kubelets.ever | context.observer.ledger.ever}
    kernel = read_kernel(node.lab_node)
    routes = [f"{route.destination} dev {route.device or '-'}" for route in kernel.routes_of(ever)]
    rules = [f"{rule.priority} {rule.source} {rule.destination}" for rule in kernel.rules if rule.is_sandbox]
    netns = node.lab_node.run(["/bin/sh", "-c", "ls -1 /run/netns 2>/dev/null || true"]).stdout.split()
    found = {"veth": kernel.sandbox_links, "route": routes, "rule": rules, "namespace": netns}
    return [f"{kind} {name}" for kind, names in found.items() for name in names] + _left_in_datastore(node)


def _left_in_datastore(node: DemoNode) -> list[str]:
    """The same of what the daemon knows; a daemon that does not answer proves nothing."""
    try:
        status, rows = node.daemon.ipamctl_json("status"), node.daemon.ipamctl_json("attachments")["attachments"]
    except LabError as exc:
        return [str(exc)]
    counts = {
        "spooled DELs": max(status["spooled_delete_count"], node.daemon.spooled_count()),
        "veths to delete": status["veths_pending_deletion_count"],
        **{f"{state} addresses": status["pool"][f"{state}_count"] for state in ("assigned", "reserved", "quarantined")},
    }
    return [f"row {row['container_id']}" for row in rows] + [f"{count} {what}" for what, count in counts.items() if count]


def _wait_for_quiet(context: DemoContext) -> int:
    """Wait until no EC2 call came for a while, or give up waiting; the number of calls so far."""
    deadline = time.monotonic() + QUIET_WITHIN_S
    total, since = len(context.lab.vpc.calls()), time.monotonic()
    while time.monotonic() - since < QUIET_S and time.monotonic() < deadline:
        time.sleep(POLL_S)
        if (now := len(context.lab.vpc.calls())) != total:
            total, since = now, time.monotonic()
    return total


def _ec2_view(context: DemoContext, node: DemoNode) -> dict[str, tuple[Any, ...]]:
    """The node's ENIs as EC2 has them: device index, MAC, primary address, prefixes, and the number of addresses, one of a /80."""
    family = node.daemon.family
    return {
        eni.eni_id: (
            eni.attachment.device_index,
            eni.mac,
            str(eni.primary_address),
            [str(one) for one in pool_of(eni, family) if one.num_addresses > 1],
            len(pool_of(eni, family)),
        )
        for eni in context.lab.vpc.enis_of(node.lab_node.instance_id)
        if eni.attachment is not None
    }


def _disagreements(context: DemoContext, node: DemoNode) -> list[str]:
    """Where `ipamctl enis` says something else than EC2, in words."""
    ours = {}
    problems = []
    for eni in node.daemon.ipamctl_json("enis")["enis"]:
        count = sum(eni[f"{state}_count"] for state in ("free", "reserved", "assigned", "cooling", "quarantined"))
        count = min(count, len(eni["prefixes"])) if node.daemon.family is IPV6 else count  # a /80 has more than are counted
        ours[eni["eni_id"]] = (eni["device_index"], eni["mac"], eni["primary_address"], eni["prefixes"], count)
        if eni["assigned_count"] or eni["reserved_count"]:
            problems.append(f"{node.name}: {eni['eni_id']} has {eni['assigned_count']} assigned addresses")
    theirs = _ec2_view(context, node)
    problems += [
        f"{node.name}: {eni_id}: EC2 says {theirs.get(eni_id, 'nothing')}, the datastore {ours.get(eni_id, 'nothing')}"
        for eni_id in sorted(ours.keys() | theirs.keys())
        if ours.get(eni_id) != theirs.get(eni_id)
    ]
    return problems if ours else [*problems, f"{node.name}: the datastore knows no ENI"]
