"""Go on after one object that refuses: it is skipped, named in a condition, logged once, and tried again at the next pass.

One veth that the kernel will not delete, or one row that the disk refuses, must not stop the reaping, sweeping and repairing of all
others for ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from ipamd.core.health import Health
from ipamd.model.errors import BusyError, log_text
from ipamd.model.words import counted, first_of

NAMED_MAX = 5
"""Objects that a condition names; the others are counted. Ours: a sentence that can be read."""

log = logging.getLogger(__name__)


class OddObjects:
    """The objects that refused one kind of work. Safe from any thread; of our locks only Health's is taken inside its own."""

    def __init__(self, health: Health, *, work: str) -> None:
        """`work` is a noun for what is done to each object ("reaping"): the condition's subject and first word."""
        self._health = health
        self._work = work
        self._lock = threading.Lock()
        self._refusals: dict[str, str] = {}

    @contextmanager
    def skip(self, name: str) -> Iterator[None]:
        """Work on one object: an error ends the block, is remembered under `name`, and is not raised. Success forgets it.

        A key that another operation holds is not odd: it is only left for the next pass.
        """
        try:
            yield
        except BusyError as error:
            log.info("%s of %s waits: %s", self._work, name, log_text(error))
        except Exception as error:  # noqa: BLE001  # top of the work on one object: the others must not wait for it
            self.note(name, error)
        else:
            self._change({}, gone=(name,))

    def note(self, name: str, error: BaseException) -> None:
        """Remember that an object refused; the error is recorded unless it refused with the same words before."""
        self._change({name: log_text(error)}, error=error)

    def keep_only(self, names: Iterable[str]) -> None:
        """Forget every object but these: the others are gone, or no longer need this work."""
        self._change({}, gone=self._refusals.keys() - set(names))

    def _change(self, refused: dict[str, str], *, gone: Collection[str] = (), error: BaseException | None = None) -> None:
        with self._lock:
            before = self._refusals
            self._refusals = {name: text for name, text in (before | refused).items() if name not in gone}
            if self._refusals != before:
                self._health.report(self._work, self._sentence() if self._refusals else "", error=error)

    def _sentence(self) -> str:
        named = [f"{name}: {text}" for name, text in sorted(self._refusals.items())]
        return f"{self._work}: {counted(len(named), 'object')} skipped: {first_of(named, NAMED_MAX)}; tried again"
