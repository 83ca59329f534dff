"""Make the report of a probe: a dictionary for programs, and Markdown for people and for an issue. Pure.

The report contains the IDs of the node and its ENIs and the range of its subnet. It contains no account number.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ipamd import __version__
from ipamd.model.time_text import rfc3339
from ipamd.probe.calls import CHECK_CALLS, CLEANUP_CALLS, CallAnswer
from ipamd.probe.checks import CHECKS, NOT_PROBED
from ipamd.probe.subject import NODE_TAG, RUN_TAG, LeftOver, Permission, ProbeSubject


def as_dict(subject: ProbeSubject) -> dict[str, Any]:
    """Make the report for JSON. Every key is always present. The times of calls (`at_s`) are seconds from the first call."""
    identity, answers = subject.identity, subject.calls.answers
    began_s = 0.0
    if answers:
        began_s = answers[0].sent_s
    mode = "dry run"
    if subject.is_real:
        mode = "run"
    return {
        "vpc_ipamd": __version__,
        "mode": mode,
        "run_id": subject.run_id,
        "at": rfc3339(subject.at, timespec="seconds"),
        "region": identity.region,
        "instance_id": str(identity.instance_id),
        "instance_type": identity.instance_type,
        "attachment_limit_type": subject.attachment_limit_type,
        "device_index": subject.device_index,
        "call_count": len(answers),
        "call_bound": CHECK_CALLS + CLEANUP_CALLS,
        "ended": subject.ended,
        "permissions": [_permission(permission) for permission in subject.permissions],
        "checks": _checks(subject),
        "not_probed": NOT_PROBED,
        "left_over": [_left_over(left_over) for left_over in subject.left_over],
        "answers": [_answer(answer, began_s) for answer in answers],
    }


def _permission(permission: Permission) -> dict[str, Any]:
    return {"action": permission.action, "verdict": permission.verdict, "told": permission.reply}


def _checks(subject: ProbeSubject) -> list[dict[str, Any]]:
    reports = []
    for check in CHECKS:
        if check.name in subject.findings:
            result = subject.findings[check.name]._asdict()
            reports.append({"name": check.name, "assumption": check.assumption, "expected": check.expected, **result})
    return reports


def _left_over(left_over: LeftOver) -> dict[str, Any]:
    return {"subject": left_over.subject, "why": left_over.reason, "commands": left_over.commands}


def _answer(answer: CallAnswer, began_s: float) -> dict[str, Any]:
    report: dict[str, Any] = {name: getattr(answer, name) for name in ("number", "api", "about", "code", "message", "status")}
    report["at_s"] = round(answer.sent_s - began_s, 3)
    report["took_ms"] = round((answer.answered_s - answer.sent_s) * 1000, 1)
    return report


def markdown(report: dict[str, Any]) -> str:
    """Write the report for people."""
    is_real = report["mode"] == "run"
    parts = [
        f"# ipamctl probe aws: {report['mode']}",
        f"vpc-ipamd {report['vpc_ipamd']}, {report['at']}, {report['instance_type']} {report['instance_id']} in {report['region']}; "
        f"{report['call_count']} EC2 calls.",
    ]
    if report["ended"]:
        parts.append(f"**It ended early:** {report['ended']}.")
    if report["left_over"]:
        parts.append("\n".join(["## Left over: delete it", *_left_over_lines(report)]))
    if not is_real:
        parts.append(_plan(report))
    if report["permissions"]:
        rows = _cells(report["permissions"], ("action", "verdict", "told"))
        parts.append("## Permissions, by dry runs\n\n" + _table(("Action", "Verdict", "EC2 said"), rows))
    if is_real:
        keys = ("name", "verdict", "assumption", "expected", "observed")
        parts.append("## Checks\n\n" + _table(tuple(map(str.capitalize, keys)), _cells(report["checks"], keys)))
        parts.append("\n- ".join(["## Not probed\n", *NOT_PROBED]))
        parts.append("## Calls\n\n" + _table(("No.", "At, s", "Took, ms", "API", "About", "Answer"), _calls(report)))
        parts.append("Open an issue with this report: it turns unknowns of docs/assumptions.md into facts.")
    return "\n\n".join(parts)


def _plan(report: dict[str, Any]) -> str:
    return (
        f"With `--run` it creates one ENI (tags `{RUN_TAG}`, `{NODE_TAG}`, `node.k8s.amazonaws.com/no_manage=true`) in the subnet "
        f"and with the security groups of the primary ENI, attaches it as device {report['device_index']}, takes {len(CHECKS)} "
        f"checks, and deletes it. It makes at most {report['call_bound']} EC2 calls ({CLEANUP_CALLS} of them are kept for the "
        "clean-up), usually about 55, and takes a minute or two. Meanwhile it uses up to 4 addresses, a /28 and a /80 of the subnet, "
        "and one place for an ENI. Nothing was changed now."
    )


def _cells(rows: Sequence[Mapping[str, Any]], keys: tuple[str, ...]) -> list[tuple[object, ...]]:
    return [tuple(row[key] for key in keys) for row in rows]


def _left_over_lines(report: dict[str, Any]) -> list[str]:
    lines = []
    for left_over in report["left_over"]:
        lines += ["", f"{left_over['subject']}: {left_over['why']}", ""]
        lines += [f"    {command}" for command in left_over["commands"]]
    return lines


def _calls(report: dict[str, Any]) -> list[tuple[object, ...]]:
    return [
        (
            answer["number"],
            f"{answer['at_s']:.1f}",
            f"{answer['took_ms']:.0f}",
            answer["api"],
            answer["about"],
            f"{answer['code'] or 'accepted'} {answer['message']}",
        )
        for answer in report["answers"]
    ]


def _table(header: tuple[str, ...], rows: Sequence[tuple[object, ...]]) -> str:
    lines = []
    for row in (header, tuple("---" for _ in header), *rows):
        cells = [str(cell).replace("|", "\\|").replace("\n", " ").strip() for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)
