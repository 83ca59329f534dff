"""What is amiss on this node: one line that answers whether it can run pods now, and each condition once, with what to do.

`ipamctl status` prints the line first. What blocks a start is told before what is only missing, and a refusal of a call that is still
being retried before everything else, because it is the newest word.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from pathlib import Path

from ipamd.core.demand import delay
from ipamd.core.health import Phase, StageReport, StageState
from ipamd.model.errors import AGENT, DATASTORE
from ipamd.model.pool import assignable_count
from ipamd.model.record import dataclass, field
from ipamd.model.words import MANY, counted, first_of
from ipamd.report.sources import Sources

POOL = "pool"
"""Subject of the condition of a node that was ready and has no address to give. It is derived, so it can never be stale."""

NO_NEW_PODS = (DATASTORE, "plugins", "other conflist", AGENT, "pod facts", POOL)
"""Conditions of a ready node with which no new pod starts: the line tells the first of them, not how many addresses there are."""

MOST = 120
"""Characters of the line. Ours: what a terminal, a chat and a page's title show whole."""

_REFUSAL = re.compile(r"EC2 (\w+) failed(?: for .*?)?: (\w+).*", re.S)
"""As `ipamd/cloud/errors.py` words it."""

SQLITE = "SQLITE_"
"""In what the datastore's adapter says of its disk."""

NAMES_MAX = 40
"""Of them for the names of conditions besides the pool's. Ours: three or four words."""

CODES = "docs/troubleshooting.md#other-codes"
POLICY = "docs/policy.md"
LACKS = "docs/troubleshooting.md#lacks-lines-of-ipamctl-status"
NO_ADDRESS = "docs/troubleshooting.md#a-pod-does-not-start-code-11-try-again-later"
BY_HAND = "docs/troubleshooting.md#an-eni-was-detached-by-hand"
MIGRATION = "docs/migration.md"
BY_ITSELF = "it is tried again by itself"
ASK_EC2 = "do what it says, then `ipamctl retry`; while EC2 throttles, wait"
CRI_NEXT = "start the container runtime, or set CRI_SOCKET; it is asked again by itself"

STEPS = {
    "start": ("restart the daemon; if it stops again, report it with its log", LACKS),
    "export": ("take vpc-ipamd off this node, then let aws-node come; or keep the node: `ipamctl export --undo`", MIGRATION),
    "aws-node": ("remove its DaemonSet from this node; it is looked at again every second", MIGRATION),
    "spool": (f"{BY_ITSELF}; see the spool's directory and the log", LACKS),
    "kernel": (f"{BY_ITSELF}; see `ipamctl audit` and the log", LACKS),
    "host-routing": (f"{BY_ITSELF}; see the log", LACKS),
    "plugins": ("do what it says; the files are watched, no restart is needed", LACKS),
    "conflist": (f"mount a writable CNI configuration directory; {BY_ITSELF}", LACKS),
}
"""Conditions that stop a start, with what to do and its page, in the order of the start."""

