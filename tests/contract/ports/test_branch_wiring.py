"""What every `Wiring` promises of sandboxes with branch ENIs: the fake of the service tests, and netlink with the lab's VLAN links."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from ipamd.model.attachment import WiringSpec, pod_veth_name, veth_name
from ipamd.model.errors import UplinkPendingError
from ipamd.model.family import IPV4, Family, read_address
from ipamd.model.ids import EniId, MacAddress, parse_key
from ipamd.model.kernel_numbers import STRICT_VETH_PREFIX
from ipamd.model.legs.branch_eni import Branch
from ipamd.ports.kernel import Wiring
from tests.fakes.kernel import TRUNK, FakeWiring
from tests.netns.branched import TRUNK_MAC, Node
from tests.netns.conftest import EACH_FAMILY, World

EACH_MODE = pytest.mark.parametrize("is_strict", [True, False], ids=["strict", "standard"])
pytestmark = [EACH_FAMILY, EACH_MODE]


@dataclass(frozen=True)
class Kernel:
    """One kernel, whichever, with a trunk; `new_netns` gives the path of a fresh sandbox."""

    wiring: Wiring
    new_netns: Callable[[], str]
    trunk_mac: MacAddress
    family: Family
    is_strict: bool

    def spec(self, vlan: int, *, sandbox: str = "", host: int = 0) -> WiringSpec:
        """What to wire for a sandbox with the branch ENI of a VLAN."""
        of_ipv4 = self.family is IPV4
        address = read_address(f"10.0.2.{host or 100 + vlan}" if of_ipv4 else f"2001:db8:0:2::{host or 100 + vlan}")
        gateway = read_address("10.0.2.1" if of_ipv4 else "fe80:ec2::1")
        branch = Branch(vlan, MacAddress(f"02:00:00:00:05:{vlan:02x}"), gateway, self.is_strict)
        key = parse_key(sandbox or f"sandbox{vlan}", "eth0")
        name = veth_name(key, prefix=STRICT_VETH_PREFIX if self.is_strict else "eni")
        return WiringSpec(
            key,
            address,
            branch.route_table,
            name,
            self.new_netns(),
            1500,
            uplink=branch,
            eni_id=EniId(f"eni-0{vlan:04x}"),
            trunk_mac=self.trunk_mac,
        )

    def mark(self, spec: WiringSpec, *, host_veth: str = "") -> object:
        """DEL."""
        return self.wiring.mark_for_deletion(replace(spec, host_veth=host_veth or spec.host_veth), owner=spec.key)

    def seen(self) -> tuple[set[object], set[object]]:
        """The sandboxes that live with branch ENIs, and the living links to these."""
        survey = self.wiring.survey()
        assert survey.veths == ()
        veths: set[object] = {(one.name, one.key, one.address) for one in survey.uplinked if not one.is_dying}
        links: set[object] = {
            (one.vlan, one.mac, one.address, one.eni_id, one.uplink) for one in survey.vlans if not one.is_dying
        }
        return veths, links


def expected(*specs: WiringSpec) -> tuple[set[object], set[object]]:
    """What `Kernel.seen` shows of them."""
    veths: set[object] = {(spec.host_veth, spec.key, spec.address) for spec in specs}
    links: set[object] = {
        (spec.uplink.vlan, spec.uplink.mac, spec.address, spec.eni_id, spec.uplink) for spec in specs if spec.uplink
    }
    return veths, links


@pytest.fixture(params=["fake", pytest.param("netlink", marks=pytest.mark.privileged)])
def kernel(request: pytest.FixtureRequest, family: Family, is_strict: bool) -> Iterator[Kernel]:
    """Both implementations."""
    if request.param == "fake":
        fake = FakeWiring()
        yield Kernel(fake, lambda: fake.make_netns(f"/run/netns/n{len(fake.netns)}"), TRUNK, family, is_strict)
        assert fake.cut == []
        return
    world = World(family, pod_eni=True, pod_groups_mode="strict" if is_strict else "standard")
    yield Kernel(Node(world).wiring, lambda: world.space().path, TRUNK_MAC, family, is_strict)
    world.close()


def test_what_is_wired_is_surveyed(kernel: Kernel) -> None:
    """Veth and VLAN link say together who it is and what it has; CHECK finds nothing to say."""
    first, second = kernel.spec(5), kernel.spec(6)
    for spec in (first, second):
        wired = kernel.wiring.wire(spec)
        assert wired.netns_identity == kernel.wiring.identify_netns(spec.netns)
        assert kernel.wiring.check(spec) == []
    assert kernel.seen() == expected(first, second)
    survey = kernel.wiring.survey()
    link = survey.vlan_of(first.address)
    assert link is not None
    assert link.uplink == first.uplink
    assert (first.address in survey.routes) is not kernel.is_strict


def test_del_then_sweep(kernel: Kernel) -> None:
    """Both links are dying at once and gone with the sweep; it may be repeated, and others are not touched."""
    first, second = kernel.spec(5), kernel.spec(6)
    for spec in (first, second):
        kernel.wiring.wire(spec)
    for _ in range(2):
        kernel.mark(first)
    survey = kernel.wiring.survey()
    assert {one.name for one in (*survey.uplinked, *survey.vlans) if one.is_dying} == {first.host_veth, "vlan.eth.5"}
    assert kernel.seen() == expected(second)
    kernel.wiring.sweep()
    assert {one.vlan for one in kernel.wiring.survey().vlans} == {6}
    kernel.mark(first)
    assert kernel.seen() == expected(second)
    assert kernel.wiring.check(second) == []


def test_a_late_del_of_a_predecessor(kernel: Kernel) -> None:
    """The pod's next sandbox has the same name, address and branch ENI: nothing of it goes."""
    name = pod_veth_name("default", "web-0", prefix=STRICT_VETH_PREFIX if kernel.is_strict else "eni")
    first = replace(kernel.spec(5, sandbox="first"), host_veth=name)
    kernel.wiring.wire(first)
    kernel.mark(first)
    kernel.wiring.sweep()
    second = replace(kernel.spec(5, sandbox="second"), host_veth=name)
    kernel.wiring.wire(second)
    kernel.mark(first)
    assert kernel.seen() == expected(second)
    assert kernel.wiring.check(second) == []


