"""What each EC2 method does when EC2, the network or IAM fails. Sleeping moves the lab's clock; nothing waits for real."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ipamd.cloud import budget
from ipamd.cloud.retries import IDEMPOTENT, SETTLING
from ipamd.model.call_report import CallReport
from ipamd.model.errors import CloudDeniedError, CloudError, ThrottledError
from ipamd.model.failures import FailureCode
from tests.errors import failed, refused_by_ec2
from tests.lab.cloud_adapter.conftest import TAGS, Bench


def test_a_lost_create_answer_is_replayed_to_the_same_eni(bench: Bench) -> None:
    """When the answer of Create is lost, the retry with the same token finds the same ENI: none leaks (I9)."""
    before = len(bench.vpc.enis())
    bench.fault("CreateNetworkInterface", lost_answers={"count": 2})
    made = bench.ec2.create_eni(bench.request(addresses=2))
    assert bench.vpc.call_counts() == {"CreateNetworkInterface": 3}
    assert len(bench.vpc.enis()) == before + 1
    assert bench.vpc.eni(made.eni_id).eni_id == made.eni_id


def test_a_stored_token_finds_the_eni_after_a_restart(bench: Bench) -> None:
    """A daemon that died between call and answer repeats the call with the token it stored, and gets that ENI (I9)."""
    bench.fault("CreateNetworkInterface", lost_answers={})
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_UNANSWERED)):
        bench.ec2.create_eni(bench.request(addresses=2))
    (orphan,) = bench.vpc.enis()[1:]
    bench.vpc.faults.clear()
    assert bench.new_ec2().create_eni(bench.request(addresses=2)).eni_id == orphan.eni_id


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "InsufficientFreeAddressesInSubnet", "AnUnlistedCode"])
def test_a_refusal_after_a_lost_answer_may_have_happened(bench: Bench, code: str) -> None:
    """The first attempt made an ENI and its answer was lost; the second is refused: the error says what may be there (I9)."""
    bench.fault("CreateNetworkInterface", lost_answers={"count": 1})
    bench.ec2._sleep = lambda _s: bench.fault("CreateNetworkInterface", error={"code": code})  # between the two attempts
    with pytest.raises(CloudError, check=refused_by_ec2(code)) as refused:
        bench.ec2.create_eni(bench.request(addresses=2))
    assert len(bench.vpc.enis()) == 2
    assert refused.value.may_have_happened


@pytest.mark.parametrize("code", ["UnauthorizedOperation", "InsufficientFreeAddressesInSubnet", "AnUnlistedCode"])
def test_a_first_refusal_has_changed_nothing(bench: Bench, code: str) -> None:
    """An answer of EC2 to the only attempt is definite, whatever its code (I9)."""
    bench.fault("CreateNetworkInterface", error={"code": code})
    with pytest.raises(CloudError, check=refused_by_ec2(code)) as refused:
        bench.ec2.create_eni(bench.request(addresses=2))
    assert not refused.value.may_have_happened


def test_a_denial_is_a_warning_once_per_change(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever the caller makes of it: named with API and action, not again while it lasts, and its end is told."""
    caplog.set_level("INFO")

    def told() -> list[str]:
        return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]

    bench.fault("CreateNetworkInterface", error={"code": "UnauthorizedOperation"})
    for _ in range(3):
        with pytest.raises(CloudDeniedError):
            bench.ec2.create_eni(bench.request(addresses=2))
    (denied,) = told()
    assert "CreateNetworkInterface" in denied
    assert "ec2:CreateNetworkInterface" in denied
    bench.vpc.faults.clear()
    for _ in range(2):
        bench.ec2.create_eni(bench.request(addresses=2))
    assert told() == [denied, "EC2 allowed a denied call again api=CreateNetworkInterface"]


def test_a_token_for_another_request_is_refused(bench: Bench) -> None:
    """A token that is used for something else is a typed error, not a second ENI."""
    bench.ec2.create_eni(bench.request(addresses=2))
    with pytest.raises(CloudError, check=refused_by_ec2("IdempotentParameterMismatch")):
        bench.ec2.create_eni(bench.request(addresses=3))


def test_a_lost_assign_answer_is_not_repeated(bench: Bench) -> None:
    """Assign has no token: after a lost answer it is not sent again, and the error says that Describe will tell (I7)."""
    eni_id = bench.attached(addresses=1)
    bench.fault("AssignPrivateIpAddresses", lost_answers={"count": 1})
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_UNANSWERED)):
        bench.ec2.assign_addresses(eni_id, count=2)
    assert bench.vpc.call_counts()["AssignPrivateIpAddresses"] == 1
    assert len(bench.ec2.describe_eni(eni_id).secondary_addresses) == 3


