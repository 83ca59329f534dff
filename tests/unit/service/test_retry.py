"""`ipamctl retry`: what EC2 refused is asked for now, and nothing else changes (I13)."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ipamd.core.backoffs import CREDENTIALS, DENIED, EC2, LIMIT, NODE, REPAIR, ROOM
from ipamd.ipamctl.client import plain
from ipamd.ipamctl.verb import Answer
from ipamd.ipamctl.verbs.retry import OUTCOME_PAUSE_S, OUTCOME_WAIT_S, RETRY, ask_retry
from ipamd.model.errors import CloudDeniedError, CloudError, EniLimitError, SubnetExhaustedError, ThrottledError
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.verdict import condition_reports, facts
from tests.fakes.node import FakeNode

REFUSALS = {
    "IAM": CloudDeniedError("EC2 CreateNetworkInterface failed", details="UnauthorizedOperation"),
    "a subnet": SubnetExhaustedError("EC2 CreateNetworkInterface failed", details="InsufficientFreeAddressesInSubnet"),
    "a quota": EniLimitError("EC2 AttachNetworkInterface failed", details="AttachmentLimitExceeded"),
    "an error": CloudError("EC2 CreateNetworkInterface failed", details="InternalError"),
}


def retry(node: FakeNode) -> list[dict[str, object]]:
    """What the verb's answer names as ended."""
    answer = plain(node.app.introspection.Retry(pb.RetryRequest()))
    assert RETRY.render(answer)
    ended: list[dict[str, object]] = answer["retried"]
    return ended


@pytest.mark.parametrize("cause", REFUSALS)
def test_what_was_mended_is_asked_for_at_once(node: FakeNode, cause: str) -> None:
    """It would wait for minutes or hours, and grows in the next cycle; condition and last error say that it is over."""
    method = "attach_eni" if cause == "a quota" else "create_eni"
    node.ec2.fail[method] = [REFUSALS[cause]] * 9
    for number in range(4):
        node.add(f"s{number}")
    for _ in range(3):
        node.pool.cycle()
    created = node.ec2.calls["create_eni"]
    node.ec2.fail.clear()
    node.pool.cycle()
    assert node.ec2.calls["create_eni"] == created, "it waits"
    ended = retry(node)
    assert ended
    assert all(float(str(one["retry_in_s"])) > 0 for one in ended)
    node.pool.cycle()
    assert len(node.ec2.attached()) == 2
    assert "ec2" not in node.health.conditions_by_subject()
    last = node.health.last_error
    assert last is not None
    assert last.resolved_at is not None
    assert retry(node) == []


def outcomes(node: FakeNode) -> list[str]:
    """What came of the requests of the last retry."""
    answer = plain(node.app.introspection.Retry(pb.RetryRequest(outcome_only=True)))
    return [str(entry["outcome"]) for entry in answer["outcomes"]]


@pytest.mark.parametrize("is_mended", [True, False])
def test_the_outcome_of_a_retry(node: FakeNode, is_mended: bool) -> None:
    """It is asked, and then accepted or refused again with the cause; a second refusal has a time of its own in the condition."""
    code = "UnauthorizedOperation"
    denied = CloudDeniedError("EC2 CreateNetworkInterface failed", code=code, operation="CreateNetworkInterface", answer=code)
    node.ec2.fail["create_eni"] = [denied] * 9
    for number in range(4):
        node.add(f"s{number}")
    for _ in range(3):
        node.pool.cycle()
    node.clock.advance(100.0)
    (since,) = [report.since for report in condition_reports(facts(node.app.introspection.sources)) if report.subject == "ec2"]
    assert outcomes(node) == []
    answer = plain(node.app.introspection.Retry(pb.RetryRequest()))["retried"]
    assert [entry["operations"] for entry in answer] == [["CreateNetworkInterface"]]
    assert outcomes(node) == ["asked"]
    if is_mended:
        node.ec2.fail.clear()
    node.clock.advance(1.0)
    node.pool.cycle()
    assert outcomes(node) == ["accepted" if is_mended else "refused"]
    reports = [report for report in condition_reports(facts(node.app.introspection.sources)) if report.subject == "ec2"]
    node.clock.advance(7.0)
    if is_mended:
        assert reports == []
        return
    (report,) = [report for report in condition_reports(facts(node.app.introspection.sources)) if report.subject == "ec2"]
    assert (report.since, report.refused_ago_s) == (since, 7.0)


