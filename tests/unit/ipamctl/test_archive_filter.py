"""The support archive holds known fields, words and shapes: no planted secret gets out of a file of it, and what is needed does."""

from __future__ import annotations

import io
import json
import tarfile
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ipamd.history.encoding import encode
from ipamd.ipamctl import archive
from ipamd.ipamctl.archive import collect
from ipamd.ipamctl.archive_filter import FILES, ArchiveFilter
from ipamd.ipamctl.archive_parts import Part, parts
from ipamd.model.history import HistoryRecord
from ipamd.model.redaction import GONE
from tests.unit.ipamctl.secrets import FORMS, VALUES, planted

SANDBOX = "0123456789abcdef" * 4
POD = "shop/web-7d4b9c6f5-x9k2p"
PAIRS = planted()
TEXTS = [text for text, _ in PAIRS]


def log_lines(text: str) -> str:
    """A log that has a text as a value, as the end of a message, in a traceback, as another program's line and in one of kubelet's."""
    at = "2026-11-28T15:00:00.000Z"
    ours = {"at": at, "level": "WARNING", "logger": "ipamd.cloud", "message": "refused", "error": text, "pod": POD}
    theirs = {"at": at, "level": "WARNING", "logger": "grpc", "message": text, "exception": f"Traceback\nValueError: {text}"}
    return "\n".join(
        [json.dumps(ours), json.dumps(theirs), json.dumps({text[:40]: text}), text, f"{at} stderr F {json.dumps(ours)}"]
    )


PLACES: dict[str, Callable[[str], str]] = {
    "versions.json": lambda text: json.dumps({"vpc-ipamd": text, "libraries": {"boto3": text, text[:40]: 1}, "kernel": text}),
    "status.json": lambda text: json.dumps(
        {
            "degraded": [text],
            "last_error": {"what": text, "message": f"EC2 refused: {text}"},
            "conditions": [{"text": text}],
            "env": text,
        }
    ),
    "enis.json": lambda text: json.dumps({"enis": [{"eni_id": text, "frozen": text, "excluded": text, "prefixes": [text]}]}),
    "attachments.json": lambda text: json.dumps({"attachments": [{"branch_problem": text, "annotation": text, "address": text}]}),
    "plan.json": lambda text: json.dumps(
        {"sentence": text, "obstacles": [{"subject": text, "reason": text}], "in_progress": text}
    ),
    "capacity.json": lambda text: json.dumps({"instance_type": text, "modes": [{"formula": text, "limited_by": text}]}),
    "config.json": lambda text: json.dumps(
        {"settings": [{"env": "ADDITIONAL_ENI_TAGS", "value": json.dumps({"team": text}), "default": text, "text": text}]}
    ),
    "audit.json": lambda text: json.dumps(
        {"findings": [{"subject": text, "text": text, "next": text}], "unavailable_sources": [text]}
    ),
    "history.jsonl": lambda text: encode(HistoryRecord(datetime.now(UTC), "refused", pod=POD, code=11, detail=text)).decode(),
    "metrics.txt": lambda text: f'# HELP ipamd_x {text}\nipamd_x{{reason="{text}"}} 1.0\n',
    "links.jsonl": lambda text: json.dumps(
        {"IFLA_IFALIAS": text, "IFLA_INFO": {"kind": text, "IFLA_PHYS_PORT_NAME": text}, text[:40]: 1}
    ),
    "addresses.jsonl": lambda text: json.dumps({"IFA_PROTO": text, text[:40]: text}),
    "rules.jsonl": lambda text: json.dumps({"FRA_FLOW": text, "UNKNOWN": text}),
    "routes.jsonl": lambda text: json.dumps({"RTA_METRICS": {"RTAX_CC_ALGO": text}}),
    "neighbours.jsonl": lambda text: json.dumps({"NDA_LLADDR": text}),
    "nft.txt": lambda text: f'table ip x {{\n chain y {{\n  tcp dport 22 log prefix "{text}" comment "{text}" drop\n }}\n}}\n',
    "sysctls.txt": lambda text: f"net/ipv4/conf/{text}/rp_filter = 1\nkernel/hostname = {text}\n",
    "files.txt": lambda text: f"/etc/cni/net.d/{text} 100644 0 1 2026-11-28T15:00:00+00:00\n",
    "log.txt": log_lines,
}
"""Where in each file a text of others may stand."""


