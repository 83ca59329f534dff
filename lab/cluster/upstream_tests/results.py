"""The result of each test case: read from Ginkgo's reports, stored as JSON, and printed as a table.

The reason of a skipped case is in `suites.py`, or in Ginkgo's report. The reason of a failed case is the begin of Ginkgo's message, or
a deviation of `suites.py`.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lab.cluster.upstream_tests.suites import Suite

Document = Sequence[Mapping[str, Any]]
"""A report of Ginkgo's option `--ginkgo.json-report`."""

MARKER = "<!-- What follows is written by `make incumbent-tests RECORD=yes`. -->"
REASON_MAX_CHARACTERS = 200
_PASSED, _LEFT_OUT = "passed", ("skipped", "pending", "interrupted", "")
UNCOUNTED_SUITE = "calico"
"""The suite that tests other software: Calico's policies between pods of a demonstration."""

_NUMBER = re.compile(r" #\d+$")
_POINTERS = re.compile(r"0x[0-9a-f]+")


class State(StrEnum):
    """The result of a case."""

    PASSED = "passed"
    SKIPPED = "skipped"
    FAILED = "failed"


@dataclass(frozen=True)
class CaseResult:
    """One case and its result.

    name: unique within its suite.
    reason: why it was skipped or failed; "" if it passed.
    commit: the commit that was run, short; "" if the case was not run.
    """

    suite: str
    name: str
    state: State
    reason: str = ""
    seconds: float = 0.0
    commit: str = ""


def read_report(suite: Suite, document: Document, *, names: Iterable[str]) -> list[CaseResult]:
    """Read the results of the cases `names` from a report.

    If the set-up of a suite fails, the report has none of its cases. Then the cases that `suites.py` does not exclude count as failed,
    with the failure of the set-up as reason.
    """
    set_up = [report for report in _reports(document) if report["LeafNodeType"] == "BeforeSuite"]
    of_suite = next((_failure(node) for node in set_up if node["State"] not in (_PASSED, *_LEFT_OUT)), "")
    cases = dict(_cases(document))
    return [_case(suite, name, cases.get(name, {"State": ""}), of_suite) for name in names]


def case_names(document: Document) -> list[str]:
    """Return the names of the cases of a report, also of a dry run. Cases with the same name get numbers."""
    return [name for name, _ in _cases(document)]


def left_out(suite: Suite, names: Iterable[str], reason: str) -> list[CaseResult]:
    """Return results of the cases `names` of a suite: they were skipped for this reason."""
    return [CaseResult(suite.name, name, State.SKIPPED, reason) for name in names]


def write(path: Path, results: Iterable[CaseResult]) -> None:
    """Write results to a JSON file. Earlier results of the same cases are replaced, and those of other cases are kept."""
    merged = {(result.suite, result.name): result for result in [*read(path), *results]}
    everything = sorted(merged.values(), key=lambda result: result.suite)
    path.write_text(json.dumps([asdict(result) for result in everything], indent=1) + "\n", encoding="utf-8")


def read(path: Path) -> list[CaseResult]:
    """Read the results that `write` wrote. Returns: an empty list if there is no file."""
    if not path.exists():
        return []
    entries = json.loads(path.read_text(encoding="utf-8"))
    return [CaseResult(**{**entry, "state": State(entry["state"])}) for entry in entries]


def table(results: Iterable[CaseResult]) -> str:
    """Return all cases as a Markdown table, with two lines of counts before it: of the rows, and of the distinct cases."""
    cases = list(results)
    states = distinct(cases)
    lines = [
        f"{len(cases)} rows: {_counts(case.state for case in cases)}.",
        "",
        f"{len(states)} distinct cases outside the suite {UNCOUNTED_SUITE}: {_counts(states.values())}.",
        "",
        "| Suite | Case | Result | Commit | Reason |",
        "|---|---|---|---|---|",
    ]
    lines += [f"| {case.suite} | {_cell(case.name)} | {case.state} | {case.commit} | {_cell(case.reason)} |" for case in cases]
    return "\n".join(lines) + "\n"


def distinct(results: Iterable[CaseResult]) -> dict[tuple[str, str], State]:
    """Return the state of each case outside the suite UNCOUNTED_SUITE. A case that has several rows, because it ran several times,
    passed if all of them did."""
    rows: dict[tuple[str, str], list[State]] = {}
    for case in results:
        if case.suite != UNCOUNTED_SUITE:
            rows.setdefault((case.suite, _NUMBER.sub("", case.name)), []).append(case.state)
    worst_first = (State.FAILED, State.SKIPPED, State.PASSED)
    return {case: next(state for state in worst_first if state in states) for case, states in rows.items()}


def record(page: Path, results: Iterable[CaseResult]) -> None:
    """Write the table into a page of docs/, after MARKER."""
    head, _, _ = page.read_text(encoding="utf-8").partition(MARKER)
    page.write_text(f"{head}{MARKER}\n\n{table(results)}", encoding="utf-8")


def _reports(document: Document) -> Iterator[Mapping[str, Any]]:
    for part in document:
        yield from part.get("SpecReports") or []


def _cases(document: Document) -> Iterator[tuple[str, Mapping[str, Any]]]:
    counts: Counter[str] = Counter()
    for report in _reports(document):
        if report["LeafNodeType"] != "It":
            continue
        words = " ".join([*(report["ContainerHierarchyTexts"] or []), report["LeafNodeText"]])
        name = " ".join(words.split())
        counts[name] += 1
        number = counts[name]
        yield name if number == 1 else f"{name} #{number}", report


def _case(suite: Suite, name: str, report: Mapping[str, Any], of_suite: str) -> CaseResult:
    seconds = round(report.get("RunTime", 0) / 1e9, 1)
    state = report["State"]
    if state == _PASSED:
        return CaseResult(suite.name, name, State.PASSED, seconds=seconds)
    known = suite.reason_for(name)
    if state in _LEFT_OUT:
        message = (report.get("Failure") or {}).get("Message", "")
        reason = known or message or of_suite
        is_failed = not known and not message and bool(of_suite)
        return CaseResult(
            suite.name, name, State.FAILED if is_failed else State.SKIPPED, _short(reason or "the run ended before it"), seconds
        )
    on_purpose = suite.deviation_of(name)
    return CaseResult(suite.name, name, State.FAILED, on_purpose or _short(_failure(report)), seconds)


def _failure(report: Mapping[str, Any]) -> str:
    message: str = (report.get("Failure") or {}).get("Message", "")
    return message or f"Ginkgo reports {report['State']}"


def _short(text: str) -> str:
    """Return a failure's message in one line of at most REASON_MAX_CHARACTERS, without pointers, which differ from run to run."""
    line = _POINTERS.sub("0x...", " ".join(text.split()))
    return line if len(line) <= REASON_MAX_CHARACTERS else line[: REASON_MAX_CHARACTERS - 3] + "..."


def _counts(states: Iterable[State]) -> str:
    counts = Counter(states)
    return ", ".join(f"{counts[state]} {state}" for state in State)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
