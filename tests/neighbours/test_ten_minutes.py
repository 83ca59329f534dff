"""Ten minutes beside the real systemd-networkd, which is reloaded and restarted all the time: `make neighbours` runs it.

What was lost and for how long goes into build/beside-networkd.json; docs/beside.md has the last result.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator

import pytest

from lab.node.neighbour import DEBIAN_ROOT
from lab.node.neighbours import BARE_NETWORKD, KINDS, Kind
from lab.node.node import REPOSITORY
from lab.node.route_watch import Loss, RouteWatch, routes_and_rules
from tests.lab.packets.ground import Ground
from tests.neighbours.beside import NODE, beside, come_and_go, is_ours, two_nodes, wait_for_packets
from tests.rig import wait_until

pytestmark = [
    pytest.mark.privileged,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        os.environ.get("VPC_IPAMD_NEIGHBOURS") != "1" or not DEBIAN_ROOT.exists(),
        reason="`make neighbours` runs these: it makes the Debian root that has networkd",
    ),
]

MINUTES = float(os.environ.get("VPC_IPAMD_NEIGHBOURS_MINUTES", "10"))
RELOADS_FOR_A_RESTART = 5
CLOCK_S = 10.0
"""Between two actions. amazon-ec2-net-utils refreshes once a minute; ours: six times as often."""

AWAY_MOST_S = 1.0
"""What the daemon promises for repairs that a notification causes."""

OUTPUT = REPOSITORY / "build" / "beside-networkd.json"


@pytest.fixture
def made() -> Iterator[Ground]:
    """Two nodes with sandboxes on both ENIs."""
    with two_nodes() as built:
        yield built


def test_with_the_files_of_eks(made: Ground) -> None:
    """Nothing of ours is lost at all."""
    assert work(made, "networkd of EKS", KINDS["networkd of EKS"]) == []


def test_without_any_file(made: Ground) -> None:
    """networkd's defaults remove rules of others: ours are back within a second each time, and packets pass.

    It acts on a clock, as amazon-ec2-net-utils does: what undoes a repair within 5 s is left for a pause (docs/adr/0023).
    """
    losses = work(made, "networkd's defaults", BARE_NETWORKD, pause_s=CLOCK_S)
    assert losses != [], "networkd left all alone: this test shows nothing"
    assert [loss for loss in losses if loss.seconds is None or loss.seconds > AWAY_MOST_S] == []


def work(made: Ground, name: str, kind: Kind, *, pause_s: float = 0.0) -> list[Loss]:
    """Reload and restart it until the time is over, with pods coming and going; write the result down.

    Args:
        pause_s: between two of these.
    Returns: what was lost.
    """
    node = made.rigs[NODE].node
    reloads = restarts = pods = 0
    with beside(made, kind) as neighbour:
        wait_for_packets(made, "at the beginning")
        ours = {line for line in routes_and_rules(node) if is_ours(line)}
        end = time.monotonic() + 60 * MINUTES
        with RouteWatch(node) as watch:
            while time.monotonic() < end:
                for _ in range(RELOADS_FOR_A_RESTART):
                    for command in kind.reload:
                        neighbour.run(*command)
                    reloads += 1
                    wait_for_packets(made, f"after reload {reloads}")
                    come_and_go(made, f"after reload {reloads}")
                    pods += 1
                    time.sleep(pause_s)
                neighbour.restart()
                restarts += 1
                wait_until(lambda: kind.is_ready(neighbour), what=f"networkd is ready after restart {restarts}")
                wait_for_packets(made, f"after restart {restarts}")
                time.sleep(pause_s)
            wait_until(lambda: all(loss.seconds is not None for loss in watch.losses(ours)), what="all is back")
            losses = watch.losses(ours)
    record(name, {"reloads": reloads, "restarts": restarts, "pods": pods}, losses)
    return losses


def record(name: str, counts: dict[str, int], losses: list[Loss]) -> None:
    """Add one run to build/beside-networkd.json."""
    runs = json.loads(OUTPUT.read_text()) if OUTPUT.exists() else {}
    longest = max((loss.seconds or 0.0 for loss in losses), default=0.0)
    runs[name] = {"minutes": MINUTES, **counts, "lost": len(losses), "longest_away_s": round(longest, 3)}
    OUTPUT.write_text(json.dumps(runs, indent=2) + "\n")
