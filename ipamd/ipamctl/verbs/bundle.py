"""`ipamctl bundle`: one archive of this node's state for support, without secrets."""

from __future__ import annotations

import argparse
from typing import IO, TYPE_CHECKING

from ipamd.ipamctl.verb import EXIT_ATTENTION, EXIT_REFUSED, EXIT_USAGE, Answer, Ask, Verb, VerbError, table

if TYPE_CHECKING:
    from ipamd.ipamctl.archive import Collected, Part

STDOUT = "-"


def render(answer: Answer) -> str:
    """Write where it is and what failed; nothing if it went to standard output."""
    if answer["file"] == STDOUT:
        return ""
    failed = [(part["name"], part["problem"]) for part in answer["parts"] if part["problem"]]
    whole = len(answer["parts"]) - len(failed)
    lines = [
        f"{answer['file']}: {whole} of {len(answer['parts'])} parts, {answer['bytes']} bytes; it holds addresses and names of pods"
    ]
    return "\n".join([*lines, "", table(("PART", "PROBLEM"), failed)] if failed else lines)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-f", "--file", default="", metavar="FILE", help="where to; - is standard output, as for kubectl exec")
    parser.add_argument("--log", action="append", default=[], metavar="FILE", help="a log of the daemon to take in (repeatable)")
    parser.add_argument("--history-dir", default="", metavar="DIR", help="where the history lies (default: the setting's)")


def _ask(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    import os
    import sys
    import time

    if arguments.file == STDOUT and arguments.output != "table":
        raise VerbError(f"-o {arguments.output} and -f - would both write to standard output", exit_status=EXIT_USAGE)
    at_s = time.time()
    file = arguments.file or f"vpc-ipamd-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at_s))}.tar.gz"
    parts = _parts(daemon, arguments)
    try:
        if file == STDOUT:
            found, size = _written(parts, sys.stdout.buffer, at_s), 0
        else:
            # Made by us and readable by root alone: what is there already is not overwritten.
            with os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb") as out:
                found = _written(parts, out, at_s)
                size = out.tell()
    except OSError as error:
        advice = "name another with -f, or use -f - and redirect"
        raise VerbError(f"{file} cannot be written: {error.strerror}: {advice}", exit_status=EXIT_REFUSED) from error
    return {
        "file": file,
        "bytes": size,
        "parts": [
            {"name": one.name, "what": one.what, "bytes": one.bytes, "ms": one.ms, "problem": one.problem} for one in found
        ],
    }


def _parts(daemon: Ask, arguments: argparse.Namespace) -> list[Part]:
    from pathlib import Path

    from ipamd.ipamctl.archive import LOGS, parts
    from ipamd.settings import load_what_is_right

    settings = load_what_is_right().daemon  # wrong settings are a reason to collect
    return parts(
        daemon,
        run_dir=settings.run_dir,
        history_dir=Path(arguments.history_dir or settings.history_dir),
        metrics_address=settings.metrics_address,
        logs=tuple(arguments.log) or LOGS,
    )


def _written(parts: list[Part], out: IO[bytes], at_s: float) -> list[Collected]:
    from ipamd.ipamctl.archive import collect

    found = collect(parts, out, at_s=at_s)
    out.flush()
    return found


def _exit_status(answer: Answer) -> int:
    return EXIT_ATTENTION if any(part["problem"] for part in answer["parts"]) else 0


VERBS = {
    "bundle": Verb(
        help="one archive of this node's state for support, without secrets; exit 1 if a part is missing",
        ask=_ask,
        render=render,
        arguments=_arguments,
        exit_status=_exit_status,
        position=9,
        asks_daemon=False,
    )
}
