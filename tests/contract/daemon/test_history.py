"""Who had an address: told after kill -9, after a reboot and without a daemon, by pod, address and container ID."""

from __future__ import annotations

import json
import shutil
import signal
import tarfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from lab.vpc.family import Family
from tests.families import EACH_FAMILY_HEAVY_IPV6
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged

HISTORY = "/var/lib/vpc-ipamd/history"


def history(made: Rig) -> str:
    """Everything in the node's history files."""
    return "".join(path.read_text() for path in sorted(Path(made.node.root + HISTORY).glob("*.jsonl")))


def ctl(made: Rig, *words: str) -> tuple[int, dict[str, Any], str]:
    """`ipamctl` in the node: exit status, JSON, standard error."""
    done = made.driver.ipamctl(*words, "-o", "json")
    return done.returncode, json.loads(done.stdout) if done.stdout.strip() else {}, done.stderr


def reboot(made: Rig) -> None:
    """What a reboot takes: the process without a word, and all of /run; the kernel gives another boot ID and no veth."""
    made.kill()
    for path in Path(made.driver.run_dir).iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@EACH_FAMILY_HEAVY_IPV6
def test_who_had_it_before_the_reboot(family: Family) -> None:
    """ADD, DEL, ADD, kill -9, /run lost, start: each owner is told, while the daemon is dead and once it runs again."""
    with rig(family=family) as made:
        first = made.add("first").any_address
        during = datetime.now(UTC)
        made.delete("first")
        second = made.add("second").any_address
        wait_until(lambda: '"second"' in history(made) and '"unassigned"' in history(made), what="the history of both")
        made.cni("DEL", "second")  # the lab cannot take the kernel's veths away as a reboot does
        wait_until(lambda: history(made).count('"unassigned"') == 2, what="the second end")
        reboot(made)

        status, answer, _ = ctl(made, "history", str(first), "--at", during.isoformat())
        assert status == 0
        assert [one["pod"] for one in answer["tenures"]] == ["default/first"]
        assert answer["source"] == "file"
        assert "does not answer" in answer["notes"][-1]
        status, answer, _ = ctl(made, "explain", "default/second", "--since", "1h")
        assert status == 0
        assert str(second) in answer["sentences"][0]
        assert ctl(made, "history", "default/nobody")[0] == 1

        made.start()
        for subject in (str(first), "default/first", "first"):
            status, answer, _ = ctl(made, "history", subject, "--at", during.isoformat())
            assert status == 0, subject
            assert [one["container_id"] for one in answer["tenures"]] == ["first"], subject
            assert answer["source"] == "daemon"
        status, answer, _ = ctl(made, "history", "default/nobody")
        assert status == 1
        assert answer["notes"][0].startswith("nothing is recorded about default/nobody; the history begins at 20")


def test_a_refused_add_is_told_after_kill_9_and_the_logs_name_the_pod() -> None:
    """Code and cause; the log's lines of ADD and DEL carry pod, address and sandbox, and at idle there is none."""
    with rig(env={"WARM_IP_TARGET": "9"}) as made:  # nothing is ever in excess, which would be told
        refused = made.cni("ADD", "gone", netns="/run/netns/none")
        assert refused.code == 104
        address = str(made.add("here").address)
        status, answer, _ = ctl(made, "explain", "default/gone")
        assert status == 0
        assert answer["sentences"][0].startswith("ADD of default/gone was refused once, at 20")
        made.delete("here")
        wait_until(lambda: made.driver.log_text().count('"verb"') >= 3, what="the DEL's line, which is written behind its reply")
        lines = [json.loads(line) for line in made.driver.log_text().splitlines()]
        told = [(line["verb"], line["container_id"], line.get("pod"), line.get("address")) for line in lines if "verb" in line]
        assert told == [
            ("ADD", "gone", "default/gone", None),
            ("ADD", "here", "default/here", address),
            ("DEL", "here", "default/here", address),
        ]
        wait_until(lambda: '"refused"' in history(made), what="the refusal")
        made.kill()
        _, answer, _ = ctl(made, "history", "default/gone")
        assert [(one["event"], one["code"]) for one in answer["entries"]] == [("refused", 104)]
        made.start()
        last = ("ready after", "an excess is released once")  # in any order, once the address has cooled
        wait_until(lambda: all(line in made.driver.log_text(of_this_start=True) for line in last), what="idle")
        before = made.driver.log_text()
        for _ in range(3):
            made.cni("STATUS", "", netns="", version="1.1.0")
        time.sleep(6)  # longer than the loops of the daemon that have a clock of seconds; nothing to await
        assert made.driver.log_text() == before
        for _ in range(3):
            made.cni("ADD", "again", netns="/run/netns/none")
        assert made.driver.end(signal.SIGTERM, timeout_s=PATIENCE_S) == 0
        _, answer, _ = ctl(made, "history", "default/again")
        assert [one["count"] for one in answer["entries"]] == [3], "a daemon that is asked to end tells the whole count"


