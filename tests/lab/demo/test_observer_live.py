"""The observer on a real node: what `ip monitor` of this machine's iproute2 prints is what the ledger needs."""

from __future__ import annotations

import time
from collections.abc import Callable
from ipaddress import IPv4Address

import pytest

from lab.demo.ledger import AddressLedger
from lab.demo.observer import Observer
from lab.lab import Lab, missing_requirements
from tests.patience import PATIENCE_S

MISSING = missing_requirements(containerd=False)
ADDRESS = IPv4Address("10.0.0.77")

pytestmark = [pytest.mark.privileged, pytest.mark.skipif(bool(MISSING), reason=MISSING)]


def eventually(claim: Callable[[], bool]) -> bool:
    """Look until the claim holds; netlink events come when they come."""
    deadline = time.monotonic() + PATIENCE_S
    while not (held := claim()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return held


def test_an_address_that_gets_a_second_veth_is_a_conflict() -> None:
    """Route to one veth, then to another while the first exists: told; after the first is gone: not told (I1, I4)."""
    with Lab(name=f"observer-{time.monotonic_ns()}", nodes=["node-a"], containerd=False) as lab:
        netns, ledger = lab.node("node-a").netns, AddressLedger()
        observer = Observer(ledger)
        observer.watch(lab.node("node-a"))

        def veth(name: str) -> None:
            netns.ip([f"link add eni{name} type veth peer name {name}", f"link set eni{name} up", f"link set {name} up"])

        veth("one")
        netns.ip([f"route add {ADDRESS}/32 dev enione"])
        assert eventually(lambda: ledger.held.get(ADDRESS) == "node-a/enione")
        netns.ip(["link del enione"])
        assert eventually(lambda: not ledger.held)
        veth("two")
        netns.ip([f"route add {ADDRESS}/32 dev enitwo"])
        assert eventually(lambda: ledger.held.get(ADDRESS) == "node-a/enitwo")
        assert ledger.conflicts == []
        veth("three")
        netns.ip([f"route replace {ADDRESS}/32 dev enithree"])
        assert eventually(lambda: bool(ledger.conflicts))
        observer.stop()
        assert ledger.conflicts == [f"{ADDRESS} was given to node-a/enithree while node-a/enitwo had it"]
        assert observer.lost == []
