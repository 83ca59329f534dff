"""What every `Wiring` promises: the fake of the service tests, and netlink in real namespaces."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import pytest

from ipamd.model.attachment import WiringSpec, veth_name
from ipamd.model.errors import NetnsError
from ipamd.model.family import IPV4, Family
from ipamd.model.ids import parse_key
from ipamd.model.repairs import RepairCode
from ipamd.ports.kernel import Wiring
from tests.fakes.kernel import FakeWiring
from tests.netns.conftest import EACH_FAMILY, FIRST, World

pytestmark = EACH_FAMILY


@dataclass(frozen=True)
class Kernel:
    """One kernel, whichever; `new_netns` gives the path of a fresh sandbox."""

    wiring: Wiring
    new_netns: Callable[[], str]
    family: Family = IPV4

    def spec(self, number: int, *, table: int = 254) -> WiringSpec:
        """What to wire for sandbox `number`."""
        key = parse_key(f"sandbox{number}", "eth0")
        return WiringSpec(key, FIRST[self.family] + number, table, veth_name(key, prefix="eni"), self.new_netns(), 9001)


@pytest.fixture(params=["fake", pytest.param("netlink", marks=pytest.mark.privileged)])
def kernel(request: pytest.FixtureRequest, family: Family) -> Iterator[Kernel]:
    """Both implementations."""
    if request.param == "fake":
        fake = FakeWiring()
        yield Kernel(fake, lambda: fake.make_netns(f"/run/netns/n{len(fake.netns)}"), family)
        return
    world = World(family)
    yield Kernel(world.wiring, lambda: world.space().path, family)
    world.close()


def test_what_is_wired_is_surveyed(kernel: Kernel) -> None:
    """A wired sandbox is seen with its identity, route and rules, and CHECK finds nothing to say."""
    main, secondary = kernel.spec(5), kernel.spec(6, table=2)
    for spec in (main, secondary):
        wired = kernel.wiring.wire(spec)
        assert wired.netns_identity == kernel.wiring.identify_netns(spec.netns)
        assert kernel.wiring.check(spec) == []
    survey = kernel.wiring.survey()
    assert {(veth.key, veth.address, veth.is_dying) for veth in survey.veths} == {
        (main.key, main.address, False),
        (secondary.key, secondary.address, False),
    }
    assert survey.routes == {main.address: main.host_veth, secondary.address: secondary.host_veth}
    assert (survey.own_routes, survey.to_rules, survey.has_own_rule) == (survey.routes, frozenset(), True)
    assert survey.from_rules == {secondary.address: (2,)}


@pytest.mark.parametrize("is_source_checked", [False, True])
def test_mark_for_deletion_then_sweep(kernel: Kernel, is_source_checked: bool) -> None:
    """DEL: route and rules go at once, the link dies until it is swept; both may be repeated (I4)."""
    spec = kernel.spec(5, table=2)
    kernel.wiring.wire(spec)
    for _ in range(2):
        kernel.wiring.mark_for_deletion(spec, is_source_checked=is_source_checked)
    survey = kernel.wiring.survey()
    assert (survey.routes, survey.own_routes, survey.to_rules, survey.from_rules) == ({}, {}, frozenset(), {})
    assert [(veth.name, veth.is_dying) for veth in survey.veths] == [(spec.host_veth, True)]
    for _ in range(2):
        kernel.wiring.sweep()
    assert kernel.wiring.survey().veths == ()


def test_unwire_leaves_nothing_and_may_be_repeated(kernel: Kernel) -> None:
    """Rollback: everything of a spec goes, also what was never there (I5)."""
    spec = kernel.spec(5, table=2)
    kernel.wiring.wire(spec)
    for _ in range(2):
        kernel.wiring.unwire(spec)
    survey = kernel.wiring.survey()
    assert (survey.veths, survey.routes, survey.own_routes, survey.to_rules, survey.from_rules) == ((), {}, {}, frozenset(), {})


def test_leftovers_go_by_name_or_by_address(kernel: Kernel) -> None:
    """What nobody owns is removed with either handle; what is not there is fine."""
    first, second = kernel.spec(5), kernel.spec(6, table=3)
    for spec in (first, second):
        kernel.wiring.wire(spec)
    kernel.wiring.remove_leftover(host_veth=first.host_veth, address=first.address)
    kernel.wiring.remove_leftover(host_veth=second.host_veth, address=second.address)
    kernel.wiring.remove_leftover(host_veth="eninothere", address=None)
    survey = kernel.wiring.survey()
    assert (survey.veths, survey.routes, survey.to_rules) == ((), {}, frozenset())


def test_a_leftover_known_by_name_takes_its_rules_along(kernel: Kernel) -> None:
    """A DEL without a row knows the link's name only: the alias tells the address, and nothing of it remains (I4)."""
    spec = kernel.spec(6, table=3)
    kernel.wiring.wire(spec)
    kernel.wiring.remove_leftover(host_veth=spec.host_veth, address=None)
    survey = kernel.wiring.survey()
    assert (survey.veths, survey.routes, survey.own_routes, survey.to_rules, survey.from_rules) == ((), {}, {}, frozenset(), {})


