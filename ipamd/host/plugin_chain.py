"""Refuse ADD while the runtime would fail after it, because a plugin of the chain is missing.

The runtime calls the plugins of a conflist one after the other. If a plugin behind ours is in none of the runtime's plugin
directories, ADD fails after ours has succeeded, and DEL, which begins at the end of the chain, fails before it reaches ours
(containerd issue 12130). So each attempt would cost an address.

The runtime passes its plugin directories to each plugin (CNI_PATH), and our own setting may differ from these. The runtime runs the
plugins of the first file in the configuration directory that it can load. If that file calls ours by another plugin, such as Multus,
that plugin runs the list to which the file leads, and adds its own directory to CNI_PATH. ADD is refused only if a plugin is proven to
be missing, because the daemon perhaps does not see every directory (I11). A directory that contains our own plugin is the host's
directory, and not one of the image.
"""

from __future__ import annotations

import json
import math
import os
import stat
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ipamd.host.conflist import PLUGIN_TYPE, SUFFIXES
from ipamd.model.record import dataclass
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.settings.settings_file import content_of

FILES_MAX = 64
"""The largest number of files of the configuration directory that are read. Ours: it has one or two."""

UNCHECKED_S = 1.0
"""For how long a chain counts as unchanged after it was compared with the files. Ours: a second is harmless, because an ADD may come
just before a change of the conflist anyway; and each comparison makes system calls, which other threads may delay."""

SETTLED_S = 0.1
"""If two changes of a directory are farther apart than this, the kernel records different times for them. Ours: ten times the longest
tick of a kernel's clock."""


@dataclass(frozen=True, slots=True)
class _KnownChain:
    """The chain as it was read, and the statuses by which a change of it is noticed.

    `paths`: the configuration directory, and the files that were read until one could be loaded.
    `statuses`: for each path, values that differ after the path was changed (`_status`).
    `chained`: types of the plugins in one chain with ours.
    `is_followed`: our plugin is not in the first file's own list, so the chain is that of the list to which this file leads. That list
        may be in any file, so the statuses do not show a change of it, and the chain is looked up again after UNCHECKED_S.
    """

    paths: tuple[str, ...]
    statuses: tuple[object, ...]
    chained: tuple[str, ...]
    is_followed: bool

    def is_current(self) -> bool:
        """Whether the chain is certainly still the same. Raises: OSError if a path is gone."""
        return not self.is_followed and tuple(_status(path) for path in self.paths) == self.statuses


class PluginChain:
    """The chain of plugins that the runtime runs. Safe from any thread.

    Files are read again only after a change, and after UNCHECKED_S if our plugin is not in the first file's own list (`is_followed`).
    """

    def __init__(self, directory: Path, *, followed: Callable[[], Sequence[str]] = tuple) -> None:
        """Read nothing yet.

        Args:
            directory: the runtime's directory of CNI configuration.
            followed: returns the types of the plugins in the list to which the first file leads (`first_conflist.followed_chain`).
                Called if our plugin is not in the first file's own list.
        """
        self._directory = directory
        self._followed = followed
        self._known: _KnownChain | None = None
        self._checked_monotonic_s = -math.inf

    def require_plugins(self, directories: Sequence[str]) -> None:
        """Raise ChainedPluginMissingError if a plugin of the chain is in none of the runtime's directories.

        Every ADD calls this. While nothing changes and no plugin is missing, a call costs a stat of each plugin beside ours, and once
        in UNCHECKED_S a stat of the configuration directory and of the files that were read, or another reading of them if our plugin
        is not in the first file's own list.

        `directories`: CNI_PATH of the ADD; if it is empty, nothing is refused.
        """
        unseen = [name for name in self._chained_plugins() if not _is_in_any(directories, name)]
        if not unseen:
            return
        missing = _missing_plugins(directories, unseen)
        if missing:
            raise refusal(RefusalCode.CHAIN_INCOMPLETE, plugins=", ".join(missing), directories=", ".join(directories))

    def _chained_plugins(self) -> tuple[str, ...]:
        """Return the types of the plugins in one chain with ours; () if they are not known."""
        now_s = time.monotonic()
        known = self._known
        if known is not None and now_s - self._checked_monotonic_s < UNCHECKED_S:
            return known.chained
        try:
            if known is None or not known.is_current():
                known = self._read()
            self._checked_monotonic_s = now_s
        except OSError:
            self._known = None
            return ()
        return known.chained

    def _read(self) -> _KnownChain:
        """Read the first file that a runtime can load, and skip the files before it. Raises: OSError.

        The result is not kept if a path has changed within the last SETTLED_S, because a second change may have the same time.
        """
        directory = str(self._directory)
        paths, statuses = [directory], [_status(directory)]
        chained: tuple[str, ...] = ()
        is_followed = False
        for name in sorted(os.listdir(directory))[:FILES_MAX]:  # noqa: PTH208  # names are what is sorted
            if not name.endswith(SUFFIXES):
                continue
            path = f"{directory}/{name}"
            paths.append(path)
            statuses.append(_status(path))
            config = _loaded(path)
            if config is not None:
                types = _types_of(config)
                is_followed = PLUGIN_TYPE not in types
                chained = _chained_with_ours(self._followed() if is_followed else types)
                break
        known = _KnownChain(tuple(paths), tuple(statuses), chained, is_followed)
        changed_at_s = max(Path(path).stat().st_mtime for path in paths)
        is_settled = abs(time.time() - changed_at_s) > SETTLED_S
        self._known = known if is_settled else None
        return known


