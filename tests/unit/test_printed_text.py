"""Text from outside, on its way to people: log lines, ipamctl's tables, refusals. Escaped and bounded, and never an error itself."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipamd.core.deadline import Deadline
from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.client import plain
from ipamd.ipamctl.verb import EXIT_REFUSED, RefusedError
from ipamd.logs import MESSAGE_MAX, TRACEBACK_LINES_MAX, JsonFormatter
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.errors import InvalidRequestError
from ipamd.model.ids import parse_ifname
from ipamd.model.words import TEXT_MAX
from ipamd.pb import cni_pb2
from ipamd.pb import introspection_pb2 as pb
from ipamd.rpc.envelope import encode_error
from tests.conditions import failed
from tests.fakes.node import FakeNode
from tests.unit.ipamctl.test_render import answer
from tests.unit.ipamctl.test_verbs import ASKING, fill, positionals

NASTY = "\x1b[2J\x1b]0;owned\x07\u202e\nlacks    nothing"
REQUEST_LINE_MAX = 2000
"""Characters of the log of one request. Ours: far below what the tests send, which is more than 500,000."""


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What the daemon's log gets."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.setFormatter(JsonFormatter())
    logging.getLogger("ipamd").addHandler(handler)
    logging.getLogger("ipamd").setLevel(logging.INFO)
    yield written
    logging.getLogger("ipamd").removeHandler(handler)
    logging.getLogger("ipamd").setLevel(logging.NOTSET)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A daemon without a kernel."""
    made = FakeNode(tmp_path)
    made.bring_up()
    yield made
    made.datastore.close()


def execute(node: FakeNode, **fields: Any) -> cni_pb2.ExecReply:
    """One request, with a good configuration unless it says otherwise."""
    conf = json.dumps({"cniVersion": SUPPORTED_VERSIONS[-1], "name": "net", "type": "vpc-cni"}).encode()
    request = cni_pb2.ExecRequest(**{"protocol_min": 1, "protocol_max": 1, "config": conf} | fields)
    return node.app.cni.execute(request, Deadline.after(node.clock, 30))


def is_safe(line: str) -> bool:
    """Printable but for its end."""
    return line.rstrip("\n").isprintable()


def test_a_log_line_is_printable_and_bounded() -> None:
    """Whatever was said, it is one line of JSON that a terminal only shows."""
    said = NASTY + "\ud800" + "x" * 10 * MESSAGE_MAX
    # Not by a logger: pytest would report the text, and a lone surrogate does not get through xdist.
    line = JsonFormatter().format(logging.LogRecord("ipamd.x", logging.WARNING, __file__, 1, "EC2 said %s", (said,), None))
    assert is_safe(line)
    assert len(line) < 2 * MESSAGE_MAX
    assert json.loads(line)["message"].startswith("EC2 said \\x1b[2J")


def test_a_traceback_is_bounded_and_keeps_its_end(lines: io.StringIO) -> None:
    """The last lines say what happened."""

    def deep(left: int) -> None:
        # Python itself folds equal frames, so these differ by turns.
        deep(left - 1) if left % 2 else deeper(left - 1)

    def deeper(left: int) -> None:
        if left <= 0:
            raise ValueError("\x1b[2J" * 10_000)
        deep(left - 1)

    try:
        deep(300)
    except ValueError:
        logging.getLogger("ipamd.x").exception("failed")
    told = json.loads(lines.getvalue())["exception"].splitlines()
    assert len(told) <= TRACEBACK_LINES_MAX + 1
    assert told[-1].startswith("ValueError: \\x1b[2J")
    assert all(is_safe(line) for line in told)


@pytest.mark.parametrize("field", ["verb", "container_id", "ifname", "netns", "args", "plugin_version"])
def test_the_log_of_one_request_is_bounded(node: FakeNode, lines: io.StringIO, field: str) -> None:
    """Two megabytes of escapes in any field of the envelope: a line of usual length, and a refusal that is safe to print."""
    good = {"verb": "ADD", "container_id": "c1", "ifname": "eth0", "netns": "/run/netns/c1"}
    versions = {"protocol_min": 9, "protocol_max": 9} if field == "plugin_version" else {}
    reply = execute(node, **good | versions | {field: NASTY * 50_000})
    length = len(lines.getvalue())
    assert length < REQUEST_LINE_MAX
    assert all(is_safe(line) for line in lines.getvalue().splitlines())
    assert len(reply.error.message) + len(reply.error.details) < 3 * TEXT_MAX
    assert is_safe(reply.error.message + reply.error.details)
    last = node.health.last_error
    assert last is None or is_safe(last.subject + last.message)


