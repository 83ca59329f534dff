"""An answer of EC2 counts from the moment when it came, whatever interrupts what follows from it: only answers in a row that lack an
object, or contradict it, prove anything (I11).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ipamd.datastore.unit_of_work import SqlUnitOfWork
from ipamd.eni.legs.branches import SETTLED_S
from ipamd.model.cloud_evidence import DOUBT_AGAIN_S, LOOK_GAP_S, RECENT_S
from ipamd.model.eni import EniState
from ipamd.model.errors import DatastoreError, InvariantError, KernelDumpError, PoolEmptyError
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import EniId
from ipamd.model.legs.branch_evidence import TRUNK_TAG, VLAN_TAG
from tests.fakes.cloud import IDENTITY
from tests.fakes.node import FakeNode
from tests.stories.external_changes import described, detach_by_hand, pass_time
from tests.stories.stale_reads import run_sandboxes
from tests.unit.service.branches import TRUNK_ENI, attach, branch_eni, node_with_trunk

GONE, OTHER = EniId("eni-2"), EniId("eni-3")


class Killed(BaseException):
    """The process ended here."""


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """Three ENIs, long after our own changes. One was detached from running sandboxes, which EC2 has confirmed."""
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, *(f"s{number}" for number in range(19)))
    assert {GONE, OTHER} <= made.ec2.enis.keys()
    made.clock.advance(RECENT_S)
    detach_by_hand(made, GONE)
    made.look_twice()
    assert state(made, GONE) is EniState.DETACHING
    yield made
    made.datastore.close()


def state(node: FakeNode, eni_id: EniId) -> EniState:
    """An ENI's, as recorded."""
    eni = node.datastore.eni(eni_id)
    assert eni is not None
    return eni.state


def hear(node: FakeNode, *, is_shown: bool) -> None:
    """Another answer, late enough to count, with the other ENI or without it."""
    node.clock.advance(LOOK_GAP_S + 1)
    node.ec2.hidden = set() if is_shown else {OTHER}
    node.enis.sync_with_ec2(IDENTITY)


def die_at(node: FakeNode, count: int) -> Callable[[str], None]:
    """Kill the process at its COMMIT of this number from now on."""
    seen = []

    def kill(name: str) -> None:
        if name == "datastore.after-commit":
            seen.append(name)
            if len(seen) == count:
                raise Killed

    return kill


def test_two_answers_in_a_row_are_proof_across_a_restart(node: FakeNode) -> None:
    """What the tests below must not break: doubts are stored."""
    hear(node, is_shown=False)
    node.crash()
    node.ec2.hidden = {OTHER}
    node.clock.advance(LOOK_GAP_S + 1)
    node.bring_up()
    assert state(node, OTHER) is EniState.DETACHING


def test_an_answer_counts_that_the_process_died_over(node: FakeNode) -> None:
    """The second answer shows the ENI again, and the process dies at the first thing that it records of it: the third is no second one
    without the ENI (branch storm, seed 2).
    """
    hear(node, is_shown=False)
    node.failpoint = die_at(node, 1)
    with pytest.raises(Killed):
        hear(node, is_shown=True)
    node.crash()
    node.ec2.hidden = {OTHER}
    node.clock.advance(LOOK_GAP_S + 1)
    node.bring_up()
    assert state(node, OTHER) is EniState.ATTACHED
    hear(node, is_shown=False)
    assert state(node, OTHER) is EniState.DETACHING


def test_an_answer_counts_whose_survey_of_the_kernel_failed(node: FakeNode) -> None:
    """The answer shows the ENI again, and the kernel does not tell which addresses are wired: nothing else is recorded of it."""
    hear(node, is_shown=False)
    before = node.datastore.enis(), node.datastore.addresses()
    node.wiring.fail["survey"] = [KernelDumpError("interrupted")]
    with pytest.raises(KernelDumpError):
        hear(node, is_shown=True)
    assert (node.datastore.enis(), node.datastore.addresses()) == before
    hear(node, is_shown=False)
    assert state(node, OTHER) is EniState.ATTACHED


def test_what_an_answer_lacks_is_withheld_although_the_survey_failed(node: FakeNode) -> None:
    """I7: neither after one answer without the ENI, nor after two, does a sandbox get one of its addresses meanwhile."""
    for _ in range(2):
        node.wiring.fail["survey"] = [KernelDumpError("interrupted")]
        with pytest.raises(KernelDumpError):
            hear(node, is_shown=False)
        assert state(node, OTHER) is EniState.ATTACHED
        with pytest.raises(PoolEmptyError):
            node.datastore.reserve(node.key("nobody"))


