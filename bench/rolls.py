"""`roll_*`: failed and slow calls on a node whose daemon is restarted 20 times, while kubelet's and a runtime's calls come (I17).

SIGTERM and kill -9 alternate. The socket is away for 3 s and for the start of the next daemon. No STATUS may fail, because a failed
one makes the node NotReady. No ADD may fail, because its pod would wait for kubelet's next attempt.
"""

from __future__ import annotations

import signal
import time

from bench.figures import Figure
from bench.scale import Scale
from bench.stage import ONEFILE_PATH, BenchError, Stage
from lab.node.daemon import PLUGIN_PATH, Daemon
from lab.node.kubelet import Call, KubeletLike

AWAY_S = 3.0
REST_S = 2.0
"""Pause between two restarts, in which one sandbox is attached without a restart."""

END_S = 20.0
POOL = {"MINIMUM_IP_TARGET": "18", "WARM_IP_TARGET": "1", "IP_COOLDOWN_PERIOD": "5"}


def measure(scale: Scale) -> list[Figure]:
    """Restart the daemon of a node while calls come. Raises: BenchError if too few calls came for a result."""
    with Stage(instance_type="m5.large", daemon_env=POOL, name="rolls") as stage:
        path = ONEFILE_PATH if ONEFILE_PATH in stage.plugins else PLUGIN_PATH
        with KubeletLike(stage.node, plugin=path) as kubelet:
            time.sleep(REST_S)
            absences = [roll(stage.daemon, number) for number in range(scale.roll_count)]
            time.sleep(REST_S)
    return _figures(kubelet.of("STATUS"), kubelet.of("ADD"), absences)


def roll(daemon: Daemon, number: int, *, away_s: float = AWAY_S, rest_s: float = REST_S) -> float:
    """End the daemon, start it again after `away_s`, and let it serve for `rest_s`. Returns: the seconds in which its socket was
    away."""
    began = time.monotonic()
    daemon.end(signal.SIGKILL if number % 2 else signal.SIGTERM, timeout_s=END_S)
    time.sleep(away_s)
    daemon.start()
    daemon.wait_until(lambda: daemon.status() is not None, what="answering", timeout_s=END_S)
    seconds = time.monotonic() - began
    daemon.wait_ready()
    time.sleep(rest_s)
    return seconds


def _figures(statuses: list[Call], adds: list[Call], absences: list[float]) -> list[Figure]:
    if len(statuses) < len(absences) or len(adds) < len(absences):
        raise BenchError(f"{len(statuses)} STATUS and {len(adds)} ADD in {len(absences)} restarts say nothing")
    note = f"{len(absences)} restarts, the socket away for {min(absences):.1f} to {max(absences):.1f} s"
    failed = [call.output for call in (*statuses, *adds) if not call.is_ok]
    return [
        Figure("roll_status_failures", sum(not call.is_ok for call in statuses), "", sample_count=len(statuses), note=note),
        Figure("roll_add_failures", sum(not call.is_ok for call in adds), "", sample_count=len(adds), note="; ".join(failed[:2])),
        Figure("roll_add_max", max(call.seconds for call in adds), "s", max(absences), "longest absence", len(adds)),
    ]
