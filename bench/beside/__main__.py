"""`python -m bench.beside --theirs FOLDER`: compare our daemon, amazon-vpc-cni-k8s and `ptp` on this machine.

It prints a table and writes build/beside.json. FOLDER has the built programs of amazon-vpc-cni-k8s (`theirs.PROGRAMS`), which are not
in this repository. Each of the three *sides* is on a lab node of its own, with an EC2 of the same kind. All run at the same time, and
blocks of calls alternate, so that a slow minute of the machine affects all alike. Figures that cannot be measured are named under the
table with the reason, and the exit status is 1 then.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

from bench import machine, plugin
from bench.beside import sides, theirs
from bench.beside.pods import one_processor, pair_of
from bench.beside.rows import Row, table
from bench.beside.sides import NAMES, REFERENCE, THEIRS, Side
from bench.cold import ATTACH_S, LATENCY_S
from bench.memory import rss_mib
from bench.packets import Pair
from bench.stage import REFERENCE_PATH, BenchError
from bench.whole import SETTLE_S
from lab.lab import missing_requirements
from lab.node.errors import NodeError
from lab.vpc.interfaces import Delays

OUTPUT = Path("build/beside.json")
SIZES = (10, 110, 700)
LARGE_TYPE, COLD_TYPE = "c5.18xlarge", "m5.4xlarge"
LARGE_POOL = {"MINIMUM_IP_TARGET": "735", "WARM_IP_TARGET": "1", "IP_COOLDOWN_PERIOD": "1"}
"""Settings that both daemons have: all addresses of 15 ENIs are requested before, and freed addresses cool for 1 s only. So the
figures include neither growth of the pool nor waits for it."""

EC2 = {"faults": {"apis": {"*": {"latency_s": LATENCY_S}}}, "delays": Delays(attach_s=ATTACH_S)}
"""Arguments of a side for the cold start, with the delays of a real EC2."""

BURSTS, BURST_COUNT = 3, 100
BURST_SETTLE_S = 5.0
FIRST_ADD_DEADLINE_S = 120.0
TEXT_MAX = 1500
"""Most characters of a failure on standard error, because the last lines of a daemon's log may be long."""


@dataclass(frozen=True)
class Scale:
    """Numbers of samples: `blocks` of `calls` ADDs and DELs at each number of pods, rounds of packets, restarts, and cold starts."""

    blocks: int = 8
    calls: int = 10
    packet_rounds: int = 60
    restarts: int = 7
    cold_starts: int = 5


QUICK = Scale(blocks=2, calls=3, packet_rounds=4, restarts=1, cold_starts=1)


