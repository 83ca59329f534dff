"""`ipamctl probe aws --run` on a node where the daemon serves: real links, real metadata, and a pool that is not disturbed."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from lab.node.node import REPOSITORY
from tests.rig import Rig, rig, wait_until

pytestmark = [pytest.mark.privileged, pytest.mark.slow]


def probe(made: Rig) -> dict[str, Any]:
    """Run it in the node with the daemon's own settings; returns its report."""
    done = made.node.run(
        [sys.executable, "-m", "ipamd.ipamctl.main", "-o", "json", "probe", "aws", "--run"],
        cwd=str(REPOSITORY),
        env=made.driver.environment,
        check=False,
        timeout_s=120,
    )
    assert done.stdout, done.stderr
    return dict(json.loads(done.stdout))


def test_a_probe_beside_the_daemon_leaves_pool_and_sandboxes_alone() -> None:
    """Every assumption holds here, links included; the daemon gives none of the probe's addresses, and nothing is left (I2, I9)."""
    with rig(instance_type="m5.xlarge", attach_delay_s=0.5, env={"MAX_ENI": "2"}) as made:
        assert made.add("a").ok
        wait_until(lambda: made.pool()["total_count"] == 28, what="both ENIs are full", timeout_s=120)
        before = set(made.lab.vpc.world.enis)
        for _ in range(6):  # what is to come within seconds does not on a busy machine
            report = probe(made)
            others = {check["name"]: check["verdict"] for check in report["checks"] if check["verdict"] != "holds"}
            if set(others.values()) == {"unknown"} and all(name.startswith("ipv6-prefix-") for name in others):
                break  # the subnet has no IPv6
        else:
            pytest.fail(f"six probes, and more than IPv6 is not known to hold: {report['checks']}")
        assert report["left_over"] == []
        assert set(made.lab.vpc.world.enis) == before
        assert made.pool()["total_count"] == 28
        assert made.add("b").ok
        made.assert_sound(expected=2)
