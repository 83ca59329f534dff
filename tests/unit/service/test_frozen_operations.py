"""An operation at EC2 that is open when the pool freezes takes nothing away that is attached, and leaks nothing (I2, I9, I20)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.migration.handover import ABSENCE_S
from ipamd.model.address import AddressState
from ipamd.model.cloud_evidence import RECENT_S
from ipamd.model.eni import EniState
from ipamd.model.errors import CloudError, CloudNotFoundError
from ipamd.model.family import IpAddress
from ipamd.model.freeze import FreezeCause
from ipamd.model.ids import EniId
from ipamd.model.intent import IntentKind
from ipamd.model.pool_actions import ReleaseAddresses, ReleaseEni
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import PRIMARY
from tests.fakes.node import FakeNode

UNANSWERED = CloudError("InternalError: try later")
SOCKET = "/run/aws-node/ipamd.sock"


@pytest.fixture
def node(tmp_path: Path) -> FakeNode:
    """It keeps what it has, so that only what a test asks for is released."""
    made = FakeNode(tmp_path, settings=PoolSettings(release_hold_s=1e9))
    made.bring_up()
    made.clock.advance(RECENT_S + 1)
    return made


def other_daemon_comes(node: FakeNode) -> None:
    """The daemon of amazon-vpc-cni-k8s serves, and is noticed."""
    node.aws_node.listens = SOCKET
    assert node.app.other_daemon.check()


def other_daemon_leaves(node: FakeNode) -> None:
    """It has been away for a minute, and gave nothing."""
    node.aws_node.listens = ""
    node.clock.advance(ABSENCE_S + 1)
    assert node.app.other_daemon.check() == ""
    assert not node.app.context.freeze.reason


def operator_freezes(node: FakeNode) -> None:
    """`ipamctl freeze`."""
    node.app.context.freeze.set(FreezeCause.OPERATOR, "maintenance at EC2")


FREEZES = pytest.mark.parametrize("freeze", [other_daemon_comes, operator_freezes])


def pass_time(node: FakeNode, minutes: int = 20) -> None:
    """Let the pool's loop run once a minute, and the look for the other daemon before it."""
    for _ in range(minutes):
        node.clock.advance(60)
        node.app.other_daemon.check()
        node.pool.turn()


def free_addresses(node: FakeNode, count: int) -> list[IpAddress]:
    """Addresses of the primary ENI that nobody has."""
    rows = node.datastore.addresses(state=AddressState.FREE)
    return sorted(row.address for row in rows if row.eni_id == PRIMARY)[:count]


def release_addresses(node: FakeNode, count: int = 2) -> list[IpAddress]:
    """A release of addresses that EC2 has not answered, and has not carried out."""
    named = free_addresses(node, count)
    node.ec2.fail["unassign"] = [UNANSWERED]
    with pytest.raises(CloudError):
        node.provisioner.release(ReleaseAddresses(PRIMARY, tuple(named), ()))
    assert node.datastore.open_intents()
    return named


def second_eni(node: FakeNode) -> EniId:
    """A second ENI of ours without a sandbox on it."""
    for number in range(10):
        node.add(f"p{number}")
        node.pool.cycle()
    for number in range(10):
        node.delete(f"p{number}")
    node.cool()
    node.clock.advance(RECENT_S + 1)
    return next(eni.eni_id for eni in node.datastore.enis() if not eni.is_primary)


@FREEZES
def test_an_open_release_of_addresses_is_undone(node: FakeNode, freeze: Callable[[FakeNode], None]) -> None:
    """EC2 is not asked again; what it still shows can be given again, and what it does not show is forgotten."""
    kept, gone = release_addresses(node)
    before_count = node.ec2.calls["unassign"]
    freeze(node)
    eni = node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses - {gone})  # half of it was carried out
    node.pool.turn()
    assert node.datastore.open_intents(), "Describe may lag behind the lost answer"
    pass_time(node)
    assert node.ec2.calls["unassign"] == before_count
    assert not node.datastore.open_intents()
    row = node.datastore.address(kept)
    assert row is not None
    assert row.is_free
    assert node.datastore.address(gone) is None
    assert "release" not in node.health.conditions_by_subject(), "EC2 refused nothing"


