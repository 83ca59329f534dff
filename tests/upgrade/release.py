"""A version of the code in a folder of its own, and its daemon as a process.

Only entry points and formats are used: `python -m ipamd.daemon`, `python -m cni_plugin.build`, the socket and the run directory.
The test process imports nothing of the other version.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from io import BytesIO
from pathlib import Path

from ipamd.settings.former_names import FORMER_NAMES
from lab.node.node import REPOSITORY
from lab.node.process import NodeProcess
from tests.rig import PLUGIN_PATH, Rig, wait_until

LOG = "/var/log/vpc-ipamd.log"
START_TIMEOUT_S = 30.0
RUN_TIMEOUT_S = 300.0
KILL_TIMEOUT_S = 10.0

NAMES_THEN = {name: former for former, name in FORMER_NAMES.items()}
"""Settings by their name, with the name that the code of schema level 8 knows: whoever rolls a node changes both."""


@dataclass(frozen=True)
class Release:
    """One version: the folder that its modules are imported from, its plugin, and where all versions keep their bytecode.

    `setting_names`: its names of settings that have another name now.
    """

    name: str
    folder: Path
    plugin: Path
    bytecode: Path
    setting_names: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def at_commit(cls, commit: str, directory: Path) -> Release:
        """Unpack a commit of this repository below `directory` and generate what is not committed."""
        folder = directory / commit[:12]
        folder.mkdir()
        with tarfile.open(fileobj=BytesIO(git("archive", commit, "ipamd", "cni_plugin", "lab").stdout)) as archive:
            archive.extractall(folder)
        _run_module(folder, "ipamd.cloud.trim_model")
        return replace(cls._with_plugin(commit[:7], folder, directory), setting_names=NAMES_THEN)

    @classmethod
    def of_checkout(cls, directory: Path) -> Release:
        """The code under test, as it stands in the checkout."""
        return cls._with_plugin("checkout", REPOSITORY, directory)

    @classmethod
    def _with_plugin(cls, name: str, folder: Path, directory: Path) -> Release:
        plugin = directory / f"vpc-cni-{name}"
        _run_module(folder, "cni_plugin.build", "--python", "/usr/bin/python3", "--output", str(plugin))
        return cls(name, folder, plugin, directory / "bytecode")

    def install_plugin(self, made: Rig) -> None:
        """Put this version's plugin in the place of the other's."""
        made.node.install(self.plugin, PLUGIN_PATH)

    def start_daemon(self, made: Rig, *, failpoint: str = "", module: str = "ipamd.daemon") -> Daemon:
        """Start this version's daemon; return when it is ready. `module`: its own one that is run."""
        env = made.node.daemon_environment(made.lab.vpc.region) | made.env
        env = {self.setting_names.get(name, name): value for name, value in env.items()}
        # With -m the working directory comes first on the path, before the editable install of the checkout.
        env |= {"PYTHONPATH": str(self.folder), "PYTHONPYCACHEPREFIX": str(self.bytecode), "VPC_IPAMD_FAILPOINT": failpoint}
        for path in self._bytecode_of_ipamd():
            path.unlink()
        argv = ["/bin/sh", "-c", f'exec "$@" >>{LOG} 2>&1', "sh", sys.executable, "-m", module]
        daemon = Daemon(self, made, made.node.spawn(argv, env=env, cwd=str(self.folder)))
        wait_until(daemon.is_ready, what=f"the daemon of {self.name} is ready", timeout_s=START_TIMEOUT_S)
        assert self.imported_from() == {self.folder}, "it runs the code of its own version"
        return daemon

    def imported_from(self) -> set[Path]:
        """Folders that the last daemon imported `ipamd` from: the interpreter keeps bytecode under the path of its source."""
        return {Path("/") / path.relative_to(self.bytecode).parents[1] for path in self._bytecode_of_ipamd()}

    def _bytecode_of_ipamd(self) -> list[Path]:
        return list(self.bytecode.glob("**/ipamd/__init__.*.pyc"))


class Daemon:
    """A running daemon of one version."""

    def __init__(self, release: Release, made: Rig, process: NodeProcess) -> None:
        self._release = release
        self._made = made
        self._process = process

    def is_ready(self) -> bool:
        """Whether it serves ADD; fails when it has ended instead."""
        status = self._made.status()
        ended = self._process.poll()
        assert ended is None, f"the daemon of {self._release.name} ended with {ended}:\n{self._made.log_tail()}"
        return status is not None and bool(status["ready"])

    def kill(self) -> None:
        """kill -9, and wait for the end."""
        self._process.kill()
        self._process.wait(KILL_TIMEOUT_S)


def lacks_commit(commit: str) -> str:
    """Say in one sentence why `commit` cannot be unpacked; "" if it can."""
    if shutil.which("git") is None or git("cat-file", "-e", f"{commit}^{{commit}}", check=False).returncode != 0:
        return (
            f"{REPOSITORY} has no git history with commit {commit[:12]}, the code of before: a source archive or a shallow clone"
        )
    return ""


def git(*arguments: str, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run git in this repository."""
    # safe.directory: the tests run as root, the checkout may be somebody else's.
    argv = ["git", "-c", "safe.directory=*", "-C", str(REPOSITORY), *arguments]
    return subprocess.run(argv, check=check, capture_output=True, timeout=RUN_TIMEOUT_S)


def _run_module(folder: Path, module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", module, *arguments], cwd=folder, check=True, capture_output=True, timeout=RUN_TIMEOUT_S)
