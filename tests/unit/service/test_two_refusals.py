"""What EC2 refuses at the same time is all named: in conditions, in the pool's sentence, and by `ipamctl retry`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.health import Phase
from ipamd.eni.limits import RELEASE_DENIED
from ipamd.eni.release_guard import FrozenError
from ipamd.eni.steps import ADDRESSES, ENIS
from ipamd.ipamctl.client import plain
from ipamd.model.condition_messages import condition_text
from ipamd.model.conditions import ConditionCode, problem
from ipamd.model.errors import CloudDeniedError, CloudError, IpamError, ThrottledError
from ipamd.model.intent import Assign
from ipamd.model.pool_settings import PoolSettings
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.verdict import LINE_MAX, POOL, condition_reports, facts, verdict
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode


def denied(operation: str) -> CloudDeniedError:
    """EC2 denies a call."""
    code = "UnauthorizedOperation"
    return CloudDeniedError(
        f"EC2 {operation} failed for eni-1", code=code, operation=operation, subject="eni-1", answer=f"{code}: no"
    )


CREATE = denied("CreateNetworkInterface")
ASSIGN = denied("AssignPrivateIpAddresses")
DETACH = denied("DetachNetworkInterface")
UNASSIGN = denied("UnassignPrivateIpAddresses")


def refuse(node: FakeNode, **errors: CloudError) -> None:
    """EC2 answers these calls with these errors from now on."""
    for method, error in errors.items():
        node.ec2.fail[method] = [error] * 99


def retried(node: FakeNode) -> list[dict[str, object]]:
    """What `ipamctl retry` lists."""
    ended: list[dict[str, object]] = plain(node.app.introspection.Retry(pb.RetryRequest()))["retried"]
    return ended


def named(errors: list[CloudError], text: object) -> list[bool]:
    """Of each error whether a text names it."""
    return [error.message in str(text) for error in errors]


@pytest.fixture
def short(tmp_path: Path) -> FakeNode:
    """A node that is short of addresses, with a slot and a place for an ENI."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=4))
    node.bring_up()
    return node


def ask(node: FakeNode) -> None:
    """Pods take addresses, and the pool asks for more."""
    for number in range(4):
        node.add(f"s{number}")
    for _ in range(5):
        node.pool.cycle()


def test_two_denials_of_growth(short: FakeNode) -> None:
    """An administrator who allows the one that is named would learn of the other ten minutes later."""
    refuse(short, create_eni=CREATE, assign_addresses=ASSIGN)
    ask(short)
    errors: list[CloudError] = [CREATE, ASSIGN]
    assert all(named(errors, short.health.conditions_by_subject()["ec2"]))
    assert all(named(errors, short.demand.status.blocked))
    refusals = {refusal for error in errors for refusal in error.cause.refusals}
    assert set(short.demand.status.shortage().refusals) == refusals
    known = facts(short.app.introspection.sources)
    empty = problem(ConditionCode.NO_ADDRESS, cause=short.demand.status.shortage())  # as of a node that is ready
    conditions = {**known.conditions, POOL: condition_text(POOL, empty)}
    known = replace(known, conditions=conditions, problems={**known.problems, POOL: (empty,)})
    reports = {report.subject: report for report in condition_reports(known)}
    assert set(reports["ec2"].refusals) == set(reports[POOL].refusals) == refusals
    assert named(errors, reports[POOL].text) == [False, False], "the condition ec2 has both"
    line = verdict(replace(known, is_ready=False, phase=Phase.SERVING))
    assert len(line) <= LINE_MAX
    assert all(refusal.operation in line or refusal.code in line for refusal in refusals)
    assert all(named(errors, retried(short)))


def test_one_of_two_is_allowed(short: FakeNode) -> None:
    """The condition goes on with the other, as long as that is wanted."""
    refuse(short, create_eni=CREATE, assign_addresses=ASSIGN)
    ask(short)
    del short.ec2.fail["assign_addresses"]
    short.settings = replace(short.settings, warm_ip_target=20)
    short.pool.set_limits(short.ec2.limits, settings=short.settings)
    retried(short)
    for _ in range(9):
        short.pool.cycle()
    told = short.health.conditions_by_subject()["ec2"]
    assert named([CREATE, ASSIGN], told) == [True, False]
    del short.ec2.fail["create_eni"]
    retried(short)
    for _ in range(9):
        short.pool.cycle()
    assert "ec2" not in short.health.conditions_by_subject()