@dataclass
class Comparison:
    """Makes the measurements and has the rows so far. `programs`: FOLDER; None if it is not given. A side that fails in one
    measurement is used again in the next one."""

    scale: Scale
    programs: Path | None
    rows: dict[str, Row] = field(default_factory=dict)

    def all(self) -> None:
        """Measure everything."""
        with ExitStack() as stack:
            opened = [side for side in map(partial(self._opened, stack), self._large()) if side is not None]
            pods: dict[str, list[str]] = {side.name: [] for side in opened}
            for size in SIZES:
                self._calls(opened, pods, size)
                if size == SIZES[1]:
                    self._memory(opened)
                    self._restarts(opened)
            self._packets(opened, pods)
        self._cold_starts()

    def measure(
        self, found: Sequence[Side], units: Mapping[str, str], number: int, samples: Callable[[Side], Sequence[list[float]]]
    ) -> None:
        """Measure one block of each row in `units` on every side.

        Args:
            found: the sides.
            units: name of a row -> its unit.
            number: number of the block. The side that begins changes with it.
            samples: measures one side, and returns a block for each row, in the order of `units`.
        """
        turn = number % len(found) if found else 0
        for side in [*found[turn:], *found[:turn]]:
            if any(side.name in self._row(name, unit).missing for name, unit in units.items()):
                continue
            try:
                for (name, unit), block in zip(units.items(), samples(side), strict=True):
                    self._row(name, unit).add(side.name, block)
            except (BenchError, NodeError, OSError) as exc:
                self._missing(units, side.name, str(exc))

    def _row(self, name: str, unit: str) -> Row:
        return self.rows.setdefault(name, Row(name, unit))

    def _missing(self, units: Mapping[str, str], side: str, reason: str) -> None:
        _say(f"{side}: {reason[:TEXT_MAX]}")
        for name, unit in units.items():
            self._row(name, unit).missing[side] = reason.splitlines()[0]

    def _large(self) -> list[Callable[[], Side]]:
        made: list[Callable[[], Side]] = [partial(sides.ours, instance_type=LARGE_TYPE, settings=LARGE_POOL)]
        if self.programs is not None:
            made.append(partial(sides.theirs, self.programs, instance_type=LARGE_TYPE, settings=LARGE_POOL))
        if Path(REFERENCE_PATH).exists():
            made.append(partial(sides.reference, instance_type=LARGE_TYPE))
        return made

    def _opened(self, stack: ExitStack, make: Callable[[], Side]) -> Side | None:
        side = make()
        try:
            stack.enter_context(side)
            side.start()
            side.wait_rest()
        except (BenchError, NodeError) as exc:
            self._missing({"start": ""}, side.name, str(exc))
            return None
        _say(f"{side.name} is at rest after {time.monotonic() - side.started_at:.0f} s")
        return side

    def _calls(self, found: Sequence[Side], pods: dict[str, list[str]], size: int) -> None:
        _say(f"ADD and DEL at {size} pods")
        verbs = ("ADD", "DEL", "ADD first", "DEL first")
        names = (
            f"ADD, {size} pods",
            f"DEL, {size} pods",
            f"ADD, {size} pods, its main plugin",
            f"DEL, {size} pods, its main plugin",
        )

        def block(side: Side, *, calls: int, tag: str) -> list[list[float]]:
            times = side.job("chain_cycles", rounds=calls, settle_s=SETTLE_S, tag=tag)
            return [times[verb] for verb in verbs]

        units = dict.fromkeys(names, "ms")
        for side in found:
            try:
                _attach(side, pods[side.name], size)
                block(side, calls=2, tag=f"warm-{size}")
            except (BenchError, NodeError) as exc:  # without this number of pods the side must not be measured for it
                self._missing(units, side.name, str(exc))
        for number in range(self.scale.blocks):
            self.measure(found, units, number, partial(block, calls=self.scale.calls, tag=f"block-{size}-{number}"))

    def _try(self, side: Side, work: Callable[[], object]) -> None:
        try:
            work()
        except (BenchError, NodeError) as exc:
            _say(f"{side.name}: {str(exc)[:TEXT_MAX]}")

    def _memory(self, found: Sequence[Side]) -> None:
        _say("memory")
        with_daemon = [side for side in found if side.name != REFERENCE]
        names = {"RSS, 110 pods": "MiB"}
        later = {f"RSS after {BURSTS} bursts of {BURST_COUNT}": "MiB"}
        for side in with_daemon:
            self._try(side, side.wait_rest)
        self.measure(with_daemon, names, 0, _memory_of)
        at_once = {f"{BURST_COUNT} ADDs at once": "s", f"ADDs refused of {BURST_COUNT} at once, tried again": "count"}
        for number in range(BURSTS):
            self.measure(found, at_once, number, partial(_burst, tag=f"burst-{number}"))
        self.measure(with_daemon, later, 0, _memory_of)

    def _restarts(self, found: Sequence[Side]) -> None:
        with_daemon = [side for side in found if side.name != REFERENCE]
        for number in range(self.scale.restarts):
            _say(f"kill -9, {number + 1} of {self.scale.restarts}")
            for side in with_daemon:
                self._try(side, side.wait_rest)
            self.measure(
                with_daemon, {"kill -9 to the first ADD, 110 pods": "s"}, number, partial(_after_a_kill, tag=f"killed-{number}")
            )

    def _packets(self, found: Sequence[Side], pods: Mapping[str, list[str]]) -> None:
        _say("packets")
        units = {f"a packet on one node, {SIZES[-1]} pods": "us"}
        with ExitStack() as stack:
            pairs: dict[str, Pair] = {}
            for side in found:
                try:
                    if len(pods[side.name]) < SIZES[-1]:
                        raise BenchError(f"it has {len(pods[side.name])} pods")
                    pairs[side.name] = stack.enter_context(pair_of(side, pods[side.name]))
                except (BenchError, OSError) as exc:
                    self._missing(units, side.name, str(exc))
            stack.enter_context(one_processor())
            for number in range(self.scale.packet_rounds):
                self.measure(found, units, number, lambda side: [[pairs[side.name].packet_us()]])

    def _cold_starts(self) -> None:
        units = {"cold start to the first ADD": "s"}
        for number in range(self.scale.cold_starts):
            _say(f"cold start, {number + 1} of {self.scale.cold_starts}")
            made = [sides.ours(instance_type=COLD_TYPE, settings={}, **EC2)]
            if self.programs is not None:
                made.append(sides.theirs(self.programs, instance_type=COLD_TYPE, settings={}, **EC2))
            with ExitStack() as stack:
                opened = []
                for side in made:
                    try:
                        opened.append(stack.enter_context(side))
                    except (BenchError, NodeError) as exc:
                        self._missing(units, side.name, str(exc))
                self.measure(opened, units, number, _from_nothing)


