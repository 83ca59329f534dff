"""What growth costs while pods come one after the other: EC2 calls, and how long an ADD waits. EC2 takes its time (fake clock)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from ipamd.model.eni import InstanceLimits
from ipamd.model.pool_settings import PoolSettings
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import FakeNode

M5_4XLARGE = InstanceLimits("m5.4xlarge", 8, 30)
GROWTH = ("create_eni", "attach_eni", "set_delete_on_termination", "describe_eni", "assign_addresses")
CALL_S = {"create_eni": 0.6, "attach_eni": 0.6, "set_delete_on_termination": 0.3, "describe_eni": 0.2, "assign_addresses": 0.5}
LINK_S = 2.5
"""From the attach call to the kernel's link: attaches take 1 to 10 s."""


class SlowEc2(FakeEc2):
    """Takes time for each call, during which the world goes on."""

    def __init__(self, limits: InstanceLimits) -> None:
        super().__init__(limits=limits)
        self.pass_time = lambda seconds: None

    def _call(self, method: str) -> None:
        super()._call(method)
        self.pass_time(CALL_S.get(method, 0.2))


@dataclass
class Ramp:
    """Pods that arrive every `every_s`; the pool loop runs whenever it is triggered, and pods arrive while it asks EC2.

    `is_chain`: each comes `every_s` after the one before got its address.
    """

    node: FakeNode
    every_s: float
    left_count: int
    is_chain: bool = False
    due_s: float = 0.0
    made_count: int = 0
    queue: deque[float] = field(default_factory=deque)
    waits_s: list[float] = field(default_factory=list)

    def pass_time(self, seconds: float) -> None:
        """Let pods arrive, and serve those that wait, for some seconds."""
        end = self.node.clock.monotonic() + seconds
        while self.left_count and self.due_s <= end:
            self.node.clock.advance(max(self.due_s - self.node.clock.monotonic(), 0.0))
            self.left_count -= 1
            self.due_s += float("inf") if self.is_chain else self.every_s
            self.queue.append(self.node.clock.monotonic())
            if not self.has_free():
                self.node.demand.join()
            self.serve()
        self.node.clock.advance(end - self.node.clock.monotonic())
        self.serve()

    def has_free(self) -> bool:
        """Whether an ADD would be served at once."""
        ready = {eni.eni_id for eni in self.node.datastore.enis() if eni.host_ready}
        return any(row.state == "free" and row.eni_id in ready for row in self.node.datastore.addresses())

    def serve(self) -> None:
        """Serve ADDs in the order in which they came."""
        while self.queue and self.has_free():
            came = self.queue.popleft()
            if self.node.demand.waiting()[0]:
                self.node.demand.leave()
            self.node.add(f"pod-{self.made_count}")
            self.made_count += 1
            self.waits_s.append(self.node.clock.monotonic() - came)
            if self.is_chain:
                self.due_s = self.node.clock.monotonic() + self.every_s

    def play(self, *, total_s: float) -> None:
        """Run the pool loop beside the arrivals; afterwards everything is quiet."""
        self.due_s = self.node.clock.monotonic()
        end, wake_s = self.node.clock.monotonic() + total_s, float("inf")
        while self.node.clock.monotonic() < end:
            if self.node.was_triggered() or self.node.clock.monotonic() >= wake_s:
                self.node.pool.run_once()
                pause_s = self.node.pool._pause_s()
                wake_s = float("inf") if pause_s is None else self.node.clock.monotonic() + pause_s
            self.pass_time(0.05)


def ramp(
    tmp_path: Path, settings: PoolSettings, *, every_s: float = 1.0, count: int = 100, is_chain: bool = False
) -> tuple[Ramp, int]:
    """Play a ramp on an m5.4xlarge. Returns: what happened, and the growth calls that it cost."""
    ec2 = SlowEc2(M5_4XLARGE)
    node = FakeNode(tmp_path, settings=settings, ec2=ec2)
    node.bring_up()
    before = sum(ec2.calls[name] for name in GROWTH)
    made = Ramp(node, every_s, count, is_chain)
    ec2.pass_time = made.pass_time
    await_link = node.hostnet.await_link
    node.hostnet.await_link = lambda mac: (made.pass_time(LINK_S), await_link(mac))[1]  # type: ignore[method-assign]
    made.play(total_s=count * every_s + 60)
    assert made.made_count == count
    node.assert_sound()
    node.datastore.close()
    return made, sum(ec2.calls[name] for name in GROWTH) - before


WARM_5 = PoolSettings(warm_ip_target=5, minimum_ip_target=10)


