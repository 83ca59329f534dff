"""This node's leaked ENIs are deleted once after a start, by two looks, and nothing else is (I9, I11, I13)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from ipamd.core.backoffs import ROOM
from ipamd.eni.leaked import FIRST_LOOK_S, SECOND_LOOK_S
from ipamd.model.cloud import INTENT_TAG, DescribedEni, EniRequest
from ipamd.model.eni_tags import CREATED_AT_TAG, INSTANCE_TAG, NO_MANAGE_TAG, EniTags, description
from ipamd.model.errors import CloudError
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import EniId
from ipamd.model.intent import OPENED_AT, Intent, IntentKind
from ipamd.settings import CloudConfig
from tests.fakes.cloud import IDENTITY, SUBNET
from tests.fakes.node import FakeNode


def leak(node: FakeNode, *, age_s: float = 3600.0, token: str = "forgotten") -> EniId:
    """An ENI that this node made and that nobody knows: its intent died with a datastore."""
    tags = EniTags("test").of_new_eni(IDENTITY, created_at=node.clock.now() - timedelta(seconds=age_s), token=token)
    request = EniRequest(SUBNET, ("sg-1",), description(IDENTITY), tags, token, address_count=2)
    made = node.ec2.create_eni(request).eni_id
    node.ec2.enis[made] = replace(node.ec2.enis[made], status="available")
    return made


def pass_looks(node: FakeNode) -> None:
    """Let the time of both looks pass, as the pool's thread does."""
    for pause_s in (2 * FIRST_LOOK_S, SECOND_LOOK_S):
        node.clock.advance(pause_s)
        node.pool.run_once()


def test_a_leaked_eni_is_deleted(node: FakeNode) -> None:
    """Two looks, then it is gone, and no intent is left."""
    eni_id = leak(node)
    pass_looks(node)
    assert eni_id not in node.ec2.enis
    assert node.ec2.calls["find_detached"] == 2
    assert node.datastore.open_intents() == ()
    node.assert_sound()


def test_without_a_leaked_eni_one_look_is_all(node: FakeNode) -> None:
    """I13: one Describe after the start, and no timer after it."""
    pass_looks(node)
    node.clock.advance(1e6)
    node.pool.run_once()
    assert node.ec2.calls["find_detached"] == 1
    assert node.provisioner.leaked_enis.next_look_s() is None


def test_one_look_deletes_nothing(node: FakeNode) -> None:
    """I11: what only one look showed detached stays."""
    eni_id = leak(node)
    node.clock.advance(2 * FIRST_LOOK_S)
    node.pool.run_once()
    node.ec2.enis[eni_id] = replace(node.ec2.enis[eni_id], status="in-use")
    node.clock.advance(SECOND_LOOK_S)
    node.pool.run_once()
    assert eni_id in node.ec2.enis
    assert node.ec2.calls["delete_eni"] == 0


def _with(name: str, value: str) -> Callable[[DescribedEni], DescribedEni]:
    return lambda eni: replace(eni, tags={**eni.tags, name: value})


def _without(name: str) -> Callable[[DescribedEni], DescribedEni]:
    return lambda eni: replace(eni, tags={key: value for key, value in eni.tags.items() if key != name})


OTHERS = {
    "another node's": _with(INSTANCE_TAG, "i-other"),
    "no instance": _without(INSTANCE_TAG),
    "not made by us": _without(INTENT_TAG),
    "another description": lambda eni: replace(eni, description="by hand"),
    "another node's description": lambda eni: replace(eni, description="aws-K8S-i-other"),
    "no age": _without(CREATED_AT_TAG),
    "unreadable age": _with(CREATED_AT_TAG, "yesterday"),
    "age without zone": _with(CREATED_AT_TAG, "2020-01-01T00:00:00"),
    "from the future": _with(CREATED_AT_TAG, "2099-01-01T00:00:00Z"),
    "marked by somebody": _with(NO_MANAGE_TAG, "true"),
    "in use": lambda eni: replace(eni, status="in-use"),
    "attaching": lambda eni: replace(eni, attachment_id="attach-1", instance_id="i-other"),
}


