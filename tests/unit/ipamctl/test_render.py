"""What `ipamctl` prints for people: singular and plural, counts in one order, no line that contradicts another."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from google.protobuf.json_format import ParseDict

from ipamd import __version__
from ipamd.core.health import Phase
from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.client import plain
from ipamd.ipamctl.tables import STATES
from ipamd.ipamctl.verbs.attachments import ATTACHMENTS
from ipamd.ipamctl.verbs.enis import ENIS
from ipamd.ipamctl.verbs.status import STATUS
from ipamd.model.pool_counts import PoolCounts
from ipamd.model.words import CLOUD_NOT_ASKED, MANY, counted
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.verdict import Facts, verdict

NOTE = "the daemon does not answer: settings in this process's environment"


def answer(**changes: Any) -> dict[str, Any]:
    """GetStatus as the client gives it: one of everything."""
    counts = {f"{state}_count": 0 for state in STATES} | {"total_count": 1, "assigned_count": 1, "lost_count": 0}
    pool = counts | {"eni_count": 1, "eni_limit": 1, "slots_per_eni": 1, "targets": [], "last_cycle": "at target: nothing to do"}
    runtime = {"socket": "/run/c.sock", "name": "containerd", "version": "1.6", "reachable": True, "events": False}
    fields = {
        "version": "0.1.0",
        "instance_id": "i-1",
        "phase": "serving",
        "ready": True,
        "uptime_s": 3.0,
        "stages": [],
        "pool": pool,
        "runtime": runtime | {"sandbox_count": 1, "list_age_s": 3.2, "detail": "1 sandbox"} | changes.pop("runtime", {}),
        "cloud": {"reachable": True, "call_count": 1, "detail": "fine"},
        "spooled_delete_count": 1,
        "veths_pending_deletion_count": 0,
        "busy": [],
        "degraded": [],
        "verdict": "ready: 1 address can be given",
        "settings": {"generation": 1, "valid": True},
        "policy_mode": "none",
        "branches": {},
        "confinement": {},
    } | changes
    return plain(ParseDict(fields, pb.GetStatusReply()))


def rendered_attachments(*rows: dict[str, Any]) -> str:
    """What `ipamctl attachments` prints of rows, with every field that the proto has."""
    return ATTACHMENTS.render(plain(ParseDict({"attachments": rows}, pb.ListAttachmentsReply())))


def lines_of(**changes: Any) -> dict[str, str]:
    """First word of each line -> the rest."""
    text = STATUS.render(answer(**changes))
    return {line.split(" ", 1)[0]: line.split(" ", 1)[1].strip() for line in text.splitlines() if " " in line}


@pytest.mark.parametrize(
    ("count", "noun", "text"),
    [
        (1, "address", "1 address"),
        (0, "address", "0 addresses"),
        (2, "sandbox", "2 sandboxes"),
        (2, "prefix", "2 prefixes"),
        (3, "spooled DEL", "3 spooled DELs"),
    ],
)
def test_counts_agree_with_their_nouns(count: int, noun: str, text: str) -> None:
    """A count of one is in the singular."""
    assert counted(count, noun) == text


def test_one_of_everything_is_in_the_singular() -> None:
    """No line of `ipamctl status` says `1 ENIs`, and the pool's counts are in the order of PoolCounts."""
    lines = lines_of()
    assert lines["pool"] == f"{PoolCounts(assigned=1)}; 1 of 1 ENI with 1 slot each"
    assert lines["ec2"] == "reachable, 1 call; fine"
    assert lines["pending"] == "1 spooled DEL, 0 veths to delete"
    assert lines["runtime"].endswith("at /run/c.sock: reachable, without events, listed 3 s ago: 1 sandbox then")


def test_ec2_before_its_first_answer_is_not_called_unreachable() -> None:
    """Before anything was asked there is nothing to say about reach."""
    assert lines_of(cloud={"reachable": False, "call_count": 0, "detail": CLOUD_NOT_ASKED})["ec2"] == "not asked yet"
    away = {"reachable": False, "call_count": 3, "detail": "connection refused"}
    assert lines_of(cloud=away)["ec2"] == "not reachable, 3 calls; connection refused"


