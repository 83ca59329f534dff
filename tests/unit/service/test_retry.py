"""`ipamctl retry`: what EC2 refused is asked for now, and nothing else changes (I13)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.core.backoffs import CREDENTIALS, DENIED, EC2, LIMIT, NODE, REPAIR, ROOM
from ipamd.ipamctl.client import plain
from ipamd.ipamctl.verbs.retry import RETRY
from ipamd.model.errors import CloudDeniedError, CloudError, EniLimitError, SubnetExhaustedError, ThrottledError
from ipamd.pb import introspection_pb2 as pb
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
