"""The process that runs cases of one target: `python -m fuzz.worker TARGET SEED FIRST LAST PROGRESS [FILE ...]`.

First the files (the corpus, or one finding), then the numbers FIRST to LAST - 1. Each finding is a line of JSON on standard output.
Where it is stands in the file PROGRESS, so that the runner knows which case ended it: a case that takes too long is ended by
SIGALRM, which also interrupts C code.
"""

from __future__ import annotations

import functools
import json
import mmap
import os
import signal
import struct
import sys
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import TracebackType

from fuzz import corpus, targets
from fuzz.shrink import shrink
from fuzz.target import Case, Target, Violation, random_of
from fuzz.watch import Watch

HANG_S = 300
"""Ours: cases take milliseconds, the largest a second of CPU, which forty processes beside it make a minute."""

WARM_UP_CASES = 50
"""After them memory is measured: imports, caches and pools have grown."""

PROGRESS = struct.Struct("=q")


class Progress:
    """The number of the case that runs, in a file that outlives the process."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        os.ftruncate(self._descriptor, PROGRESS.size)
        self._map = mmap.mmap(self._descriptor, PROGRESS.size)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._map.close()
        os.close(self._descriptor)

    def note(self, position: int) -> None:
        """Say which case begins."""
        PROGRESS.pack_into(self._map, 0, position)


class Session:
    """Runs cases one after the other and reports findings."""

    def __init__(self, target: Target, *, seed: int, name: str, report: Callable[[dict[str, object]], None]) -> None:
        self._target = target
        self._seed = seed
        self._name = name
        self._report = report
        self._watch = Watch(memory_bytes=target.memory_bytes, cpu_s=target.cpu_s)
        self._told: dict[str, int] = {}
        self._batch_first = ""

    def run(self, first: int, last: int, *, files: list[Path], progress: Progress) -> None:
        """Run the files, then the numbers; `check` after each batch and at the end."""
        self._watch.install()
        try:
            for position, (label, make) in enumerate(self._cases(first, last, files)):
                progress.note(position)
                signal.alarm(HANG_S)
                self._batch_first = self._batch_first or label
                self._one(label, make)
                if position == WARM_UP_CASES:
                    self._watch.settle()
                if position % self._target.batch == self._target.batch - 1:
                    self._check(label)
            self._check("the last")
        finally:
            signal.alarm(HANG_S)
            self._target.close()
            signal.alarm(0)

    def _cases(self, first: int, last: int, files: list[Path]) -> Iterator[tuple[str, Callable[[], Case]]]:
        for path in files:
            yield str(path), functools.partial(corpus.read, path)
        for number in range(first, last):
            yield str(number), functools.partial(self._generated, number)

    def _generated(self, number: int) -> Case:
        return self._target.generate(random_of(self._seed, self._name, number))

    def _one(self, label: str, make: Callable[[], Case]) -> None:
        case = make()
        violation = self._violation(case)
        if violation is None:
            return
        self._told[violation.signature] = self._told.get(violation.signature, 0) + 1
        if self._told[violation.signature] == 1:
            signal.alarm(0)
            tries = self._target.shrink_tries
            case = shrink(case, lambda smaller: self._fails_alike(smaller, violation.signature), tries=tries)
        self._report(_found(label, violation, case))

    def _violation(self, case: Case) -> Violation | None:
        self._watch.before()
        try:
            self._target.run(case)
            self._watch.after()
        except Violation as violation:
            return violation
        except Exception as error:  # noqa: BLE001  # whatever the code under test lets out is a finding
            return _let_out(error)
        return None

    def _fails_alike(self, case: Case, signature: str) -> bool:
        signal.alarm(HANG_S)
        found = self._violation(case)
        return found is not None and found.signature == signature

    def _check(self, label: str) -> None:
        try:
            self._target.check()
            self._watch.raise_if_seen()
        except Violation as violation:
            self._report(_found(f"{self._batch_first} to {label}", violation))
        except Exception as error:  # noqa: BLE001  # as above
            self._report(_found(f"{self._batch_first} to {label}", _let_out(error)))
        self._batch_first = ""


def _found(label: str, violation: Violation, case: Case | None = None) -> dict[str, object]:
    text = "" if case is None else repr(case)
    return {
        "label": label, "kind": violation.kind, "signature": violation.signature, "message": violation.message, "case": text,
    }  # fmt: skip


def _let_out(error: Exception) -> Violation:
    """Make a violation of an exception; where it was raised tells it from others."""
    trace = traceback.format_exception(error)
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{type(error).__name__} in {place.filename}:{place.lineno}"
    return Violation("traceback", "".join(trace[-3:])[-800:], signature=where)


def main() -> None:
    """Entry point."""
    name, seed, first, last, progress, *files = sys.argv[1:]
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    out = os.fdopen(os.dup(1), "w", buffering=1)
    target = targets.load(name)
    target.seeds = tuple(corpus.read(path) for path in corpus.paths(name))
    session = Session(target, seed=int(seed), name=name, report=lambda found: print(json.dumps(found), file=out))
    with Progress(Path(progress)) as position:
        session.run(int(first), int(last), files=[Path(path) for path in files], progress=position)
    out.flush()
    os._exit(0)  # a thread that hangs is no reason to wait: what counts was checked


if __name__ == "__main__":
    main()