def test_a_missing_namespace_is_typed(kernel: Kernel) -> None:
    """A path without a namespace is a NetnsError, and nothing is wired."""
    spec = replace(kernel.spec(5), netns="/nonexistent/netns")
    with pytest.raises(NetnsError):
        kernel.wiring.identify_netns(spec.netns)
    with pytest.raises(NetnsError):
        kernel.wiring.wire(spec)
    assert kernel.wiring.survey().veths == ()


def test_a_living_namespace_is_not_gone(kernel: Kernel) -> None:
    """What is there is never proven gone, wherever it is mounted."""
    assert not kernel.wiring.is_netns_gone(kernel.spec(5).netns)


def test_repair_reports_a_missing_link_and_touches_nothing_sound(kernel: Kernel) -> None:
    """A sound sandbox needs no report; one without its link is told of and not made anew."""
    sound, gone = kernel.spec(5), kernel.spec(6)
    kernel.wiring.wire(sound)
    said = kernel.wiring.repair([sound, gone])
    assert [(one.code, one.target, one.owner) for one in said] == [(RepairCode.LINK_GOING, gone.host_veth, str(gone.key))]


def test_a_link_is_renamed_with_its_route(kernel: Kernel) -> None:
    """It is whole under the new name; renamed again, or with another address, nothing happens."""
    spec, other = kernel.spec(5), kernel.spec(6)
    for one in (spec, other):
        kernel.wiring.wire(one)
    kernel.wiring.rename_veth(replace(spec, address=other.address), to="eni00000000000")
    assert kernel.wiring.check(spec) == []
    for _ in range(2):
        kernel.wiring.rename_veth(spec, to="eni00000000000")
    renamed = replace(spec, host_veth="eni00000000000")
    assert kernel.wiring.check(renamed) == []
    assert kernel.wiring.check(other) == []
    found = kernel.wiring.veth("eni00000000000")
    assert found is not None
    assert (found.key, found.address, found.is_up, found.is_dying) == (spec.key, spec.address, True, False)
    assert kernel.wiring.veth(spec.host_veth) is None


def test_a_name_that_went_to_another_sandbox_is_left_alone(kernel: Kernel) -> None:
    """A late DEL, and a clean-up by name, of the one that had the name before do not touch it (I2)."""
    old, new = kernel.spec(5), kernel.spec(6)
    new = replace(new, host_veth=old.host_veth)
    kernel.wiring.wire(new)
    kernel.wiring.mark_for_deletion(replace(old, route_table=254))
    kernel.wiring.remove_leftover(host_veth=old.host_veth, address=old.address)
    kernel.wiring.sweep()
    assert kernel.wiring.check(new) == []
