"""`add_*_to_ipv4`, `del_*_to_ipv4`, `ipv6_*`: a node whose sandboxes have IPv6, with and without IPv4 egress, compared with a node
whose sandboxes have IPv4; a restart with IPv6; and the memory of a /80 prefix.

The three nodes, each with its own daemon and kernel objects and RESIDENTS sandboxes, are called in turn in blocks with a pause after
every call. So cold calls of the same minute are compared: the whole call if the one-file plugin is built, otherwise the daemon's part.
A restart is as in `restart`, but with MANY sandboxes. The memory of a prefix is measured in this process: the memory that the
datastore allocates for one prefix with RESIDENTS sandboxes.
"""

from __future__ import annotations

import gc
import tempfile
import tracemalloc
from contextlib import ExitStack
from pathlib import Path

from bench import full_node, plugin_exec, restart
from bench.crowded import BLOCKS, block
from bench.figures import Figure, slowness
from bench.plugin import PYTHON
from bench.samples import median, spread
from bench.scale import Scale
from bench.stage import ONEFILE_PATH, Stage
from bench.whole import SETTLE_S
from ipamd.model import family
from lab.node.daemon import PLUGIN_PATH
from lab.vpc.family import IPV6

RESIDENTS, MANY, WEIGHINGS = 10, 700, 9
INSTANCE_TYPE = "c5.18xlarge"
NODES = {
    "ipv4": {"ENABLE_PREFIX_DELEGATION": "true", "WARM_PREFIX_TARGET": "8", "IP_COOLDOWN_PERIOD": "1"},
    "ipv6": {**IPV6.settings, "ENABLE_V4_EGRESS": "false"},
    "egress": IPV6.settings,
}
"""Node -> settings. All sandboxes are on the first ENI. The IPv4 node has enough addresses for all sandboxes that come within a
cooldown."""


def measure(scale: Scale) -> list[Figure]:
    """Make the three measurements."""
    return [*_calls(scale), *_restarts(scale), _prefix_in_memory()]


def _calls(scale: Scale) -> list[Figure]:
    samples: dict[str, dict[str, list[float]]] = {name: {"ADD": [], "DEL": []} for name in NODES}
    with ExitStack() as stack:
        stages: dict[str, Stage] = {}
        for name, settings in NODES.items():
            stage = stages[name] = stack.enter_context(
                Stage(name=f"bench-{name}", instance_type=INSTANCE_TYPE, daemon_env=settings)
            )
            path = ONEFILE_PATH if ONEFILE_PATH in stage.plugins else PLUGIN_PATH
            stage.job("attach", path=PLUGIN_PATH, count=RESIDENTS, tag="resident")
            block(stage, path, rounds=2, tag="warm-up")
        names = list(NODES)
        for number in range(BLOCKS):
            turn = number % len(names)
            for name in names[turn:] + names[:turn]:
                block_times = block(stages[name], path, rounds=scale.whole_rounds // BLOCKS, tag=f"block-{number}")
                for verb, times in block_times.items():
                    samples[name][verb] += times
    what = "whole call" if path == ONEFILE_PATH else "the daemon's part"
    return [
        _ratio(f"{verb.lower()}_{name}_to_ipv4", samples[name][verb], samples["ipv4"][verb], what)
        for name in ("ipv6", "egress")
        for verb in ("ADD", "DEL")
    ]


def _ratio(name: str, samples: list[float], ipv4: list[float], what: str) -> Figure:
    one, other = median(samples), median(ipv4)
    note = f"{what}: {one:.2f} ms, {other:.2f} ms of IPv4; {SETTLE_S * 1000:.0f} ms between calls"
    return Figure(name, one / other, "x", None, "", len(samples), note)


def _restarts(scale: Scale) -> list[Figure]:
    """Measure restarts of a daemon whose sandboxes have IPv6 and egress, which is the default with IPv6. Each round deletes a sandbox
    and adds one."""
    served: dict[str, list[float]] = {"DEL": [], "ADD": []}
    with Stage(name="bench-restart-6", instance_type=INSTANCE_TYPE, daemon_env=NODES["egress"]) as stage:
        ids = stage.job("attach", path=PLUGIN_PATH, count=MANY, tag="resident")
        stage.wait_ready()
        for number in range(scale.restart_rounds):
            for verb, seconds in restart.one_round(stage, number, ids[number]).items():
                served[verb].append(seconds)
            stage.wait_ready()
    commands = {"bare": plugin_exec.bare_interpreter(PYTHON)}
    bare = plugin_exec.medians_ms(commands, environment={}, rounds=scale.exec_rounds)["bare"]
    note = f"{MANY} sandboxes with egress; bare interpreter {bare:.1f} ms"
    return [
        Figure(
            f"ipv6_restart_first_{verb.lower()}",
            median(times),
            "s",
            sample_count=scale.restart_rounds,
            note=f"{spread(times)}; {note}",
            slowness=slowness(bare),
        )
        for verb, times in served.items()
    ]


def _prefix_in_memory() -> Figure:
    """Measure how much more memory a datastore with one prefix and RESIDENTS sandboxes allocates than an empty one."""
    with tempfile.TemporaryDirectory(dir="/run") as directory:
        weights: dict[family.Family, list[float]] = {family.IPV4: [], family.IPV6: []}
        tracemalloc.start()
        try:
            for number in range(1 + WEIGHINGS):
                for ip_family, kib in weights.items():
                    path = Path(directory) / f"{ip_family.nft}-{number}"
                    empty, full = (_weight_kib(path / f"{count}", count, ip_family) for count in (0, 1))
                    kib.append(full - empty)
        finally:
            tracemalloc.stop()
    # Without the first weighings, in which SQL statements are compiled and cached.
    large, small = (median(weights[ip_family][1:]) for ip_family in (family.IPV6, family.IPV4))
    note = f"a /80 with {RESIDENTS} sandboxes, in process"
    return Figure("ipv6_prefix_memory", large, "KiB", small, "a /28", WEIGHINGS, note)


def _weight_kib(folder: Path, prefix_count: int, one: family.Family) -> float:
    gc.collect()
    before, _ = tracemalloc.get_traced_memory()
    node = full_node.Node(folder / "state.db", 1, prefix_count, prefix_count * RESIDENTS, one)
    gc.collect()
    after, _ = tracemalloc.get_traced_memory()
    node.close()
    return (after - before) / 1024
