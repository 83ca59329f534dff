"""`plugin_exec_*`: the time of `vpc-cni` from exec to exit, with a daemon that answers at once. The reference is a process that does
nothing."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bench import plugin_exec
from bench.figures import Figure
from bench.samples import median
from bench.scale import Scale
from cni_plugin import build
from lab.node.plugin import onefile

PYTHON = Path("/usr/bin/python3")
"""The interpreter of the lab's nodes."""

LOOPBACK = "/usr/lib/cni/loopback"
BLOCKS = 4
"""The one-file plugin and its reference are measured in turn in so many blocks. Ours: enough that other load of the machine affects
both alike."""


def measure(scale: Scale) -> list[Figure]:
    """Measure the interpreted plugin, and the one-file plugin if it is built."""
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        plugin = Path(folder) / "vpc-cni"
        build.build(PYTHON, plugin)
        medians = plugin_exec.measure_plugin(plugin, python=PYTHON, rounds=scale.exec_rounds)
    figures = [
        Figure(
            "plugin_exec_interpreted",
            medians["plugin"],
            "ms",
            medians["bare"],
            "bare interpreter, -I -S -c pass",
            scale.exec_rounds,
        )
    ]
    static = onefile()
    return figures + (_onefile(static, scale) if static is not None else [])


def _onefile(static: Path, scale: Scale) -> list[Figure]:
    ours, bare = [], []
    for _ in range(BLOCKS):
        rounds = scale.exec_rounds // BLOCKS
        ours.append(plugin_exec.measure_plugin(static, python=PYTHON, rounds=rounds)["plugin"])
        environment = {"CNI_COMMAND": "VERSION"}
        bare.append(plugin_exec.medians_ms({"go": [LOOPBACK]}, environment=environment, rounds=rounds)["go"])
    return [Figure("plugin_exec_onefile", median(ours), "ms", median(bare), "Go `loopback`, VERSION", scale.exec_rounds)]