def test_a_stale_link_is_replaced(kernel: Kernel) -> None:
    """One of a sandbox that is gone, with another address, has the ID still."""
    stale = kernel.spec(5, sandbox="gone", host=77)
    kernel.wiring.wire(stale)
    kernel.wiring.remove_leftover(host_veth=stale.host_veth, address=None, key=stale.key)
    assert {one.vlan for one in kernel.wiring.survey().vlans} == {5}
    fresh = kernel.spec(5)
    kernel.wiring.wire(fresh)
    assert kernel.seen() == expected(fresh)


def test_unwire_leaves_nothing_and_may_be_repeated(kernel: Kernel) -> None:
    """As if it had never been wired."""
    before, spec = kernel.wiring.survey(), kernel.spec(5)
    kernel.wiring.wire(spec)
    for _ in range(2):
        kernel.wiring.unwire(spec)
    assert kernel.wiring.survey() == before


def test_leftovers(kernel: Kernel) -> None:
    """All of a sandbox, or a VLAN link without one; never one that is another's by its alias."""
    first, second = kernel.spec(5), kernel.spec(6)
    for spec in (first, second):
        kernel.wiring.wire(spec)
    kernel.wiring.remove_leftover(host_veth=None, address=first.address, uplink=second.uplink)
    assert {one.vlan for one in kernel.wiring.survey().vlans} == {5, 6}
    gone = kernel.wiring.remove_leftover(host_veth=first.host_veth, address=first.address, uplink=first.uplink)
    assert gone == first.address
    assert kernel.seen() == expected(second)
    kernel.wiring.remove_leftover(host_veth=second.host_veth, address=None, key=second.key)
    assert {one.vlan for one in kernel.wiring.survey().vlans} == {6}
    kernel.wiring.remove_leftover(host_veth=None, address=second.address, uplink=second.uplink)
    assert kernel.seen() == (set(), set())


def test_a_trunk_that_is_not_there(kernel: Kernel) -> None:
    """Typed, with what to do, and nothing is left."""
    before = kernel.wiring.survey()
    for mac in ("02:00:00:00:99:99", ""):
        with pytest.raises(UplinkPendingError):
            kernel.wiring.wire(replace(kernel.spec(5), trunk_mac=MacAddress(mac)))
    assert kernel.wiring.survey() == before


def test_a_link_is_renamed_with_what_names_it(kernel: Kernel) -> None:
    """Its routes and rules follow; it may be repeated."""
    spec = kernel.spec(5)
    kernel.wiring.wire(spec)
    renamed = replace(spec, host_veth=spec.host_veth[:-3] + "abc")
    for _ in range(2):
        kernel.wiring.rename_veth(spec, to=renamed.host_veth)
    assert kernel.seen() == expected(renamed)
    assert kernel.wiring.check(renamed) == []


def test_held_until_a_repair(kernel: Kernel) -> None:
    """Nothing leads to it or from it: its links are down, and no route or rule names its address. A repair wires it whole, a sandbox
    that takes its name leaves it down, and DEL ends it as any."""
    spec = kernel.spec(5)
    kernel.wiring.wire(replace(spec, is_kept_down=True))
    survey = kernel.wiring.survey()
    assert {one.name for one in (*survey.uplinked, *survey.vlans)} == {spec.host_veth, "vlan.eth.5"}
    assert not any(one.is_up for one in (*survey.uplinked, *survey.vlans))
    assert spec.address not in {*survey.routes, *survey.own_routes, *survey.from_rules, *survey.to_rules}
    assert not survey.uplink_routes
    renamed = replace(spec, host_veth=spec.host_veth[:-3] + "abc")
    kernel.wiring.rename_veth(spec, to=renamed.host_veth)
    survey = kernel.wiring.survey()
    assert not any(one.is_up for one in survey.uplinked)
    assert spec.address not in {*survey.routes, *survey.own_routes}
    kernel.wiring.repair([renamed])
    survey = kernel.wiring.survey()
    assert all(one.is_up for one in (*survey.uplinked, *survey.vlans))
    assert kernel.wiring.check(renamed) == []
    kernel.mark(renamed)
    kernel.wiring.sweep()
    assert kernel.seen() == (set(), set())


def test_cut_off_and_back(kernel: Kernel) -> None:
    """Both links are down until a repair; DEL ends it as any."""
    spec = kernel.spec(5)
    kernel.wiring.wire(spec)
    assert kernel.wiring.cut_off(spec)
    survey = kernel.wiring.survey()
    assert not any(one.is_up for one in (*survey.uplinked, *survey.vlans))
    kernel.wiring.repair([spec])
    survey = kernel.wiring.survey()
    assert all(one.is_up for one in (*survey.uplinked, *survey.vlans))
    assert kernel.wiring.check(spec) == []
    kernel.wiring.cut_off(spec)
    kernel.mark(spec)
    kernel.wiring.sweep()
    assert kernel.seen() == (set(), set())
