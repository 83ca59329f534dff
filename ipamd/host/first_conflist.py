"""Find the file that the runtime uses instead of our conflist, and whether it leads to our plugin.

A runtime uses only the first file by name. Multus, Istio, Antrea, and Cilium in chaining mode put a file before ours on purpose, and
call our plugin by `delegates`, by `clusterNetwork`, or by a copy of our list (docs/adr/0060). Such a file is not a fault, and its
removal would break the cluster. References are followed from file to file. Their number and the size of the files are bounded, and no
file is followed twice.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import Any

from ipamd.host.conflist import SUFFIXES, ConflistFile, sorts_before
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.conflist_copies import lines_of_copy, lines_of_wrapper
from ipamd.model.conflist_parts import PLUGINS, OwnPart, Plugin, parse, type_of
from ipamd.model.record import dataclass
from ipamd.settings import Settings
from ipamd.settings.settings_file import SIZE_MAX, content_of

MULTUS_DIRECTORY = "/etc/cni/multus/net.d"
"""The directory in which Multus looks up a network's name, unless `confDir` is set. Source: multus-cni, docs/configuration.md."""

WITH_DAEMON = "multus-shim"
"""A plugin of Multus that hands each call to Multus's daemon. The daemon has a configuration of its own, from a ConfigMap, which may
name the networks in place of this plugin's file. Source: multus-cni, pkg/server/server.go, overrideCNIConfigWithServerConfig."""

STEPS_MAX = 64
"""The largest number of configurations that one walk visits. Ours: a node with Multus has a handful, of which each calls the next."""

FILES_MAX = 128
"""The largest number of files of one directory that are read. Ours: a node has a handful."""

BYTES_MAX = 8 << 20
"""The largest number of bytes that one walk reads from all files together. Ours: eight files of the largest size (1 MiB)."""


class Target(StrEnum):
    """Whose plugin makes a sandbox's first interface. NOT_KNOWN: the node's files do not show it."""

    OURS = "ours"
    OTHERS = "others"
    NOT_KNOWN = "not known"


@dataclass(frozen=True, slots=True)
class FirstConflist:
    """The file that a runtime uses instead of ours.

    `target`: whose plugin the file leads to.
    `steps`: the keys and files by which it leads to our plugin; empty if it does not, or if it calls our plugin itself.
    `lines`: the lines that must change, in the file and in those to which it leads, each with the path of its file.
    `chain`: the types of the plugins in the list that has our plugin; empty if the file does not lead to our plugin.
    """

    path: str
    target: Target
    steps: tuple[str, ...] = ()
    lines: tuple[str, ...] = ()
    chain: tuple[str, ...] = ()


def first_conflist(ours: Path, own_parts: Sequence[OwnPart]) -> FirstConflist | None:
    """Find the file that a runtime uses instead of ours, and follow its references to our plugin; None if the runtime uses ours.

    Args:
        ours: path of our conflist.
        own_parts: our part of the conflist, once for each set of CNI versions that it may offer. A copy of our part in another file
            must equal one of them (`lines_of_copy`).
    """
    first = sorts_before(ours)
    if not first:
        return None
    return _ConflistWalk(ours, own_parts).follow_file(Path(first))


def followed_chain(settings: Settings) -> tuple[str, ...]:
    """If a runtime uses another file than ours, return the types of the plugins in the list to which that file leads.

    Returns: () if there is no such file, or if it does not lead to our plugin.
    """
    file = ConflistFile(settings)
    first = first_conflist(file.path, [file.own_part(SUPPORTED_VERSIONS)])
    return first.chain if first is not None else ()


