"""`kubectl ipamd top`: free and used addresses by subnet and by zone, the fullest first.

Free and used addresses of a subnet come from the node that asked EC2 last, because idle nodes do not ask EC2 and have old figures.
The recording rules (manifests/monitoring/rules.yaml) do the same.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from kubectl_ipamd.errors import NoAnswerError
from kubectl_ipamd.figures import SubnetFigures
from kubectl_ipamd.fleet import NodeReading
from kubectl_ipamd.session import Session
from kubectl_ipamd.text import counted, table
from kubectl_ipamd.verbs.printing import Answer, columns_of, print_answer
from kubectl_ipamd.verbs.status import require_figures

UNKNOWN_LAST = 1 << 62
"""Stands for a number of free addresses that is not known, so that the subnet is sorted behind all others."""

SUBNET_COLUMNS = {
    "SUBNET": "subnet",
    "ZONE": "zone",
    "FREE": "free",
    "USED": "used",
    "FRAGMENTED": "fragmented",
    "NODES": "nodes",
    "PODS HAVE": "assigned",
    "NODES KEEP": "kept",
    "NOT OURS": "not_ours",
    "OTHER": "other",
    "AGE": "age",
}

ZONE_COLUMNS = {
    "ZONE": "zone",
    "FREE": "free",
    "USED": "used",
    "SUBNETS": "subnets",
    "NODES": "nodes",
    "UNREAD": "unread",
    "PODS HAVE": "assigned",
    "NODES KEEP": "kept",
}

WIDE_ONLY = ("OTHER",)


@dataclass
class _SubnetSum:
    """The figures of one subnet from all nodes.

    `youngest`: EC2's youngest answer. `fragmented`: the highest number that a node reports. `nodes`: how many nodes hold addresses of
    the subnet. `held`: the sums of those addresses by state. `full_count`: how many nodes have an answer without a free address.
    `oldest_s`: the age of EC2's oldest answer to a node.
    """

    youngest: SubnetFigures | None = None
    fragmented: int | None = None
    nodes: int = 0
    held: Counter[str] = field(default_factory=Counter)
    full_count: int = 0
    oldest_s: float | None = None

    def add(self, figures: SubnetFigures) -> None:
        """Add the figures of one node."""
        if figures.held:
            self.nodes += 1
            self.held.update(figures.held)
        if figures.fragmented is not None:
            self.fragmented = max(self.fragmented or 0, figures.fragmented)
        self.full_count += figures.free == 0
        if figures.age_s is not None:
            self.oldest_s = max(self.oldest_s or 0.0, figures.age_s)
        if figures.free is not None and (self.youngest is None or _order(figures) < _order(self.youngest)):
            self.youngest = figures


def _order(figures: SubnetFigures) -> tuple[float, int]:
    """Return the sort key of EC2's answers: the younger answer first; if both have the same age, the answer with fewer free
    addresses."""
    age_s = figures.age_s
    if age_s is None:
        age_s = float("inf")
    return age_s, figures.free or 0


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Print subnets and zones. Returns: 0. Raises: PluginError."""
    readings, notes = session.fleet()
    if not readings:
        raise NoAnswerError("; ".join(notes))
    answer = top_answer(readings, notes)

    def as_text(answer: Answer) -> str:
        return _text(answer, by=arguments.by, output=session.output)

    print_answer(answer, output=session.output, as_text=as_text)
    require_figures(readings)
    return 0


def top_answer(readings: Iterable[NodeReading], notes: Iterable[str]) -> Answer:
    """Sum up the readings by subnet and by zone.

    The free addresses of a zone are the sum over those of its subnets whose free addresses are known.
    """
    readings = list(readings)
    sums: dict[tuple[str, str], _SubnetSum] = {}
    for reading in readings:
        if reading.figures is not None:
            for key, figures in reading.figures.subnets.items():
                sums.setdefault(key, _SubnetSum()).add(figures)
    subnets = [_subnet_row(subnet, zone, subnet_sum) for (subnet, zone), subnet_sum in sums.items()]
    subnets.sort(key=lambda row: (_free_or_last(row), row["subnet"]))
    zones = _zone_rows(readings, subnets)
    unread_count = sum(reading.figures is None for reading in readings)
    all_notes = [*notes, *_contradictions(subnets)]
    if unread_count:
        all_notes.append(f"{unread_count} of {len(readings)} nodes are not in these figures; `kubectl ipamd status` says why")
    return {"subnets": subnets, "zones": zones, "notes": all_notes}


