"""Settings are read again: on request at once, after a change of the file when its delay is over, and never half."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from ipamd.core.backoffs import Backoffs
from ipamd.core.deadline import SystemClock
from ipamd.core.health import Health
from ipamd.host import files as file_follower
from ipamd.host.files import FileFollowers
from ipamd.model.conditions import ConditionCode
from ipamd.process.reload import RESTART, SettingsReload
from ipamd.settings import CurrentSettings, load
from ipamd.settings.current import INVALID_SETTINGS
from tests import loops
from tests.conditions import codes
from tests.fakes.clock import FakeClock
from tests.rig import wait_until


class Follower:
    """A reload of a file in `folder`, whose delay is chosen by the test."""

    def __init__(self, folder: Path, text: str = "", *, delay: Callable[[float], float] = lambda _: 0.0) -> None:
        self.path = folder / "ipamd.settings"
        self.path.write_text(text)
        self.environ = {"VPC_IPAMD_SETTINGS_FILE": str(self.path), "WARM_IP_TARGET": "2"}
        self.current = CurrentSettings(load(self.environ))
        self.health = Health(FakeClock(), ())
        self.reload = SettingsReload(self.current, health=self.health, environ=self.environ, spread=delay)
        self.reload.check()

    @property
    def target(self) -> int:
        """The target in force."""
        return self.current.now.pool.warm_ip_target

    @property
    def number(self) -> int:
        """The generation in force."""
        return self.current.generation.number

    def looked(self, times: int = 1) -> None:
        """Look as often."""
        for _ in range(times):
            self.reload.check()


Make = Callable[..., Follower]


@pytest.fixture
def follower(tmp_path: Path) -> Make:
    """Makes one."""
    return partial(Follower, tmp_path)


@pytest.fixture
def running(follower: Make) -> Iterator[Follower]:
    """One whose thread runs."""
    made = follower()
    files = FileFollowers(health=made.health, clock=SystemClock(), backoffs=Backoffs(SystemClock()))
    files.follow(made.reload)
    with loops.running(files.loop):
        yield made


def test_asked_it_reads_at_once(follower: Make) -> None:
    """SIGHUP waits for no delay."""
    made = follower(delay=lambda most_s: most_s)
    made.path.write_text("WARM_IP_TARGET=5\n")
    made.looked(3)
    assert (made.target, made.number) == (2, 1)
    made.reload.ask()
    made.looked()
    assert (made.target, made.number) == (5, 2)
    made.looked(3)
    assert made.number == 2


def test_the_delay_is_random_up_to_the_setting(follower: Make) -> None:
    """The spread's bound is the setting; a file that is as it was before its delay was over is not read."""
    asked: list[float] = []

    def never(most_s: float) -> float:
        asked.append(most_s)
        return 1e6

    made = follower("VPC_IPAMD_RELOAD_JITTER_SECONDS=7\n", delay=never)
    made.path.write_text("VPC_IPAMD_RELOAD_JITTER_SECONDS=7\nMAX_ENI=2\n")
    made.looked(2)
    assert asked == [7.0]
    made.path.write_text("VPC_IPAMD_RELOAD_JITTER_SECONDS=7\n")
    made.looked()
    made.path.write_text("VPC_IPAMD_RELOAD_JITTER_SECONDS=7\nMAX_ENI=3\n")
    made.looked()
    assert asked == [7.0, 7.0]
    assert made.number == 1


def test_the_default_spread_differs_between_nodes(follower: Make) -> None:
    """Uniform from 0 to the setting."""
    reload = SettingsReload(follower().current, health=Health(FakeClock(), ()))
    chosen = [reload._spread(60.0) for _ in range(50)]
    assert all(0.0 <= one <= 60.0 for one in chosen)
    assert max(chosen) - min(chosen) > 10.0


