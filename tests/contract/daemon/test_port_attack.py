"""A pod that uses up the metrics port uses up nothing else (I16): no ADD or DEL is refused, scrapes and probes are answered."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import pytest

from lab.node.node import REPOSITORY
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]

PORT = 61678
HELD, PER_SECOND, SECONDS = 1000, 200, 8
THREADS_MORE_MAX = 12
"""Threads that CNI requests and grpc may add meanwhile; one for each connection would be a thousand."""

LOG_BYTES_MAX = 200_000


def scrape(made: Rig, host: str) -> str:
    """The page, read from the node."""
    _, text = made.page(f"http://{host}:{PORT}/metrics", timeout_s=5)
    return text


def test_an_attack_from_a_pod_refuses_nobody() -> None:
    """1,000 connections held and 200 new a second, on a node whose daemon may have 1,024 descriptors."""
    with rig(env={"VPC_IPAMD_METRICS_ADDRESS": f":{PORT}"}) as made:
        assert made.daemon is not None
        pid = made.daemon.pid
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (1024, 1024))
        assert made.add("attacker").ok
        threads_before, log_before = len(os.listdir(f"/proc/{pid}/task")), len(made.driver.log_text())
        host = str(made.lab.vpc.enis_of(made.node.instance_id)[0].primary_address)
        words = ["--held", str(HELD), "--per-second", str(PER_SECOND), "--seconds", str(SECONDS)]
        said = Path(made.node.root + "/run/attack.out")
        with said.open("wb") as out:
            argv = [sys.executable, "-m", "bench.port_attack", host, str(PORT), *words]
            attack = made.node.spawn(argv, cwd=str(REPOSITORY), stdout=out, stderr=out, netns="/run/netns/attacker")
        wait_until(lambda: said.read_text().startswith("attacking"), what="connections held", timeout_s=PATIENCE_S)
        pods, began = 0, time.monotonic()
        while attack.poll() is None and time.monotonic() - began < PATIENCE_S:
            assert made.add(f"pod-{pods}").ok
            assert made.delete(f"pod-{pods}").ok
            assert "ipamd_ready 1.0" in scrape(made, host)
            pods += 1
        assert attack.wait(PATIENCE_S) == 0
        assert int(said.read_text().split()[1]) >= PER_SECOND * SECONDS / 2, "it was an attack"
        assert pods > 0
        assert made.driver.ipamctl("status").returncode == 0, "the kubelet's probe"
        assert "ipamd_ready 1.0" in scrape(made, "127.0.0.1")
        refused = [line for line in scrape(made, host).splitlines() if "refused_connections_total{" in line]
        assert sum(float(line.split()[1]) for line in refused) > HELD / 2, refused
        assert len(os.listdir(f"/proc/{pid}/task")) <= threads_before + THREADS_MORE_MAX
        assert len(made.driver.log_text()) - log_before < LOG_BYTES_MAX
        made.assert_sound(expected=1)