ADVICE = STEPS | {
    DATASTORE: ("free or mend the run directory's disk (`df`, `df -i`); it is tried every 5 s", CODES),
    "served mark": ("free or mend the run directory's disk (`df`, `df -i`); it is tried every 5 s", CODES),
    "ec2": (ASK_EC2, NO_ADDRESS),
    POOL: (ASK_EC2, NO_ADDRESS),
    "first address": ("it becomes ready with the first address; do what it says, then `ipamctl retry`", NO_ADDRESS),
    "giving back": (ASK_EC2, LACKS),
    "security groups": (ASK_EC2, LACKS),
    "connection tracking": ("allow what it names; it is tried with each new ENI", LACKS),
    "subnets": (ASK_EC2, "docs/subnets.md"),
    "cri": (CRI_NEXT, LACKS),
    AGENT: ("do what it says: no pod starts meanwhile, because it would run without a filter", POLICY),
    "owed policy": ("look at the agent's log; a new pod of such a name is refused until the agent has forgotten it", POLICY),
    "ec2 answer": ("compare with the EC2 console; nothing is concluded from it", BY_HAND),
    "ec2 differences": (f"{BY_ITSELF}; if it stays: `ipamctl audit`", BY_HAND),
    "ec2 process": (f"{BY_ITSELF}; if it lasts: the log, and the OOM killer", LACKS),
    "frozen eni": ("`ipamctl audit` names its pods: attach the ENI again, or delete them", BY_HAND),
    "frozen": ("`ipamctl thaw` if an operator froze it; every other cause ends by itself", "docs/pool.md#frozen"),
    "other hands": ("find out who changes ENIs; EC2 is asked which of the two is right", BY_HAND),
    "lost addresses": ("`ipamctl audit` names their pods: delete them", BY_HAND),
    "mass loss": ("compare with the EC2 console; nothing is freed meanwhile", BY_HAND),
    "history": ("free or mount the disk, or set VPC_IPAMD_HISTORY_DIR=off; ADD and DEL go on", LACKS),
    "settings": ("correct the settings file, or restart the daemon where it says so", "docs/settings.md#the-settings-file"),
    "fight": ("find out what undoes the repair", "docs/troubleshooting.md#something-undoes-repairs"),
    "foreign links": ("delete pods that should not have a second link", "docs/host.md#links-of-others"),
    "branch": ("find out who wrote the pod's annotation, and delete the pod", "docs/security-groups.md#what-happens"),
    "pod facts": ("start who tells it, or turn ENABLE_POD_ENI off", "docs/security-groups.md#who-tells-what-a-pod-wants"),
    "pod marks": ("apply manifests/pod-eni to the cluster", "docs/security-groups.md#who-tells-what-a-pod-wants"),
    "trunk": ("label the node so that the control plane attaches one", "docs/security-groups.md#the-trunk"),
    "other conflist": ("remove that file, or let it sort behind ours", "docs/host.md"),
    "confinement": ("do what it says: sandboxes may send forged packets meanwhile", LACKS),
    "node routing": (f"do what it says; {BY_ITSELF} every 30 s", "docs/host.md"),
    "egress": ("do what it says, or turn the egress off", "docs/ipv6.md"),
    "duplicates": ("delete the sandbox that should not have the address", LACKS),
    "given twice": ("delete one pod of each pair, and remove the DaemonSet aws-node", MIGRATION),
    "aws-node chains": (BY_ITSELF, MIGRATION),
    "import": ("delete the pods of these links", MIGRATION),
    "cni-backend": ("see that nobody else has the socket, and that its directory is mounted", MIGRATION),
    "socket": ("free its place: no ADD or DEL reaches the daemon meanwhile", LACKS),
    "quarantine": (BY_ITSELF, "docs/troubleshooting.md#addresses-are-quarantined"),
    "spooled DELs": (BY_ITSELF, "docs/troubleshooting.md#dels-stay-in-the-spool"),
    "prefixes": ("use a Nitro type, or unset ENABLE_PREFIX_DELEGATION", "docs/prefixes.md"),
    "limits": ("allow ec2:DescribeInstanceTypes, then `ipamctl retry`", LACKS),
    "unplaced": ("`ipamctl audit` names those without network: delete their pods", LACKS),
}
"""What to do about each other condition, by how its subject begins, and the page that says more; `advice` has the rest."""

SUBJECTS = frozenset(map(str.lower, ADVICE)) | {
    *(
        "another look",
        "cloud",
        "cooldown",
        "drain hook",
        "events",
        "files",
        "health port",
        "host network",
        "links",
        "maintenance",
    ),
    *("metrics port", "ports", "reaping", "recovery", "removal of links", "removal of rules", "repair of sandboxes", "runtime"),
    *("settings reload", "settings restart"),
}
"""How the subjects of conditions begin: the labels of `ipamd_condition_subjects`."""


@dataclass(frozen=True, slots=True)
class Told:
    """A condition as people get it."""

    subject: str
    since: datetime | None
    text: str
    next: str
    page: str


@dataclass(frozen=True, slots=True)
class Facts:
    """What the verdict depends on. `conditions` by subject; `refusal`: the last of an EC2 call that is being retried, or "".

    `since`: of each condition, if that is known. `cut_off_count`: sandboxes without network.
    """

    is_ready: bool
    phase: Phase
    assignable_count: int
    conditions: Mapping[str, str]
    stages: tuple[StageReport, ...] = ()
    refusal: str = ""
    since: Mapping[str, datetime] = field(default_factory=dict)
    cut_off_count: int = 0