@FREEZES
def test_an_open_release_of_an_eni_is_undone(node: FakeNode, freeze: Callable[[FakeNode], None]) -> None:
    """Detach was asked and not carried out: the ENI stays attached, and gives addresses again."""
    eni_id = second_eni(node)
    node.ec2.fail["detach_eni"] = [UNANSWERED]
    with pytest.raises(CloudError):
        node.provisioner.release(ReleaseEni(eni_id))
    before_count = node.ec2.calls["detach_eni"]
    freeze(node)
    pass_time(node)
    assert node.ec2.calls["detach_eni"] == before_count
    assert node.ec2.enis[eni_id].attachment_id
    eni = node.datastore.eni(eni_id)
    assert eni is not None
    assert (eni.state, eni.host_ready) == (EniState.ATTACHED, True)
    assert not node.datastore.open_intents()


@FREEZES
def test_an_eni_that_was_detached_already_is_deleted(node: FakeNode, freeze: Callable[[FakeNode], None]) -> None:
    """Nothing is attached that could be taken away, and it would leak (I9)."""
    eni_id = second_eni(node)
    node.ec2.fail["delete_eni"] = [UNANSWERED]
    with pytest.raises(CloudError):
        node.provisioner.release(ReleaseEni(eni_id))
    freeze(node)
    pass_time(node)
    assert eni_id not in node.ec2.enis
    assert node.datastore.eni(eni_id) is None


def test_a_release_before_whose_call_the_other_daemon_comes_is_undone_at_once(node: FakeNode) -> None:
    """It came after the last look of the loop that looks every few seconds: it is looked for before the call."""
    named = free_addresses(node, 2)

    def come(name: str) -> None:
        if name == "release.intent-opened":
            node.aws_node.listens = SOCKET

    node.failpoint = come
    assert not node.provisioner.release(ReleaseAddresses(PRIMARY, tuple(named), ()))
    assert not node.ec2.calls["unassign"]
    assert not node.datastore.open_intents()
    assert set(named) <= set(free_addresses(node, 100))
    assert FreezeCause.AWS_NODE in {freezing.cause for freezing in node.app.context.freeze.in_force()}


def test_a_detach_before_which_the_other_daemon_comes_is_not_asked(node: FakeNode) -> None:
    """The same for a whole ENI."""
    eni_id = second_eni(node)

    def come(name: str) -> None:
        if name == "release.intent-opened":
            node.aws_node.listens = SOCKET

    node.failpoint = come
    assert not node.provisioner.release(ReleaseEni(eni_id))
    assert not node.ec2.calls["detach_eni"]
    eni = node.datastore.eni(eni_id)
    assert eni is not None
    assert eni.state is EniState.ATTACHED


@pytest.mark.parametrize("is_restarted", [False, True])
def test_a_release_is_not_continued_once_the_other_daemon_has_gone(node: FakeNode, is_restarted: bool) -> None:
    """It may have given what the release names, so the release is undone; a later plan may release it again, with its own checks."""
    named = release_addresses(node)
    before_count = node.ec2.calls["unassign"]
    other_daemon_comes(node)
    other_daemon_leaves(node)
    if is_restarted:
        node.crash()
        node.app.other_daemon.check()  # as a start does first
        node.bring_up()
    pass_time(node)
    assert node.ec2.calls["unassign"] == before_count
    assert not node.datastore.open_intents()
    assert set(named) <= node.ec2.enis[PRIMARY].secondary_addresses
    assert node.provisioner.release(ReleaseAddresses(PRIMARY, tuple(named), ())), "what is released now began after it had gone"
    assert node.ec2.calls["unassign"] == before_count + 1


def test_an_operators_freeze_that_ends_lets_the_release_go_on(node: FakeNode) -> None:
    """Nobody else gave addresses meanwhile."""
    named = release_addresses(node)
    operator_freezes(node)
    node.pool.turn()
    node.app.context.freeze.clear(FreezeCause.OPERATOR)
    pass_time(node)
    assert not set(named) & node.ec2.enis[PRIMARY].secondary_addresses
    assert not any(intent for intent in node.datastore.open_intents() if not intent.is_settled)


def start_creation(node: FakeNode, *, fail: str = "", lose: str = "") -> None:
    """An ADD more than the primary ENI has addresses for; the named call of the creation is not answered."""
    for number in range(len(free_addresses(node, 100))):
        node.add(f"p{number}")
    if fail:
        node.ec2.fail[fail] = [UNANSWERED]
    if lose:
        node.ec2.lose[lose] = [UNANSWERED]
    node.pool.cycle()
    assert [intent.kind for intent in node.datastore.open_intents()] == [IntentKind.CREATE_ENI]