def test_a_runtime_that_is_away_says_what_it_last_listed_and_why() -> None:
    """The last list and the trouble since are two things; before the first list there is only the trouble."""
    away = {"reachable": False, "detail": "connection refused"}
    assert lines_of(runtime=away)["runtime"].endswith(
        "not reachable, without events, listed 3 s ago: 1 sandbox then; connection refused"
    )
    new = {"list_age_s": -1.0, "sandbox_count": 0, "detail": "not listed yet"}
    assert lines_of(runtime=new)["runtime"].endswith("reachable, without events, not listed yet")


def test_the_verdict_is_the_first_line() -> None:
    """Whoever reads one line reads this one."""
    assert STATUS.render(answer()).splitlines()[:2] == ["ready: 1 address can be given", ""]


def test_lost_addresses_are_shown_where_there_are_some() -> None:
    """In the pool's line, per ENI and per attachment; otherwise no column is spent on them."""
    row = {"container_id": "c", "address": "10.0.0.5", "ifname": "eth0", "sandbox_name": "", "eni_id": "eni-1"}
    row |= {"host_veth": "eni1", "created_at": "now", "origin": "add", "lost_since": ""}
    assert "LOST" not in rendered_attachments(row)
    lost = rendered_attachments(row, row | {"lost_since": "2026-01-01T00:00:00.000Z"}).splitlines()
    at = lost[0].index("LOST SINCE")
    assert [line[at : at + 24].strip() for line in lost[1:]] == ["-", "2026-01-01T00:00:00.000Z"]
    pool = answer()["pool"] | {"lost_count": 2}
    assert ", 2 lost; " in lines_of(pool=pool)["pool"]
    assert "lost" not in lines_of()["pool"]


def test_a_pool_that_is_a_prefix_of_ipv6_is_told_in_words() -> None:
    """No figure of addresses that nobody could use; the others as ever. Rows are as wide as the longest address."""
    pool = answer()["pool"] | {"total_count": MANY + 2, "free_count": MANY + 1}
    assert lines_of(pool=pool)["pool"].startswith(
        "a /80: 1 assigned, 0 reserved, 0 cooling, 0 quarantined, more than can be used free;"
    )
    long = "2600:1f14:1111:2222:abcd:ffff:ffff:fffe"
    row = {"container_id": "c", "address": long, "ifname": "eth0", "sandbox_name": "", "eni_id": "eni-1"}
    row |= {"host_veth": "eni1", "created_at": "now", "origin": "add", "lost_since": ""}
    assert "EGRESS" not in rendered_attachments(row), "no row has one"
    lines = rendered_attachments(row, row | {"other_address": "169.254.172.5"}).splitlines()
    starts = [lines[0].index("EGRESS"), lines[0].index("ENI")]
    assert starts[0] == lines[0].index("ADDRESS") + len(long) + 2
    assert [line[starts[0] : starts[1]].strip() for line in lines] == ["EGRESS", "-", "169.254.172.5"]


def test_a_verdict_counts_no_addresses_of_a_prefix_of_ipv6() -> None:
    """What counts for the rest of a /80 is no number for people; that of status is the same."""
    known = Facts(is_ready=True, phase=Phase.SERVING, assignable_count=MANY, conditions={})
    assert verdict(known) == "ready: a /80 has more addresses than this node can use"


@pytest.mark.parametrize(
    ("said", "end"), [({"caller_left": True}, "; its caller has left"), ({"caller_left": False}, ""), ({}, "")]
)
def test_an_operation_in_work_says_when_nobody_waits_for_it_any_more(said: dict[str, bool], end: str) -> None:
    """`ipamctl status`: no end where the caller is there, and where a daemon of an earlier release does not say."""
    busy = {"operation": "ADD", "container_id": "a", "ifname": "eth0", "age_s": 12.04, "waiting_count": 1} | said
    assert lines_of(busy=[busy])["busy"] == "ADD on a/eth0 for 12.0 s, waiting behind: 1" + end


def test_status_says_why_a_subnet_is_not_used() -> None:
    """One line per subnet, with its free addresses; a daemon of an earlier release tells none."""
    subnets = [
        {"subnet_id": "subnet-1", "free_count": "7", "unusable_reason": "", "answer_age_s": 0.0},
        {"subnet_id": "subnet-2", "free_count": "0", "unusable_reason": "full", "answer_age_s": 402.3},
    ]
    shown = [line for line in STATUS.render(answer(subnets=subnets)).splitlines() if line.startswith("subnet ")]
    assert shown == [
        "subnet   subnet-1 with 7 free addresses, used for new ENIs",
        "subnet   subnet-2 with 0 free addresses, not used: full (EC2's answer is 402 s old)",
    ]


