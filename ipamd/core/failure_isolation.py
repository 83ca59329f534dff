"""Continue after a failure of one object: skip it, name it in a condition, log the failure once, and retry at the next pass.

One veth that the kernel does not delete, or one row that the disk refuses, must not stop the work on all other objects.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from ipamd.core.health import Health
from ipamd.core.loop import OBJECTS
from ipamd.model.conditions import ConditionCode, Problem, problem_of
from ipamd.model.errors import BusyError, log_text
from ipamd.model.words import counted, first_of

log = logging.getLogger(__name__)

NAMED_MAX = 5
"""The largest number of objects that a condition names. The other objects are counted. Ours: few, so that the sentence stays
readable."""


class FailureIsolation:
    """The objects for which one kind of work failed. Safe from any thread. While its lock is held, only Health's lock is taken."""

    def __init__(self, health: Health, *, work: str) -> None:
        """`work`: a noun for the work on each object ("reaping"). It is the subject and the first word of the condition."""
        self._condition = health.claim(work, part=OBJECTS)
        self._work = work
        self._lock = threading.Lock()
        self._refusals: dict[str, str] = {}

    @property
    def names(self) -> frozenset[str]:
        """The objects for which the work failed last."""
        return frozenset(self._refusals)

    @contextmanager
    def isolate(self, name: str) -> Iterator[None]:
        """Wrap the work on one object. An error ends the block and is recorded under `name`, but not raised. A success clears the
        record.

        BusyError does not count as a failure, because it only means that another operation holds the lock of the sandbox. The next
        pass tries again.
        """
        try:
            yield
        except BusyError as error:
            log.info("work deferred work=%s object=%s error=%s", self._work, name, log_text(error))
        except Exception as error:  # noqa: BLE001  # top of the work on one object: the others must not wait for it
            self.report(name, error)
        else:
            self._change({}, gone=(name,))

    def report(self, name: str, error: BaseException) -> None:
        """Record the failure of an object. A failure with the same text as the one before is not logged again."""
        self._change({name: log_text(error)}, error=error)

    def retain(self, names: Iterable[str]) -> None:
        """Clear the failures of all objects except `names`, because the other objects are gone or do not need this work any more."""
        self._change({}, gone=self._refusals.keys() - set(names))

    def _change(self, refused: dict[str, str], *, gone: Collection[str] = (), error: BaseException | None = None) -> None:
        with self._lock:
            before = self._refusals
            self._refusals = {name: text for name, text in (before | refused).items() if name not in gone}
            if self._refusals != before:
                self._condition.report(self._problem(), error=error)

    def _problem(self) -> Problem | None:
        named = [f"{name}: {text}" for name, text in sorted(self._refusals.items())]
        count, cause = counted(len(named), "object"), first_of(named, NAMED_MAX)
        return problem_of(ConditionCode.OBJECTS_SKIPPED, cause, count=count)
