"""Reaper, GC, quarantine, start and `ipamctl explain` judge by one rule: the same sources, ages and clocks (I2, I11)."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.cni_request import SandboxNames
from ipamd.model.errors import RuntimeUnreachableError
from ipamd.model.failures import FailureCode
from ipamd.sandbox.judge import LIST_INTERVAL_S
from tests.errors import failed
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode
from tests.unit.service.one_judge import collect, list_for, quarantine_one, vanish

HOUR_S = 3600.0


def add_outside_cri(node: FakeNode, name: str) -> Attachment:
    """Somebody calls the plugin by hand: CNI_ARGS names no pod, and CRI never lists the container."""
    request = replace(node.request(name), names=SandboxNames("", "", ""))
    return node.attacher.attach_sandbox(request, deadline=Deadline.after(node.clock, 60), steps=StepTimer(node.clock))


def hide_from_describe(node: FakeNode, address: IPv4Address) -> None:
    """EC2's answer lacks one address of the primary ENI."""
    eni = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses - {address})


# Row 14: GC


def test_gc_keeps_a_wired_sandbox_with_a_living_namespace(node: FakeNode) -> None:
    """A list that lacks it is a declaration, not proof: namespace and veth are there, so it lives (I2)."""
    made = node.add("a")
    node.clock.advance(3000)
    assert collect(node) == ([], ["a"])
    assert made.host_veth in node.wiring.wired


def test_gc_frees_what_is_gone_in_the_kernel_too(node: FakeNode) -> None:
    """Not valid for the runtime, not listed, namespace and veth gone, five minutes old: freed at once."""
    made = node.add("a")
    vanish(node, made)
    node.clock.advance(299)
    assert collect(node) == ([], ["a"])
    node.clock.advance(2)
    assert collect(node) == (["a"], [])


@pytest.mark.parametrize("step_s", [86_400.0, -86_400.0])
def test_a_wall_clock_that_is_set_makes_nothing_older_or_younger(node: FakeNode, step_s: float) -> None:
    """The age of an attachment is counted on the monotonic clock, for GC and for the reaper."""
    node.wiring.are_mounts_seen = False  # else no age matters
    vanish(node, node.add("before"))
    node.clock.step_wall(step_s)
    vanish(node, node.add("after"))
    freed, kept = collect(node)
    assert (freed, sorted(kept)) == ([], ["after", "before"])
    assert list_for(node, 240) == 0
    assert list_for(node, 120) == 2


def test_gc_frees_nothing_on_an_implausible_list(node: FakeNode) -> None:
    """CRI's list has none of several wired sandboxes: GC believes it as little as the reaper does (I11)."""
    for name in ("a", "b", "c"):
        node.add(name)
    vanish(node, node.add("d"))
    node.clock.advance(HOUR_S)
    with pytest.raises(RuntimeUnreachableError, check=failed(FailureCode.LIST_NOT_BELIEVED)):
        collect(node)
    assert len(node.datastore.attachments()) == 4


# Row 14: outside CRI


def test_a_container_outside_cri_keeps_its_address_while_it_lives(node: FakeNode) -> None:
    """CRI has never listed it and never will: neither the hour of a leaked namespace nor a GC applies (docs/adr/0001)."""
    made = add_outside_cri(node, "by-hand")
    node.add("pod")
    node.runtime.run("pod")
    assert list_for(node, 3 * HOUR_S) == 0
    assert collect(node, "pod") == ([], ["by-hand"])
    assert made.host_veth in node.wiring.wired


def test_a_container_outside_cri_that_is_gone_is_reaped(node: FakeNode) -> None:
    """Its namespace and veth are gone: nothing is left that could use the address."""
    made = add_outside_cri(node, "by-hand")
    node.add("pod")
    node.runtime.run("pod")
    vanish(node, made)
    assert list_for(node, 600) == 1


def test_a_sandbox_without_pod_names_that_was_listed_once_leaks_for_an_hour_only(node: FakeNode) -> None:
    """The list itself says that it is the runtime's own."""
    made = add_outside_cri(node, "a")
    node.add("pod")
    node.runtime.run("pod")
    node.runtime.run("a")
    list_for(node, 120)
    del node.runtime.listed["a"]
    list_for(node, HOUR_S + 180)
    assert node.datastore.attachment(made.key) is None


# Row 6


def lose_with_address_hidden(node: FakeNode) -> Attachment:
    """The datastore is lost, and EC2's answer at the next start lacks the address of a running sandbox."""
    made = node.add("a")
    node.runtime.run("a")
    node.crash(keep_datastore=False)
    hide_from_describe(node, made.address)
    node.bring_up()
    return made


