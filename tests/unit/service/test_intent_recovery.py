"""An intent whose outcome is unknown: found by its tag, or closed; never repeated for ever, and no obstacle to other growth (I9)."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.model.cloud import INTENT_TAG, DescribedEni, EniRequest
from ipamd.model.errors import CloudDeniedError, CloudError
from ipamd.model.intent import OPENED_AT, Intent, IntentKind
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode

DENIED = CloudDeniedError("EC2 CreateNetworkInterface failed", details="UnauthorizedOperation")


def refused_for_ever(error: CloudError) -> list[CloudError]:
    """EC2 refuses every repetition."""
    return [error for _ in range(1000)]


def run(node: FakeNode, seconds: int, *, step: int = 5) -> None:
    """Let the pool loop run."""
    for _ in range(0, seconds, step):
        node.clock.advance(step)
        node.pool.cycle()


def test_a_poisoned_creation_does_not_stop_growth_on_other_enis(tmp_path: Path) -> None:
    """An open creation is refused for ever, and addresses are there for the asking on the primary ENI."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    payload = {"subnet_id": "subnet-1", "device_index": "1", "address_count": "2", "prefix_count": "0"}
    payload |= {"tags": "{}", "security_group_ids": "sg-1", "connection_tracking": "{}", "moves_left": "0"}
    payload |= {OPENED_AT: repr(node.clock.monotonic())}
    with node.datastore.transaction() as uow:
        uow.open_intent(Intent("old", IntentKind.CREATE_ENI, node.clock.now(), payload, client_token="old"))
    node.ec2.fail["create_eni"] = refused_for_ever(DENIED)
    node.ec2.fail["find_by_token"] = refused_for_ever(DENIED)
    for number in range(7):
        node.add(f"s{number}")
        run(node, 5)
    assert node.datastore.counts().free == 2
    assert [intent.intent_id for intent in node.datastore.open_intents()] == ["old"]


def test_a_poisoned_creation_does_not_stop_another_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The primary ENI is full, one creation and the search for it are refused for ever: another ENI is created all the same."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    payload = {"subnet_id": "subnet-1", "device_index": "1", "address_count": "9", "prefix_count": "0"}
    payload |= {"tags": "{}", "security_group_ids": "sg-1", "connection_tracking": "{}", "moves_left": "0"}
    payload |= {OPENED_AT: repr(node.clock.monotonic())}
    with node.datastore.transaction() as uow:
        uow.open_intent(Intent("old", IntentKind.CREATE_ENI, node.clock.now(), payload, client_token="old"))
    create = node.ec2.create_eni

    def refusing(request: EniRequest) -> DescribedEni:
        if request.client_token == "old":
            raise DENIED
        return create(request)

    monkeypatch.setattr(node.ec2, "create_eni", refusing)
    node.ec2.fail["find_by_token"] = refused_for_ever(DENIED)
    for number in range(12):
        node.add(f"s{number}", deadline_s=0.5)
        run(node, 5)
    assert [eni.device_index for eni in node.datastore.enis()] == [0, 2]
    assert node.datastore.counts().free >= 2
    assert [intent.intent_id for intent in node.datastore.open_intents()] == ["old"]


def test_an_eni_that_may_exist_is_not_asked_for_twice(node: FakeNode) -> None:
    """ADDs wait while EC2 does not answer creations: each may have made an ENI, so places are not used twice (I13)."""
    node.ec2.fail["create_eni"] = [CloudError("not answered") for _ in range(1000)]
    for number in range(9):
        node.add(f"s{number}")
    node.demand.join()
    for _ in range(60):
        node.clock.advance(1)
        node.pool.cycle()
    assert len(node.datastore.open_intents()) == 1
    assert node.ec2.calls["create_eni"] <= 8, "doubling pauses"
    assert "not answered" in node.demand.status.sentence


def test_an_eni_carries_the_token_of_its_intent(node: FakeNode) -> None:
    """The tag is what a search finds it by; an operator's tag of that name does not replace it."""
    node.add("a")
    node.pool.cycle()
    (made,) = set(node.ec2.enis) - {PRIMARY}
    token = node.ec2.enis[made].tags[INTENT_TAG]
    assert [eni.eni_id for eni in node.ec2.find_by_token(token)] == [made]


def test_what_was_recovered_is_no_condition_any_more(node: FakeNode) -> None:
    """The lost answer is a condition until its intent is closed."""
    node.add("a")
    node.ec2.lose["create_eni"] = [CloudError("connection reset")]
    node.pool.cycle()
    assert any("connection reset" in sentence for sentence in node.health.conditions())
    run(node, 10)
    assert node.health.conditions() == []


@pytest.mark.parametrize(
    ("kind", "payload"),
    [
        (IntentKind.CREATE_ENI, {}),
        (IntentKind.CREATE_ENI, {"device_index": "one", "address_count": "9", "prefix_count": "0"}),
        (IntentKind.ASSIGN, {}),
        (IntentKind.ASSIGN, {"eni_id": str(PRIMARY), "count": "many"}),
        (IntentKind.DELETE_ENI, {}),
    ],
)
def test_an_intent_that_cannot_be_read_stops_nothing_else(tmp_path: Path, kind: IntentKind, payload: dict[str, str]) -> None:
    """Its payload is damaged: it is named, the intents beside it are recovered, and the pool grows."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2))
    node.bring_up()
    with node.datastore.transaction() as uow:
        uow.open_intent(Intent("odd", kind, node.clock.now(), payload, client_token="odd"))
    node.ec2.lose["assign_addresses"] = [CloudError("connection reset")]
    for number in range(3):
        node.add(f"s{number}")
        run(node, 5)
    assert node.datastore.counts().free >= 2
    if node.datastore.open_intents():
        assert [intent.intent_id for intent in node.datastore.open_intents()] == ["odd"]
        assert any("odd" in sentence for sentence in node.health.conditions())
        with node.datastore.transaction() as uow:
            uow.close_intent("odd", outcome="closed by hand")
        run(node, 5)
    assert not any("odd" in sentence for sentence in node.health.conditions())
    node.datastore.close()