def test_the_verb_waits_for_the_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until every request has one, and for a bounded time; a daemon that does not know the question is not asked again."""
    now_s = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(time, "sleep", lambda s: now_s.__setitem__(0, now_s[0] + s))
    base = {"subject": "k", "reason": "r", "next": "n", "retry_in_s": 0.0, "operations": ["CreateNetworkInterface"]}

    def ask(*later: str) -> tuple[list[str], int]:
        answers = [*later]
        asked: list[bool] = []

        def daemon(_: str, *, outcome_only: bool = False) -> Answer:
            asked.append(outcome_only)
            if not outcome_only:
                return {"retried": [base], "outcomes": []}
            word = answers.pop(0) if len(answers) > 1 else answers[0]
            return {"retried": [], "outcomes": [{**base, "outcome": word}] if word else []}

        answer = ask_retry(daemon, None)
        assert RETRY.render(answer)
        return [outcome["outcome"] for outcome in answer["outcomes"]], sum(asked)

    assert ask("asked", "refused") == (["refused"], 2)
    assert ask("accepted") == (["accepted"], 1)
    assert ask("asked") == (["asked"], int(OUTCOME_WAIT_S / OUTCOME_PAUSE_S))
    assert ask("") == ([], 1)


def test_only_waits_of_ec2_end_and_none_for_others_sake(node: FakeNode) -> None:
    """A fight over a rule and a loop's pause go on, and spare ENIs still yield to the account's other nodes after throttling."""
    backoffs = node.app.context.backoffs
    for schedule in (NODE, REPAIR, EC2, ROOM, DENIED, CREDENTIALS, LIMIT):
        backoffs.back_off((schedule.name, "x"), schedule)
    node.ec2.fail["create_eni"] = [ThrottledError("slow down")]
    node.add("s")
    node.pool.cycle()
    spare = [key for key in backoffs.keys("limit") if key[-1] == "spare"]
    assert spare
    assert {str(one["subject"]) for one in retry(node)} == {"ec2 x", "room x", "denied x", "credentials x", "limit x"}
    assert not backoffs.is_due(("node", "x"))
    assert not backoffs.is_due(("repair", "x"))
    assert not backoffs.is_due(spare[0])


def test_nothing_waits(node: FakeNode, tmp_path: Path) -> None:
    """An idle node makes no call for it."""
    assert tmp_path.exists()
    calls = sum(node.ec2.calls.values())
    assert "no request was waiting" in RETRY.render({"retried": retry(node)})
    node.pool.cycle()
    assert sum(node.ec2.calls.values()) == calls


@pytest.mark.parametrize("waited_s", [60.0, 6000.0])
def test_what_only_the_next_eni_would_ask_is_asked_too(tmp_path: Path, waited_s: float) -> None:
    """IAM denied DescribeSubnets and allows it now: the condition ends, though nobody needs an ENI, and whether or not its pause is
    over. No timer runs for it."""
    node = FakeNode(tmp_path)
    node.ec2.fail["describe_subnets"] = [CloudDeniedError("EC2 DescribeSubnets failed", details="UnauthorizedOperation")]
    node.provisioner.leaked_enis.disable()  # it looks once, a minute or two after the start
    node.bring_up()
    assert "subnets" in node.health.conditions_by_subject()
    assert node.pool._pause_s() is None, "an idle pool sleeps"
    node.clock.advance(waited_s)
    retry(node)
    assert node.was_triggered()
    node.pool.run_once()
    assert "subnets" not in node.health.conditions_by_subject()
    assert node.ec2.calls["describe_subnets"] == 2


def test_what_is_denied_still_is_asked_by_the_schedule(tmp_path: Path) -> None:
    """Pods come and go all day, and the pool is awake: it asks once an hour in the end."""
    node = FakeNode(tmp_path)
    node.ec2.fail["describe_subnets"] = [CloudDeniedError("EC2 DescribeSubnets failed", details="UnauthorizedOperation")] * 99
    node.bring_up()
    for _ in range(1440):
        node.clock.advance(60)
        node.pool.run_once()
    assert 24 <= node.ec2.calls["describe_subnets"] <= 28