def test_two_denials_of_releases(short: FakeNode) -> None:
    """One pause for both, which names both; an ENI that EC2 takes back does not end what is said of addresses."""
    limits, steps = short.app.pool.subnets.limits, short.provisioner.steps
    for error, of in ((DETACH, ENIS), (UNASSIGN, ADDRESSES), (UNASSIGN, ADDRESSES)):
        limits.learn_release(error)
        steps.report_refused(error, of=of)
    refusal = limits.refusal(RELEASE_DENIED)
    assert refusal is not None
    errors: list[CloudError] = [DETACH, UNASSIGN]
    assert all(named(errors, refusal.reason))
    assert all(named(errors, short.health.conditions_by_subject()["release"]))
    ended = [str(entry["reason"]) for entry in retried(short)]
    assert [sum(error.message in reason for reason in ended) for error in errors] == [1, 1], "each once, in an entry of its own"
    assert limits.refusal(RELEASE_DENIED) is None
    steps.end_refusal(ENIS)
    assert named(errors, short.health.conditions_by_subject()["release"]) == [False, True]
    steps.end_refusal(ADDRESSES)
    assert "release" not in short.health.conditions_by_subject()


def test_security_groups_of_two_enis(tmp_path: Path) -> None:
    """EC2 refuses both: both are named, and each ends for itself."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=20))
    node.bring_up()
    secondary = sorted(eni.eni_id for eni in node.datastore.enis() if not eni.is_primary)
    assert len(secondary) == 2
    node.metadata.told = replace(node.metadata.told, security_group_ids=("sg-new",))
    identity = node.node_info.learn_identity()
    refuse(node, set_security_groups=CREATE)
    for _ in range(2):
        node.pool.security_groups.follow(identity)
    assert all(eni_id in node.health.conditions_by_subject()["security groups"] for eni_id in secondary)
    ended = retried(node)
    assert [entry["reason"] for entry in ended] == [str(CREATE)] * 2
    node.ec2.fail.clear()
    node.pool.security_groups.follow(identity)
    told = node.health.conditions_by_subject()["security groups"]
    assert [eni_id in told for eni_id in secondary] == [False, True]
    node.pool.security_groups.follow(identity)
    assert "security groups" not in node.health.conditions_by_subject()


def test_throttling_beside_a_denial_is_still_quiet(short: FakeNode) -> None:
    """What no ADD waits for can wait while EC2 throttles, and is no condition; the denial beside it is."""
    refuse(short, create_eni=CREATE, assign_addresses=ThrottledError("slow down"))
    ask(short)
    assert "slow down" not in short.health.conditions_by_subject().get("ec2", "")


class Growing(dict[str, IpamError | None]):
    """Errors of open operations. While their items are read one by one, the pool's thread adds another one."""

    def items(self) -> Iterator[tuple[str, IpamError | None]]:  # type: ignore[override]
        for item in super().items():
            yield item
            self["another"] = CREATE


def test_a_failure_that_is_recorded_while_another_thread_reads(short: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """`ipamctl retry` reads the failures in a thread of its own, so that read must not fail if the pool's thread adds one."""
    intent = short.provisioner._log.open(Assign(PRIMARY, 1))
    monkeypatch.setattr(short.provisioner, "_failed", Growing({intent.intent_id: ASSIGN}))
    assert short.provisioner.failures() == {intent.intent_id: ASSIGN}


def test_two_open_calls_that_failed(short: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both are named as what the pool waits for, the last one first; what a freeze stops is none of EC2's refusals."""
    intents = [short.provisioner._log.open(Assign(PRIMARY, 1)) for _ in range(3)]
    errors: list[CloudError] = [CREATE, ASSIGN]
    failed = {
        intents[0].intent_id: CREATE,
        intents[1].intent_id: ASSIGN,
        intents[2].intent_id: FrozenError("nothing is released", details=""),
    }
    monkeypatch.setattr(short.provisioner, "_failed", failed)
    snapshot = short.pool.snapshot()
    assert snapshot is not None
    assert all(named(errors, snapshot.growth.pending))
    assert "nothing is released" not in snapshot.growth.pending
    assert set(short.provisioner.failures()) == {intent.intent_id for intent in intents[:2]}
