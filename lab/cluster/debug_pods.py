"""Run the operator's commands for a node on which no daemon runs: `kubectl ipamd --debug` and `kubectl ipamd clean-up`.

Both start a privileged pod with the daemon's image by `kubectl debug`, as docs/kubectl.md and docs/migration.md describe.
"""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

from kubectl_ipamd.judgement import NodeState
from lab.cluster import objects
from lab.cluster.api import Object
from lab.cluster.cluster import IMAGE, NAMESPACE, WORKERS, Release
from lab.cluster.flow import Flow
from lab.cluster.operator import Answer, Operator
from lab.cluster.report import Report
from lab.cluster.trial import Trial

STATUS = "kubectl ipamd status"
BUNDLE = "kubectl ipamd bundle NODE --debug"
PREVIOUS = "kubectl -n kube-system logs POD -c ipamd --previous"
NEXT_STEP = f"{PREVIOUS}  # the last line has the cause"
"""What `kubectl ipamd status` prints below its table for a crash loop."""
IN_DEBUG_POD = "kubectl ipamd exec --debug NODE"
CLEAN_UP = "kubectl ipamd clean-up NODE"
BY_HAND = (
    "kubectl debug node/NODE -n kube-system -it --image=IMAGE --profile=sysadmin "
    "-- ipamctl --socket /host/run/vpc-ipamd/ipamd.sock status"
)
DELETE = "kubectl -n kube-system delete pod DEBUG_POD"

TIMEOUT_S = 120.0
EXIT_ATTENTION, EXIT_NO_ANSWER = 1, 3
NAMED_FIRST = f"{NodeState.CRASH_LOOP}: "
DEBUG_POD = "node-debugger-"
WRONG_SETTING = "WARM_ENI_TARGET"
FROM_DAEMON = {"status.json", "attachments.json", "metrics.txt"}
"""Some parts of a bundle that come from the daemon, so that the bundle lacks them while no daemon runs."""

FROM_NODE = {"history.jsonl", "rules.jsonl", "routes.jsonl", "nft.txt", "log.txt", "MANIFEST.json"}
"""The parts of a bundle that come from the node, so that the bundle always has them."""


