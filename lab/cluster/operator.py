"""An operator's shell beside the cluster: kubectl and `kubectl ipamd` on the PATH, and the administrator's kubeconfig."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Mapping

from lab.cluster import programs
from lab.cluster.cluster import Cluster
from lab.cluster.control_plane import FOLDER
from lab.node.node import REPOSITORY
from lab.node.process import BASE_ENVIRONMENT

HOME = "/run/operator"
TIMEOUT_S = 240.0
COLUMNS = 1000
"""Of a terminal: no sentence is broken within words that a verdict looks for."""

Answer = subprocess.CompletedProcess[str]


class Operator:
    """Runs commands as a page for operators has them. Concurrency: one thread."""

    def __init__(self, cluster: Cluster) -> None:
        """Put the plugin where kubectl finds it. An installed wheel would do the same: the checkout's needs no package index."""
        self._node = cluster.control.node
        run = f"PYTHONPATH={REPOSITORY} exec {sys.executable} -m kubectl_ipamd"
        self._node.write_file(f"{HOME}/bin/kubectl-ipamd", f'#!/bin/sh\n{run} "$@"\n'.encode(), 0o755)
        path = f"{HOME}/bin:{programs.PROGRAMS}:{BASE_ENVIRONMENT['PATH']}"
        self._environment = {"PATH": path, "HOME": HOME, "KUBECONFIG": f"{FOLDER}/admin.conf", "TERM": "dumb"}

    @property
    def home(self) -> str:
        """The folder in which commands run, as this process sees it."""
        return f"{self._node.root}{HOME}"

    def run(self, command: str, words: Mapping[str, str], *, on_terminal: bool = False) -> Answer:
        """Have a shell run a command.

        Args:
            words: what stands for the reader's own in it, such as NODE.
            on_terminal: whether kubectl's input and output are a terminal, for which `-it` asks.
        """
        line = filled(command, words)
        argv = (
            ["/usr/bin/script", "-qec", f"stty cols {COLUMNS}; {line}", "/dev/null"] if on_terminal else ["/bin/sh", "-c", line]
        )
        return self._node.run(argv, env=self._environment, cwd=HOME, timeout_s=TIMEOUT_S, check=False)


def filled(command: str, words: Mapping[str, str]) -> str:
    """A command with the reader's own words in it."""
    for word, value in words.items():
        command = re.sub(rf"\b{word}\b(?!=)", shlex.quote(value), command)
    return command
