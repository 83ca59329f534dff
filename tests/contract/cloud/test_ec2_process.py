"""The process that asks EC2: what is lost with it is silence (I11), another one takes its place, and none is left behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ipamd.cloud import child
from ipamd.cloud.child import Ec2Child, start
from ipamd.cloud.ec2 import BotoEc2, first_page_of_instance
from ipamd.cloud.ec2_process import SENDING
from ipamd.model.cloud import EniRequest
from ipamd.model.errors import CloudError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import EniId, InstanceId, SubnetId
from ipamd.settings import CloudConfig
from lab.ec2.server import Ec2Server
from lab.vpc.state import Vpc
from tests.errors import failed
from tests.patience import PATIENCE_S
from tests.rig import wait_until
from tests.unit.cloud.clocks import FakeClock

SLOW = 2 * PATIENCE_S
"""Seconds of an answer that no test waits for."""


class World:
    """EC2 on loopback, the adapter over a process, and what was reported of it."""

    def __init__(self, vpc: Vpc, url: str) -> None:
        self.vpc = vpc
        self.subnet = vpc.add_subnet("10.0.0.0/24")
        node = vpc.add_instance(name="node", instance_type="m5.large", subnet_id=self.subnet.subnet_id)
        self.instance_id = InstanceId(node.instance_id)
        self.config = CloudConfig(ec2_endpoint=url, http_timeout_s=round(SLOW))
        self.reports: list[str] = []
        self.client = Ec2Child(self.config, region=lambda: vpc.region, report=self.reports.append)
        clock = FakeClock()
        self.ec2 = BotoEc2(self.config, region=str, clock=clock, sleep=clock.sleep, client=self.client)

    @property
    def pid(self) -> int:
        """The process of now."""
        assert self.client._process is not None
        return self.client._process.pid

    def ask(self) -> int:
        """A call that changes nothing: how many ENIs the instance has."""
        return len(self.ec2.describe_enis(self.instance_id))

    def create(self) -> EniId:
        """A call that is repeated with its token."""
        groups = (self.vpc.default_group_id,)
        return self.ec2.create_eni(EniRequest(SubnetId(self.subnet.subnet_id), groups, "aws-K8S-lab", {}, "token", 2)).eni_id

    def assign(self) -> int:
        """A call that is made once."""
        (eni,) = self.ec2.describe_enis(self.instance_id)
        return len(self.ec2.assign_addresses(eni.eni_id, count=3))

    def addresses(self) -> int:
        """What the instance has at EC2."""
        return sum(len(eni.secondary_addresses) for eni in self.vpc.enis())

    def in_mid_call(self, call: Callable[[], object], *, api: str, then: Callable[[], None]) -> object:
        """Make a call whose answer is held back after its effect; do something to the process; then let EC2 answer at once."""
        before = len(self.vpc.enis()) + self.addresses()
        self.vpc.faults.apply({"apis": {api: {"answer_latency_s": SLOW}}})
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(call)
            wait_until(lambda: len(self.vpc.enis()) + self.addresses() > before, what="the effect")
            self.vpc.faults.apply({"apis": {api: {}}})
            then()
            return answer.result(2 * SLOW)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    """With credentials."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "lab")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "lab")
    with Vpc() as vpc, Ec2Server(vpc, sockets=[("127.0.0.1", 0)]) as server:
        yield World(vpc, server.url)


def is_gone(pid: int) -> bool:
    """It has ended, and is reaped."""
    return not Path(f"/proc/{pid}").exists()