def _attach(side: Side, pods: list[str], size: int) -> None:
    """Attach pods until a side has `size` of them. `pods`: their container IDs, to which the new ones are added."""
    pods += side.job("chain_attach", count=size - len(pods), tag=f"pod-{size}")


def _burst(side: Side, *, tag: str) -> list[list[float]]:
    answer = side.job("chain_burst", count=BURST_COUNT, tag=tag, deadline_s=FIRST_ADD_DEADLINE_S)
    time.sleep(BURST_SETTLE_S)  # so that memory that only the burst needed is free again
    return [[answer["s"]], [answer["refused"]]]


def _memory_of(side: Side) -> list[list[float]]:
    """Return the daemon's RSS. PSS would be too small for our daemon, because other processes of this machine share the pages of
    Python's libraries with it, which none does on a node."""
    return [[rss_mib(side.daemon.pid)]]


def _after_a_kill(side: Side, *, tag: str) -> list[list[float]]:
    killed_at = side.daemon.restart()
    return [[side.job("chain_first_add", tag=tag, deadline_s=FIRST_ADD_DEADLINE_S) - killed_at]]


def _from_nothing(side: Side) -> list[list[float]]:
    side.start()
    return [[side.job("chain_first_add", tag="cold", deadline_s=FIRST_ADD_DEADLINE_S) - side.started_at]]


def _say(text: str) -> None:
    print(f"beside: {text}", file=sys.stderr, flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make the measurements. Returns: the exit status."""
    parser = argparse.ArgumentParser(prog="python -m bench.beside", description="Measure us beside amazon-vpc-cni-k8s and ptp.")
    parser.add_argument("--theirs", type=_programs, metavar="FOLDER", help=f"has {', '.join(theirs.PROGRAMS)}, built")
    parser.add_argument("--quick", action="store_true", help="few samples: to see that it works")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="JSON report (default: %(default)s)")
    options = parser.parse_args(arguments)
    missing = missing_requirements(containerd=False)
    if missing:
        sys.exit(f"beside: {missing}")
    facts = machine.facts(plugin.PYTHON)
    comparison = Comparison(QUICK if options.quick else Scale(), options.theirs)
    started = time.monotonic()
    comparison.all()
    facts["seconds"] = round(time.monotonic() - started, 1)
    rows = list(comparison.rows.values())
    report = {"rows": [row.as_dict() for row in rows], "scale": asdict(comparison.scale), "machine": facts}
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(report, indent=2) + "\n")
    print(table(rows, NAMES))
    print("\n" + "; ".join(f"{name}: {value}" for name, value in facts.items()))
    absent = _absent(options.theirs)
    for name, reason in absent.items():
        print(f"not measured: {name}: {reason}")
    return 1 if absent or any(row.missing for row in rows) else 0


def _absent(programs: Path | None) -> dict[str, str]:
    """Return the sides that cannot be measured at all, with the reasons."""
    reasons = {}
    if programs is None:
        reasons[THEIRS] = "no programs: --theirs FOLDER"
    if not Path(REFERENCE_PATH).exists():
        reasons[REFERENCE] = f"no {REFERENCE_PATH}: apt-get install containernetworking-plugins"
    return reasons


def _programs(text: str) -> Path:
    path = Path(text).resolve()
    problem = theirs.missing_programs(path)
    if problem:
        raise argparse.ArgumentTypeError(problem)
    return path


if __name__ == "__main__":
    sys.exit(main())
