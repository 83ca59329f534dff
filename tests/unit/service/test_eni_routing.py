"""An ENI that is frozen keeps its sandboxes and gives no address until it is thawed."""

from __future__ import annotations

import pytest

from ipamd.eni.book import FROZEN
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.conditions import ConditionCode
from ipamd.model.errors import PoolEmptyError, WiringError
from ipamd.model.ids import EniId
from tests.conditions import problems
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.stale_reads import run_sandboxes

OTHER = EniId("eni-2")


def is_ready(node: FakeNode, eni_id: EniId) -> bool:
    """Whether the datastore gives addresses of an ENI."""
    eni = node.datastore.eni(eni_id)
    return eni is not None and eni.host_ready


@pytest.fixture
def frozen(node: FakeNode) -> FakeNode:
    """A node with sandboxes on two ENIs, of which the second is frozen; its primary ENI is full."""
    run_sandboxes(node, *(f"s{number}" for number in range(10)))
    for eni_id in (OTHER, EniId("eni-3")):
        node.enis.routing.freeze(eni_id)
    return node


def test_a_frozen_eni_gives_no_address(frozen: FakeNode) -> None:
    """Nobody gets one of it, its sandboxes keep theirs, and people are told why (I2, I7)."""
    with pytest.raises(PoolEmptyError):
        frozen.datastore.reserve(frozen.key("nobody"))
    assert len(frozen.datastore.attachments()) == 10
    assert frozen.enis.routing.frozen()[OTHER] == FROZEN
    (problem,) = problems(frozen.health, f"frozen {OTHER}")
    assert (problem.code, problem.fields) == (ConditionCode.ENI_FROZEN, {"eni": OTHER, "cause": FROZEN})


def test_nothing_but_thaw_makes_it_give_again(frozen: FakeNode) -> None:
    """Neither the reconciler, nor a setup that was on its way, nor EC2, which still shows it attached (I7)."""
    eni = frozen.datastore.eni(OTHER)
    assert eni is not None
    frozen.host_reconciler.reconcile()
    frozen.enis.sync_with_ec2(IDENTITY)
    assert frozen.enis.routing.set_up_all() == []
    assert "its link is gone" in frozen.enis.routing.set_up(eni)
    frozen.enis.routing._mark(OTHER, host_ready=True)  # as a setup would end that began before
    assert not is_ready(frozen, OTHER)
    frozen.enis.routing.thaw(OTHER)
    frozen.enis.routing.set_up_again(OTHER)
    assert is_ready(frozen, OTHER)
    assert OTHER not in frozen.enis.routing.frozen()
    assert problems(frozen.health, f"frozen {OTHER}") == ()
    assert frozen.datastore.reserve(frozen.key("somebody")).eni_id == OTHER


def test_a_thaw_that_fails_is_tried_again(frozen: FakeNode) -> None:
    """The link is not there after all: the host network reconciler sets the ENI up later."""
    frozen.hostnet.fail["setup_eni"] = [WiringError("its link did not appear")]
    frozen.enis.routing.thaw(OTHER)
    frozen.enis.routing.set_up_again(OTHER)
    assert not is_ready(frozen, OTHER)
    frozen.host_reconciler.reconcile()
    assert is_ready(frozen, OTHER)


def test_thawing_what_is_not_frozen_or_not_known_is_fine(node: FakeNode) -> None:
    """Signs come late and twice."""
    node.enis.routing.thaw(PRIMARY)
    node.enis.routing.freeze(EniId("eni-unknown"))
    node.enis.routing.thaw(EniId("eni-unknown"))
    node.enis.routing.set_up_again(EniId("eni-unknown"))
    assert (node.enis.routing.frozen(), is_ready(node, PRIMARY)) == ({}, True)


def test_an_eni_that_is_forgotten_is_not_frozen_any_more(frozen: FakeNode) -> None:
    """Link gone, then EC2 shows it no more, and no sandbox uses it: its condition goes with it."""
    gone = EniId("eni-3")
    frozen.ec2.detach_eni(f"attach-{gone}")
    frozen.look_twice()
    assert frozen.datastore.eni(gone) is None
    assert gone not in frozen.enis.routing.frozen()
    assert not any(str(gone) in sentence for sentence in frozen.health.conditions())


def test_recent_changes_are_those_of_our_own_calls(node: FakeNode) -> None:
    """An ENI and its addresses for five minutes after our call; not what EC2 showed by itself; a removal ends an addition, and what
    is added to one ENI has left the others."""
    node.clock.advance(RECENT_S)
    changes = node.enis.book
    assert changes.added() == {}
    node.add("a")
    node.pool.cycle()
    made = node.ec2.enis[OTHER]
    created = {OTHER, made.primary_address, *made.secondary_addresses}
    assert changes.added().keys() == created
    changes.record_own([OTHER], on=OTHER, is_added=False)
    assert changes.added().keys() == created - {OTHER}
    assert changes.removed() == {(OTHER, OTHER), *((key, PRIMARY) for key in created)}
    node.clock.advance(RECENT_S)
    assert (changes.added(), changes.removed()) == ({}, set())


def test_an_eni_that_we_deleted_is_not_recorded_again(node: FakeNode) -> None:
    """Our own call's success is evidence: an answer that still shows the ENI attached lags (I7)."""
    node.add("a")
    node.pool.cycle()
    with node.datastore.transaction() as uow:
        uow.remove_eni(OTHER, reason="deleted by us")
    node.enis.book.record_own([OTHER], on=OTHER, is_added=False)
    node.enis.sync_with_ec2(IDENTITY)
    assert (node.datastore.eni(OTHER), OTHER in node.enis.book.unrecorded_enis()) == (None, False)


def test_passes_of_the_host_do_not_make_an_add_wait(node: FakeNode) -> None:
    """What refuses while nobody waits is tried by each pass of the host; an ADD that comes then is tried for at once."""
    run_sandboxes(node, *(f"s{number}" for number in range(10)))
    node.enis.routing.freeze(OTHER)
    node.enis.routing.thaw(OTHER)
    node.hostnet.fail["setup_eni"] = [WiringError("the link is not up")] * 7
    for _ in range(7):
        node.host_reconciler.reconcile()
    assert not is_ready(node, OTHER)
    node.enis.routing.retry_due()
    assert is_ready(node, OTHER)
