"""A figure: a measured value with its unit, its reference from the same run, and the budget that it is compared with.

The budgets are defined here and nowhere else in the code; README.md lists them beside measured values. A figure without a budget gives
context, such as a phase of a call, and its `met` is None. A budget bounds the value itself, its ratio to the reference, or its excess
over the reference.

Budgets in milliseconds were set on one machine. On a slower machine the bounds of the daemon's part and of a restart grow in
proportion to the start time of its bare interpreter. On a faster machine they stay, because a budget is a promise for all machines.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Budget:
    """An upper bound on a figure's value (in its unit), on its ratio to the reference, or on its excess over the reference.

    `is_strict`: whether the limit itself is too much.
    """

    of: Literal["value", "ratio", "excess"]
    limit: float
    is_strict: bool = False

    def allows(self, measured: float, *, slowness: float = 1.0) -> bool:
        """Whether `measured` keeps the budget on a machine that is `slowness` times slower. It is compared without rounding."""
        limit = self.limit * slowness
        return measured < limit if self.is_strict else measured <= limit


BARE_START_MS = 7.3
"""Duration of a bare interpreter, from start to end, on the machine on which the budgets in milliseconds were set."""


def slowness(bare_start_ms: float) -> float:
    """Return how many times slower this machine is than that of the budgets, by the duration of its bare interpreter; at least 1."""
    return max(1.0, bare_start_ms / BARE_START_MS)


BUDGETS: Mapping[str, Budget] = {
    "plugin_exec_interpreted": Budget("ratio", 1.5),
    "plugin_exec_onefile": Budget("ratio", 0.7),
    "add_whole_interpreted": Budget("ratio", 1.8),
    "del_whole_interpreted": Budget("ratio", 0.6),
    "add_whole_onefile": Budget("ratio", 0.5),
    "del_whole_onefile": Budget("ratio", 0.15),
    "add_daemon_p50": Budget("value", 2.5),
    "add_daemon_p99": Budget("value", 10),
    "del_daemon_p50": Budget("value", 2),
    "del_daemon_p99": Budget("value", 10),
    "burst30": Budget("value", 0.6),
    "burst30_onefile": Budget("ratio", 0.6),
    "add_p50_under_port_attack": Budget("ratio", 1.25),
    "cold_pool_110": Budget("ratio", 1.2),
    "start_ready_cold": Budget("excess", 0.6),
    "restart_first_del": Budget("value", 0.7),
    "restart_first_add": Budget("value", 0.6),
    "restart_plugin_add": Budget("value", 0.8),
    "rss": Budget("value", 78),
    "rss_after_bursts": Budget("value", 83),
    "memory_while_asking": Budget("value", 100),
    "everything_rss": Budget("value", 78),
    "everything_660_rss": Budget("value", 83),
    "idle_cpu_660": Budget("value", 0.3, is_strict=True),
    "idle_ec2_calls": Budget("value", 0),
    "idle_cpu": Budget("value", 1, is_strict=True),
    "nft_changes_cpu": Budget("value", 1, is_strict=True),
    "wire_2000_to_10": Budget("ratio", 1.25),
    "retire_2000_to_10": Budget("ratio", 1.25),
    "pool_one_by_one": Budget("value", 18),
    "add_700_to_10": Budget("value", 1.25),
    "del_700_to_10": Budget("value", 1.25),
    "dense_add_to_110": Budget("value", 1.3),
    "dense_del_to_110": Budget("value", 1.3),
    "dense_memory_each": Budget("value", 10),
    "dense_first_del": Budget("value", 2),
    "dense_first_add": Budget("value", 2),
    "dense_at_once": Budget("value", 120),
    "audit_cpu_660": Budget("value", 0.2, is_strict=True),
    "scale_add_p50_ratio": Budget("value", 1.25),
    "scale_plan_ms": Budget("value", 1),
    "scale_open_s": Budget("value", 0.4),
    "packet_same_node_110": Budget("ratio", 1.8),
    "packet_same_node_700": Budget("ratio", 1.8),
    "packet_across_700_to_10": Budget("value", 1.15),
    "packet_across_singles_700_to_10": Budget("value", 1.1),
    "connect_700_to_10": Budget("value", 1.11),
    "add_ipv6_to_ipv4": Budget("value", 1.1),
    "del_ipv6_to_ipv4": Budget("value", 1.1),
    "add_egress_to_ipv4": Budget("value", 1.6),
    "ipv6_restart_first_del": Budget("value", 0.7),
    "ipv6_restart_first_add": Budget("value", 0.8),
    "ipv6_prefix_memory": Budget("ratio", 1),
    "add_policy": Budget("excess", 2),
    "del_agent_dead": Budget("ratio", 1.1),
    "add_branch_cpu_strict": Budget("ratio", 1.4),
    "add_branch_cpu_standard": Budget("ratio", 1.4),
    "branch_rss": Budget("excess", 3),
    "roll_status_failures": Budget("value", 0),
    "roll_add_failures": Budget("value", 0),
    "roll_add_max": Budget("excess", 1),
}
"""Name of a figure -> its budget, in the figure's unit. All are ours; README.md lists them beside measured values."""


