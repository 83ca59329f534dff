"""Write the conflist, the CNI configuration that makes the runtime call us.

A start writes it last, and atomically. A shutdown leaves it in place, because without it a runtime cannot delete sandboxes (containerd
#8774); only an export of the node to amazon-vpc-cni-k8s, and the clean-up of such a node, remove it. `cniVersion` is a version that
every libcni accepts. `cniVersions` lets a newer libcni choose a later version, with GC and STATUS (docs/adr/0009). A version is
offered only if every chained plugin has it (docs/adr/0039). Entries that other software appends stay (docs/adr/0060).

A hidden file beside the conflist, which no runtime reads, lists the plugins that we wrote into the conflist under earlier settings.
Without that list they would count as appended by other software.
"""

from __future__ import annotations

import json
import logging
import os
import stat
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from ipamd.model.chain_versions import conflist_version
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.conflist_parts import (
    PLUGINS,
    OthersPart,
    OwnPart,
    PartDefect,
    Plugin,
    canonical,
    defect_of,
    is_loadable,
    merge,
    others_in,
    parse,
    type_of,
)
from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode, failure
from ipamd.model.legs.aws_node_extra import EXTRA_LEG_PLUGINS
from ipamd.model.pod_annotations import POD_ANNOTATIONS
from ipamd.settings import Settings
from ipamd.settings.fields import FROM_ANNOTATIONS
from ipamd.settings.settings_file import SIZE_MAX, content_of, created

log = logging.getLogger(__name__)

NETWORK_NAME = "vpc-ipamd"
"""The `name` of the conflist."""

PLUGIN_TYPE = "vpc-cni"
"""The `type` of our plugin, which is the name of its binary."""

MODE = 0o644
"""Permissions of a new file, before the umask."""

OF_AWS_NODE = frozenset(("aws-cni", *EXTRA_LEG_PLUGINS, "portmap", "bandwidth", "tuning"))
"""Plugins of the conflist of amazon-vpc-cni-k8s. Source: amazon-vpc-cni-k8s, misc/10-aws.conflist, cmd/aws-vpc-cni/main.go."""

ONLY_INLINED = "loadOnlyInlinedPlugins"
"""Field of a conflist that turns plugins of other files off (`ConflistFile.dropped_in`)."""

DROPPED_IN_MAX = 64
"""The largest number of files with plugins of others that are read. Ours: a node has one or two."""

FORMER_MAX = 16
"""The largest number of plugins that the hidden file lists. Ours: settings chain only a few plugins."""

READ_AGAIN_S = 0.2
"""Pause in seconds before a file that no runtime can load is read again, because another program may have written only a part of it:
Linkerd's agent writes the file in place when it ends. Ours: such a small file is complete within milliseconds."""

TRIES_MAX = 5
"""The largest number of tries of one write. A try fails if another program replaces the file after we read it and before we write it.
Ours: that time is so short that several such failures in a row are very unlikely."""

POD_IPV6_OFF = {f"net.ipv6.conf.{name}.disable_ipv6": "1" for name in ("all", "default", "lo")}
"""Settings inside a pod without IPv6. Source: amazon-vpc-cni-k8s cmd/aws-vpc-cni/main.go, generateJSON."""


def render(settings: Settings, versions: tuple[str, ...] = SUPPORTED_VERSIONS) -> dict[str, Any]:
    """Build the conflist. The settings name the plugins that are chained behind ours.

    The pod's annotations are requested only if a setting needs them, because the runtime would pass up to 256 KiB of them in each
    call.

    `versions`: the CNI versions that all of these plugins have, oldest first.
    """
    config = settings.daemon
    ours: dict[str, Any] = {"type": PLUGIN_TYPE}
    if _reads_annotations(settings):
        ours["capabilities"] = {POD_ANNOTATIONS: True}
    plugins = [ours]
    if config.portmap:
        plugins.append({"type": "portmap", "snat": True, "capabilities": {"portMappings": True}})
    if config.bandwidth:
        plugins.append({"type": "bandwidth", "capabilities": {"bandwidth": True}})
    if config.pod_ipv6_disabled:
        plugins.append({"type": "tuning", "sysctl": POD_IPV6_OFF})
    plugins += json.loads(config.chained_plugins or "[]")
    return {
        "cniVersion": conflist_version(versions),
        "cniVersions": list(versions),
        "name": NETWORK_NAME,
        "plugins": plugins,
    }


