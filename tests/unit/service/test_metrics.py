"""The figures of a whole node of fakes: right in every mode, bounded in number, and on the page as they are exposed."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

import ipamd
from ipamd.core.deadline import Deadline
from ipamd.core.demand import THROTTLED_S
from ipamd.model.eni import InstanceLimits
from ipamd.model.errors import CloudDeniedError, CloudError, InvariantError, PoolEmptyError, SubnetExhaustedError, ThrottledError
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.refusals import RefusalCode
from ipamd.pb import cni_pb2
from ipamd.report.audit import audit
from ipamd.report.verdict import kind_of
from tests.conditions import failed
from tests.errors import refused_add
from tests.fakes.cloud import PRIMARY, FakeEc2
from tests.fakes.node import FakeNode
from tests.stories.external_changes import TURN_MAX_S, detach_by_hand, pass_time, settle
from tests.stories.stale_reads import run_sandboxes
from tests.unit.service.metric_values import closing_nodes, start, value
from tools.metrics_page import documented, exposed_name, labels_of


@pytest.fixture
def made() -> Iterator[list[FakeNode]]:
    """Nodes to close."""
    with closing_nodes() as nodes:
        yield nodes


def series(node: FakeNode) -> dict[str, list[dict[str, str]]]:
    """Every series of a scrape: the labels by sample name."""
    found: dict[str, list[dict[str, str]]] = {}
    for family in text_string_to_metric_families(generate_latest(node.app.metrics.registry).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append(dict(sample.labels))
    return found


def execute(node: FakeNode, verb: str, container_id: str) -> int:
    """A request as the plugin sends it; the CNI code of its answer."""
    request = cni_pb2.ExecRequest(
        protocol_min=1, protocol_max=1, verb=verb, container_id=container_id, ifname="eth0", netns="/run/netns/none"
    )
    request.config = b'{"cniVersion": "1.0.0", "name": "vpc-ipamd", "type": "vpc-cni"}'
    return int(node.app.cni.execute(request, Deadline.after(node.clock, 10.0)).error.code)


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        (SubnetExhaustedError("full"), "subnet-full"),
        (ThrottledError("slow down"), "throttled"),
        (CloudDeniedError("no"), "denied"),
    ],
)
def test_a_refused_add_tells_what_keeps_the_pool_from_growing(
    made: list[FakeNode], tmp_path: Path, error: Exception, cause: str
) -> None:
    """The word of the metric is the reason in the refusal."""
    node = start(made, tmp_path, settings=PoolSettings(warm_ip_target=1))
    run_sandboxes(node, "a")
    node.ec2.told_free_count = 0
    for method in ("assign_addresses", "create_eni"):
        node.ec2.fail[method] = [error] * 50  # type: ignore[list-item]
    for name in ("b", "c", "d"):
        node.pool.cycle()
        try:
            node.add(name, deadline_s=1.0)
        except PoolEmptyError:
            break
    found = {
        one["cause"]: value(node, "ipamd_adds_without_address_total", **one)
        for one in series(node)["ipamd_adds_without_address_total"]
    }
    assert {word: count for word, count in found.items() if count} == {cause: 1.0}


@pytest.mark.parametrize(
    ("throttled_before_s", "pending", "cause", "words"),
    [
        (0.0, None, "throttled", "EC2 throttles it"),
        (THROTTLED_S, None, "growing", "cause: "),
        (THROTTLED_S, CloudError("no answer"), "error", "EC2 is asked what became of the last call"),
    ],
)
def test_an_add_that_ec2_delayed_says_so(
    made: list[FakeNode], tmp_path: Path, throttled_before_s: float, pending: CloudError | None, cause: str, words: str
) -> None:
    """Nothing keeps the pool from growing, but its calls are repeated or unanswered, and the caller's time is up."""
    node = start(made, tmp_path, settings=PoolSettings(warm_ip_target=1))
    while node.datastore.counts().free:
        node.add(f"pod-{node.datastore.counts().assigned}")
    if pending is not None:
        node.ec2.lose["assign_addresses"] = [pending]
        node.ec2.fail["describe_enis"] = [pending] * 9
        node.pool.cycle()
    last_s = node.clock.monotonic() - throttled_before_s
    node.ec2.throttled = (last_s, last_s)
    assert value(node, "ipamd_pool_blocked", cause=cause) == 1
    with pytest.raises(PoolEmptyError, check=refused_add(RefusalCode.NO_ADDRESS)):
        node.add("late", deadline_s=1.0)
    assert value(node, "ipamd_adds_without_address_total", cause=cause) == 1


