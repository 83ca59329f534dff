"""`kubectl ipamd exec NODE VERB...`: run `ipamctl` on a node, in this terminal."""

from __future__ import annotations

import argparse
import subprocess
import sys

from kubectl_ipamd.errors import CommandLineError, NoAnswerError
from kubectl_ipamd.execution import target
from kubectl_ipamd.session import Session, pod_of


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Run the verb. Returns: the exit status of `ipamctl`. Raises: PluginError."""
    words = [word for index, word in enumerate(arguments.words) if not (index == 0 and word == "--")]
    if not words:
        raise CommandLineError("name a verb of ipamctl, for example: kubectl ipamd exec NODE status")
    pod = pod_of(session.node(session.cluster(), arguments.node))
    with target(session.kubectl, pod, may_debug=arguments.debug) as place:
        command = session.kubectl.command("exec", *_terminal_options(), *place, "--", "ipamctl", *words)
        try:
            return subprocess.run(command, check=False).returncode
        except OSError as error:
            raise NoAnswerError(f"{session.kubectl.program} cannot be started: {error.strerror}") from error


def _terminal_options() -> list[str]:
    """Options that give `ipamctl` a terminal, if there is one: it then has its width, its colours and Ctrl-C."""
    if sys.stdin.isatty() and sys.stdout.isatty():
        return ["-i", "-t"]
    return []
