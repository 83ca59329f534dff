"""Follow the plugins that other software appended to our conflist: their CNI versions, and whether their binaries exist.

Other software may also put the configuration of a plugin into a file of a directory beside the conflist (`ConflistFile.dropped_in`).
Such a plugin limits the versions in the same way, but its file is never removed.

The runtime runs the whole list in one version, so the conflist does not offer versions that an appended plugin lacks (docs/adr/0060).
If an appended plugin has no binary, every ADD fails after ours succeeded (containerd issue 12130). If the software that appended the
entry was deleted, it cannot remove the entry, so we remove it after GONE_S.
"""

from __future__ import annotations

from collections import Counter, deque

from ipamd.host.plugins import PluginDirectory, PluginVersions
from ipamd.model.chain_versions import limits, narrowed
from ipamd.model.conflist_parts import OthersPart, canonical, type_of
from ipamd.model.words import counted, first_of
from ipamd.ports.process import Clock

GONE_S = 600.0
"""How many seconds a binary must be missing before its entry is removed. Ours: much longer than an agent's update needs to replace its
binary."""

ASKED_MAX = 8
"""The largest number of appended plugins that are asked for their versions. Ours: a node has one or two."""

LIFTS_MAX, LIFT_WINDOW_S = 3, 600.0
"""An appended plugin limits the offered versions until its entry is removed. At most LIFTS_MAX such limits are lifted within
LIFT_WINDOW_S seconds; further ones stay in force for longer. Ours: without this bound a plugin whose entry is added and removed all
the time would make us write the file all the time."""

NAMED_MAX = 5
"""The largest number of problems that a condition names. Ours: few, so that the condition stays short."""


NO_PART = OthersPart()


class AppendedPlugins:
    """The appended plugins of one conflist. Used by one thread."""

    def __init__(self, directory: PluginDirectory, *, clock: Clock) -> None:
        self._directory = directory
        self._clock = clock
        self._answers: dict[str, PluginVersions | None] = {}
        self._limits: dict[str, tuple[str, ...]] = {}
        self._gone_since: dict[str, float] = {}
        self._gone_beside: tuple[str, ...] = ()
        self._lifts: deque[float] = deque()
        self._refused: tuple[str, ...] = ()
        self._duplicates: tuple[str, ...] = ()
        self._unasked_count = 0

    @property
    def missing(self) -> tuple[str, ...]:
        """The plugins that had no binary at the last call of `ask`."""
        return tuple(self._gone_since)

    @property
    def expired(self) -> tuple[str, ...]:
        """The plugins that have had no binary for GONE_S, so that their entries are to be removed."""
        now_s = self._clock.monotonic()
        return tuple(name for name, since_s in self._gone_since.items() if now_s - since_s >= GONE_S)

    @property
    def limits(self) -> tuple[str, ...]:
        """Texts about the plugins that lack later versions, as in `ChainVersions.limits`."""
        return tuple(f"{name} ends at {highest}" for name, highest in limits(self._limits).items() if name not in self._refused)

    def wait_s(self) -> float | None:
        """Return the seconds until the next missing plugin expires; None if no plugin is missing, or all missing ones have expired."""
        now_s = self._clock.monotonic()
        return min((since_s + GONE_S - now_s for since_s in self._gone_since.values() if now_s - since_s < GONE_S), default=None)

    def ask(self, appended: OthersPart, dropped_in: OthersPart = NO_PART) -> None:
        """Ask the plugins of other software for their versions, if their files changed.

        Args:
            appended: those in our conflist.
            dropped_in: those in files beside it.
        """
        now_s = self._clock.monotonic()
        types = tuple(dict.fromkeys((*appended.types, *dropped_in.types)))
        self._answers = {name: self._directory.ask_appended(name) for name in types[:ASKED_MAX]}
        gone = [name for name, answer in self._answers.items() if answer is None]
        self._gone_since = {name: self._gone_since.get(name, now_s) for name in gone if name in appended.types}
        self._gone_beside = tuple(name for name in gone if name not in appended.types)
        self._set_limits(types, now_s)
        self._duplicates = _duplicates(appended)
        self._unasked_count = max(len(types) - ASKED_MAX, 0)

    def _set_limits(self, types: tuple[str, ...], now_s: float) -> None:
        """Remember the versions of each plugin. Forget a plugin whose entry was removed, at most LIFTS_MAX times in LIFT_WINDOW_S."""
        for name, answer in self._answers.items():
            if answer is not None and answer.versions:
                self._limits[name] = answer.versions
        for name in self._limits.keys() - set(types):
            if self._may_lift(now_s):
                del self._limits[name]

    def narrow(self, versions: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of `versions` that every appended plugin has too. A plugin that has none of `versions` is disregarded.

        `versions`: the versions that our plugin and the plugins chained by us have.
        """
        offered, self._refused = narrowed(versions, self._limits)
        return offered

    def present(self, appended: OthersPart) -> OthersPart:
        """Return `appended` without the entries whose plugins have no binary. The result is used to restore a lost file.

        An entry without a binary stays in the file until it expires (`expired`), but is never put into a restored file.
        """
        return appended.without(name for name in appended.types if self._directory.ask_appended(name) is None)

    def missing_problem(self, file: str) -> str:
        """Describe the plugins without a binary; "" if there is none. `file`: name of the conflist."""
        names = first_of(sorted(self._gone_since), NAMED_MAX)
        if not names:
            return ""
        return (
            f"{names}, appended to {file} by other software, is missing from the runtime's plugin directories: new pods fail; its "
            f"entry is removed after it has been missing for {GONE_S / 60:.0f} minutes"
        )

    def other_problems(self) -> str:
        """Describe what is wrong with plugins of other software, except missing binaries of appended plugins (`missing_problem`).

        A plugin did not answer correctly, lacks all our versions, has the same entry more than once, or is named by a file beside the
        conflist and has no binary. The text also counts the plugins that were not asked. Returns: "" if there is no problem.
        """
        problems = [answer.problem for answer in self._answers.values() if answer is not None and answer.problem]
        problems += [
            f"{name}, in a file of the directory beside it, is missing from the runtime's plugin directories: if the runtime reads "
            "that directory, no new pod starts until the file is removed or the plugin is there"
            for name in self._gone_beside
        ]
        problems += [f"{name} speaks no CNI version of the plugins before it, so its calls fail" for name in self._refused]
        problems += [
            f"the same entry of {name} is in the list more than once, so the runtime runs it more than once"
            for name in self._duplicates
        ]
        if self._unasked_count:
            problems.append(f"{counted(self._unasked_count, 'more plugin')} not checked")
        return first_of(problems, NAMED_MAX)

    def _may_lift(self, now_s: float) -> bool:
        """Whether the limit of a removed plugin may be lifted now. If so, this call counts as the lifting."""
        while self._lifts and now_s - self._lifts[0] > LIFT_WINDOW_S:
            self._lifts.popleft()
        if len(self._lifts) >= LIFTS_MAX:
            return False
        self._lifts.append(now_s)
        return True


def _duplicates(appended: OthersPart) -> tuple[str, ...]:
    """Return the types of the entries that are in the list more than once with equal content."""
    counts = Counter(canonical(plugin) for plugin in appended.plugins)
    return tuple(dict.fromkeys(type_of(plugin) for plugin in appended.plugins if counts[canonical(plugin)] > 1))