@pytest.mark.parametrize(
    ("subject", "label"),
    [
        ("security groups", "security groups"),
        ("frozen eni-0abc", "frozen eni"),
        ("repair conflict route 10.0.0.1", "repair conflict"),
        ("new", "other"),
    ],
)
def test_conditions_are_told_by_subject(node: FakeNode, subject: str, label: str) -> None:
    """A word of a closed list, without the object's name, as long as the condition lasts."""
    node.health.report(subject, failed("something is wrong"))
    assert value(node, "ipamd_conditions", subject=label) == 1
    node.health.report(subject, None)
    assert value(node, "ipamd_conditions", subject=label) is None


def test_every_subject_of_a_condition_is_in_the_list() -> None:
    """Whatever the daemon reports, by its literal name, that of its loop, or that of its work."""
    text = "".join(path.read_text() for path in (Path(ipamd.__file__).parent).rglob("*.py"))
    named = r'\.(?:report|claim)\(\s*"(?!CRI is off)([^"{]+)"|Loop\("([^"]+)"'
    named += r'|FailureIsolation\([^)]*work="([^"]+)"|^(?:CONDITION|CONFLICT|RESTART) = "([^"]+)"'
    subjects = {word for found in re.findall(named, text, re.M) for word in found if word}
    assert len(subjects) > 40
    assert {one for one in subjects if not kind_of(one)} == set()


def test_the_process_is_told_as_prometheus_has_it(node: FakeNode) -> None:
    """CPU, memory, descriptors and start of this process, by the names that every dashboard knows."""
    names = {one for one in series(node) if one.startswith("process_")}
    assert names >= {
        "process_cpu_seconds_total",
        "process_resident_memory_bytes",
        "process_open_fds",
        "process_start_time_seconds",
    }
    started = value(node, "process_start_time_seconds")
    assert started is not None
    assert 0 < time.time() - started < 86400


def test_refused_requests_are_counted_by_kind(node: FakeNode) -> None:
    """The class of the error in one word; what is none of our errors is a defect too."""
    assert execute(node, "ADD", "c1") == 104
    assert execute(node, "CHECK", "c1") != 0
    assert value(node, "ipamd_refusals_total", verb="ADD", cause="netns") == 1
    node.attacher.attach_sandbox = lambda *_, **__: 1 / 0  # type: ignore[assignment,method-assign]
    execute(node, "ADD", "c2")
    assert value(node, "ipamd_refusals_total", verb="ADD", cause="unexpected") == 1
    assert value(node, "ipamd_defects_total", kind="unexpected-error") == 1


def test_a_refused_constraint_is_a_defect(node: FakeNode) -> None:
    """Every loop and every request tells its errors in one place; those of EC2 are no defects."""
    assert {one["kind"]: value(node, "ipamd_defects_total", **one) for one in series(node)["ipamd_defects_total"]} == {
        "duplicate-address": 0,
        "invariant-refused": 0,
        "unexpected-error": 0,
        "datastore-differs": 0,
    }
    node.health.record_error("pool", ThrottledError("slow down"))
    node.health.record_error("pool", InvariantError("two have it", details="I1"))
    assert value(node, "ipamd_defects_total", kind="invariant-refused") == 1
    assert value(node, "ipamd_defects_total", kind="unexpected-error") == 0


def test_an_address_wired_twice_is_counted_at_the_start(made: list[FakeNode], tmp_path: Path) -> None:
    """I1 was broken before: by whom nobody knows, and the counter says so."""
    node = start(made, tmp_path)
    attachment = node.add("a")
    (veth,) = [one for one in node.wiring.survey().veths if one.address == attachment.address]
    survey = node.wiring.survey()
    twin = replace(veth, name="ipaotherlink", key=node.key("other"))
    node.startup.reconcile_kernel(replace(survey, veths=(*survey.veths, twin)), node.listed())
    assert value(node, "ipamd_defects_total", kind="duplicate-address") == 1