def _status(path: str) -> object:
    """Return values of a file or a directory that differ after it was changed. Raises: OSError."""
    status = os.stat(path)  # noqa: PTH116  # a Path costs more than the call, at every ADD
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _loaded(path: str) -> dict[str, Any] | None:
    """Read a configuration as a runtime does; None if it would skip the file."""
    try:
        config = json.loads(content_of(path))
    except (OSError, ValueError, RecursionError):
        return None
    is_network = isinstance(config, dict) and (config.get("type") or config.get("plugins"))
    return config if is_network else None


def _missing_plugins(directories: Sequence[str], unseen: Sequence[str]) -> tuple[str, ...]:
    """Return the plugins that are proven to be in none of the directories. `unseen`: plugins that the daemon sees in none of them."""
    for directory in directories:
        if _has_plugin(directory, PLUGIN_TYPE):
            shared = Path(directory)
            break
    else:
        # The runtime has just run our plugin from one of these directories, so the daemon does not see the host's directories.
        return ()
    missing = []
    for name in unseen:
        if all(_is_proven_missing(directory, name, shared=shared) for directory in directories):
            missing.append(name)
    return tuple(missing)


def _is_in_any(directories: Sequence[str], name: str) -> bool:
    """Whether a plugin, or a link that may lead to it on the host, is in a directory as the daemon sees it."""
    for directory in directories:
        try:
            mode = os.lstat(f"{directory}/{name}").st_mode
        except OSError:
            continue
        if _may_be_plugin(mode):
            return True
    return False


def _may_be_plugin(mode: int) -> bool:
    """Whether a file with this mode may be a plugin. A link counts, because it may lead to a file that only the host sees."""
    return stat.S_ISREG(mode) or stat.S_ISLNK(mode)


def _is_proven_missing(directory: str, name: str, *, shared: Path) -> bool:
    """Whether it is proven that a directory of the host lacks a plugin. `shared`: a directory that is the same for host and daemon."""
    path = Path(directory)
    try:
        if not _is_shared(path, shared):
            return False
        mode = (path / name).lstat().st_mode
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return not _may_be_plugin(mode)


def _is_shared(path: Path, shared: Path) -> bool:
    """Whether the daemon sees the host's directory at this path.

    In a container the daemon sees only the directories of the host that are mounted. It runs in a container if `shared`, the directory
    with our plugin, is a mount. Raises: OSError.
    """
    is_on_host = not shared.is_mount()
    if is_on_host:
        return True
    try:
        return path.samefile(shared) or path.stat().st_dev == shared.stat().st_dev
    except FileNotFoundError:
        return False  # it is not mounted here, and may be there on the host


def _has_plugin(directory: str, name: str) -> bool:
    try:
        return (Path(directory) / name).is_file()
    except OSError:
        return False


def _types_of(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the types of the plugins in a list; for a configuration without a list its own type."""
    plugins = config.get("plugins", [config])
    if not isinstance(plugins, list):
        return ()
    return tuple(str(plugin.get("type", "")) for plugin in plugins if isinstance(plugin, dict))


def _chained_with_ours(types: Sequence[str]) -> tuple[str, ...]:
    """Return the types of the plugins beside ours in a list that has ours; () for any other list."""
    if PLUGIN_TYPE not in types:
        return ()
    return tuple(dict.fromkeys(name for name in types if name not in ("", PLUGIN_TYPE) and Path(name).name == name))
