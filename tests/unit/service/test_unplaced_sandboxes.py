"""A sandbox whose address EC2 does not show after a lost datastore: it is recorded soon after EC2 shows it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from pathlib import Path

import pytest

from ipamd.eni.resync import ResyncReason
from ipamd.model.address import AddressState
from ipamd.model.cloud import DescribedEni
from ipamd.model.errors import CloudError
from ipamd.model.ids import EniId, InstanceId
from ipamd.model.pool_settings import PoolSettings
from ipamd.sandbox import runtime
from tests.fakes.cloud import IDENTITY, PRIMARY, FakeEc2
from tests.fakes.node import COOLDOWN_S, FakeNode
from tests.loops import running
from tests.patience import PATIENCE_S
from tests.stories.external_changes import described, pass_time
from tests.stories.stale_reads import recorded, run_sandboxes


class LyingEc2(FakeEc2):
    """Describes of the instance lack one prefix."""

    lacking: IPv4Network | None = None

    def describe_enis(self, instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        """See the port."""
        shown = super().describe_enis(instance_id)
        return tuple(replace(eni, prefixes=eni.prefixes - {self.lacking}) for eni in shown)


@pytest.fixture
def ec2() -> LyingEc2:
    """EC2, true at first."""
    return LyingEc2()


@pytest.fixture
def node(tmp_path: Path, ec2: LyingEc2) -> Iterator[FakeNode]:
    """A node in prefix mode."""
    made = FakeNode(tmp_path, settings=PoolSettings(warm_prefix_target=1, prefix_delegation=True), ec2=ec2)
    made.bring_up()
    yield made
    made.datastore.close()


def rebuilt_in_part(node: FakeNode, ec2: LyingEc2) -> dict[str, IPv4Address]:
    """The datastore is lost while EC2's answers lack a /28 with sandboxes; metadata is silent from then on. Returns: who has what."""
    given = run_sandboxes(node, *[f"s{number}" for number in range(20)])
    ec2.lacking = next(prefix for prefix in ec2.enis[PRIMARY].prefixes if given["s19"] in prefix)
    node.crash(keep_datastore=False)
    node.bring_up()
    node.metadata.fail = [CloudError("metadata does not answer") for _ in range(10000)]
    assert recorded(node) != given
    assert any("unrecorded sandboxes" in sentence for sentence in node.health.conditions())
    return given


def wait_until(holds: Callable[[], bool]) -> float:
    """Wait for what threads do. Returns: seconds that it took."""
    began = time.monotonic()
    while not holds():
        assert time.monotonic() - began < PATIENCE_S
        time.sleep(0.02)
    return time.monotonic() - began


def test_ec2_is_asked_again_at_once_and_the_runtime_with_it(
    node: FakeNode, ec2: LyingEc2, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chaos seed 842: a living sandbox had no row for 30 s after EC2 had begun to tell the truth, because nobody asked EC2, and
    nothing but the next periodic list would have adopted it (I2)."""
    monkeypatch.setattr(runtime, "SUBSCRIBE_PATIENCE_S", 0.0)
    given = rebuilt_in_part(node, ec2)
    node.runtime_reconciler.begin()
    with running(node.runtime_reconciler.loop):
        wait_until(lambda: node.runtime_reconciler.view().list_age_s >= 0)
        ec2.lacking = None
        asked = described(node)
        for _ in range(6):
            pass_time(node, 1.0)
        assert described(node) == asked + 1
        assert wait_until(lambda: recorded(node) == given) < runtime.RELIST_WITHOUT_EVENTS_S / 2
    node.assert_sound()


def test_an_answer_to_growth_has_it_adopted_too(node: FakeNode, ec2: LyingEc2, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 may name old prefixes with the new ones that it gives."""
    told: list[bool] = []
    monkeypatch.setattr(runtime.RuntimeReconciler, "list_soon", lambda _: told.append(True))
    rebuilt_in_part(node, ec2)
    assert ec2.lacking is not None
    told.clear()
    node.enis.add_addresses(PRIMARY, frozenset(), frozenset({ec2.lacking}), asked_count=16)
    assert told == [True]


def test_growth_that_brings_only_what_sandboxes_have_is_followed_by_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Randomised seed 1841: a /28 came full of sandboxes without a row, counted as asked for and not as wanted (I18), so the pool
    stayed short for an hour."""
    ec2 = LyingEc2()
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=2, prefix_delegation=True), ec2=ec2)
    node.bring_up()
    given = run_sandboxes(node, *[f"s{number}" for number in range(32)])
    ec2.lacking = next(prefix for prefix in ec2.enis[PRIMARY].prefixes if given["s31"] in prefix)
    node.crash(keep_datastore=False)
    node.bring_up()
    node.metadata.fail = [CloudError("metadata does not answer") for _ in range(10000)]
    assign = ec2.assign_prefixes

    def full(eni_id: EniId, *, count: int) -> frozenset[IPv4Network]:
        monkeypatch.setattr(ec2, "assign_prefixes", assign)
        full_prefix, ec2.lacking = ec2.lacking, None
        return frozenset({full_prefix} if full_prefix else ())

    monkeypatch.setattr(ec2, "assign_prefixes", full)
    run_sandboxes(node, *[f"t{number}" for number in range(node.datastore.counts().free - 1)])
    for _ in range(4):
        node.pool.cycle()
        node.runtime_reconciler.reconcile_once()
        node.clock.advance(1)
    assert recorded(node).items() >= given.items()
    assert node.datastore.counts().free >= 2
    node.datastore.close()


def test_ec2_is_asked_less_and_less_often(node: FakeNode, ec2: LyingEc2) -> None:
    """It may never show the address: the looks are 1, 2, 4 s apart and so on, and half an hour in the end (I13). Nothing else is in
    doubt for that: what waits for EC2's word has it."""
    rebuilt_in_part(node, ec2)
    looks = []
    for turn_s in (1.0, *(10.0,) * 5):
        before = described(node)
        for _ in range(round(900 / turn_s)):
            pass_time(node, turn_s)
        looks.append(described(node) - before)
    assert looks[0] <= 10, looks
    assert sum(looks[2:]) <= 2, looks
    look = node.app.pool.resyncs
    asked_s = node.clock.monotonic()
    look.request(ResyncReason.OTHER, "somebody asks")
    assert not look.is_answered(asked_s)
    pass_time(node, 1.0)
    assert look.is_answered(asked_s)
    assert node.enis.sync_with_ec2(IDENTITY).again_s is None, "no pause of anything else grows with it"
    ec2.lacking = None
    for _ in range(70):
        pass_time(node, 60.0)
    node.runtime_reconciler.reconcile_once()
    assert not any("unrecorded sandboxes" in sentence for sentence in node.health.conditions())


def test_what_a_sandbox_without_a_row_had_cools_when_ec2_shows_it(node: FakeNode, ec2: LyingEc2) -> None:
    """EC2 shows its /28 seconds after its DEL: only that address of it has to cool (I8)."""
    given = rebuilt_in_part(node, ec2)
    pass_time(node, 2 * COOLDOWN_S)
    node.delete("s19")
    lacking, ec2.lacking = ec2.lacking, None
    node.enis.sync_with_ec2(IDENTITY)
    states = {row.address: row.state for row in node.datastore.addresses() if row.prefix == lacking}
    assert [address for address, state in states.items() if state is AddressState.COOLING] == [given["s19"]]
    assert AddressState.FREE in states.values()
    node.clock.advance(COOLDOWN_S)
    node.cooldown.free_cooled()
    row = node.datastore.address(given["s19"])
    assert row is not None
    assert row.is_free
