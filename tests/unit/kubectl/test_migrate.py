"""`kubectl ipamd migrate --plan`: commands for a fleet that changes hands are printed, and a batch that goes wrong stops them."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import pytest

from kubectl_ipamd.migration import Choices, DaemonSets, MigrationNode, MigrationPlan, plan_back, plan_over, script
from tests.unit.kubectl.cluster import LABELS
from tests.unit.kubectl.conftest import Desk

LABEL = ("vpc-ipamd", "yes")
CHOICES = Choices(label=LABEL, batch=2, canary=1, soak_minutes=30)
ZONES = ("us-west-2a", "us-west-2b")


def daemonset(name: str, container: str, **spec: Any) -> dict[str, Any]:
    """One, as the API server has it."""
    return {"metadata": {"name": name}, "spec": {"template": {"spec": {"containers": [{"name": container}], **spec}}}}


def required(*expressions: dict[str, Any]) -> dict[str, Any]:
    """An affinity with one term."""
    terms = {"nodeSelectorTerms": [{"matchExpressions": list(expressions)}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}


LINUX = {"key": "kubernetes.io/os", "operator": "In", "values": ["linux"]}
OURS = daemonset("vpc-ipamd", "ipamd", nodeSelector={"vpc-ipamd": "yes"})
OTHER = daemonset("aws-node", "aws-node", affinity=required(LINUX))
OTHER_OFF = daemonset("aws-node", "aws-node", affinity=required(LINUX, {"key": "vpc-ipamd", "operator": "DoesNotExist"}))


def node(name: str, zone: str = ZONES[0], *, is_ready: bool = True, image: str = "", **labels: str) -> MigrationNode:
    """A node of Linux."""
    named = {key.replace("_", "-"): value for key, value in labels.items()}
    return MigrationNode(name, {**LABELS, "topology.kubernetes.io/zone": zone, **named}, is_ready, image)


def labelled(plan: MigrationPlan) -> list[tuple[str, ...]]:
    """The nodes of each step that changes nodes."""
    return [step.nodes for step in plan.steps if step.nodes]


def over(nodes: list[MigrationNode], other: dict[str, Any] | None = OTHER_OFF, choices: Choices = CHOICES) -> MigrationPlan:
    """Plan with our DaemonSet in place."""
    return plan_over(nodes, DaemonSets(OURS, other, "kube-system"), choices)


def test_a_canary_then_batches_zone_by_zone() -> None:
    """No batch has nodes of two zones, none more than was chosen; nodes that are done, or cannot, are named and left out."""
    nodes = [
        *(node(f"a{number}") for number in range(4)),
        *(node(f"b{number}", ZONES[1]) for number in range(2)),
        node("done", vpc_ipamd="yes"),
        node("broken", is_ready=False),
    ]
    plan = over(nodes)
    assert labelled(plan) == [("a0",), ("a1", "a2"), ("a3",), ("b0", "b1")]
    assert (plan.done, plan.skipped, plan.problems) == (("done",), ("broken",), ())
    assert any("1800" in command for command in plan.steps[0].commands)
    assert not any("1800" in command for step in plan.steps[1:] for command in step.commands)


def test_by_default_a_batch_is_a_tenth() -> None:
    """Of the nodes that wait, and at least one."""
    sizes = {
        count: len(labelled(over([node(f"n{i:03}") for i in range(count)], choices=Choices(LABEL, 0, 1, 0)))[-2])
        for count in (3, 100)
    }
    assert sizes == {3: 1, 100: 10}


def test_the_other_is_kept_off_first() -> None:
    """Only if its affinity does not do that yet; each of its terms gets the expression, and without terms one is made."""
    nodes = [node("a")]
    assert labelled(over(nodes)) == [("a",)]
    assert len(over(nodes).steps) == 1
    patched = over(nodes, OTHER).steps[0]
    assert patched.nodes == ()
    assert "DoesNotExist" in patched.commands[0]
    bare = over(nodes, daemonset("aws-node", "aws-node")).steps[0]
    assert "nodeSelectorTerms" in bare.commands[0]


@pytest.mark.parametrize(
    ("ours", "other"),
    [(None, OTHER_OFF), (OURS, None), (daemonset("vpc-ipamd", "ipamd"), OTHER_OFF)],
    ids=["ours is missing", "the other is missing", "ours is everywhere"],
)
def test_what_must_be_mended_stops_the_script(ours: dict[str, Any] | None, other: dict[str, Any] | None) -> None:
    """It is named, and the script ends before the first step."""
    plan = plan_over([node("a")], DaemonSets(ours, other, "kube-system"), CHOICES)
    assert len(plan.problems) == 1
    assert subprocess.run(["/bin/sh", "-c", script(plan)], capture_output=True, check=False, timeout=30).returncode == 1


def test_nodes_go_back_one_by_one() -> None:
    """Export, label, the other's daemon, clean-up with the image that the node has; a node without our daemon cannot."""
    nodes = [
        node("b", vpc_ipamd="yes", image="i:1"),
        node("a", vpc_ipamd="yes", image="i:1"),
        node("c"),
        node("d", vpc_ipamd="yes"),
    ]
    plan = plan_back(nodes, DaemonSets(OURS, OTHER_OFF, "kube-system"), CHOICES)
    assert (labelled(plan), plan.done, plan.skipped) == ([("a",), ("b",)], ("c",), ("d",))
    words = [shlex.split(command, comments=True) for command in plan.steps[0].commands]
    assert [next(word for word in line if word in ("export", "label", "sleep", "rollout", "clean-up")) for line in words] == [
        "export", "label", "sleep", "rollout", "clean-up",
    ]  # fmt: skip
    assert "--image=i:1" in words[-1]
    assert words[-1][-6:] == ["||", "[", "$?", "-eq", "1", "]"]  # kept for pods that run: no failure of the script
    assert plan_back(nodes, DaemonSets(OURS, None, "kube-system"), CHOICES).problems


