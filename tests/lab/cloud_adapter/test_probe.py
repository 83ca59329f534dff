"""The probe of EC2 against the lab's EC2: it tells true from false answers, stays within its bound, and leaves nothing behind."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby
from operator import attrgetter
from typing import Any

import pytest

from ipamd.cloud.answers import described_eni
from ipamd.model.eni_tags import is_managed
from ipamd.probe.calls import CHECK_CALLS, CLEANUP_CALLS
from ipamd.probe.checks import CHECKS
from ipamd.probe.report import markdown
from tests.lab.cloud_adapter.conftest import Bench
from tests.lab.cloud_adapter.false_answers import CREATE, FALSE_ANSWERS, FalseAnswer
from tests.lab.cloud_adapter.probing import ProbeOnLab, Send, enis_left, observed, verdicts

MakeBench = Callable[..., Bench]

CHANGES = {"Create", "Attach", "Detach", "Delete", "Modify", "Assign", "Unassign"}


@pytest.fixture
def real_bench(make_bench: MakeBench) -> Bench:
    """A node where attaching and detaching take two seconds each."""
    return make_bench(attach_delay_s=2.0, detach_delay_s=2.0, has_ipv6=True)


def test_on_the_lab_as_it_is_every_assumption_holds(real_bench: Bench) -> None:
    """Each check has a verdict, nothing is left, and the calls are within the bound (I9, I13)."""
    report = ProbeOnLab(real_bench).run()
    assert verdicts(report) == {check.name: "holds" for check in CHECKS}
    assert enis_left(real_bench) == []
    assert report["left_over"] == []
    assert report["call_count"] <= 60
    assert report["ended"] == ""


def test_where_everything_is_instant_every_assumption_holds(make_bench: MakeBench) -> None:
    """A detach that is done before the next call leaves no check without a verdict."""
    bench = make_bench(has_ipv6=True)
    assert verdicts(ProbeOnLab(bench).run()) == {check.name: "holds" for check in CHECKS}
    assert enis_left(bench) == []


def test_a_subnet_without_ipv6_tells_nothing_of_it(bench: Bench) -> None:
    """No verdict on what cannot be asked; all others are as ever."""
    report = ProbeOnLab(bench).run()
    assert {name for name, verdict in verdicts(report).items() if verdict != "holds"} == {
        f"ipv6-prefix-{what}" for what in ("answer", "visible", "metadata")
    }
    assert observed(report, "ipv6-prefix-answer").startswith("no prefix of IPv6 was assigned: ")
    assert report["left_over"] == []


def test_each_check_has_its_step() -> None:
    """A check without a step would always be unknown, and a step in two places of the table would be taken twice."""
    assert [check.name for check in CHECKS if check.ask is None] == ["limits-table"]
    assert len({check.name for check in CHECKS}) == len(CHECKS)
    taken = [ask for ask, _ in groupby(CHECKS, key=attrgetter("ask"))]
    assert len(set(taken)) == len(taken)


def test_each_check_has_a_false_answer() -> None:
    """No check is there whose "does not hold" was never seen."""
    assert {false.check for false in FALSE_ANSWERS} == {check.name for check in CHECKS}


@pytest.mark.parametrize("false", FALSE_ANSWERS, ids=lambda false: false.check)
def test_a_false_answer_is_seen_and_nothing_is_left(false: FalseAnswer, make_bench: MakeBench) -> None:
    """The check says "does not hold" with what was observed; whatever EC2 answered, the probe's ENIs are gone (I9)."""
    bench = make_bench(attach_delay_s=false.attach_delay_s, detach_delay_s=false.detach_delay_s, has_ipv6=True)
    probe = ProbeOnLab(bench, false.around)
    if false.links is not None:
        probe.links = lambda: false.links(probe)
    if false.metadata is not None:
        probe.metadata = lambda path: false.metadata(probe, path)
    bench.clock.sleep(60.0)  # a lagging Describe shows the node as it was, not a time before it
    bench.vpc.faults.apply(false.faults or {})
    report = probe.run()
    assert verdicts(report)[false.check] == "does not hold"
    assert false.says in observed(report, false.check)
    assert enis_left(bench) == []
    assert report["left_over"] == []
    assert report["call_count"] <= CHECK_CALLS + CLEANUP_CALLS