def _reads_annotations(settings: Settings) -> bool:
    """Whether a feature that reads the pod's annotations is turned on."""
    network = settings.network
    has_facts = network.pod_eni and settings.pod_facts.source == FROM_ANNOTATIONS
    choices = (network.snat_annotation_namespaces, network.pinned_ranges, network.multi_nic, settings.subnets.pool_annotations)
    return has_facts or any(choices)


def former_list(conflist: Path) -> Path:
    """Return the path of the hidden file beside a conflist that lists the plugins of earlier settings."""
    return conflist.with_name(f".{conflist.name}.ours")


class ConflistFile:
    """Reads and writes the conflist. Remembers the appended entries, in case the file is removed or damaged. Used by one thread."""

    def __init__(self, settings: Settings, *, read_again_s: float = 0.0, writer: str = "") -> None:
        """Set up; reads nothing.

        Args:
            read_again_s: pause before a file that no runtime can load is read again, because another program may be writing it.
            writer: part of the scratch file's name. It must differ between two threads that write the same conflist.
        """
        self._read_again_s = read_again_s
        self.path = settings.daemon.conflist_path
        self.settings = settings
        self._former_path = former_list(self.path)
        self._scratch = self.path.with_name(f".{self.path.name}{writer}.tmp")
        self._remembered: OthersPart | None = None

    def appended(self) -> OthersPart:
        """Return the part that other software appended. If the file is damaged or gone, return the part that was read last.

        If no such part was read yet, return the part that other software appended to the conflist of amazon-vpc-cni-k8s. Raises:
        SettingsError if the file cannot be read.
        """
        return self._appended_in(self._document(), self.own_part(SUPPORTED_VERSIONS))

    def dropped_in(self) -> OthersPart:
        """Return the plugins that other software put into files of the directory with our network's name, beside the conflist.

        A runtime with libcni 1.3 or later (containerd 2.1) chains them behind the plugins of the conflist, unless the field
        ONLY_INLINED of the conflist turns this off. Source: github.com/containernetworking/cni, libcni/conf.go, NetworkConfFromFile.
        """
        directory = self.path.with_name(NETWORK_NAME)
        plugins = []
        with suppress(OSError):
            names = sorted(name for name in os.listdir(directory) if name.endswith(".conf"))  # noqa: PTH208  # names are sorted
            for name in names[:DROPPED_IN_MAX]:
                plugin = _read_plugin(directory / name)
                if plugin is not None:
                    plugins.append(plugin)
        if plugins and self._loads_only_inlined():
            return OthersPart()
        return OthersPart(tuple(plugins))

    def _loads_only_inlined(self) -> bool:
        """Whether a field of the file turns plugins of other files off. Others may have set it, as a boolean or as text."""
        with suppress(SettingsError):
            return str((self._document() or {}).get(ONLY_INLINED, False)).lower() == "true"
        return False

    def defect(self, versions: tuple[str, ...]) -> PartDefect | None:
        """Compare our part of the file with the part that is rendered for these versions.

        Returns: None if our part is right. Raises: SettingsError if the file cannot be read.
        """
        if not os.path.lexists(self.path):
            return PartDefect.MISSING
        return defect_of(self._document(), self.own_part(versions))

    def write(self, versions: tuple[str, ...], appended: OthersPart | None = None) -> Path:
        """Put our part in place, atomically: a reader sees the whole old file or the whole new file. A correct file is not written.

        If another program replaced the file during each of TRIES_MAX tries, the file stays as that program wrote it. The next check of
        `ConflistKeeper` then finds the difference.

        Args:
            versions: the CNI versions to offer.
            appended: the entries of other software behind our part; None: the entries that are in the file now.
        Returns: the file's path. Raises: SettingsError if the file cannot be read, or if the directory cannot be written.
        """
        own_part = self.own_part(versions)
        self._remember_former(own_part)
        try:
            for _ in range(TRIES_MAX):
                before = self._content()
                appended_part = appended
                if appended_part is None:
                    appended_part = self._appended_in(parse(before), own_part)
                if self._is_in_place(before, own_part, appended_part):
                    break
                if self._replace(merge(own_part, appended_part), before=before):
                    break
        except OSError as error:
            with suppress(OSError):
                self._scratch.unlink()
            raise failure(SettingsError, FailureCode.CONFLIST_NOT_WRITTEN, path=self.path, cause=error.strerror) from error
        return self.path

    def own_part(self, versions: tuple[str, ...]) -> OwnPart:
        """Return our part of the conflist, rendered for these versions."""
        rendered = render(self.settings, versions)
        plugins = tuple(rendered.pop(PLUGINS))
        return OwnPart(rendered, plugins, self._former())

    def _document(self) -> dict[str, Any] | None:
        """Read the file; None if no runtime can load it. Raises: SettingsError if it cannot be read."""
        try:
            document = parse(self._content())
            if document is None and self._read_again_s and self.path.is_file():
                time.sleep(self._read_again_s)
                document = parse(self._content())
            return document
        except OSError as error:
            raise failure(SettingsError, FailureCode.CONFLIST_UNREADABLE, path=self.path, cause=error.strerror) from error

    def _content(self) -> bytes:
        """Read the file; b"" if no regular file is at the path. Raises: OSError."""
        if not self.path.is_file():
            return b""
        try:
            return content_of(str(self.path))
        except FileNotFoundError:
            return b""

    def _appended_in(self, document: Mapping[str, Any] | None, own_part: OwnPart) -> OthersPart:
        present = others_in(document, own_part)
        if present is not None:
            self._remembered = present
        if self._remembered is None:
            return self._appended_for_aws_node()
        return self._remembered

    def _appended_for_aws_node(self) -> OthersPart:
        """Return the entries that other software appended to the conflist of amazon-vpc-cni-k8s.

        They are needed on a node that is taken over, where the runtime has used that conflist so far. The plugins of
        amazon-vpc-cni-k8s itself and entries without a binary are left out.
        """
        daemon = self.settings.daemon
        path = self.settings.takeover.conflist_beside(self.path)
        try:
            document = parse(content_of(str(path)))
        except OSError:
            return OthersPart()
        appended = _loadable_entries(document)
        foreign = []
        for plugin in appended:
            kind = type_of(plugin)
            if kind in OF_AWS_NODE or kind == PLUGIN_TYPE or "/" in kind:
                continue
            if os.path.lexists(daemon.cni_bin_dir / kind):
                foreign.append(plugin)
        return OthersPart(tuple(foreign))

    def _is_in_place(self, content: bytes, own_part: OwnPart, appended: OthersPart) -> bool:
        """Whether the file has the right content, in any JSON form. A symbolic link is never right, so that it is replaced."""
        document = parse(content)
        return not self.path.is_symlink() and document is not None and canonical(document) == canonical(merge(own_part, appended))

    def _replace(self, document: Mapping[str, Any], *, before: bytes) -> bool:
        """Replace the file; False if another program has replaced it since `before` was read. Raises: OSError."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        _write_synced(self._scratch, document, mode=self._mode())
        if self._content() != before:
            self._scratch.unlink(missing_ok=True)
            return False
        self._scratch.replace(self.path)
        return True

    def _mode(self) -> int:
        """Return the permissions of the present file, which may protect a secret in an appended entry; else MODE."""
        with suppress(OSError):
            status = self.path.lstat()
            if stat.S_ISREG(status.st_mode):
                return stat.S_IMODE(status.st_mode) & 0o666 | 0o600
        return MODE

    def _former(self) -> tuple[Plugin, ...]:
        """Read the list of plugins of earlier settings; () if there is no list."""
        try:
            document = parse(content_of(str(self._former_path)))
        except OSError:
            return ()
        plugins = document.get(PLUGINS) if document is not None else None
        if not isinstance(plugins, list):
            return ()
        return tuple(plugin for plugin in plugins[:FORMER_MAX] if isinstance(plugin, dict))

    def _remember_former(self, own_part: OwnPart) -> None:
        """Write the list of our plugins before the conflist, so that a start under other settings recognises them as ours.

        If the list cannot be written, the conflist is written anyway, because the list matters only after a setting stops chaining a
        plugin.
        """
        listed_by_text = {canonical(plugin): plugin for plugin in (*own_part.plugins[1:], *own_part.former)}
        listed = list(listed_by_text.values())[:FORMER_MAX]
        if self.path.is_dir() or canonical(listed) == canonical(list(own_part.former)):
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            _write_synced(self._scratch, {PLUGINS: listed})
            self._scratch.replace(self._former_path)
        except OSError as error:
            log.warning("failed to write the list of our plugins path=%s error=%s", self._former_path, error.strerror)


SUFFIXES = (".conf", ".conflist", ".json")
"""Suffixes of configuration files. A runtime uses only the first of these files by name.