def test_a_doubt_of_an_interrupted_comparison_does_not_last(node: FakeNode) -> None:
    """EC2 refused an allocation, the comparison after that lacks the ENI, and the kernel does not tell what is wired. Nobody repeats
    that comparison, so a resync is due: otherwise the doubt, which is stored, would hold the addresses for ever.
    """
    hear(node, is_shown=True)
    node.app.context.freeze.set(FreezeCause.OPERATOR, "of a test")
    node.metadata.freeze()
    node.clock.advance(LOOK_GAP_S + 1)
    node.ec2.hidden = {OTHER}
    node.wiring.fail["survey"] = [KernelDumpError("interrupted")]
    assert not node.provisioner.steps.adopt_enis(IDENTITY)
    assert OTHER in node.datastore.doubts().plausible
    node.ec2.hidden = set()
    before = described(node)
    for _ in range(5):
        pass_time(node, 60.0)
    assert OTHER not in node.datastore.doubts().plausible
    assert described(node) == before + 1


def test_the_end_of_a_doubt_is_announced_although_the_survey_failed(node: FakeNode) -> None:
    """The answer shows the ENI again, so its addresses are free: an ADD that waits learns that at once, because the next answer
    ends no doubt any more.
    """
    hear(node, is_shown=False)
    before = node.demand.announcement_count
    node.wiring.fail["survey"] = [KernelDumpError("interrupted")]
    with pytest.raises(KernelDumpError):
        hear(node, is_shown=True)
    node.datastore.reserve(node.key("nobody"))
    assert node.demand.announcement_count == before + 1


def test_a_loss_that_the_datastore_refuses_gives_no_address(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """I7: two answers lack the ENI, and it stays recorded as attached. Its addresses stay withheld until EC2 shows it again."""
    hear(node, is_shown=False)

    def refuse(*_: object, **__: object) -> None:
        raise InvariantError("of a test")

    with monkeypatch.context() as refusing:
        refusing.setattr(SqlUnitOfWork, "lose", refuse)
        for _ in range(2):
            hear(node, is_shown=False)
            assert state(node, OTHER) is EniState.ATTACHED
            with pytest.raises(PoolEmptyError):
                node.datastore.reserve(node.key("nobody"))
    hear(node, is_shown=True)
    assert node.datastore.reserve(node.key("nobody"))


def test_a_loss_gives_no_address_between_its_proof_and_its_record(node: FakeNode) -> None:
    """I7: the second answer lacks the ENI, and an ADD comes while that is being recorded: at each COMMIT of it no address is free."""
    hear(node, is_shown=False)
    tried = []

    def reserve(name: str) -> None:
        if name == "datastore.before-commit":
            tried.append(name)
            with pytest.raises(PoolEmptyError):
                node.datastore.reserve(node.key("nobody"))

    node.failpoint = reserve
    hear(node, is_shown=False)
    assert state(node, OTHER) is EniState.DETACHING
    assert tried


def turn(node: FakeNode, seconds: float) -> str | None:
    """The pool's thread after a while. Returns: what is on record against the sandbox."""
    node.clock.advance(seconds)
    node.pool.run_once()
    found = node.datastore.attachment(node.key("sandbox-5"))
    assert found is not None
    return found.contradiction


def test_contradictions_of_a_branch_eni_count_in_a_row(tmp_path: Path) -> None:
    """Without tags, of another VLAN, and without tags again: no two of them agree. The fourth agrees with the third."""
    node = node_with_trunk(tmp_path)
    eni_id = branch_eni(5).eni_id
    other_vlan = {VLAN_TAG: "6", TRUNK_TAG: TRUNK_ENI.eni_id}
    attach(node, 5)
    turn(node, 0.0)
    for tags, seconds in (({}, SETTLED_S), (other_vlan, DOUBT_AGAIN_S), ({}, DOUBT_AGAIN_S)):
        node.ec2.enis[eni_id] = branch_eni(5, tags=tags)
        assert turn(node, seconds) is None
    assert turn(node, DOUBT_AGAIN_S)
    node.datastore.close()


def test_an_answer_that_agrees_ends_a_doubt_although_the_disk_refuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contradiction, an answer that agrees and cannot be stored, a contradiction: the last one is the first of its kind again."""
    node = node_with_trunk(tmp_path)
    eni_id = branch_eni(5).eni_id
    attach(node, 5)
    turn(node, 0.0)
    node.ec2.enis[eni_id] = branch_eni(5, tags={})
    assert turn(node, SETTLED_S) is None

    def refuse(*_: object, **__: object) -> None:
        raise DatastoreError("the disk is full")

    node.ec2.enis[eni_id] = branch_eni(5)
    with monkeypatch.context() as full:
        full.setattr(SqlUnitOfWork, "record_contradiction", refuse)
        assert turn(node, DOUBT_AGAIN_S) is None
    node.ec2.enis[eni_id] = branch_eni(5, tags={})
    assert turn(node, DOUBT_AGAIN_S) is None
    assert node.ec2.calls["find_enis"] == 3
    assert turn(node, DOUBT_AGAIN_S)
    node.datastore.close()
