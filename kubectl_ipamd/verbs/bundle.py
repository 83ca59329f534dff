"""`kubectl ipamd bundle`: one archive for support from each of many nodes, `NODE.tar.gz` in a folder."""

from __future__ import annotations

import argparse
import gzip
import os
import subprocess
import time
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from kubectl_ipamd.cluster import ClusterNode
from kubectl_ipamd.errors import EXIT_ATTENTION, CommandLineError, PluginError
from kubectl_ipamd.execution import HOST, target
from kubectl_ipamd.kubectl import last_words
from kubectl_ipamd.session import Session, pod_of
from kubectl_ipamd.text import table
from kubectl_ipamd.verbs.printing import Answer, columns_of, print_answer
from kubectl_ipamd.verbs.where import EXEC_PARALLEL_MAX

BUNDLE_TIMEOUT_S = 150.0
"""Longest time for the archive of one node. Ours: `ipamctl bundle` takes 60 s at most; the rest is for the archive's way from the
node."""

WHOLE_STATUSES = (0, EXIT_ATTENTION)
"""Exit statuses with which `ipamctl bundle` has written an archive. With status 1 the archive lacks a part; its MANIFEST.json says
which."""

PIECE_BYTES = 1 << 20
"""Most bytes that are unpacked at once while an archive is checked. Ours: EXEC_PARALLEL_MAX archives at once need 8 MiB for it."""

COLUMNS = {"NODE": "node", "FILE": "file", "BYTES": "bytes", "PROBLEM": "problem"}


def run(session: Session, arguments: argparse.Namespace) -> int:
    """Collect the archives. Returns: 0, or 1 if a node's archive is missing or incomplete. Raises: PluginError."""
    nodes = _chosen(session, arguments)
    folder = Path(arguments.directory or f"vpc-ipamd-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise CommandLineError(f"{folder} cannot be made: {error.strerror}") from error
    collect = partial(_collect, session, folder, may_debug=arguments.debug)
    with ThreadPoolExecutor(min(session.limits.parallel, EXEC_PARALLEL_MAX), thread_name_prefix="bundle") as executor:
        rows = list(executor.map(collect, nodes))
    answer: Answer = {"folder": str(folder), "bundles": rows, "notes": []}

    def as_text(answer: Answer) -> str:
        return table(answer["bundles"], columns_of(COLUMNS, wide_only=(), output=session.output))

    print_answer(answer, output=session.output, as_text=as_text)
    if any(row["problem"] for row in rows):
        return EXIT_ATTENTION
    return 0


def _chosen(session: Session, arguments: argparse.Namespace) -> Sequence[ClusterNode]:
    """Return the nodes that the operator named, or all nodes for `--all`. Raises: PluginError."""
    if bool(arguments.nodes) == arguments.all:
        raise CommandLineError("name nodes, or give --all")
    view = session.cluster()
    if arguments.all:
        return list(view.nodes.values())
    return [session.node(view, name) for name in dict.fromkeys(arguments.nodes)]


def _collect(session: Session, folder: Path, node: ClusterNode, *, may_debug: bool) -> Answer:
    """Collect the archive of one node. Returns: its row for the answer; without an archive the row has a problem and no file."""
    file = folder / f"{node.name}.tar.gz"
    partial_file = folder / f".{node.name}.part"
    row: Answer = {"node": node.name, "file": "", "bytes": None, "problem": ""}
    try:
        pod = pod_of(node)
        with target(session.kubectl, pod, may_debug=may_debug) as place:
            words = ["exec", *place, "--", "ipamctl", "bundle", "-f", "-"]
            if not pod.is_running:
                words += ["--log", f"{HOST}/var/log/pods/{pod.namespace}_{pod.name}_*/*/*.log"]
            problem = _write(session.kubectl.command(*words), partial_file)
        if file.exists():
            raise FileExistsError(17, "it is there already")
        partial_file.rename(file)
        return {**row, "file": str(file), "bytes": file.stat().st_size, "problem": problem}
    except PluginError as error:
        return {**row, "problem": str(error)}
    except OSError as error:
        return {**row, "problem": f"{file}: {error.strerror}"}
    except (ValueError, subprocess.SubprocessError) as error:
        return {**row, "problem": str(error)}
    finally:
        partial_file.unlink(missing_ok=True)


def _write(command: Sequence[str], path: Path) -> str:
    """Run a command that writes an archive to standard output, and store the archive in a file that only the operator can read.

    Returns: a sentence if `ipamctl` left out a part of the archive, else "".
    Raises: OSError, subprocess.SubprocessError; ValueError if there is no archive, or if the archive is cut off.
    """
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600), "wb") as stream:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=stream, stderr=subprocess.PIPE, timeout=BUNDLE_TIMEOUT_S, check=False
        )
    if done.returncode not in WHOLE_STATUSES or not path.stat().st_size:
        raise ValueError(f"status {done.returncode}: {last_words(done.stderr)}")
    _require_whole(path)
    if done.returncode == EXIT_ATTENTION:
        return "a part is missing: see its MANIFEST.json"
    return ""


def _require_whole(path: Path) -> None:
    """Read the archive to its end, because `kubectl exec` may lose the end of a stream. Raises: ValueError."""
    try:
        with gzip.open(path) as stream:
            while stream.read(PIECE_BYTES):
                continue
    except (EOFError, OSError, zlib.error) as error:
        raise ValueError(f"the archive is cut off: {error}") from error
