"""The support archive: bounded, whole though parts fail, and without secrets."""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ipamd.history.encoding import encode
from ipamd.ipamctl import archive, archive_parts
from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.archive import collect
from ipamd.ipamctl.archive_parts import Part, parts
from ipamd.ipamctl.verb import AwayError
from ipamd.ipamctl.verbs import bundle
from ipamd.model.history import HistoryRecord
from tests.patience import PATIENCE_S

SECRETS = {
    "AKIAIOSFODNN7EXAMPLE": "key AKIAIOSFODNN7EXAMPLE was denied",
    "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY\nx",
    "FwoGZXIvYXdzEJr": '{"SessionToken": "FwoGZXIvYXdzEJr", "a": 1}',
    "s3cr3t": "endpoint http://user:s3cr3t@proxy.example:3128/x",
    "AQAEAPlongmetadata": "X-aws-ec2-metadata-token: AQAEAPlongmetadata\r\nHost: x",
    "abcdef0123456789": "Authorization: AWS4-HMAC-SHA256 Credential=x/20261122, Signature=abcdef0123456789",
    "fe5f80f77d5fa3beca038a248ff027": "https://sts/?X-Amz-Signature=fe5f80f77d5fa3beca038a248ff027&b=1",
    "eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2ln": "Bearer eyJhbGciOiJSUzI1NiJ9.eyJpc3MiOiJrdWJlIn0.c2ln",
    "hunter2": json.dumps({"detail": json.dumps({"password": "hunter2"})}),
    "MIIEow": "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\n-----END RSA PRIVATE KEY-----",
}

KEPT = "10.0.0.5 default/token-server c1 ClientToken=ab12 IP_COOLDOWN_PERIOD=30 eni-08133287637ebdcd9 02:00:00:00:00:01"


def archived(*made: Part, **bounds: float) -> tuple[dict[str, str], dict[str, str]]:
    """Name -> text of every file, and name -> problem of every part."""
    out = io.BytesIO()
    found = collect(made, out, at_s=1.0, **bounds)
    out.seek(0)
    with tarfile.open(fileobj=out) as archive:
        files = {entry.name.rpartition("/")[2]: archive.extractfile(entry) for entry in archive}
        texts = {name: file.read().decode() for name, file in files.items() if file is not None}
    return texts, {one.name: one.problem for one in found}


@pytest.mark.parametrize("secret", SECRETS)
def test_secrets_stay_here(secret: str) -> None:
    """In a part's text and in its problem."""

    def fail() -> str:
        raise OSError(SECRETS[secret])

    texts, _ = archived(Part("a.txt", "a", lambda: SECRETS[secret]), Part("b.txt", "b", fail))
    assert secret not in "".join(texts.values())
    assert "[redacted]" in texts["a.txt"]


def test_what_support_needs_stays() -> None:
    """Addresses, names and identifiers; the archive says that they are in it."""
    texts, _ = archived(Part("a.txt", "a", lambda: KEPT))
    assert texts["a.txt"] == KEPT
    assert "addresses, names of pods" in texts["README.txt"]


def test_a_part_that_fails_is_named_and_stops_no_other() -> None:
    """Neither an error nor a part that hangs; the list tells it, printable."""
    never = threading.Event()

    def fail() -> str:
        raise ValueError("no\x1b[2J such thing")

    def hang() -> str:
        never.wait(60)
        return ""

    texts, problems = archived(Part("a.txt", "a", fail), Part("b.txt", "b", hang), Part("c.txt", "c", lambda: "fine"), part_s=2.0)
    never.set()
    assert problems == {
        "a.txt": "ValueError: no\\x1b[2J such thing",
        "b.txt": "left out: it took more than 2 s",
        "c.txt": "",
    }
    assert sorted(texts) == ["MANIFEST.json", "README.txt", "c.txt"]
    assert [one["name"] for one in json.loads(texts["MANIFEST.json"])] == ["a.txt", "b.txt", "c.txt"]


def test_it_is_bounded_in_size_and_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is cut or left out says so."""
    monkeypatch.setattr(archive, "PART_BYTES", 1000)
    monkeypatch.setattr(archive, "TOTAL_BYTES", 1500)
    texts, problems = archived(*(Part(f"{name}.txt", name, lambda: "x" * 1200) for name in "abc"))
    assert [len(texts.get(f"{name}.txt", "")) for name in "abc"] == [1000, 500, 0]
    assert problems["a.txt"] == "cut: it has 1200 bytes, 1000 are kept"
    _, problems = archived(Part("a.txt", "a", lambda: "x"), total_s=0.0)
    assert problems["a.txt"] == "left out: the time is up"


@pytest.mark.parametrize("word", ["a", "secret", "eyJ"])
def test_a_part_with_a_word_of_a_megabyte_is_there(word: str) -> None:
    """What looks for secrets takes no part of the archive's time that a user would notice, and loses no part."""
    part = Part("a.txt", "a", lambda: f"{word * ((1 << 20) // len(word))} 10.0.0.5 password: x9")
    began_s = time.process_time()
    texts, problems = archived(part, part_s=10 * PATIENCE_S, total_s=10 * PATIENCE_S)
    assert time.process_time() - began_s < archive.PART_S
    assert problems["a.txt"] == ""
    assert texts["a.txt"].endswith(" 10.0.0.5 password: [redacted]")


