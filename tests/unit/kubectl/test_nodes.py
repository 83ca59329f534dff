"""What the plugin does with single nodes and pods: where, exec, bundle, and the debug pod of a daemon that is down."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest

from tests.unit.kubectl.cluster import page
from tests.unit.kubectl.conftest import Desk

DOWN = {"waiting": {"reason": "CrashLoopBackOff"}}


def pod(name: str, address: str, phase: str = "Running") -> dict[str, Any]:
    """A pod with an address on node-0."""
    status = {"phase": phase, "podIP": address, "podIPs": [{"ip": address}]}
    return {"metadata": {"name": name, "namespace": "default"}, "spec": {"nodeName": "node-0"}, "status": status}


def test_where_needs_no_node(desk: Desk) -> None:
    """The API server knows the pods that run; one that has ended has the address no more."""
    desk.cluster.pods += [pod("web", "10.0.3.7"), pod("job", "10.0.3.7", "Succeeded")]
    status, answer = desk.ask("where", "10.0.3.7")
    assert (status, {row["pod"]: row["has_it"] for row in answer["pods"]}) == (0, {"default/web": True, "default/job": False})
    assert desk.ask("where", "web")[1]["pods"][0]["addresses"] == ["10.0.3.7"]
    assert desk.ask("where", "10.9.9.9")[0] == 1
    assert desk.kubectl_commands() == []


def test_where_asks_the_histories(desk: Desk) -> None:
    """Who had the address, and when, by exec; a node whose daemon is down is named."""
    desk.cluster.add("node-0", page("idle"))
    desk.cluster.add("node-1", None, state=DOWN)
    tenure = {"pod": "default/old", "address": "10.0.3.7", "since": "a", "until": "b", "ended_by": "DEL"}
    (desk.folder / "out").write_text(json.dumps({"tenures": [tenure]}))
    status, answer = desk.ask("where", "10.0.3.7", "--ask-nodes")
    assert (status, [(row["node"], row["pod"], bool(row["problem"])) for row in answer["nodes"]]) == (
        0,
        [("node-0", "default/old", False), ("node-1", "", True)],
    )


def test_exec_runs_ipamctl_in_the_daemons_pod(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its status is the plugin's, and options of kubectl are passed on."""
    desk.cluster.add("node-0", page("idle"))
    (desk.folder / "out").write_text("")
    monkeypatch.setenv("FAKE_STATUS", "1")
    assert desk.run("--context", "prod", "exec", "node-0", "explain", "10.0.3.7")[0] == 1
    words = "--context=prod exec -n kube-system vpc-ipamd-node-0 -c ipamd -- ipamctl explain 10.0.3.7"
    assert desk.kubectl_commands() == [words.split()]
    assert desk.run("exec", "node-9", "status")[0] == 2


def test_exec_passes_standard_input_to_a_verb_that_reads_it(desk: Desk) -> None:
    """`ipamctl plan --network -` reads a file of the operator's machine; no other verb takes input from a shell's loop."""
    desk.cluster.add("node-0", page("idle"))
    (desk.folder / "out").write_text("")
    desk.run("exec", "node-0", "plan", "--network", "-")
    desk.run("exec", "node-0", "plan", "--network", "network.json")
    with_input, without = desk.kubectl_commands()
    assert ("-i" in with_input, "-i" in without) == (True, False)


def test_a_daemon_that_is_down_needs_a_debug_pod(desk: Desk) -> None:
    """Only where it is asked for; the pod has the daemon's image, and is deleted."""
    desk.cluster.add("node-0", None, state=DOWN)
    assert desk.run("exec", "node-0", "status")[0] == 3
    assert desk.kubectl_commands() == []
    (desk.folder / "out").write_text("")
    assert desk.run("exec", "--debug", "node-0", "history")[0] == 0
    debug, wait, execute, delete = (" ".join(words) for words in desk.kubectl_commands())
    assert debug == (
        "debug node/node-0 -n kube-system --image=vpc-ipamd:0.1.0 --image-pull-policy=IfNotPresent --profile=sysadmin "
        "--env=VPC_IPAMD_RUN_DIR=/host/run/vpc-ipamd --env=VPC_IPAMD_HISTORY_DIR=/host/var/lib/vpc-ipamd/history -- sleep 900"
    )
    assert wait.startswith("wait -n kube-system pod/node-debugger-node-0-x7k2p ")
    assert execute == "exec -n kube-system node-debugger-node-0-x7k2p -- ipamctl history"
    assert delete.startswith("delete pod node-debugger-node-0-x7k2p ")


def test_a_debug_pod_is_not_asked_for_settings(desk: Desk) -> None:
    """Its environment is not the daemon's, so no pod is started for them."""
    desk.cluster.add("node-0", None, state=DOWN)
    assert desk.run("exec", "--debug", "node-0", "config")[0] == 3
    assert desk.kubectl_commands() == []


CLEAN_UP = "ipamd clean-up --host-root /host"


@pytest.mark.parametrize(
    ("words", "image", "command"),
    [
        ((), "vpc-ipamd:0.1.0", CLEAN_UP),
        (("--dry-run", "--image=other:2"), "other:2", f"{CLEAN_UP} --dry-run"),
    ],
)
def test_a_node_is_cleaned_up_in_a_debug_pod(desk: Desk, words: tuple[str, ...], image: str, command: str) -> None:
    """With the image that other nodes have. The settings of `ipamctl` are not set: the command finds the node's files by itself."""
    desk.cluster.add("node-0", page("idle"))
    (desk.folder / "out").write_text("")
    assert desk.run("clean-up", "gone-back", *words)[0] == 0
    debug, _, execute, delete = (" ".join(line) for line in desk.kubectl_commands())
    assert debug == (
        f"debug node/gone-back -n kube-system --image={image} --image-pull-policy=IfNotPresent --profile=sysadmin -- sleep 900"
    )
    assert execute == f"exec -n kube-system node-debugger-node-0-x7k2p -- {command}"
    assert delete.startswith("delete pod node-debugger-node-0-x7k2p ")


def test_a_clean_up_needs_one_image(desk: Desk) -> None:
    """Without a daemon anywhere there is none to choose."""
    assert desk.run("clean-up", "gone-back")[0] == 2
    assert desk.kubectl_commands() == []


def test_bundles_are_whole_files_of_the_operator(desk: Desk) -> None:
    """One that is cut off, and a node that is down, are rows with a problem and leave no file."""
    desk.cluster.add("node-0", page("idle"))
    desk.cluster.add("node-1", None, state=DOWN)
    archive = gzip.compress(b"x" * 5000)
    (desk.folder / "out").write_bytes(archive)
    folder = desk.folder / "bundles"
    status, answer = desk.ask("bundle", "--all", "-d", str(folder))
    assert (status, [bool(row["problem"]) for row in answer["bundles"]]) == (1, [False, True])
    (file,) = folder.iterdir()
    assert (file.name, file.read_bytes(), file.stat().st_mode & 0o777) == ("node-0.tar.gz", archive, 0o600)
    file.unlink()
    (desk.folder / "out").write_bytes(archive[:-9])
    assert desk.run("bundle", "node-0", "-d", str(folder))[0] == 1
    assert list(folder.iterdir()) == []
    assert desk.run("bundle")[0] == 2
