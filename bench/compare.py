"""Compare two checkouts, or two settings: two daemons run at the same time on this machine and are called in turn.

    python -m bench.compare --before CHECKOUT [--after CHECKOUT] [--before-env NAME=VALUE] [--after-env NAME=VALUE]
                            [--after-annotation NAME=VALUE] [--instance-type TYPE]
                            [--starts 4] [--pairs 12] [--calls 10] [--restarts 0] [--limit RATIO]

Each checkout needs its `.venv`; the default of both is this checkout. This is more precise than two runs one after the other, which
differ by up to ten per cent on two cores because the machine's speed drifts. Here each daemon has 110 sandboxes, and blocks of a few
cold calls alternate. A *pair* is a block of each daemon; the daemon that begins changes with each pair. The position of a daemon in
memory may make it faster or slower for its whole life, so the pairs are divided over several starts of the daemons.

A ratio is the ratio of the medians of all calls. Its 95 % interval is found by bootstrap, which draws starts, and pairs of each start.
With `--restarts` both daemons are also killed in turn, that often in each start, and the times until the next process has served its
first DEL and ADD are compared. With `--limit` the exit status is 1 if the interval of a total of ADD or DEL, or of a restart, is not
below the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from bench.samples import median, percentile

HERE = Path(__file__).resolve().parent.parent
RESAMPLES = 2000
SEED = 1
"""Seed of the bootstrap. It is fixed, so that the same samples give the same interval."""

IDLE_S = 20.0

Pair = tuple[Any, Any]
"""The answers of the two sides, before and after, to the same request: a block of calls, or one restart."""


@dataclass(frozen=True)
class Ratio:
    """The comparison of one step of a call. `before_ms`, `after_ms`: medians. `low`, `high`: the interval of the ratio."""

    name: str
    before_ms: float
    after_ms: float
    low: float
    high: float

    @property
    def ratio(self) -> float:
        """`after_ms` divided by `before_ms`. Above 1, the side "after" is slower."""
        return self.after_ms / self.before_ms


class Side:
    """A process of `compare_side` with the code of one checkout. Use it as a context."""

    def __init__(self, checkout: Path, *, env: dict[str, str], annotations: dict[str, str], instance_type: str) -> None:
        self._command = [
            str(checkout / ".venv/bin/python"),
            "-P",
            str(HERE / "bench/compare_side.py"),
            json.dumps({"env": env, "annotations": annotations, "instance_type": instance_type}),
        ]
        self._checkout = checkout

    def __enter__(self) -> Side:
        environment = {**os.environ, "PYTHONPATH": str(self._checkout)}
        # A daemon that compiles its modules at the start has another layout in memory, and was measured to need a quarter more time
        # for each request. So bytecode must be written and used.
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
        """Send a request to the side and wait for its answer. Raises: RuntimeError if the process has ended."""
        self.begin(**request)
        return self.answer()

    def begin(self, **request: float) -> None:
        """Send a request to the side without waiting. A call of `answer` must follow."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> Any:
        """Wait for the answer to the request of `begin`. Raises: RuntimeError if the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the side of {self._checkout} has ended; its last words are above")
        return json.loads(line)


def ratios(starts: Sequence[Sequence[Pair]], verb: str) -> list[Ratio]:
    """Compare the steps of one verb over the pairs of all starts. The last two are "total" and the plugin's whole call."""
    steps = list(dict.fromkeys(step for block in starts[0][0] for call in block[verb] for step in call))
    compared = []
    for step in steps:

        def step_times(block: Any, step: str = step) -> list[float]:
            return [call.get(step, 0.0) for call in block[verb]]

        compared.append(_ratio(f"{verb} {step}", starts, step_times))
    return [*compared, _ratio(f"{verb} with the plugin", starts, lambda block: block["whole"][verb])]


def restart_ratios(starts: Sequence[Sequence[Pair]]) -> list[Ratio]:
    """Compare the restarts of all starts: the time to the first DEL, and to the first ADD."""
    compared = []
    for verb in ("DEL", "ADD"):

        def times_ms(served: Any, verb: str = verb) -> list[float]:
            return [served[verb] * 1000]

        compared.append(_ratio(f"restart to first {verb}", starts, times_ms))
    return compared


def _ratio(name: str, starts: Sequence[Sequence[Pair]], times_of: Callable[[Any], list[float]]) -> Ratio:
    """Compare one step. `times_of`: returns the times in ms of this step in a block."""
    times = [[(times_of(before), times_of(after)) for before, after in pairs] for pairs in starts]
    chance = random.Random(SEED)
    samples = []
    for _ in range(RESAMPLES):
        drawn: list[tuple[list[float], list[float]]] = []
        for pairs in chance.choices(times, k=len(times)):
            drawn += chance.choices(pairs, k=len(pairs))
        before_ms, after_ms = _medians(drawn)
        samples.append(after_ms / before_ms if before_ms else 1.0)
    before_ms, after_ms = _medians([pair for pairs in times for pair in pairs])
    return Ratio(name, before_ms, after_ms, percentile(samples, 0.025), percentile(samples, 0.975))


