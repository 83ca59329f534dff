"""`kubectl ipamd exec NODE VERB...`: run `ipamctl` on a node, in this terminal."""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
from collections.abc import Sequence

from kubectl_ipamd.cluster import CONTAINER, DaemonPod
from kubectl_ipamd.errors import CommandLineError, NoAnswerError
from kubectl_ipamd.execution import target
from kubectl_ipamd.session import Session, pod_of


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Run the verb. Returns: the exit status of `ipamctl`. Raises: PluginError."""
    words = [word for index, word in enumerate(arguments.words) if not (index == 0 and word == "--")]
    if not words:
        raise CommandLineError("name a verb of ipamctl, for example: kubectl ipamd exec NODE status")
    pod = pod_of(session.node(session.cluster(), arguments.node))
    if words[0] == CONFIG and not pod.is_running:
        raise NoAnswerError(_no_settings(session, pod))
    with target(session.kubectl, pod, may_debug=arguments.debug) as place:
        command = session.kubectl.command("exec", *_input_options(words), *place, "--", "ipamctl", *words)
        try:
            return subprocess.run(command, check=False).returncode
        except OSError as error:
            raise NoAnswerError(f"{session.kubectl.program} cannot be started: {error.strerror}") from error


CONFIG = "config"
"""The verb of `ipamctl` that lists settings. While the daemon does not run it lists those of its own environment. In a debug pod these
are not the daemon's."""


def _no_settings(session: Session, pod: DaemonPod) -> str:
    """Say where the settings of a daemon that does not run are."""
    kubectl = f"{shlex.join(session.kubectl_words)} -n {pod.namespace}"
    return (
        f"the daemon on {pod.node} does not run ({pod.problem}), and a debug pod does not have its settings. "
        f"Its environment: {kubectl} set env pod/{pod.name} -c {CONTAINER} --list. "
        f"A wrong setting is named in its last line: {kubectl} logs {pod.name} -c {CONTAINER} --previous"
    )


STANDARD_INPUT = "-"
"""The word that means standard input in place of a file's name, for example in `ipamctl plan --network -`."""


def _input_options(words: Sequence[str]) -> list[str]:
    """Return the options of `kubectl exec` for standard input and terminal.

    If this program has a terminal, `ipamctl` gets one too: then it knows the width, shows colours, and Ctrl-C reaches it. Without a
    terminal `ipamctl` gets standard input only if a word says that it reads it. Otherwise it would take away the input of the caller,
    for example the lines that a `while read` loop of a shell still needs.
    """
    if STANDARD_INPUT in words:
        return ["-i"]
    if sys.stdin.isatty() and sys.stdout.isatty():
        return ["-i", "-t"]
    return []
