"""The first *ready* of a boot waits for an address, once per boot; STATUS fails after its grace while it waits, and never later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from ipamd.core.health import STATUS_GRACE_S
from ipamd.model.attachment import WiringSpec
from ipamd.model.conditions import ConditionCode
from ipamd.model.errors import (
    METADATA,
    CloudDeniedError,
    CloudError,
    KernelDumpError,
    NotServingError,
    SubnetExhaustedError,
)
from ipamd.model.family import read_address
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.refusals import RefusalCode
from ipamd.process.cloud_loop import CloudLoop
from ipamd.process.first_address import CONDITION, READY_ONCE_NAME, FirstAddress
from ipamd.report.verdict import advice
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode
from tests.patience import PATIENCE_S
from tests.refusing import refused_with
from tests.unit.service.test_further_interfaces import add_further

BOOT, NEXT_BOOT = "boot-1", "boot-2"


@pytest.fixture
def empty(tmp_path: Path) -> Iterator[FakeNode]:
    """A node whose subnet has no address at all, brought up as far as serving."""
    made = FakeNode(tmp_path, ec2=FakeEc2(pool_size=0))
    made.bring_up()
    yield made
    made.datastore.close()


def first_address(node: FakeNode, *, boot_id: str = BOOT, stopped: threading.Event | None = None) -> FirstAddress:
    """What a start makes."""
    return FirstAddress(node.app.context, run_dir=node.run_dir, boot_id=boot_id, stopped=stopped or threading.Event())


class Waiting:
    """A wait in a thread of its own."""

    def __init__(self, waiter: FirstAddress) -> None:
        self.said = ""
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(waiter,))
        self._thread.start()

    def _run(self, waiter: FirstAddress) -> None:
        try:
            self.said = waiter.wait()
        except NotServingError as error:
            self.error = error

    def end(self) -> None:
        """Wait for the end, which must come."""
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()


def until_named(node: FakeNode) -> str:
    """The condition, once it is there."""
    pause = threading.Event()
    for _ in range(int(PATIENCE_S * 100)):
        if CONDITION in node.health.conditions_by_subject():
            return node.health.conditions_by_subject()[CONDITION]
        pause.wait(0.01)
    raise AssertionError("no condition")


def test_an_address_that_can_be_given_is_enough(node: FakeNode) -> None:
    """No wait, no condition."""
    assert first_address(node).wait() == f"{node.datastore.counts().free} addresses can be given, 0 sandboxes attached"
    assert node.health.conditions() == []


def test_without_an_address_it_waits_and_names_the_cause_and_status_fails_after_the_grace(empty: FakeNode) -> None:
    """Until an address can be given; ADD is served meanwhile, and the pool sees somebody waiting."""
    waiting = Waiting(first_address(empty))
    assert "subnet subnet-1 has no" in until_named(empty)
    assert empty.demand.waiting()[0] == 1
    empty.health.require_status()
    empty.health.require_add_service()
    empty.clock.advance(STATUS_GRACE_S + 1)
    with refused_with(RefusalCode.STATUS_NO_ADDRESS):
        empty.health.require_status()
    primary = empty.node_info.identity()
    assert primary is not None
    empty.enis.add_addresses(primary.primary_eni_id, frozenset({primary.primary_address + 100}), frozenset(), asked_count=1)
    waiting.end()
    assert waiting.said == "1 address can be given, 0 sandboxes attached"
    assert CONDITION not in empty.health.conditions_by_subject()
    empty.health.require_status()
    assert empty.demand.waiting()[0] == 0


def test_a_live_attachment_is_enough(tmp_path: Path) -> None:
    """A node whose pods have all the addresses is as ready as it was. The interfaces of a sandbox count once."""
    node = FakeNode(tmp_path, ec2=FakeEc2(pool_size=2), settings=PoolSettings(warm_ip_target=1))
    node.bring_up()
    node.add("a")
    node.pool.cycle()
    add_further(node)
    node.crash()
    node.startup.reconcile_kernel(node.wiring.survey(), node.listed())
    assert first_address(node).wait() == "0 addresses can be given, 1 sandbox attached"
    node.datastore.close()


def test_once_per_boot(empty: FakeNode) -> None:
    """The mark of this boot ends the wait, another boot's does not, nor a damaged one; the end of the daemon ends it too."""
    (empty.run_dir / READY_ONCE_NAME).write_bytes(b"\xff\xfe")
    stopped = threading.Event()
    waiting = Waiting(first_address(empty, stopped=stopped))
    until_named(empty)
    stopped.set()
    waiting.end()
    assert isinstance(waiting.error, NotServingError)
    first_address(empty).remember()
    assert first_address(empty).wait() == "not awaited: this node has been ready since its boot"
    stopped.clear()
    waiting = Waiting(first_address(empty, boot_id=NEXT_BOOT, stopped=stopped))
    until_named(empty)
    stopped.set()
    waiting.end()
    assert isinstance(waiting.error, NotServingError)


