"""What `ipamctl status` says of an instance type, held to EC2's recorded answer."""

from __future__ import annotations

import pytest

from ipamd.cloud.limits import from_ec2, from_table, safe_default
from ipamd.model.cloud import ConnectionTracking
from ipamd.model.eni import InstanceLimits
from ipamd.model.instance_facts import (
    LONG_TIMEOUT_S,
    MAX_PODS_IN_FILE,
    SHORT_TIMEOUT_FAMILIES,
    SHORT_TIMEOUT_S,
    TCP_TIMEOUT,
    FactCode,
    default_tcp_timeout_s,
    instance_facts,
)
from tests.unit.cloud import limits_source


def known(name: str) -> InstanceLimits:
    """A type of the built-in table."""
    limits = from_table(name)
    assert limits is not None
    return limits


def test_the_families_are_those_of_ec2() -> None:
    """By type: the default of EC2's record is what the family gives, and each listed family has a type."""
    timeouts = limits_source.tcp_timeouts()
    assert set(timeouts.values()) == {SHORT_TIMEOUT_S, LONG_TIMEOUT_S}
    for name, timeout_s in timeouts.items():
        assert default_tcp_timeout_s(known(name)) == timeout_s, name
    assert {name.partition(".")[0] for name in timeouts} >= SHORT_TIMEOUT_FAMILIES
    assert sum(timeout_s == SHORT_TIMEOUT_S for timeout_s in timeouts.values()) == 476


def test_ec2s_own_answer_wins() -> None:
    """A type that is newer than the table, and one whose default EC2 has changed."""
    network = {
        "MaximumNetworkInterfaces": 3,
        "Ipv4AddressesPerInterface": 10,
        "ConnectionTrackingConfiguration": {"DefaultTcpEstablishedTimeout": 77},
    }
    for name in ("x99.large", "m8i.large"):
        limits = from_ec2(name, {"InstanceTypes": [{"InstanceType": name, "NetworkInfo": network}]})
        assert limits is not None
        assert default_tcp_timeout_s(limits) == 77
        (fact,) = instance_facts(limits, ())
        assert fact.code is FactCode.TCP_TIMEOUT
        assert "77" in fact.text.split()


SET_SHORT: ConnectionTracking = (("UdpTimeout", 30), (TCP_TIMEOUT, 600))
SET_LONG: ConnectionTracking = ((TCP_TIMEOUT, LONG_TIMEOUT_S),)


@pytest.mark.parametrize(
    ("name", "tracking", "seconds"),
    [
        ("m5.large", (), None),
        ("m8i.large", (), "350"),
        ("m8i.large", SET_LONG, None),
        ("m8i.large", SET_SHORT, "600"),
        ("m5.large", SET_SHORT, "600"),
        ("m5.large", (("UdpTimeout", 30),), None),
    ],
)
def test_when_a_short_timeout_is_a_fact(name: str, tracking: ConnectionTracking, seconds: str | None) -> None:
    """What counts is the primary ENI's own value, then the type's; the long one, which people expect, is none."""
    facts = instance_facts(known(name), tracking)
    assert [fact.code for fact in facts] == ([FactCode.TCP_TIMEOUT] if seconds else [])
    if seconds:
        assert seconds in facts[0].text.split()


@pytest.mark.parametrize("name", MAX_PODS_IN_FILE)
def test_types_of_which_the_file_counts_too_many(name: str) -> None:
    """The file's number is that of both cards together, twice what the default card carries; the fact has both."""
    limits = known(name)
    # i7ie has 8 and 7 ENIs on its cards, i8ge 12 and 12.
    assert MAX_PODS_IN_FILE[name] == limits_source.enis_of_all_cards(name) * limits.slots_per_eni + 2
    assert MAX_PODS_IN_FILE[name] > 1.8 * limits.max_pods
    (fact,) = [fact for fact in instance_facts(limits, ()) if fact.code is FactCode.MAX_PODS_FILE]
    assert {str(MAX_PODS_IN_FILE[name]), str(limits.max_pods)} <= set(fact.text.split())


def test_nothing_is_said_of_what_is_not_known() -> None:
    """No limits yet, and a type that nobody knows."""
    assert instance_facts(None, SET_SHORT) == ()
    assert instance_facts(safe_default("x99.large"), ()) == ()
