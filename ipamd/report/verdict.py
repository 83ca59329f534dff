"""The verdict about this node: one line on whether it can run pods now, and a report of each condition with the next step.

`ipamctl status` prints the line first. Conditions that stop the start come before conditions that only degrade the node. The refusal
of an EC2 call that is still being retried comes before the other conditions about EC2.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from ipamd.core.demand import WAIT, delay
from ipamd.core.health import Condition, Phase, StageReport, StageState
from ipamd.model.cause import Cause, Ec2Refusal, Form, joined
from ipamd.model.cloud import CallUnderWay
from ipamd.model.condition_messages import condition_text
from ipamd.model.conditions import ConditionCode, Problem, problem
from ipamd.model.errors import AGENT, DATASTORE, METADATA, UNFILTERED
from ipamd.model.pool_counts import assignable_count
from ipamd.model.record import dataclass, field
from ipamd.model.words import MANY, counted, first_of, printable
from ipamd.report.disks import fold_by_disk
from ipamd.report.legs.advice import LEG_ADVICE
from ipamd.report.sources import Sources, sandbox_count

NOT_READY = "NOT READY: "

POOL = "pool"
"""Subject of the condition that a ready node has no address for a new pod. The condition is computed for each report, so it is never
out of date."""

NO_NEW_PODS = (DATASTORE, "plugins", "appended plugins", "other conflist", AGENT, "pod security groups", POOL)
"""Subjects of the conditions under which a ready node starts no new pod. If there is one of them, the line shows the first of them
instead of the number of addresses."""

LINE_MAX = 120
"""The largest number of characters of the line. Ours: a terminal, a chat and a page's title show this many without a line break."""

NAMES_MAX = 40
"""The largest number of characters that the names of further conditions take in the line. Ours: enough for three or four words."""

CODES = "docs/troubleshooting.md#other-codes"

POLICY = "docs/policy.md"

BESIDE = "docs/beside.md"

DEGRADED = "docs/troubleshooting.md#degraded-lines-of-ipamctl-status"

NO_ADDRESS = "docs/troubleshooting.md#a-pod-does-not-start-code-11-try-again-later"

BLOCKED_METADATA = "docs/troubleshooting.md#instance-metadata-is-blocked"

BY_HAND = "docs/troubleshooting.md#an-eni-was-detached-by-hand"

MIGRATION = "docs/migration.md"

BY_ITSELF = "it is tried again by itself"

METADATA_NEXT = "do what the message says, also in the launch template; metadata is asked again by itself, no restart is needed"

ASK_EC2 = "follow the message, then `ipamctl retry`"
"""The next step after a refusal of EC2 that lasts until a person acts. While EC2 only throttles, it is replaced by WAIT."""

FROZEN_ENI = "frozen"
"""Beginning of the subject of the condition of a frozen ENI; the ENI's ID follows."""

NO_POD_ON_ENI = (
    "no pod has its addresses: it is forgotten as soon as EC2 has confirmed the detachment and its addresses have cooled, and this "
    "ends; delete it in EC2 unless you attach it again: `aws ec2 delete-network-interface --network-interface-id {eni}`"
)

CRI_NEXT = "start the container runtime, or set VPC_IPAMD_CRI_SOCKET; it is asked again by itself"

STEPS = {
    "start": ("restart the daemon; if it stops again, report it with its log", DEGRADED),
    "export": ("take vpc-ipamd off this node, then let aws-node come; or keep the node: `ipamctl export --undo`", MIGRATION),
    "aws-node": ("remove its DaemonSet from this node; it is looked at again every second", MIGRATION),
    "spool": (f"{BY_ITSELF}; see the spool's directory and the log", DEGRADED),
    "kernel": (f"{BY_ITSELF}; see `ipamctl audit` and the log", DEGRADED),
    "host-routing": (f"{BY_ITSELF}; see the log", DEGRADED),
    "plugins": ("follow the message; the files are watched, no restart is needed", DEGRADED),
    "conflist": (f"mount a writable CNI configuration directory; {BY_ITSELF}", DEGRADED),
}
"""The next step, and the page about it, for each condition that stops a start. The keys are the subjects, in the order of the
start."""

