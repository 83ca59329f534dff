"""Commands for a node on which no daemon runs, by the real kubectl: `kubectl ipamd --debug`, and `kubectl ipamd clean-up`.

Both start a privileged pod with the daemon's image by `kubectl debug`, as docs/kubectl.md and docs/migration.md say.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from pathlib import Path

from kubectl_ipamd.judgement import NodeState
from lab.cluster import objects, programs
from lab.cluster.api import Object
from lab.cluster.cluster import CONTROL, NAMESPACE, Cluster
from lab.cluster.control_plane import FOLDER
from lab.cluster.report import Report
from lab.cluster.trial import ECHO
from lab.node.node import REPOSITORY

BUNDLES = "/run/bundles"
TIMEOUT_S = 240.0
"""For a command that starts a pod and collects an archive on a busy machine."""

EXIT_ATTENTION = 1
DEBUG_POD = "node-debugger-"


class DebugPods:
    """Commands of an operator. Concurrency: one thread."""

    def __init__(self, cluster: Cluster, report: Report) -> None:
        """Nothing happens yet."""
        self._cluster = cluster
        self._report = report

    def look_into_crash_loop(self) -> None:
        """Find the node with the crash loop by `kubectl ipamd status`, and look into it by `--debug`. Makes the verdicts."""
        shown = self._kubectl_ipamd("status", "--output", "json")
        nodes = json.loads(shown.stdout)["nodes"]
        looping = [row["node"] for row in nodes if row["state"] == NodeState.CRASH_LOOP]
        states = ", ".join(f"{row['node']}: {row['state']}" for row in nodes)
        is_named = len(looping) == 1 and nodes[0]["node"] == looping[0] and shown.returncode == EXIT_ATTENTION
        self._report.check("crash loop: kubectl ipamd status names the node first", is_named, states)
        if not looping:
            return
        self._collect_bundle(looping[0])
        addresses = [pod["status"]["podIP"] for pod in self._cluster.pods(ECHO) if pod["spec"]["nodeName"] == looping[0]]
        history = self._kubectl_ipamd("exec", "--debug", looping[0], "history", addresses[0])
        detail = f"status {history.returncode}, {len(history.stdout.splitlines())} lines {history.stderr.strip()[-300:]}"
        self._report.check("crash loop: kubectl ipamd exec --debug shows the history", self._has_answered(history), detail)
        self._check_no_debug_pod("crash loop: the debug pods are gone")

    def clean_up(self, node: str) -> subprocess.CompletedProcess[str]:
        """Remove what is ours from a node that has gone back, by the command of docs/migration.md."""
        return self._kubectl_ipamd("clean-up", node)

    def _collect_bundle(self, node: str) -> None:
        collected = self._kubectl_ipamd("bundle", "--debug", node, "--directory", BUNDLES, "--output", "json")
        row = json.loads(collected.stdout)["bundles"][0]
        archive = Path(self._control_root + BUNDLES) / f"{node}.tar.gz"
        names = []
        if archive.exists():
            with tarfile.open(archive) as opened:
                names = opened.getnames()
        is_whole = collected.returncode in (0, EXIT_ATTENTION) and "MANIFEST.json" in " ".join(names)
        detail = f"{row['bytes']} bytes, {', '.join(names)}; {row['problem'] or 'nothing is missing'}"
        self._report.check("crash loop: kubectl ipamd bundle --debug collects an archive", is_whole, detail)

    def _has_answered(self, done: subprocess.CompletedProcess[str]) -> bool:
        return done.returncode == 0 and bool(done.stdout.strip())

    def _check_no_debug_pod(self, name: str) -> None:
        self._cluster.api.wait(
            lambda: ", ".join(str(pod["metadata"]["name"]) for pod in self._debug_pods()), what=name, timeout_s=TIMEOUT_S
        )
        self._report.check(name, True, "no pod is left")

    def _debug_pods(self) -> list[Object]:
        pods = self._cluster.api.items(objects.collection("pods", namespace=NAMESPACE))
        return [pod for pod in pods if str(pod["metadata"]["name"]).startswith(DEBUG_POD)]

    @property
    def _control_root(self) -> str:
        return self._cluster.lab.node(CONTROL).root

    def _kubectl_ipamd(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run `kubectl ipamd` as the administrator, whatever its exit status."""
        access = ["--kubectl", programs.program("kubectl"), "--kubeconfig", f"{FOLDER}/admin.conf", "--namespace", NAMESPACE]
        argv = [sys.executable, "-m", "kubectl_ipamd", *access, *words]
        node = self._cluster.lab.node(CONTROL)
        return node.run(argv, cwd=str(REPOSITORY), timeout_s=TIMEOUT_S, check=False, env={"HOME": "/run"})
