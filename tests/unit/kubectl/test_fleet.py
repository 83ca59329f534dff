"""What the plugin reads of a whole cluster: the worst node first, in bounded time, and what is missing is named."""

from __future__ import annotations

import time

import pytest

import ipamd
from ipamd.model.blocked import Blocked
from kubectl_ipamd.figures import NAMES, read_figures
from kubectl_ipamd.judgement import CAUSE_STEPS, NEXT_STEPS, NodeState, next_step
from kubectl_ipamd.version import __version__
from tests.unit.docs.test_docs import ROOT
from tests.unit.kubectl.cluster import page
from tests.unit.kubectl.conftest import Desk

LOOPING = {"waiting": {"reason": "CrashLoopBackOff"}}


@pytest.mark.parametrize(
    ("recording", "state"),
    [
        ("idle", "ready"),
        ("idle-ipv6", "ready"),
        ("subnet-full", "empty"),
        ("subnet-nearly-full", "blocked"),
        ("eni-detached", "cut-off"),
        ("denied-at-start", "not-ready"),
        ("packed", "full"),
        ("frozen", "frozen"),
        ("runtime-gone", "conditions"),
    ],
)
def test_a_node_in_trouble_has_its_state(desk: Desk, recording: str, state: str) -> None:
    """The pages are those of real daemons on lab nodes (tests/recordings)."""
    desk.cluster.add("node-0", page(recording))
    status, answer = desk.ask("status")
    assert [row["state"] for row in answer["nodes"]] == [state]
    assert status == int(state not in ("ready", "full"))


def test_the_worst_node_is_first_and_silence_is_a_row(desk: Desk) -> None:
    """A crash loop, a daemon that hangs, a full subnet, and a node without a daemon, beside one that is well."""
    desk.cluster.add("node-well", page("idle"))
    desk.cluster.add("node-full", page("subnet-full"))
    desk.cluster.add("node-hung", None)
    desk.cluster.add("node-loop", None, state=LOOPING, restarts=7)
    desk.cluster.nodes.append({"metadata": {"name": "node-bare", "labels": {"kubernetes.io/os": "linux"}}})
    desk.cluster.nodes.append({"metadata": {"name": "node-windows", "labels": {"kubernetes.io/os": "windows"}}})
    status, answer = desk.ask("status", "--timeout", "1")
    assert [(row["node"], row["state"]) for row in answer["nodes"]] == [
        ("node-bare", "no-daemon"),
        ("node-loop", "crash-loop"),
        ("node-hung", "no-answer"),
        ("node-full", "empty"),
        ("node-well", "ready"),
    ]
    assert (status, answer["summary"]["attention"]) == (1, 4)
    assert not [path for path in desk.cluster.paths if "node-loop" in path]


@pytest.mark.parametrize(("recording", "state"), [("", "no-answer"), ("denied-at-start", "not-ready")])
def test_a_daemon_between_two_crashes_is_told_of(desk: Desk, recording: str, state: str) -> None:
    """It runs, and has not answered yet: the row has its restarts and its last end, and so has the reason."""
    desk.cluster.add("node-0", page(recording) if recording else None, restarts=7, exit_code=2)
    _, answer = desk.ask("status", "--timeout", "1")
    (row,) = answer["nodes"]
    assert (row["state"], row["restarts"]) == (state, 7)
    assert row["last_end"].startswith("status 2 ")
    assert row["last_end"] in row["reason"]


@pytest.mark.parametrize(
    ("last_log", "cause"),
    [
        ("vpc-ipamd: 1 setting(s) are wrong: WARM_ENI_TARGETS\n", ": vpc-ipamd: 1 setting(s) are wrong: WARM_ENI_TARGETS"),
        ('{"message": "a"}\n{"message": "the daemon ends", "error": "schema 3"}\n', ": schema 3"),
        ("[1]", ": [1]"),
        ("\n", ""),
    ],
)
def test_the_last_line_of_the_log_is_the_reason_of_an_end(desk: Desk, last_log: str, cause: str) -> None:
    """Kubelet has it in the container's status, as text or as a line of JSON."""
    waits = {"waiting": {"reason": "CrashLoopBackOff"}}
    desk.cluster.add("node-0", None, state=waits, restarts=7, exit_code=2, last_log=last_log)
    (row,) = desk.ask("status")[1]["nodes"]
    assert row["state"] == "crash-loop"
    assert row["last_end"] == f"status 2 Error 2026-11-22T01:00:00Z{cause}"
    assert row["reason"].endswith(row["last_end"])