@pytest.mark.parametrize(
    "conf",
    [
        {"cniVersion": "\ud800", "name": "net"},
        {"cniVersion": "1.0.0", "name": "\ud800"},
        {"cniVersion": "1.0.0", "name": NASTY},
        {"cniVersion": "1.0.0", "name": "n" * 100_000},
        {"cniVersion": "1.1.0", "name": "net", "cni.dev/valid-attachments": [{"containerID": "c", "ifname": "\ud800"}]},
        {"cniVersion": "1.1.0", "name": "net", "cni.dev/valid-attachments": [{"containerID": "\ud800", "ifname": "e"}]},
    ],
    ids=["version", "surrogate name", "escapes", "long name", "ifname", "container"],
)
@pytest.mark.parametrize("verb", ["ADD", "GC", "STATUS", "CHECK"])
def test_text_that_no_message_can_carry_is_refused_typed(node: FakeNode, conf: dict[str, Any], verb: str) -> None:
    """JSON can name lone surrogates, which neither protobuf nor SQLite take: a CNI error, and not the general code 100."""
    reply = execute(node, verb=verb, container_id="c1", ifname="eth0", netns="/run/netns/c1", config=json.dumps(conf).encode())
    assert reply.error.code not in (0, 100) or verb == "STATUS"
    assert is_safe(reply.error.message + reply.error.details + reply.error.cni_version)


def test_an_unexpected_error_with_a_surrogate_is_answered(node: FakeNode) -> None:
    """The text of an exception may have any."""
    encoded = encode_error(RuntimeError("\ud800" * TEXT_MAX * 2), cni_version="1.0.0")
    assert encoded.code == 100
    assert is_safe(encoded.details)
    assert node.app.cni is not None


@pytest.mark.parametrize("name", ["e%d", "%s", "a\x1bb", "a\u202eb", "\ud800", "a\x7f"])
def test_names_that_the_kernel_or_a_terminal_would_interpret_are_refused(name: str) -> None:
    """The kernel makes e0 of e%d, and every later look for e%d finds nothing."""
    with pytest.raises(InvalidRequestError):
        parse_ifname(name)


def test_status_is_answered_whatever_the_sources_said(node: FakeNode) -> None:
    """Conditions, stages and the last error quote EC2 and the runtime: a text that protobuf refuses would hide all of them."""
    node.health.report("ec2", failed("\ud800" + NASTY))
    node.health.record_error("x" * 10_000 + "\ud800", RuntimeError("\ud800" + "y" * 100_000))
    node.node_info.cloud = False, "\ud800" + NASTY
    with node.health.stage("datastore") as stage:
        stage.detail = "\ud800" * 10_000
    reply = node.app.introspection.GetStatus(pb.GetStatusRequest())
    assert len(reply.SerializeToString()) < 10 * TEXT_MAX
    assert is_safe("".join(reply.degraded) + reply.cloud.detail + reply.last_error.message)


@pytest.mark.parametrize("output", ["table", "json", "yaml"])
@pytest.mark.parametrize("verb", ASKING)
def test_every_verb_shows_escapes_and_obeys_none(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], verb: str, output: str
) -> None:
    """A pod's name, a tag or EC2's words can neither clear the operator's terminal nor add a line, in any format."""

    def ask(_socket: str, rpc: str, _fields: dict[str, object]) -> dict[str, Any]:
        if rpc == "GetStatus":
            return answer(verdict=NASTY, degraded=[NASTY], last_error={"at": NASTY, "subject": NASTY, "message": NASTY * 5000})
        return _nasty(plain(fill(getattr(pb, f"{rpc}Reply")())))

    monkeypatch.setattr(ipamctl, "_ask_daemon", ask)
    ipamctl.main([verb, *positionals(verb), "-o", output])
    shown = capsys.readouterr().out
    assert ("\\e[2J" if output == "yaml" else "1b[2J") in shown
    assert all(is_safe(line) and line.isascii() for line in shown.splitlines())
    assert not any(line.startswith("degraded nothing") for line in shown.splitlines())
    if output == "table":
        assert len(shown) < 40 * TEXT_MAX


def _nasty(answer: Any) -> Any:
    """The same answer, each of its texts hostile."""
    if isinstance(answer, dict):
        return {key: _nasty(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_nasty(value) for value in answer]
    return NASTY if isinstance(answer, str) else answer


def test_refusals_of_ipamctl_are_safe_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """On standard error."""

    def refuse(*_: object) -> None:
        raise RefusedError(NASTY)

    monkeypatch.setattr(ipamctl, "_ask_daemon", refuse)
    assert ipamctl.main(["status"]) == EXIT_REFUSED
    assert is_safe(capsys.readouterr().err)
    assert sys.stderr is not None
