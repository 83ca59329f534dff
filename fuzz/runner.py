"""Share the cases of all targets among worker processes, and gather what they find.

A worker that dies (a hang, a crash, memory) is a finding of the case that ran; the next worker goes on behind it.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from fuzz import corpus
from fuzz.worker import PROGRESS

WORKER = "fuzz.worker"
DEATHS_MAX = 20
"""Of one share's workers. Ours: what dies so often has one cause."""


@dataclass(frozen=True)
class Finding:
    """One broken promise. `label`: the number or file of the case, or the batch after which it was seen."""

    target: str
    seed: int
    label: str
    kind: str
    message: str
    signature: str
    case: str = ""
    times: int = 1

    def replay(self) -> str:
        """Return the command that runs the case again."""
        command = f"python -m fuzz --only {self.target}"
        first, _, last = self.label.partition(" to ")
        if first.isdigit():
            last = f"-{last}" if last.isdigit() else ""
            return f"{command} --seed {self.seed} --case {first}{last}"
        return f"{command} --input {first}" if Path(first).exists() else command


@dataclass
class Outcome:
    """What came of one target."""

    name: str
    case_count: int = 0
    findings: list[Finding] = field(default_factory=list)
    cpu_s: float = 0.0


@dataclass(frozen=True)
class Share:
    """Cases for one worker: files first, then the numbers from `first` to `last` - 1."""

    target: str
    first: int
    last: int
    files: tuple[Path, ...] = ()

    def after(self, position: int) -> Share:
        """Return what is left behind the case at `position`."""
        left = self.files[position + 1 :]
        return Share(self.target, self.first + max(position + 1 - len(self.files), 0), self.last, left)

    def label(self, position: int) -> str:
        """Name the case at `position`."""
        return str(self.files[position]) if position < len(self.files) else str(self.first + position - len(self.files))

    def __len__(self) -> int:
        return len(self.files) + self.last - self.first


def shares(counts: dict[str, int], *, jobs: int) -> list[Share]:
    """Split each target's numbers into as many shares as there are workers; the corpus goes with the first."""
    made = []
    for name, count in counts.items():
        bounds = [count * part // jobs for part in range(jobs + 1)]
        for part in range(jobs):
            files = tuple(corpus.paths(name)) if part == 0 else ()
            if files or bounds[part] < bounds[part + 1]:
                made.append(Share(name, bounds[part], bounds[part + 1], files))
    return made


def run(work: Sequence[Share], *, seed: int, jobs: int, tell: Callable[[str], None]) -> list[Outcome]:
    """Run all shares, `jobs` at a time. Returns: one outcome for each target, in the order of the shares."""
    outcomes = {share.target: Outcome(share.target) for share in work}
    lock = threading.Lock()

    def one(share: Share) -> None:
        started_s = time.monotonic()
        findings = _run_share(share, seed)
        with lock:
            outcome = outcomes[share.target]
            outcome.case_count += len(share)
            outcome.findings = distinct([*outcome.findings, *findings])
            tell(f"{share.target}: {len(share)} cases in {time.monotonic() - started_s:.1f} s, {len(findings)} findings")

    with ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(one, share) for share in work]:
            done.result()
    return list(outcomes.values())


def distinct(findings: Sequence[Finding]) -> list[Finding]:
    """Count findings of the same signature as one, the first, with how many times it was seen."""
    first: dict[str, Finding] = {}
    for found in findings:
        known = first.get(found.signature)
        first[found.signature] = found if known is None else replace(known, times=known.times + found.times)
    return list(first.values())


def _run_share(share: Share, seed: int) -> list[Finding]:
    findings: list[Finding] = []
    with tempfile.TemporaryDirectory(prefix="fuzz-") as directory:
        progress = Path(directory) / "progress"
        for _ in range(DEATHS_MAX):
            if not len(share):
                return findings
            progress.unlink(missing_ok=True)
            numbers = (str(seed), str(share.first), str(share.last))
            worker = [sys.executable, "-m", WORKER, share.target, *numbers, str(progress)]
            done = subprocess.run([*worker, *map(str, share.files)], capture_output=True, text=True, errors="replace")
            findings += [Finding(share.target, seed, **json.loads(line)) for line in done.stdout.splitlines()]
            if done.returncode == 0:
                return findings
            if not progress.exists():
                findings.append(Finding(share.target, seed, "", "no start", done.stderr[-800:], "no start"))
                return findings
            (position,) = PROGRESS.unpack(progress.read_bytes())
            findings.append(Finding(share.target, seed, share.label(position), *_death(done), f"death {done.returncode}"))
            share = share.after(position)
    return findings


def _death(done: subprocess.CompletedProcess[str]) -> tuple[str, str]:
    if done.returncode == -signal.SIGALRM:
        return "hang", "the case did not end"
    cause = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit status {done.returncode}"
    return "death", f"the process ended with {cause}: {done.stderr[-600:]}"