def test_an_audit_that_finds_memory_and_disk_different_is_counted(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once for each sentence of each audit."""
    monkeypatch.setattr(node.datastore, "audit", lambda: ["memory has a, the disk has b"])
    audit(node.app.introspection.sources, ask_ec2=False)
    assert value(node, "ipamd_defects_total", kind="datastore-differs") == 1


def test_events_are_those_of_the_ledger(made: list[FakeNode], tmp_path: Path) -> None:
    """Reaps and adoptions among them; a transaction that was rolled back counts nothing."""
    node = start(made, tmp_path)
    run_sandboxes(node, "a", "b")
    node.delete("a")
    assert value(node, "ipamd_history_events_total", event="assigned") == 2
    assert value(node, "ipamd_history_events_total", event="unassigned") == 1
    assert value(node, "ipamd_history_events_total", event="reaped") == 0
    with suppress(ZeroDivisionError), node.datastore.transaction() as uow:
        uow.unassign(node.key("b"), reason="never", cooldown=node.cooldown.period)
        raise ZeroDivisionError
    assert value(node, "ipamd_history_events_total", event="unassigned") == 1
    node.crash(keep_datastore=False)
    node.bring_up()
    assert value(node, "ipamd_history_events_total", event="adopted") == 1


def test_external_changes_are_counted(made: list[FakeNode], tmp_path: Path) -> None:
    """An ENI with a sandbox is detached in the console: metadata differs until EC2 says so twice, then the ENI counts as forced."""
    node = start(made, tmp_path)
    run_sandboxes(node, *(f"p{number}" for number in range(12)))
    settle(node)
    assert value(node, "ipamd_metadata_differences") == 0
    assert value(node, "awscni_force_removed_enis") == 0
    second = next(eni_id for eni_id, eni in node.ec2.enis.items() if eni.device_index == 1)
    assert value(node, "awscni_assigned_ip_per_eni", eni=second) == 3
    detach_by_hand(node, second)
    pass_time(node, TURN_MAX_S)
    assert (value(node, "ipamd_metadata_differences") or 0) > 0
    for _ in range(6):
        pass_time(node, TURN_MAX_S)
    assert value(node, "awscni_force_removed_enis") == 1
    assert value(node, "awscni_force_removed_ips") == 3
    assert value(node, "ipamd_addresses", state="lost") == 3
    assert value(node, "awscni_eni_allocated") == len(node.ec2.attached())
    assert value(node, "awscni_assigned_ip_per_eni", eni=second) is None, "its series ends"
    assert value(node, "awscni_total_ip_addresses") == sum(len(eni.secondary_addresses) for eni in node.ec2.attached())
    assert value(node, "awscni_reconcile_count", fn="eniReconcileDel") == 1
    assert (
        value(node, "ipamd_ec2_resyncs_total", reason="link") or value(node, "ipamd_ec2_resyncs_total", reason="metadata") or 0
    ) > 0


def test_a_lasting_difference_has_its_age(node: FakeNode) -> None:
    """Metadata that stays stuck: the age grows from turn to turn, and ends when metadata agrees again."""
    settle(node)
    assert (value(node, "ipamd_metadata_list_age_seconds") or 0) >= 0
    node.metadata.freeze()
    node.ec2.unassign(PRIMARY, addresses=[max(node.ec2.enis[PRIMARY].secondary_addresses)], prefixes=[])
    node.look_twice()
    settle(node)
    first = value(node, "ipamd_metadata_difference_age_seconds") or 0
    assert first > 0
    assert (value(node, "ipamd_metadata_differences") or 0) > 0
    pass_time(node, TURN_MAX_S)
    assert value(node, "ipamd_metadata_difference_age_seconds") == first + TURN_MAX_S
    node.metadata.frozen = None
    settle(node)
    assert value(node, "ipamd_metadata_difference_age_seconds") == 0


def test_the_start_is_timed(made: list[FakeNode], tmp_path: Path) -> None:
    """Each stage that has begun; the whole start once the node is ready, as one observation."""
    node = FakeNode(tmp_path)
    made.append(node)
    labels = {"success": "true", "with_api_server": "false", "failure_reason": ""}
    assert value(node, "awscni_ipamd_startup_duration_seconds_count", **labels) is None
    with node.health.stage("datastore"):
        node.clock.advance(1.5)
    node.bring_up()
    node.clock.advance(1.0)
    node.health.mark_ready()
    node.clock.advance(100.0)
    node.health.mark_ready()
    assert value(node, "ipamd_start_stage_duration_seconds", stage="datastore") == 1.5
    assert value(node, "awscni_ipamd_startup_duration_seconds_sum", **labels) == 2.5
    assert value(node, "awscni_ipamd_startup_duration_seconds_count", **labels) == 1
    assert value(node, "awscni_ipamd_node_initialization_duration_seconds_sum", success="true") == 1.5


def test_calls_to_ec2_are_told_by_api(node: FakeNode) -> None:
    """Attempts by outcome, failures, time, and what is left of the budget."""
    run_sandboxes(node, "a")
    api = next(iter(node.ec2.call_reports()))
    assert value(node, "ipamd_ec2_attempts_total", api=api, outcome="ok") == node.ec2.calls[api]
    assert value(node, "awscni_ec2api_error_count", fn=api) == 0
    assert value(node, "awscni_aws_api_latency_ms_count", api=api, error="false", status="200") == node.ec2.calls[api]
    assert value(node, "ipamd_ec2_attempt_duration_seconds_count", api=api) == node.ec2.calls[api]
    assert value(node, "ipamd_ec2_budget_calls", api=api) == 10


WRITTEN = [line.split(" ") for line in Path(__file__).with_name("metrics.txt").read_text().splitlines()]
"""Name, type, and labels in alphabetical order of every metric: an interface of dashboards and alerts, written down by hand."""


def test_a_scrape_is_what_is_written_down(node: FakeNode) -> None:
    """A node at work exposes the metrics of the list, each with exactly its labels, and no other; so does docs/metrics.md."""
    run_sandboxes(node, "a", "b")
    execute(node, "ADD", "c1")
    execute(node, "DEL", "c1")
    node.app.metrics.request_orphaned("ADD")
    written = {name: (kind, labels) for name, kind, *labels in WRITTEN}
    exposed = {exposed_name(metric): metric for metric in node.app.metrics.registry.collect()}
    of_pools = {name for name in written if name.startswith("ipamd_pod_pool_")}  # only where the network file names pools
    assert exposed.keys() == written.keys() - of_pools
    for name, metric in exposed.items():
        seen = {label for sample in metric.samples for label in sample.labels} - {"le"}
        assert (metric.type, sorted(seen) or written[name][1]) == written[name], name
    assert {exposed_name(metric): (metric.type, sorted(labels_of(metric))) for metric in documented()} == written


def test_the_number_of_series_does_not_grow_with_pods(made: list[FakeNode], tmp_path: Path) -> None:
    """No pod, sandbox, address or link is a label; attached ENIs and the node's few subnets are, and no other ID."""
    node = start(made, tmp_path, ec2=FakeEc2(limits=InstanceLimits("big", 1, 50)), settings=PoolSettings(warm_ip_target=2))
    run_sandboxes(node, "pod-a", "pod-b")
    execute(node, "DEL", "gone")
    before = series(node)
    run_sandboxes(node, *(f"pod-{number}" for number in range(30)))
    for number in range(20):
        execute(node, "DEL", f"gone-{number}")
        execute(node, f"VERB{number}", "x")
    after = series(node)
    grown = {name for name, labels in after.items() if len(labels) > len(before.get(name, []))}
    assert {
        name for name in grown if not name.startswith(("ipamd_requests", "ipamd_request_duration", "ipamd_refusals"))
    } == set()
    assert len([one for one in after["ipamd_requests_total"] if one["verb"] == "other"]) == 1
    words = {word for labels in after.values() for one in labels for key, word in one.items() if key not in ("eni", "subnet")}
    assert not [word for word in words if re.search(r"pod-|gone|10\.0\.|eni-(primary|\d)|subnet-\d|i-0", word)]