def _medians(pairs: Sequence[tuple[list[float], list[float]]]) -> tuple[float, float]:
    """Return the median of all calls before, and the median of all calls after."""
    before_ms = median([ms for before, _ in pairs for ms in before])
    after_ms = median([ms for _, after in pairs for ms in after])
    return before_ms, after_ms


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, and print the ratios. Returns: the exit status."""
    options = _options(arguments)
    comparison = Comparison()
    for number in range(options.starts):
        before = Side(options.before, env=dict(options.before_env), annotations={}, instance_type=options.instance_type)
        after = Side(
            options.after,
            env=dict(options.after_env),
            annotations=dict(options.after_annotation),
            instance_type=options.instance_type,
        )
        # The side that is started first changes with each start, because it has the lower process IDs and link indices.
        first, second = (before, after) if number % 2 == 0 else (after, before)
        with first, second:
            comparison.measure(before, after, pairs=options.pairs, calls=options.calls, restarts=options.restarts)
    return comparison.report(limit=options.limit)


class Comparison:
    """The measurements of all starts of both daemons."""

    def __init__(self) -> None:
        self._starts: list[list[Pair]] = []
        self._restarts: list[list[Pair]] = []
        self._idle: list[Pair] = []

    def measure(self, before: Side, after: Side, *, pairs: int, calls: int, restarts: int) -> None:
        """Measure both daemons of one start: at idle, in `pairs` blocks of `calls` calls each, and in `restarts` restarts each."""
        for side in (before, after):
            side.ask(calls=calls)  # not counted, because the first calls after a start are slower
        for side in (before, after):
            side.begin(idle_s=IDLE_S)
        self._idle.append((before.answer(), after.answer()))
        self._starts.append([_pair(before, after, is_after_first=pair % 2 == 1, calls=calls) for pair in range(pairs)])
        if restarts:
            self._restarts.append([_pair(before, after, is_after_first=pair % 2 == 1, restart=pair) for pair in range(restarts)])

    def report(self, *, limit: float | None) -> int:
        """Print all ratios. Returns: the exit status."""
        compared = [*ratios(self._starts, "ADD"), *ratios(self._starts, "DEL")] if self._starts[0] else []
        restarts = restart_ratios(self._restarts) if self._restarts else []
        blocks = f"{len(self._starts)} starts of {len(self._starts[0])} pairs"
        print(f"{'':24} {'before':>8} {'after':>8} ms   ratio   interval (95 %), {blocks}")
        for ratio in [*compared, *restarts]:
            interval = f"[{ratio.low:.3f}, {ratio.high:.3f}]"
            print(f"{ratio.name:24} {ratio.before_ms:8.3f} {ratio.after_ms:8.3f}    {_times(ratio)} x {interval}")
        for name in self._idle[0][0]:
            before, after = (median([pair[side][name] for pair in self._idle]) for side in (0, 1))
            print(f"{'idle ' + name:24} {before:8.2f} {after:8.2f}")
        limited = [ratio for ratio in compared if ratio.name.endswith(" total")] + restarts
        is_within = limit is None or all(ratio.high < limit for ratio in limited)
        return 0 if is_within else 1


def _pair(before: Side, after: Side, *, is_after_first: bool, **request: float) -> Pair:
    if is_after_first:
        after_answer = after.ask(**request)
        return before.ask(**request), after_answer
    before_answer = before.ask(**request)
    return before_answer, after.ask(**request)


def _times(ratio: Ratio) -> str:
    return f"{ratio.ratio:.3f}" if ratio.before_ms else "    -"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.compare", description="Compare two daemons that run at once.")
    parser.add_argument("--before", type=_checkout, default=HERE, help="checkout with a .venv (default: this one)")
    parser.add_argument("--after", type=_checkout, default=HERE, help="checkout with a .venv (default: this one)")
    parser.add_argument("--before-env", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--after-env", type=_setting, action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument(
        "--after-annotation", type=_setting, action="append", default=[], metavar="NAME=VALUE", help="of each pod of that side"
    )
    parser.add_argument("--instance-type", default="", metavar="TYPE", help="of both nodes (default: the bench's)")
    parser.add_argument("--starts", type=int, default=4, help="how often both are started (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=12, help="blocks of each daemon in a start (default: %(default)s)")
    parser.add_argument("--calls", type=int, default=10, help="ADDs and DELs in a block (default: %(default)s)")
    parser.add_argument("--restarts", type=int, default=0, help="restarts of each daemon in a start (default: none)")
    parser.add_argument("--limit", type=float, help="fail unless the intervals of the totals and restarts lie below this ratio")
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
