"""How quiet a node is: EC2 calls, counted in EC2's own call log, and log lines."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ipamd.eni.external_changes import REQUESTS_PER_TURN, TURN_S
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged


def test_an_eni_costs_four_calls() -> None:
    """Create with its addresses, attach, mark, verify: one call each, though the attachment takes its time (I13)."""
    with rig(attach_delay_s=0.5) as made:
        wait_until(lambda: made.pool()["free_count"] == 9, what="the primary ENI is full")
        before = dict(made.lab.vpc.call_counts())
        assert made.add("a").ok
        wait_until(lambda: made.pool()["total_count"] == 18, what="a second ENI")
        after = made.lab.vpc.call_counts()
        spent = {api: count - before.get(api, 0) for api, count in after.items() if count != before.get(api, 0)}
        assert spent == {
            "CreateNetworkInterface": 1,
            "AttachNetworkInterface": 1,
            "ModifyNetworkInterfaceAttribute": 1,
            "DescribeNetworkInterfaces": 1,
        }
        made.assert_sound(expected=1)


@pytest.mark.slow
def test_an_idle_daemon_asks_ec2_nothing_and_metadata_little() -> None:
    """I13: eight ENIs, and metadata is looked at: no EC2 call, at most ten requests to metadata in the minute.

    Real time is bounded by one turn; tests/unit/service/test_external_changes.py plays a day, with one ENI and with eight.
    """
    # Leaked ENIs are looked for once after a start, by chance within this minute or after it.
    settings = {"MINIMUM_IP_TARGET": str(8 * 29), "WARM_IP_TARGET": "0", "DISABLE_LEAKED_ENI_CLEANUP": "true"}
    with rig(instance_type="m5.4xlarge", env=settings) as made:
        wait_until(lambda: made.pool()["total_count"] == 8 * 29, what="eight full ENIs", timeout_s=TURN_S)
        imds = made.lab.imds["node-a"]
        calls, requests = dict(made.lab.vpc.call_counts()), imds.request_count
        wait_until(lambda: imds.request_count > requests, what="a turn of metadata", timeout_s=2 * TURN_S)
        seen = -1
        while seen != imds.request_count:  # until the turn is over
            seen = imds.request_count
            time.sleep(0.5)
        assert 3 <= seen - requests <= REQUESTS_PER_TURN
        assert dict(made.lab.vpc.call_counts()) == calls
        made.assert_sound(expected=0)


def test_an_idle_daemon_logs_nothing() -> None:
    """Row 6: kubelet's probes and the runtime's STATUS come and go, and the loops that wake every few seconds wake: no line.

    tests/heavy/test_idle_log.py watches for longer than the slowest loop, on a real runtime with sandboxes.
    """
    with rig(env={"VPC_IPAMD_HEALTH_ADDRESS": "127.0.0.1:61677"}) as made:
        assert made.add("a").ok
        wait_until(lambda: made.pool()["free_count"] >= 9, what="the pool is at its target")
        mark = made.driver.run_dir / "served"
        before = quiet_log(made, mark)
        for _ in range(5):
            assert made.cni("STATUS", "", netns="", version="1.1.0").ok
        assert probe(made, "/healthz", "/readyz") == [200, 200]
        seen = mark.read_text()
        wait_until(lambda: mark.read_text() != seen, what="maintenance has woken")
        assert made.driver.log_text()[len(before) :] == ""
        made.assert_sound(expected=1)


def quiet_log(made: Rig, mark: Path) -> str:
    """The log once nothing was added to it for a turn of maintenance: what the start and the first ADD still cause is over."""
    for _ in range(10):
        before, seen = made.driver.log_text(), mark.read_text()
        wait_until(lambda: mark.read_text() != seen, what="maintenance has woken")  # noqa: B023  # called before the next turn
        if made.driver.log_text() == before:
            return before
    raise AssertionError(f"the log does not come to rest:\n{made.log_tail(10)}")


def probe(made: Rig, *pages: str) -> list[int]:
    """Status codes of pages of the health port, asked inside the node."""
    return [made.page(f"http://127.0.0.1:61677{page}")[0] for page in pages]