RECORDER = """\
#!/bin/sh
echo "$*" >> "$LOG"
case "$*" in *"$FAILS"*) exit 1;; esac
"""


def executed(folder: Path, plan: MigrationPlan, *, fails: str) -> tuple[int, list[str]]:
    """Run the script with a kubectl that records and fails at some words. Returns: the status, and kubectl's command lines."""
    for name, text in (("kubectl", RECORDER), ("sleep", "#!/bin/sh\n")):
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    environment = {"PATH": f"{folder}:{os.environ['PATH']}", "LOG": str(folder / "log"), "FAILS": fails}
    done = subprocess.run(["/bin/sh", "-c", script(plan)], env=environment, capture_output=True, check=False, timeout=60)
    return done.returncode, (folder / "log").read_text().splitlines()


def test_a_batch_that_goes_wrong_stops_the_rest(tmp_path: Path) -> None:
    """By status, by an audit, or by a roll-out that does not end. A shell takes the script as it is printed."""
    plan = over([node(f"a{number}") for number in range(5)], OTHER)
    status, lines = executed(tmp_path, plan, fails="nothing")
    assert (status, sum(" label " in f" {line} " for line in lines)) == (0, 3)
    for number, fails in enumerate(("ipamd status", "exec a1 audit", "rollout status daemonset/vpc-ipamd"), 1):
        folder = tmp_path / str(number)
        folder.mkdir()
        status, lines = executed(folder, plan, fails=fails)
        assert status == 1
        assert sum(" label " in f" {line} " for line in lines) == (2 if "a1" in fails else 1), fails


def test_the_command_reads_and_prints(desk: Desk) -> None:
    """It names the options of the call in each command, and executes nothing."""
    desk.cluster.add("node-0", None)
    desk.cluster.nodes.append({"metadata": {"name": "node-1", "labels": {**LABELS, "vpc-ipamd": "yes"}}, "status": {}})
    desk.cluster.node_selector = {"vpc-ipamd": "yes"}
    desk.cluster.daemonsets = [OTHER]
    status, answer = desk.ask("--context", "prod", "migrate", "--plan")
    assert (status, answer["done"], answer["skipped"], answer["problems"]) == (0, ["node-1"], [], [])
    assert [step["nodes"] for step in answer["steps"]] == [[], ["node-0"]]
    assert all("--context=prod" in c for step in answer["steps"] for c in step["commands"] if not c.startswith("sleep"))
    assert desk.kubectl_commands() == [], "only the proxy was run"
    status, text = desk.run("migrate", "--plan", "--back")
    assert (status, "node-1" in text) == (0, True)
    desk.cluster.daemonsets = []
    assert desk.run("migrate", "--plan")[0] == 1


def test_the_script_looks_where_the_operator_looked(desk: Desk) -> None:
    """A chart in another namespace, under another name or port: without these options the plugin would find no daemon, and the script
    would stop behind its canary."""
    desk.cluster.add("node-0", None)
    desk.cluster.node_selector = {"vpc-ipamd": "yes"}
    desk.cluster.daemonsets = [OTHER_OFF]
    options = ("-n", "network", "-l", "app=ipam", "--metrics-port", "7000")
    plain, special = desk.ask("migrate", "--plan")[1], desk.ask(*options, "migrate", "--plan")[1]
    for answer, expected in ((plain, ()), (special, ("--namespace=network", "--selector=app=ipam", "--metrics-port=7000"))):
        lines = [shlex.split(command, comments=True) for step in answer["steps"] for command in step["commands"]]
        of_plugin = [line for line in lines if line[:2] == ["kubectl", "ipamd"]]
        assert of_plugin
        assert all(tuple(line[2 : 2 + len(expected)]) == expected for line in of_plugin), of_plugin
        assert not [line for line in lines if line[:2] != ["kubectl", "ipamd"] and set(line) & set(expected)]


def test_without_plan_or_rights_there_is_none(desk: Desk) -> None:
    """Nothing else is executed; half of a plan would be wrong."""
    desk.cluster.add("node-0", None)
    assert desk.run("migrate")[0] == 2
    assert desk.run("migrate", "--plan", "--label", "vpc-ipamd")[0] == 2
    assert desk.run("migrate", "--plan", "--batch", "-1")[0] == 2
    desk.cluster.forbidden = {"daemonsets"}
    assert desk.run("migrate", "--plan")[0] == 4