@pytest.mark.parametrize("change", OTHERS.values(), ids=OTHERS)
def test_others_are_left_alone(node: FakeNode, change: Callable[[DescribedEni], DescribedEni]) -> None:
    """What this node did not make, or made at an unknown time, or what somebody has, is never deleted."""
    eni_id = leak(node)
    node.ec2.enis[eni_id] = change(node.ec2.enis[eni_id])
    pass_looks(node)
    assert eni_id in node.ec2.enis
    assert node.ec2.calls["delete_eni"] == 0


def test_what_is_made_since_the_start_is_left_alone(node: FakeNode) -> None:
    """An ENI that is younger than this process is no leak of an earlier one."""
    node.clock.advance(FIRST_LOOK_S)
    eni_id = leak(node, age_s=0.0)
    node.clock.advance(FIRST_LOOK_S)
    pass_looks(node)
    assert eni_id in node.ec2.enis


@pytest.mark.parametrize("is_by_token", [True, False])
def test_an_open_intent_protects(node: FakeNode, is_by_token: bool) -> None:
    """Whose creation or deletion is under way is the intent's affair."""
    eni_id = leak(node, token="open-1")
    payload = {OPENED_AT: repr(node.clock.monotonic())} | ({} if is_by_token else {"eni_id": eni_id})
    token = "open-1" if is_by_token else "other"
    with node.datastore.transaction() as uow:
        uow.open_intent(Intent(token, IntentKind.CREATE_ENI, node.clock.now(), payload, client_token=token))
    pass_looks(node)
    assert eni_id in node.ec2.enis


def test_a_refused_look_is_made_again_later(node: FakeNode) -> None:
    """With doubling pauses; the pool is not held up."""
    eni_id = leak(node)
    node.ec2.fail["find_detached"] = [CloudError("no"), CloudError("no")]
    node.clock.advance(2 * FIRST_LOOK_S)
    node.pool.run_once()
    first_s = node.provisioner.leaked_enis.next_look_s() or 0.0
    assert first_s > 0
    node.clock.advance(first_s)
    node.pool.run_once()
    node.clock.advance(node.provisioner.leaked_enis.next_look_s() or 0.0)
    pass_looks(node)
    assert eni_id not in node.ec2.enis


def test_a_frozen_pool_deletes_nothing(node: FakeNode) -> None:
    """Nothing is released while frozen; the thaw goes on with it."""
    eni_id = leak(node)
    freeze = node.app.context.freeze
    freeze.set(FreezeCause.OPERATOR, "x")
    pass_looks(node)
    assert node.ec2.calls["find_detached"] == 0
    assert node.provisioner.leaked_enis.next_look_s() is None
    freeze.clear(FreezeCause.OPERATOR)
    pass_looks(node)
    assert eni_id not in node.ec2.enis


def test_a_defect_does_not_make_the_loop_spin(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error that nobody expected puts the next look off."""
    defect = ValueError("a defect")
    node.ec2.fail["find_detached"] = [defect]  # type: ignore[list-item]  # not one of ours
    node.clock.advance(2 * FIRST_LOOK_S)
    with pytest.raises(ValueError, check=lambda error: error is defect):
        node.pool.run_once()
    assert node.provisioner.leaked_enis.next_look_s() == ROOM.first_s


def test_the_setting_of_amazon_vpc_cni_k8s() -> None:
    """DISABLE_LEAKED_ENI_CLEANUP is off by default, as there."""
    assert CloudConfig().leaked_eni_cleanup_disabled is False


def test_disabled_it_never_looks(node: FakeNode) -> None:
    """With the setting no look is made."""
    leak(node)
    node.provisioner.leaked_enis.disable()
    pass_looks(node)
    assert node.ec2.calls["find_detached"] == 0