def test_a_creation_in_a_process_that_is_killed_is_repeated_with_its_token(world: World) -> None:
    """EC2 made the ENI, nobody heard of it, and the repetition gives the same one (I9)."""
    assert world.ask() == 1
    first = world.pid
    eni_id = world.in_mid_call(world.create, api="CreateNetworkInterface", then=lambda: os.kill(first, signal.SIGKILL))
    assert [eni.eni_id for eni in world.vpc.enis() if eni.attachment is None] == [eni_id]
    assert is_gone(first)
    assert any("ended with -9" in report for report in world.reports)
    assert world.reports[-1] == "", "the next call succeeded"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_what_may_not_be_repeated_is_unknown(world: World, monkeypatch: pytest.MonkeyPatch, number: signal.Signals) -> None:
    """Killed or hanging: the error says that it may have happened, and EC2 was asked once (I11)."""
    monkeypatch.setattr(child, "MARGIN_S", 1.0 - SLOW)  # with the connection's, that is how long an answer may take
    assert world.ask() == 1
    first = world.pid
    with pytest.raises(CloudError) as refused:
        world.in_mid_call(world.assign, api="AssignPrivateIpAddresses", then=lambda: os.kill(first, number))
    assert refused.value.may_have_happened
    assert "it may have taken effect" in refused.value.details
    assert world.addresses() == 3
    assert is_gone(first)
    assert world.reports[-1] != ""
    assert world.ask() == 1
    assert world.reports[-1] == ""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_an_idle_process_that_is_lost_costs_no_call(
    world: World, monkeypatch: pytest.MonkeyPatch, number: signal.Signals
) -> None:
    """Nothing was sent through it, so even what is made once is made, by another one."""
    assert world.ask() == 1
    monkeypatch.setattr(child, "START_S", 15.0)
    first = world.pid
    os.kill(first, number)
    assert world.assign() == 3
    assert world.addresses() == 3
    assert is_gone(first)
    assert set(world.reports) == {""}


@pytest.mark.parametrize("executable", ["/nonexistent/python", "/bin/false"])
def test_a_process_that_cannot_start_is_named(world: World, monkeypatch: pytest.MonkeyPatch, executable: str) -> None:
    """Nothing was changed, the report says what is wrong, and the first call that can be made heals it."""
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", executable)
        with pytest.raises(CloudError, check=failed(FailureCode.EC2_UNSENT)) as refused:
            world.ask()
    assert not refused.value.may_have_happened
    assert ("cannot be started" if "nonexistent" in executable else "ended with 1") in world.reports[-1]
    assert world.vpc.calls() == []
    assert world.ask() == 1
    assert world.reports[-1] == ""


def test_an_idle_process_ends_and_comes_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only when nothing was asked for a while, and never under a call."""
    assert world.ask() == 1
    first = world.pid
    world.client.release_idle(is_needed_soon=False)
    assert world.pid == first, "it was used a moment ago"
    monkeypatch.setattr(child, "IDLE_S", 0.0)
    world.in_mid_call(world.create, api="CreateNetworkInterface", then=lambda: rest_and_kill(world, first))
    second = world.pid
    assert second != first
    world.client.release_idle(is_needed_soon=False)
    assert is_gone(second)
    assert world.client._process is None
    world.client.release_idle(is_needed_soon=False)
    assert world.ask() == 1


def test_a_process_that_is_wanted_soon_is_there(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither ends nor is missing when the next ADD will wait for EC2; one that cannot start is told by the call."""
    monkeypatch.setattr(child, "IDLE_S", 0.0)
    assert world.ask() == 1
    first = world.pid
    world.client.release_idle(is_needed_soon=True)
    assert world.pid == first
    world.client.release_idle(is_needed_soon=False)
    assert world.client._process is None
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", "/nonexistent/python")
        world.client.release_idle(is_needed_soon=True)
    assert world.client._process is None
    world.client.release_idle(is_needed_soon=True)
    second = world.pid
    assert world.ask() == 1
    assert world.pid == second


def rest_and_kill(world: World, pid: int) -> None:
    """A call is under way: what is idle is let go of, and the process is not; so it is killed, which ends the call."""
    world.client.release_idle(is_needed_soon=False)
    assert world.pid == pid
    os.kill(pid, signal.SIGKILL)


