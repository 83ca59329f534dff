"""What a probe leaves behind: nothing, or something that it names and that the next one deletes (I9)."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from ipamd.ipamctl.probing import alone
from ipamd.ipamctl.verb import RefusedError
from ipamd.probe.report import markdown
from tests.lab.cloud_adapter.conftest import Bench
from tests.lab.cloud_adapter.false_answers import CREATE, DELETE, DESCRIBE, is_dry, refusal
from tests.lab.cloud_adapter.probing import Around, ProbeOnLab, Send, enis_left
from tests.patience import PATIENCE_S

LONGEST_RUN = 60
"""Calls of a run on the prompt lab, and some."""

STRIDE = 1 if os.environ.get("VPC_IPAMD_HEAVY") else 3
"""In `make test` each call goes wrong in two of the six ways, and each way strikes a third of the calls; in `make test-all` all do."""


@pytest.fixture
def real_bench(make_bench: Callable[..., Bench]) -> Bench:
    """A node where attaching and detaching take two seconds each."""
    return make_bench(attach_delay_s=2.0, detach_delay_s=2.0)


def at_call(number: int, strike: Around) -> Around:
    """Let `strike` handle one call."""
    seen = [0]

    def around(probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        seen[0] += 1
        return strike(probe, send, api, params) if seen[0] == number else send(api, params)

    return around


def stop_before(probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
    """Ctrl-C while a call is under way."""
    probe.calls.stop("stopped by SIGINT")
    return send(api, params)


def killed_in_the_call(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
    """An exception that nobody expects, after the call took effect."""
    send(api, params)
    raise RuntimeError("a defect of the probe")


def lost_answer(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
    """The call takes effect, and its answer is lost."""
    send(api, params)
    raise ReadTimeoutError(endpoint_url="http://lab")


def server_error(_probe: ProbeOnLab, _send: Send, _api: str, _params: dict[str, Any]) -> Mapping[str, Any]:
    """A fault inside EC2."""
    raise refusal("InternalError", status=500)


def denied(_probe: ProbeOnLab, _send: Send, _api: str, _params: dict[str, Any]) -> Mapping[str, Any]:
    """A refusal that no retry helps."""
    raise refusal("UnauthorizedOperation", status=403)


def odd(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
    """An answer of a shape never seen."""
    send(api, params)
    return {"NetworkInterface": {"Attachment": None}, "NetworkInterfaces": [{}], "AssignedPrivateIpAddresses": [{}]}


STRIKES = [stop_before, killed_in_the_call, lost_answer, server_error, denied, odd]


@pytest.mark.parametrize(
    "strike", [pytest.param(one, marks=pytest.mark.heavy if one in (server_error, odd) else ()) for one in STRIKES]
)
def test_nothing_is_left_whichever_call_goes_wrong(strike: Around, real_bench: Bench) -> None:
    """One call after the other goes wrong, in a run of its own: after each, none of the probe's ENIs exists, and none is named."""
    run_count, client = 0, ProbeOnLab(real_bench).client
    for number in range(3 + STRIKES.index(strike) % STRIDE, LONGEST_RUN, STRIDE):
        struck: list[str] = []

        def noted(
            probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any], struck: list[str] = struck
        ) -> Mapping[str, Any]:
            struck.append(api)
            return strike(probe, send, api, params)

        report = ProbeOnLab(real_bench, at_call(number, noted), client=client).run()
        if not struck:
            break
        run_count += 1
        assert enis_left(real_bench) == [], (number, struck)
        assert report["left_over"] == [], (number, struck)
    assert run_count > 40 // STRIDE


def test_an_eni_that_cannot_be_deleted_is_named_and_the_next_run_deletes_it(real_bench: Bench) -> None:
    """The report has its ID and the commands; a dry run names it again, and a run deletes it before it begins."""

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        if api == DELETE and not is_dry(params):
            raise refusal("UnauthorizedOperation", status=403)
        return send(api, params)

    report = ProbeOnLab(real_bench, around).run()
    (left,) = enis_left(real_bench)
    assert [one["subject"] for one in report["left_over"]] == [left]
    text = markdown(report)
    assert f"delete-network-interface --network-interface-id {left}" in text
    assert "UnauthorizedOperation" in text
    again = ProbeOnLab(real_bench).run(is_real=False)
    assert [one["subject"] for one in again["left_over"]] == [left]
    assert enis_left(real_bench) == [left]
    assert ProbeOnLab(real_bench).run()["left_over"] == []
    assert enis_left(real_bench) == []


def test_an_attached_left_over_is_detached_and_deleted(real_bench: Bench) -> None:
    """A probe that was killed leaves an attached ENI; the next run frees its place before it looks for one."""
    count = [0]

    class Killed(BaseException):
        """As SIGKILL: not even the clean-up makes a call."""

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        count[0] += 1
        if count[0] > 20:
            raise Killed
        return send(api, params)

    with pytest.raises(Killed):
        ProbeOnLab(real_bench, around).run()
    assert len(enis_left(real_bench)) == 1
    report = ProbeOnLab(real_bench).run()
    assert report["left_over"] == []
    assert report["ended"] == ""
    assert enis_left(real_bench) == []


