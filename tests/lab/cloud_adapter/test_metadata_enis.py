"""The metadata adapter's view of ENIs, against the lab's IMDSv2: what it reads, what a 404 means, how few requests it makes."""

from __future__ import annotations

from ipaddress import IPv4Network

import pytest

from ipamd.cloud.metadata import MACS, TOKEN_TTL_S, ImdsMetadata, read_eni, read_macs
from ipamd.model.errors import CloudError, ThrottledError
from ipamd.model.ids import MacAddress
from ipamd.settings import CloudConfig
from tests.lab.cloud_adapter.conftest import Bench
from tests.unit.cloud.clocks import FakeClock

MAC = MacAddress("02:00:00:00:00:09")


def test_enis_agree_with_ec2(bench: Bench) -> None:
    """Both ENIs are listed; each has the addresses and prefixes, the primary one included, that EC2 describes."""
    eni_id = bench.attached(addresses=3)
    bench.ec2.assign_prefixes(eni_id, count=1)
    described = bench.ec2.describe_enis(bench.instance_id)
    assert bench.imds.list_interfaces() == {eni.mac for eni in described}
    for eni in described:
        shown = bench.imds.interface(eni.mac)
        assert (shown.mac, shown.eni_id, shown.device_index) == (eni.mac, eni.eni_id, eni.device_index)
        assert shown.addresses == eni.secondary_addresses | {eni.primary_address}
        assert shown.prefixes == eni.prefixes


def test_few_requests(bench: Bench) -> None:
    """The list costs one request, an ENI four and later two; every one is counted, and the token is used again."""
    assert bench.imds.request_count() == 0
    (mac,) = bench.imds.list_interfaces()
    assert bench.imds.request_count() == 2, "the token, the list"
    for expected in (6, 8, 10):
        bench.imds.interface(mac)
        assert bench.imds.request_count() == expected == bench.imds_server.request_count


def test_an_eni_that_was_away_is_read_anew(bench: Bench) -> None:
    """What does not change is remembered only as long as the ENI is listed."""
    eni_id = bench.attached()
    mac = next(eni.mac for eni in bench.ec2.describe_enis(bench.instance_id) if eni.eni_id == eni_id)
    assert bench.imds.interface(mac).device_index == 1
    bench.ec2.detach_eni(bench.ec2.describe_eni(eni_id).attachment_id)
    assert mac not in bench.imds.list_interfaces()
    bench.ec2.attach_eni(eni_id, instance_id=bench.instance_id, device_index=2, network_card=0)
    assert bench.imds.interface(mac).device_index == 2


def test_one_attempt(bench: Bench) -> None:
    """A failed request is an error at once, not an empty value and not a repetition (I11): the next look is soon enough."""
    (mac,) = bench.imds.list_interfaces()
    before = bench.imds.request_count()
    bench.vpc.faults.apply({"apis": {"imds": {"error": {"code": "x", "status": 503}}}})
    with pytest.raises(ThrottledError):
        bench.imds.list_interfaces()
    with pytest.raises(ThrottledError):
        bench.imds.interface(mac)
    assert bench.imds.request_count() - before == 2
    assert bench.clock.slept == []
    bench.vpc.faults.apply({"apis": {"imds": {"lost_answers": {"count": 1}}}})
    with pytest.raises(CloudError, match="no answer"):
        bench.imds.list_interfaces()


def test_an_eni_that_metadata_does_not_show_is_an_error(bench: Bench) -> None:
    """404 for what every interface has is no empty interface (I11)."""
    with pytest.raises(CloudError, match="interface-id"):
        bench.imds.interface(MAC)


def test_a_forgotten_token_is_renewed_by_the_next_look(bench: Bench) -> None:
    """A 401 costs one look, not an endless renewal."""
    bench.imds.list_interfaces()
    bench.imds._token = ("no longer known", bench.clock.monotonic() + TOKEN_TTL_S)
    with pytest.raises(CloudError, match="401"):
        bench.imds.list_interfaces()
    assert bench.imds.list_interfaces()


def leaves(**changes: str | None) -> dict[str, str | None]:
    """The tree below macs/ for one interface."""
    tree = {"interface-id": "eni-9", "device-number": "1", "local-ipv4s": "10.0.0.9\n10.0.0.10", "ipv4-prefix": "10.0.1.0/28"}
    return {f"{MACS}/{MAC}/{leaf}": text for leaf, text in (tree | changes).items()}


def test_no_addresses_and_no_prefixes_are_none_there() -> None:
    """An IPv6-only or EFA-only interface has neither leaf: no error (amazon-vpc-cni-k8s issue 3122)."""
    tree = leaves(**{"local-ipv4s": None, "ipv4-prefix": None})
    found = read_eni(MAC, tree.get, None)
    assert (found.eni_id, found.addresses, found.prefixes) == ("eni-9", frozenset(), frozenset())
    assert read_eni(MAC, leaves().get, None).prefixes == {IPv4Network("10.0.1.0/28")}


@pytest.mark.parametrize(
    ("leaf", "text"),
    [
        ("interface-id", None),
        ("interface-id", "<html>"),
        ("device-number", None),
        ("device-number", "x"),
        ("local-ipv4s", "<html>"),
        ("ipv4-prefix", "10.0.1.1/28"),
    ],
)
def test_a_malformed_interface_is_an_error_and_is_not_remembered(leaf: str, text: str | None) -> None:
    """A missing or malformed value is an error, never a part of an interface."""
    with pytest.raises(CloudError, match="instance metadata"):
        read_eni(MAC, leaves(**{leaf: text}).get, None)


@pytest.mark.parametrize("answer", [None, "", "\n"])
def test_a_list_without_interfaces_is_an_error(answer: str | None) -> None:
    """Every instance has an interface: an empty list is metadata that has not caught up (I11)."""
    with pytest.raises(CloudError, match="no interface"):
        read_macs(lambda _: answer)
    assert read_macs(lambda _: "02:00:00:00:00:0A/\n02:00:00:00:00:0b/") == {"02:00:00:00:00:0a", "02:00:00:00:00:0b"}


def test_other_peoples_answers_are_typed_errors(bench: Bench) -> None:
    """An endpoint that is not instance metadata gives a CloudError."""
    elsewhere = ImdsMetadata(CloudConfig(imds_endpoint=bench.config.ec2_endpoint), clock=FakeClock())
    with pytest.raises(CloudError, match="instance metadata"):
        elsewhere.list_interfaces()