ADVICE = STEPS | {
    **LEG_ADVICE,
    DATASTORE: ("free or mend the run directory's disk (`df`, `df -i`); it is tried every 5 s", CODES),
    "served mark": ("free or mend the run directory's disk (`df`, `df -i`); it is tried every 5 s", CODES),
    METADATA: (METADATA_NEXT, BLOCKED_METADATA),
    "ec2": (ASK_EC2, NO_ADDRESS),
    POOL: (ASK_EC2, NO_ADDRESS),
    "first address": ("the node becomes ready with its first address; follow the message, then `ipamctl retry`", NO_ADDRESS),
    "release": (ASK_EC2, DEGRADED),
    UNFILTERED: ("run the policy agent and remove VPC_IPAMD_POLICY_AGENT, or set NETWORK_POLICY_ENFORCING_MODE=none", POLICY),
    "security groups": (ASK_EC2, DEGRADED),
    "connection tracking": ("allow what it names; it is tried with each new ENI", DEGRADED),
    "pinned addresses": ("reserve the ranges in the subnet, with type explicit (docs/host.md)", DEGRADED),
    "tracked connections": (f"follow the message: cooled addresses are not assigned again meanwhile; {BY_ITSELF}", DEGRADED),
    "subnets": (ASK_EC2, "docs/subnets.md"),
    "cri": (CRI_NEXT, DEGRADED),
    AGENT: ("follow the message: no pod starts meanwhile, because it would run without a filter", POLICY),
    "policy cleanup": (
        "look at the agent's log; a new pod with this name is refused until the agent has forgotten the old one",
        POLICY,
    ),
    "ec2 answer": ("compare with the EC2 console; the daemon does not act on this answer", BY_HAND),
    "ec2 differences": (f"{BY_ITSELF}; if it stays: `ipamctl audit`", BY_HAND),
    "ec2 process": (f"{BY_ITSELF}; if it lasts: the log, and the OOM killer", DEGRADED),
    "frozen eni": ("`ipamctl audit` names its pods: attach the ENI again, or delete them", BY_HAND),
    "frozen": ("`ipamctl thaw` if an operator froze it; every other cause ends by itself", "docs/pool.md#frozen"),
    "external changes": ("find out who changes ENIs; the daemon asks EC2 for the present state", BY_HAND),
    "lost addresses": ("`ipamctl audit` names their pods: delete them", BY_HAND),
    "mass loss": ("compare with the EC2 console; nothing is freed meanwhile", BY_HAND),
    "history": ("free or mount the disk, or set VPC_IPAMD_HISTORY_DIR=off; ADD and DEL go on", DEGRADED),
    "settings": ("correct the settings file: it is read again at once", "docs/settings.md#the-settings-file"),
    "settings restart": (
        "restart the daemon: `kubectl -n kube-system rollout restart daemonset/vpc-ipamd`",
        "docs/settings.md#the-settings-file",
    ),
    "network file": (
        "`ipamctl plan --network FILE` shows what it does; then restart the daemon, or put the former file back",
        "docs/subnets.md#before-a-changed-file-is-applied",
    ),
    "repair conflict": ("find out what undoes the repair", "docs/troubleshooting.md#something-undoes-repairs"),
    "other software": (
        "if pods have no connectivity, run the command that the line names, and enter the same into that software's own "
        "configuration, because its next load of the rules removes what was inserted; after each change of nftables it is looked at "
        "again within seconds",
        "docs/host.md#filters-docker-firewalld-your-own",
    ),
    "foreign links": ("delete pods that should not have a second link", "docs/host.md#links-of-others"),
    "pod security groups": (
        "run the source of what pods want (see the page), or turn ENABLE_POD_ENI off",
        "docs/security-groups.md#who-tells-what-a-pod-wants",
    ),
    "pod admission policy": ("apply manifests/pod-eni to the cluster", "docs/security-groups.md#who-tells-what-a-pod-wants"),
    "trunk": ("label the node so that the control plane attaches one", "docs/security-groups.md#the-trunk"),
    "other conflist": ("remove that file, rename it so that it sorts behind ours, or let it delegate to ours", BESIDE),
    "other conflist copy": ("have its owner copy our conflist again", BESIDE),
    "other conflist unclear": ("check that the first network that it names is vpc-ipamd", BESIDE),
    "appended plugins": ("put its binary back, or take its entry out of the file", BESIDE),
    "appended entries": ("ask the owner of the entry; the file is left as it is", BESIDE),
    "confinement": ("follow the message: sandboxes may send forged packets meanwhile", DEGRADED),
    "node routing": (f"follow the message; {BY_ITSELF} every 30 s", "docs/host.md"),
    "duplicate addresses": ("delete the sandbox that should not have the address", DEGRADED),
    "aws-node conflict": ("delete one pod of each pair, and remove the DaemonSet aws-node", MIGRATION),
    "aws-node chains": (BY_ITSELF, MIGRATION),
    "import": ("delete the pods of these links", MIGRATION),
    "cni-backend": ("check that no other program has the socket, and that its directory is mounted", MIGRATION),
    "socket": ("remove what is at the socket's path: no ADD or DEL reaches the daemon meanwhile", DEGRADED),
    "requests": ("none now: the daemon restarts after a minute; if this comes again, report it with the log", DEGRADED),
    "request threads": ("raise the pids limit of the pod or the node, or free memory; no restart is needed", DEGRADED),
    "quarantine": (BY_ITSELF, "docs/troubleshooting.md#addresses-are-quarantined"),
    "spooled DELs": (BY_ITSELF, "docs/troubleshooting.md#dels-stay-in-the-spool"),
    "prefixes": ("use a Nitro type, or unset ENABLE_PREFIX_DELEGATION", "docs/prefixes.md"),
    "limits": ("allow ec2:DescribeInstanceTypes, then `ipamctl retry`", DEGRADED),
    "unrecorded sandboxes": ("`ipamctl audit` names those without network: delete their pods", DEGRADED),
}
"""The next step, and the page about it, for each condition. The keys are the beginnings of subjects. `advice` has the default."""

