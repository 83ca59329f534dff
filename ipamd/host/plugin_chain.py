"""Refuse ADD while the runtime would fail after it, because a plugin of the chain is missing.

The runtime calls the plugins of a conflist one after the other. If a plugin behind ours is in none of its directories, ADD fails
after ours has succeeded, and DEL, which begins at the end of the chain, fails before it reaches ours (containerd issue 12130). So
each attempt would cost an address.

The runtime passes its plugin directories to each plugin (CNI_PATH); our own setting may differ. It runs the plugins of the first file
in the configuration directory that it can load. ADD is refused only if the plugin is proven to be missing, because the daemon may not
see every directory (I11). If our own plugin is in a directory, that is the host's directory and not the image's.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ipamd.host.conflist import PLUGIN_TYPE, SUFFIXES
from ipamd.model.refusals import RefusalCode, refusal
from ipamd.settings.settings_file import content_of

FILES_MAX = 64
"""Files of the configuration directory that are read. Ours: it has one or two."""


class PluginChain:
    """The chain of plugins that the runtime runs. Keeps the file's content while no file changes. Safe from any thread."""

    def __init__(self, directory: Path) -> None:
        """`directory`: the one with the runtime's CNI configuration."""
        self._directory = directory
        self._read: tuple[tuple[object, ...], tuple[str, ...]] = ((), ())

    def require_plugins(self, directories: Sequence[str]) -> None:
        """Raise ChainedPluginMissingError if a plugin of the chain is in none of the runtime's directories.

        `directories`: CNI_PATH of the ADD; if it is empty, nothing is refused. Every ADD calls this. While no plugin is missing it
        costs one listing of the configuration directory and one stat of each file.
        """
        unseen = [name for name in self._chained_plugins() if not _is_in_any(directories, name)]
        if not unseen:
            return
        missing = _missing_plugins(directories, unseen)
        if missing:
            raise refusal(RefusalCode.CHAIN_INCOMPLETE, plugins=", ".join(missing), directories=", ".join(directories))

    def _chained_plugins(self) -> tuple[str, ...]:
        """Return the types of the plugins in one chain with ours; () if they are not known."""
        try:
            signature = self._signature()
        except OSError:
            return ()
        read_signature, chained = self._read
        if signature != read_signature:
            chained = self._read_chained([str(name) for name in signature[::2]])
            self._read = (signature, chained)
        return chained

    def _signature(self) -> tuple[object, ...]:
        """Return the files that a runtime may take, in its order, each with fields of its status that change with the content."""
        signature: list[object] = []
        for name in sorted(os.listdir(self._directory))[:FILES_MAX]:  # noqa: PTH208  # names are what is sorted
            if name.endswith(SUFFIXES):
                status = os.stat(f"{self._directory}/{name}")  # noqa: PTH116  # a Path costs more than the call, at every ADD
                signature += [name, (status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)]
        return tuple(signature)

    def _read_chained(self, names: Sequence[str]) -> tuple[str, ...]:
        """Read the first file that a runtime can load. Like the runtime, skip the others."""
        for name in names:
            try:
                config = json.loads(content_of(str(self._directory / name)))
            except (OSError, ValueError, RecursionError):
                continue
            if isinstance(config, dict) and (config.get("type") or config.get("plugins")):
                return _chained_with_ours(config)
        return ()


def _missing_plugins(directories: Sequence[str], unseen: Sequence[str]) -> tuple[str, ...]:
    """Return those of the unseen plugins that are proven to be in none of the directories."""
    for directory in directories:
        if _has_plugin(directory, PLUGIN_TYPE):
            shared = Path(directory)
            break
    else:
        return ()  # the runtime has just run our plugin from one of them, so the daemon sees other directories than the host's
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
    """Whether it is proven that a directory of the host lacks a plugin. `shared`: a directory that host and daemon both see."""
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
    """Whether a directory of the host is at the same path for the daemon.

    In a container this is true only for mounted directories. The daemon runs in a container if the directory of our plugin is a mount.
    Raises: OSError.
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


def _chained_with_ours(config: dict[str, Any]) -> tuple[str, ...]:
    """Return the types of the plugins beside ours in a list that has ours; () for any other list."""
    plugins = config.get("plugins")
    if not isinstance(plugins, list):
        return ()
    types = [str(plugin.get("type", "")) for plugin in plugins if isinstance(plugin, dict)]
    if PLUGIN_TYPE not in types:
        return ()
    return tuple(dict.fromkeys(name for name in types if name not in ("", PLUGIN_TYPE) and Path(name).name == name))
