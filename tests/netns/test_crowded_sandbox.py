"""A sandbox may hold any number of anything: the daemon asks for single objects there, so neither memory nor answer depends on it."""

from __future__ import annotations

import tracemalloc
from ipaddress import IPv4Address

import pytest

from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import WiringError
from ipamd.model.failures import FailureCode
from tests.errors import failed

pytestmark = pytest.mark.privileged

PEAK_MAX_BYTES = 512 * 1024
"""What one look may hold at once: the room of some datagrams of 64 KiB, and nothing that grows with the sandbox."""


def _addresses(count):
    return (IPv4Address("10.128.0.0") + number for number in range(count))


CROWDS = {
    "routes": lambda dev: [f"route add {one} dev {dev}" for one in _addresses(60_000)],
    "default routes": lambda dev: [f"route add default dev {dev} metric {number}" for number in range(1, 8_000)],
    "neighbours": lambda dev: [f"neigh add {one} lladdr 02:00:00:00:00:07 dev {dev} nud permanent" for one in _addresses(20_000)],
    "addresses": lambda dev: [f"addr add {one}/32 dev {dev}" for one in _addresses(8_000)],
    "rules": lambda _: [f"rule add to {one} lookup 77 prio 9" for one in _addresses(8_000)],
    "links": lambda _: [f"link add b{number} type bridge" for number in range(200)],
    "names of the link": lambda dev: [f"link property add dev {dev} altname {'n' * 110}{number}" for number in range(450)],
}

LOST = {
    "ip neigh del 169.254.1.1 dev eth0": DifferenceCode.GATEWAY_NEIGHBOUR,
    "ip route del default via 169.254.1.1": DifferenceCode.DEFAULT_ROUTE_UNUSED,
    "ip route del 169.254.1.1": DifferenceCode.GATEWAY_ROUTE_UNUSED,
    "ip addr del {address}/32 dev eth0": DifferenceCode.INTERFACE_ADDRESS_UNUSED,
}
"""What a sandbox takes away, one after the other, and what CHECK says of it."""


def _crowd(pod, what, tmp_path, *, dev="eth0"):
    batch = tmp_path / "batch"
    batch.write_text("\n".join(CROWDS[what](dev)) + "\n")
    pod.sh(f"ip -batch {batch}")


def _bounded(call):
    """Make a call that may not take much memory; its answer."""
    tracemalloc.start()
    try:
        answer = call()
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak_bytes < PEAK_MAX_BYTES
    return answer


@pytest.mark.parametrize("what", CROWDS)
def test_a_crowded_sandbox_is_checked_as_any_other(world, tmp_path, what):
    """I16: among any number of others each object that is missing is named, at the memory of an empty sandbox."""
    pod = world.space()
    spec = world.spec(pod)
    world.wiring.wire(spec)
    assert world.wiring.check(spec) == []
    _crowd(pod, what, tmp_path)
    assert _bounded(lambda: world.wiring.check(spec)) == []
    for command, code in LOST.items():
        pod.sh(command.format(address=spec.address))
        found = _bounded(lambda: world.wiring.check(spec))
        assert code in {difference.code for difference in found}, found


def test_a_crowded_namespace_is_wired_as_any_other(world, tmp_path):
    """I16, I5: what somebody prepared for the ADD is not read; a default route that is there is refused, and all is undone."""
    pod = world.space()
    _crowd(pod, "routes", tmp_path, dev="lo")
    spec = world.spec(pod)
    _bounded(lambda: world.wiring.wire(spec))
    assert _bounded(lambda: world.wiring.check(spec)) == []
    world.wiring.unwire(spec)
    pod.sh("ip route add default dev lo")
    with pytest.raises(WiringError, check=failed(FailureCode.STEP_REFUSED)):
        world.wiring.wire(spec)
    assert pod.link_names() == world.host.link_names() == set()