@pytest.mark.parametrize(
    ("fail", "lose"), [("create_eni", ""), ("", "create_eni"), ("attach_eni", "")], ids=["not made", "made", "not attached"]
)
def test_of_an_open_creation_what_is_unattached_is_deleted(node: FakeNode, fail: str, lose: str) -> None:
    """Under the eyes of another daemon no ENI is made or attached, and none leaks (I9)."""
    start_creation(node, fail=fail, lose=lose)
    calls = node.ec2.calls["create_eni"], node.ec2.calls["attach_eni"]
    other_daemon_comes(node)
    pass_time(node, 40)
    assert (node.ec2.calls["create_eni"], node.ec2.calls["attach_eni"]) == calls
    assert set(node.ec2.enis) == {PRIMARY}
    assert not any(intent for intent in node.datastore.open_intents() if not intent.is_settled)


@pytest.mark.parametrize(("fail", "lose"), [("", "attach_eni"), ("set_delete_on_termination", "")])
def test_of_an_open_creation_what_is_attached_is_recorded(node: FakeNode, fail: str, lose: str) -> None:
    """The other daemon finds it at the instance and may give its addresses at once."""
    start_creation(node, fail=fail, lose=lose)
    other_daemon_comes(node)
    pass_time(node)
    (made,) = set(node.ec2.enis) - {PRIMARY}
    assert node.ec2.enis[made].delete_on_termination
    assert node.datastore.eni(made) is not None
    assert not node.datastore.open_intents()
    assert not node.ec2.calls["detach_eni"]


def test_a_creation_that_is_being_deleted_is_recorded_if_it_is_attached(node: FakeNode) -> None:
    """Attaching failed, as far as anybody knew, and its deletion had begun when the other daemon came."""
    start_creation(node, lose="attach_eni")
    (made,) = set(node.ec2.enis) - {PRIMARY}
    node.clock.advance(3600)  # longer than an unanswered attachment is asked about
    node.ec2.fail["set_delete_on_termination"] = [UNANSWERED]
    node.ec2.fail["detach_eni"] = [UNANSWERED]
    node.pool.turn()
    assert node.ec2.calls["detach_eni"] == 1
    other_daemon_comes(node)
    pass_time(node)
    assert node.ec2.calls["detach_eni"] == 1
    assert node.ec2.enis[made].attachment_id
    assert node.datastore.eni(made) is not None
    assert not node.datastore.open_intents()


@pytest.mark.parametrize("is_not_found", [False, True])
def test_one_answer_of_ec2_does_not_tear_down_the_routing_of_an_eni(node: FakeNode, is_not_found: bool) -> None:
    """We never asked to detach it and its link is there: an answer that does not show it attached is stale."""
    eni_id = second_eni(node)
    shown = node.ec2.enis[eni_id]
    if is_not_found:
        node.ec2.fail["describe_eni"] = [CloudNotFoundError("InvalidNetworkInterfaceID.NotFound")]
    else:
        node.ec2.described[eni_id] = [replace(shown, attachment_id="", attachment_status="", instance_id=shown.instance_id)]
    with pytest.raises(CloudError):
        node.provisioner.release(ReleaseEni(eni_id))
    assert node.datastore.eni(eni_id) is not None
    assert node.ec2.enis[eni_id].attachment_id
    pass_time(node)
    assert eni_id not in node.ec2.enis, "the next answer was right"


def test_one_answer_that_lacks_the_eni_forgets_none_of_its_addresses(node: FakeNode) -> None:
    """A stopped release asks what became of its call; the ENI's link is there, so "not found" is stale."""
    named = release_addresses(node)
    other_daemon_comes(node)
    node.pool.turn()
    node.clock.advance(RECENT_S + 1)
    node.ec2.fail["describe_eni"] = [CloudNotFoundError("InvalidNetworkInterfaceID.NotFound")]
    node.pool.turn()
    assert all(node.datastore.address(address) for address in named)
    pass_time(node)
    assert set(named) <= set(free_addresses(node, 100))
    assert not node.datastore.open_intents()