def test_a_frozen_interface_says_why() -> None:
    """HOST is `frozen`, and the reason follows the table; LOST is a column if an address is lost."""
    eni: dict[str, Any] = {"eni_id": "eni-1", "device_index": 1, "state": "attached", "primary_address": "10.0.0.9"}
    eni |= {
        "subnet_id": "subnet-1",
        "subnet_cidr": "10.0.0.0/22",
        "excluded_reason": "",
        "route_table": 2,
        "host_ready": False,
        "frozen_reason": "",
        "lost_count": 0,
        "pool": "",
    }
    eni |= {f"{state}_count": 0 for state in STATES}
    assert "not ready" in ENIS.render({"enis": [eni]})
    assert "LOST" not in ENIS.render({"enis": [eni]})
    assert "10.0.0.0/22" in ENIS.render({"enis": [eni]})
    assert "subnet-1" in ENIS.render({"enis": [eni]})
    assert "eni-1 gets no new sandbox: its subnet" in ENIS.render({"enis": [eni | {"excluded_reason": "its subnet"}]})
    lines = ENIS.render({"enis": [eni | {"frozen_reason": "its link is gone", "lost_count": 3}]}).splitlines()
    assert (lines[0].split()[-1], lines[1].split()[-1], "frozen" in lines[1]) == ("LOST", "3", True)
    assert lines[2] == "eni-1 is frozen: its link is gone"


def test_interfaces_have_the_counts_in_the_same_order() -> None:
    """The table's columns are in the order of the sentence."""
    header = ENIS.render({"enis": []})
    assert header.split()[-5:] == ["ASSIGNED", "RESERVED", "COOLING", "QUARANTINED", "FREE"]


def test_settings_without_a_daemon_are_said_to_be_this_processs_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`ipamctl config` says first whose settings it shows, and what is set comes before what is not."""
    monkeypatch.setenv("VPC_IPAMD_RUN_DIR", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_ENDPOINT", "http://localhost:1/")
    assert ipamctl.main(["config"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == NOTE
    assert {lines[3].split()[0], lines[4].split()[0]} == {"VPC_IPAMD_RUN_DIR", "AWS_EC2_ENDPOINT"}
    assert ipamctl.main(["-o", "json", "config"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["origin_note"] == NOTE
    assert document["settings"]


@pytest.mark.parametrize("words", [["config", "-o", "yaml"], ["-o", "yaml", "config"], ["config", "--output=yaml"]])
def test_yaml_says_what_json_says(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: list[str]
) -> None:
    """At any place of the command line."""
    monkeypatch.setenv("VPC_IPAMD_RUN_DIR", str(tmp_path))
    assert ipamctl.main(words) == 0
    found = yaml.safe_load(capsys.readouterr().out)
    assert ipamctl.main(["config", "-o", "json"]) == 0
    assert found == json.loads(capsys.readouterr().out)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    """`--version` is the package's."""
    with pytest.raises(SystemExit) as end:
        ipamctl.main(["--version"])
    assert end.value.code == 0
    assert capsys.readouterr().out == f"ipamctl {__version__}\n"