class _ConflistWalk:
    """One walk along the references from the first file on. It stops at the first configuration that calls our plugin."""

    def __init__(self, ours: Path, own_parts: Sequence[OwnPart]) -> None:
        self._ours = ours
        self._own_parts = own_parts
        self._steps_left = STEPS_MAX
        self._bytes_left = BYTES_MAX
        self._visited: set[Path] = set()
        self._steps: list[str] = []
        self._lines: list[str] = []
        self._chain: tuple[str, ...] = ()

    def follow_file(self, path: Path) -> FirstConflist:
        """Walk along the references that begin in a file."""
        self._visited.add(path)
        document = self._read(path)
        target = Target.NOT_KNOWN
        if document is not None:
            target = self._follow(document, path)
        return FirstConflist(str(path), target, tuple(self._steps), tuple(self._lines), self._chain)

    def _follow(self, document: Plugin, path: Path) -> Target:
        """Return whose plugin a configuration calls. `path`: the file that contains the configuration."""
        self._steps_left -= 1
        if self._steps_left < 0:
            return Target.NOT_KNOWN
        plugins = document.get(PLUGINS)
        plugins = plugins if isinstance(plugins, list) else [document]
        if any(type_of(plugin) == self._own_parts[0].plugins[0]["type"] for plugin in plugins):
            self._lines += [f"{path}: {line}" for line in lines_of_copy(document, self._own_parts)]
            self._chain = _types(plugins)
            return Target.OURS
        return self._combined_target(self._follow_plugin(plugin, path) for plugin in plugins if isinstance(plugin, dict))

    def _follow_plugin(self, plugin: Plugin, path: Path) -> Target:
        """Return whose plugin the entry `plugin` of a configuration calls. Without a reference to another configuration it is OTHERS,
        except that it is NOT_KNOWN for the plugin WITH_DAEMON.

        Only the first key that is present counts: `clusterNetwork`, `delegates` or `delegate`.
        """
        network = plugin.get("clusterNetwork")
        delegate = plugin.get("delegate")
        if isinstance(network, str) and network:  # Multus ignores `delegates` beside a `clusterNetwork`
            step, target = f"clusterNetwork {network}", self._follow_network(network, plugin, path)
        elif _first_delegate(plugin) is not None:
            step, target = "delegates", self._follow(_first_delegate(plugin) or {}, path)
        elif isinstance(delegate, dict):
            step, target = "delegate", self._follow(delegate, path)
        elif type_of(plugin) == WITH_DAEMON:
            return Target.NOT_KNOWN
        else:
            return Target.OTHERS
        if target is Target.OURS:
            self._steps.insert(0, step)
            self._lines += [f"{path}: {line}" for line in lines_of_wrapper(plugin, self._own_parts[0])]
        return target

    def _follow_path(self, network: str) -> Target:
        place = self._place_of(network)
        if place is None:
            return Target.NOT_KNOWN
        if place.is_dir():
            return self._follow_first(path for path in _files(place) if path.suffix != ".json")
        return self._follow_first(iter([place]))

    def _follow_network(self, network: str, plugin: Plugin, path: Path) -> Target:
        """Return whose plugin a network of Multus calls. `network`: a path of a file or directory, or the name of a network."""
        if "/" in network:
            return self._follow_path(network)
        directories = [Path(str(plugin.get("confDir") or MULTUS_DIRECTORY)), path.parent, self._ours.parent]
        return self._follow_first(self._files_of_network(network, dict.fromkeys(directories)))

    def _files_of_network(self, network: str, directories: Iterable[Path]) -> Iterator[Path]:
        """Yield the files that have a network's name, and then our conflist if it has that name. A file is read when it is needed."""
        for directory in directories:
            for path in _files(directory):
                if self._name_of(path) == network:
                    yield path
        if network == self._own_parts[0].fields["name"]:
            yield self._ours

    def _follow_first(self, paths: Iterator[Path]) -> Target:
        """Follow the first of the files that is our conflist, or that can be read and was not visited.

        Returns: whose plugin that file calls. Without such a file: OTHERS if a file of `paths` was visited already, because references
            in a circle lead to no plugin; otherwise NOT_KNOWN.
        """
        answer = Target.NOT_KNOWN
        for path in paths:
            if path == self._ours:
                self._chain = _types((self._read(path) or {}).get(PLUGINS))
                return Target.OURS
            if path in self._visited:
                answer = Target.OTHERS
                continue
            document = self._read(path)
            if document is not None:
                self._visited.add(path)
                target = self._follow(document, path)
                if target is Target.OURS:
                    self._steps.insert(0, str(path))
                return target
        return answer

    def _read(self, path: Path) -> dict[str, Any] | None:
        """Read a file as a runtime does; None if no runtime can use it, or if it exceeds SIZE_MAX or what is left of BYTES_MAX."""
        with suppress(OSError, ValueError):
            content = content_of(str(path))
            self._bytes_left -= len(content)
            if len(content) <= SIZE_MAX and self._bytes_left >= 0:
                return parse(content)
        return None

    def _name_of(self, path: Path) -> object:
        document = self._read(path)
        if document is None:
            return None
        return document.get("name")

    def _place_of(self, network: str) -> Path | None:
        """Find the file or directory on the node that a path inside another program's container means; None if it is not found.

        The container may have mounted it below a prefix (`/host`), or in a directory with another name.
        """
        parts = Path(network).parts[1:]
        for start in range(min(len(parts), FILES_MAX)):
            place = Path("/", *parts[start:])
            with suppress(OSError, ValueError):
                if place == self._ours or place.exists():
                    return place
        if not parts or parts[-1] == "..":
            return None
        beside = self._ours.with_name(parts[-1])
        if beside == self._ours or beside.is_file():
            return beside
        return None

    @staticmethod
    def _combined_target(targets: Iterator[Target]) -> Target:
        """Return OURS if one of the targets is OURS, else NOT_KNOWN if one is NOT_KNOWN, else OTHERS. Stops at the first OURS."""
        answer = Target.OTHERS
        for target in targets:
            if target is Target.OURS:
                return target
            if target is Target.NOT_KNOWN:
                answer = target
        return answer


def _types(plugins: object) -> tuple[str, ...]:
    return tuple(map(type_of, plugins)) if isinstance(plugins, list) else ()


def _first_delegate(plugin: Plugin) -> Plugin | None:
    """Return the delegate that makes a sandbox's first interface: the delegate with `masterplugin`, or else the first delegate; None
    if there is none.

    Source: multus-cni, pkg/types/conf.go.
    """
    delegates = plugin.get("delegates")
    if not isinstance(delegates, list):
        return None
    configurations = [delegate for delegate in delegates[:STEPS_MAX] if isinstance(delegate, dict)]
    masters = [delegate for delegate in configurations if delegate.get("masterplugin") is True]
    return next(iter([*masters, *configurations]), None)


def _files(directory: Path) -> Iterator[Path]:
    """Yield the configuration files of a directory, sorted by name."""
    with suppress(OSError, ValueError):
        names = sorted(name for name in os.listdir(directory) if name.endswith(SUFFIXES))  # noqa: PTH208  # names are sorted
        yield from [directory / name for name in names[:FILES_MAX]]