def test_a_lost_unassign_answer_is_fine(bench: Bench) -> None:
    """When the answer of a release is lost, the retry finds nothing left to release, and that is success."""
    eni_id = bench.attached(addresses=3)
    bench.fault("UnassignPrivateIpAddresses", lost_answers={"count": 1})
    bench.ec2.unassign(eni_id, addresses=bench.owned(eni_id), prefixes=())
    assert bench.owned(eni_id) == frozenset()


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_release_that_is_stopped_between_two_attempts_is_not_attempted_again(bench: Bench, is_answered: bool) -> None:
    """Its retries may last a minute, in which the pool may freeze; whether an attempt took effect stays known (I20, I9)."""
    eni_id = bench.attached(addresses=3)
    api = "UnassignPrivateIpAddresses"
    bench.fault(
        api, error={"code": "RequestLimitExceeded", "status": 503} if is_answered else {"code": "InternalError", "status": 500}
    )
    stopped = ThrottledError("of the test: the pool is frozen")

    def stop_the_second() -> None:
        if bench.vpc.call_counts()[api]:
            raise stopped

    bench.ec2.before_release = stop_the_second
    with pytest.raises(ThrottledError) as failed:
        bench.ec2.unassign(eni_id, addresses=bench.owned(eni_id), prefixes=())
    assert failed.value is stopped
    assert failed.value.may_have_happened is not is_answered
    assert bench.vpc.call_counts()[api] == 1


@pytest.mark.parametrize("answers_lost", [0, 1])
def test_delete_waits_for_the_detach(make_bench: Callable[..., Bench], answers_lost: int) -> None:
    """Delete goes on while the ENI is detaching, with growing waits, until EC2 lets go of it (I9)."""
    bench = make_bench(detach_delay_s=8.0)
    eni_id = bench.attached()
    attachment = bench.vpc.eni(eni_id).attachment
    assert attachment is not None
    bench.ec2.detach_eni(attachment.attachment_id)
    if answers_lost:
        bench.fault("DeleteNetworkInterface", lost_answers={"count": answers_lost})
    bench.ec2.delete_eni(eni_id)
    assert eni_id not in {eni.eni_id for eni in bench.vpc.enis()}
    assert bench.clock.elapsed_s >= 8.0
    assert bench.vpc.call_counts()["DeleteNetworkInterface"] <= SETTLING.attempts


def test_delete_gives_up_in_time(bench: Bench) -> None:
    """An ENI that stays attached is not waited for beyond the policy's limit; the error says why."""
    eni_id = bench.attached()
    with pytest.raises(CloudError, check=refused_by_ec2("InvalidParameterValue")):
        bench.ec2.delete_eni(eni_id)
    assert bench.clock.elapsed_s <= SETTLING.total_s + SETTLING.wait_cap_s + budget.MAX_WAIT_S


def test_describe_of_a_new_eni_waits_for_consistency(bench: Bench) -> None:
    """NotFound of an ENI that we made just now is eventual consistency: it is looked for again until it shows."""
    bench.clock.elapsed_s += 60
    made = bench.ec2.create_eni(bench.request(addresses=1))
    bench.fault("DescribeNetworkInterfaces", lag_s=1.5)
    seen = None
    while seen is None:  # a lag may outlast one method's patience; each try moves the clock
        try:
            seen = bench.ec2.describe_eni(made.eni_id)
        except CloudError:
            assert bench.clock.elapsed_s < 90
    assert seen.eni_id == made.eni_id
    assert bench.vpc.call_counts()["DescribeNetworkInterfaces"] > 1


def test_a_new_eni_is_not_believed_gone(bench: Bench) -> None:
    """NotFound on deleting an ENI that we made just now is not taken for success: it would leak (I9)."""
    made = bench.ec2.create_eni(bench.request(addresses=1))
    bench.fault("DeleteNetworkInterface", error={"code": "InvalidNetworkInterfaceID.NotFound", "count": 2})
    bench.ec2.delete_eni(made.eni_id)
    assert made.eni_id not in {eni.eni_id for eni in bench.vpc.enis()}
    assert bench.vpc.call_counts()["DeleteNetworkInterface"] == 3


def test_throttling_is_survived(bench: Bench) -> None:
    """A throttled call is tried again after a jittered wait, and succeeds when EC2 relents."""
    bench.fault("DescribeSubnets", error={"code": "RequestLimitExceeded", "count": 3})
    bench.ec2.subnet_cidr(bench.subnet_id)
    assert bench.vpc.call_counts() == {"DescribeSubnets": 4}
    assert bench.clock.elapsed_s > 0


def test_lasting_throttling_slows_this_api_and_no_other(bench: Bench) -> None:
    """One API throttled for ever costs ever fewer calls and is a typed error; the others go on as if nothing were (I13)."""
    eni_id = bench.attached(addresses=1)
    bench.vpc.clear_calls()
    bench.fault("AssignPrivateIpAddresses", throttle={"rate_per_s": 0.0, "burst": 0})
    began_s = bench.clock.elapsed_s
    for _ in range(20):
        with pytest.raises(ThrottledError):
            bench.ec2.assign_addresses(eni_id, count=1)
    calls = bench.vpc.call_counts()["AssignPrivateIpAddresses"]
    assert calls <= 25 + (bench.clock.elapsed_s - began_s) * budget.FLOOR_PER_S * 2
    before_s = bench.clock.elapsed_s
    bench.ec2.unassign(eni_id, addresses=bench.owned(eni_id), prefixes=())
    bench.ec2.describe_enis(bench.instance_id)
    assert bench.clock.elapsed_s == before_s


