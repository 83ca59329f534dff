"""The real daemon follows the real runtime: by events on containerd 1.7, by polling on 1.6, and through a restart on both."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing

import pytest

from ipamd.runtime.cri import CriRuntime
from tests.contract.runtime.conftest import Listener
from tests.lab.runtime.conftest import DIRECTORIES, kill_outside, quiet, rig_with, run_sandbox, runtime_view, socket_of
from tests.patience import PATIENCE_S
from tests.rig import Rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.containerd]

log = logging.getLogger(__name__)  # figures: pytest -o log_cli=true --log-cli-level=INFO

METRICS = "127.0.0.1:61678"


@pytest.fixture(scope="module")
def followed() -> Iterator[Rig]:
    """A node with containerd 1.7 and a daemon that follows its events."""
    with rig_with("1.7", env={"VPC_IPAMD_METRICS_ADDRESS": METRICS}) as made:
        wait_until(lambda: runtime_view(made)["events"], what="stream open")
        yield made


def metric(made: Rig, name: str) -> float:
    """One figure of /metrics, read inside the node."""
    _, text = made.page(f"http://{METRICS}/metrics")
    return float(next(line.split()[1] for line in text.splitlines() if line.startswith(f"{name} ")))


@pytest.mark.containerd17
def test_an_event_is_a_list(followed: Rig) -> None:
    """Created, killed from outside, removed: each is looked at before the 60 s of the next list."""
    quiet(followed)
    sandbox = run_sandbox(followed, "web")
    latencies_s = [wait_until(lambda: runtime_view(followed)["sandbox_count"] == 1, what="created one listed")]
    quiet(followed)
    killed_at = time.monotonic()
    kill_outside(followed, sandbox, "1.7")
    wait_until(lambda: runtime_view(followed)["list_age_s"] < 1.0, what="a list after the kill")
    latencies_s.append(time.monotonic() - killed_at)
    quiet(followed)
    followed.node.cri.remove(sandbox)
    latencies_s.append(wait_until(lambda: runtime_view(followed)["sandbox_count"] == 0, what="removed one not listed"))
    log.info("event -> list: %s s", [round(each, 3) for each in latencies_s])
    followed.assert_sound(expected=0)


@pytest.mark.containerd17
def test_adds_at_once_while_the_daemon_lists_are_all_kept(followed: Rig) -> None:
    """Ten sandboxes are created and removed while each other's events make the daemon list: no alarm, none lost, none left."""
    with ThreadPoolExecutor(max_workers=10) as pool:
        sandboxes = list(pool.map(lambda number: run_sandbox(followed, f"burst-{number}"), range(10)))
        wait_until(lambda: runtime_view(followed)["sandbox_count"] == 10, what="all listed")
        assert set(followed.attachments()) == set(sandboxes)
        status = followed.status()
        assert status is not None
        assert "implausible" not in str(status)
        list(pool.map(followed.node.cri.remove, sandboxes))
    wait_until(lambda: runtime_view(followed)["sandbox_count"] == 0, what="none listed")
    followed.assert_sound(expected=0)


@pytest.mark.containerd17
def test_events_that_others_take_are_counted_as_missed(followed: Rig) -> None:
    """containerd 1.7 gives each event to one subscriber only: three others starve us, and the metric says so."""
    before = metric(followed, "ipamd_cri_missed_events_total")
    with ExitStack() as stack:
        thieves = [stack.enter_context(closing(CriRuntime(socket=socket_of(followed)))) for _ in range(3)]
        listeners = [Listener(thief) for thief in thieves]
        for listener in listeners:
            listener.wait_open()
        for number in range(4):
            followed.node.cri.remove(run_sandbox(followed, f"robbed-{number}"))
            sandbox = run_sandbox(followed, f"kept-{number}")
        assert any(len(listener.heard) > 1 for listener in listeners)

        def is_counted() -> bool:
            """More events, so that the daemon lists again once the late ones have had their time."""
            followed.node.cri.remove(run_sandbox(followed, "another"))
            return metric(followed, "ipamd_cri_missed_events_total") > before

        wait_until(is_counted, what="missed events counted")
        for thief, listener in zip(thieves, listeners, strict=True):
            thief.cancel_events()
            listener.wait_end()
    assert sandbox in followed.attachments(), "counted, and nothing else"
    for each in followed.node.cri.list():
        followed.node.cri.remove(each.sandbox_id)
    followed.assert_sound(expected=0)


@pytest.mark.parametrize("version", [pytest.param("1.6", marks=pytest.mark.heavy), "1.7"])
def test_a_restart_of_the_runtime_costs_nothing(version: str) -> None:
    """It is known to be away, known to be back within seconds, events are on again, and nothing was freed (I11).

    On 1.6 the only way to know all this is to ask: every 10 s while it answers, every 2 s while it does not.
    """
    with rig_with(version) as made:
        wait_until(lambda: runtime_view(made)["reachable"], what="first list")
        ids = {run_sandbox(made, f"survivor-{number}") for number in range(2)}
        if version == "1.7":
            wait_until(lambda: runtime_view(made)["sandbox_count"] == 2, what="both announced")
        assert runtime_view(made)["events"] == (version == "1.7")
        assert made.node.containerd is not None
        made.node.containerd.kill()
        made.node.containerd.wait(PATIENCE_S)
        away_s = wait_until(lambda: not runtime_view(made)["reachable"], what="known to be away", timeout_s=20)
        assert not runtime_view(made)["events"]
        assert set(made.attachments()) == ids
        # A DEL needs no runtime, and neither does an ADD (I12).
        assert made.add("meanwhile").ok
        assert made.delete("meanwhile").ok
        made.node.start_containerd(DIRECTORIES[version])
        back_s = wait_until(lambda: runtime_view(made)["reachable"], what="known to be back", timeout_s=15)
        log.info("containerd %s: known to be away after %.2f s, back %.2f s after it served", version, away_s, back_s)
        if version == "1.7":
            wait_until(lambda: runtime_view(made)["events"], what="events again")
        assert made.log_tail(200).count("no events: ") == (1 if version == "1.6" else 0)
        assert runtime_view(made)["sandbox_count"] == 2
        assert set(made.attachments()) == ids
        for sandbox in ids:
            made.node.cri.remove(sandbox)
        made.assert_sound(expected=0)