def test_config_has_the_same_fields_with_and_without_a_daemon(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Programs that read it need not know who answered."""
    assert ipamctl.main(["--socket", str(tmp_path / "none"), "config", "-o", "json"]) == 0
    (first, *_) = json.loads(capsys.readouterr().out)["settings"]
    assert list(first) == [field.name for field in pb.Setting.DESCRIPTOR.fields]


REFUSAL = (
    "EC2 AssignPrivateIpAddresses failed for eni-0abc: UnauthorizedOperation: You are not authorized to perform this operation"
)


def test_a_sentence_stands_once_on_the_screen() -> None:
    """With since when, what to do and its page; the lines that repeat it point at it, in every form in which they do."""
    condition = {
        "subject": "ec2",
        "since": "2026-11-25T10:00:00.000Z",
        "text": f"EC2: {REFUSAL}; allow it",
        "next": "do what it says",
        "page": "docs/iam.md",
    }
    last = {"at": "2026-11-25T10:00:00.000Z", "subject": "pool", "message": f"{REFUSAL}; allow it", "resolved_at": ""}
    stages = [{"name": "ec2", "state": "degraded", "elapsed_s": 0.001, "detail": REFUSAL}]
    pool = answer()["pool"] | {"last_cycle": f"short of 1 address, and cannot grow: {REFUSAL} (next try in 600 s)"}
    cloud = {"reachable": True, "call_count": 2, "detail": f"refused 2 times, last: {REFUSAL}"}
    text = STATUS.render(answer(conditions=[condition], degraded=["x"], last_error=last, stages=stages, pool=pool, cloud=cloud))
    assert text.count(REFUSAL) == 1
    assert text.splitlines()[2:4] == [
        f"degraded EC2: {REFUSAL}; allow it",
        "         since 2026-11-25T10:00:00.000Z; do what it says; see docs/iam.md",
    ]
    assert "(next try in 600 s)" in text


def test_the_second_refusal_stands_once_too() -> None:
    """Two calls are refused: one is the condition of EC2, the other the pool's, whose next try is at another time in each line."""
    conditions = [
        {"subject": subject, "since": "", "text": text, "next": "do what it says", "page": "docs/iam.md"}
        for subject, text in {
            "ec2": "EC2: EC2 CreateNetworkInterface failed for a new ENI in subnet-1: UnauthorizedOperation: another text; allow it",
            "pool": f"pool: no address is assignable: {REFUSAL} (next try in 600 s)",
        }.items()
    ]
    pool = answer()["pool"] | {"last_cycle": f"short of 1 address, and cannot grow: {REFUSAL} (next try in 590 s)"}
    last = {
        "at": "t",
        "subject": "ADD x",
        "message": f"no address: cause: {REFUSAL} (next try in 599 s); 3 addresses",
        "resolved_at": "",
    }
    text = STATUS.render(answer(conditions=conditions, degraded=["x"], last_error=last, pool=pool))
    assert text.count("AssignPrivateIpAddresses failed") == text.count("You are not authorized") == 1
    assert "(next try in 590 s)" in text


def test_what_stands_above_is_pointed_at_once() -> None:
    """A message whose first parts are those of conditions: nothing of it is repeated, and what remains is no patchwork."""
    parts = [
        f"{name} failed for a new ENI in subnet-1" for name in ("CreateNetworkInterface", "AttachNetworkInterface", "UnassignIt")
    ]
    conditions = [{"subject": "ec2", "since": "", "text": f"EC2: {one}; allow it", "next": "do it", "page": "p"} for one in parts]
    last = {"at": "t", "subject": "pool", "message": "; ".join([*parts, "and more"]), "resolved_at": ""}
    assert lines_of(conditions=conditions, degraded=["x"], last_error=last)["last"] == "error  t pool: see above"


def test_a_corrected_error_says_so() -> None:
    """It is the last one that there was, and no longer one."""
    last = {"at": "2026-11-25T10:00:00.000Z", "subject": "pool", "message": "no", "resolved_at": "2026-11-25T11:00:00.000Z"}
    line = STATUS.render(answer(last_error=last)).splitlines()[-1]
    assert line == "last error  resolved at 2026-11-25T11:00:00.000Z: 2026-11-25T10:00:00.000Z pool: no"


def test_more_enis_than_there_may_be_are_no_part_of_them() -> None:
    """MAX_ENI was lowered, or one is leaving: it is said how many are above."""
    pool = answer()["pool"] | {"eni_count": 4, "eni_limit": 3}
    assert "; 4 ENIs (1 above the limit of 3) with 1 slot each" in lines_of(pool=pool)["pool"]


@pytest.mark.parametrize("length", [200, 507, 100_000])
def test_one_long_text_does_not_push_the_other_rows_apart(length: int) -> None:
    """The beginning and the end of it are shown; every row stays as wide as a screen can be, and columns stay columns."""
    name = "namespace/" + "p" * (length - 20) + "-x7k2p"
    row = {"container_id": "c" * 64, "address": "10.0.0.5", "ifname": "eth0", "sandbox_name": "default/web", "eni_id": "eni-1"}
    row |= {"host_veth": "eni1", "created_at": "2026-11-25T10:00:00.000Z", "origin": "add", "lost_since": ""}
    lines = rendered_attachments(row, row | {"sandbox_name": name}).splitlines()
    assert max(map(len, lines)) < 300
    assert lines[1].index("eni-1") == lines[2].index("eni-1")
    assert "namespace/ppp" in lines[2]
    assert "-x7k2p " in lines[2]
    status = STATUS.render(answer(degraded=[name], last_error={"at": "t", "subject": name, "message": name}, verdict=name[:120]))
    assert max(map(len, status.splitlines())) < 1000
