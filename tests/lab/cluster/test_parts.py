"""The parts of `make cluster` that need no cluster: what is pinned, what a watch makes of changes, how starts are measured."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from ipamd.model.aws_node import agent_pod
from ipamd.model.ids import ContainerId
from ipamd.model.sandbox import Sandbox, SandboxState
from kubectl_ipamd.judgement import NEXT_STEPS, NodeState
from lab.cluster import clean_up, debug_pods, migration, objects, programs
from lab.cluster.cluster import Release
from lab.cluster.operator import filled
from lab.cluster.reboot import too_early
from lab.cluster.report import Report, spread
from lab.cluster.watcher import PodTime, Seen, Watcher
from lab.node.node import REPOSITORY
from tests.task_pages import ROOT, Runner, commands

PINS = REPOSITORY / "tools" / "cluster"


class _Api:
    """Hands each watch's callback out, by path."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Any] = {}

    def watch(self, path: str, seen: Any) -> _Api:
        self.callbacks[path] = seen
        return self

    def close(self) -> None:
        self.callbacks.clear()


def _node(ready: str, *taints: str, heartbeat: int = 0) -> dict[str, Any]:
    condition = {"type": "Ready", "status": ready, "lastHeartbeatTime": heartbeat}
    return {
        "metadata": {"name": "node-a"},
        "spec": {"taints": [{"key": key, "effect": "NoSchedule"} for key in taints]},
        "status": {"conditions": [condition]},
    }


@pytest.fixture
def api() -> _Api:
    """Nothing is watched yet."""
    return _Api()


@pytest.fixture
def watcher(api: _Api) -> Watcher:
    """Without nodes to ask."""
    return Watcher(api, {})  # type: ignore[arg-type]


def test_conditions_and_taints(api: _Api, watcher: Watcher) -> None:
    """A heartbeat and a list told anew are no change; a status and a taint are."""
    told = api.callbacks["/api/v1/nodes"]
    told("ADDED", _node("True"))
    told("MODIFIED", _node("True", heartbeat=1))
    told("ADDED", _node("True", heartbeat=2))
    assert watcher.seen.changes == []
    told("MODIFIED", _node("False", "node.kubernetes.io/not-ready"))
    assert watcher.seen.changes == [
        "node-a: condition Ready from True to False",
        "node-a: taint node.kubernetes.io/not-ready from none to NoSchedule",
    ]
    watcher.begin()
    assert watcher.seen.changes == []


def test_warnings_once_each_time_they_count(api: _Api, watcher: Watcher) -> None:
    """The same event told anew is one, counted up it is two; normal ones are none."""
    told = api.callbacks["/api/v1/events"]
    event = {
        "metadata": {"uid": "1"},
        "type": "Warning",
        "reason": "FailedCreatePodSandBox",
        "message": "no address",
        "involvedObject": {"namespace": "trial", "name": "pod"},
        "count": 1,
    }
    told("ADDED", event)
    told("ADDED", event)
    told("MODIFIED", event | {"count": 2})
    told("ADDED", event | {"metadata": {"uid": "2"}, "type": "Normal"})
    assert watcher.seen.warnings == ["FailedCreatePodSandBox trial/pod: no address"] * 2


def test_pods_are_timed_from_creation_to_ready(api: _Api, watcher: Watcher) -> None:
    """Also where the list is told anew between; one that is on its way out is not ready."""
    told = api.callbacks[objects.collection("pods")]
    pod: dict[str, Any] = {"metadata": {"name": "pod", "uid": "1"}, "spec": {"nodeName": "node-a"}, "status": {}}
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    told("ADDED", pod)
    began = watcher.seen.pods["1"].seen_at
    told("MODIFIED", pod | {"status": ready, "metadata": pod["metadata"] | {"deletionTimestamp": "now"}})
    assert watcher.seen.started() == []
    told("ADDED", pod | {"status": ready})
    (started,) = watcher.seen.started()
    assert (started.name, started.node, started.seen_at) == ("pod", "node-a", began)
    assert started.start_s >= 0


def test_absence_counts_only_within_the_start_and_on_the_node() -> None:
    """Its first two seconds, and one that begins later; not another node's."""
    pod = PodTime("pod", "node-a", seen_at=10.0, ready_at=20.0)
    seen = Seen(absences=[("node-a", 5.0, 12.0), ("node-a", 15.0, 16.0), ("node-b", 10.0, 20.0), ("node-a", 21.0, 30.0)])
    assert seen.absent_s(pod) == 3.0


def test_spread() -> None:
    """Of none, nothing; of many, median, p99 and maximum."""
    assert spread([]) == {}
    assert spread(float(number) for number in range(1, 102)) == {"count": 101, "median": 51.0, "p99": 100.0, "max": 101.0}


