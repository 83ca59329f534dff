"""Two daemons at the same time on this machine, called in turn: the precise way to compare two checkouts, or two settings.

    python -m bench.compare --before CHECKOUT [--after CHECKOUT] [--before-env NAME=VALUE] [--after-env NAME=VALUE] [--pairs 40]

Each checkout needs its `.venv`, and the default of both is this one. Two runs one after the other differ by up to ten per cent on two
cores, because the machine's speed drifts. Here both daemons live at once, each with 110 sandboxes, and blocks of a few cold calls
alternate; who begins changes with each pair. A ratio is that of the medians of all blocks; its interval is the bootstrap of the pairs
(95 %). The exit status is 1 if the interval of ADD's or DEL's total does not lie below `--limit`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.samples import median, percentile

HERE = Path(__file__).resolve().parent.parent
RESAMPLES = 2000
SEED = 1
"""Of the bootstrap, so that the same samples give the same interval."""

IDLE_S = 20.0


@dataclass(frozen=True)
class Ratio:
    """One step of one verb: the medians in ms, after / before, and the interval of that ratio."""

    name: str
    before_ms: float
    after_ms: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """After / before; above 1 is slower."""
        return self.after_ms / self.before_ms


class Side:
    """A process of `compare_side` in its checkout. Use as a context."""

    def __init__(self, checkout: Path, env: dict[str, str]) -> None:
        self._command = [
            str(checkout / ".venv/bin/python"),
            "-P",
            str(HERE / "bench/compare_side.py"),
            json.dumps({"env": env}),
        ]
        self._checkout = checkout

    def __enter__(self) -> Side:
        environment = {**os.environ, "PYTHONPATH": str(self._checkout)}
        # A daemon that compiles its modules at the start lies otherwise in memory, and each request takes a quarter longer (measured).
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            self._command, cwd=self._checkout, env=environment, stdin=pipe, stdout=pipe, text=True, start_new_session=True
        )
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.terminate()
            self._process.wait(60)

    def ask(self, **request: float) -> Any:
        """Have the side do one thing and wait for its answer. Raises: RuntimeError if the process has ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the side of {self._checkout} has ended; its last words are above")
        return json.loads(line)


def ratios(pairs: Sequence[tuple[Any, Any]], verb: str) -> list[Ratio]:
    """Compare the steps of one verb over all pairs of blocks (before, after); "total" comes last."""
    steps = list(dict.fromkeys(step for block in pairs[0] for call in block[verb] for step in call))
    found = []
    for step in steps:
        before_blocks = [[call.get(step, 0.0) for call in before[verb]] for before, _ in pairs]
        after_blocks = [[call.get(step, 0.0) for call in after[verb]] for _, after in pairs]
        found.append(_ratio(f"{verb} {step}", before_blocks, after_blocks))
    whole_before = [before["whole"][verb] for before, _ in pairs]
    whole_after = [after["whole"][verb] for _, after in pairs]
    return [*found, _ratio(f"{verb} with the plugin", whole_before, whole_after)]


def _ratio(name: str, before_blocks: Sequence[list[float]], after_blocks: Sequence[list[float]]) -> Ratio:
    chance = random.Random(SEED)
    numbers = range(len(before_blocks))
    samples = []
    for _ in range(RESAMPLES):
        drawn = chance.choices(numbers, k=len(before_blocks))
        before_ms = median([ms for number in drawn for ms in before_blocks[number]])
        after_ms = median([ms for number in drawn for ms in after_blocks[number]])
        samples.append(after_ms / before_ms if before_ms else 1.0)
    return Ratio(
        name,
        median([ms for block in before_blocks for ms in block]),
        median([ms for block in after_blocks for ms in block]),
        percentile(samples, 0.025),
        percentile(samples, 0.975),
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    options = _options(arguments)
    pairs: list[tuple[Any, Any]] = []
    with Side(options.before, dict(options.before_env)) as before, Side(options.after, dict(options.after_env)) as after:
        for side in (before, after):
            side.ask(calls=options.calls)  # the first calls after a start are slower: not counted
        idle = [side.ask(idle_s=IDLE_S) for side in (before, after)]
        for number in range(options.pairs):
            pairs.append(_pair(before, after, calls=options.calls, is_after_first=number % 2 == 1))
    return _report(pairs, idle, limit=options.limit)


def _pair(before: Side, after: Side, *, calls: int, is_after_first: bool) -> tuple[Any, Any]:
    if is_after_first:
        after_block = after.ask(calls=calls)
        return before.ask(calls=calls), after_block
    before_block = before.ask(calls=calls)
    return before_block, after.ask(calls=calls)


def _report(pairs: Sequence[tuple[Any, Any]], idle: Sequence[dict[str, float]], *, limit: float | None) -> int:
    is_within = True
    print(f"{'':24} {'before':>8} {'after':>8} ms   ratio   interval (95 %), {len(pairs)} pairs")
    for verb in ("ADD", "DEL"):
        for ratio in ratios(pairs, verb):
            interval = f"[{ratio.low:.3f}, {ratio.high:.3f}]"
            print(f"{ratio.name:24} {ratio.before_ms:8.3f} {ratio.after_ms:8.3f}    {_times(ratio)} x {interval}")
            if limit is not None and ratio.name.endswith(" total") and ratio.high >= limit:
                is_within = False
    for name in idle[0]:
        print(f"{'idle ' + name:24} {idle[0][name]:8.2f} {idle[1][name]:8.2f}")
    return 0 if is_within else 1


def _times(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f}" if ratio.before_ms else "    -"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Compare two daemons that run at once.")
    parser.add_argument("--before", type=_checkout, default=HERE, help="checkout with a .venv (default: this one)")
    parser.add_argument("--after", type=_checkout, default=HERE, help="checkout with a .venv (default: this one)")
    parser.add_argument("--before-env", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--after-env", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--pairs", type=int, default=40, help="blocks of each daemon (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=10, help="ADDs and DELs in a block (default: %(default)s)")
    parser.add_argument("--limit", type=float, help="fail unless the intervals of both totals lie below this ratio")
    return parser.parse_args(arguments)


def _checkout(text: str) -> Path:
    path = Path(text).resolve()
    if not (path / ".venv/bin/python").exists():
        raise argparse.ArgumentTypeError(f"{path} has no .venv: run `make setup` there")
    return path


def _setting(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME=VALUE")
    return name, value


if __name__ == "__main__":
    sys.exit(main())