Source: github.com/containernetworking/cni, libcni/conf.go (ConfFiles).
"""


def sorts_before(path: Path) -> str:
    """Return the path of the file that a runtime uses instead of the conflist at `path`; "" if there is none.

    A runtime uses the first file by name, and skips unreadable files.
    """
    with suppress(OSError):
        for name in sorted(os.listdir(path.parent)):  # noqa: PTH208  # names are what is sorted
            if name >= path.name:
                break
            if name.endswith(SUFFIXES) and _may_be_taken(path.with_name(name)):
                return str(path.with_name(name))
    return ""


def unusable_before(path: Path) -> str:
    """Return the path of a file that sorts first, before the conflist at `path`, and has no configuration that a runtime can use.

    CRI-O skips such a file. containerd does not: it reports "cni plugin not initialized", and no new pod starts (1.6.20 and 2.1,
    `tests/lab/runtime/test_unusable_conflist.py`). A file that cannot be read, or is empty, is passed over.
    Returns: "" if there is none.
    """
    with suppress(OSError):
        for name in sorted(os.listdir(path.parent)):  # noqa: PTH208  # names are what is sorted
            other = path.with_name(name)
            if name >= path.name or (name.endswith(SUFFIXES) and _may_be_taken(other)):
                break
            if name.endswith(SUFFIXES) and _has_content(other):
                return str(other)
    return ""


def _has_content(path: Path) -> bool:
    """Whether a file can be read, and is not empty."""
    try:
        return bool(content_of(str(path)).strip())
    except (OSError, ValueError):
        return False


def _may_be_taken(path: Path) -> bool:
    """Whether a runtime may use the file as its configuration. True for a file that is larger than SIZE_MAX; False if the file
    cannot be read.
    """
    try:
        content = content_of(str(path))
    except (OSError, ValueError):
        return False
    document = parse(content)
    return len(content) > SIZE_MAX or bool(document and (document.get("type") or document.get(PLUGINS)))


def difference(settings: Settings, versions: tuple[str, ...] = SUPPORTED_VERSIONS) -> str:
    """Return a phrase about the defect of our part of the file (`PartDefect`); "" if there is none. Raises: SettingsError if the file
    cannot be read.
    """
    return ConflistFile(settings).defect(versions) or ""


def write(settings: Settings, versions: tuple[str, ...] = SUPPORTED_VERSIONS) -> Path:
    """Put our part of the conflist in place; see `ConflistFile.write`."""
    return ConflistFile(settings).write(versions)


def _write_synced(path: Path, document: Mapping[str, Any], *, mode: int = MODE) -> None:
    """Write a JSON file and wait for the disk. Raises: OSError."""
    with created(path, mode) as stream:
        stream.write(f"{json.dumps(document, indent=2)}\n".encode())
        stream.flush()
        os.fsync(stream.fileno())


def _read_plugin(path: Path) -> Plugin | None:
    """Read the configuration of one plugin; None if no runtime can load it, or it is too large."""
    try:
        content = content_of(str(path))
    except (OSError, ValueError):
        return None
    plugin = parse(content) if len(content) <= SIZE_MAX else None
    return plugin if is_loadable(plugin) else None


def _loadable_entries(document: Mapping[str, Any] | None) -> list[Any]:
    entries = None if document is None else document.get(PLUGINS)
    if not isinstance(entries, list):
        return []
    return [plugin for plugin in entries if is_loadable(plugin)]
