"""What following the primary ENI's security groups must not do: hold growth up, touch what is not ours any more, wake without rest."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.core.backoffs import DENIED, EC2, Schedule
from ipamd.model.errors import CloudDeniedError
from ipamd.model.ids import EniId
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.stale_reads import run_sandboxes

OLD, NEW = ("sg-1",), ("sg-1", "sg-2")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with two ENIs and two sandboxes."""
    made = FakeNode(tmp_path)
    made.bring_up()
    run_sandboxes(made, "a", "b")
    yield made
    made.datastore.close()


def change_groups(node: FakeNode, groups: tuple[str, ...] = NEW) -> None:
    """Metadata shows other groups of the primary ENI."""
    node.metadata.told = replace(IDENTITY, security_group_ids=groups)
    node.node_info.learn_identity()


def secondaries(node: FakeNode) -> list[EniId]:
    """The secondary ENIs, ascending."""
    return sorted(eni_id for eni_id in node.ec2.enis if eni_id != PRIMARY)


def take_all_free(node: FakeNode) -> None:
    """Reserve every free address, and let an ADD wait."""
    number = 0
    while node.datastore.counts().free:
        node.datastore.reserve(node.key(f"r{number}"))
        number += 1
    node.demand.join()


def test_growth_comes_first(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A Modify that EC2 throttles takes 40 s: an ADD that waits for an address must not wait for it."""
    order = []
    for name in ("set_security_groups", "create_eni"):
        method = getattr(node.ec2, name)
        monkeypatch.setattr(node.ec2, name, lambda *a, _name=name, _do=method, **k: (order.append(_name), _do(*a, **k))[1])
    change_groups(node)
    take_all_free(node)
    node.pool.run_once()
    assert order == ["create_eni", "set_security_groups"]


def test_one_eni_is_changed_per_look(node: FakeNode) -> None:
    """The pool is triggered for the next one, so that an ADD waits behind one call at most."""
    run_sandboxes(node, *(f"m{number}" for number in range(10)))
    assert len(secondaries(node)) == 2
    change_groups(node)
    node.was_triggered()
    node.pool.run_once()
    assert node.ec2.calls["set_security_groups"] == 1
    assert node.was_triggered(), "nobody looks for the second ENI"
    node.pool.run_once()
    assert {node.ec2.enis[eni_id].security_group_ids for eni_id in secondaries(node)} == {NEW}
    assert not node.was_triggered(), "the pool wakes without a reason (I13)"


def test_nothing_is_changed_before_the_limits_are_known(node: FakeNode) -> None:
    """Until then the start's thread records what EC2 shows: the pool's thread must not work on the same values."""
    change_groups(node)
    node.crash()
    identity = node.node_info.learn_identity()
    node.enis.sync_with_ec2(identity)
    assert node.pool.limits is None
    node.pool.run_once()
    assert node.ec2.calls["set_security_groups"] == 0
    node.pool.set_limits(node.ec2.limits, settings=node.settings)
    node.pool.run_once()
    assert node.ec2.calls["set_security_groups"] == 1


def test_an_eni_that_is_no_longer_attached_is_left_alone(node: FakeNode) -> None:
    """It is kept because sandboxes are on it, and may be on another instance by now."""
    (secondary,) = secondaries(node)
    take_all_free(node)
    node.ec2.enis[secondary] = replace(node.ec2.enis[secondary], instance_id="i-other")
    node.look_twice()
    assert node.datastore.eni(secondary) is not None
    change_groups(node)
    node.pool.run_once()
    assert node.ec2.enis[secondary].security_group_ids == OLD


def test_an_empty_list_of_groups_is_not_believed(node: FakeNode) -> None:
    """An ENI has at least one group: a new ENI gets those that metadata told before (I11)."""
    before = set(node.ec2.enis)
    change_groups(node, ())
    run_sandboxes(node, *(f"m{number}" for number in range(10)))
    (created,) = set(node.ec2.enis) - before
    assert node.ec2.enis[created].security_group_ids == OLD


@pytest.mark.parametrize(("error", "schedule"), [(CloudDeniedError("denied"), DENIED), (RuntimeError("a defect of ours"), EC2)])
def test_a_failure_pauses_and_lets_the_pool_grow(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch, error: Exception, schedule: Schedule
) -> None:
    """Whatever the error is, growth goes on, and EC2 is not asked again before the pause is over (I13)."""

    def fail(eni_id: EniId, *, security_group_ids: tuple[str, ...]) -> None:
        raise error

    monkeypatch.setattr(node.ec2, "set_security_groups", fail)
    change_groups(node)
    take_all_free(node)
    before = node.datastore.counts().total
    node.pool.run_once()
    assert node.datastore.counts().total > before
    assert node.pool.security_groups.next_retry_s() == schedule.first_s
