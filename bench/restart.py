"""`restart_first_*`: the time from a kill -9 of a daemon with 110 sandboxes, until the next daemon, which is started at once, has
served a DEL and an ADD. `restart_plugin_add`: the time until an ADD by the plugin is done that was started right after the kill.

The time begins with the kill, so it includes the end of the old process and the start of the interpreter. EC2 has the delays of
`cold`. Budgets grow with the machine's slowness (`figures`), because most of the time is the interpreter's start. The reference is the
part that no restart can avoid: an interpreter that imports the daemon's modules.
"""

from __future__ import annotations

import sys
import time

from bench import plugin_exec
from bench.cold import SANDBOX_COUNT
from bench.figures import Figure, slowness
from bench.plugin import PYTHON
from bench.samples import median, spread
from bench.scale import Scale
from bench.stage import IMPORTS, ONEFILE_PATH, Stage, plugin_label
from lab.node.daemon import PLUGIN_PATH
from lab.node.node import REPOSITORY

DEADLINE_S = 30.0
AWAY: dict[str, object] = {"unreachable": {"ec2": "hang"}}
PRESENT: dict[str, object] = {"unreachable": {"ec2": None}}


def measure(stage: Stage, scale: Scale, attached: list[str]) -> list[Figure]:
    """Restart several times. Each round deletes an attached sandbox and adds a new one, so that their number stays.

    Args:
        attached: container IDs of attached sandboxes, at least one more than there are rounds.
    """
    served: dict[str, list[float]] = {"DEL": [], "ADD": []}
    floors = []
    for number in range(scale.restart_rounds):
        for verb, seconds in one_round(stage, number, attached[number]).items():
            served[verb].append(seconds)
        stage.wait_ready()
        floors.append(_floor_s(stage))
    commands = {"bare": plugin_exec.bare_interpreter(PYTHON)}
    bare = plugin_exec.medians_ms(commands, environment={}, rounds=scale.exec_rounds)["bare"]
    figures = [
        Figure(
            f"restart_first_{verb.lower()}",
            median(times),
            "s",
            median(floors),
            "interpreter and imports alone",
            scale.restart_rounds,
            f"{spread(times)}; {SANDBOX_COUNT} sandboxes; bare interpreter {bare:.1f} ms",
            slowness(bare),
        )
        for verb, times in served.items()
    ]
    through = _through_the_plugin(stage, scale.restart_rounds, slow=slowness(bare))
    return [*figures, through, _without_ec2(stage, scale.restart_rounds, attached[scale.restart_rounds])]


def _through_the_plugin(stage: Stage, rounds: int, *, slow: float) -> Figure:
    """Measure ADDs that the plugin starts right after a kill, so that it waits for the next daemon as on a real node."""
    path = ONEFILE_PATH if ONEFILE_PATH in stage.plugins else PLUGIN_PATH
    times = []
    for number in range(rounds):
        killed_at = stage.daemon.restart()
        ids = stage.job("attach", path=path, count=1, tag=f"killed-{number}")
        times.append(time.monotonic() - killed_at)
        stage.job("detach", path=path, ids=ids)
        stage.wait_ready()
    note = f"{spread(times)}; {plugin_label(path)} plugin"
    return Figure("restart_plugin_add", median(times), "s", sample_count=rounds, note=note, slowness=slow)


def _without_ec2(stage: Stage, number: int, delete_id: str) -> Figure:
    """Measure a restart while EC2 accepts connections and does not answer. A start needs no EC2 to serve ADD (docs/life.md, Start)."""
    stage.wait_at_target()  # the last ADD took the address, and a daemon may be ready before EC2 has given another one
    stage.lab.faults.apply(AWAY)
    try:
        seconds = one_round(stage, number, delete_id)["ADD"]
    finally:
        stage.lab.faults.apply(PRESENT)
    stage.wait_ready()
    return Figure("restart_first_add_ec2_away", seconds, "s", note="EC2 hangs; the pool has an address")


def one_round(stage: Stage, number: int, delete_id: str) -> dict[str, float]:
    """Kill and start the daemon. Returns: verb -> seconds from the kill until it was served."""
    killed_at = stage.daemon.restart()  # it returns when the old process has ended, so only the new one can serve
    add_id = f"restart-{number}-".ljust(64, "0")
    answer = stage.job("first_served", delete_id=delete_id, add_id=add_id, deadline_s=DEADLINE_S)
    return {verb: at - killed_at for verb, at in answer.items()}


def _floor_s(stage: Stage) -> float:
    started = time.monotonic()
    script = f"{IMPORTS}\nimport os\nos._exit(0)"  # without the interpreter's orderly end, which is not part of a daemon's start
    stage.node.run([sys.executable, "-c", script], cwd=str(REPOSITORY))
    return time.monotonic() - started
