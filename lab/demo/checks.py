"""Steps, the checks that they promise, and the rule that no check is ever missing from the summary.

A failed check does not end its step, and a broken step does not end the demo: what it promised and did not deliver counts as
failed with the reason, and so does every step that needs it. Rejected: pytest as the runner, because a demo tells a story in
order, and skipping is not failing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from lab.errors import LabError


@dataclass(frozen=True)
class Check:
    """One claim in plain words, whether it held, and the evidence or the reason."""

    name: str
    ok: bool
    detail: str


class Verdict(Protocol):
    """How a step reports a check."""

    def __call__(self, name: str, ok: bool, detail: str) -> None:
        """Tell whether a promised claim held."""


@dataclass(frozen=True)
class Step:
    """One part of the story.

    `promises` names every check that `run` reports; `needs` names the earlier steps without which it makes no sense.
    """

    title: str
    promises: tuple[str, ...]
    run: Callable[[Verdict], None]
    needs: tuple[str, ...] = ()


class Checks:
    """The checks so far, in order. Concurrency: any thread records; `listener` is called outside the lock."""

    def __init__(self, listener: Callable[[Check], None] = lambda _: None) -> None:
        self._lock = threading.Lock()
        self._found: list[Check] = []
        self._listener = listener

    def record(self, name: str, ok: bool, detail: str) -> None:
        """Add one check. Raises: ValueError if the name was used: two answers to one question are none."""
        check = Check(name, ok, detail)
        with self._lock:
            if any(other.name == name for other in self._found):
                raise ValueError(f"check {name!r} is reported twice")
            self._found.append(check)
        self._listener(check)

    @property
    def all(self) -> list[Check]:
        """Every check so far."""
        with self._lock:
            return list(self._found)

    def missing(self, names: Sequence[str]) -> list[str]:
        """Those of `names` that nobody has reported."""
        reported = {check.name for check in self.all}
        return [name for name in names if name not in reported]


def run_steps(steps: Sequence[Step], checks: Checks, *, announce: Callable[[str], None] = lambda _: None) -> None:
    """Run the steps in order; afterwards each promise of each step is a check.

    An error of the lab (LabError), of the system or a defect of a step breaks that step only; a step whose need is broken, or
    was itself not run, is not run.
    """
    broken: dict[str, str] = {}
    for step in steps:
        cause = next((f"not checked: {broken[need]}" for need in step.needs if need in broken), "")
        if not cause:
            announce(step.title)
            cause = _run(step, checks)
        missing = checks.missing(step.promises)
        if cause or missing:
            broken[step.title] = cause if cause.startswith("not checked") else f"'{step.title}' broke: {cause or 'no result'}"
        for name in missing:
            checks.record(name, False, cause or "the step ended without telling")


def _run(step: Step, checks: Checks) -> str:
    """Run one step; the reason if it broke."""

    def verdict(name: str, ok: bool, detail: str) -> None:
        if name not in step.promises:
            raise ValueError(f"step {step.title!r} does not promise {name!r}")
        checks.record(name, ok, detail)

    try:
        step.run(verdict)
    except LabError as exc:
        return str(exc)
    except Exception as exc:  # noqa: BLE001  # top of a step: the later ones and the summary must come
        return f"{type(exc).__name__}: {exc}"
    return ""