def test_taking_secrets_out_is_within_the_time_of_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """A part whose text takes for ever is left out and named, as one that hangs."""
    never = threading.Event()

    def hang(text: str) -> str:
        if "slow" in text:
            never.wait(60)
        return text

    monkeypatch.setattr(archive, "without_secrets", hang)
    texts, problems = archived(Part("a.txt", "a", lambda: "slow"), Part("b.txt", "b", lambda: "fine"), part_s=2.0)
    never.set()
    assert problems == {"a.txt": "left out: it took more than 2 s", "b.txt": ""}
    assert sorted(texts) == ["MANIFEST.json", "README.txt", "b.txt"]


def test_of_a_log_that_is_cut_no_line_begins_in_its_middle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What told of the secret may be before the cut."""
    monkeypatch.setattr(archive_parts, "TAIL_BYTES", 40)
    (tmp_path / "x.log").write_text("an earlier line\npassword: hunter2 and hunter3\nADD default/web 10.0.0.5\n")
    text = archive_parts._log((str(tmp_path / "x.log"),))
    assert "hunter" not in text
    assert "bytes before are left out)\nADD default/web 10.0.0.5\n" in text


def test_every_part_fails_alone_on_a_machine_without_us(tmp_path: Path) -> None:
    """No daemon, no history, no log, no metrics: what the kernel and the files tell is there."""

    def away(_rpc: str, **_: object) -> dict[str, object]:
        raise AwayError("vpc-ipamd does not answer")

    made = parts(away, run_dir=tmp_path, history_dir=tmp_path, metrics_address="off", logs=(str(tmp_path / "*.log"),))
    by_name = {part.name: part for part in made}
    texts, problems = archived(*(part for part in made if part.name not in ("nft.txt",)))
    assert "kubectl -n kube-system logs POD" in problems["log.txt"]
    assert "vpc-ipamd does not answer" in problems["status.json"]
    assert '"IFLA_IFNAME": "lo"' in texts["links.jsonl"]
    assert "net/ipv4/conf/lo/rp_filter" in texts["sysctls.txt"]
    assert '"vpc-ipamd"' in texts["versions.json"]
    assert by_name["log.txt"].description == "the end of the daemon's log"


def test_a_file_that_is_there_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It may be somebody's; standard output holds one thing only."""
    (tmp_path / "x").write_text("mine")
    assert ipamctl.main(["bundle", "-f", str(tmp_path / "x")]) == 4
    assert "File exists: name another with -f" in capsys.readouterr().err
    assert (tmp_path / "x").read_text() == "mine"
    assert ipamctl.main(["bundle", "-f", "-", "-o", "json"]) == 2


def test_wrong_settings_are_no_hindrance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be why the archive is wanted: a daemon that keeps an older generation runs on. What can be read is used."""
    directory = tmp_path / "history"
    directory.mkdir()
    (directory / "history-00000001.jsonl").write_bytes(encode(HistoryRecord(datetime.now(UTC), "assigned", "10.0.0.5")))
    (tmp_path / "settings").write_text(f"WARM_IP_TARGET=lots\nVPC_IPAMD_HISTORY_DIR={directory}\nnonsense\n")
    monkeypatch.setenv("VPC_IPAMD_SETTINGS_FILE", str(tmp_path / "settings"))
    found = bundle._parts(lambda _rpc, **_: {}, argparse.Namespace(history_dir="", log=[]))
    assert "10.0.0.5" in {part.name: part for part in found}["history.jsonl"].make()


def test_of_a_long_history_the_end_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells of what is wrong now; a segment that cannot be read does not take the others along, and both are said."""
    monkeypatch.setattr(archive_parts, "HISTORY_BYTES", 5000)
    now = datetime.now(UTC)
    records = [HistoryRecord(now - timedelta(seconds=100 - n), "assigned", f"10.0.0.{n}") for n in range(100)]
    (tmp_path / "history-00000002.jsonl").write_bytes(b"".join(map(encode, records)))
    lines = archive_parts._history(tmp_path).splitlines()
    assert json.loads(lines[0]) == {"problem": "older ones are left out: 5000 bytes are kept"}
    assert [json.loads(line)["address"] for line in lines[-2:]] == ["10.0.0.98", "10.0.0.99"]
    assert len(lines) < 100
    (tmp_path / "history-00000001.jsonl").mkdir()
    assert "it is no file" in json.loads(archive_parts._history(tmp_path).splitlines()[0])["problem"]
