"""The settings in force, for services that take a value when they use it, and those that are told when it changes."""

from __future__ import annotations

import dataclasses
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from ipamd.model.errors import IpamError, SettingsError, log_text
from ipamd.settings.fields import Settings
from ipamd.settings.loading import contradictions

T = TypeVar("T")

INVALID_SETTINGS = "settings"
"""Subject of the condition of settings that are wrong: the generation in force is kept."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """What a new generation brought: variables that took effect, and those that wait for a restart, each in the order of the code."""

    taken: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """A number that grows with each change that was accepted, from 1 at the start of the process; and what it is made of."""

    number: int
    settings: Settings
    needs_restart: tuple[str, ...] = ()


class CurrentSettings:
    """Holds one generation of settings and replaces it as a whole. Reading takes no lock; changes come one at a time.

    A field that is not live keeps its value of the start, so that no two parts of the daemon ever go by different values of it.
    """

    def __init__(self, settings: Settings) -> None:
        self._generation = Generation(1, settings)
        self._followers: list[Callable[[Settings, Settings], None]] = []
        self._lock = threading.Lock()

    @property
    def now(self) -> Settings:
        """The settings in force."""
        return self._generation.settings

    @property
    def generation(self) -> Generation:
        """The settings in force, their number, and what waits for a restart, of one instant."""
        return self._generation

    def follow(self, part: Callable[[Settings], T], follower: Callable[[T], None]) -> None:
        """Tell `follower` what `part` is whenever it has changed, in the thread that changes it and in the order of these calls."""

        def told(before: Settings, now: Settings) -> None:
            if part(before) != part(now):
                follower(part(now))

        self._followers.append(told)

    def offer(self, wanted: Settings) -> Change:
        """Put the live part of `wanted` in force and tell the followers; one that fails does not stop the others.

        Returns: what changed; nothing at all is no new generation.
        Raises: SettingsError if what would be in force contradicts itself, because a part of it waits for a restart.
        """
        with self._lock:
            before = self._generation
            settings, taken, waiting = _merged(before.settings, wanted)
            if problems := contradictions(settings):
                details = f"{'; '.join(problems)}; needs a restart first: {', '.join(waiting)}"
                raise SettingsError(f"{len(problems)} setting(s) are wrong until a restart", details=details)
            if not taken and waiting == before.needs_restart:
                return Change((), waiting)
            self._generation = Generation(before.number + 1, settings, waiting)
            if taken:
                self._tell(before.settings, settings)
            return Change(taken, waiting)

    def _tell(self, before: Settings, now: Settings) -> None:
        for told in self._followers:
            try:
                told(before, now)
            except IpamError as error:
                log.warning("a changed setting is not in effect everywhere yet: %s", log_text(error))


def _merged(before: Settings, wanted: Settings) -> tuple[Settings, tuple[str, ...], tuple[str, ...]]:
    """Take what is live of `wanted` and the rest of `before`. Returns: both together, what was taken, what waits."""
    taken: list[str] = []
    waiting: list[str] = []
    topics: dict[str, Any] = {}
    for topic in dataclasses.fields(before):
        old, new = getattr(before, topic.name), getattr(wanted, topic.name)
        changed = [item for item in dataclasses.fields(old) if getattr(old, item.name) != getattr(new, item.name)]
        live = [item for item in changed if item.metadata["is_live"]]
        taken += [item.metadata["env"] for item in live]
        waiting += [item.metadata["env"] for item in changed if not item.metadata["is_live"]]
        topics[topic.name] = dataclasses.replace(old, **{item.name: getattr(new, item.name) for item in live})
    return Settings(**topics), tuple(taken), tuple(waiting)