def test_an_unanswered_create_that_stays_unanswered_is_named(real_bench: Bench) -> None:
    """Where EC2 never answers Create nor shows what it made, the report says how to look for it."""
    made: list[str] = []

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        if api == CREATE and not is_dry(params):
            made.append(send(api, params)["NetworkInterface"]["NetworkInterfaceId"])
            raise ReadTimeoutError(endpoint_url="http://lab")
        answer = dict(send(api, params))
        if api == DESCRIBE:
            answer["NetworkInterfaces"] = [eni for eni in answer["NetworkInterfaces"] if eni["NetworkInterfaceId"] not in made]
        return answer

    report = ProbeOnLab(real_bench, around).run()
    assert len(enis_left(real_bench)) == 1
    assert "Name=tag:vpc-ipamd/probe,Values=probe-" in markdown(report)


def test_an_endpoint_that_ignores_dry_runs_keeps_nothing(real_bench: Bench) -> None:
    """What a Create made although it was a dry run is deleted, and the report says so."""

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        return send(api, {key: value for key, value in params.items() if key != "DryRun"})

    report = ProbeOnLab(real_bench, around).run(is_real=False)
    assert report["permissions"][0]["told"] == "the endpoint ignores DryRun"
    assert enis_left(real_bench) == []


def test_two_probes_of_one_node_exclude_each_other(tmp_path: Path) -> None:
    """The second is refused: it would take the first one's ENI for a left-over."""
    with alone(tmp_path / "run"), pytest.raises(RefusedError), alone(tmp_path / "run"):
        raise AssertionError("two probes at once")
    with alone(tmp_path / "run"):
        assert (tmp_path / "run" / "probe.lock").exists()


@pytest.fixture
def environment(real_bench: Bench, tmp_path: Path) -> dict[str, str]:
    """What `ipamctl` finds on a node."""
    return {
        **os.environ,
        "AWS_EC2_ENDPOINT": real_bench.config.ec2_endpoint,
        "AWS_EC2_METADATA_SERVICE_ENDPOINT": real_bench.config.imds_endpoint,
        "VPC_IPAMD_RUN_DIR": str(tmp_path / "run"),
    }


@pytest.fixture
def ticking(real_bench: Bench) -> Iterator[None]:
    """Let the lab's time pass while a real process waits."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(0.1):
            real_bench.clock.sleep(0.1)

    thread = threading.Thread(target=tick)
    thread.start()
    yield
    ended.set()
    thread.join()


def ipamctl(*words: str) -> list[str]:
    """The command line."""
    return [sys.executable, "-m", "ipamd.ipamctl.main", *words]


@pytest.mark.usefixtures("ticking")
def test_the_command_dry_runs_unless_told_otherwise(real_bench: Bench, environment: dict[str, str], tmp_path: Path) -> None:
    """The process as an operator runs it: it prints the plan, changes nothing, and writes both files where it is told."""
    done = subprocess.run(
        ipamctl("probe", "aws", "--report", str(tmp_path / "out")),
        env=environment, capture_output=True, text=True, timeout=PATIENCE_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "Nothing was changed now" in done.stdout
    assert enis_left(real_bench) == []
    assert (tmp_path / "out" / "probe-aws.md").read_text() == done.stdout
    assert json.loads((tmp_path / "out" / "probe-aws.json").read_text())["mode"] == "dry run"


@pytest.mark.usefixtures("ticking")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_in_the_middle_leaves_nothing(number: signal.Signals, real_bench: Bench, environment: dict[str, str]) -> None:
    """Ctrl-C, an ended pod or a lost terminal while the ENI exists: it is deleted, and the report says why it ends early."""
    process = subprocess.Popen(
        ipamctl("-o", "json", "probe", "aws", "--run"), env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    assert "at most 100 EC2 calls" in process.stderr.readline()
    for line in process.stderr:
        if "attach" in line:
            break
    assert enis_left(real_bench) != []
    process.send_signal(number)
    process.send_signal(number)
    output, told = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 1, told
    assert json.loads(output)["ended"] == f"stopped by {number.name}"
    assert "nothing is left behind" in told
    assert enis_left(real_bench) == []


def test_without_metadata_the_command_says_so_in_one_line(real_bench: Bench, environment: dict[str, str]) -> None:
    """No traceback where there is no EC2 instance."""
    real_bench.vpc.faults.apply({"unreachable": {"imds": "refuse"}})
    done = subprocess.run(ipamctl("probe", "aws"), env=environment, capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 4
    assert done.stderr.startswith("ipamctl: instance metadata")
    assert done.stderr.count("\n") == 1


def test_a_silent_ec2_ends_the_checks_and_is_outwaited_by_the_clean_up(real_bench: Bench) -> None:
    """After three calls without an answer the checks end; the clean-up goes on, and finds EC2 back."""
    count = [0]

    def around(_probe: ProbeOnLab, send: Send, api: str, params: dict[str, Any]) -> Mapping[str, Any]:
        count[0] += 1
        if 16 <= count[0] < 22:
            raise ReadTimeoutError(endpoint_url="http://lab")
        return send(api, params)

    report = ProbeOnLab(real_bench, around).run()
    assert "has not answered 3 calls in a row" in report["ended"]
    assert [answer["code"] for answer in report["answers"]][15:18] == ["(no answer)"] * 3
    assert report["left_over"] == []
    assert enis_left(real_bench) == []
