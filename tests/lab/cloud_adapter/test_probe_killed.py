"""What a killed probe leaves: the next run deletes it before it looks for a place, or names it and creates nothing (I9)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ipamd.ipamctl.probing import alone
from ipamd.probe.report import markdown
from tests.lab.cloud_adapter.conftest import Bench
from tests.lab.cloud_adapter.false_answers import DELETE, DESCRIBE, DETACH, is_dry, refusal
from tests.lab.cloud_adapter.probing import ProbeOnLab, Send, enis_left, verdicts
from tests.patience import PATIENCE_S


@pytest.fixture
def full_bench(make_bench: Callable[..., Bench]) -> Bench:
    """A node with one free place, where attaching and detaching take two seconds each."""
    bench = make_bench(attach_delay_s=2.0, detach_delay_s=2.0)
    bench.attached(device_index=1)
    bench.clock.sleep(5.0)
    return bench


@pytest.fixture
def environment(full_bench: Bench, tmp_path: Path) -> dict[str, str]:
    """What `ipamctl` finds on a node."""
    return {
        **os.environ,
        "AWS_EC2_ENDPOINT": full_bench.config.ec2_endpoint,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": full_bench.config.imds_endpoint,
        "VPC_IPAMD_RUN_DIR": str(tmp_path / "run"),
    }


@pytest.fixture
def ticking(full_bench: Bench) -> Iterator[None]:
    """Let the lab's time pass while a real process waits."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(0.1):
            full_bench.clock.sleep(0.1)

    thread = threading.Thread(target=tick)
    thread.start()
    yield
    ended.set()
    thread.join()


PROCESS_S = 300.0
"""For a whole run of the command, which takes seconds alone; a bound on waiting in vain."""


def probe_process(environment: dict[str, str]) -> subprocess.Popen[str]:
    """The command, as an operator runs it."""
    argv = [sys.executable, "-m", "ipamd.ipamctl.main", "-o", "json", "probe", "aws", "--run"]
    return subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def made_by_probes(bench: Bench) -> list[str]:
    """ENIs that a probe has made and nobody has deleted."""
    return [eni.eni_id for eni in bench.vpc.world.enis.values() if eni.description.startswith("vpc-ipamd probe")]


def run_killed(bench: Bench, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch, after: str) -> None:
    """Run the real process, and SIGKILL it when its first call of a kind has taken effect and is not answered yet."""
    effect = getattr(bench.vpc.interfaces, after)

    def struck(*args: Any, **options: Any) -> Any:
        answer = effect(*args, **options)
        process.kill()
        process.wait(PATIENCE_S)
        return answer

    with monkeypatch.context() as patch, probe_process(environment) as process:
        patch.setattr(bench.vpc.interfaces, after, struck)
        process.communicate(timeout=PROCESS_S)
        assert process.returncode == -signal.SIGKILL


