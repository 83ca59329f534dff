"""`ipamctl bundle`: one archive of this node's state for support, without secrets."""

from __future__ import annotations

import argparse
import os
import sys
import time
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import IO, TYPE_CHECKING

from ipamd.ipamctl.layout import Layout
from ipamd.ipamctl.tables import table
from ipamd.ipamctl.verb import Answer, Ask, RefusedError, UsageError, Verb, argument

if TYPE_CHECKING:
    from ipamd.ipamctl.archive_parts import Part


STDOUT = "-"


def render_bundle(answer: Answer, layout: Layout) -> str:
    """Write the file of the archive, and a table of the parts that failed; nothing if the archive went to standard output."""
    if answer["file"] == STDOUT:
        return ""
    failed = [part for part in answer["parts"] if part["problem"]]
    whole = len(answer["parts"]) - len(failed)
    head = f"{answer['file']}: {whole} of {len(answer['parts'])} parts, {answer['bytes']} bytes; it holds addresses and names of pods"
    if not failed:
        return head
    return "\n".join([head, "", table(failed, {"PART": "{name}", "PROBLEM": "{problem}"}, layout)])


def _bundle(daemon: Ask, arguments: argparse.Namespace) -> Answer:
    from ipamd.ipamctl.archive import collect

    if arguments.file == STDOUT and arguments.output in ("json", "yaml"):
        raise UsageError(f"-o {arguments.output} and -f - would both write to standard output")
    at_s = time.time()
    file = arguments.file or f"vpc-ipamd-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(at_s))}.tar.gz"
    parts = _parts(daemon, arguments)
    opened: AbstractContextManager[IO[bytes]] = nullcontext(sys.stdout.buffer)
    try:
        if file != STDOUT:
            # A new file that only root can read. An existing file is not overwritten.
            opened = os.fdopen(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb")
        with opened as out:
            collected = collect(parts, out, at_s=at_s)
            out.flush()
            size = 0
            if file != STDOUT:
                size = out.tell()
    except OSError as error:
        advice = "name another with -f, or use -f - and redirect"
        raise RefusedError(f"{file} cannot be written: {error.strerror}: {advice}") from error
    return {"file": file, "bytes": size, "parts": [part._asdict() for part in collected]}


def _parts(daemon: Ask, arguments: argparse.Namespace) -> list[Part]:
    from ipamd.ipamctl.archive_parts import LOGS, parts
    from ipamd.settings import load_valid

    settings = load_valid().daemon  # a wrong setting must not prevent the archive, because it may be the reason for it
    return parts(
        daemon,
        run_dir=settings.run_dir,
        history_dir=Path(arguments.history_dir or settings.history_dir),
        metrics_address=settings.metrics_address,
        logs=tuple(arguments.log) or LOGS,
    )


BUNDLE = Verb(
    help="one archive of this node's state for support, without secrets; exit 1 if a part is missing",
    about="Collects what support needs in one archive, without secrets. It works without the daemon.",
    examples=("ipamctl bundle -f node.tar.gz",),
    lay_out=render_bundle,
    make=_bundle,
    arguments=(
        argument("-f", "--file", default="", metavar="FILE", help="file to write; - is standard output, as for kubectl exec"),
        argument("--log", action="append", default=[], metavar="FILE", help="a log of the daemon to include (repeatable)"),
        argument("--history-dir", default="", metavar="DIR", help="directory of the history (default: the setting's)"),
    ),
    needs_attention=lambda answer: any(part["problem"] for part in answer["parts"]),
)
