"""Put our part of the conflist back when something removes or changes it. Without our part the runtime calls another plugin, or cannot
delete sandboxes.

Another CNI's installer, configuration management, or a clean-up of /etc/cni/net.d may change the file while the daemon runs. inotify
and regular checks notice such a change. They also notice changes of the chained plugins: a missing plugin of our image is put back,
and the file offers the versions that all plugins have. A problem that cannot be repaired is a condition, and the file stays, because
DEL needs it (`conflist.py`). Entries that other software appends behind our part are left to that software, unless their plugins have
been missing for a long time (docs/adr/0060). If another program changes our part again and again, our part is restored less and less
often, and a condition reports this (`repair_backoff.py`). Only a running daemon restores the file. So an uninstallation, which removes
the DaemonSet first, can delete the file.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ipamd.core.backoffs import soonest_s
from ipamd.core.health import Health
from ipamd.host.appended_plugins import AppendedPlugins
from ipamd.host.conflist import NETWORK_NAME, PLUGIN_TYPE, READ_AGAIN_S, ConflistFile, unusable_before, write
from ipamd.host.files import SETTLE_S, FollowedFile
from ipamd.host.first_conflist import FirstConflist, Target, first_conflist
from ipamd.host.plugin_bundle import Bundle
from ipamd.host.plugins import ChainVersions, PluginDirectory
from ipamd.host.repair_backoff import RepairBackoff
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.companions import Companion, CompanionKind, Companions
from ipamd.model.conditions import ConditionCode, Problem, problem, problem_of
from ipamd.model.conflist_parts import PartDefect
from ipamd.model.errors import IpamError, PluginLackingError, SettingsError
from ipamd.model.record import dataclass
from ipamd.model.repair_messages import repair_text
from ipamd.model.repairs import RepairCode, RepairedObject, RepairKind, RepairReport
from ipamd.model.sandbox import RuntimeInfo
from ipamd.model.words import first_of
from ipamd.ports.process import Clock
from ipamd.settings import Settings

FIRST_FILE_CODES = {
    Target.OTHERS: ConditionCode.OTHER_CONFLIST,
    Target.NOT_KNOWN: ConditionCode.CONFLIST_NOT_FOLLOWED,
    Target.OURS: ConditionCode.CONFLIST_STALE_COPY,
}
"""The code of the problem with a file that the runtime uses instead of ours, by the target to which that file leads."""

log = logging.getLogger(__name__)

CONDITION = "plugins"
"""Condition: a plugin without which no sandbox can be made is missing or does not answer correctly."""

MISSING_APPENDED = "appended plugins"
"""Condition: plugins that other software appended have no binary, so no new pod starts."""

ODD_APPENDED = "appended entries"
"""Condition: plugins that other software appended do not answer correctly, have none of our versions, or have the same entry more than
once; or there are so many that some were not asked for their versions (`AppendedPlugins.other_problems`)."""

OTHER_FIRST = "other conflist"
"""Condition: the runtime uses a file that does not lead to our plugin, or finds a file first that it cannot use."""

STALE_COPY = "other conflist copy"
"""Condition: the runtime uses a file that leads to our plugin, with other settings than ours."""

NOT_FOLLOWED = "other conflist unclear"
"""Condition: the runtime uses another file than ours, and the node's files do not show whether that file leads to our plugin."""

LINES_MAX = 5
"""The largest number of lines that a condition names as lines that must change. Ours: few, so that the condition stays short."""

START_CHECK_INTERVAL_S = 10.0
"""Longest time in seconds between two checks while the start waits for the plugins. Ours: short, because a check costs only a few
stats."""

WITHOUT_LOOPBACK = ("cri-o",)
"""Runtimes, as CRI names them, that bring `lo` up themselves. Source: github.com/cri-o/ocicni, pkg/ocicni/util_linux.go."""

BLOCKED_CHECK_INTERVAL_S = 1.0
"""Seconds between two checks while ADD is blocked because of another daemon. Ours: the time is short, because no notification comes
when that daemon ends."""


@dataclass(frozen=True, slots=True)
class OtherCni:
    """The conflist of another CNI on the node, which must not stay in use.

    `take`: renames this conflist if it exists, because the runtime would use it instead of ours: its name sorts first. Called at each
        check. Returns a sentence about the conflist, "" if there was none.
    `directories`: the directories of the other CNI's socket and state file; a change in them leads to a check.
    """

    take: Callable[[], str]
    directories: Sequence[Path] = ()


NO_OTHER_CNI = OtherCni(lambda: "")