@pytest.mark.slow
@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("after", ["create", "attach", "detach"])
def test_what_a_killed_run_left_is_gone_before_the_next_looks_for_a_place(
    after: str, full_bench: Bench, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed run's ENI takes the node's last place, or none: the next run deletes it, takes its checks, and leaves nothing."""
    run_killed(full_bench, environment, monkeypatch, after)
    (left,) = made_by_probes(full_bench)
    dry = ProbeOnLab(full_bench).run(is_real=False)
    assert [one["subject"] for one in dry["left_over"]] == [left], "a dry run names it"
    assert made_by_probes(full_bench) == [left]
    again = ProbeOnLab(full_bench)
    with alone(Path(environment["VPC_IPAMD_RUN_DIR"])):
        report = again.run()
    assert (report["ended"], report["left_over"]) == ("", [])
    assert "deleting 1 left over by a former probe" in again.said
    assert {verdict for name, verdict in verdicts(report).items() if not name.startswith("ipv6-prefix-")} == {"holds"}
    assert made_by_probes(full_bench) == []
    assert len(enis_left(full_bench)) == 1, "the node's own ENI stays"


@pytest.mark.usefixtures("ticking")
def test_a_second_run_on_the_node_leaves_the_first_ones_eni_alone(full_bench: Bench, environment: dict[str, str]) -> None:
    """Two processes at once: the second is refused and deletes nothing, and the first clears up what it made."""
    with probe_process(environment) as first:
        assert first.stderr is not None
        for line in first.stderr:
            if "attach" in line:
                break
        with probe_process(environment) as second:
            _, told = second.communicate(timeout=PROCESS_S)
        assert second.returncode == 4
        assert "another probe runs on this node" in told
        assert len(made_by_probes(full_bench)) == 1
        first.send_signal(signal.SIGINT)
        output, _ = first.communicate(timeout=PROCESS_S)
    report = json.loads(output)
    assert (report["ended"], report["left_over"]) == ("stopped by SIGINT", [])
    assert made_by_probes(full_bench) == []


def refusing(*apis: str) -> Callable[[ProbeOnLab, Send, str, dict[str, Any]], Mapping[str, Any]]:
    """IAM refuses these, and its dry run does not tell: a policy with a condition on the resource's tags."""

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        if api in apis and not is_dry(params):
            raise refusal("UnauthorizedOperation", status=403)
        return send(api, params)

    return around


@pytest.mark.parametrize("denied", [DELETE, DETACH])
def test_while_something_is_left_nothing_more_is_created(denied: str, full_bench: Bench) -> None:
    """Each further run names the same ENI with its commands, and ends; also where a free place is left."""
    ProbeOnLab(full_bench, refusing(denied)).run()
    (left,) = made_by_probes(full_bench)
    for _ in range(2):
        report = ProbeOnLab(full_bench, refusing(denied)).run()
        assert made_by_probes(full_bench) == [left]
        assert left in report["ended"]
        assert [one["subject"] for one in report["left_over"]] == [left]
        text = markdown(report)
        assert f"{denied}: UnauthorizedOperation" in text
        region = full_bench.vpc.region
        assert f"aws ec2 --region {region} delete-network-interface --network-interface-id {left}" in text
        assert f"aws ec2 --region {region} detach-network-interface --attachment-id" in text
    assert ProbeOnLab(full_bench).run()["left_over"] == []
    assert made_by_probes(full_bench) == []


def test_a_search_that_ec2_refuses_creates_nothing(full_bench: Bench) -> None:
    """Where it is not known what former runs left, a run would leave one more each time (I11)."""

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        if api == DESCRIBE and any("probe-node" in one["Name"] for one in params.get("Filters", ())):
            raise refusal("InternalError", status=500)
        return send(api, params)

    report = ProbeOnLab(full_bench, around).run()
    assert "what former probes left" in report["ended"]
    assert made_by_probes(full_bench) == []


def test_a_run_that_is_stopped_while_it_deletes_a_left_over_names_it(full_bench: Bench) -> None:
    """Ctrl-C after the Detach: the ENI is named, nothing is created, and the next run deletes it."""
    ProbeOnLab(full_bench, refusing(DETACH)).run()
    (left,) = made_by_probes(full_bench)

    def around(probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        if api == DETACH:
            probe.calls.stop("stopped by SIGINT")
        return send(api, params)

    report = ProbeOnLab(full_bench, around).run()
    assert report["ended"] == "stopped by SIGINT"
    assert [one["subject"] for one in report["left_over"]] == [left]
    assert ProbeOnLab(full_bench).run()["left_over"] == []
    assert made_by_probes(full_bench) == []


def test_several_left_overs_are_deleted_whatever_describe_shows_then(full_bench: Bench) -> None:
    """What a run has deleted takes no place, although EC2 goes on showing it attached for a while."""
    full_bench.vpc.faults.apply({"describe": {"stale_s": {"DetachNetworkInterface": 60, "DeleteNetworkInterface": 60}}})
    for number in range(3):
        tags = {"vpc-ipamd/probe": f"probe-{number}", "vpc-ipamd/probe-node": str(full_bench.instance_id)}
        made = full_bench.ec2.create_eni(replace(full_bench.request(token=f"left-{number}"), tags=tags))
        if number == 0:
            full_bench.ec2.attach_eni(made.eni_id, instance_id=full_bench.instance_id, device_index=2, network_card=0)
    full_bench.clock.sleep(61.0)
    report = ProbeOnLab(full_bench).run()
    assert "place" not in report["ended"]
    assert report["left_over"] == []
    assert len(enis_left(full_bench)) == 1


def test_a_probe_of_another_node_is_not_touched(full_bench: Bench) -> None:
    """An ENI with the probe's tag of another instance, and one that somebody attached to another instance, stay as they are."""
    vpc = full_bench.vpc
    other = vpc.add_instance(name="other", instance_type="m5.large", subnet_id=str(full_bench.subnet_id))
    theirs = {"vpc-ipamd/probe": "probe-1", "vpc-ipamd/probe-node": other.instance_id}
    ours = {**theirs, "vpc-ipamd/probe-node": str(full_bench.instance_id)}
    free = full_bench.ec2.create_eni(replace(full_bench.request(token="theirs"), tags=theirs))
    moved = full_bench.ec2.create_eni(replace(full_bench.request(token="moved"), tags=ours))
    vpc.hands.attach_existing(moved.eni_id, other.instance_id)
    full_bench.clock.sleep(5.0)
    before = [vpc.eni(eni.eni_id) for eni in (free, moved)]
    assert ProbeOnLab(full_bench).run()["left_over"] == []
    assert [vpc.eni(eni.eni_id) for eni in (free, moved)] == before
