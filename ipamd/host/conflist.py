"""The CNI configuration that tells the runtime to call us: written last, atomically, and never removed.

Shutting down leaves it in place: without it a runtime cannot delete sandboxes (containerd #8774). `cniVersion` is one that every
libcni accepts; `cniVersions` lets newer ones choose a later version, with GC and STATUS (docs/adr/0009). Only those versions are
offered that every chained plugin speaks (docs/adr/0039).
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipamd.core.agenda import soonest_s
from ipamd.core.health import Health
from ipamd.host.files import SETTLE_S, FollowedFile
from ipamd.host.plugins import Bundle, PluginDirectory, Spoken
from ipamd.host.repair_backoff import Fights
from ipamd.model.branch import POD_ANNOTATIONS
from ipamd.model.cniresult import SUPPORTED_VERSIONS, conflist_version
from ipamd.model.errors import IpamError, PluginLackingError, SettingsError
from ipamd.model.kernel import Repaired, RepairedObject, RepairKind
from ipamd.model.record import dataclass
from ipamd.model.sandbox import RuntimeInfo
from ipamd.ports import Clock
from ipamd.settings import Settings
from ipamd.settings.fields import FROM_ANNOTATIONS
from ipamd.settings.settings_file import content_of, created

log = logging.getLogger(__name__)


NETWORK_NAME = "vpc-ipamd"
PLUGIN_TYPE = "vpc-cni"


def render(settings: Settings, versions: tuple[str, ...] = SUPPORTED_VERSIONS) -> dict[str, Any]:
    """Build the conflist; the settings say which plugins are chained behind ours, `versions` (oldest first) what all of them speak.

    The pod's annotations are asked for only where they are read: they may have 256 KiB, in every call.
    """
    config, ours = settings.daemon, {"type": PLUGIN_TYPE}
    is_told = settings.network.branch_mode is not None and settings.pod_facts.source == FROM_ANNOTATIONS
    plugins: list[dict[str, Any]] = [ours | {"capabilities": {POD_ANNOTATIONS: True}} if is_told else ours]
    if config.portmap:
        plugins.append({"type": "portmap", "snat": True, "capabilities": {"portMappings": True}})
    if config.bandwidth:
        plugins.append({"type": "bandwidth", "capabilities": {"bandwidth": True}})
    plugins += json.loads(config.chained_plugins or "[]")
    return {
        "cniVersion": conflist_version(versions),
        "cniVersions": list(versions),
        "name": NETWORK_NAME,
        "plugins": plugins,
    }


def difference(settings: Settings, versions: tuple[str, ...] = SUPPORTED_VERSIONS) -> str:
    """Say how the file differs from what `write` puts there; "" if it does not. Raises: SettingsError if it cannot be read."""
    path = settings.daemon.conflist_path
    try:
        is_other = os.path.lexists(path) and not path.is_file()
        return "had been changed" if is_other or content_of(str(path)) != _content(settings, versions) else ""
    except FileNotFoundError:
        return "was missing"
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}", details="mount the CNI configuration directory") from error


SUFFIXES = (".conf", ".conflist", ".json")
"""Of files that runtimes read, the first one by name alone. Source: github.com/containernetworking/cni, libcni/conf.go (ConfFiles)."""


def sorts_before(path: Path) -> str:
    """The first file that a runtime takes instead of ours; "" if there is none. What it cannot read it passes over, and so do we."""
    with suppress(OSError):
        for name in sorted(os.listdir(path.parent)):  # noqa: PTH208  # names are what is sorted
            if name >= path.name:
                break
            with suppress(OSError, ValueError, RecursionError):
                found = json.loads(content_of(str(path.with_name(name)))) if name.endswith(SUFFIXES) else None
                if isinstance(found, dict) and (found.get("type") or found.get("plugins")):
                    return str(path.with_name(name))
    return ""


def write(settings: Settings, versions: tuple[str, ...] = SUPPORTED_VERSIONS) -> Path:
    """Put the conflist in place atomically: a reader sees the whole old file or the whole new one.

    Returns: its path. Raises: SettingsError if the directory cannot be written.
    """
    path = settings.daemon.conflist_path
    content = _content(settings, versions)
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        if not path.is_symlink() and (path.is_file() or path.is_dir()) and content_of(str(path)) == content:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        with created(scratch, 0o644) as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(path)
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}", details="mount the CNI configuration directory") from error
    return path


def _content(settings: Settings, versions: tuple[str, ...]) -> bytes:
    return f"{json.dumps(render(settings, versions), indent=2)}\n".encode()


# The plugins that sandboxes need beside ours: the start waits for them, and they are looked at as long as the daemon serves.
#
# A conflist that names a plugin which is not there, or which does not speak the version that the runtime chooses, attracts pods
# that never start; so it is not written, and the daemon is not *ready*, before each plugin has answered (docs/adr/0039). Later a
# plugin that is lacking is a condition only: the conflist stays, because DEL needs it.


CONDITION = "plugins"

START_LOOK_S = 10.0
"""Longest time between two looks while the start waits, whatever inotify says. Ours; a look costs a few stats."""

WITHOUT_LOOPBACK = ("cri-o",)
"""Runtimes, as CRI names them, that bring `lo` up themselves. Source: github.com/cri-o/ocicni, pkg/ocicni/util_linux.go."""


# Put the conflist back when something removes or alters it: without it the runtime calls another plugin, or cannot delete
# sandboxes.
#
# Another CNI's installer, configuration management, or a clean-up of /etc/cni/net.d may do that under a running daemon. It is
# noticed by inotify, and by the clock. So are changes of the plugins that it chains: one of ours that went is put back, and the
# file offers what all of them speak now; what cannot be mended is a condition, and the file stays, because DEL needs it
# (`conflist.py`). While two programs write the same file, ours backs off and a condition says so (`repair_backoff.py`). The file
# is kept only while the daemon serves: uninstall removes the DaemonSet first.


HELD_S = 1.0
"""Between two looks while another software's daemon keeps us from giving addresses: a daemon that goes announces nothing. Ours."""


