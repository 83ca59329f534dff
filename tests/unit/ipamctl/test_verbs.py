"""Every verb of `ipamctl` fits the proto: nothing here names a verb, so that a new one is tested as soon as its file is there."""

from __future__ import annotations

import argparse
import subprocess
import sys
from typing import Any

import pytest
from google.protobuf.descriptor import FieldDescriptor

from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.client import plain, request_of
from ipamd.ipamctl.verb import Answer, RefusedError
from ipamd.pb import introspection_pb2 as pb
from ipamd.rpc.introspection import IntrospectionServicer

VERBS = ipamctl.VERBS
ASKING = [name for name, verb in VERBS.items() if verb.rpc or name == "watch"]
"""The others do their work themselves: `probe` has tests/lab/cloud_adapter/test_probe.py."""

RPCS = pb.DESCRIPTOR.services_by_name["Introspection"].methods_by_name


def fill(message: Any) -> Any:
    """Set every message field, and put one element into every list: a reply with one of everything."""
    for field in message.DESCRIPTOR.fields:
        is_message = field.type == FieldDescriptor.TYPE_MESSAGE
        if is_message and field.is_repeated:
            fill(getattr(message, field.name).add())
        elif is_message:
            getattr(message, field.name).SetInParent()
            fill(getattr(message, field.name))
        elif field.is_repeated:
            getattr(message, field.name).append("one")
    return message


class Daemon:
    """Answers with one of everything, and refuses what the proto does not have."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, rpc: str, **fields: object) -> Answer:
        """Answer one RPC."""
        request_of(rpc, **fields)
        self.asked.append(rpc)
        return plain(fill(getattr(pb, f"{rpc}Reply")()))


def positionals(name: str) -> list[str]:
    """`x` for each positional argument of a verb, and what makes one that streams end."""
    ends = {"watch": ["--count", "1"], "page": ["--port", "0"]}.get(name, [])
    return [*("x" for argument in VERBS[name].arguments if not argument.names[0].startswith("-")), *ends]


def parsed(name: str) -> argparse.Namespace:
    """Parse a verb with `x` for each of its positional arguments."""
    return ipamctl.make_parser().parse_args([name, *positionals(name)])


@pytest.mark.parametrize("name", ASKING)
def test_a_verb_asks_what_the_proto_has_and_shows_every_answer(name: str) -> None:
    """RPC and fields are in the proto; the answer is text for people, and its exit status one that is documented."""
    verb, daemon = VERBS[name], Daemon()
    found = verb.ask(daemon, parsed(name))
    shown = [verb.render(answer) for answer in ([found] if isinstance(found, dict) else found)]
    assert shown
    assert all(text.strip() for text in shown)
    assert not isinstance(found, dict) or bool(verb.needs_attention(found)) in (True, False)
    assert verb.help


def test_every_rpc_has_a_verb() -> None:
    """What the daemon can answer an operator can ask."""
    daemon = Daemon()
    for name in ASKING:
        found = VERBS[name].ask(daemon, parsed(name))
        assert isinstance(found, dict) or list(found)
    assert set(daemon.asked) == set(RPCS)


@pytest.mark.parametrize("rpc", RPCS)
def test_the_daemon_answers_every_rpc(rpc: str) -> None:
    """No RPC of the proto is left to the generated base class, which answers UNIMPLEMENTED."""
    assert rpc in vars(IntrospectionServicer)


def test_the_help_has_its_order() -> None:
    """What an operator needs first is first."""
    assert list(VERBS)[:4] == ["status", "enis", "attachments", "history"]


def test_a_refusal_is_one_line_and_its_status(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback: the message goes to standard error, the status to the shell."""

    def refuse(*_: object) -> Answer:
        raise RefusedError("no")

    monkeypatch.setattr(ipamctl, "_ask_daemon", refuse)
    assert ipamctl.main(["status"]) == 4
    assert capsys.readouterr() == ("", "ipamctl: no\n")


@pytest.mark.parametrize(
    "words", [["-o", "json", "status"], ["status", "-o", "json"], ["-o", "table", "status", "--output=json"]]
)
def test_the_output_may_be_chosen_before_the_verb_or_after_it(words: list[str]) -> None:
    """Both are what fingers know from kubectl; the later one counts."""
    assert ipamctl.make_parser().parse_args(words).output == "json"


@pytest.mark.parametrize("words", [["--socket", "/x", "status"], ["status", "--socket", "/x"]])
def test_the_socket_may_be_named_on_either_side(words: list[str]) -> None:
    """And what is not named keeps its default."""
    parsed = ipamctl.make_parser().parse_args(words)
    assert (parsed.socket, parsed.output) == ("/x", "table")


def test_finding_the_verbs_imports_nothing_heavy() -> None:
    """`ipamctl --help` costs no grpc, nor the values of the daemon's model."""
    program = "import sys; from ipamd.ipamctl import main; main.make_parser(); print(*sys.modules)"
    loaded = set(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split())
    assert not loaded & {"grpc", "google.protobuf", "dataclasses", "ipamd.settings", "ipamd.ports", "ipamd.model.errors"}