SUBJECTS = frozenset(map(str.lower, ADVICE)) | {
    "resync",
    "answers",
    "cloud",
    "cooldown",
    "drain hook",
    "events",
    "files",
    "health port",
    "host network",
    "links",
    "maintenance",
    "metrics port",
    "ports",
    "reaping",
    "recovery",
    "removal of links",
    "removal of rules",
    "repair of sandboxes",
    "runtime",
    "settings reload",
}
"""Beginnings of the subjects of all conditions, in lower case. They are the values of the label of the metric `ipamd_conditions`."""


@dataclass(frozen=True, slots=True)
class ConditionReport:
    """A condition as `ipamctl status` and the status page show it.

    `text`: the condition in a sentence.
    `next`: the next step.
    `page`: the page of the documentation about it.
    `codes`: the codes of its problems.
    `refusals`: the refusals of EC2 that cause it.
    `refused_ago_s`: seconds since EC2 refused last, which may be long after `since`; -1 if it is not known.
    """

    subject: str
    since: datetime | None
    text: str
    next: str
    page: str
    codes: Sequence[str]
    refusals: Sequence[Ec2Refusal]
    refused_ago_s: float = -1.0


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything that the verdict depends on.

    `assignable_count`: free addresses that can be assigned to a pod at present.
    `conditions`, `since`, `problems`: the text, the start time and the problems of each condition, by subject.
    `next_steps`: the next step, by subject, for conditions that have another next step than the one in `ADVICE`.
    `refusal`: the last refusal of an EC2 call that is being retried, or None.
    `cut_off_count`: the number of sandboxes of which at least one interface has no network.
    `refusal_ages`: seconds since EC2 last refused, by refusal.
    """

    is_ready: bool
    phase: Phase
    assignable_count: int
    conditions: Mapping[str, str]
    stages: tuple[StageReport, ...] = ()
    refusal: Cause | None = None
    since: Mapping[str, datetime] = field(default_factory=dict)
    problems: Mapping[str, tuple[Problem, ...]] = field(default_factory=dict)
    next_steps: Mapping[str, str] = field(default_factory=dict)
    cut_off_count: int = 0
    refusal_ages: Mapping[Ec2Refusal, float] = field(default_factory=dict)


def _disk_of(condition: Condition | None) -> str:
    if condition is None:
        return ""
    return condition.disk


def facts(sources: Sources) -> Facts:
    """Read everything that the verdict depends on, from memory. Only a disk that refuses writes is examined. The cost grows with the
    numbers of ENIs and addresses.
    """
    health, datastore, now = sources.health, sources.datastore, sources.clock.now()
    is_ready, count = health.is_ready, assignable_count(datastore.stock())
    reported = _reported(sources, is_empty=is_ready and not count)
    conditions: dict[str, str] = {}
    since: dict[str, datetime] = {}
    next_steps: dict[str, str] = {}
    disks: dict[str, str] = {}
    for subject, condition in reported.items():
        conditions[subject], since[subject], disks[subject] = condition.text, condition.since, condition.disk
        if condition.next_step:
            next_steps[subject] = condition.next_step
    if any(disks.values()):
        conditions, disk_steps = fold_by_disk(
            conditions, disks, paths_by_subject(sources), lambda subject, shown: reported[subject].text_about(shown)
        )
        next_steps |= disk_steps
    cut_off = sources.without_network()
    next_steps |= _steps_without_pods(reported, {str(interface.eni_id) for interface in cut_off})
    problems = {subject: condition.problems for subject, condition in reported.items()}
    call = _last_refused_call(sources)
    refusal = None
    if call:
        refusal = call.last_refusal
    if call and not is_ready:
        refused = problem(ConditionCode.EC2_REFUSED, cause=call.last_refusal)
        conditions["ec2"], problems["ec2"] = condition_text("ec2", refused), (refused,)
        since.setdefault("ec2", now - timedelta(seconds=call.age_s))
    return Facts(
        is_ready=is_ready,
        phase=health.phase,
        assignable_count=count,
        conditions=conditions,
        stages=tuple(health.stages()),
        refusal=refusal,
        since=since,
        problems=problems,
        next_steps=next_steps,
        cut_off_count=sandbox_count(cut_off),
        refusal_ages=sources.refusal_ages(),
    )


def _reported(sources: Sources, *, is_empty: bool) -> dict[str, Condition]:
    """Return the reported conditions by subject, and one of the pool if it `is_empty`: no address can be given."""
    reported = sources.health.conditions_since()
    if is_empty:
        reported[POOL] = _empty_pool(sources, disk=_disk_of(reported.get(DATASTORE)))
    return reported


def _steps_without_pods(subjects: Iterable[str], cut_off_enis: Container[str]) -> dict[str, str]:
    """Return the next step of conditions about lost ENIs and addresses that no pod has any more, by subject.

    `cut_off_enis`: the ENIs of interfaces without network.
    """
    steps = {}
    for subject in subjects:
        kind, _, eni = subject.rpartition(" ")
        if kind == FROZEN_ENI and eni not in cut_off_enis:
            steps[subject] = NO_POD_ON_ENI.format(eni=eni)
    return steps


def _empty_pool(sources: Sources, *, disk: str) -> Condition:
    """Return the condition that the pool has no address for a new pod.

    `disk`: how the datastore's disk refuses writes (a key of DISK_STEPS), "" if it does not. A disk that refuses writes is the cause
    of this condition too, because no new address can be recorded.
    """
    status, delayed_by = sources.demand.status, delay(sources.ec2, sources.clock)
    empty = problem(ConditionCode.NO_ADDRESS, cause=status.shortage(delayed_by), next_step=status.step(delayed_by))
    # The pool became empty when the last free address was taken, which is no later than the latest change of a row. Later changes
    # (a DEL, or an address that a waiting ADD takes at once) do not end the shortage, so the first plan without a free address counts.
    since = max((row.since for row in sources.datastore.addresses()), default=sources.clock.now())
    since = min(since, sources.demand.short_since or since)
    return Condition((empty,), condition_text(POOL, empty), since, disk)


def _last_refused_call(sources: Sources) -> CallUnderWay | None:
    """Return the last EC2 call that was refused and is being retried; None if there is none."""
    refused = [call for call in sources.ec2.calls_under_way() if call.last_refusal]
    if not refused:
        return None
    return refused[-1]


def paths_by_subject(sources: Sources) -> dict[str, Path]:
    """Return the path to which a writer writes, by the subject of the condition that reports its failure.

    The path under "" is for all other subjects.
    """
    daemon = sources.settings.generation.settings.daemon
    return {
        "conflist": daemon.conflist_path.parent,
        "plugins": daemon.cni_bin_dir,
        "history": Path(daemon.history_dir),
        "": daemon.run_dir,
    }


def condition_reports(node: Facts) -> list[ConditionReport]:
    """Return a report of each condition. The datastore's comes first, then those that stop the start. Pure."""
    order = [DATASTORE, *STEPS, METADATA, "ec2", "first address", POOL]

    def rank(subject: str) -> tuple[int, str]:
        if subject in order:
            return order.index(subject), subject
        return len(order), subject

    ranked = sorted(node.conditions, key=rank)
    reports = []
    for subject in ranked:
        # Each refusal of EC2 is shown in full once: the conditions POOL and "first address" refer to the condition `ec2`.
        shown_by_ec2: tuple[Ec2Refusal, ...] = ()
        if subject in (POOL, "first address"):
            shown_by_ec2 = _refusals(node, "ec2")
        text = _sentence(node, subject, Form.FULL, shown_by_ec2)
        step, page = advice(subject)
        codes = [str(problem.code) for problem in node.problems.get(subject, ())]
        refusals = _refusals(node, subject)
        step = node.next_steps.get(subject, _fitting_step(step, refusals))
        age_s = min((node.refusal_ages[refusal] for refusal in refusals if refusal in node.refusal_ages), default=-1.0)
        reports.append(ConditionReport(subject, node.since.get(subject), text, step, page, codes, refusals, age_s))
    return reports