def test_a_wrong_file_keeps_the_generation(follower: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Not even its good lines count; the condition ends with a good file, and with the file that was before."""
    made = follower("MAX_ENI=2\n")
    made.path.write_text("MAX_ENI=3\nWARM_IP_TARGET=lots\nFOO\n")
    made.looked(2)
    assert (made.current.now.pool.max_eni, made.number) == (2, 1)
    said = made.health.conditions_by_subject()[INVALID_SETTINGS]
    assert said.startswith("settings: generation 1 stays in force: wrong settings (2)")
    assert "line 3" in said
    assert "'lots'" in said
    assert [record.levelno for record in caplog.records if "stays in force" in record.message] == [logging.WARNING]
    made.looked(3)
    assert len([record for record in caplog.records if "stays in force" in record.message]) == 1, "said once"
    made.path.write_text("MAX_ENI=2\n")
    made.looked(2)
    assert made.health.conditions() == []
    assert made.number == 1


def test_a_file_that_goes_is_wrong_until_it_comes_back(follower: Make) -> None:
    """It is no way back to the environment."""
    made = follower("WARM_IP_TARGET=5\n")
    made.path.unlink()
    made.looked(2)
    assert codes(made.health, INVALID_SETTINGS) == {ConditionCode.SETTINGS_INVALID}
    assert made.target == 5
    made.path.write_text("WARM_IP_TARGET=6\n")
    made.looked(2)
    assert (made.target, made.health.conditions()) == (6, [])


def test_what_needs_a_restart_is_named_until_it_is_taken_back(follower: Make, caplog: pytest.LogCaptureFixture) -> None:
    """Once in the log, and in a condition as long as it waits."""
    made = follower()
    for text in ("VPC_IPAMD_CRI_SOCKET=off\n", "VPC_IPAMD_CRI_SOCKET=off\nMAX_ENI=1\n"):
        made.path.write_text(text)
        made.looked(2)
        assert made.health.conditions_by_subject() == {RESTART: "settings: needs a restart: VPC_IPAMD_CRI_SOCKET"}
    assert (
        len([one for one in caplog.records if one.message.endswith(" text=settings: needs a restart: VPC_IPAMD_CRI_SOCKET")]) == 1
    )
    made.path.write_text("MAX_ENI=1\n")
    made.looked(2)
    assert made.health.conditions() == []


def test_the_thread_notices_a_configmap(running: Follower, tmp_path: Path) -> None:
    """Kubelet renames the link to a directory beside the file's link: `..data`."""
    for number in (3, 4):
        folder = tmp_path / f"..{number}"
        folder.mkdir()
        (folder / "ipamd.settings").write_text(f"WARM_IP_TARGET={number}\n")
        new = tmp_path / "..data_tmp"
        new.symlink_to(folder.name)
        new.replace(tmp_path / "..data")
        if number == 3:
            running.path.unlink()
            running.path.symlink_to("..data/ipamd.settings")
        wait_until(lambda number=number: running.target == number, what="the change is noticed")


def test_the_thread_answers_a_request_without_a_file(caplog: pytest.LogCaptureFixture) -> None:
    """There is nothing to read, and that is said."""
    current = CurrentSettings(load({}))
    health = Health(FakeClock(), ())
    files = FileFollowers(health=health, clock=SystemClock(), backoffs=Backoffs(SystemClock()))
    reload = SettingsReload(current, health=health, wake=files.loop.wake, environ={})
    files.follow(reload)
    with caplog.at_level(logging.INFO), loops.running(files.loop):
        reload.ask()
        wait_until(lambda: "names no file" in caplog.text, what="the request is answered")
    assert current.generation.number == 1


def test_an_error_does_not_end_the_thread(running: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is recorded, and the next change is followed."""

    def breaks(_: object) -> None:
        raise RuntimeError("broken")

    monkeypatch.setattr(file_follower, "FAILED_S", 0.01)
    offer = running.current.offer
    monkeypatch.setattr(running.current, "offer", breaks)
    running.path.write_text("WARM_IP_TARGET=3\n")
    wait_until(lambda: running.health.last_error is not None, what="the error is recorded")
    monkeypatch.setattr(running.current, "offer", offer)
    running.path.write_text("WARM_IP_TARGET=4\n")
    wait_until(lambda: running.target == 4, what="the next change is followed")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("VPC_IPAMD_CRI_SOCKET=unix:///run/other.sock\n", ConditionCode.SETTINGS_NEED_RESTART),
        ("VPC_IPAMD_SNAT_EXEMPT_PODS=batch\n", ConditionCode.SETTINGS_NEED_NEW_PODS),
    ],
)
def test_a_setting_that_pods_keep_needs_new_pods_too(follower: Make, text: str, code: ConditionCode) -> None:
    """The condition distinguishes settings that reach running pods after a restart, and settings that do not."""
    made = follower()
    made.path.write_text(text)
    made.looked(2)
    assert codes(made.health, RESTART) == {code}
