"""Hold the settings in force. Services read a value when they use it, or register a callback for its changes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TypeVar

from ipamd.model.errors import IpamError, SettingsError, log_text
from ipamd.model.failures import FailureCode, failure
from ipamd.model.record import dataclass, replace
from ipamd.settings.fields import Settings
from ipamd.settings.loading import contradictions

T = TypeVar("T")

INVALID_SETTINGS = "settings"
"""Subject of the condition that reports wrong settings. The settings in force are kept meanwhile."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Change:
    """The effect of a call of `CurrentSettings.offer`.

    `taken`: variables whose new value is in force.
    `needs_restart`: variables whose new value needs a restart to take effect.
    Both are in the order of declaration.
    """

    taken: tuple[str, ...] = ()
    needs_restart: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Generation:
    """The settings in force at a time.

    `number`: 1 at the start of the process, and one more after each accepted change.
    `needs_restart`: variables whose new value needs a restart to take effect.
    """

    number: int
    settings: Settings
    needs_restart: tuple[str, ...] = ()


class CurrentSettings:
    """Holds one generation of settings and replaces it as a whole.

    Any thread may read it. Only the thread of `ipamd/process/reload.py` changes it. A field that is not live keeps its value from the
    start, so that all parts of the daemon use the same value.
    `generation`: the present generation.
    """

    def __init__(self, settings: Settings) -> None:
        self.generation = Generation(1, settings)
        self._followers: list[Callable[[Settings, Settings], None]] = []

    @property
    def now(self) -> Settings:
        """The settings in force."""
        return self.generation.settings

    def follow(self, part: Callable[[Settings], T], follower: Callable[[T], None]) -> None:
        """Call `follower` with the result of `part` whenever that result has changed.

        `offer` calls the followers, in its thread and in the order of their registration.
        """

        def call_if_changed(before: Settings, now: Settings) -> None:
            if part(before) != part(now):
                follower(part(now))

        self._followers.append(call_if_changed)

    def offer(self, wanted: Settings) -> Change:
        """Put the live fields of `wanted` in force and call the followers. If a follower raises IpamError, this is logged, and the
        next followers are called too.

        Returns: the variables whose value in `wanted` differs from the value in force. Without a change there is no new generation.
        Raises: SettingsError if the settings that would be in force contradict each other, because some of the new values need a
            restart.
        """
        before = self.generation
        settings, change = _live_part(before.settings, wanted)
        problems = contradictions(settings)
        if problems:
            raise failure(
                SettingsError,
                FailureCode.SETTINGS_WRONG_UNTIL_RESTART,
                count=len(problems),
                problems="; ".join(problems),
                waiting=", ".join(change.needs_restart),
            )
        if not change.taken and change.needs_restart == before.needs_restart:
            return change
        self.generation = Generation(before.number + 1, settings, change.needs_restart)
        if change.taken:
            self._call_followers(before.settings, settings)
        return change

    def _call_followers(self, before: Settings, now: Settings) -> None:
        for follower in self._followers:
            try:
                follower(before, now)
            except IpamError as error:
                log.warning("failed to apply a changed setting everywhere error=%s", log_text(error))


def _live_part(current: Settings, wanted: Settings) -> tuple[Settings, Change]:
    """Copy the live fields of `wanted` into `current`. Returns: the settings, and which variables changed."""
    settings = current
    taken: list[str] = []
    waiting: list[str] = []
    for topic, field, old in current.declared():
        new = getattr(getattr(wanted, topic), field.name)
        if new == old:
            continue
        if not field.metadata["is_live"]:
            waiting.append(field.metadata["env"])
            continue
        taken.append(field.metadata["env"])
        settings = replace(settings, **{topic: replace(getattr(settings, topic), **{field.name: new})})
    return settings, Change(tuple(taken), tuple(waiting))