def test_a_dry_run_changes_nothing(bench: Bench) -> None:
    """Without `--run` only Describes and dry runs are made, and the report says what a run would do."""
    before = bench.vpc.world.enis
    report = ProbeOnLab(bench).run(is_real=False)
    changing = [call for call in bench.vpc.calls() if any(call.api.startswith(word) for word in CHANGES)]
    assert len(changing) == 5
    assert {call.outcome for call in changing} == {"DryRunOperation"}
    assert bench.vpc.world.enis == before
    assert verdicts(report) == {"limits-table": "holds"}
    assert report["call_count"] == 8  # as docs/architecture.md says
    assert "at most 100 EC2 calls" in markdown(report)


def test_the_daemon_leaves_the_probes_eni_alone(real_bench: Bench) -> None:
    """A daemon that sees the ENI attached gives none of its addresses to a sandbox."""
    seen = []

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        answer = send(api, params)
        seen.extend(eni for eni in answer.get("NetworkInterfaces", ()) if eni["Description"].startswith("vpc-ipamd probe"))
        return answer

    ProbeOnLab(real_bench, around).run()
    instance_id = real_bench.instance_id
    assert len(seen) > 5
    assert not any(is_managed(described_eni(eni), is_primary=False, instance_id=instance_id) for eni in seen)


def test_other_enis_are_not_touched(make_bench: MakeBench) -> None:
    """The node's own ENIs are the same before and after, to the last field."""
    bench = make_bench(instance_type="m5.xlarge", attach_delay_s=2.0, detach_delay_s=2.0)
    bench.attached()
    bench.clock.sleep(5.0)
    before = dict(bench.vpc.world.enis)
    ProbeOnLab(bench).run()
    assert dict(bench.vpc.world.enis) == before


def test_without_a_free_place_it_does_not_run(bench: Bench) -> None:
    """A full node is refused, with the numbers, before anything is asked for."""
    bench.attached(device_index=1)
    bench.attached(device_index=2)
    before = len(bench.vpc.calls())
    report = ProbeOnLab(bench).run()
    assert "3 of 3 ENIs are attached" in report["ended"]
    assert {call.api for call in bench.vpc.calls()[before:]} == {"DescribeInstanceTypes", "DescribeNetworkInterfaces"}


def test_a_list_without_the_primary_eni_is_not_believed(bench: Bench) -> None:
    """Where EC2 does not show the primary ENI it is not known what is free (I11)."""

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        answer = dict(send(api, params))
        return {**answer, "NetworkInterfaces": []} if "NetworkInterfaces" in answer else answer

    assert "does not show the primary ENI" in ProbeOnLab(bench, around).run()["ended"]
    assert enis_left(bench) == []


def test_throttling_is_waited_out_and_then_reported(real_bench: Bench) -> None:
    """A throttled call is tried three times, seconds apart; then its code is the answer."""
    real_bench.vpc.faults.apply({"apis": {"AssignPrivateIpAddresses": {"error": {"code": "RequestLimitExceeded"}}}})
    report = ProbeOnLab(real_bench).run()
    assert verdicts(report)["assign-answer"] == "unknown"
    assert "RequestLimitExceeded" in observed(report, "assign-answer")
    assert [answer["api"] for answer in report["answers"]].count("AssignPrivateIpAddresses") == 6
    assert enis_left(real_bench) == []


@pytest.mark.parametrize("lag_s", [5.0, 20.0, 45.0])
def test_a_long_lag_stays_within_the_bound(lag_s: float, real_bench: Bench) -> None:
    """However long Describe lags, the calls are bounded, checks that could not be made are unknown, and nothing is left."""
    real_bench.vpc.faults.apply({"apis": {"DescribeNetworkInterfaces": {"lag_s": lag_s}}})
    real_bench.clock.sleep(60.0)
    report = ProbeOnLab(real_bench).run()
    assert report["call_count"] <= CHECK_CALLS + CLEANUP_CALLS
    assert verdicts(report)["create-visible"] == "does not hold"
    assert enis_left(real_bench) == []


