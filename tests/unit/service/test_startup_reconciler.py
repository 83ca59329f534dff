"""After a start recorded sandboxes are kept, unrecorded ones adopted, and leftover wiring is removed."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address

from ipamd.core.deadline import Deadline
from ipamd.model.address import AddressState
from ipamd.model.attachment import WiringSpec
from ipamd.model.cniresult import wired_mtu
from ipamd.model.sandbox import SandboxState
from ipamd.pb import cni_pb2
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import COOLDOWN_S, FakeNode


def test_a_crash_loses_no_attachment(node: FakeNode) -> None:
    """What was answered before kill -9 is there after it (I5)."""
    before = [node.add(f"s{number}") for number in range(5)]
    node.crash()
    node.bring_up()
    assert list(node.datastore.attachments()) == before
    node.assert_sound()


def test_unpromised_wiring_is_removed_before_its_address_is_given(node: FakeNode) -> None:
    """An ADD that died between wiring and commit left a veth without a row: it goes, with route and rule (I5)."""
    made = node.add("a")
    spec = node.wiring.wired[made.host_veth]
    node.delete("a")
    node.cool()
    other = node.request("b")
    lost = type(spec)(other.key, spec.address, spec.route_table, "enilost", other.netns, spec.mtu)
    node.wiring.wired["enilost"] = lost
    node.wiring.routes[spec.address] = "enilost"
    node.crash()
    node.bring_up()
    assert "enilost" not in node.wiring.wired
    assert spec.address not in node.wiring.routes
    row = node.datastore.address(spec.address)
    assert row is not None
    assert row.state is AddressState.FREE


def test_a_lost_datastore_is_rebuilt_from_kernel_and_runtime(node: FakeNode) -> None:
    """Alias, route and CRI agree: the rows are made again, and no live address is given twice (I1, I2)."""
    before = {}
    for number in range(5):
        made = node.add(f"s{number}")
        before[made.key] = made.address
        node.runtime.run(f"s{number}", state=SandboxState.NOTREADY if number else SandboxState.READY)
    node.crash(keep_datastore=False)
    node.bring_up()
    assert {a.key: a.address for a in node.datastore.attachments()} == before
    assert {a.origin for a in node.datastore.attachments()} == {"adopt"}
    fresh = {node.add(f"t{number}").address for number in range(4)}
    assert not fresh & set(before.values())
    node.assert_sound()


def test_an_adopted_sandbox_is_recorded_with_the_mtu_that_it_has(node: FakeNode) -> None:
    """The setting may be another one by now: what is recorded is what later repairs put back."""
    node.add("a")
    node.crash(keep_datastore=False)
    node.enis.sync_with_ec2(node.node_info.learn_identity())
    survey = node.wiring.survey()
    node.runtime.run("a")
    (veth,) = survey.veths
    assert node.quarantine.adopt(replace(veth, mtu=1400), node.runtime.listed["a"], survey) == ""
    (adopted,) = node.datastore.attachments()
    assert wired_mtu(adopted.result, adopted.host_veth) == 1400


def test_a_lost_datastore_with_a_silent_runtime_guesses_nothing(node: FakeNode) -> None:
    """Wired and unknown, the runtime silent: quarantined until the runtime speaks, then adopted (I2, I11)."""
    made = node.add("a")
    node.runtime.is_down = True
    node.crash(keep_datastore=False)
    node.bring_up()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    node.runtime.is_down = False
    node.runtime.run("a")
    node.runtime_reconciler.reconcile_once()
    assert [a.address for a in node.datastore.attachments()] == [made.address]


def test_a_wired_sandbox_that_the_runtime_does_not_list_is_quarantined(node: FakeNode) -> None:
    """After a lost datastore absence from one list proves nothing: the address is held back until the wiring is gone (I2)."""
    made = node.add("a")
    node.crash(keep_datastore=False)
    node.bring_up()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    node.wiring.wired.clear()
    node.wiring.routes.clear()
    node.runtime_reconciler.reconcile_once()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.COOLING, "it was in use until a moment ago (docs/datastore.md)"
    node.cool()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.FREE


def test_addresses_that_ec2_tells_late_are_not_given_while_wired(node: FakeNode) -> None:
    """Datastore lost and EC2 late: an address that comes back is quarantined if the kernel has it wired (I1)."""
    made = node.add("a")
    node.crash(keep_datastore=False)
    node.enis.sync_with_ec2(IDENTITY)
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED


def test_alias_and_route_that_disagree_are_not_adopted(node: FakeNode) -> None:
    """The kernel contradicts itself: the address is quarantined and reported, never guessed (docs/life.md, Start)."""
    made = node.add("a")
    node.runtime.run("a")
    node.wiring.routes[made.address] = "somebody-else"
    node.crash(keep_datastore=False)
    node.node_info.learn_identity()
    node.enis.sync_with_ec2(IDENTITY)
    outcome = node.startup.reconcile_kernel(node.wiring.survey(), node.listed())
    assert outcome.adopted_count == 0
    assert any("disagree" in sentence for sentence in outcome.quarantined)


def test_a_sandbox_whose_route_was_taken_is_adopted_and_repaired(node: FakeNode) -> None:
    """A missing route contradicts nobody: alias and runtime agree, and the sandbox gets row and route back (I2, I11)."""
    made = node.add("a")
    node.runtime.run("a")
    del node.wiring.routes[made.address]
    node.crash(keep_datastore=False)
    node.bring_up()
    assert [a.address for a in node.datastore.attachments()] == [made.address]
    node.host_reconciler.reconcile()
    assert node.wiring.routes[made.address] == made.host_veth


def test_two_veths_that_claim_one_address_without_a_route_are_not_adopted(node: FakeNode) -> None:
    """The kernel contradicts itself, and no route says who is right: nobody is guessed (I1)."""
    made, other = node.add("a"), node.add("b")
    node.runtime.run("a")
    node.runtime.run("b")
    node.wiring.wired[other.host_veth] = replace(node.wiring.wired[other.host_veth], address=made.address)
    node.wiring.routes.clear()
    node.crash(keep_datastore=False)
    node.bring_up()
    assert node.datastore.attachments() == ()


def test_a_quarantined_address_whose_sandbox_leaves_cools_like_any_other(node: FakeNode) -> None:
    """Its DEL finds no row; when it came is written nowhere, so the cooldown starts when the wiring is seen to be gone (I8)."""
    made = node.add("a")
    node.runtime.is_down = True
    node.crash(keep_datastore=False)
    node.bring_up()
    node.delete("a")
    node.runtime.is_down = False
    node.runtime_reconciler.reconcile_once()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.COOLING
    node.cool()
    assert node.datastore.counts().quarantined == node.datastore.counts().cooling == 0


def test_a_spooled_del_is_carried_out_before_anything_else(node: FakeNode) -> None:
    """A DEL that came while we were away is replayed, and damaged entries are set aside (I3)."""
    made = node.add("a")
    spool = node.run_dir / "spool"
    spool.mkdir(exist_ok=True, mode=0o700)
    request = cni_pb2.ExecRequest(verb="DEL", container_id="a", ifname="eth0", protocol_min=1, protocol_max=1)
    (spool / "del-1").write_bytes(request.SerializeToString())
    (spool / "del-2").write_bytes(b"\xff\xff\xff")
    node.crash()
    assert node.app.spooled_deletes.replay(deadline=Deadline.after(node.clock, 9)) == 1
    assert node.datastore.attachment(made.key) is None
    assert node.spool.pending_count() == 0
    assert list((node.run_dir / "spool-bad").iterdir()) != []


def test_a_dying_link_is_swept_before_its_address_cools(node: FakeNode) -> None:
    """kill -9 between DEL and the sweep: the start finds the link by its group, and the cooldown deletes it (I4)."""
    address = node.add("a").address
    node.delete("a")
    node.crash()
    node.bring_up()
    assert node.cooldown.dying_count() == 1
    node.clock.advance(COOLDOWN_S)
    assert node.cooldown.free_cooled() == 0
    node.cooldown.work()
    assert not node.wiring.dying
    row = node.datastore.address(address)
    assert row is not None
    assert row.state is AddressState.FREE


def test_a_dying_link_of_a_free_address_is_deleted_before_add_is_served(node: FakeNode) -> None:
    """kill -9 in the rollback of an ADD: its link is marked, and on disk its address is free. No sandbox gets the address of a link
    that still exists (I4)."""
    failed = node.add("a")
    node.delete("a")
    node.cool()
    node.wiring.dying[failed.host_veth] = failed.address
    node.crash()
    node.bring_up()
    assert not node.wiring.dying
    assert node.cooldown.dying_count() == 0


def test_a_foreign_veth_is_left_alone(node: FakeNode) -> None:
    """A veth without our alias, perhaps of amazon-vpc-cni-k8s, is not removed (I2)."""
    made = node.add("a")
    spec = node.wiring.wired.pop(made.host_veth)
    foreign = type(spec)(spec.key, spec.address, spec.route_table, "eniforeign", spec.netns, spec.mtu)
    node.wiring.wired["eniforeign"] = foreign
    survey = node.wiring.survey()
    stripped = [type(v)(v.name, v.ifindex, "", v.is_dying, v.is_up) for v in survey.veths]
    node.startup.reconcile_kernel(type(survey)(tuple(stripped), survey.routes, survey.to_rules, survey.from_rules), {})
    assert "eniforeign" in node.wiring.wired


def test_a_restore_that_died_half_way_is_begun_again(node: FakeNode) -> None:
    """Datastore lost, then kill -9 in the middle of adopting: the new file exists, but it must not pass for a whole one (I2)."""
    made = [node.add(f"s{number}") for number in range(3)]
    for number in range(3):
        node.runtime.run(f"s{number}")
    node.crash(keep_datastore=False)
    node.enis.sync_with_ec2(IDENTITY)
    node.crash()  # before reconcile_kernel
    assert not node.opened.report.is_intact
    node.runtime.listed.clear()  # and now the runtime has only just come up
    node.bring_up()
    assert all(spec.key in {a.key for a in made} for spec in node.wiring.wired.values())
    assert len(node.wiring.wired) == 3, "live wiring must not be taken for the remains of a dead ADD"


def test_unpromised_wiring_goes_even_when_the_runtime_is_silent(node: FakeNode) -> None:
    """With an intact datastore every promise is a row: a veth without one goes, CRI or not (I5)."""
    node.add("kept")
    made = node.add("a")
    spec = node.wiring.wired[made.host_veth]
    node.delete("a")
    node.cool()
    node.wiring.wired["enilost"] = type(spec)(node.key("lost"), spec.address, spec.route_table, "enilost", spec.netns, spec.mtu)
    node.runtime.is_down = True
    node.crash()
    node.bring_up()
    assert set(node.wiring.wired) == {node.datastore.attachments()[0].host_veth}


def test_a_quarantined_address_is_free_once_its_wiring_is_gone_without_a_runtime(node: FakeNode) -> None:
    """CRI off: nothing adopts, but what is not wired any more needs no guard; the host audit sees it."""
    made = node.add("a")
    node.runtime.is_down = True
    node.crash(keep_datastore=False)
    node.bring_up()
    node.host_reconciler.reconcile()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    node.delete("a")
    node.host_reconciler.reconcile()
    node.cool()
    row = node.datastore.address(made.address)
    assert row is not None
    assert row.state is AddressState.FREE


def test_after_a_lost_datastore_nothing_is_given_before_it_could_have_cooled(node: FakeNode) -> None:
    """Nobody knows any more when an unwired address was last used: all of them cool once (I8)."""
    released = node.add("a").address
    node.delete("a")
    node.cooldown.sweep()
    node.crash(keep_datastore=False)
    node.bring_up()
    warm = {row.address for row in node.datastore.addresses() if row.state is AddressState.COOLING}
    assert released in warm
    assert len(warm) == 9, "all that were there before; what EC2 has given since is free at once"
    node.clock.advance(31)
    node.cooldown.free_cooled()
    assert node.datastore.counts().cooling == 0
    node.add("b")
    node.assert_sound()


def test_a_first_start_has_nothing_to_cool(node: FakeNode) -> None:
    """On a fresh node no daemon has run: its addresses are free at once."""
    assert node.datastore.counts().cooling == 0
    assert node.datastore.counts().free == 9


def wire_double(node: FakeNode, name: str, address: IPv4Address) -> None:
    """Something gave the address of one sandbox to another: a second veth with it."""
    path = node.wiring.make_netns(f"/run/netns/{name}")
    node.wiring.wired[f"eni{name}"] = WiringSpec(node.key(name), address, 254, f"eni{name}", path, 9001)


def test_a_duplicate_found_at_start_is_said_and_given_to_nobody(node: FakeNode) -> None:
    """Two veths with one address: the recorded sandbox keeps it, the other is told of, all other addresses are served (I1)."""
    made = node.add("a")
    wire_double(node, "double", made.address)
    node.runtime.run("a")
    node.runtime.run("double")
    node.crash()
    node.enis.sync_with_ec2(IDENTITY)
    outcome = node.startup.reconcile_kernel(node.wiring.survey(), node.listed())
    assert len(outcome.duplicates) == 1
    assert str(made.address) in outcome.duplicates[0]
    assert {a.key: a.address for a in node.datastore.attachments()} == {made.key: made.address}
    node.bring_up()
    assert made.address not in {node.add(f"s{number}").address for number in range(12)}


def test_a_duplicate_after_a_lost_datastore_follows_the_route(node: FakeNode) -> None:
    """Nobody is recorded: the sandbox that the route leads to is adopted, the other is not, and a third gets neither (I1)."""
    made = node.add("a")
    wire_double(node, "double", made.address)
    node.runtime.run("a")
    node.runtime.run("double")
    node.crash(keep_datastore=False)
    node.bring_up()
    assert {a.key: a.address for a in node.datastore.attachments()} == {made.key: made.address}
    node.cool()
    assert made.address not in {node.add(f"s{number}").address for number in range(8)}
