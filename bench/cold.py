"""`start_ready_cold`: the time from the exec of a daemon without a datastore until it is ready. `cold_pool_110`: the time for 110
sandboxes at once on a node with one spare address. Both are compared with the time that EC2 itself takes.

The lab's EC2 answers each call after LATENCY_S and attaches an ENI after ATTACH_S. The critical path is the time in which at least one
of these waits was under way, by the lab's call log; the rest of the measured time is the daemon's. The critical path does not show
whether another order of calls would be faster, so `note` lists the calls.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.figures import Figure
from bench.samples import covered
from bench.stage import Stage
from lab.node.daemon import PLUGIN_PATH
from lab.vpc.calls import Call
from lab.vpc.interfaces import Delays

LATENCY_S = 0.125
"""Time of each EC2 call. Ours: the middle of EC2's usual 50 to 200 ms. It does not vary, so that the critical path can be computed."""

ATTACH_S = 2.0
"""Time from AttachNetworkInterface until the interface is in the instance. Ours: within the 1 to 5 s that operators of
amazon-vpc-cni-k8s report."""

SANDBOX_COUNT = 110
STORM_DEADLINE_S = 90.0
INSTANCE_TYPE = "m5.4xlarge"
"""The smallest of the lab's instance types that has addresses for 110 sandboxes: 8 ENIs x 29 addresses."""


@dataclass(frozen=True)
class Storm:
    """The start of a daemon, and the ADD of SANDBOX_COUNT sandboxes at once.

    started, ended: monotonic times in s of the first exec and of the last success.
    refusals: number of ADDs that were refused and repeated.
    calls: EC2 calls of this time.
    ready_after_s: time from the daemon's exec until it was ready.
    ready_path_s: the critical path of that time.
    """

    started: float
    ended: float
    refusals: int
    calls: Sequence[Call]
    container_ids: list[str]
    ready_after_s: float
    ready_path_s: float

    @property
    def duration_s(self) -> float:
        """Seconds from the first exec until the last sandbox was attached."""
        return self.ended - self.started

    @property
    def critical_path_s(self) -> float:
        """EC2's part of `duration_s`."""
        return critical_path_s(self.calls, until=self.ended)


def open_stage() -> Stage:
    """Make the node: its pool keeps one spare address, and EC2 has delays."""
    return Stage(
        instance_type=INSTANCE_TYPE,
        daemon_env={"WARM_IP_TARGET": "1"},
        faults={"apis": {"*": {"latency_s": LATENCY_S}}},
        delays=Delays(attach_s=ATTACH_S),
    )


def bring_up(stage: Stage) -> Storm:
    """Read the times of the daemon's start, and attach the 110 sandboxes, which stay."""
    ready_after_s = stage.ready_after_s()
    ready_path_s = critical_path_s(stage.lab.vpc.calls(), until=stage.started_monotonic_s + ready_after_s)
    stage.lab.vpc.clear_calls()
    answer = stage.job("storm", path=PLUGIN_PATH, count=SANDBOX_COUNT, tag="storm", deadline_s=STORM_DEADLINE_S)
    calls = [call for call in stage.lab.vpc.calls() if answer["started"] <= call.at <= answer["ended"]]
    return Storm(answer["started"], answer["ended"], answer["refusals"], calls, answer["ids"], ready_after_s, ready_path_s)


def measure(storms: Sequence[Storm]) -> list[Figure]:
    """Compare each duration with EC2's part, and report the middle ones. They differ, because the
    waits for an attachment have a random part."""
    ordered = sorted(storms, key=lambda storm: storm.duration_s / storm.critical_path_s)
    middle = ordered[len(ordered) // 2]
    ratios = ", ".join(f"{storm.duration_s / storm.critical_path_s:.2f}" for storm in ordered)
    counts = Counter(call.api for call in middle.calls)
    made = ", ".join(f"{count} {api}" for api, count in sorted(counts.items()))
    note = f"ratios {ratios}; {made}; {middle.refusals} ADDs refused and retried"
    cold = Figure("cold_pool_110", middle.duration_s, "s", middle.critical_path_s, "EC2's waits", len(storms), note)
    starts = sorted(storms, key=lambda storm: storm.ready_after_s - storm.ready_path_s)
    start, spare = starts[len(starts) // 2], [f"{storm.ready_after_s - storm.ready_path_s:.2f}" for storm in starts]
    note = f"above EC2's: {', '.join(spare)} s; the pool is filled meanwhile"
    ready = Figure("start_ready_cold", start.ready_after_s, "s", start.ready_path_s, "EC2's answers", len(storms), note)
    return [cold, ready]


def critical_path_s(calls: Sequence[Call], *, until: float) -> float:
    """Return the seconds in which at least one call or attachment was under way, up to the time `until`."""
    waits = []
    for call in calls:
        wait_s = LATENCY_S + (ATTACH_S if call.api == "AttachNetworkInterface" and call.outcome == "OK" else 0.0)
        waits.append((call.at, min(call.at + wait_s, until)))
    return covered(waits)
