"""Read a container runtime's directories of CNI plugins from its verbose answer to Status.

containerd's answer has its configuration as JSON, with `cni.binDir`, and from 2.1 on also `cni.binDirs`
(github.com/containerd/containerd, internal/cri/config/config.go, CniConfig). CRI-O's answer has no such directories.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

DIRECTORIES_MAX = 16
"""The largest number of directories that are returned. Ours: a runtime has one or two."""


def plugin_directories(info: Mapping[str, str]) -> tuple[Path, ...]:
    """Return the directories of plugins, each once; () if the answer does not show them.

    `info`: the field `info` of CRI's StatusResponse.
    """
    try:
        config = json.loads(info.get("config", ""))
    except (ValueError, RecursionError):
        return ()
    cni = config.get("cni") if isinstance(config, dict) else None
    if not isinstance(cni, dict):
        return ()
    paths = [cni.get("binDir")]
    further_paths = cni.get("binDirs")
    if isinstance(further_paths, list):
        paths += further_paths
    directories = [Path(path) for path in paths if isinstance(path, str) and path.startswith("/") and "\0" not in path]
    return tuple(dict.fromkeys(directories))[:DIRECTORIES_MAX]
