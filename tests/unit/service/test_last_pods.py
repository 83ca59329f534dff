"""Which pod took which address last, and that this memory has a bound."""

from __future__ import annotations

from ipaddress import IPv6Address

from ipamd.model.family import IpAddress
from ipamd.sandbox.last_pods import PRUNED_AT_MIN, LastPods

WEB = ("shop", "web-0", "uid-1")
DATABASE = ("shop", "db-0", "uid-2")


def address(number: int) -> IpAddress:
    """One address of a /80."""
    return IPv6Address(f"2001:db8::{number:x}")


def test_an_address_belongs_to_the_pod_that_took_it_last() -> None:
    """The pod before has it no longer, and a pod without a name has none."""
    pods = LastPods(lambda _: False)
    for number in (1, 2):
        pods.record_taken(address(number), WEB)
    assert set(pods.addresses_of(WEB)) == {address(1), address(2)}
    assert set(pods.of_pods_with_several()) == {WEB}
    pods.record_taken(address(2), DATABASE)
    assert pods.addresses_of(WEB) == (address(1),)
    assert pods.addresses_of(DATABASE) == (address(2),)
    assert pods.of_pods_with_several() == {}
    pods.record_taken(address(2), None)
    assert pods.addresses_of(DATABASE) == ()


def test_free_addresses_are_forgotten() -> None:
    """A pod that is begun for ever on a /80 takes another address each time."""
    held = {address(0)}
    pods = LastPods(lambda asked: asked not in held)
    for number in range(10 * PRUNED_AT_MIN):
        pods.record_taken(address(number), WEB)
        assert len(pods.addresses_of(WEB)) <= PRUNED_AT_MIN
    assert address(0) in pods.addresses_of(WEB), "it is in use"