def test_a_ramp_of_a_hundred_pods_is_cheap(tmp_path: Path) -> None:
    """One pod a second: at most 30 EC2 calls, where one address a call took 95, and no ADD waits."""
    made, calls = ramp(tmp_path, WARM_5)
    assert calls <= 30
    assert max(made.waits_s) == 0


@pytest.mark.parametrize(("every_s", "bound"), [(0.25, 40), (3.0, 60), (20.0, 115)])
def test_other_ramps_cost_no_more_than_a_call_for_each_pod(tmp_path: Path, every_s: float, bound: int) -> None:
    """Faster: the calls of a ramp are few. Slower: the pool is topped up when ADDs pause, as before."""
    _, calls = ramp(tmp_path, WARM_5, every_s=every_s)
    assert calls <= bound


@pytest.mark.parametrize("every_s", [0.02, 0.05, 0.1])
def test_pods_that_each_wait_for_the_one_before_share_calls(tmp_path: Path, every_s: float) -> None:
    """Never more than one ADD waits, so each answer was as small as what one look saw: 21 calls to 60 pods."""
    made, calls = ramp(tmp_path, PoolSettings(warm_ip_target=5), every_s=every_s, count=60, is_chain=True)
    assert calls <= 18
    assert 65 <= made.node.datastore.counts().total <= 70


@pytest.mark.parametrize("every_s", [0.25, 1.0, 3.0, 20.0])
def test_the_pool_ends_between_its_target_and_twice_of_it(tmp_path: Path, every_s: float) -> None:
    """When nothing comes any more WARM_IP_TARGET addresses are free, and no more than as many besides, asked for while it went on."""
    made, _ = ramp(tmp_path, WARM_5, every_s=every_s, count=60)
    counts = made.node.datastore.counts()
    assert 5 <= counts.free <= 10


def test_a_burst_leaves_nothing_behind(tmp_path: Path) -> None:
    """All pods at once, then silence: demand that does not last asks for nothing beyond the target."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=8), ec2=FakeEc2(limits=M5_4XLARGE))
    node.bring_up()
    for number in range(6):
        node.add(f"s{number}")
    node.pool.cycle()
    node.clock.advance(6)
    node.pool.cycle()
    assert node.datastore.counts().free == 8
    node.datastore.close()


def test_the_pool_is_topped_up_half_way_or_after_a_pause(tmp_path: Path) -> None:
    """Above half of WARM_IP_TARGET the pool waits 5 s for more ADDs, with a timer; at half of it it asks at once."""
    node = FakeNode(tmp_path, settings=PoolSettings(warm_ip_target=8), ec2=FakeEc2(limits=M5_4XLARGE))
    node.bring_up()
    asked = node.ec2.calls["assign_addresses"]
    node.add("a")
    node.pool.cycle()
    assert node.ec2.calls["assign_addresses"] == asked
    assert node.pool._pause_s() == 5.0
    for number in range(3):
        node.add(f"s{number}")
    node.pool.cycle()
    assert node.ec2.calls["assign_addresses"] == asked + 1
    assert node.datastore.counts().free == 8
    node.add("b")
    node.pool.cycle()
    node.clock.advance(5.1)
    node.pool.cycle()
    assert node.datastore.counts().free == 8
    node.provisioner.leaked_enis.disable()  # its one look comes a minute or two after the start
    assert node.pool._pause_s() is None, "an idle pool has no timer (I13)"
    node.datastore.close()


def test_a_spare_eni_comes_once_no_add_has_come_for_a_while(tmp_path: Path) -> None:
    """Half of WARM_ENI_TARGET is there: the ENI for the other half is asked for once to twice the delay after the last ADD, by the
    pool's own timer; below half it is asked for at once."""
    node = FakeNode(tmp_path, settings=PoolSettings(spare_eni_delay_s=30.0))
    node.bring_up()
    for number in range(4):  # of nine
        node.clock.advance(10)
        node.add(f"s{number}")
        node.pool.run_once()
    assert node.ec2.calls["create_eni"] == 0
    assert "once no ADD has come for a while" in node.demand.status.sentence
    began_s = node.clock.monotonic()
    while not node.ec2.calls["create_eni"]:
        pause_s = node.pool._pause_s()
        assert pause_s is not None
        node.clock.advance(pause_s + 0.001)
        node.pool.run_once()
    assert 30.0 <= node.clock.monotonic() - began_s <= 60.1
    for number in range(10):
        node.add(f"t{number}")
        node.pool.run_once()
    assert node.ec2.calls["create_eni"] == 2, "less than half of an ENI is left"
    node.assert_sound()
    node.datastore.close()
