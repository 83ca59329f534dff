"""The process: socket and directory, two daemons, bad settings, signals, idle."""

from __future__ import annotations

import json
import signal
import stat
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lab.node.node import REPOSITORY
from lab.vpc.family import IPV6, Family
from tests.families import EACH_FAMILY_HEAVY_IPV6, HEAVY_IPV6, in_both_of_lab, in_ipv4_of_lab, lab_family_for
from tests.patience import PATIENCE_S
from tests.rig import RUN_DIR, CniReply, Rig, rig, wait_until

pytestmark = pytest.mark.privileged
BOTH = in_both_of_lab("made", HEAVY_IPV6)
IN_IPV4 = in_ipv4_of_lab("made")


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest) -> Iterator[Rig]:
    """A node whose daemons are executed, as where they are shipped. Each test leaves one that serves, by the rig's settings, and no
    sandbox."""
    with rig(is_executed=True, family=lab_family_for(request)) as one:
        yield one
        one.assert_sound(expected=0)


@IN_IPV4
def test_socket_and_directory_are_for_root_only(made: Rig) -> None:
    """The run directory is 0700, the socket 0600, both root's."""
    directory = Path(made.node.root + RUN_DIR).stat()
    socket = Path(made.node.root + RUN_DIR + "/ipamd.sock").stat()
    assert (stat.S_IMODE(directory.st_mode), directory.st_uid) == (0o700, 0)
    assert stat.S_ISSOCK(socket.st_mode)
    assert stat.S_IMODE(socket.st_mode) == 0o600


@BOTH
def test_a_successor_waits_for_the_end_of_the_first(made: Rig) -> None:
    """Two daemons never share a node: the second waits, serves nobody and disturbs nothing, until the first is gone (row 11)."""
    first = made.driver.process
    assert first is not None
    made.driver.process = None  # the rig knows one; the first is ended by hand
    made.start(wait=False)
    wait_until(
        lambda: "waiting for another vpc-ipamd to end" in made.driver.log_text(of_this_start=True), what="the second waits"
    )
    assert made.add("served").ok
    assert first.poll() is None
    first.send_signal(signal.SIGKILL)
    made.wait_ready()
    assert made.attachments().keys() == {"served"}
    made.assert_sound(expected=1)
    assert made.delete("served").ok


@IN_IPV4
def test_a_successor_that_waits_can_be_ended(made: Rig) -> None:
    """SIGTERM is heard while it waits for the lock, and the first is not disturbed."""
    first = made.driver.process
    made.driver.process = None
    made.start(wait=False)
    wait_until(
        lambda: "waiting for another vpc-ipamd to end" in made.driver.log_text(of_this_start=True), what="the second waits"
    )
    assert made.driver.end(signal.SIGTERM, timeout_s=PATIENCE_S) == 1
    assert "another vpc-ipamd serves" in made.driver.log_text(of_this_start=True)
    made.driver.process = first
    assert made.add("still-served").ok
    assert made.delete("still-served").ok


@IN_IPV4
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"WARM_IP_TARGET": "many", "POD_MTU": "1"}, ["WARM_IP_TARGET", "POD_MTU"]),
        ({"AWS_EC2_METADATA_SERVICE_ENDPOINT": "ftp://x"}, ["AWS_EC2_METADATA_SERVICE_ENDPOINT"]),
        (
            {
                "WARM_ENI_TARGETT": "1",
                "ENABLE_IMDS_ONLY_MODE": "true",
                "ADDITIONAL_ENI_TAGS": "[" * 30000,
                "AWS_REGION": "us west",
            },
            ["did you mean WARM_ENI_TARGET?", "ENABLE_IMDS_ONLY_MODE=true: ", "nested too deeply", "AWS_REGION="],
        ),
    ],
)
def test_bad_settings_are_all_named_and_end_with_2(made: Rig, env: dict[str, str], words: list[str]) -> None:
    """Every problem at once, exit status 2, no traceback."""
    environment = made.node.daemon_environment(made.lab.vpc.region) | made.env | env
    done = made.node.run([sys.executable, "-m", "ipamd.daemon"], env=environment, cwd=str(REPOSITORY), check=False, timeout_s=120)
    assert done.returncode == 2
    assert all(word in done.stderr for word in words)
    assert "Traceback" not in done.stderr


