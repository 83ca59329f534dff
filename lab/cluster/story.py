"""The steps of `make cluster`. Each step does something that a real cluster does, records verdicts, and leaves the cluster as
before."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from lab.cluster import judge, objects, pod_marks, pods_api, programs
from lab.cluster.churn import CONTROL_GROUP, Churn
from lab.cluster.clean_up import CleanUp
from lab.cluster.cluster import IMAGE, NAMESPACE, RELEASE, WORKERS, Cluster, Release
from lab.cluster.debug_pods import DebugPods
from lab.cluster.http import get
from lab.cluster.migration import Migration
from lab.cluster.reboot import Reboot
from lab.cluster.report import Report, spread
from lab.cluster.trial import ECHO, NAME, REPLICAS, START_TIMEOUT_S, Trial, containers_ready
from lab.cluster.watcher import Seen, Watcher
from lab.errors import LabError

CROWD = "crowd"
CROWD_SIZE, ROLLS = 100, 20
HOGS, STARVED_LEAST, STARVED_AWAY_MAX_S = 2, 4, 50.0
AFTER_ABSENCE_S = 2.0
LOOPING_RESTARTS = 4
"""Number of restarts after which a daemon counts as in a crash loop. kubelet then waits 80 s before the next restart, so that there is
time to inspect the node."""
CRASH_LOOP_TIMEOUT_S = 240.0
CROWD_TIMEOUT_S = 300.0
STEPS = (
    "answers",
    "services",
    "dns",
    "judged",
    "pods-api",
    "pod-marks",
    "crowd",
    "rolls",
    "kill",
    "drain",
    "reboot",
    "iptables",
    "other-release",
    "migration",
    "clean-up",
    "short-of-cpu",
    "crash-loop",
)
"""Names of all steps after the first ("pods run"), in the order of `Story._steps`."""


class Story:
    """Runs the steps on one cluster. Concurrency: one thread."""

    def __init__(self, cluster: Cluster, watcher: Watcher, report: Report, *, now: Release, before: Release | None) -> None:
        """Make the object; no step is run yet.

        Args:
            now: the release that is installed.
            before: the release of the commit before, for the upgrade; None if it is not built.
        """
        self._cluster = cluster
        self._api = cluster.api
        self._watcher = watcher
        self._report = report
        self._now, self._before = now, before
        self._trial = Trial(cluster)

    def run(self, only: Collection[str] = ()) -> None:
        """Run all steps, or the first step and those of `only`. A step that raises becomes a failed verdict, and the next step is run.

        If the first step fails, no pods can run, so no other step is run.
        """
        if not self._step("pods run", self._pods_run):
            return
        for name, step in self._steps().items():
            if not only or name in only:
                self._step(name, step)
        programs = self._cluster.ended()
        self._report.check(
            "no program of the nodes ended by itself", not programs, ", ".join(programs) or "kubelet, kube-proxy, containerd"
        )

    def _steps(self) -> dict[str, Callable[[], None]]:
        steps = (
            self._pods_answer,
            self._services,
            self._dns,
            self._judged,
            self._pods_api,
            self._pod_marks,
            self._crowd,
            self._rolls,
            self._kill,
            self._drain,
            Reboot(self._trial, self._report).run,
            self._iptables,
            self._other_release,
            Migration(self._trial, self._report, now=self._now).run,
            CleanUp(self._trial, self._report, now=self._now).run,
            self._starved_rolls,
            self._crash_loop,  # last: STATUS bridges a minute in ten, and this step uses all of it
        )
        return dict(zip(STEPS, steps, strict=True))

    def _step(self, name: str, step: Callable[[], None]) -> bool:
        self._watcher.begin()
        try:
            step()
        except LabError as error:
            self._report.check(name, False, str(error))
            return False
        except Exception as error:  # noqa: BLE001  # an error of one step must not prevent the later steps and the report
            self._report.check(name, False, f"{type(error).__name__}: {error}")
            return False
        return True

    def _pods_run(self) -> None:
        cluster = self._cluster
        spent = cluster.wait_nodes_ready()
        self._report.check("nodes become ready after helm install", True, f"{spent:.1f} s")
        cluster.wait_rolled_out("daemonsets", RELEASE, namespace=NAMESPACE)
        for path, thing in objects.cluster_dns():
            self._api.create(path, thing)
        image = f"{IMAGE}:{self._now.tag}"
        self._api.create(objects.collection("deployments"), objects.answering(ECHO, image=image, replicas=REPLICAS))
        self._api.create(objects.collection("services"), objects.service(ECHO))
        spent = cluster.wait_rolled_out("deployments", ECHO, timeout_s=START_TIMEOUT_S)
        cluster.wait_rolled_out("deployments", "coredns", namespace=NAMESPACE, timeout_s=START_TIMEOUT_S)
        # The service works when both kube-proxies know all its pods, which nothing announces, so it is polled.
        self._api.wait(self._unserved, what="served by kube-proxy", timeout_s=START_TIMEOUT_S)
        nodes = sorted({pod["spec"]["nodeName"] for pod in cluster.pods(ECHO)})
        self._report.check(
            "pods run on both nodes", nodes == [*WORKERS], f"{REPLICAS} pods on {', '.join(nodes)} in {spent:.1f} s"
        )

    def _unserved(self) -> str:
        is_served, evidence = _on_both(self._trial.reached(ECHO, 80))
        return "" if is_served else evidence

    def _pods_answer(self) -> None:
        wrong = self._trial.mispaired()
        detail = f"{REPLICAS**2} pairs, each seen with its own address" if not wrong else "; ".join(wrong[:3])
        self._report.check("pods answer each other, within and across nodes", not wrong, detail)

    def _services(self, mode: str = "nftables") -> None:
        spec = self._api.get(f"{objects.collection('services')}/{ECHO}")["spec"]
        by_address = self._trial.reached(spec["clusterIP"], 80)
        self._report.check(f"a cluster address reaches pods of both nodes, {mode}", *_on_both(by_address))
        for name, worker in self._cluster.workers.items():
            answers = [get(self._trial.control, worker.address, objects.NODE_PORT, "/") for _ in range(12)]
            heard = {json.loads(answer)["node"] for answer in answers if answer is not None}
            ok = None not in answers and len(heard) == len(WORKERS)
            self._report.check(
                f"node port of {name} reaches pods of both nodes, {mode}", ok, f"12 questions, {', '.join(sorted(heard))}"
            )
        inside = self._trial.reached(self._cluster.workers[WORKERS[0]].address, objects.NODE_PORT)
        self._report.check(f"a node port answers pods too, {mode}", *_on_both(inside))

    def _dns(self) -> None:
        for name in (NAME, ECHO):
            self._report.check(f"pods find {name} by cluster DNS", *_on_both(self._trial.reached(name, 80)))

    def _judged(self) -> None:
        self._report.check("all parties agree on addresses", True, judge.settle(self._cluster))

    def _pods_api(self) -> None:
        facts = pods_api.look(self._cluster, WORKERS[0])
        self._report.figures["pods_api"] = facts
        lists = bool(facts["lists_during_add"])
        self._report.check("the kubelet's pods API lists a pod whose first sandbox is being made", lists, json.dumps(facts))

    def _pod_marks(self) -> None:
        wrong = pod_marks.look(self._api)
        detail = f"{len(pod_marks.MADE)} pods, and changes of one" if not wrong else "; ".join(wrong)
        self._report.check("the API server marks pods, and guards marks and ENIs", not wrong, detail)

    def _crowd(self) -> None:
        cluster = self._cluster
        path = f"{objects.collection('deployments')}/{CROWD}"
        self._api.create(objects.collection("deployments"), objects.waiting(CROWD, replicas=CROWD_SIZE))
        try:
            spent = cluster.wait_rolled_out("deployments", CROWD, timeout_s=CROWD_TIMEOUT_S)
            seen = self._watcher.seen
            times = spread(pod.start_s for pod in seen.started())
            self._report.figures["pod_start_s"] = {"crowd": times}
            self._report.check(f"{CROWD_SIZE} pods at once are ready", True, f"{spent:.1f} s; from creation to ready {times}")
            self._quiet("100 pods", seen)
            self._report.check("all parties agree with them", True, judge.settle(cluster))
        finally:
            self._api.delete(path)
        self._api.wait(self._trial.left, what="rid of them", timeout_s=CROWD_TIMEOUT_S)
        self._report.check("nothing is left of them", True, judge.settle(cluster))
        # The crowd had nearly all addresses of the nodes. Until these have cooled, a pod of a later step would wait for one.
        self._api.wait(lambda: judge.cooling(cluster), what="cooled", timeout_s=START_TIMEOUT_S)

    def _rolls(self) -> None:
        with self._churned("rolls"):
            for number in range(ROLLS):
                self._restart(WORKERS[number % len(WORKERS)])

    def _starved_rolls(self) -> None:
        """Restart the daemons while endless loops leave a third of each core, or less, to all other programs.

        STATUS bridges at most a minute of absence in ten minutes. So the restarts stop before a daemon's absences reach that. On a
        slow machine, where a restart takes ten seconds, this happens before all ROLLS restarts are done.
        """
        done = 0
        hogs = [
            node.spawn(["/bin/sh", "-c", "while :; do :; done"]) for node in self._cluster.nodes.values() for _ in range(HOGS)
        ]
        try:
            with self._churned("short of CPU"):
                for count in range(ROLLS):
                    if max(self._away(self._watcher.seen).values()) > STARVED_AWAY_MAX_S:
                        break
                    self._restart(WORKERS[count % len(WORKERS)])
                    done = count + 1
        finally:
            for hog in hogs:
                programs.end(hog)
        detail = f"{done} of {ROLLS}" + ("" if done == ROLLS else f": a daemon had been away for {STARVED_AWAY_MAX_S:g} s in all")
        self._report.check("short of CPU: restarts", done >= STARVED_LEAST, detail)

    def _kill(self) -> None:
        with self._churned("kill -9"):
            for node in WORKERS:
                self._kill_daemon(node)

    def _crash_loop(self) -> None:
        """Install a release that cannot start: the roll must stop at the first node, the node's pods must run on, and a roll-back must
        end the crash loop."""
        cluster = self._cluster
        bad = {"extraEnv": [{"name": "WARM_ENI_TARGET", "value": "several"}]}  # the schema refuses it among `settings`
        cluster.install(Release(self._now.chart, self._now.tag, bad))
        self._api.wait(self._crashing, what="in a crash loop", timeout_s=CRASH_LOOP_TIMEOUT_S)
        self._report.check("pods go on while a daemon loops", *self._trial.asked_by_name())
        DebugPods(self._trial, self._report, now=self._now).look_into_crash_loop()
        cluster.helm("rollback", RELEASE)
        spent = cluster.wait_rolled_out("daemonsets", RELEASE, namespace=NAMESPACE)
        self._report.check("helm rollback mends a crash loop", True, f"{spent:.1f} s; {judge.settle(cluster)}")

    def _drain(self) -> None:
        cluster, node = self._cluster, WORKERS[1]
        cluster.kubectl("drain", node, "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=120s")
        try:
            cluster.wait_rolled_out("deployments", ECHO, timeout_s=START_TIMEOUT_S)
            cluster.wait_rolled_out("deployments", "coredns", namespace=NAMESPACE, timeout_s=START_TIMEOUT_S)
            left = judge.sandboxes(cluster.nodes[node])
            wrong = self._trial.deaf()
            detail = f"{len(left)} sandboxes on {node}; {judge.settle(cluster)}"
            self._report.check("a drained node is empty, and pods go on elsewhere", not left and not wrong, detail)
        finally:
            cluster.kubectl("uncordon", node)
        self._trial.respread()
        self._report.check("the node takes pods again", True, judge.settle(cluster))

    def _iptables(self) -> None:
        for worker in self._cluster.workers.values():
            worker.start_proxy("iptables")
        try:
            self._api.wait(self._unserved, what="served by iptables", timeout_s=START_TIMEOUT_S)
            self._services("iptables")
            self._report.check("all parties agree in iptables mode", True, judge.settle(self._cluster))
        finally:
            for worker in self._cluster.workers.values():
                worker.start_proxy("nftables")
        self._api.wait(self._unserved, what="served by nftables again", timeout_s=START_TIMEOUT_S)

    def _other_release(self) -> None:
        """Roll back to the commit before, and forward again. Each time both releases are in the cluster for a while, and pods come and
        go."""
        if self._before is None:
            self._report.check("upgrade from the commit before", False, "there is no image of it: tools/image_before.sh")
            return
        for title, release in (("back to the commit before", self._before), ("upgrade from the commit before", self._now)):
            with self._churned(title):
                self._cluster.install(Release(release.chart, release.tag, {"updateStrategy": {"type": "OnDelete"}}))
                for node in WORKERS:
                    self._restart(node)
                    self._mixed(title, node)
            tags = sorted({pod["spec"]["containers"][0]["image"] for pod in self._cluster.daemon_pods()})
            self._report.check(f"{title}: both nodes run it", tags == [f"{RELEASE}:{release.tag}"], ", ".join(tags))

    def _mixed(self, title: str, node: str) -> None:
        self._report.check(f"{title}: pods answer once {node} has it", *self._trial.asked_by_name())

    @contextmanager
    def _churned(self, title: str) -> Iterator[None]:
        """Let pods come and go during the block. Afterwards check that no condition changed, no sandbox failed, no pod started late,
        and that all parties agree on addresses."""
        self._watcher.begin()
        churn = Churn(self._api)
        try:
            yield
        finally:
            churn.close()
        self._api.wait(self._trial.left, what="rid of the churn's pods", timeout_s=START_TIMEOUT_S)
        seen = self._watcher.seen
        if churn.problems:
            self._report.check(f"{title}: the API server takes the churn", False, "; ".join(churn.problems[:3]))
        self._quiet(title, seen)
        self._starts(title, seen)
        self._report.check(f"{title}: all parties agree afterwards", True, judge.settle(self._cluster))

    def _quiet(self, title: str, seen: Seen) -> None:
        away = self._away(seen)
        detail = f"{'; '.join(seen.changes[:4])}{'; ' if seen.changes else ''}" + ", ".join(
            f"{node} without daemon for {away[node]:.0f} s" for node in WORKERS
        )
        self._report.check(f"{title}: no condition and no taint changes", not seen.changes, detail)
        failed = [warning for warning in seen.warnings if warning.startswith("FailedCreatePodSandBox")]
        others = sorted({warning.split(" ")[0] for warning in seen.warnings} - {"FailedCreatePodSandBox"})
        detail = "; ".join(failed[:2]) or f"{len(seen.warnings)} other warnings{': ' + ', '.join(others) if others else ''}"
        self._report.check(f"{title}: no FailedCreatePodSandBox", not failed, detail)
        self._report.figures.setdefault("warnings", {})[title] = seen.warnings[:50]

    def _away(self, seen: Seen) -> dict[str, float]:
        """Return for each node the seconds in which its daemon was away."""
        return {node: sum(end - begin for name, begin, end in seen.absences if name == node) for node in WORKERS}

    def _starts(self, title: str, seen: Seen) -> None:
        """Check that no pod starts later than the sum of three times: the absence of its node's daemon during the start,
        AFTER_ABSENCE_S, and the longest start of a pod that needs no daemon."""
        control = [pod.start_s for pod in seen.started() if pod.name.startswith(CONTROL_GROUP)]
        pods = [pod for pod in seen.started() if not pod.name.startswith(CONTROL_GROUP)]
        excess = {f"{pod.name} on {pod.node}": round(pod.start_s - seen.absent_s(pod), 2) for pod in pods}
        beyond, without = spread(excess.values()), spread(control)
        absences = spread(end - begin for _, begin, end in seen.absences)
        times = {"pods": spread(pod.start_s for pod in pods), "beyond_absence": beyond, "of_host": without, "absence": absences}
        self._report.figures.setdefault("pod_start_s", {})[title] = times
        ok = bool(beyond and without) and beyond["max"] <= AFTER_ABSENCE_S + without["max"]
        slow = f"; slowest {max(excess, key=lambda name: excess[name])}" if excess else ""
        name = f"{title}: pods start within the absence, {AFTER_ABSENCE_S:g} s, and what those of the host's network take"
        self._report.check(name, ok, f"{times}{slow}")

    def _restart(self, node: str) -> None:
        """Delete the daemon's pod of a node, as a roll does, and wait until the next one is ready."""
        old = self._trial.daemon_pod(node)
        name = old["metadata"]["name"]
        self._api.delete(f"{objects.collection('pods', namespace=NAMESPACE)}/{name}")

        def problem() -> str:
            pods = [pod for pod in self._cluster.daemon_pods() if pod["spec"].get("nodeName") == node]
            fresh = [pod for pod in pods if pod["metadata"]["uid"] != old["metadata"]["uid"] and containers_ready(pod)]
            return "" if fresh and len(pods) == 1 else f"{len(pods)} daemon pods on {node}, none new and ready"

        self._api.wait(problem, what=f"restarted on {node}", timeout_s=START_TIMEOUT_S)

    def _kill_daemon(self, node: str) -> None:
        container = self._trial.daemon_pod(node)["status"]["containerStatuses"][0]
        count, task = container["restartCount"], container["containerID"].partition("//")[2]
        self._cluster.workers[node].kill_container(task, signal.SIGKILL)

        def problem() -> str:
            now = self._trial.daemon_pod(node)
            states = now["status"]["containerStatuses"][0]
            return (
                ""
                if states["restartCount"] > count and containers_ready(now)
                else f"{states['restartCount'] - count} restarts on {node}"
            )

        self._api.wait(problem, what=f"back after kill -9 on {node}", timeout_s=START_TIMEOUT_S)

    def _crashing(self) -> str:
        for pod in self._cluster.daemon_pods():
            for container in pod["status"].get("containerStatuses", []):
                is_waiting = container["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
                if container["restartCount"] >= LOOPING_RESTARTS and is_waiting:
                    return ""
        return f"no daemon waits for its restart after {LOOPING_RESTARTS}"


def _on_both(reached: dict[str, set[str]]) -> tuple[bool, str]:
    """Return whether the pods of every node reach pods of every node, and the evidence. `reached`: as from `Trial.reached`."""
    ok = reached == {node: set(WORKERS) for node in WORKERS}
    return ok, "; ".join(
        f"{node or 'failed'} reaches {', '.join(sorted(heard))}"[:300] for node, heard in sorted(reached.items())
    )