def test_the_archive_holds_the_node_and_no_secret(tmp_path: Path) -> None:
    """Every part but EC2's; without a daemon the rest is there, and what is missing is named."""
    secret = "AKIAIOSFODNN7EXAMPLE"
    with rig(env={"VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:61678", "ADDITIONAL_ENI_TAGS": json.dumps({"token": secret})}) as made:
        made.add("a")
        wait_until(lambda: '"default/a"' in history(made), what="the history, which is written behind")
        for is_running in (True, False):
            if not is_running:
                made.kill()
            name = f"/run/bundle-{is_running}.tar.gz"
            environment = {"VPC_IPAMD_METRICS_ADDRESS": "127.0.0.1:61678"}
            done = made.driver.ipamctl("bundle", "-f", name, "-o", "json", env=environment)
            answer = json.loads(done.stdout)
            failed = {part["name"] for part in answer["parts"] if part["problem"]}
            with tarfile.open(made.node.root + name) as archive:
                archive.extractall(tmp_path / str(is_running))
            held = {path.name: path.read_text() for path in (tmp_path / str(is_running) / "vpc-ipamd-bundle").iterdir()}
            asked = {f"{one}.json" for one in ("status", "enis", "attachments", "plan", "capacity", "config", "audit")}
            assert failed == (set() if is_running else asked | {"metrics.txt"}), answer["parts"]
            assert not any(secret in text for text in held.values())
            assert '"default/a"' in held["history.jsonl"]
            assert "table ip" in held["nft.txt"]
            assert '"FRA_PRIORITY": 513' in held["rules.jsonl"]
            assert '"NDA_DST"' in held["neighbours.jsonl"]
            assert "net/ipv4/ip_forward = 1" in held["sysctls.txt"]
            assert "net/ipv6/conf/all/forwarding = " in held["sysctls.txt"]
            for name in ("rules", "routes"):
                assert all(f'"family": {family}' in held[f"{name}.jsonl"] for family in (2, 10)), name
            assert {part["name"] for part in json.loads(held["MANIFEST.json"])} >= asked
        assert "ipamd_ready" in (tmp_path / "True" / "vpc-ipamd-bundle" / "metrics.txt").read_text()


def test_a_disk_that_refuses_refuses_no_pod() -> None:
    """Read-only: a condition, ADD and DEL as ever; once it works again what happened meanwhile is written."""
    with rig(start=False) as made:
        made.node.run(["sh", "-c", "mkdir -p /var/lib/vpc-ipamd && mount -t tmpfs -o ro,size=1m none /var/lib/vpc-ipamd"])
        made.start()
        made.add("a")
        lacks = made.driver.wait_status(
            lambda status: any(text.startswith("history:") for text in status["degraded"]), what="the condition", timeout_s=120
        )["degraded"]
        assert any("Read-only file system" in text and HISTORY in text for text in lacks)
        assert made.delete("a").ok
        status, answer, _ = ctl(made, "history", "default/a", "--since", "1h")
        assert status == 0
        assert {one["event"] for one in answer["entries"]} >= {"assigned", "unassigned"}
        assert "nothing can be written" in answer["notes"][0]
        made.node.run(["mount", "-o", "remount,rw", "/var/lib/vpc-ipamd"])
        made.driver.wait_status(
            lambda status: not any(text.startswith("history:") for text in status["degraded"]), what="its end", timeout_s=70
        )
        assert history(made).count('"pod":"default/a"') == 2
        made.assert_sound(expected=0)