def test_a_veth_whose_address_ec2_did_not_show_survives_the_next_start(node: FakeNode) -> None:
    """No row could be made for it: the next start must not take that for "no ADD was promised" (I2, I11)."""
    made = lose_with_address_hidden(node)
    assert any(str(made.address) in sentence for sentence in node.health.conditions())
    for _ in range(2):
        node.runtime.is_down = True
        node.crash()
        node.bring_up()
        assert made.host_veth in node.wiring.wired, "a living sandbox lost its network"
    node.runtime.is_down = False
    list_for(node, 3 * HOUR_S)
    assert made.host_veth in node.wiring.wired


def test_it_is_adopted_when_ec2_shows_its_address(node: FakeNode) -> None:
    """The address comes back in a later answer: row and sandbox are recorded again, and the condition goes."""
    made = lose_with_address_hidden(node)
    eni = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses | {made.address})
    node.enis.sync_with_ec2(node.metadata.told)
    list_for(node, 60)
    assert [(a.key, a.address) for a in node.datastore.attachments()] == [(made.key, made.address)]
    assert node.health.conditions() == []


def test_its_wiring_goes_when_its_sandbox_is_long_gone(node: FakeNode) -> None:
    """Absent from the runtime for an hour: what is left of a sandbox without a row is removed like any other leak."""
    made = lose_with_address_hidden(node)
    node.add("pod")
    node.runtime.run("pod")
    list_for(node, 120)
    del node.runtime.listed["a"]
    list_for(node, HOUR_S - 120)
    assert made.host_veth in node.wiring.wired
    list_for(node, 240)
    assert made.host_veth not in node.wiring.wired
    assert node.health.conditions() == []


def test_a_second_veth_of_a_recorded_address_is_not_removed_by_a_start(node: FakeNode) -> None:
    """An address that is recorded for one sandbox was not being given to another: that veth is no remainder of an ADD (I2)."""
    made = node.add("a")
    node.runtime.run("a")
    spec = node.wiring.wired[made.host_veth]
    path = node.wiring.make_netns("/run/netns/double")
    node.wiring.wired["enidouble"] = replace(spec, key=node.key("double"), host_veth="enidouble", netns=path)
    node.runtime.is_down = True
    node.crash()
    node.bring_up()
    assert "enidouble" in node.wiring.wired
    assert node.wiring.routes[made.address] == made.host_veth


def test_the_hour_of_a_quarantine_ignores_the_wall_clock(node: FakeNode) -> None:
    """A clock that is set forward by days does not end a quarantine; an hour of absence does."""
    made = quarantine_one(node, "a")
    list_for(node, 60)
    node.clock.step_wall(7 * 86_400.0)
    list_for(node, HOUR_S - 120)
    assert made.host_veth in node.wiring.wired
    list_for(node, 240)
    assert made.host_veth not in node.wiring.wired


def test_a_restart_starts_the_hour_of_a_quarantine_over(node: FakeNode) -> None:
    """Absences are counted in memory: a new process has seen no list yet."""
    made = quarantine_one(node, "a")
    list_for(node, HOUR_S - 120)
    node.crash()
    node.bring_up()
    list_for(node, HOUR_S - 120)
    assert made.host_veth in node.wiring.wired


@pytest.mark.parametrize("how", ["list", "host network"])
def test_a_dying_veth_is_no_wiring_whoever_looks(node: FakeNode, how: str) -> None:
    """Its DEL took link and route: the address cools, and is not free before the link is gone, by either path (I4)."""
    made = quarantine_one(node, "a")
    node.wiring.mark_for_deletion(made.wiring)
    if how == "list":
        node.runtime_reconciler.reconcile_once()
    else:
        node.host_reconciler.reconcile()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.COOLING
    node.clock.advance(3600)
    node.cooldown.free_cooled()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.COOLING, "its link is still there"
    node.cool()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.FREE


def test_one_of_two_claims_that_ends_does_not_end_the_other(node: FakeNode) -> None:
    """Two veths carry one quarantined address: the absent one goes, the address stays held for the other (I1, I2)."""
    made = node.add("a")
    node.add("pod")
    node.runtime.run("pod")
    spec = node.wiring.wired[made.host_veth]
    path = node.wiring.make_netns("/run/netns/double")
    node.wiring.wired["enidouble"] = replace(spec, key=node.key("double"), host_veth="enidouble", netns=path)
    node.runtime.run("double")
    node.crash(keep_datastore=False)
    node.bring_up()
    list_for(node, HOUR_S + 180, every_s=LIST_INTERVAL_S * 6)
    assert made.host_veth not in node.wiring.wired
    assert "enidouble" in node.wiring.wired
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.owner in (None, node.key("double"))
    assert row.state in (AddressState.QUARANTINED, AddressState.ASSIGNED)
