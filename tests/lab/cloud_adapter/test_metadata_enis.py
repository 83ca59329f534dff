"""The metadata adapter's view of ENIs, against the lab's IMDSv2: what it reads, what a 404 means, how few requests it makes."""

from __future__ import annotations

from collections.abc import Callable
from ipaddress import IPv4Address, IPv4Network, IPv6Network

import pytest

from ipamd.cloud.metadata import TOKEN_TTL_S, ImdsMetadata
from ipamd.cloud.metadata_answers import MACS, read_eni, read_macs
from ipamd.model.errors import CloudError, ThrottledError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV6
from ipamd.model.ids import MacAddress
from ipamd.settings import CloudConfig
from lab.vpc.ipv6 import Ipv6Request
from tests.errors import failed, failed_by_metadata
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


def test_prefixes_of_ipv6_agree_with_ec2(make_bench: Callable[..., Bench]) -> None:
    """Of a pool of IPv6 an ENI has its primary IPv4 address and its /80s, as many as there are; a 404 is none of them."""
    bench = make_bench(has_ipv6=True)
    imds = ImdsMetadata(bench.config, clock=bench.clock, sleep=bench.clock.sleep, family=IPV6)
    (eni,) = bench.vpc.enis_of(bench.instance_id)
    assert imds.ipv6_address() == str(eni.ipv6_addresses[0])
    for count in range(3):
        shown = imds.interface(MacAddress(eni.mac))
        assert (shown.addresses, len(shown.prefixes)) == ({eni.primary_address}, count)
        assert shown.prefixes == frozenset(bench.vpc.eni(eni.eni_id).ipv6_prefixes)
        bench.vpc.interfaces.assign_ipv6(eni.eni_id, Ipv6Request(prefix_count=1))


def test_a_node_without_ipv6_has_no_address_of_it(bench: Bench) -> None:
    """A 404 is none and no error, also for a pool of IPv6."""
    imds = ImdsMetadata(bench.config, clock=bench.clock, sleep=bench.clock.sleep, family=IPV6)
    assert imds.ipv6_address() == ""
    assert imds.interface(next(iter(imds.list_interfaces()))).prefixes == frozenset()


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
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_UNANSWERED)):
        bench.imds.list_interfaces()


def test_an_eni_that_metadata_does_not_show_is_an_error(bench: Bench) -> None:
    """404 for what every interface has is no empty interface (I11)."""
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_LAGS)):
        bench.imds.interface(MAC)


def test_a_forgotten_token_is_renewed_by_the_next_look(bench: Bench) -> None:
    """A 401 costs one look, not an endless renewal."""
    bench.imds.list_interfaces()
    bench.imds._token = ("no longer known", bench.clock.monotonic() + TOKEN_TTL_S)
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_REFUSED, status=401)):
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
    ("text", "expected"),
    [
        (None, []),
        ("", []),
        ("2600:1f14:1:2:a::/80", ["2600:1f14:1:2:a::/80"]),
        ("2600:1f14:1:2:b::/80\n2600:1f14:1:2:a::/80\n", ["2600:1f14:1:2:a::/80", "2600:1f14:1:2:b::/80"]),
        ("2600:1F14:0001:2:B::/80", ["2600:1f14:1:2:b::/80"]),
        ("2001:db8::/96", None),
        ("2001:db8::/79", None),
        ("2001:db8::1/80", None),
        ("2001:db8::", None),
        ("10.0.0.0/28", None),
        ("2600:1f14:1:2:a::/80\n<html>", None),
    ],
)
def test_prefixes_of_ipv6_are_80s_one_a_line(text: str | None, expected: list[str] | None) -> None:
    """None of any other length or family, and none with host bits: then nothing of the interface is believed. Of a pool of IPv4 nobody
    asks for them.
    """
    read = leaves(**{"ipv6-prefix": text}).get
    assert read_eni(MAC, read, None).prefixes == {IPv4Network("10.0.1.0/28")}
    if expected is None:
        with pytest.raises(CloudError, check=failed_by_metadata()):
            read_eni(MAC, read, None, IPV6)
        return
    found = read_eni(MAC, read, None, IPV6)
    assert (found.prefixes, found.addresses) == (set(map(IPv6Network, expected)), {IPv4Address("10.0.0.9")})


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
    with pytest.raises(CloudError, check=failed_by_metadata()):
        read_eni(MAC, leaves(**{leaf: text}).get, None)


@pytest.mark.parametrize("answer", [None, "", "\n"])
def test_a_list_without_interfaces_is_an_error(answer: str | None) -> None:
    """Every instance has an interface: an empty list is metadata that has not caught up (I11)."""
    with pytest.raises(CloudError, check=failed(FailureCode.METADATA_INCOMPLETE)):
        read_macs(lambda _: answer)
    assert read_macs(lambda _: "02:00:00:00:00:0A/\n02:00:00:00:00:0b/") == {"02:00:00:00:00:0a", "02:00:00:00:00:0b"}


def test_other_peoples_answers_are_typed_errors(bench: Bench) -> None:
    """An endpoint that is not instance metadata gives a CloudError."""
    elsewhere = ImdsMetadata(CloudConfig(imds_endpoint=bench.config.ec2_endpoint), clock=FakeClock())
    with pytest.raises(CloudError, check=failed_by_metadata()):
        elsewhere.list_interfaces()
