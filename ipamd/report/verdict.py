"""One sentence that answers: can this node run pods now, and if not, why, and what comes next?

`ipamctl status` prints it first. What blocks a start is told before what is only missing, and a refusal of a call that is still
being retried before everything else, because it is the newest word.
"""

from __future__ import annotations

from collections.abc import Mapping

from ipamd.core.health import Phase, StageReport, StageState
from ipamd.model.pool import assignable_count
from ipamd.model.record import dataclass
from ipamd.model.words import MANY, counted
from ipamd.report.sources import Sources

POOL = "pool"
"""Subject of the condition of a node that was ready and has no address to give. It is derived, so it can never be stale."""

STEPS = {
    "start": "restart the daemon; if it stops again, report it with its log",
    "export": "take vpc-ipamd off this node, then let aws-node come; or keep the node: `ipamctl export --undo`",
    "aws-node": "it is looked at again by itself, every second",
    "spool": "it is tried again by itself; see the spool's directory and the log",
    "kernel": "it is tried again by itself; see `ipamctl audit` and the log",
    "host-routing": "it is tried again by itself; see the log",
    "plugins": "do what the message says; the files are watched, no restart is needed",
    "conflist": "mount a writable CNI configuration directory; it is tried again by itself",
}
"""Conditions that stop a start, with what to do, in the order of the start."""

EC2_NEXT = "do what the message says; EC2 is asked again by itself, and `ipamctl status` shows each refusal"
CRI_NEXT = "start the container runtime, or set CRI_SOCKET; it is asked again by itself"


@dataclass(frozen=True, slots=True)
class Facts:
    """What the verdict depends on. `conditions` by subject; `refusal`: the last of an EC2 call that is being retried, or ""."""

    is_ready: bool
    phase: Phase
    assignable_count: int
    conditions: Mapping[str, str]
    stages: tuple[StageReport, ...] = ()
    refusal: str = ""


def facts(sources: Sources) -> Facts:
    """Read everything that the verdict depends on, from memory. Cost: the number of ENIs."""
    health = sources.health
    is_ready, count = health.is_ready, assignable_count(sources.datastore.stock())
    conditions = health.conditions_by_subject()
    if is_ready and not count:
        conditions[POOL] = f"pool: no address is assignable: {sources.demand.status().cause}"
    refusals = [call.last_refusal for call in sources.ec2.calls_under_way() if call.last_refusal]
    return Facts(is_ready, health.phase, count, conditions, tuple(health.stages()), refusals[-1] if refusals else "")


def verdict(known: Facts) -> str:
    """Say in one line whether this node can run pods now. Concurrency: pure."""
    if not known.is_ready:
        cause, next_step = _not_ready(known)
        return f"NOT READY: {cause}; next: {next_step}"
    conditions = dict(known.conditions)
    count = known.assignable_count
    supply = "a /80 has more addresses than this node can use" if count >= MANY else f"{counted(count, 'address')} can be given"
    supply = conditions.pop(POOL, supply)
    if not known.conditions:
        return f"ready: {supply}"
    refusal = conditions.get("ec2", "").removeprefix("EC2: ").partition("; ")[0]
    if refusal and refusal in supply:
        del conditions["ec2"]  # the supply's cause: told once
    others = sorted(conditions.values())
    return f"ready, with {counted(len(known.conditions), 'condition')}: {'; '.join([supply, *others])}"


def _not_ready(known: Facts) -> tuple[str, str]:
    """The cause and the next step."""
    conditions = known.conditions
    if known.phase is Phase.DRAINING:
        return "vpc-ipamd is shutting down", "its successor takes over; start it if none comes"
    for subject, next_step in STEPS.items():
        if subject in conditions:
            return conditions[subject], next_step
    cri_state = next((stage.state for stage in known.stages if stage.name == "cri"), StageState.PENDING)
    if known.phase is not Phase.SERVING and cri_state is StageState.DEGRADED and "cri" in conditions:
        return conditions["cri"], CRI_NEXT
    if known.refusal or "ec2" in conditions:
        return known.refusal or conditions["ec2"].removeprefix("EC2: "), EC2_NEXT
    if "first address" in conditions:
        cause, _, next_step = conditions["first address"].partition("; next: ")
        return cause, next_step or "it becomes ready with the first address; `ipamctl status`, line *loop*"
    running = [f"{stage.name} for {stage.elapsed_ms / 1000:.1f} s" for stage in known.stages if stage.state is StageState.RUNNING]
    return f"{known.phase}, at work on {', '.join(running) or 'nothing'}", "wait; `ipamctl status` shows the stages"
