"""The daemon freezes by each of its sources, over its real socket, files, metadata and signals, and says so."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from ipamd.ipamctl import main as ipamctl
from ipamd.model.freeze import FreezeCause
from tests.rig import RUN_DIR, Rig, rig, wait_until

pytestmark = pytest.mark.privileged


def causes(made: Rig) -> dict[str, str]:
    """Cause -> reason, as status names them; every one has a time."""
    status = made.status()
    assert status is not None
    assert all(one["since"].endswith("Z") for one in status["freezes"])
    assert ("frozen: " in str(status["degraded"])) == bool(status["freezes"])
    return {one["cause"]: one["reason"] for one in status["freezes"]}


def ctl(made: Rig, *words: str) -> int:
    """Run `ipamctl` on the node's socket."""
    return ipamctl.main(["--socket", f"{made.node.root}{RUN_DIR}/ipamd.sock", *words])


def eni_count(made: Rig) -> int:
    """ENIs of the node at EC2."""
    return len(made.lab.vpc.enis_of(made.node.instance_id))


def test_operators_freeze_and_thaw(capsys: pytest.CaptureFixture[str]) -> None:
    """No ENI is made while frozen, a killed daemon is frozen again after its restart, and a thaw lets the pool grow."""
    with rig(env={"WARM_IP_TARGET": "2", "MINIMUM_IP_TARGET": "0"}) as made:
        assert ctl(made, "freeze", "--reason", "maintenance\x1b[1m") == 0
        assert "operator: maintenance\\x1b[1m" in capsys.readouterr().out
        made.restart()
        assert causes(made) == {FreezeCause.OPERATOR: "maintenance\\x1b[1m"}
        for number in range(9):
            assert made.add(f"s{number}").ok
        refused = made.add("tenth")
        assert refused.code == 11
        assert "operator: maintenance" in str(refused.body)
        assert eni_count(made) == 1
        assert ctl(made, "thaw") == 0
        assert capsys.readouterr().out.strip() == "thawed"
        wait_until(lambda: eni_count(made) == 2, what="the pool grows again")
        assert causes(made) == {}
        assert made.cni("ADD", "tenth").ok
        made.restart()
        assert causes(made) == {}
        made.assert_sound(expected=10)


def test_a_drain_hook_and_metadata_and_the_end() -> None:
    """A file, a notice that is there at the start, and SIGTERM: each is shown, and each ends alone."""
    with rig(start=False, env={"VPC_IPAMD_DRAIN_SECONDS": "30"}) as made:
        made.lab.vpc.hands.announce(made.node.instance_id, rebalance_at="2026-11-21T08:22:00Z")
        made.start()
        assert set(causes(made)) == {FreezeCause.REBALANCE}
        hook = Path(f"{made.node.root}{RUN_DIR}/hooks/freeze")
        hook.write_text("kubectl drain\n")
        wait_until(lambda: causes(made).get(FreezeCause.DRAIN_HOOK) == "kubectl drain", what="the file is noticed")
        assert made.daemon is not None
        made.daemon.send_signal(signal.SIGTERM)
        wait_until(lambda: FreezeCause.SHUTDOWN in causes(made), what="draining is a cause")
        assert causes(made)[FreezeCause.SHUTDOWN] == "SIGTERM"
        made.kill()
        hook.unlink()
        made.lab.vpc.hands.announce(made.node.instance_id)
        made.start()
        assert causes(made) == {}
        made.assert_sound(expected=0)


def test_metrics_name_every_cause() -> None:
    """One series for each cause, whatever is in force."""
    with rig(env={"VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:61678"}) as made:
        assert ctl(made, "freeze") == 0
        _, page = made.page("http://127.0.0.1:61678/metrics")
        lines = sorted(line for line in page.splitlines() if line.startswith("ipamd_pool_frozen{"))
        assert lines == sorted(
            f'ipamd_pool_frozen{{cause="{cause}"}} {float(cause is FreezeCause.OPERATOR)}' for cause in FreezeCause
        )