def test_500_nodes_take_less_than_a_minute(desk: Desk) -> None:
    """Of which 25 do not answer."""
    text = page("idle")
    for number in range(500):
        desk.cluster.add(f"node-{number}", None if number % 20 == 0 else text)
    began = time.monotonic()
    status, answer = desk.ask("status", "--timeout", "2")
    taken_s = time.monotonic() - began
    assert status == 1
    assert answer["summary"]["by_state"] == {"no-answer": 25, "ready": 475}
    assert taken_s < 60


def test_a_short_node_is_named(desk: Desk) -> None:
    """By the number that the operator names."""
    desk.cluster.add("node-0", page("idle"))
    assert desk.ask("status", "--short", "1")[0] == 0
    assert desk.ask("status", "--short", "1000")[1]["nodes"][0]["state"] == "short"


def test_a_short_node_that_cannot_have_more_says_so(desk: Desk) -> None:
    """A larger type helps it, and one that grows by itself needs nothing."""
    desk.cluster.add("node-growing", page("idle"))
    desk.cluster.add("node-packed", page("packed"))
    _, answer = desk.ask("status", "--short", "1000")
    reasons = {row["node"]: (row["state"], "node-full" in row["reason"]) for row in answer["nodes"]}
    assert reasons == {"node-growing": ("short", False), "node-packed": ("short", True)}


def test_a_missing_right_is_named(desk: Desk) -> None:
    """Without pods/proxy the table is there and the status is 4; without the right to list nodes the pods' nodes are shown."""
    desk.cluster.add("node-0", page("idle"))
    desk.cluster.forbidden.add("/proxy/")
    status, answer = desk.ask("status")
    assert (status, answer["nodes"][0]["state"]) == (4, "no-answer")
    desk.cluster.forbidden = {"/api/v1/nodes", "daemonsets"}
    status, answer = desk.ask("status")
    assert (status, answer["nodes"][0]["state"], len(answer["notes"])) == (0, "ready", 2)
    desk.cluster.forbidden = {"/pods"}
    assert desk.run("status")[0] == 4


def test_a_next_step_is_of_the_same_cluster(desk: Desk) -> None:
    """What is below the table can be run as it stands: it has the operator's options, those of kubectl in kubectl's own lines too."""
    desk.cluster.add("node-loop", None, state=LOOPING, restarts=7)
    desk.cluster.add("node-empty", page("subnet-full"))
    plain, special = desk.run("status")[1], desk.run("--context", "prod", "-n", "network", "-l", "app=x", "status")[1]
    for text, of_kubectl, of_plugin in (
        (plain, ["kubectl", "-n"], ["kubectl", "ipamd"]),
        (
            special,
            ["kubectl", "--context=prod"],
            ["kubectl", "ipamd", "--namespace=network", "--selector=app=x", "--context=prod"],
        ),
    ):
        lines = [line.partition(": ")[2].split() for line in text.splitlines() if line.startswith(("crash-loop: ", "empty "))]
        assert [line[:2] for line in lines[:1]] == [of_kubectl]
        assert lines[1][: len(of_plugin)] == of_plugin
        assert len(lines) == 2


def test_a_next_step_names_the_first_node_of_its_state(desk: Desk) -> None:
    """It can be pasted as it stands: a pod's name is not in the table."""
    desk.cluster.add("node-1", None, state=LOOPING, restarts=7)
    desk.cluster.add("node-0", None, state=LOOPING, restarts=7)
    desk.cluster.add("node-empty", page("subnet-full"))
    text = desk.run("status")[1]
    (looping,) = [line for line in text.splitlines() if line.startswith("crash-loop: ")]
    (empty,) = [line for line in text.splitlines() if line.startswith("empty ")]
    assert " vpc-ipamd-node-0 " in looping
    assert " node-empty " in empty
    assert not {"NODE", "POD"} & set(f"{looping} {empty}".split())