@pytest.mark.parametrize("code", ["InternalError", "Unavailable", "ServiceUnavailable"])
def test_faults_of_ec2_are_retried_where_that_is_safe(bench: Bench, code: str) -> None:
    """A server error is tried again for calls that may be repeated, a bounded number of times."""
    bench.fault("DescribeNetworkInterfaces", error={"code": code})
    with pytest.raises(CloudError, check=refused_by_ec2(code)):
        bench.ec2.describe_enis(bench.instance_id)
    assert bench.vpc.call_counts() == {"DescribeNetworkInterfaces": IDEMPOTENT.attempts}


def test_a_failing_page_fails_the_whole_describe(make_bench: Callable[..., Bench], monkeypatch: pytest.MonkeyPatch) -> None:
    """Half an answer is no answer: the pool never sees an ENI missing because a page was (I11)."""
    bench = make_bench(instance_type="m5.4xlarge")
    for device_index in range(1, 7):
        bench.attached(device_index=device_index, addresses=1)
    monkeypatch.setattr("ipamd.cloud.ec2.PAGE_SIZE", 5)
    bench.fault("DescribeNetworkInterfaces", throttle={"rate_per_s": 0.0, "burst": 1})
    with pytest.raises(ThrottledError):
        bench.ec2.describe_enis(bench.instance_id)
    assert bench.vpc.call_counts()["DescribeNetworkInterfaces"] > 1


def test_a_denied_call_names_api_and_action(bench: Bench) -> None:
    """IAM's refusal is not retried and names what to allow (I14)."""
    bench.fault("CreateNetworkInterface", error={"code": "UnauthorizedOperation", "message": "not authorized"})
    with pytest.raises(CloudDeniedError, check=refused_by_ec2("UnauthorizedOperation", "CreateNetworkInterface")) as denied:
        bench.ec2.create_eni(bench.request(addresses=1))
    assert all(key in denied.value.next_step for key in TAGS), "a condition on tags has to allow each of them"
    assert bench.vpc.call_counts() == {"CreateNetworkInterface": 1}


def test_an_unreachable_ec2_is_typed(bench: Bench) -> None:
    """A refused connection is tried again, bounded, and ends in an error that names the endpoint."""
    bench.vpc.faults.apply({"unreachable": {"ec2": "refuse"}})
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_UNSENT)):
        bench.ec2.subnet_cidr(bench.subnet_id)
    assert bench.vpc.calls() == []


def test_an_answer_that_does_not_come_is_given_up(bench: Bench) -> None:
    """With HTTP_TIMEOUT=1 a call that hangs ends after a second (here: one that must not be sent twice)."""
    eni_id = bench.attached(addresses=1)
    bench.fault("AssignPrivateIpAddresses", hang=True)
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_UNANSWERED)):
        bench.new_ec2(http_timeout_s=1).assign_addresses(eni_id, count=1)
    bench.vpc.faults.clear()


def test_slow_answers_are_waited_for(bench: Bench) -> None:
    """Latency below the limit is no failure: one call, one answer."""
    bench.fault("DescribeSubnets", latency_s=0.2)
    bench.ec2.subnet_cidr(bench.subnet_id)
    assert bench.vpc.call_counts() == {"DescribeSubnets": 1}


@pytest.mark.parametrize("how", ["denied", "refused", "broken", "throttled"])
def test_limits_do_not_wait_for_ec2(bench: Bench, how: str) -> None:
    """When EC2 cannot be asked, limits come from the table after a single try: start does not wait (I12)."""
    codes = {"denied": "UnauthorizedOperation", "broken": "InternalError", "throttled": "RequestLimitExceeded"}
    if how in codes:
        bench.fault("DescribeInstanceTypes", error={"code": codes[how]})
    else:
        bench.vpc.faults.apply({"unreachable": {"ec2": "refuse"}})
    limits = bench.ec2.instance_limits("m5.large")
    assert (limits.eni_count, limits.source) == (3, "table")
    assert bench.clock.slept == []
    bench.ec2.instance_limits("m5.large")
    assert bench.ec2.call_reports().get("DescribeInstanceTypes", CallReport()).count <= 1


def test_limits_are_asked_again_later(bench: Bench) -> None:
    """Limits that EC2 could not tell at start are EC2's once it answers again, but not before some minutes."""
    bench.fault("DescribeInstanceTypes", error={"code": "InternalError", "count": 1})
    assert bench.ec2.instance_limits("m5.large").source == "table"
    assert bench.ec2.instance_limits("m5.large").source == "table"
    bench.clock.elapsed_s += 301
    assert bench.ec2.instance_limits("m5.large").source == "ec2"