def _fitting_step(step: str, refusals: Collection[Ec2Refusal]) -> str:
    """Return the advice of a condition; WAIT in place of ASK_EC2 if EC2 only throttles, because then nothing is to be repaired."""
    is_throttling = bool(refusals) and all(refusal.is_throttled for refusal in refusals)
    return WAIT if step == ASK_EC2 and is_throttling else step


def _refusals(node: Facts, subject: str) -> tuple[Ec2Refusal, ...]:
    """Return the refusals of EC2 that cause a condition, without repetitions."""
    refusals: list[Ec2Refusal] = []
    for reported in node.problems.get(subject, ()):
        refusals += reported.refusals
    return tuple(dict.fromkeys(refusals))


def _sentence(node: Facts, subject: str, form: Form, shown: Container[Ec2Refusal] = ()) -> str:
    """Return the text of a condition in a long or a short form. Only a text about refusals of EC2 has a short form.

    `shown`: refusals that the report of another condition shows in full. This text only refers to them.
    """
    if not _refusals(node, subject):
        return node.conditions[subject]
    texts = [printable(condition_text(subject, reported, form, shown)) for reported in node.problems[subject]]
    return "; ".join(dict.fromkeys(texts))


def advice(subject: str) -> tuple[str, str]:
    """Return the next step for a condition, and the page about it."""
    return ADVICE.get(kind_of(subject, ADVICE), (f"{BY_ITSELF}; if it stays, report it with the log", DEGRADED))