def test_a_next_step_is_that_of_the_cause() -> None:
    """The table of subnets helps where a subnet is full, and not where IAM denies or EC2 throttles; a cause is one of the daemon's."""
    steps = {cause: next_step(NodeState.EMPTY, cause) for cause in ("denied", "throttled", "quota", "subnet-full", "error", "")}
    assert ["top" in step.split() for step in steps.values()] == [False, False, False, True, False, False]
    assert "retry" in steps["denied"].split()
    assert "retry" not in steps["throttled"].split()
    assert steps["error"] == steps[""] == NEXT_STEPS[NodeState.EMPTY]
    assert next_step(NodeState.BLOCKED, "denied") == steps["denied"]
    assert (next_step(NodeState.FULL, "node-full"), next_step(NodeState.CUT_OFF, "denied")) == ("", NEXT_STEPS[NodeState.CUT_OFF])
    assert set(CAUSE_STEPS) <= set(Blocked)


def test_versions_are_counted(desk: Desk) -> None:
    """One row for a release; a node without figures is a row with an empty one, and somebody must look."""
    desk.cluster.add("node-0", page("idle"))
    desk.cluster.add("node-1", page("busy"))
    status, answer = desk.ask("versions")
    assert (status, [(row["version"], row["count"]) for row in answer["versions"]]) == (0, [(ipamd.__version__, 2)])
    desk.cluster.add("node-2", None, state=LOOPING)
    status, answer = desk.ask("versions")
    assert (status, {row["version"] for row in answer["versions"]}) == (1, {ipamd.__version__, ""})


def test_the_youngest_answer_about_a_subnet_counts(desk: Desk) -> None:
    """Free addresses are those of the node that asked EC2 last; what nodes hold is summed."""
    for name, free, age, assigned in (("node-0", 90, 700, 3), ("node-1", 40, 20, 5)):
        labels = '{subnet="subnet-1",zone="us-west-2a"'
        text = f"ipamd_ready 1\nipamd_subnet_free_addresses{labels}}} {free}\n"
        text += f"ipamd_subnet_answer_age_seconds{labels}}} {age}\n"
        text += f'ipamd_subnet_held_addresses{labels},state="assigned"}} {assigned}\n'
        desk.cluster.add(name, text)
    status, answer = desk.ask("top")
    (subnet,) = answer["subnets"]
    assert (status, subnet["free"], subnet["answer_age_s"], subnet["assigned"], subnet["nodes"]) == (0, 40, 20, 8, 2)
    (zone,) = answer["zones"]
    assert (zone["zone"], zone["free"], zone["nodes"], zone["unread"]) == ("us-west-2a", 40, 2, 0)


def test_addresses_of_others_and_nodes_that_differ_are_counted(desk: Desk) -> None:
    """A subnet may be full by others' addresses; and a node whose answer is old makes no ENI in a subnet that has room again."""
    for name, free, age in (("node-0", 0, 700), ("node-1", 40, 20)):
        labels = '{subnet="subnet-1",zone="us-west-2a"'
        text = (
            f"ipamd_ready 1\nipamd_subnet_free_addresses{labels}}} {free}\nipamd_subnet_used_addresses{labels}}} {251 - free}\n"
        )
        text += f"ipamd_subnet_answer_age_seconds{labels}}} {age}\n"
        text += (
            f'ipamd_subnet_held_addresses{labels},state="assigned"}} 3\nipamd_subnet_held_addresses{labels},state="free"}} 7\n'
        )
        desk.cluster.add(name, text)
    _, answer = desk.ask("top")
    (subnet,) = answer["subnets"]
    assert (subnet["used"], subnet["not_ours"]) == (211, 191)
    assert (subnet["full_for_nodes"], subnet["oldest_answer_age_s"], len(answer["notes"])) == (1, 700, 1)


def test_the_metrics_that_are_read_are_the_daemons() -> None:
    """Each name is one that a whole daemon of fakes exposes (tests/unit/service/test_metrics.py holds that list)."""
    exposed = {line.split()[0] for line in (ROOT / "tests/unit/service/metrics.txt").read_text().splitlines()}
    assert exposed >= NAMES
    assert __version__ == ipamd.__version__
    with pytest.raises(ValueError, match="ipamd_ready"):
        read_figures("go_goroutines 7\n")