def test_report(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing checked is not good; each verdict is printed and written; figures stand beside."""
    report = Report()
    assert not report.is_good
    report.check("pods run", True, "4")
    assert report.is_good
    report.check("pods answer", False, "none did")
    report.figures["pod_start_s"] = {"crowd": {"count": 1}}
    report.write(tmp_path / "cluster.json")
    written = json.loads((tmp_path / "cluster.json").read_text())
    assert (written["ok"], [verdict["ok"] for verdict in written["verdicts"]]) == (False, [True, False])
    assert written["pod_start_s"] == {"crowd": {"count": 1}}
    assert "FAIL  pods answer: none did" in capsys.readouterr().out


def test_programs_are_pinned() -> None:
    """Every program comes from a module at one version, and each of Kubernetes's own modules is of the same release."""
    text = (PINS / "kubernetes" / "go.mod").read_text()
    (release,) = re.findall(r"^require k8s\.io/kubernetes v1\.(\S+)", text, re.M)
    own = set(re.findall(r"^\tk8s\.io/\S+ => k8s\.io/\S+ v0\.(\S+)$", text, re.M))
    assert own == {release}
    tools = re.findall(r"^\tk8s\.io/kubernetes/cmd/(\S+)$", text, re.M)
    assert {*tools, "etcd", "coredns"} == set(programs.NAMES)
    for folder in PINS.iterdir():
        sums = (folder / "go.sum").read_text()
        for module, version in re.findall(r"^require (\S+) (v\S+)", (folder / "go.mod").read_text(), re.M):
            assert f"{module} {version} h1:" in sums


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the command that builds it."""
    monkeypatch.setattr(programs, "PROGRAMS", REPOSITORY / "build" / "not-there")
    assert "build/not-there/kubelet" in programs.missing()
    assert programs.missing().endswith("`make cluster` builds them")


def test_too_early() -> None:
    """An address that is given again within the cooldown is named with how soon; one that never is, or later, is not."""
    freed_at = {"10.0.0.1": 100.0, "10.0.0.2": 100.0, "10.0.0.3": 100.0}
    assert too_early(freed_at, {"10.0.0.1": 108.5, "10.0.0.2": 130.0, "10.0.0.9": 101.0}) == ["10.0.0.1 after 8.5 s"]


def test_the_commands_of_a_migration_are_those_of_its_page() -> None:
    """In its order; `ipamd clean-up` runs in a debug pod (`debug_pods`)."""
    page = [command for command in commands("migration.md", Runner.NODE) if "clean-up" not in command]
    assert [" ".join(words) for words in migration.COMMANDS] == page


def test_the_commands_of_debug_pods_are_those_of_the_pages() -> None:
    """What looks into a crash loop, by the plugin's next step or by hand, and what removes the last of ours."""
    pages = {page: " ".join((ROOT / "docs" / page).read_text().split()) for page in ("kubectl.md", "troubleshooting.md")}
    words = {"namespace": "kube-system", "kubectl": "kubectl", "plugin": "kubectl ipamd"}
    next_step = NEXT_STEPS[NodeState.CRASH_LOOP]
    assert next_step.format(node="NODE", pod="POD", **words) == debug_pods.NEXT_STEP
    shown = f"{debug_pods.NAMED_FIRST}{next_step.format(node='node-d', pod='vpc-ipamd-x7k2p', **words)}"
    assert " ".join(shown.split()) in pages["kubectl.md"]
    assert f"`{debug_pods.IN_DEBUG_POD} status`" in pages["troubleshooting.md"]
    assert f"`{debug_pods.BY_HAND}`" in pages["troubleshooting.md"]
    elsewhere = commands("migration.md", Runner.ELSEWHERE)
    wanted = [debug_pods.CLEAN_UP, clean_up.REMOVE_FILES, debug_pods.DELETE]
    assert [command for command in elsewhere if command in wanted] == wanted


def test_the_readers_words_in_a_command_are_replaced() -> None:
    """Each as one word of the shell, wherever it stands alone."""
    assert filled("kubectl debug node/NODE --image=IMAGE NODES", {"NODE": "a", "IMAGE": "i:1 x"}) == (
        "kubectl debug node/a --image='i:1 x' NODES"
    )


def test_the_stand_in_is_kept_off_nodes_with_our_label() -> None:
    """As docs/install.md has aws-node patched, and ours selects; its pod is named as the other's."""
    made = migration.other_daemon({"AWS_REGION": "us-west-2"}, Release(Path("chart"), "now"))
    spec = made["spec"]["template"]["spec"]
    (term,) = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [{"key": "vpc-ipamd", "operator": "DoesNotExist"}]
    assert (ROOT / "docs" / "install.md").read_text().count('{"key": "vpc-ipamd", "operator": "DoesNotExist"}') == 1
    pod = Sandbox(ContainerId("1"), SandboxState.READY, "kube-system", f"{made['metadata']['name']}-x7k2p")
    assert agent_pod([pod]) == "kube-system/aws-node-x7k2p"