def survivors(file: str, text: str, value: str) -> bool:
    """Whether a value, or its half that tells enough, is in what is kept of a file."""
    kept, _ = ArchiveFilter().keep(file, PLACES[file](text))
    written = kept.replace("\\n", "\n")
    return value in written or (len(value) > 12 and " " not in value and value[: len(value) // 2] in written)


def test_every_file_has_its_place_in_the_list() -> None:
    """Those of a real archive, no more and no less, and each is tested here."""
    made = parts(lambda _rpc, **_: {}, run_dir=Path("/x"), history_dir=Path("/x"), metrics_address="off")
    assert {part.name for part in made} == set(FILES) == set(PLACES)


@pytest.mark.parametrize("file", PLACES)
def test_no_secret_survives(file: str) -> None:
    """Of 24 kinds of values in 22 forms, at each place of each file."""
    may_be_names = (VALUES["small letters"], VALUES["short"]) if file == "files.txt" else ()
    found = [text for text, value in PAIRS if text not in may_be_names and survivors(file, text, value)]
    assert len(PAIRS) > 500
    assert found == []


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_no_secret_survives_in_why_a_file_is_missing(value: str) -> None:
    """The error of a library may quote what it was given."""
    for form in FORMS.values():
        text = form(value)

        def fail(text: str = text) -> str:
            raise OSError(text)

        (part,) = collect([Part("status.json", "status", fail)], io.BytesIO(), at_s=1.0)
        assert value not in part.problem


NEEDED: dict[str, list[str]] = {
    "status.json": [
        "ready, with 2 conditions: subnets, EC2 DescribeSubnets",
        "NOT READY: EC2 DescribeNetworkInterfaces: UnauthorizedOperation",
        "first address: none can be given since the node's boot, so the node is not ready: InsufficientFreeAddressesInSubnet",
        "EC2 refused AssignPrivateIpAddresses for eni-0123456789abcdef0: RequestLimitExceeded: Request limit exceeded.",
        "You are not authorized to perform this operation. RequestID: 7a62c49f-347e-4fc4-9331-6e8e2b1c0d9f",
        "CRI: the runtime does not answer on /run/containerd/containerd.sock: connection refused; nothing is reaped",
        "socket: something stands in the place of ipamd.sock",
        f"sandbox {SANDBOX[:13]} of {POD} has 10.0.0.5 and 2001:db8::a:5 since 2026-11-28T15:00:00Z",
        "repair conflict: rule 512 from all to 10.0.0.5 lookup main is removed again and again",
        "plugins: loopback in /opt/cni/bin is missing",
        "other conflist: 10-calico.conflist sorts before ours",
        "the host's MTU is 9001, m5.large has 3 ENIs of 10 slots in us-west-2a; 45% in 12.5 s",
    ],
    "log.txt": [
        '"message": "request", "verb": "ADD"',
        "network namespace /run/netns/cni-5f1d9e0c-2b7a-4c58-9d3e-7a6b5c4d3e2f cannot be opened: No such file or directory",
        'File "/usr/lib/python3.11/threading.py", line 1038, in _bootstrap_inner',
        "ipamd.model.errors.DatastoreError: the datastore refused: SQLITE_FULL",
        "Encoded authorization failure message: " + "aB3_-" * 40,
    ],
    "nft.txt": [
        "type filter hook input priority 0; policy drop;",
        "ip saddr 10.0.0.0/8 tcp dport { 22, 443 } counter packets 5 bytes 420 drop",
        "jump KUBE-SVC-ERIFXISQEP7F7OF4",
        'iifname "eni0a1b2c3d4e5" reject with icmp type port-unreachable',
        "meta mark set meta mark | 0x00000080",
    ],
    "sysctls.txt": [
        "net/ipv4/conf/eth0/rp_filter = 2",
        "net/netfilter/nf_conntrack_count = 131072",
        "fs/inotify/max_user_watches = 9",
    ],
    "files.txt": [
        "/run/vpc-ipamd/state.db-wal 100600 0 4152 2026-11-28T15:00:00+00:00",
        "/etc/cni/net.d/05-cilium.conflist 100644 0 512 2026-11-28T15:00:00+00:00",
        "/opt/cni/bin/bandwidth 100755 0 3952000 2026-11-28T15:00:00+00:00",
        "/run/vpc-ipamd/in-the-way.spool.20261128T150000Z 100600 0 4 2026-11-28T15:00:00+00:00",
        "/run/vpc-ipamd/spool: No such file or directory",
    ],
    "metrics.txt": [
        'ipamd_requests_total{code="0",verb="ADD"} 2.0',
        'ipamd_ec2_attempts_total{api="AttachNetworkInterface",outcome="ok"} 3.0',
        'ipamd_request_duration_seconds_bucket{le="0.0005",verb="DEL"} 1.7958794059514532e+09',
    ],
}


@pytest.mark.parametrize("file", NEEDED)
def test_what_support_needs_is_kept_to_the_letter(file: str) -> None:
    """Codes, IDs, addresses, times, names that a field has, and what our program says."""
    archive_filter = ArchiveFilter()
    archive_filter.keep("attachments.json", json.dumps({"attachments": [{"container_id": SANDBOX, "sandbox_name": POD}]}))
    lost = []
    for text in NEEDED[file]:
        is_json = file.endswith("json")
        kept, _ = archive_filter.keep(file, json.dumps({"text": text}) if is_json else text)
        if text not in (json.loads(kept)["text"] if is_json else kept):
            lost.append((text, kept))
    assert lost == []


def test_names_are_kept_where_a_field_has_them() -> None:
    """And in the text of files that come later."""
    archive_filter = ArchiveFilter()
    row = {
        "container_id": SANDBOX,
        "sandbox_name": POD,
        "host_veth": "eni0a1b2c3d4e5",
        "netns": "/run/netns/web",
        "address": "10.0.0.5",
    }
    kept, counts = archive_filter.keep("attachments.json", json.dumps({"attachments": [row]}))
    assert json.loads(kept) == {"attachments": [row]}
    assert (counts.kept_count, counts.left_out_count) == (5, 0)
    kept, _ = archive_filter.keep("status.json", json.dumps({"degraded": [f"{POD}: sandbox {SANDBOX}/eth0 waits"]}))
    assert json.loads(kept) == {"degraded": [f"{POD}: sandbox {SANDBOX}/eth0 waits"]}


MAY_BE_NAMES = {"short", "words", "small letters", "64 hex digits", "a number"}
"""A pod or a link may be called `s3cr3t`; a sandbox is 64 hex digits."""

MAY_BE_SANDBOXES = {"32 hex digits", "40 hex digits"}
NAMED_FIELDS = ["pod", "container_id", "ifname", "netns", "host_veth", "sandbox_name"]
NO_NAMES = [
    (field, value)
    for field in NAMED_FIELDS
    for value in VALUES.keys() - MAY_BE_NAMES - (MAY_BE_SANDBOXES if field == "container_id" else set())
]


@pytest.mark.parametrize(("field", "value"), sorted(NO_NAMES))
def test_a_secret_in_the_field_of_a_name_is_no_name(field: str, value: str) -> None:
    """Only what looks like one, however it got there."""
    kept, _ = ArchiveFilter().keep("log.txt", json.dumps({field: VALUES[value]}))
    assert VALUES[value] not in kept


def test_what_is_left_out_is_counted_in_the_manifest() -> None:
    """Of each file, beside what was kept."""
    out = io.BytesIO()
    text = json.dumps({"degraded": ["frobnicator: xyzzy"], "surprise": 1, "phase": "serving"})
    (part,) = collect([Part("status.json", "status", lambda: text)], out, at_s=1.0)
    assert (part.kept_count, part.left_out_count) == (1, 3)
    out.seek(0)
    with tarfile.open(fileobj=out) as packed:
        file = packed.extractfile("vpc-ipamd-bundle/MANIFEST.json")
        assert file is not None
        manifest: list[dict[str, Any]] = json.load(file)
    assert [(entry["kept_count"], entry["left_out_count"]) for entry in manifest] == [(1, 3)]


def test_a_telling_name_takes_a_known_word_along() -> None:
    """`address` is a word of ours, and may be somebody's password."""
    kept, _ = ArchiveFilter().keep("log.txt", "password: address\n")
    assert kept == f"password: {GONE}\n"
    kept, _ = ArchiveFilter().keep("log.txt", '{"message": "refused", "password": "address"}')
    assert "address" not in kept


DEEP = ['{"plan": ' * 400 + "1" + "}" * 400, "[" * 100_000, '{"plan": ' + "[" * 500 + "]" * 500 + "}"]


@pytest.mark.parametrize("line", DEEP, ids=("objects", "open", "lists"))
def test_a_line_that_is_nested_deeply_costs_itself_only(line: str) -> None:
    """The lines beside it are kept."""
    kept, _ = ArchiveFilter().keep("log.txt", f'{{"message": "request"}}\n{line}\n{{"message": "ready"}}\n')
    assert kept.startswith('{"message": "request"}\n')
    assert kept.endswith('\n{"message": "ready"}\n')


def test_a_megabyte_is_kept_within_the_time_of_a_part() -> None:
    """However it is made."""
    lines = "".join(
        f'{{"message": "request", "pod": "{POD}", "address": "10.0.{n % 250}.{n % 241}", "ms": {n}}}\n' for n in range(9000)
    )
    for text in (lines, "x" * (1 << 20), "a-" * (1 << 19), "password: " * 100_000, "{" * (1 << 20), '"' * (1 << 20)):
        began_s = time.process_time()
        ArchiveFilter().keep("log.txt", text)
        assert time.process_time() - began_s < archive.PART_S