def test_a_mark_that_cannot_be_written_stops_nothing(empty: FakeNode) -> None:
    """A full disk costs the next start a wait, not this one its *ready*."""
    (empty.run_dir / READY_ONCE_NAME).mkdir()
    first_address(empty).remember()


def asked(node: FakeNode) -> None:
    """The cloud loop's first turn."""
    CloudLoop(node.app).turn()


def test_a_refusal_is_told_and_limits_are_not_set_on_nothing(tmp_path: Path) -> None:
    """EC2 denies the first Describe: the last word is EC2's, not "not asked yet", and a pool that knows no ENI gets no limits."""
    node = FakeNode(tmp_path)
    node.ec2.fail["describe_enis"] = [CloudDeniedError("EC2 Describe failed", details="UnauthorizedOperation")]
    asked(node)
    reachable, detail = node.node_info.cloud
    assert not reachable
    assert detail.startswith("EC2 Describe failed: UnauthorizedOperation")
    assert node.pool.limits is None
    node.datastore.close()


def test_an_answer_without_the_primary_eni_is_no_first_answer(tmp_path: Path) -> None:
    """Nothing was concluded from it, so it is asked again, and the pool creates nothing on a node of which it knows no ENI."""
    node = FakeNode(tmp_path)
    node.ec2.enis.clear()
    asked(node)
    assert node.pool.limits is None
    assert "does not contain its primary ENI" in node.node_info.cloud[1]
    assert node.ec2.calls["create_eni"] == 0
    node.datastore.close()


def test_the_first_comparison_is_handed_on_and_an_exhausted_subnet_is_no_refusal_of_it(empty: FakeNode) -> None:
    """What it leaves in doubt makes the next look at EC2 due; limits are set."""
    row = next(iter(empty.datastore.enis()))
    empty.ec2.fail["assign_addresses"] = [SubnetExhaustedError("none")]
    with empty.datastore.transaction() as uow:  # EC2 does not show it: doubted after the first answer
        uow.add_addresses(row.eni_id, [row.primary_address + 77])
    asked(empty)
    assert empty.pool.limits is not None
    assert empty.app.pool.resyncs.wait_s() is not None


def test_an_answer_that_cannot_be_recorded_does_not_keep_the_pool_from_growing(tmp_path: Path) -> None:
    """A restart with known ENIs: limits are set in any case, and the pool's thread looks at EC2 again."""
    node = FakeNode(tmp_path)
    node.bring_up()
    node.crash()
    assert node.pool.limits is None
    node.wiring.fail["survey"] = [KernelDumpError("interrupted")]
    asked(node)
    assert node.pool.limits is not None
    before = node.ec2.calls["describe_enis"]
    node.enis.resync_due()
    assert node.ec2.calls["describe_enis"] == before + 1
    assert "could not be recorded" in node.node_info.cloud[1]
    node.datastore.close()


def test_what_was_put_off_is_asked_again_in_time_after_a_long_turn(tmp_path: Path) -> None:
    """The turn lasts longer than the pause after its failure, which is over at its end, and not forgotten."""
    node = FakeNode(tmp_path)
    node.bring_up()
    loop = CloudLoop(node.app)
    node.clock.advance(120)  # metadata's own turn is due, too

    def silent() -> None:
        node.clock.advance(8)
        raise CloudError("instance metadata could not be read")

    node.metadata.identity = silent  # type: ignore[method-assign, assignment]
    wait_s = loop.turn()
    assert wait_s is not None
    assert wait_s <= 30


def test_a_live_sandbox_without_a_row_is_enough(empty: FakeNode) -> None:
    """The run directory was lost and the runtime lists nothing yet: its pods must not be evicted."""
    netns = empty.wiring.make_netns("/run/netns/a")
    empty.wiring.wire(WiringSpec(empty.key("a"), read_address("10.0.0.30"), 254, "eni0123456789a", netns, 9001))
    assert "not recorded" in first_address(empty).wait()
    assert CONDITION not in empty.health.conditions_by_subject()


def test_silent_metadata_is_a_condition_of_its_own_and_ec2_is_none(tmp_path: Path) -> None:
    """EC2 was not called, so nothing is said of EC2; the condition has its own page, and ends with the answer."""
    node = FakeNode(tmp_path)
    answer = node.metadata.identity

    def silent() -> None:
        raise CloudError("instance metadata could not be read", details="403: switched off")

    node.metadata.identity = silent  # type: ignore[method-assign, assignment]
    loop = CloudLoop(node.app)
    loop.turn()
    reported = node.health.conditions_since()
    assert set(reported) & {METADATA, "ec2"} == {METADATA}
    (reason,) = reported[METADATA].problems
    assert (reason.code, reason.fields["pause_s"]) == (ConditionCode.METADATA_UNANSWERED, "1")
    assert "#instance-metadata-is-blocked" in advice(METADATA)[1]
    node.metadata.identity = answer  # type: ignore[method-assign]
    node.clock.advance(30)
    loop.turn()
    assert not set(node.health.conditions_since()) & {METADATA, "ec2"}
    node.datastore.close()