def kind_of(subject: str, kinds: Iterable[str] = SUBJECTS) -> str:
    """Return the longest of `kinds` with which a subject begins, regardless of case; "" if it begins with none of them."""
    fitting = [kind for kind in kinds if subject.lower().startswith(kind.lower())]
    return max(fitting, key=len, default="")


def verdict(node: Facts) -> str:
    """Report in one line of at most LINE_MAX characters whether this node can run pods now. Pure."""
    if not node.is_ready:
        cause, next_step = _not_ready(node)
        line_with_step = f"{NOT_READY}{cause(Form.FULL)}; next: {next_step}"
        if len(line_with_step) <= LINE_MAX:
            return line_with_step
        return f"{NOT_READY}{_brief(cause, LINE_MAX - len(NOT_READY))}"
    head = _ready(node)
    stopped_by = next((subject for subject in NO_NEW_PODS if subject in node.conditions), "")
    further = _names(sorted(set(node.conditions) - {stopped_by}))
    supply = _supply(node.assignable_count)
    if stopped_by:
        room = LINE_MAX - len(head) - len(further) - len(": ")
        supply = _brief(partial(_sentence, node, stopped_by), room)
    return f"{head}: {supply}{further}"


def _ready(node: Facts) -> str:
    """Return the beginning of a ready node's line: pods without network, and the number of conditions."""
    head = "ready"
    if node.cut_off_count:
        head += f", but {counted(node.cut_off_count, 'pod')} without network"
    if node.conditions:
        head += f", with {counted(len(node.conditions), 'condition')}"
    return head