def test_account_numbers_are_not_in_the_report(real_bench: Bench) -> None:
    """A report can be shared: messages of refusals name ARNs, with the account."""
    message = "User: arn:aws:sts::123456789012:assumed-role/node is not authorized"
    real_bench.vpc.faults.apply({"apis": {CREATE: {"error": {"code": "UnauthorizedOperation", "message": message}}}})
    report = ProbeOnLab(real_bench).run()
    assert "123456789012" not in markdown(report)
    assert "arn:aws:sts::ACCOUNT:assumed-role" in markdown(report)
    assert "IAM denies CreateNetworkInterface" in report["ended"]


LAB_LIES = [
    ({"rules": {"token_of_deleted": "new-eni"}}, {"token-after-delete"}),
    ({"rules": {"assign_answer": "all"}}, {"assign-answer", "prefix-answer"}),
    ({"rules": {"in_use": "InvalidParameterValue"}}, set()),
    ({"rules": {"in_use": "InvalidNetworkInterface.InUse"}}, set()),
    ({"unseen": {"AttachNetworkInterface": 1}}, {"attach-after-create"}),
    ({"describe": {"late_addresses_s": 5}}, {"attached-addresses"}),
    ({"describe": {"stale_s": {"UnassignPrivateIpAddresses": 5}}}, {"unassign-visible"}),
    ({"describe": {"stale_s": {"DeleteNetworkInterface": 5}}}, {"delete-visible"}),
    ({"large_account": {"page_size": 1, "sparse": True}}, {"list-unpaged"}),
]
"""What the lab is told -> the checks that must say "does not hold"; all others hold."""


@pytest.mark.parametrize(
    ("spec", "false"), LAB_LIES, ids=lambda value: str(sorted(value) if isinstance(value, set) else value)[:60]
)
def test_each_lie_of_the_lab_is_seen_by_its_check(spec: Mapping[str, object], false: set[str], real_bench: Bench) -> None:
    """Both answers where AWS's is unknown: the check tells which, no other check is misled, and nothing is left."""
    real_bench.clock.sleep(60.0)
    real_bench.vpc.faults.apply(spec)
    report = ProbeOnLab(real_bench).run()
    assert {name for name, verdict in verdicts(report).items() if verdict != "holds"} == false
    assert enis_left(real_bench) == []
    assert report["left_over"] == []


def test_frozen_metadata_is_unknown_and_not_false(real_bench: Bench) -> None:
    """Metadata that never lists the ENI says nothing about what it lists first."""
    real_bench.vpc.faults.apply({"apis": {"imds": {"frozen": True}}})
    report = ProbeOnLab(real_bench).run()
    assert {name for name, verdict in verdicts(report).items() if verdict != "holds"} == {
        "metadata-complete",
        "assign-metadata",
        "ipv6-prefix-metadata",
    }
    assert verdicts(report)["metadata-complete"] == "unknown"


@pytest.mark.parametrize("action", ["CreateNetworkInterface", "DetachNetworkInterface", "DeleteNetworkInterface", "CreateTags"])
def test_what_iam_denies_prevents_a_run_that_could_not_clean_up(action: str, real_bench: Bench) -> None:
    """Dry runs find it before anything is created."""
    real_bench.vpc.faults.apply({"iam": [{"action": action}]})
    report = ProbeOnLab(real_bench).run()
    assert "could not clean up" in report["ended"]
    assert enis_left(real_bench) == []


@pytest.mark.parametrize("action", ["AssignPrivateIpAddresses", "ModifyNetworkInterfaceAttribute", "UnassignPrivateIpAddresses"])
def test_what_iam_denies_otherwise_leaves_its_checks_unknown(action: str, real_bench: Bench) -> None:
    """The other checks have their verdicts, and nothing is left."""
    real_bench.vpc.faults.apply({"iam": [{"action": action}]})
    report = ProbeOnLab(real_bench).run()
    assert report["ended"] == ""
    assert verdicts(report)["token-after-delete"] == "holds"
    assert enis_left(real_bench) == []
