"""The metadata adapter against the lab's IMDSv2: who the node is, tokens, faults."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Network

import pytest

from ipamd.cloud.metadata import POLICY, TOKEN_TTL_S, ImdsMetadata
from ipamd.model.errors import CloudError, SettingsError
from ipamd.model.failures import FailureCode
from ipamd.settings import CloudConfig
from tests.errors import failed, failed_by_metadata
from tests.lab.cloud_adapter.conftest import Bench
from tests.unit.cloud.clocks import FakeClock


def test_identity_is_complete(bench: Bench) -> None:
    """Everything start needs is read, typed, and agrees with EC2."""
    found = bench.imds.identity()
    (primary,) = bench.ec2.describe_enis(bench.instance_id)
    assert (found.instance_id, found.instance_type) == (bench.instance_id, "m5.large")
    assert (found.region, found.availability_zone) == ("us-west-2", "us-west-2a")
    assert (found.vpc_id, found.vpc_cidrs) == (bench.vpc.vpc_id, (IPv4Network("10.0.0.0/16"),))
    assert (found.primary_mac, found.primary_eni_id) == (primary.mac, primary.eni_id)
    assert (found.primary_address, found.subnet_id) == (primary.primary_address, primary.subnet_id)
    assert found.subnet_cidr == bench.ec2.subnet_cidr(primary.subnet_id)
    assert found.security_group_ids == (bench.vpc.default_group_id,)


def test_few_requests(bench: Bench) -> None:
    """A first reading costs nine requests, later ones only what can change."""
    bench.imds.identity()
    assert bench.imds_server.request_count == 9
    bench.imds.identity()
    assert bench.imds_server.request_count == 11


def test_a_token_is_renewed_when_it_ends(bench: Bench) -> None:
    """A token is used again until shortly before its end, and then renewed without an error."""
    bench.imds.identity()
    bench.clock.elapsed_s += TOKEN_TTL_S - 200
    bench.imds.identity()
    assert bench.imds_server.request_count == 9 + 3


def test_a_forgotten_token_is_renewed_once(bench: Bench) -> None:
    """A 401 means that metadata forgot the token (a restart, a resume): it is renewed once and the reading goes on."""
    bench.imds.identity()
    bench.imds._token = ("no longer known", bench.clock.monotonic() + 1000)
    bench.imds.identity()
    assert bench.imds_server.request_count == 9 + 4


def test_a_token_that_is_never_accepted_is_an_error(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """401 again with a token just renewed is not tried for ever: two tokens, two readings, then the error."""
    monkeypatch.setattr("lab.imds.tokens.Tokens.is_valid", lambda *_: False)
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_REFUSED, status=401)):
        bench.imds.identity()
    assert bench.imds_server.request_count == 4


def test_a_refused_token_is_an_error(bench: Bench) -> None:
    """When no token is to be had, the error names the token's path, and v1 is not tried."""
    bench.vpc.faults.apply({"apis": {"imds": {"error": {"code": "Unauthorized", "status": 401}}}})
    with pytest.raises(CloudError, check=failed_by_metadata()):
        bench.imds.identity()
    assert bench.imds_server.request_count == 1


@pytest.mark.parametrize(("status", "said"), [(404, "404"), (500, "500"), (503, "too many requests")])
def test_passing_faults_are_survived(bench: Bench, status: int, said: str) -> None:
    """A few failed requests cost waits, not the reading; what was read is not read again."""
    bench.vpc.faults.apply({"apis": {"imds": {"error": {"code": "x", "status": status, "count": 3}}}})
    assert bench.imds.identity().instance_id == bench.instance_id
    # An answer that a busy machine gives late counts as one more.
    assert 3 <= len(bench.clock.slept) <= bench.imds_server.request_count - 9 <= 5
    bench.vpc.faults.apply({"apis": {"imds": {"error": {"code": "x", "status": status}}}})
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_REFUSED, status=status)):
        bench.imds.identity()


def test_lost_answers_are_survived(bench: Bench) -> None:
    """A connection that is cut is opened again."""
    bench.vpc.faults.apply({"apis": {"imds": {"lost_answers": {"count": 2}}}})
    assert bench.imds.identity().instance_id == bench.instance_id


def test_lag_is_waited_for(make_bench: Callable[..., Bench]) -> None:
    """While metadata does not know the instance, 404s are tried again within the policy; then the error names the path."""
    bench = make_bench()
    bench.vpc.faults.apply({"apis": {"imds": {"lag_s": 3600}}})
    with pytest.raises(CloudError, check=failed_by_metadata()):
        bench.imds.identity()
    assert sum(bench.clock.slept) <= POLICY.total_s
    bench.vpc.faults.clear()
    assert bench.imds.identity().instance_id == bench.instance_id


def test_switched_off_metadata_says_so(bench: Bench) -> None:
    """403 means HttpEndpoint=disabled; it is said and not retried (I14)."""
    bench.vpc.faults.apply({"apis": {"imds": {"error": {"code": "x", "status": 403}}}})
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_REFUSED, status=403)):
        bench.imds.identity()
    assert bench.clock.slept == []


def test_unreachable_metadata_is_typed_and_bounded(bench: Bench) -> None:
    """No connection: a bounded number of tries, then an error that names endpoint and hop limit."""
    bench.vpc.faults.apply({"unreachable": {"imds": "refuse"}})
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_UNREACHABLE)) as refusal:
        bench.imds.identity()
    assert bench.config.imds_endpoint in refusal.value.details
    assert len(bench.clock.slept) < POLICY.attempts


def test_a_hanging_service_is_given_up(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is never answered ends with the read timeout, and the tries with the policy."""
    monkeypatch.setattr("ipamd.cloud.metadata.READ_TIMEOUT_S", 0.05)
    bench.vpc.faults.apply({"apis": {"imds": {"hang": True}}})
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_UNANSWERED)):
        bench.imds.identity()
    bench.vpc.faults.clear()


def test_no_proxy_is_ever_used(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Proxy variables of the environment do not concern metadata."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    assert bench.imds.identity().instance_id == bench.instance_id


@pytest.mark.parametrize("url", ["https://169.254.169.254", "169.254.169.254", "", "http://"])
def test_an_unusable_endpoint_is_a_settings_error(url: str) -> None:
    """A wrong endpoint is found when the adapter is built, with the variable's name."""
    with pytest.raises(SettingsError, check=failed(FailureCode.METADATA_ENDPOINT)):
        ImdsMetadata(CloudConfig(imds_endpoint=url), clock=FakeClock())


def test_other_peoples_answers_are_typed_errors(bench: Bench) -> None:
    """An endpoint that is not instance metadata at all gives a CloudError, never a parse error."""
    elsewhere = ImdsMetadata(CloudConfig(imds_endpoint=bench.config.ec2_endpoint), clock=bench.clock, sleep=bench.clock.sleep)
    with pytest.raises(CloudError, check=failed_by_metadata()):
        elsewhere.identity()