@dataclass(frozen=True, slots=True)
class Others:
    """Another software on the node. `take` renames its conflist, which sorts before ours; in `directories` its coming is seen."""

    take: Callable[[], str]
    directories: Sequence[Path] = ()


NOBODY = Others(lambda: "")


class ConflistKeeper(FollowedFile):
    """Looks at the plugins, and from `begin` on keeps the conflist in place. `look` from one thread.

    `said`: what all plugins that are needed speak, "" before they have answered; `versions`: what the file may offer.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        runtime: Callable[[], RuntimeInfo | None],
        clock: Clock,
        fights: Fights,
        health: Health,
        note: Callable[[str], None],
        is_stopped: Callable[[], bool],
        others: Others = NOBODY,
    ) -> None:
        """Nothing is looked at yet.

        Args:
            runtime: which one has answered, None before.
            note: records a repair in the ledger.
            others: looked at with our own file.
        """
        config = settings.daemon
        super().__init__(config.conflist_path.parent, config.cni_bin_dir, *others.directories, subject="conflist")
        self._settings = settings
        self._is_asked = settings.runtime.cri_socket != "off"
        self._runtime = runtime
        self._bundle = Bundle(config.reference_plugins, config.cni_bin_dir, monotonic=clock.monotonic)
        self._directory = PluginDirectory(
            config.cni_bin_dir,
            own=PLUGIN_TYPE,
            chained=tuple(str(plugin["type"]) for plugin in render(settings)["plugins"][1:]),
            bundled=lambda: self._bundle.names,
            needs_loopback=self._needs_loopback,
            clock=clock,
        )
        self._fights = fights
        self._health = health
        self._note = note
        self._is_stopped = is_stopped
        self._others = others
        self._is_begun = False
        self._spoken: Spoken | None = None
        self._path = config.conflist_path
        self._thing = RepairedObject(RepairKind.CONFLIST, str(self._path))

    @property
    def versions(self) -> tuple[str, ...]:
        """See the class."""
        return self._spoken.versions if self._spoken is not None else SUPPORTED_VERSIONS

    @property
    def said(self) -> str:
        """See the class."""
        spoken = self._spoken
        return "; ".join([f"CNI {', '.join(spoken.versions)}", *spoken.limits]) if spoken is not None else ""

    def begin(self) -> None:
        """The start writes the file, once it can: it is kept from now on."""
        self._is_begun = True

    def look(self) -> None:
        """Put in place what comes with us and is missing, and ask the plugins whose files changed.

        Once begun, write the file if it is not what it must be, unless it is fought over; then see to another software's.
        Raises: IpamError.
        """
        held = self._fights.held()
        placed = self._bundle.put_in_place(but=held)
        for sentence in [*placed.missing, *placed.replaced]:
            log.info("plugins placed=%s", sentence)
        if self._is_begun:
            self._record_all(placed.missing)
        is_changed = self._ask("; ".join(placed.problems))
        if not self._is_begun:
            return
        if is_changed and not self._is_stopped():
            path = write(self._settings, self.versions)
            log.info("conflist path=%s versions=%s", path, ", ".join(self.versions))
        found = difference(self._settings, self.versions)
        if found and self._thing not in held and not self._is_stopped():  # stopped: an export may have removed it meanwhile
            write(self._settings, self.versions)
            repaired = Repaired(f"{self._path} {found}: written again", self._thing)
            log.warning("conflist repaired=%s", repaired)
            self._record_all([repaired])
        self._others.take()
        first = sorts_before(self._path)
        sentence = f"other conflist: {first} sorts before {self._path.name}: the runtime calls its plugin for new pods"
        self._health.report("other conflist", first and sentence)

    def _ask(self, hindrance: str) -> bool:
        """Ask those whose files changed; one that is lacking is a condition. Returns: whether other versions are to be offered."""
        before = self.versions
        try:
            self._spoken = self._directory.look(hindrance)
        except PluginLackingError as error:
            self._health.report(CONDITION, f"{CONDITION}: {error}", error=error)
            return False
        self._health.report(CONDITION, "")
        return self.versions != before

    def _needs_loopback(self) -> bool:
        runtime = self._runtime()
        return self._is_asked and (runtime is None or runtime.name.lower() not in WITHOUT_LOOPBACK)

    def _record_all(self, repairs: Sequence[Repaired]) -> None:
        """Count repairs, and record them in the ledger."""
        self._fights.count_repairs(repairs)
        try:
            for repaired in repairs:
                self._note(repaired)
        except IpamError as error:
            self._health.record_error("conflist", error)

    def wait_s(self) -> float:
        """See the base class."""
        if not self._is_begun:
            return START_LOOK_S
        look_s = HELD_S if self._health.is_held else super().wait_s()
        return soonest_s([look_s, self._fights.wait_s()]) or SETTLE_S