def _supply(assignable: int) -> str:
    if assignable >= MANY:
        return "a /80 has more addresses than this node can use"
    return f"{counted(assignable, 'address')} can be given"


def _names(subjects: Sequence[str]) -> str:
    """Return the end of a ready node's line: as many names of conditions as have room in NAMES_MAX characters; "" if none has."""
    for most in range(len(subjects), -1, -1):
        names = first_of(subjects, most)
        if len(names) <= NAMES_MAX:
            if not names:
                return ""
            return f"; {names}"
    return ""


def _brief(sentence: Callable[[Form], str], most: int) -> str:
    """Return the longest form of a sentence with at most `most` characters. If every form is longer, cut the longest form off."""
    for form in Form:
        text = sentence(form)
        if len(text) <= most:
            return text
    return f"{sentence(Form.FULL)[: most - 3].rstrip()}..."


def _not_ready(node: Facts) -> tuple[Callable[[Form], str], str]:
    """Return why a node is not ready, as a function that makes the text in a long or short form, and the next step."""
    reports = {report.subject: report for report in condition_reports(node)}
    if node.phase is Phase.DRAINING:
        return _only("vpc-ipamd is shutting down"), "its successor takes over; start it if none comes"
    for subject in STEPS:
        if subject in reports:
            return _only(reports[subject].text), reports[subject].next
    silent = _silent_peer(node, reports)
    if silent is not None:
        return silent
    if node.refusal is not None:
        return node.refusal.render, _fitting_step(ASK_EC2, node.refusal.refusals)
    if "ec2" in reports:
        return _cause(node, "ec2"), reports["ec2"].next
    if "first address" in reports:
        return _cause(node, "first address", about="no address can be given"), reports["first address"].next
    working = f"{node.phase}, at work on {_running_stages(node.stages)}"
    return _only(working), "wait; `ipamctl status` shows the stages"


def _silent_peer(node: Facts, reports: Mapping[str, ConditionReport]) -> tuple[Callable[[Form], str], str] | None:
    """Return what `_not_ready` returns if the runtime or instance metadata does not answer; None if both do."""
    if "cri" in reports and _has_no_first_list(node):
        return _only(reports["cri"].text), CRI_NEXT
    if METADATA in reports:
        return _cause(node, METADATA), METADATA_NEXT
    return None


def _cause(node: Facts, subject: str, *, about: str = "") -> Callable[[Form], str]:
    """Return a function that makes the text of a condition's cause in a long or short form.

    If the condition has no cause, the function returns the text of the condition. `about`: words that are put before the cause.
    """
    causes = [problem.cause for problem in node.problems.get(subject, ()) if problem.cause is not None]
    if not causes:
        return _only(node.conditions[subject])
    cause = joined(causes)
    if about:
        cause = cause.about(about)
    return cause.render


def _only(text: str) -> Callable[[Form], str]:
    """Return a function that returns this text for the long form and for every shorter one."""
    return lambda _: text


def _has_no_first_list(node: Facts) -> bool:
    """Whether the start waits for the container runtime's first list of sandboxes, or has gone on without it and has not ended."""
    if node.phase is Phase.SERVING:
        return False
    return any(stage.name == "cri" and stage.state in (StageState.RUNNING, StageState.DEGRADED) for stage in node.stages)


def _running_stages(stages: Iterable[StageReport]) -> str:
    running = []
    for stage in stages:
        if stage.state is StageState.RUNNING:
            running.append(f"{stage.name} for {stage.elapsed_ms / 1000:.1f} s")
    return ", ".join(running) or "nothing"
