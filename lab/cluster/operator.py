"""A shell as an operator has it: kubectl and `kubectl ipamd` are on the PATH, and the kubeconfig is the administrator's."""

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
"""Width of the terminal. Ours: wide enough that no line is broken within a sentence that a verdict searches for."""

Answer = subprocess.CompletedProcess[str]


class Operator:
    """Runs commands exactly as the documents for operators have them. Concurrency: one thread."""

    def __init__(self, cluster: Cluster) -> None:
        """Put the kubectl plugin on the PATH. It runs from the checkout, because the installation of a wheel needs a package index."""
        self._node = cluster.control.node
        run = f"PYTHONPATH={REPOSITORY} exec {sys.executable} -m kubectl_ipamd"
        self._node.write_file(f"{HOME}/bin/kubectl-ipamd", f'#!/bin/sh\n{run} "$@"\n'.encode(), 0o755)
        path = f"{HOME}/bin:{programs.PROGRAMS}:{BASE_ENVIRONMENT['PATH']}"
        self._environment = {"PATH": path, "HOME": HOME, "KUBECONFIG": f"{FOLDER}/admin.conf", "TERM": "dumb"}

    @property
    def home(self) -> str:
        """The path, for this process, of the folder in which commands run."""
        return f"{self._node.root}{HOME}"

    def run(self, command: str, words: Mapping[str, str], *, on_terminal: bool = False) -> Answer:
        """Run a command in a shell.

        Args:
            words: placeholder of the document, such as NODE -> value.
            on_terminal: whether input and output of the command are a terminal, which kubectl's option `-it` needs.
        """
        line = filled(command, words)
        argv = (
            ["/usr/bin/script", "-qec", f"stty cols {COLUMNS}; {line}", "/dev/null"] if on_terminal else ["/bin/sh", "-c", line]
        )
        return self._node.run(argv, env=self._environment, cwd=HOME, timeout_s=TIMEOUT_S, check=False)


def filled(command: str, words: Mapping[str, str]) -> str:
    """Return a command with its placeholders replaced by their values."""
    for word, value in words.items():
        command = re.sub(rf"\b{word}\b(?!=)", shlex.quote(value), command)
    return command
