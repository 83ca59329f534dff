"""Build and run commands of kubectl, with the options by which the operator chose a cluster and an identity."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from kubectl_ipamd.errors import NoAnswerError

ERROR_BYTES_MAX = 2000
"""Bytes of kubectl's standard error that are kept, from its end. Ours: the cause is in the last lines, and they are shorter."""


@dataclass(frozen=True)
class KubectlResult:
    """The exit status, the standard output and the end of the standard error of one command."""

    status: int
    output: bytes
    error: str


@dataclass(frozen=True)
class Kubectl:
    """The program kubectl with the operator's options.

    Args:
        program: the program's name or path.
        options: options for every command, such as `--context=production`.
    """

    program: str
    options: tuple[str, ...] = ()

    def command(self, *words: str) -> list[str]:
        """Return the whole command line of one command."""
        return [self.program, *self.options, *words]

    def run(self, words: Sequence[str], *, timeout_s: float) -> KubectlResult:
        """Run one command to its end, without standard input.

        Raises: NoAnswerError if the command takes longer than `timeout_s`, or if kubectl cannot be started.
        """
        try:
            done = subprocess.run(
                self.command(*words), stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout_s, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise NoAnswerError(f"no end within {timeout_s:.0f} s") from error
        except OSError as error:
            raise NoAnswerError(f"{self.program} cannot be started: {error.strerror}") from error
        return KubectlResult(done.returncode, done.stdout, last_words(done.stderr))


def last_words(error: bytes) -> str:
    """Return the end of what a program wrote to standard error."""
    return error[-ERROR_BYTES_MAX:].decode("utf-8", "replace").strip()
