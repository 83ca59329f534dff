"""The plugin as processes, as a runtime starts it: environment, kinds of standard input, states of the run directory."""

from __future__ import annotations

import contextlib
import shutil
import socket
import tempfile
from pathlib import Path
from random import Random

from fuzz import cni_model, frames, invocations, plugin_binaries
from fuzz.raw_peer import RawPeer, message_in
from fuzz.target import Case, Target, Violation, blob
from fuzz.targets.plugin_input import RESULT, judge_request
from ipamd.pb import cni_pb2

STDIN_KINDS = ("pipe",) * 8 + ("file", "null", "directory", "closed")
RUN_DIRS = ("served",) * 6 + ("empty", "absent", "file", "link", "dead socket", "spool is a file")
ANSWER = b"".join(frames.answer(cni_pb2.ExecReply(protocol=1, result=RESULT).SerializeToString()))


class PluginProcess(Target):
    """A case: `program` (which one, if it is here), `env`, `stdin`, `stdin_kind`, `run_dir` (one of RUN_DIRS)."""

    cpu_s = 20.0
    batch = 50
    shrink_tries = 60

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._programs = plugin_binaries.programs(self._directory)
        self._peer: RawPeer | None = None
        self._run_dir = self._directory / "run"

    def generate(self, random: Random) -> Case:
        return {
            "program": random.choice(plugin_binaries.NAMES),
            "env": invocations.environment(random),
            "stdin": invocations.standard_input(random),
            "stdin_kind": random.choice(STDIN_KINDS),
            "run_dir": random.choice(RUN_DIRS),
        }

    def run(self, case: Case) -> None:
        program = self._programs.get(case["program"]) or next(iter(self._programs.values()))
        kind, stdin = case["stdin_kind"], blob(case["stdin"])
        env = {"VPC_IPAMD_RUN_DIR": str(self._run_dir).encode(), **case["env"]}
        is_ours = env["VPC_IPAMD_RUN_DIR"] == str(self._run_dir).encode()
        if env.get("CNI_COMMAND") == b"ADD" and not (case["run_dir"] == "served" and is_ours):
            env["CNI_COMMAND"] = b"CHECK"  # the same requirements, and it does not wait a minute for a daemon
        with self._surroundings(case["run_dir"]) as peer:
            ended = plugin_binaries.run(program, env, stdin, stdin_kind=kind, directory=self._directory)
        read = stdin if kind in ("pipe", "file") else b""
        if kind == "directory" and program.name == plugin_binaries.INTERPRETED:
            # CPython itself refuses, before a line of ours runs (ADR 0020): no document, but no success either.
            if ended.status == 0 or ended.stdout:
                raise Violation("exit status", f"{ended.status}, {ended.stdout[:200]!r}, with a directory as standard input")
            return
        wanted = cni_model.expected(env, read, stdin_end="eof" if kind in ("pipe", "file", "null") else kind)
        document = cni_model.judge_document(ended.status, ended.stdout, ended.stderr)
        allowed = _allowed(case["run_dir"] if is_ours else "unknown", wanted.verb)
        cni_model.judge_code(wanted, ended.status, document, allowed=allowed)
        if peer is not None and ended.status == 0 and wanted.verb != "VERSION" and is_ours:
            if len(peer.requests) != 1 or ended.stdout != RESULT:
                raise Violation("differs", f"{len(peer.requests)} requests, printed {ended.stdout[:200]!r}")
            judge_request(message_in(peer.requests[0]), env, read)

    @contextlib.contextmanager
    def _surroundings(self, kind: str):  # type: ignore[no-untyped-def]  # a context manager of RawPeer | None
        _make(self._run_dir, kind)
        peer = RawPeer(self._run_dir / "ipamd.sock") if kind == "served" else None
        if peer is not None:
            peer.greeting, peer.answer = b"".join(frames.greeting()), ANSWER
        try:
            yield peer
        finally:
            if peer is not None:
                peer.close()
            _remove(self._run_dir)

    def close(self) -> None:
        shutil.rmtree(self._directory, ignore_errors=True)


def _make(run_dir: Path, kind: str) -> None:
    """Make a run directory of this kind; it is not there yet."""
    if kind == "file":
        run_dir.write_text("")
    elif kind == "link":
        run_dir.symlink_to("/tmp")
    elif kind != "absent":
        run_dir.mkdir(mode=0o700)
    if kind == "dead socket":
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(run_dir / "ipamd.sock"))
    if kind == "spool is a file":
        (run_dir / "spool").write_text("")


def _remove(run_dir: Path) -> None:
    if run_dir.is_symlink() or run_dir.is_file():
        run_dir.unlink()
    else:
        shutil.rmtree(run_dir, ignore_errors=True)


def _allowed(run_dir: str, verb: str) -> frozenset[int]:
    unserved = {50 if verb == "STATUS" else 11}
    if run_dir == "served" or verb == "VERSION":
        return frozenset({0})
    if run_dir in ("file", "link"):
        return frozenset({191})
    if run_dir == "unknown" or (verb == "DEL" and run_dir == "spool is a file"):
        return frozenset({0, 5, 7, 191} | unserved)
    return frozenset({0, 7} if verb == "DEL" else unserved)


def make() -> Target:
    """Make the target."""
    return PluginProcess()