@dataclass(frozen=True)
class Figure:
    """One measured number.

    reference: the value to compare with, in the same unit. reference_is: a text that names it.
    note: further facts for the reader of the table.
    slowness: that of the machine (`slowness`), for a figure whose budget grows with it; otherwise 1.
    """

    name: str
    value: float
    unit: str
    reference: float | None = None
    reference_is: str = ""
    sample_count: int = 1
    note: str = ""
    slowness: float = 1.0

    @property
    def budget(self) -> Budget | None:
        """The budget of BUDGETS; None for a figure without one."""
        return BUDGETS.get(self.name)

    @property
    def ratio(self) -> float | None:
        """The value divided by the reference; None if there is no reference, or it is 0."""
        return self.value / self.reference if self.reference else None

    @property
    def met(self) -> bool | None:
        """Whether the budget is kept. None if there is no budget, or if it bounds a ratio or excess and there is no reference."""
        if self.budget is None:
            return None
        excess = None if self.reference is None else self.value - self.reference
        measured = {"value": self.value, "ratio": self.ratio, "excess": excess}[self.budget.of]
        return None if measured is None else self.budget.allows(measured, slowness=self.slowness)

    def as_dict(self) -> dict[str, Any]:
        """Return the figure's entry in the JSON report."""
        return {
            "name": self.name,
            "value": round(self.value, 4),
            "unit": self.unit,
            "reference": None if self.reference is None else round(self.reference, 4),
            "ratio": None if self.ratio is None else round(self.ratio, 4),
            "budget": None if self.budget is None else round(self.budget.limit * self.slowness, 4),
            "met": self.met,
            "budget_of": None if self.budget is None else self.budget.of,
            "reference_is": self.reference_is,
            "samples": self.sample_count,
            "note": self.note,
        }


def report(figures: Sequence[Figure], *, machine: Mapping[str, Any], failures: Mapping[str, str]) -> dict[str, Any]:
    """Build the JSON report. `failures`: measurement that could not be made -> its error."""
    return {"figures": [figure.as_dict() for figure in figures], "machine": dict(machine), "failures": dict(failures)}


HEADINGS = ("figure", "value", "reference", "ratio", "budget", "met", "reference is; note")


def table(figures: Sequence[Figure]) -> str:
    """Return the figures as a table with a line for each, in the given order. Numbers are aligned to the right."""
    rows = [HEADINGS, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS) - 1)]
    lines = []
    for row in rows:
        cells = [
            f"{cell:{'<' if column in (0, 5) else '>'}{width}}"
            for column, (cell, width) in enumerate(zip(row, widths, strict=False))
        ]
        lines.append("  ".join([*cells, row[-1]]).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        figure.name,
        f"{_number(figure.value)} {figure.unit}",
        "" if figure.reference is None else f"{_number(figure.reference)} {figure.unit}",
        "" if figure.ratio is None else f"{figure.ratio:.2f} x",
        _budget_text(figure),
        {True: "yes", False: "NO", None: ""}[figure.met],
        "; ".join(part for part in (figure.reference_is, figure.note) if part),
    )


def _budget_text(figure: Figure) -> str:
    budget = figure.budget
    if budget is None:
        return ""
    unit = "x" if budget.of == "ratio" else figure.unit
    over = "reference + " if budget.of == "excess" else ""
    return f"{'<' if budget.is_strict else '<='} {over}{budget.limit * figure.slowness:.3g} {unit}"


def _number(value: float) -> str:
    return f"{value:.2f}" if abs(value) < 100 else f"{value:.0f}"