class ConflistKeeper(FollowedFile):
    """Asks the plugins for their versions, and from `begin` on keeps the conflist in place. Only one thread may call `check`."""

    def __init__(
        self,
        settings: Settings,
        *,
        runtime: Callable[[], RuntimeInfo | None],
        clock: Clock,
        repair_backoff: RepairBackoff,
        health: Health,
        note: Callable[[str], None],
        is_stopped: Callable[[], bool],
        other_cni: OtherCni = NO_OTHER_CNI,
        companions: Companions | None = None,
        more_directories: Callable[[], Sequence[Path] | None] = tuple,
    ) -> None:
        """Set up; checks nothing yet.

        Args:
            runtime: returns the runtime, None before it has answered.
            note: records the text of a repair in the ledger.
            is_stopped: returns whether the conflist must not be written any more.
            companions: each check writes the plugins and files of other software beside ours into it, for reports.
            more_directories: returns further plugin directories of the runtime; None while they are not known.
        """
        config = settings.daemon
        conflists = [config.conflist_path.parent, config.conflist_path.with_name(NETWORK_NAME)]
        super().__init__(*conflists, config.cni_bin_dir, *other_cni.directories, subject="conflist")
        self._file = ConflistFile(settings, read_again_s=READ_AGAIN_S, writer=".keeper")
        self._companions = companions if companions is not None else Companions()
        self._has_cri = settings.runtime.cri_socket != "off"
        self._runtime = runtime
        self._bundle = Bundle(config.reference_plugins, config.cni_bin_dir, monotonic=clock.monotonic)
        self._directory = PluginDirectory(
            config.cni_bin_dir,
            own_plugin=PLUGIN_TYPE,
            chained=tuple(str(plugin["type"]) for plugin in self._file.own_part(SUPPORTED_VERSIONS).plugins[1:]),
            bundled=lambda: self._bundle.names,
            needs_loopback=self._needs_loopback,
            clock=clock,
            more_directories=more_directories,
        )
        self._appended = AppendedPlugins(self._directory, clock=clock)
        self._repair_backoff = repair_backoff
        self._health = health
        self._note = note
        self._is_stopped = is_stopped
        self._other_cni = other_cni
        self._is_begun = False
        self._chain_versions: ChainVersions | None = None
        self._versions: tuple[str, ...] = SUPPORTED_VERSIONS
        self._path = config.conflist_path

    @property
    def _conflist(self) -> RepairedObject:
        return RepairedObject(RepairKind.CONFLIST, str(self._path))

    @property
    def versions(self) -> tuple[str, ...]:
        """The CNI versions that the conflist may offer, oldest first."""
        return self._versions

    @property
    def versions_text(self) -> str:
        """A text for reports: the CNI versions to offer, and the plugins that lack later versions; "" before the plugins answered."""
        if self._chain_versions is None:
            return ""
        return "; ".join([f"CNI {', '.join(self.versions)}", *self._chain_versions.limits, *self._appended.limits])

    def begin(self) -> None:
        """Make `check` keep the file in place. The start calls this after it has written the file."""
        self._is_begun = True

    def check(self) -> None:
        """Put missing plugins of our image in place, and ask the plugins for their versions, if their files changed.

        After `begin`, correct our part of the file, unless its repair is backed off, and then handle the files of other software.
        Raises: IpamError.
        """
        backed_off = self._repair_backoff.backed_off()
        placed = self._bundle.put_in_place(backed_off=backed_off)
        for report in [*placed.missing, *placed.replaced]:
            log.info("plugins placed=%s", repair_text(report))
        if self._is_begun:
            self._record_all(placed.missing)
        is_changed = self._ask("; ".join(placed.problems))
        if not self._is_begun:
            return
        self._keep(is_offer_changed=is_changed, is_backed_off=self._conflist in backed_off)
        self._other_cni.take()
        self._check_first_file()

    def write(self) -> Path:
        """Write the file. Called by the start, in its thread. Raises: SettingsError."""
        return write(self._file.settings, self.versions)

    def _ask(self, hindrance: str) -> bool:
        """Ask the plugins for their versions, if their files changed. A missing plugin is a condition.

        `hindrance`: why plugins of our image could not be put in place; "" if all are there. Returns: whether other versions must be
        offered than before.
        """
        before = self.versions
        with suppress(SettingsError):  # `_keep` reports a file that cannot be read
            self._appended.ask(self._file.appended(), self._file.dropped_in())
        try:
            self._chain_versions = self._directory.ask_needed(hindrance)
        except PluginLackingError as error:
            self._health.report(CONDITION, problem(ConditionCode.PLUGIN_LACKING, cause=error), error=error)
            return False
        self._versions = self._appended.narrow(self._chain_versions.versions)
        # After the versions are set, because the start waits for this report, and then writes the file with these versions.
        self._health.report(CONDITION, None)
        return self.versions != before

    def _keep(self, *, is_offer_changed: bool, is_backed_off: bool) -> None:
        """Write our part if it has a defect, and remove appended entries whose plugins have been missing for a long time. Then report
        the problems of appended plugins as conditions.

        Args:
            is_offer_changed: the file must offer other versions than before, which is not a repair.
            is_backed_off: our part must not be repaired now.
        """
        if self._is_stopped():  # an export may have removed the file meanwhile
            return
        defect = self._file.defect(self.versions)
        if is_offer_changed and defect in (PartDefect.FIELDS, None):
            if defect is not None:
                log.info("conflist path=%s versions=%s", self._file.write(self.versions), ", ".join(self.versions))
        elif defect is not None and not is_backed_off:
            self._repair(defect)
        if self._appended.expired and defect is None:
            self._remove_expired()
        file = self._path.name
        missing = self._appended.missing_problem(self._path.name)
        odd = self._appended.other_problems()
        self._health.report(MISSING_APPENDED, problem_of(ConditionCode.APPENDED_MISSING, missing))
        self._health.report(ODD_APPENDED, problem_of(ConditionCode.APPENDED_ODD, odd, file=file))

    def _repair(self, defect: PartDefect) -> None:
        """Put our part back. If the file is lost or damaged, also put back the appended entries whose plugins have a binary."""
        appended = None
        if defect in (PartDefect.MISSING, PartDefect.CHANGED):
            appended = self._appended.present(self._file.appended())
        self._file.write(self.versions, appended)
        repaired = RepairReport(RepairCode.FILE_WRITTEN, self._conflist, str(self._path), before=str(defect))
        log.warning("conflist repaired=%s", repair_text(repaired))
        self._record_all([repaired])

    def _remove_expired(self) -> None:
        """Remove appended entries whose plugins have been missing for a long time.

        This does not count as a repair, because the entries are not ours.
        """
        expired = self._appended.expired
        self._file.write(self.versions, self._file.appended().without(expired))
        removed = RepairReport(RepairCode.ENTRY_REMOVED, self._conflist, str(self._path), before=", ".join(expired))
        log.warning("conflist entry removed=%s", repair_text(removed))
        self._appended.ask(self._file.appended(), self._file.dropped_in())
        self._record_all([removed])

    def _check_first_file(self) -> None:
        """Find out whether a runtime uses another file than ours, and report it. List the plugins and files of other software in
        `companions`.
        """
        own_parts = [self._file.own_part(self.versions)]
        if self._chain_versions is not None and self._chain_versions.versions != self.versions:
            own_parts.append(self._file.own_part(self._chain_versions.versions))
        first = first_conflist(self._path, own_parts)
        unusable = unusable_before(self._path)
        other = self._problem(first, Target.OTHERS)
        if unusable:
            other = problem(ConditionCode.OTHER_CONFLIST_UNUSABLE, other=unusable, own=self._path.name)
        self._health.report(OTHER_FIRST, other)
        self._health.report(NOT_FOLLOWED, self._problem(first, Target.NOT_KNOWN))
        self._health.report(STALE_COPY, self._problem(first, Target.OURS))
        self._companions.seen = (*self._first_companions(first), *self._appended_companions())

    def _problem(self, first: FirstConflist | None, target: Target) -> Problem | None:
        """Return the problem with the file that a runtime uses instead of ours.

        Returns: None if there is no such file, if it does not lead to `target`, or if it needs no change.
        """
        is_in_order = first is not None and first.target is Target.OURS and not first.lines
        if first is None or first.target is not target or is_in_order:
            return None
        next_step = ""
        if target is Target.OURS:
            next_step = f"change {first_of(first.lines, LINES_MAX)}"
        return problem(FIRST_FILE_CODES[target], other=first.path, own=self._path.name, next_step=next_step)

    @staticmethod
    def _first_companions(first: FirstConflist | None) -> list[Companion]:
        if first is None or first.target is not Target.OURS:
            return []
        path_text = ", ".join(first.steps) or "a copy of our list"
        return [Companion(CompanionKind.FIRST, first.path, f"the runtime takes it first, and it leads to us by {path_text}")]

    def _appended_companions(self) -> list[Companion]:
        details = dict.fromkeys(
            self._file.dropped_in().types, f"other software put its file into {NETWORK_NAME}/ beside our conflist"
        )
        details |= dict.fromkeys(self._file.appended().types, f"other software appended it to {self._path.name}")
        return [Companion(CompanionKind.APPENDED, name, detail) for name, detail in details.items()]

    def _needs_loopback(self) -> bool:
        runtime = self._runtime()
        return self._has_cri and (runtime is None or runtime.name.lower() not in WITHOUT_LOOPBACK)

    def _record_all(self, repairs: Sequence[RepairReport]) -> None:
        """Count repairs, and record them in the ledger."""
        self._repair_backoff.count_repairs(repairs)
        try:
            for repaired in repairs:
                self._note(repair_text(repaired))
        except IpamError as error:
            self._health.record_error("conflist", error)

    def wait_s(self) -> float:
        """See `FollowedFile.wait_s`."""
        if not self._is_begun:
            return START_CHECK_INTERVAL_S
        interval_s = BLOCKED_CHECK_INTERVAL_S if self._health.are_adds_blocked else super().wait_s()
        return soonest_s([interval_s, self._repair_backoff.wait_s(), self._appended.wait_s()]) or SETTLE_S
