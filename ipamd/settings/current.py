"""The settings in force, for services that take a value when they use it, and those that are told when it changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ipamd.model.errors import IpamError, SettingsError, log_text
from ipamd.model.record import dataclass, replace
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
    """Holds one generation of settings and replaces it as a whole. Read by any thread; changed by one, that of `ipamd/reload.py`.

    A field that is not live keeps its value of the start, so that no two parts of the daemon ever go by different values of it.
    `generation`: the settings in force, their number, and what waits for a restart, of one instant.
    """

    def __init__(self, settings: Settings) -> None:
        self.generation = Generation(1, settings)
        self._followers: list[Callable[[Settings, Settings], None]] = []

    @property
    def now(self) -> Settings:
        """The settings in force."""
        return self.generation.settings

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
        before = self.generation
        settings = before.settings
        taken: list[str] = []
        waiting: list[str] = []
        for topic, item, old in before.settings.each():
            new = getattr(getattr(wanted, topic), item.name)
            if new == old:
                continue
            if not item.metadata["is_live"]:
                waiting.append(item.metadata["env"])
                continue
            taken.append(item.metadata["env"])
            settings = replace(settings, **{topic: replace(getattr(settings, topic), **{item.name: new})})
        change = Change(tuple(taken), tuple(waiting))
        if problems := contradictions(settings):
            raise SettingsError(
                f"{len(problems)} setting(s) are wrong until a restart",
                details=f"{'; '.join(problems)}; needs a restart first: {', '.join(waiting)}",
            )
        if not taken and change.needs_restart == before.needs_restart:
            return change
        self.generation = Generation(before.number + 1, settings, change.needs_restart)
        for told in self._followers if taken else ():
            try:
                told(before.settings, settings)
            except IpamError as error:
                log.warning("a changed setting is not in effect everywhere yet error=%s", log_text(error))
        return change
