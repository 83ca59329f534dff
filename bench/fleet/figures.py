"""The report for people: tables, the curve of calls against held addresses, and a plot, whose SVG is written as text.

*Held* addresses are those that the nodes have at EC2, and *used* ones those of pods. The *reference* is a fleet with the rules of
amazon-vpc-cni-k8s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bench.fleet.buckets import is_mutating

Row = Mapping[str, Any]

WIDTH, HEIGHT, LEFT, TOP = 760, 340, 60, 30
HOLD = "VPC_IPAMD_RELEASE_HOLD_SECONDS="


def table(rows: Sequence[Row]) -> str:
    """Return a Markdown table with a line for each scenario, except those of the curve."""
    lines = [
        "| scenario | nodes | time, s | bound, s | ratio | changing calls: ours / reference | throttled | held / reference | used "
        "| ADDs that waited (p50, p99 s) | p99 of nodes, s (in a perfect queue); by median | held the line |",
        "|---|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        if HOLD in row["name"]:
            continue
        told = row["details"]
        scaled = "~" if "reference_scaled_from" in told else ""
        waits = f"{told['waits']} ({told['wait_p50_s']}, {told['wait_p99_s']})"
        fair = f"{told['node_wait_p99_s']:,} ({told['queue_p99_s']:,}); {told['unfairness']}"
        fair = fair if told["unfairness"] and not row["name"].startswith("day") else "-"
        lines.append(
            f"| {row['name']} | {row['nodes']:,} | {row['time_s']:,} | {row['bound_s']:,} | {row['ratio']:.2f} "
            f"| {_mutating(row['calls']):,} / {scaled}{_mutating(row['reference_calls']):,} | {told['throttled']:,} "
            f"| {row['held']:,.0f} / {scaled}{told.get('reference_held', 0.0):,.0f} | {row['used']:,.0f} | {waits} | {fair} "
            f"| {'yes' if row['met'] else 'no'} |"
        )
    return "\n".join(lines)


def curve(rows: Sequence[Row]) -> str:
    """Return a Markdown table of calls and held addresses for each hold window. The best window has the least sum of both ratios."""
    points = [(row["name"].partition(HOLD)[2], row["details"]) for row in rows if HOLD in row["name"]]
    sums = [told["mutating_ratio"] + told["held_ratio"] for _, told in points]
    lines = ["| hold window, s | changing calls / reference's | addresses held / reference's | sum |", "|---|---|---|---|"]
    for (hold, told), total in zip(points, sums, strict=True):
        least = ", the least" if total == min(sums) else ""
        lines.append(f"| {hold} | {told['mutating_ratio']:.3f} | {told['held_ratio']:.3f} | {total:.3f}{least} |")
    return "\n".join(lines)


def auto(rows: Sequence[Row]) -> str:
    """Return a Markdown table that compares VPC_IPAMD_WARM_TARGET_MODE=auto with two fixed targets."""
    lines = [
        "| trace | nodes | held: auto / WARM_ENI_TARGET=1 | ADDs that waited: auto / WARM_IP_TARGET=2 | held the line |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['name'].removesuffix(' auto')} | {row['nodes']:,} | {row['held']:,.0f} / {row['details']['default_held']:,.0f} "
        f"| {row['details']['waits']:,} / {row['details']['ip2_waits']:,} | {'yes' if row['met'] else 'no'} |"
        for row in rows
        if "default_held" in row["details"]
    ]
    return "\n".join(lines)


def filled(text: str, rows: Sequence[Row]) -> str:
    """Return the text of a page with the tables in it. Each is put between its mark, such as `<!-- figures -->`, and the next
    `<!-- end -->`."""
    for name, markdown in (("figures", table(rows)), ("auto", auto(rows)), ("curve", curve(rows))):
        before, mark, rest = text.partition(f"<!-- {name} -->")
        _, end, after = rest.partition("<!-- end -->")
        text = f"{before}{mark}\n\n{markdown}\n\n{end}{after}"
    return text


def plot(rows: Sequence[Row]) -> str:
    """Return the curve as an SVG picture. The reference is at (1, 1)."""
    points = [
        (row["details"]["held_ratio"], row["details"]["mutating_ratio"], row["name"]) for row in rows if HOLD in row["name"]
    ]
    most_x = max([2.0, *(x for x, _, _ in points)])
    most_y = max([1.2, *(y for _, y, _ in points)])

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + (x - 0.8) / (most_x - 0.8) * (WIDTH - LEFT - 20), HEIGHT - 40 - y / most_y * (HEIGHT - 40 - TOP)

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
        f'<text x="{LEFT}" y="18">A day of churn, WARM_IP_TARGET=5 MINIMUM_IP_TARGET=10, by hold window (reference = 1)</text>',
    ]
    for tick in (0.8, 1.0, 1.2, 1.4, 1.6, 1.8, 2.0):
        x, y = at(tick, 0.0)
        parts.append(f'<line x1="{x:.0f}" y1="{TOP}" x2="{x:.0f}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x:.0f}" y="{y + 15:.0f}" text-anchor="middle">{tick}</text>')
    for step in range(int(most_y / 0.2) + 1):
        x, y = at(0.8, step * 0.2)
        parts.append(f'<line x1="{x:.0f}" y1="{y:.0f}" x2="{WIDTH - 20}" y2="{y:.0f}" stroke="#ddd"/>')
        parts.append(f'<text x="{x - 6:.0f}" y="{y + 4:.0f}" text-anchor="end">{step * 0.2:.1f}</text>')
    parts.append(f'<text x="{WIDTH - 20}" y="{HEIGHT - 8}" text-anchor="end">addresses held on average</text>')
    parts.append(f'<text x="{LEFT - 45}" y="{TOP - 3}">changing calls</text>')
    parts += [_dot(*at(1.0, 1.0), "amazon-vpc-cni-k8s", "#c33")]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in (at(x, y) for x, y, _ in points))
    parts.append(f'<polyline points="{line}" fill="none" stroke="#36c"/>')
    parts += [_dot(*at(x, y), f"{name.partition(HOLD)[2]} s", "#36c") for x, y, name in points]
    return "\n".join([*parts, "</svg>", ""])


def _dot(x: float, y: float, label: str, colour: str) -> str:
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4" fill="{colour}"/><text x="{x + 7:.1f}" y="{y - 5:.1f}">{label}</text>'


def _mutating(calls: Mapping[str, int]) -> int:
    return sum(count for api, count in calls.items() if is_mutating(api))
