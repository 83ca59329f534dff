"""Judge the state of a node by its figures or, if there are none, by the cause. No function here does input or output."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from kubectl_ipamd.figures import NodeFigures
from kubectl_ipamd.fleet import NodeReading, Silence
from kubectl_ipamd.text import counted

NODE_FULL = frozenset({"max-pods", "node-full"})
"""The label `cause` of `ipamd_pool_blocked` while the node has all the addresses that it may have. Source: docs/metrics.md."""

FROZEN = "frozen"
"""The label `cause` of `ipamd_pool_blocked` while the pool is frozen: it makes no ENI and releases nothing."""


class NodeState(StrEnum):
    """The state of a node, the worst first.

    NO_DAEMON: the node should have a daemon and has none. CRASH_LOOP, DOWN: the daemon's container does not run. NO_ANSWER: the
    daemon runs and its figures cannot be read. NOT_READY: the daemon serves no ADD of CNI, so no pod gets a network. CUT_OFF: pods run
    without network. EMPTY: no address can be given to a pod, though the node may have more addresses. BLOCKED: the pool, the node's
    stock of addresses, wants to grow and cannot. SHORT: fewer addresses can be given to pods than the operator demands by
    `--short`. CONDITIONS: the daemon reports that something is not as it should be. FROZEN: the pool makes no ENI and releases
    nothing. FULL: the node has all its addresses and gave them to pods.
    """

    NO_DAEMON = "no-daemon"
    CRASH_LOOP = "crash-loop"
    DOWN = "down"
    NO_ANSWER = "no-answer"
    NOT_READY = "not-ready"
    CUT_OFF = "cut-off"
    EMPTY = "empty"
    BLOCKED = "blocked"
    SHORT = "short"
    CONDITIONS = "conditions"
    FROZEN = "frozen"
    FULL = "full"
    READY = "ready"


SEVERITY: Mapping[NodeState, int] = {state: number for number, state in enumerate(NodeState)}
"""The rank of each state; 0 is the worst."""

UNREMARKABLE = frozenset({NodeState.FULL, NodeState.READY})
"""States that need nobody's attention."""

NEXT_STEPS: Mapping[NodeState, str] = {
    NodeState.NO_DAEMON: "{kubectl} -n {namespace} describe daemonset: taints, quotas and admission keep its pod away",
    NodeState.CRASH_LOOP: "{kubectl} -n {namespace} logs {pod} -c ipamd --previous  # the last line has the cause",
    NodeState.DOWN: "{kubectl} -n {namespace} describe pod {pod}",
    NodeState.NO_ANSWER: "{plugin} exec {node} status",
    NodeState.NOT_READY: "{plugin} exec {node} status",
    NodeState.CUT_OFF: "{plugin} exec {node} audit",
    NodeState.EMPTY: "{plugin} exec {node} status",
    NodeState.BLOCKED: "{plugin} exec {node} status",
    NodeState.SHORT: "{plugin} exec {node} plan",
    NodeState.CONDITIONS: "{plugin} exec {node} status",
    NodeState.FROZEN: "{plugin} exec {node} status",
}
"""What the operator should run for a node in this state. {node} and {pod} stand for the names of the node and of the daemon's pod,
{kubectl} and {plugin} for the words that begin a command line, {namespace} for that of the daemon."""


CAUSE_STEPS: Mapping[str, str] = {
    "denied": "{plugin} exec {node} status names the call: allow it to the node's role, then {plugin} exec {node} retry",
    "throttled": "wait: the node repeats its calls by itself; if it lasts, ask AWS for a higher limit of the EC2 API",
    "quota": "ask AWS for a higher quota of network interfaces, or delete unused ones; then {plugin} exec {node} retry",
    "subnet-full": "{plugin} exec {node} status, and {plugin} top for its subnets: free addresses in it or tag another one, then "
    "{plugin} exec {node} retry",
    "subnet-choice": "{plugin} exec {node} status lists the subnets: tag one for pods, then {plugin} exec {node} retry",
}
"""What helps a node in the state EMPTY or BLOCKED, by the label `cause` of `ipamd_pool_blocked`, if that is known. The words in braces
are those of NEXT_STEPS."""


def next_step(state: NodeState, blocked: str) -> str:
    """Return what the operator should run, with the words in braces of NEXT_STEPS; "" if nothing.

    Args:
        blocked: why the pool cannot grow, `NodeFigures.blocked`.
    """
    if state in (NodeState.EMPTY, NodeState.BLOCKED) and blocked in CAUSE_STEPS:
        return CAUSE_STEPS[blocked]
    return NEXT_STEPS.get(state, "")


@dataclass(frozen=True)
class Judgement:
    """The state of a node, and the reason for people ("" if there is nothing to say)."""

    state: NodeState
    reason: str

    @property
    def needs_attention(self) -> bool:
        """Whether the state needs a person's attention."""
        return self.state not in UNREMARKABLE