def facts(sources: Sources) -> Facts:
    """Read everything that the verdict depends on, from memory. Cost: the number of ENIs and attachments."""
    health, datastore, now = sources.health, sources.datastore, sources.clock.now()
    is_ready, count = health.is_ready, assignable_count(datastore.stock())
    known = health.conditions_since()
    conditions, since = {name: one.text for name, one in known.items()}, {name: one.since for name, one in known.items()}
    if is_ready and not count:
        conditions[POOL] = f"pool: no address is assignable: {sources.demand.status.cause(delay(sources.ec2, sources.clock))}"
        since[POOL] = max((row.since for row in datastore.addresses()), default=now)  # no row has changed since it became so
    disks = {name: one.disk for name, one in known.items()}
    if SQLITE in conditions.get(POOL, ""):  # what the pool could not record is why it is empty
        disks[POOL] = disks.get(DATASTORE, "")
    if any(disks.values()):
        conditions = one_for_each_disk(conditions, disks, places(sources))
    refused = [call for call in sources.ec2.calls_under_way() if call.last_refusal]
    if refused and not is_ready:
        conditions["ec2"] = f"EC2: {refused[-1].last_refusal}"
        since.setdefault("ec2", now - timedelta(seconds=refused[-1].age_s))
    return Facts(
        is_ready,
        health.phase,
        count,
        conditions,
        tuple(health.stages()),
        refused[-1].last_refusal if refused else "",
        since,
        len(sources.without_network()),
    )


def places(sources: Sources) -> dict[str, Path]:
    """Where what a condition tells of is written: "" is everything else."""
    daemon = sources.settings.generation.settings.daemon
    own = {"conflist": daemon.conflist_path.parent, "plugins": daemon.cni_bin_dir}
    return own | {"history": Path(daemon.history_dir), "": daemon.run_dir}


def told(known: Facts) -> list[Told]:
    """Every condition once, what stops the start first. Concurrency: pure."""
    order = [DATASTORE, *STEPS, "ec2", "first address", POOL]
    ranked = sorted(known.conditions, key=lambda name: (order.index(name) if name in order else len(order), name))
    refusal = known.conditions.get("ec2", "").removeprefix("EC2: ").partition("; ")[0]
    found = []
    for name in ranked:
        text, _, own_step = known.conditions[name].partition("; next: ")
        if refusal and name in (POOL, "first address"):
            text = text.replace(refusal, "see EC2")  # the cause is a condition itself: told once
        step, page = advice(name)
        found.append(Told(name, known.since.get(name), text, own_step or step, page))
    return found


def advice(subject: str) -> tuple[str, str]:
    """What to do about a condition, and the page that says more."""
    return ADVICE.get(kind_of(subject, ADVICE), (f"{BY_ITSELF}; if it stays, report it with the log", LACKS))


def kind_of(subject: str, known: Iterable[str] = SUBJECTS) -> str:
    """The longest of the words with which a condition's subject begins, in any case; "" if it begins with none of them."""
    return max((one for one in known if subject.lower().startswith(one.lower())), key=len, default="")


def verdict(known: Facts) -> str:
    """Say in one line of MOST characters whether this node can run pods now. Concurrency: pure."""
    if not known.is_ready:
        cause, next_step = _not_ready(known)
        line = f"NOT READY: {cause}"
        whole = f"{line}; next: {next_step}"
        return whole if len(whole) <= MOST else _brief(line, MOST)
    stopped_by = next((one for one in NO_NEW_PODS if one in known.conditions), "")
    others = sorted(set(known.conditions) - {stopped_by})
    count = known.assignable_count
    supply = "a /80 has more addresses than this node can use" if count >= MANY else f"{counted(count, 'address')} can be given"
    supply = known.conditions.get(stopped_by, supply)
    head = f"ready, but {counted(known.cut_off_count, 'pod')} without network" if known.cut_off_count else "ready"
    if known.conditions:
        head += f", with {counted(len(known.conditions), 'condition')}"
    named = next(text for most in range(len(others), -1, -1) if len(text := first_of(others, most)) <= NAMES_MAX)
    named = f"; {named}" if named else ""
    return f"{head}: {_brief(supply, MOST - len(head) - len(named) - 2)}{named}"


