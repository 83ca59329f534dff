"""Restarts of the daemon, asked as kubelet asks: no condition of the node changes, and no pod needs a second try (I17)."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

import pytest

from bench.rolls import roll
from lab.node.kubelet import KubeletLike
from tests.patience import PATIENCE_S
from tests.rig import RUN_DIR, Rig, rig, wait_until

pytestmark = pytest.mark.privileged

POOL = {"MINIMUM_IP_TARGET": "12", "WARM_IP_TARGET": "1", "IP_COOLDOWN_PERIOD": "2"}


@pytest.mark.slow
def test_restarts_are_not_noticed() -> None:
    """SIGTERM and kill -9 with the socket away for 3 s: every STATUS succeeds, and every ADD at its first call."""
    with rig(is_executed=True, env=POOL) as made:
        with KubeletLike(made.node) as kubelet:
            wait_until(lambda: bool(kubelet.of("ADD")), what="the node lives")
            absences = [roll(made.driver, number, rest_s=1.0) for number in range(3)]
        failed = [call for call in kubelet.calls if not call.is_ok]
        assert failed == []
        assert min(absences) >= 3
        assert len(kubelet.of("STATUS")) >= 2
        longest = max(call.seconds for call in kubelet.of("ADD"))
        assert longest > 1, "an ADD came while the daemon was away"
        made.assert_sound(expected=0)


def test_the_mark_is_of_service_not_of_life() -> None:
    """It is left once the daemon is ready and not by one that cannot become so; it is 0600, and moves on while the daemon serves."""
    with rig(is_executed=True, start=False) as made:
        made.lab.faults.apply(
            {"apis": {"DescribeNetworkInterfaces": {"error": {"code": "UnauthorizedOperation", "message": "no"}}}}
        )
        made.start(wait=False)
        mark = Path(made.node.root + RUN_DIR + "/served")
        made.driver.wait_until(lambda: made.status() is not None, what="alive", timeout_s=PATIENCE_S)
        assert not mark.exists()
        made.lab.faults.clear()
        made.wait_ready(60)
        wait_until(mark.exists, what="the mark")
        assert mark.stat().st_mode & 0o777 == 0o600
        first = mark.read_text()
        wait_until(lambda: mark.read_text() != first, what="it moves on")
        made.driver.end(signal.SIGTERM, timeout_s=PATIENCE_S)
        assert status(made) == 0
        mark.unlink()
        assert status(made) == 50


def status(made: Rig) -> int:
    """The code of a STATUS; 0 is success."""
    return made.cni("STATUS", "", netns="", version="1.1.0").code


def test_a_crash_loop_shows() -> None:
    """A daemon that dies while it starts, again and again, is not passed over for ever: its own patience counts too."""
    with rig(is_executed=True) as made:
        mark = Path(made.node.root + RUN_DIR + "/served")
        wait_until(mark.exists, what="the mark, which comes after ready")
        made.kill()
        boot_id, served_ms = mark.read_text().split()
        mark.write_text(f"{boot_id}\n{int(served_ms) - 61_000}\n")
        assert status(made) == 50
        made.start()
        wait_until(lambda: status(made) == 0, what="a daemon that serves again says so")


@pytest.mark.parametrize("is_interpreted", [False, True], ids=["static", "interpreted"])
def test_a_daemon_that_is_stopped_is_late_not_gone(is_interpreted: bool) -> None:
    """SIGSTOP: its socket takes connections and nobody answers. STATUS says yes for a minute after its last mark, and then 50."""
    with rig(is_executed=True) as made:
        made.driver.install_plugin(is_interpreted=is_interpreted)
        mark = Path(made.node.root + RUN_DIR + "/served")
        wait_until(mark.exists, what="the mark, which comes after ready")
        daemon = made.daemon
        assert daemon is not None
        daemon.send_signal(signal.SIGSTOP)
        try:
            assert status(made) == 0
            boot_id, served_ms = mark.read_text().split()
            mark.write_text(f"{boot_id}\n{int(served_ms) - 61_000}\n")
            assert status(made) == 50
        finally:
            daemon.send_signal(signal.SIGCONT)
        wait_until(lambda: status(made) == 0, what="its own answer")


KUBELET = """
import socket, time, urllib.error, urllib.request
until = time.monotonic() + 60
while time.monotonic() < until:
    try: socket.create_connection(("127.0.0.1", 61677)).close()
    except ConnectionRefusedError: time.sleep(0.01)
    else: break
for path in "healthz", "readyz":
    try: print(urllib.request.urlopen("http://127.0.0.1:61677/" + path, timeout=120).status)
    except (OSError, urllib.error.HTTPError) as error: print(error)
"""
"""Asks as kubelet does, its first question as soon as it is taken at all."""


def test_no_probe_of_a_start_fails() -> None:
    """A failed probe is a Warning event: of the first start and of a restart each is answered with success, once it is so."""
    with rig(is_executed=True, start=False) as made:
        for _ in range(2):
            asking = made.node.spawn(["sh", "-c", f"exec {sys.executable} -c '{KUBELET}' >/var/log/kubelet-asked 2>&1"])
            made.start()
            asking.wait(PATIENCE_S)
            assert made.node.run(["cat", "/var/log/kubelet-asked"]).stdout.split() == ["200", "200"]
            made.kill()


def test_probes_are_answered_by_a_real_daemon() -> None:
    """On loopback, and beside the metrics; ready only when the daemon is, and only where there is a page."""

    def page(made: Rig, where: str) -> int:
        status, _ = made.page(f"http://127.0.0.1:{where}")
        return status

    with rig(is_executed=True, env={"VPC_IPAMD_METRICS_ADDRESS": ":61678"}) as made:
        for port in (61677, 61678):
            assert [page(made, f"{port}{path}") for path in ("/healthz", "/readyz", "/x")] == [200, 200, 404]
        assert page(made, "61678/metrics") == 200
        assert page(made, "61677/metrics") == 404
