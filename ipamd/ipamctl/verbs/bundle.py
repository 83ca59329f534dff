"""`ipamctl bundle`: one archive of this node's state for support, without secrets."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ipamd.ipamctl.verb import Answer, Ask, RefusedError, UsageError, Verb, argument, table

if TYPE_CHECKING:
    from ipamd.ipamctl.archive import Part

STDOUT = "-"


def render(answer: Answer) -> str:
    """Write where it is and what failed; nothing if it went to standard output."""
    if answer["file"] == STDOUT:
        return ""
    failed = [part for part in answer["parts"] if part["problem"]]
    whole = len(answer["parts"]) - len(failed)
    lines = [
        f"{answer['file']}: {whole} of {len(answer['parts'])} parts, {answer['bytes']} bytes; it holds addresses and names of pods"
    ]
    return "\n".join([*lines, "", table(failed, {"PART": "{name}", "PROBLEM": "{problem}"})] if failed else lines)


def _bundle(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.archive import collect

    if arguments.file == STDOUT and arguments.output != "table":
        raise UsageError(f"-o {arguments.output} and -f - would both write to standard output")
    at_s = time.time()
    file = arguments.file or f"vpc-ipamd-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at_s))}.tar.gz"
    made = _parts(daemon, arguments)
    opened: AbstractContextManager[IO[bytes]] = nullcontext(sys.stdout.buffer)
    try:
        if file != STDOUT:
            # Made by us and readable by root alone: what is there already is not overwritten.
            opened = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        with opened as out:
            found = collect(made, out, at_s=at_s)
            out.flush()
            size = 0 if file == STDOUT else out.tell()
    except OSError as error:
        advice = "name another with -f, or use -f - and redirect"
        raise RefusedError(f"{file} cannot be written: {error.strerror}: {advice}") from error
    return {"file": file, "bytes": size, "parts": [one._asdict() for one in found]}


def _parts(daemon: Ask, arguments: argparse.Namespace) -> list[Part]:
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


BUNDLE = Verb(
    help="one archive of this node's state for support, without secrets; exit 1 if a part is missing",
    render=render,
    make=_bundle,
    arguments=(
        argument("-f", "--file", default="", metavar="FILE", help="where to; - is standard output, as for kubectl exec"),
        argument("--log", action="append", default=[], metavar="FILE", help="a log of the daemon to take in (repeatable)"),
        argument("--history-dir", default="", metavar="DIR", help="where the history lies (default: the setting's)"),
    ),
    needs_attention=lambda answer: any(part["problem"] for part in answer["parts"]),
)
