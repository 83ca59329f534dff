"""ENIs whose deletion EC2 delays or refuses: none leaks, and none that a sandbox uses is deleted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ipamd.core.health import Phase
from ipamd.eni.limits import CREATION, YIELD_S
from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import CloudDeniedError, CloudError, EniLimitError, ThrottledError
from ipamd.model.ids import EniId
from tests.fakes.cloud import INSTANCE, PRIMARY
from tests.fakes.node import FakeNode
from tests.unit.service.test_provisioner import no_eni_is_lost

OTHER = EniId("eni-2")


def test_an_eni_that_cannot_be_attached_is_deleted(node: FakeNode) -> None:
    """A refused attach undoes the creation and blocks growth with its reason (I9, I14)."""
    node.add("a")
    node.ec2.fail["attach_eni"] = [EniLimitError("instance is full", details="AttachmentLimitExceeded")]
    node.pool.cycle()
    assert len(node.ec2.enis) == 1
    assert "instance is full" in node.demand.status().blocked_by or node.health.last_error() is not None
    no_eni_is_lost(node)


def test_an_eni_that_is_recorded_is_never_deleted_by_its_open_intent(node: FakeNode) -> None:
    """Killed between storing an ENI and closing its intent: sandboxes may be on it by now, whatever EC2 answers later (I2)."""

    class Killed(BaseException):
        pass

    def kill(name: str) -> None:
        if name == "growth.stored":
            raise Killed

    node.failpoint = kill
    node.add("a")
    with pytest.raises(Killed):
        node.pool.cycle()
    node.crash()
    node.node_info.learn_identity()
    assert node.enis.routing.set_up_all() == []
    node.health.enter(Phase.SERVING)
    for number in range(10):
        node.add(f"s{number}")
    in_use = {a.eni_id for a in node.datastore.attachments()}
    assert len(in_use) == 2
    node.ec2.fail["describe_eni"] = [CloudError("EC2 is not well") for _ in range(1)]
    real = node.ec2.describe_attached_eni
    node.ec2.describe_attached_eni = lambda eni_id: (_ for _ in ()).throw(CloudError("never attached, it says"))  # type: ignore[method-assign]
    node.pool.set_limits(node.ec2.limits, settings=node.settings)
    for _ in range(5):
        node.pool.cycle()
        node.clock.advance(120)
    assert in_use <= set(node.ec2.enis), "an ENI with live sandboxes was deleted"
    node.ec2.describe_attached_eni = real  # type: ignore[method-assign]
    node.pool.cycle()
    assert node.datastore.open_intents() == ()
    node.assert_sound()


def test_an_intent_for_an_eni_that_is_gone_does_not_stay_open_for_ever(node: FakeNode) -> None:
    """Somebody deleted it: believed once it cannot be lag any more, and the pool goes on."""
    node.add("a")
    node.ec2.fail["attach_eni"] = [ThrottledError("slow down")]
    node.pool.cycle()
    (gone,) = [eni_id for eni_id in node.ec2.enis if eni_id != PRIMARY]
    del node.ec2.enis[gone]
    for _ in range(3):
        node.clock.advance(61)
        node.pool.cycle()
    assert not node.provisioner.has_open_intents()
    node.clock.advance(2 * YIELD_S[CREATION])  # EC2 throttled, and no ADD waits
    node.pool.cycle()
    assert len(node.ec2.enis) == len(node.datastore.enis()) == 2


def refuse_attach_and_delete(node: FakeNode, *, times: int) -> None:
    """EC2 attaches an ENI and says that it refused to, shows it late, and refuses to delete it."""
    node.ec2.lose["attach_eni"] = [EniLimitError("the answer to a repetition")]
    node.ec2.fail["delete_eni"] = [CloudError("it is in use") for _ in range(times)]
    real, stale = node.ec2.describe_eni, []

    def describe(eni_id: EniId) -> DescribedEni:
        told = real(eni_id)
        if stale:
            return told
        stale.append(eni_id)
        return replace(told, attachment_id="", attachment_status="", instance_id="", device_index=-1)

    node.ec2.describe_eni = describe  # type: ignore[method-assign]


def test_an_eni_that_was_to_be_deleted_and_is_recorded_since_is_never_deleted(node: FakeNode) -> None:
    """Its deletion was refused because it is attached after all; it is adopted and sandboxes use it: it stays (I2)."""
    for number in range(9):
        node.add(f"s{number}")
    refuse_attach_and_delete(node, times=1)
    node.pool.cycle()
    assert node.enis.routing.set_up_all() == []
    if node.datastore.eni(OTHER) is not None:
        assert node.add("on-it").eni_id == OTHER
    for _ in range(3):
        node.clock.advance(61)
        node.pool.cycle()
    in_use = {a.eni_id for a in node.datastore.attachments()}
    assert in_use <= set(node.ec2.enis), "an ENI with live sandboxes was deleted"
    assert all(node.ec2.enis[eni_id].instance_id == INSTANCE for eni_id in in_use)
    assert node.datastore.open_intents() == ()
    node.assert_sound()


def test_a_deletion_that_ec2_refuses_is_tried_again_after_a_pause(node: FakeNode) -> None:
    """One try per wake-up, not one after the other (I13)."""
    node.add("a")
    node.ec2.fail["attach_eni"] = [EniLimitError("full") for _ in range(100)]
    node.ec2.fail["delete_eni"] = [CloudError("EC2 has a fault") for _ in range(100)]
    node.pool.cycle()
    node.clock.advance(700)
    before = node.ec2.calls["delete_eni"]
    node.pool.cycle()
    assert node.ec2.calls["delete_eni"] - before <= 2
    no_eni_is_lost(node)


@pytest.fixture
def late(node: FakeNode) -> FakeNode:
    """An ENI was attached, was not deleted, has been recorded since and cannot be marked; its intent is open."""
    node.add("a")
    refuse_attach_and_delete(node, times=1)
    node.ec2.fail["set_delete_on_termination"] = [CloudDeniedError("UnauthorizedOperation")]
    node.pool.cycle()
    assert node.datastore.eni(OTHER) is not None
    assert not node.ec2.enis[OTHER].delete_on_termination
    assert len(node.datastore.open_intents()) == 1
    return node


def test_a_mark_that_ec2_refuses_is_asked_for_again(late: FakeNode) -> None:
    """Until the ENI is deleted with its instance the intent stays open (I9); IAM is asked after 10 min, then after 20."""
    late.ec2.fail["set_delete_on_termination"] = [CloudDeniedError("UnauthorizedOperation")]
    late.clock.advance(700)
    late.pool.cycle()
    assert len(late.datastore.open_intents()) == 1
    late.clock.advance(1300)
    late.pool.cycle()
    assert late.ec2.enis[OTHER].delete_on_termination
    assert late.datastore.open_intents() == ()
    late.assert_sound()


def test_an_eni_that_is_gone_needs_no_mark(late: FakeNode) -> None:
    """Another hand deleted it in between: the intent is closed, and the pool goes on."""
    del late.ec2.enis[OTHER]
    late.clock.advance(700)
    late.pool.cycle()
    assert late.ec2.calls["set_delete_on_termination"] == 1, "asked about what is gone"
    assert late.datastore.open_intents() == ()