def _free_or_last(row: Answer) -> int:
    if row["free"] is None:
        return UNKNOWN_LAST
    return int(row["free"])


def _subnet_row(subnet: str, zone: str, subnet_sum: _SubnetSum) -> Answer:
    youngest = subnet_sum.youngest
    return {
        "subnet": subnet,
        "zone": zone,
        "free": youngest and youngest.free,
        "used": youngest and youngest.used,
        "fragmented": subnet_sum.fragmented,
        "answer_age_s": youngest and youngest.age_s,
        "oldest_answer_age_s": subnet_sum.oldest_s,
        "nodes": subnet_sum.nodes,
        "full_for_nodes": subnet_sum.full_count,
        "assigned": subnet_sum.held["assigned"],
        "kept": subnet_sum.held["free"],
        "other": subnet_sum.held["other"],
        "not_ours": _not_ours(youngest, subnet_sum.held),
    }


def _not_ours(youngest: SubnetFigures | None, held: Counter[str]) -> int | None:
    """Count the used addresses that are in no pool of a node that was read; None if the used ones are not known."""
    if youngest is None or youngest.used is None:
        return None
    return max(youngest.used - sum(held.values()), 0)


def _contradictions(subnets: Iterable[Answer]) -> list[str]:
    """Return a note for each subnet that is full by the answers to some nodes, although the youngest answer has free addresses.

    Such a node creates no ENI there before it asks EC2 again.
    """
    notes = []
    for row in subnets:
        if row["free"] and row["full_for_nodes"]:
            nodes = counted(row["full_for_nodes"], "node")
            age = _duration(row["oldest_answer_age_s"])
            notes.append(
                f"{row['subnet']}: {row['free']} free by the youngest answer of EC2, none by the answers to {nodes}, up to {age} old: "
                "`kubectl ipamd status` names those with subnet-full; `ipamctl retry` there asks EC2 again"
            )
    return notes


def _zone_rows(readings: Iterable[NodeReading], subnets: Iterable[Answer]) -> list[Answer]:
    zones: dict[str, Answer] = {}

    def zone_row(zone: str) -> Answer:
        empty = {"zone": zone, "free": None, "used": None, "subnets": 0, "nodes": 0, "unread": 0, "assigned": 0, "kept": 0}
        return zones.setdefault(zone, empty)

    for reading in readings:
        row = zone_row(_zone_of(reading))
        row["nodes"] += 1
        row["unread"] += reading.figures is None
    for subnet in subnets:
        row = zone_row(subnet["zone"])
        row["subnets"] += 1
        for key in ("assigned", "kept"):
            row[key] += subnet[key]
        for key in ("free", "used"):
            if subnet[key] is not None:
                row[key] = (row[key] or 0) + subnet[key]
    return sorted(zones.values(), key=lambda row: (_free_or_last(row), row["zone"]))


def _zone_of(reading: NodeReading) -> str:
    if reading.figures is not None and reading.figures.zone:
        return reading.figures.zone
    return reading.node.zone


def _text(answer: Answer, *, by: str, output: str) -> str:
    parts = []
    if by in ("both", "subnet"):
        shown = [{**row, "age": _age(row)} for row in answer["subnets"]]
        parts.append(table(shown, columns_of(SUBNET_COLUMNS, wide_only=WIDE_ONLY, output=output)))
    if by in ("both", "zone"):
        parts.append(table(answer["zones"], columns_of(ZONE_COLUMNS, wide_only=WIDE_ONLY, output=output)))
    return "\n\n".join(parts)


def _age(row: Mapping[str, float | None]) -> str:
    return _duration(row["answer_age_s"])


def _duration(age_s: float | None) -> str:
    if age_s is None:
        return ""
    for unit, seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if age_s >= 2 * seconds:
            return f"{age_s / seconds:.0f}{unit}"
    return f"{age_s:.0f}s"