def _brief(text: str, most: int) -> str:
    """Shorten a sentence: of a refusal of EC2 the code is told before all else, with the call if both have room."""
    for form in (r"EC2 \1: \2", r"\2"):
        if len(text) > most and len(shorter := _REFUSAL.sub(form, text)) <= most:
            text = shorter
    return text if len(text) <= most else f"{text[: most - 3].rstrip()}..."


def _not_ready(known: Facts) -> tuple[str, str]:
    """The cause and the next step."""
    conditions = {one.subject: one for one in told(known)}
    if known.phase is Phase.DRAINING:
        return "vpc-ipamd is shutting down", "its successor takes over; start it if none comes"
    for subject in STEPS:
        if subject in conditions:
            return conditions[subject].text, conditions[subject].next
    cri_state = next((stage.state for stage in known.stages if stage.name == "cri"), StageState.PENDING)
    if known.phase is not Phase.SERVING and cri_state is StageState.DEGRADED and "cri" in conditions:
        return conditions["cri"].text, CRI_NEXT
    if known.refusal or "ec2" in conditions:
        return known.refusal or conditions["ec2"].text.removeprefix("EC2: "), ASK_EC2
    if "first address" in conditions:
        return conditions["first address"].text, conditions["first address"].next
    running = [f"{stage.name} for {stage.elapsed_ms / 1000:.1f} s" for stage in known.stages if stage.state is StageState.RUNNING]
    return f"{known.phase}, at work on {', '.join(running) or 'nothing'}", "wait; `ipamctl status` shows the stages"


# One disk that refuses makes many things fail; people get it as one condition, with the disk and what it lacks.
#
# A loop, the mark of service, the history and the datastore each report what they could not write, and each report is right. But
# what is to be done is one thing, at one file system. The others are named behind the first of them, and return if they outlast it.


DISK_STEPS = {
    "full": "free space there: `df {0}`, `du -x {0}`",
    "inodes": "delete files there: `df -i {0}`",
    "read-only": "mount it writable; the kernel log says why it is not",
    "failing": "look at the kernel log; replace the disk",
}
"""What to do about each kind of refusal."""

DISK_SAYS = {
    "full": "is full",
    "inodes": "has no inode left",
    "read-only": "is read-only",
    "failing": "reports errors",
}


def one_for_each_disk(conditions: Mapping[str, str], refusals: Mapping[str, str], places: Mapping[str, Path]) -> dict[str, str]:
    """Fold the conditions that one file system causes into one, with its cause, the others by name, and what to do.

    Args:
        conditions: by subject, as they were reported.
        refusals: how a disk refused, for the subjects for which one did (`disk_refusal`).
        places: a path on the disk by subject, "" for all that are not named.
    Returns: as many as there are troubles. Those that no disk causes are as they were.
    """
    disks: dict[object, list[str]] = {}
    for subject in sorted(conditions, key=lambda one: (one != DATASTORE, one)):
        if refusals.get(subject):
            place = places.get(subject, places[""])
            disks.setdefault(_device(place), []).append(subject)
    told = dict(conditions)
    for first, *others in disks.values():
        place = places.get(first, places[""])
        kind, room = _room(place, refusals[first])
        also = f"; so do: {', '.join(others)}" if others else ""
        cause = f"{first}: the file system of {place} {DISK_SAYS[kind]}{room}"
        told[first] = f"{cause}: {conditions[first].removeprefix(f'{first}: ')}{also}; next: {DISK_STEPS[kind].format(place)}"
        for other in others:
            del told[other]
    return told


def _device(place: Path) -> object:
    try:
        return place.stat().st_dev
    except OSError:
        return place  # what cannot be looked at is a trouble of its own


def _room(place: Path, refusal: str) -> tuple[str, str]:
    """How it refuses, which may be for want of inodes, and what it has left."""
    try:
        found = os.statvfs(place)
    except OSError:
        return refusal, ""
    if refusal == "full" and found.f_files and not found.f_favail:
        return "inodes", ""
    if refusal != "full":
        return refusal, ""
    return refusal, f" ({found.f_bavail * found.f_frsize >> 10} of {found.f_blocks * found.f_frsize >> 10} KiB are free)"
