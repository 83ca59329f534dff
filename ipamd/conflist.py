"""The CNI configuration that tells the runtime to call us: written last, atomically, and never removed.

Shutting down leaves it in place: without it a runtime cannot delete sandboxes (containerd #8774). `cniVersion` is one that every
libcni accepts; `cniVersions` lets newer ones choose a later version, with GC and STATUS (docs/adr/0009). Only those versions are
offered that every chained plugin speaks (docs/adr/0039).
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from ipamd.model.cniversion import SUPPORTED_VERSIONS
from ipamd.model.errors import SettingsError
from ipamd.model.plugin_versions import conflist_version
from ipamd.settings import DaemonConfig

NETWORK_NAME = "vpc-ipamd"
PLUGIN_TYPE = "vpc-cni"


def chained_types(config: DaemonConfig) -> tuple[str, ...]:
    """The plugins that are chained behind ours, in their order."""
    return tuple(str(plugin["type"]) for plugin in render(config)["plugins"][1:])


def render(config: DaemonConfig, versions: tuple[str, ...] = SUPPORTED_VERSIONS) -> dict[str, Any]:
    """Build the conflist; `config` says which plugins are chained behind ours, `versions` (oldest first) what all of them speak."""
    plugins: list[dict[str, Any]] = [{"type": PLUGIN_TYPE}]
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


def difference(config: DaemonConfig, versions: tuple[str, ...] = SUPPORTED_VERSIONS) -> str:
    """Say how the file differs from what `write` puts there; "" if it does not. Raises: SettingsError if it cannot be read."""
    path = config.conflist_path
    try:
        return "" if path.read_bytes() == _content(config, versions).encode() else "had been changed"
    except FileNotFoundError:
        return "was missing"
    except OSError as error:
        raise SettingsError(f"cannot read {path}: {error.strerror}", details="mount the CNI configuration directory") from error


def write(config: DaemonConfig, versions: tuple[str, ...] = SUPPORTED_VERSIONS) -> Path:
    """Put the conflist in place atomically: a reader sees the whole old file or the whole new one.

    Returns: its path. Raises: SettingsError if the directory cannot be written.
    """
    path = config.conflist_path
    content = _content(config, versions)
    scratch = path.with_name(f".{path.name}.tmp")
    try:
        if not path.is_symlink() and path.exists() and path.read_bytes() == content.encode():
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        # What lies there is of a daemon that was killed, or a stranger's link: neither is written into.
        scratch.unlink(missing_ok=True)
        descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        scratch.replace(path)
    except OSError as error:
        raise SettingsError(f"cannot write {path}: {error.strerror}", details="mount the CNI configuration directory") from error
    return path


def _content(config: DaemonConfig, versions: tuple[str, ...]) -> str:
    return json.dumps(render(config, versions), indent=2) + "\n"
