"""How the EC2 client is built: credentials, endpoint, one client for all threads, the trimmed model of the API."""

from __future__ import annotations

import logging
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from botocore.session import Session

from ipamd.cloud.operations import OPERATIONS
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode
from tests.errors import failed
from tests.lab.cloud_adapter.conftest import Bench


def test_credentials_of_the_instance_role_are_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without credentials in the environment those of the instance profile are found through instance metadata."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    assert len(bench.ec2.describe_enis(bench.instance_id)) == 1
    assert bench.imds_server.request_count == 3


def test_no_credentials_is_a_typed_error_and_heals(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any credentials each call fails at once and typed, no EC2 call is made, and once they appear calls succeed."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    bench.vpc.faults.apply({"unreachable": {"imds": "refuse"}})
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_NOT_CALLED)):
        bench.ec2.describe_enis(bench.instance_id)
    assert bench.ec2.instance_limits("m5.large").source == "table"
    assert bench.vpc.calls() == []
    bench.vpc.faults.clear()
    assert len(bench.ec2.describe_enis(bench.instance_id)) == 1


def test_hanging_metadata_does_not_stall_for_credentials(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """When metadata swallows requests, the search for credentials ends, typed, within five seconds."""
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    bench.vpc.faults.apply({"apis": {"imds": {"hang": True}}})
    began = time.monotonic()
    with pytest.raises(CloudError, check=failed(FailureCode.EC2_NOT_CALLED)):
        bench.ec2.describe_enis(bench.instance_id)
    assert time.monotonic() - began < 5.0
    bench.vpc.faults.clear()


def test_the_endpoint_may_come_from_awss_own_variable(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """AWS_ENDPOINT_URL_EC2 is honoured when our own setting is empty."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_EC2", bench.config.ec2_endpoint)
    assert len(bench.new_ec2(ec2_endpoint="").describe_enis(bench.instance_id)) == 1


def test_one_client_for_all_threads(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight threads that call first build one client between them, and every call succeeds and is counted."""
    built: list[str] = []
    create = Session.create_client

    def counting(session: Session, name: str, **settings: Any) -> Any:
        built.append(name)
        return create(session, name, **settings)

    monkeypatch.setattr(Session, "create_client", counting)
    ec2, found = bench.new_ec2(in_process=True), []
    threads = [threading.Thread(target=lambda: found.append(len(ec2.describe_enis(bench.instance_id)))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (built, found) == (["ec2"], [1] * 8)
    assert {api: report.count for api, report in ec2.call_reports().items()} == {"DescribeNetworkInterfaces": 8}


def test_the_trimmed_model_is_used_when_present(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """With fitting data there is no warning, and the client knows our operations and no other."""
    client = bench.in_process(bench.config)
    with caplog.at_level(logging.WARNING, logger="ipamd"):
        bench.over(client).describe_enis(bench.instance_id)
    assert caplog.records == []
    client = client._client
    assert set(client.meta.service_model.operation_names) == set(OPERATIONS)
    assert "vpc-ipamd/" in client.meta.config.user_agent_extra


def test_whole_and_trimmed_model_give_the_same_answers(bench: Bench, caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Without data the whole model is used with a warning, and every answer and every request is the same."""
    trimmed = bench.ec2
    bench.model_dir = tmp_path / "nothing"
    whole = bench.new_ec2(in_process=True)
    eni_id = bench.attached(addresses=2)
    with caplog.at_level(logging.WARNING, logger="ipamd"):
        assert whole.describe_enis(bench.instance_id) == trimmed.describe_enis(bench.instance_id)
    assert ["trim_model" in record.getMessage() for record in caplog.records] == [True]
    assert whole.describe_eni(eni_id) == trimmed.describe_eni(eni_id)
    assert whole.instance_limits("p4d.24xlarge") == trimmed.instance_limits("p4d.24xlarge")
    assert whole.subnet_cidr(bench.subnet_id) == trimmed.subnet_cidr(bench.subnet_id)
    assert whole.create_eni(bench.request(token="same", prefixes=1)) == trimmed.create_eni(
        bench.request(token="same", prefixes=1)
    )
    bench.vpc.clear_calls()
    for ec2 in (whole, trimmed):
        added = ec2.assign_addresses(eni_id, count=1)
        ec2.unassign(eni_id, addresses=added, prefixes=())
    calls = [(call.api, sorted(call.params)) for call in bench.vpc.calls()]
    assert calls[: len(calls) // 2] == calls[len(calls) // 2 :]
