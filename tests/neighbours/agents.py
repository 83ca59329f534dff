"""Stand-ins for node agents that put themselves into the CNI configuration, written from their sources; none is the real program.

Each writes in the form of the real one, because the form is what a comparison of bytes stumbles over: Istio's agent writes sorted
keys and replaces the file, Linkerd's writes with jq's indentation and in place at its end, Antrea's copies into a file of its own.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar

from tests.patience import PATIENCE_S

Json = dict[str, Any]

LOOK_S = 0.05
"""Between two looks. The real agents are notified by inotify, which is about as quick."""


class ChainedAgent:
    """Appends its plugin to the first conflist, again whenever it is gone, and takes it out at its end."""

    plugin: ClassVar[Json] = {}

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.writes = 0
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def write(self, path: Path, document: Json) -> None:
        """Write a conflist in the agent's form."""
        raise NotImplementedError

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """End as a killed agent does: nothing is taken out."""
        self._ends.set()
        self._thread.join(PATIENCE_S)

    def uninstall(self) -> None:
        """End as a deleted agent does."""
        self.stop()
        for path in self._conflists():
            document = json.loads(path.read_text())
            plugins = [plugin for plugin in document["plugins"] if plugin["type"] != self.plugin["type"]]
            self.write_at_end(path, document | {"plugins": plugins})

    def write_at_end(self, path: Path, document: Json) -> None:
        """Write a conflist at an uninstall."""
        self.write(path, document)

    def _conflists(self) -> list[Path]:
        return sorted(self.directory.glob("*.conflist"))[:1]

    def _run(self) -> None:
        while not self._ends.wait(LOOK_S):
            for path in self._conflists():
                with suppress(OSError, ValueError):
                    self._append(path)

    def _append(self, path: Path) -> None:
        document = json.loads(path.read_text())
        if not any(plugin["type"] == self.plugin["type"] for plugin in document["plugins"]):
            self.write(path, document | {"plugins": [*document["plugins"], self.plugin]})
            self.writes += 1


class IstioAgent(ChainedAgent):
    """Source: istio/istio, cni/pkg/install/cniconfig.go: a Go map, so the keys are sorted; an atomic replacement."""

    plugin: ClassVar[Json] = {"type": "istio-cni", "name": "istio-cni", "plugin_log_level": "info", "ambient_enabled": False}

    def write(self, path: Path, document: Json) -> None:
        """Whole, by a rename."""
        scratch = path.with_name(f"{path.name}.tmp.123")
        scratch.write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")
        scratch.replace(path)


class LinkerdAgent(ChainedAgent):
    """Source: linkerd2-proxy-init, cni-plugin/deployment/scripts/install-cni.sh: jq; each conflist; in place at its end."""

    plugin: ClassVar[Json] = {"type": "linkerd-cni", "name": "linkerd-cni", "log_level": "info", "policy": {"type": "k8s"}}

    def write(self, path: Path, document: Json) -> None:
        """By mv from another directory's file system, which is a copy under the name's place in the worst case."""
        scratch = path.with_name(".linkerd-cni.conf.default")
        scratch.write_text(json.dumps(document, indent=2) + "\n")
        scratch.replace(path)

    def write_at_end(self, path: Path, document: Json) -> None:
        """Truncated and written."""
        path.write_text(json.dumps(document, indent=2) + "\n")

    def _conflists(self) -> list[Path]:
        return sorted(self.directory.glob("*.conflist"))


def copied(ours: Json, plugin: str, **fields: Any) -> Json:
    """A conflist of another project's that copies ours and appends a plugin: Istio's own, Antrea, Cilium."""
    return {**ours, **fields, "plugins": [*ours["plugins"], {"type": plugin}]}


@contextmanager
def running(agent: ChainedAgent) -> Iterator[ChainedAgent]:
    """An agent, stopped at the end in any case."""
    agent.start()
    try:
        yield agent
    finally:
        agent.stop()
