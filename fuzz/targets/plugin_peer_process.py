"""A hostile peer on the daemon's socket, against the plugin as a process: what `plugin_peer` does in memory, with real sockets."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from random import Random

from fuzz import cni_model, plugin_binaries
from fuzz.raw_peer import RawPeer
from fuzz.target import Case, Target
from fuzz.targets.plugin_peer import CONFIG, ENVIRONMENT, conversation


class PluginPeerProcess(Target):
    """A case: `program`, `verb`, `peer` (what it sends), `is_patient` (it reads the request first)."""

    cpu_s = 20.0
    batch = 50
    shrink_tries = 60

    def __init__(self) -> None:
        self._directory = Path(tempfile.mkdtemp(prefix="fuzz-"))
        self._programs = plugin_binaries.programs(self._directory)
        self._run_dir = self._directory / "run"
        self._run_dir.mkdir(mode=0o700)
        self._peer = RawPeer(self._run_dir / "ipamd.sock")

    def generate(self, random: Random) -> Case:
        verb = random.choice(("ADD", "DEL", "CHECK", "GC", "STATUS"))
        program = random.choice(plugin_binaries.NAMES)
        return {"program": program, "verb": verb, "peer": conversation(random), "is_patient": False}

    def run(self, case: Case) -> None:
        program = self._programs.get(case["program"]) or next(iter(self._programs.values()))
        self._peer.answer, self._peer.is_patient = case["peer"], case["is_patient"]
        verb = "CHECK" if case["verb"] == "ADD" else case["verb"]  # an ADD would wait a minute for a better peer
        env = {"CNI_COMMAND": verb.encode(), "VPC_IPAMD_RUN_DIR": str(self._run_dir).encode(), **ENVIRONMENT}
        ended = plugin_binaries.run(program, env, CONFIG, stdin_kind="pipe", directory=self._directory)
        cni_model.judge_exit(ended.status, ended.stdout, ended.stderr)
        shutil.rmtree(self._run_dir / "spool", ignore_errors=True)

    def close(self) -> None:
        self._peer.close()
        shutil.rmtree(self._directory, ignore_errors=True)


def make() -> Target:
    """Make the target."""
    return PluginPeerProcess()