@BOTH
def test_sigterm_finishes_and_goes(made: Rig) -> None:
    """By default nothing is waited for: the daemon is gone at once, the conflist stays, and its successor has every sandbox."""
    assert made.add("ended").ok
    began = time.monotonic()
    assert made.driver.end(signal.SIGTERM, timeout_s=PATIENCE_S) == 0
    assert time.monotonic() - began < PATIENCE_S
    assert "exiting" in made.driver.log_text(of_this_start=True)
    conflist = json.loads(Path(made.node.root + "/etc/cni/net.d/10-vpc-ipamd.conflist").read_text())
    assert conflist["plugins"][0]["type"] == "vpc-cni", "the conflist stays: without it runtimes cannot delete"
    assert made.delete("ended").ok, "spooled"
    made.start()
    made.assert_sound(expected=0)


@BOTH
def test_a_drain_leaves_adds_to_the_successor_and_serves_dels(made: Rig) -> None:
    """With VPC_IPAMD_DRAIN_SECONDS: DEL is served, ADD waits in the plugin, a second SIGTERM ends it; then the ADD succeeds."""
    made.restart(env={"VPC_IPAMD_DRAIN_SECONDS": "60"})
    assert made.add("before").ok
    made.node.make_netns("during")
    assert made.daemon is not None
    made.daemon.send_signal(signal.SIGTERM)
    wait_until(lambda: (made.status() or {}).get("phase") == "draining", what="draining")
    replies: list[CniReply] = []
    adding = threading.Thread(target=lambda: replies.append(made.cni("ADD", "during")))
    adding.start()
    assert made.delete("before").ok
    assert not (made.status() or {"ready": True})["ready"]
    assert replies == []
    made.daemon.send_signal(signal.SIGTERM)
    assert made.daemon.wait(20) == 0
    made.start()
    adding.join(PATIENCE_S)
    assert [reply.ok for reply in replies] == [True], replies
    made.assert_sound(expected=1)
    assert made.delete("during").ok


def test_an_idle_daemon_asks_ec2_nothing() -> None:
    """No EC2 call between two looks at a pool that is at its target (I13)."""
    with rig() as made:
        wait_until(lambda: made.pool()["free_count"] == 9, what="pool at target")
        before = len(made.lab.vpc.calls())
        wait_until(lambda: (made.status() or {"uptime_s": 0})["uptime_s"] > 5, what="five seconds of life")
        assert len(made.lab.vpc.calls()) == before


@EACH_FAMILY_HEAVY_IPV6
def test_introspection_answers_for_people_and_programs(family: Family) -> None:
    """Every command of ipamctl prints a table and JSON, and says with status 3 when the daemon is away."""
    with rig(family=family) as made:
        address = made.add("seen").any_address

        def ctl(*arguments: str) -> tuple[int, str, str]:
            done = made.driver.ipamctl(*arguments)
            return done.returncode, done.stdout, done.stderr

        for command in (
            ["status"],
            ["enis"],
            ["attachments"],
            ["history", str(address)],
            ["history", "see"],
            ["explain", str(address)],
            ["explain", "seen"],
            ["audit"],
            ["config"],
        ):
            code, table, stderr = ctl(*command)
            assert (code, stderr) == (0, ""), f"{command}: {stderr}{table}"
            assert table.strip()
            code, text, _ = ctl("-o", "json", *command)
            assert code == 0
            assert isinstance(json.loads(text), dict)
        assert str(address) in ctl("attachments")[1]
        assert "assigned" in ctl("history", str(address))[1]
        foreign = "fd00:99::" if family is IPV6 else "10.99.99.99"
        code, table, _ = ctl("explain", foreign)
        assert code == 0
        assert f"{foreign} is not of this node" in table
        assert ctl("explain", "nobody")[0] == 4
        made.kill()
        code, _, stderr = ctl("status")
        assert code == 3
        assert "is the daemon running" in stderr
