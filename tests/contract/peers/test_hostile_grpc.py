"""Everybody whom the daemon asks over gRPC, hostile: the network policy agent, kubelet, the runtime and its stream of events.

Each question ends at its time with a typed error in words that are safe to print, memory has a bound, and nothing but our own lines
comes into the log.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from tests.contract.peers.asking import CLIENTS
from tests.contract.peers.hostile_grpc import BEHAVIOURS, hostile_peer
from tests.patience import PATIENCE_S

ROOT = Path(__file__).parents[3]
GROWTH_MIB = 40.0
"""An honest peer takes 10 MiB. Repeating calls by itself, grpcio grew by 100 MiB a second."""
GROWTH_OF_MIB = {"a header block without end": 80.0}
"""grpcio keeps the frames of a header block until the call ends: 14 to 37 MiB, the more the busier the machine is."""

FLOODS_TO_ANSWER = ("pings without end", "settings without end")
"""HTTP/2 demands an answer to each of their frames."""

GOAWAYS = ("goaway at once", "goaway for the call", "goaway: enhance your calm, with escapes")


def asked(client: str, folder: Path, names: tuple[str, ...], *, seconds: float) -> dict[str, dict[str, Any]]:
    """Have one process ask a peer of each behaviour. Returns: what it reports, by the behaviour's name."""
    with ExitStack() as stack:
        sockets = []
        for number, name in enumerate(names):
            sockets.append(str(folder / f"{number}.sock"))
            stack.enter_context(hostile_peer(sockets[-1], BEHAVIOURS[name]))
        done = subprocess.run(
            [sys.executable, "-m", "tests.contract.peers.asking", client, str(seconds), *sockets],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=len(names) * (seconds + PATIENCE_S),
            check=False,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    for line in done.stderr.splitlines():
        assert isinstance(json.loads(line), dict), "every line of the log is ours"
    return dict(zip(names, map(json.loads, done.stdout.splitlines()), strict=True))


def judge(reports: dict[str, dict[str, Any]]) -> None:
    """What holds of each."""
    before_mib = 0.0
    for name, report in reports.items():
        assert report["answer"].isprintable(), name
        assert len(report["answer"]) < 2000, name
        assert report["growth_mib"] - before_mib < GROWTH_OF_MIB.get(name, GROWTH_MIB), f"{name}: {report}"
        before_mib = report["growth_mib"]


@pytest.mark.parametrize("client", CLIENTS)
def test_goaways_take_no_memory_and_write_no_log(tmp_path: Path, client: str) -> None:
    """A peer that says farewell to every connection, with text that a terminal would obey."""
    reports = asked(client, tmp_path, GOAWAYS, seconds=0.5)
    judge(reports)
    for name, report in reports.items():
        assert not report["answer"].startswith("answered: []"), f"{name} is no answer: {report}"


@pytest.mark.parametrize("client", CLIENTS)
def test_calls_to_a_peer_that_does_not_read_end(tmp_path: Path, client: str) -> None:
    """A flood of PINGs, or of SETTINGS, fills both directions of a connection: grpcio would complete no second call of it."""
    reports = asked(client, tmp_path, FLOODS_TO_ANSWER, seconds=2.0)
    judge(reports)
    for name, report in reports.items():
        assert report["count"] > 1, f"{name}: one call proves nothing"


@pytest.mark.slow
@pytest.mark.parametrize("client", CLIENTS)
def test_no_behaviour_takes_memory_or_writes_log(tmp_path: Path, client: str) -> None:
    """GOAWAY, resets, floods, headers and messages without an end."""
    judge(asked(client, tmp_path, tuple(BEHAVIOURS), seconds=0.3))
