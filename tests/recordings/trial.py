"""Run the alerts on a recording with promtool, as Prometheus would have: their `for:` and windows as they stand, every 30 s."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import yaml

from tests.recordings.series import Recording, Value, encode
from tests.unit.manifests import monitoring

EVALUATION_S = 30
ZONE = "us-west-2a"
TARGET = {"job": "kube-system/vpc-ipamd", "container": "ipamd", "instance": "10.0.0.10:61678", "node": "node-a"}
"""Labels of every series, by `manifests/monitoring/podmonitor.yaml` and the Prometheus operator; with `pod`."""

NODE_INFO = f'ipamd_node_info{{zone="{ZONE}"}}'

AGAIN = " > 0"
FIRING = 'ALERTS{alertstate="firing"}'


@dataclass(frozen=True)
class Fired:
    """The alerts that fired at some time, and of these those that stopped and began again."""

    alerts: frozenset[str]
    again: frozenset[str]


def without_scrapes(recording: Recording, missed: Iterable[int]) -> Recording:
    """The same, as a Prometheus has it that was away at some scrapes: no sample of anything, `up` included."""
    gone = set(missed)
    series = {
        name: [None if at in gone else value for at, value in enumerate(values)] for name, values in recording.series.items()
    }
    return replace(recording, up=[-1 if at in gone else one for at, one in enumerate(recording.up)], series=series)


def input_series(
    recording: Recording, *, names: Collection[str] = (), labels_of_target: Mapping[str, str] = TARGET
) -> Iterator[dict[str, str]]:
    """What promtool is to be given: those series that an alert reads, or these, one for each pod of the DaemonSet."""
    wanted = names or {name for expression in monitoring.expressions() for name in monitoring.metrics_of(expression)}
    up: list[Value] = [None if one < 0 else float(one) for one in recording.up]
    for name, values in {"up": up, **_node_info(recording), **recording.series}.items():
        family, _, labels = name.partition("{")
        if family not in wanted and family.removesuffix("_bucket").removesuffix("_count") not in wanted:
            continue
        for pod in sorted(set(recording.pods)):
            own = [value if recording.pods[at] == pod else None for at, value in enumerate(values)]
            if any(value is not None for value in own):
                target = {**labels_of_target, "pod": f"vpc-ipamd-{pod}"}
                every = ",".join(f'{label}="{value}"' for label, value in target.items())
                yield {"series": f"{family}{{{every}{',' if labels else '}'}{labels}", "values": _with_stale(own, recording.up)}


def _node_info(recording: Recording) -> dict[str, list[Value]]:
    """The node's zone at each answered scrape, for recordings that are older than this metric."""
    if any(name.startswith("ipamd_node_info") for name in recording.series):
        return {}
    return {NODE_INFO: [1.0 if is_answered == 1 else None for is_answered in recording.up]}


def _with_stale(values: list[Value], up: list[int]) -> str:
    """In promtool's notation: a series that a scrape does not show any more is stale, unless there was no scrape."""
    terms, run = list[str](), list[Value]()
    for at, value in enumerate(values):
        if value is None and at and values[at - 1] is not None and up[at] >= 0:
            terms += [encode(run)] if run else []
            terms.append("stale")
            run = []
        else:
            run.append(value)
    return " ".join([*terms, *([encode(run)] if run else [])])


def run(
    recording: Recording, folder: Path, *, beside: Mapping[str, str] | None = None, labels_of_target: Mapping[str, str] = TARGET
) -> Fired:
    """Run all alerts on a recording.

    Args:
        beside: further series, with their values.
        labels_of_target: those that Prometheus gives to every series of the daemon.

    Raises: AssertionError if promtool refuses.
    """
    series = {one["series"]: one["values"] for one in input_series(recording, labels_of_target=labels_of_target)} | dict(
        beside or {}
    )
    return run_series(series, folder, interval_s=recording.interval_s, count=recording.count)


def run_series(series: Mapping[str, str], folder: Path, *, interval_s: int = 60, count: int = 120) -> Fired:
    """Run all alerts on series in promtool's notation, so many scrapes long."""
    answers = answers_to(_questions(count * interval_s), series, folder, interval_s=interval_s, count=count)
    found: dict[bool, set[str]] = {False: set(), True: set()}
    for answer in answers:
        found[AGAIN in answer.partition(", time")[0]] |= set(re.findall(r'alertname="(\w+)"', answer.partition("got:")[2]))
    return Fired(frozenset(found[False]), frozenset(found[True]))


def value(expression: str, recording: Recording, folder: Path) -> float:
    """What an expression without labels gives at a recording's end. Raises: AssertionError if that is nothing."""
    series = {one["series"]: one["values"] for one in input_series(recording, names=monitoring.metrics_of(expression))}
    answers = answers_to((expression,), series, folder, interval_s=recording.interval_s, count=recording.count)
    found = re.search(r"got:\W*\{\} ([\d.E+-]+)", "".join(answers))
    assert found, answers
    return float(found[1])


def answers_to(questions: Iterable[str], series: Mapping[str, str], folder: Path, *, interval_s: int, count: int) -> list[str]:
    """What promtool got for each expression at the end of series: it expects nothing, and so prints what it got."""
    queries = [{"expr": expression, "eval_time": f"{count * interval_s}s", "exp_samples": []} for expression in questions]
    done = _test_rules({"promql_expr_test": queries}, series, folder, interval_s=interval_s)
    answers = done.split("expr: ")[1:]
    assert answers or "SUCCESS" in done, done
    return answers


def described(alert: str, series: Mapping[str, str], folder: Path, *, interval_s: int, count: int) -> list[str]:
    """The labels and annotations of each alert of a name that fires at the end of series, as promtool prints them."""
    expectation = {"eval_time": f"{count * interval_s}s", "alertname": alert, "exp_alerts": []}
    done = _test_rules({"alert_rule_test": [expectation]}, series, folder, interval_s=interval_s)
    return done.partition("got:")[2].split("Labels:")[1:]


def _test_rules(tests: Mapping[str, object], series: Mapping[str, str], folder: Path, *, interval_s: int) -> str:
    """Run promtool's unit tests of all rules on series. Returns: what it printed."""
    inputs = [{"series": name, "values": values} for name, values in series.items()]
    (folder / "rules.yaml").write_text(yaml.safe_dump({"groups": monitoring.groups()}))
    test = {
        "rule_files": ["rules.yaml"],
        "evaluation_interval": f"{EVALUATION_S}s",
        "tests": [{"interval": f"{interval_s}s", "input_series": inputs, **tests}],
    }
    (folder / "test.yaml").write_text(yaml.safe_dump(test))
    words = ["promtool", "test", "rules", str(folder / "test.yaml")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    return done.stdout + done.stderr


def _questions(end_s: int) -> tuple[str, str]:
    """What fired, and what fired at fewer evaluations than there are from its first to its last. promtool expects nothing, and says
    what it got."""
    step = f"[{end_s}s:{EVALUATION_S}s]"
    span = f"max_over_time(timestamp({FIRING}){step}) - min_over_time(timestamp({FIRING}){step})"
    missing = f"sum by (alertname) (({span}) / {EVALUATION_S} + 1 - count_over_time({FIRING}{step}))"
    return f"group by (alertname) (count_over_time({FIRING}[{end_s}s]))", f"{missing}{AGAIN}"