def test_calls_are_made_side_by_side(world: World) -> None:
    """One that EC2 does not answer holds no other back."""
    world.vpc.faults.apply({"apis": {"CreateNetworkInterface": {"hang": True}}})
    stuck = threading.Thread(target=world.create)
    stuck.start()
    try:
        wait_until(lambda: bool(world.ec2.calls_under_way()), what="the call is made")
        assert world.ask() == 1
    finally:
        world.vpc.faults.clear()
        stuck.join(SLOW)
    assert [eni.attachment is None for eni in world.vpc.enis()].count(True) == 1


@pytest.mark.parametrize("asks", [False, True], ids=["idle", "in mid-call"])
def test_it_ends_with_the_daemon(world: World, asks: bool) -> None:
    """A daemon that is killed closes its end: the process hears it, whatever it is doing; other signals are the daemon's affair."""
    process = start(world.config)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        wait_until(partial(ignores, process.pid, number), what="the process is up")
        os.kill(process.pid, number)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        if asks:
            world.vpc.faults.apply({"apis": {"DescribeNetworkInterfaces": {"hang": True}}})
            socket.send_fds(process.control, [SENDING], [theirs.fileno()])
            ours.sendall(json.dumps({"api": "DescribeNetworkInterfaces", "params": {}, "region": world.vpc.region}).encode())
            ours.shutdown(socket.SHUT_WR)
            assert ours.recv(1) == SENDING
        process.control.close()
        assert os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1]) == 0
    world.vpc.faults.clear()


def ignores(pid: int, number: signal.Signals) -> bool:
    """Whether a process ignores a signal."""
    text = Path(f"/proc/{pid}/status").read_text()
    mask = next(line.split()[1] for line in text.splitlines() if line.startswith("SigIgn:"))
    return bool(int(mask, 16) & 1 << number - 1)


def test_nothing_of_the_daemon_is_open_in_it(world: World) -> None:
    """It has its end of the socket and the log, and no descriptor of the daemon's besides: a lock would outlive the daemon."""
    with Path("/proc/self/cmdline").open() as held:
        process = start(world.config)
        try:
            names = {}
            for link in Path(f"/proc/{process.pid}/fd").iterdir():
                with suppress(FileNotFoundError):  # a module that it has just read
                    names[link.name] = os.readlink(link)
        finally:
            process.end()
        assert os.readlink(f"/proc/self/fd/{held.fileno()}") not in names.values()
        assert names["0"].startswith("socket:")


def describe_calls(world: World) -> int:
    """How often EC2 was asked for ENIs."""
    return sum(call.api == "DescribeNetworkInterfaces" for call in world.vpc.calls())


def ask_early(world: World) -> None:
    """The question of a start, and its answer."""
    api, params = first_page_of_instance(world.instance_id, vpc_id="")
    world.client.ask_early(api, params, region=world.vpc.region)


def test_the_first_call_gets_the_answer_of_the_early_question(world: World) -> None:
    """EC2 is asked once for both, and the next call asks again."""
    ask_early(world)
    assert (world.ask(), describe_calls(world)) == (1, 1)
    assert (world.ask(), describe_calls(world)) == (1, 2)


def test_an_early_answer_to_another_question_is_not_used(world: World) -> None:
    """The calls ask EC2 themselves."""
    ask_early(world)
    world.create()
    assert (world.ask(), describe_calls(world)) == (1, 2)


def test_an_early_answer_that_is_old_is_not_used(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call asks EC2 itself."""
    monkeypatch.setattr(child, "EARLY_S", -1.0)
    ask_early(world)
    assert (world.ask(), describe_calls(world)) == (1, 2)


def test_nothing_is_asked_early_after_the_first_call(world: World) -> None:
    """The call came first: its answer is newer."""
    assert world.ask() == 1
    ask_early(world)
    assert describe_calls(world) == 1


def test_an_early_question_whose_process_died_is_asked_again(world: World) -> None:
    """The first call starts another process."""
    with ThreadPoolExecutor(1) as pool:
        early = pool.submit(ask_early, world)
        wait_until(lambda: world.client._process is not None, what="the process")
        first = world.pid
        os.kill(first, signal.SIGKILL)
        assert world.ask() == 1
        early.result(SLOW)
    assert is_gone(first)
    assert describe_calls(world) == 1