def judge(reading: NodeReading, *, short_below: int = 0) -> Judgement:
    """Judge one node.

    Args:
        short_below: a node that can give fewer addresses than this number is SHORT.
    """
    if reading.figures is None:
        return Judgement(_silent_state(reading), _with_restarts(reading.problem, reading))
    for state, reason_of in _CHECKS:
        reason = reason_of(reading.figures, short_below)
        if state is NodeState.NOT_READY and reason:
            reason = _with_restarts(reason, reading)
        if reason:
            return Judgement(state, _with_others(state, reason, reading.figures))
    return Judgement(NodeState.READY, _others(reading.figures))


def _with_restarts(reason: str, reading: NodeReading) -> str:
    """Append how often the container of a running pod was restarted: between two crashes a daemon in a crash loop runs for seconds."""
    pod = reading.node.pod
    if pod is None or not pod.is_running or not pod.restart_count:
        return reason
    return f"{reason}; {counted(pod.restart_count, 'restart')}, last end: {pod.last_end or 'not known'}"


def _silent_state(reading: NodeReading) -> NodeState:
    if reading.silence is Silence.NO_POD:
        return NodeState.NO_DAEMON
    if reading.silence is not Silence.NOT_RUNNING:
        return NodeState.NO_ANSWER
    if reading.node.pod is not None and reading.node.pod.is_looping:
        return NodeState.CRASH_LOOP
    return NodeState.DOWN


def _not_ready(figures: NodeFigures, _: int) -> str:
    if figures.is_ready:
        return ""
    return "ADD is not served"


def _cut_off(figures: NodeFigures, _: int) -> str:
    parts = []
    if figures.cut_off_sandboxes:
        parts.append(f"{counted(figures.cut_off_sandboxes, 'pod')} without network")
    if figures.lost:
        parts.append(f"EC2 does not show {figures.lost} of the pods' addresses")
    return "; ".join(parts)


def _has_none(figures: NodeFigures) -> bool:
    return figures.assignable == 0


def _empty(figures: NodeFigures, _: int) -> str:
    if not _has_none(figures) or figures.blocked in NODE_FULL:
        return ""
    if figures.blocked:
        return f"no address can be given: {figures.blocked}"
    return "no address can be given"


def _blocked(figures: NodeFigures, _: int) -> str:
    if figures.blocked in {"", FROZEN, *NODE_FULL}:
        return ""
    return f"the pool cannot grow: {figures.blocked}"


def _short(figures: NodeFigures, short_below: int) -> str:
    if figures.assignable is None or figures.assignable >= short_below:
        return ""
    reason = f"fewer than {short_below} addresses can be given"
    if figures.blocked:
        return f"{reason}, and no more: {figures.blocked}"
    return reason


def _with_conditions(figures: NodeFigures, _: int) -> str:
    subjects = [subject for subject in figures.conditions if not _is_told_by_state(subject, figures)]
    if not figures.are_settings_valid:
        subjects.append("the settings file is wrong")
    return ", ".join(subjects)


def _is_told_by_state(subject: str, figures: NodeFigures) -> bool:
    """Whether the condition about `subject` says only what the state FULL or FROZEN says already."""
    if subject == "pool":
        return _has_none(figures) and figures.blocked in NODE_FULL
    return subject == FROZEN and bool(figures.frozen)


def _frozen(figures: NodeFigures, _: int) -> str:
    return ", ".join(figures.frozen)


def _full(figures: NodeFigures, _: int) -> str:
    if not _has_none(figures):
        return ""
    return f"{figures.blocked}: all its addresses are in use"


_CHECKS: tuple[tuple[NodeState, Callable[[NodeFigures, int], str]], ...] = (
    (NodeState.NOT_READY, _not_ready),
    (NodeState.CUT_OFF, _cut_off),
    (NodeState.EMPTY, _empty),
    (NodeState.BLOCKED, _blocked),
    (NodeState.SHORT, _short),
    (NodeState.CONDITIONS, _with_conditions),
    (NodeState.FROZEN, _frozen),
    (NodeState.FULL, _full),
)
"""The state that each check finds, in the order of severity. The first check that returns a reason decides the state."""


def _with_others(state: NodeState, reason: str, figures: NodeFigures) -> str:
    """Append further facts to the reason, and the conditions as well if the state is worse than CONDITIONS."""
    parts = [reason, _others(figures)]
    conditions = _with_conditions(figures, 0)
    if conditions and SEVERITY[state] < SEVERITY[NodeState.CONDITIONS]:
        parts.insert(1, f"conditions: {conditions}")
    return "; ".join(filter(None, parts))


def _others(figures: NodeFigures) -> str:
    """Return facts that have no state of their own: pods that wait, and settings that wait for a restart."""
    parts = []
    if figures.waiting_adds:
        parts.append(f"{counted(figures.waiting_adds, 'pod')} waiting for an address")
    if figures.settings_awaiting_restart:
        parts.append(f"{counted(figures.settings_awaiting_restart, 'setting')} awaiting a restart")
    return "; ".join(parts)
