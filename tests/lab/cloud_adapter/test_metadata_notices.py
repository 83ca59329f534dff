"""The metadata adapter and a spot instance's notices, against the lab's IMDSv2 over HTTP."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ipamd.cloud.instance_notices import INTERRUPTION, LIFE_CYCLE, REBALANCE, read_notices
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode
from ipamd.model.freeze import FreezeCause
from lab.cli.handwork import act
from tests.errors import failed, failed_by_metadata
from tests.lab.cloud_adapter.conftest import Bench

AT = "2026-11-21T08:22:00Z"


def test_an_on_demand_instance_is_asked_once(bench: Bench) -> None:
    """A token and the life cycle; then nothing for as long as the daemon runs."""
    assert bench.imds.notices() == {}
    assert bench.imds_server.request_count == 2
    assert bench.imds.notices() == {}
    assert bench.imds_server.request_count == 2


def test_a_spot_instance_tells_both_and_withdraws(bench: Bench) -> None:
    """Two requests each time; a 404 is no notice."""
    hands = bench.vpc.hands
    hands.announce(bench.instance_id)
    assert bench.imds.notices() == {}
    assert bench.imds_server.request_count == 4
    hands.announce(bench.instance_id, rebalance_at=AT)
    assert set(bench.imds.notices()) == {FreezeCause.REBALANCE}
    hands.announce(bench.instance_id, interruption_at=AT, rebalance_at=AT)
    told = bench.imds.notices()
    assert told[FreezeCause.SPOT_INTERRUPTION] == f"EC2 will terminate the instance at {AT}"
    assert AT in told[FreezeCause.REBALANCE]
    hands.announce(bench.instance_id)
    assert bench.imds.notices() == {}
    assert bench.imds_server.request_count == 10


@pytest.mark.parametrize("spec", [{"error": {"code": "x", "status": 500}}, {"error": {"code": "x", "status": 503}}])
def test_silence_is_an_error(bench: Bench, spec: dict[str, object]) -> None:
    """I11: metadata that fails has not said that there is no notice; one attempt, no waits."""
    bench.vpc.hands.announce(bench.instance_id, interruption_at=AT)
    assert bench.imds.notices()
    before = bench.imds_server.request_count
    bench.fault("imds", **spec)
    with pytest.raises(CloudError, check=failed_by_metadata()):
        bench.imds.notices()
    assert bench.imds_server.request_count == before + 1


BAD = [
    "",
    "null",
    "[]",
    "<html>",
    '{"action": "stop"}',
    '{"action": "stop", "time": 5}',
    '{"action": "a b", "time": "x"}',
    "[" * 9000,
]


@pytest.mark.parametrize("text", BAD, ids=lambda text: text[:30] or "empty")
def test_malformed_text_is_an_error(text: str) -> None:
    """A text that is no notice is neither believed nor taken for none."""
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_MALFORMED)):
        read_notices({INTERRUPTION: text}.get)


def test_the_paths_are_those_of_ec2(bench: Bench) -> None:
    """The lab serves what EC2's user guide lists."""
    bench.vpc.hands.announce(bench.instance_id, interruption_at=AT, rebalance_at=AT)
    assert bench.imds.read(LIFE_CYCLE) == "spot"
    assert bench.imds.read(INTERRUPTION) == f'{{"action": "terminate", "time": "{AT}"}}'
    assert bench.imds.read(REBALANCE) == f'{{"noticeTime": "{AT}"}}'
    assert "spot/" in (bench.imds.read("meta-data") or "").split()


@pytest.mark.parametrize(
    ("notice", "expected"), [("interruption", FreezeCause.SPOT_INTERRUPTION), ("rebalance", FreezeCause.REBALANCE)]
)
def test_a_person_announces_by_the_command(bench: Bench, notice: str, expected: FreezeCause) -> None:
    """`vpc-lab hand announce` sets what metadata says, and takes it back."""
    lab: Any = SimpleNamespace(vpc=bench.vpc, node=lambda _: SimpleNamespace(instance_id=bench.instance_id))
    assert notice in act(lab, action="announce", target="node", notice=notice)["done"]
    assert set(bench.imds.notices()) == {expected}
    act(lab, action="announce", target="node", notice="nothing")
    assert bench.imds.notices() == {}