class DebugPods:
    """Runs the commands and records the verdicts. Concurrency: one thread."""

    def __init__(self, trial: Trial, report: Report, *, now: Release) -> None:
        """Make the object; nothing happens yet. `now`: the release whose image the commands name."""
        self._trial, self._cluster, self._report = trial, trial.cluster, report
        self._image = f"{IMAGE}:{now.tag}"
        self._operator = Operator(trial.cluster)

    def look_into_crash_loop(self) -> None:
        """Find the node with the crash loop by `kubectl ipamd status`, inspect it by `--debug`, and record the verdicts."""
        shown = self._operator.run(f"{STATUS} -o json", {})
        rows: list[dict[str, Any]] = json.loads(shown.stdout)["nodes"]
        states = [(row["node"], row["state"]) for row in rows]
        first = states[0][0]
        others = [(name, NodeState.READY) for name in WORKERS if name != first]
        ok = states == [(first, NodeState.CRASH_LOOP), *others] and shown.returncode == EXIT_ATTENTION
        self._report.check("crash loop: kubectl ipamd status names the node first", ok, f"{states}; {rows[0]['reason']}")
        pods = self._trial.pods_on(first)
        flow = Flow(self._trial.control, pods.values())
        try:
            self._follow_next_step(first)
            self._collect_bundle(first)
            self._ask(first, next(iter(pods.values())))
            self._ask_by_hand(first)
        finally:
            flow.close_asking()
        self._report.check("crash loop: living pods answer all the time", *flow.verdict())

    def clean_up(self, node: str) -> Answer:
        """Remove our objects from a node that has gone back to amazon-vpc-cni-k8s, by the command of docs/migration.md."""
        return self._operator.run(CLEAN_UP, {"NODE": node})

    def run_by_hand(self, command: str, node: str) -> Answer:
        """Run a command with `kubectl debug` on a terminal, which its option `-it` needs, and delete the debug pod that it leaves."""
        done = self._operator.run(command, {"NODE": node, "IMAGE": self._image}, on_terminal=True)
        for name in self._debug_pods():
            self._operator.run(DELETE, {"DEBUG_POD": name})
        return done

    def gone(self, name: str) -> None:
        """Wait until no debug pod is left, and record the verdict `name`."""
        spent = self._cluster.api.wait(lambda: ", ".join(self._debug_pods()), what=name, timeout_s=TIMEOUT_S)
        self._report.check(name, True, f"no pod is left after {spent:.1f} s")

    def _follow_next_step(self, node: str) -> None:
        """Check the next step that `kubectl ipamd status` prints below its table: to read the log of the last run. Read that log."""
        lines = self._operator.run(STATUS, {}).stdout.splitlines()
        step = next((line for line in lines if line.startswith(NAMED_FIRST)), "")
        pod = self._trial.daemon_pod(node)["metadata"]["name"]
        ok = step == f"{NAMED_FIRST}{NEXT_STEP}".replace("POD", pod)
        self._report.check("crash loop: it names the next step", ok, step)
        log = self._operator.run(PREVIOUS, {"POD": pod}).stdout
        self._report.check("crash loop: which shows the cause", WRONG_SETTING in log, log[-300:])

    def _collect_bundle(self, node: str) -> None:
        done = self._operator.run(f"{BUNDLE} -d bundles", {"NODE": node})
        parts, log = _archive(Path(f"{self._operator.home}/bundles/{node}.tar.gz"))
        missing = sorted(FROM_NODE - parts)
        ok = done.returncode == EXIT_ATTENTION and not missing and not parts & FROM_DAEMON and WRONG_SETTING in log
        detail = f"status {done.returncode}; {', '.join(sorted(parts))}; lacks {missing}; {said(done)}"
        self._report.check("crash loop: kubectl ipamd bundle --debug has all but the daemon's answers", ok, detail)
        self.gone("crash loop: the debug pod of the bundle is gone")

    def _ask(self, node: str, address: str) -> None:
        done = self._operator.run(f"{IN_DEBUG_POD} status", {"NODE": node})
        ok = done.returncode == EXIT_NO_ANSWER and "crash loop" in said(done)
        detail = f"status {done.returncode}; {said(done)}"
        self._report.check("crash loop: ipamctl status in a debug pod says so", ok, detail)
        done = self._operator.run(f"{IN_DEBUG_POD} history {address}", {"NODE": node})
        ok = done.returncode == 0 and address in done.stdout
        detail = f"status {done.returncode}; {said(done)}"
        self._report.check("crash loop: ipamctl history in a debug pod has a living pod", ok, detail)
        self.gone("crash loop: the debug pods of exec are gone")

    def _ask_by_hand(self, node: str) -> None:
        done = self.run_by_hand(BY_HAND, node)
        self._report.check("crash loop: ipamctl status by kubectl debug says so", "crash loop" in done.stdout, said(done))
        self.gone("crash loop: the debug pod made by hand is gone")

    def _debug_pods(self) -> list[str]:
        pods: list[Object] = self._cluster.api.items(objects.collection("pods", namespace=NAMESPACE))
        return [name for name in (str(pod["metadata"]["name"]) for pod in pods) if name.startswith(DEBUG_POD)]


def said(done: Answer) -> str:
    """Return the output of a command in one line of at most 900 characters."""
    return "; ".join(line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip())[:900]


def _archive(file: Path) -> tuple[set[str], str]:
    """Return the names of a bundle's parts, and the daemon's log in it."""
    if not file.exists():
        return set(), ""
    with tarfile.open(file) as archive:
        members = {Path(member.name).name: member for member in archive.getmembers() if member.isfile()}
        stream = archive.extractfile(members["log.txt"]) if "log.txt" in members else None
        text = stream.read().decode(errors="replace") if stream is not None else ""
    return set(members), text
