"""`ipamctl watch`: one line for each change, bounded looks, Ctrl-C is no error."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.verb import Answer, AwayError
from tests.unit.ipamctl.test_render import answer
from tests.unit.test_printed_text import NASTY


def row(name: str) -> dict[str, Any]:
    """One attachment."""
    return {"container_id": name, "ifname": "eth0", "address": "10.0.0.5", "sandbox_name": f"default/{name}", "lost_since": ""}


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Answer | None]]:
    """What the daemon answers at each look; None: it is away."""
    given: list[Answer | None] = []

    def ask(_socket: str, rpc: str, _fields: dict[str, object]) -> Answer:
        now = given[0]
        if now is None:
            given.pop(0)
            raise AwayError("vpc-ipamd does not answer")
        if rpc == "GetStatus":
            return answer(**{key: value for key, value in now.items() if key != "rows"})
        return {"attachments": given.pop(0)["rows"]}  # type: ignore[index]  # it is no None

    monkeypatch.setattr(ipamctl, "_ask_daemon", ask)
    yield given
    assert given == []


def watch(capsys: pytest.CaptureFixture[str], count: int, *words: str) -> list[str]:
    """The lines, without their time."""
    assert ipamctl.main(["watch", "--interval", "0.2", "--count", str(count), *words]) == 0
    return [line.split("  ", 1)[1] for line in capsys.readouterr().out.splitlines()]


def test_changes_are_lines(looks: list[Answer | None], capsys: pytest.CaptureFixture[str]) -> None:
    """What is there at first, then only what changes; an absence of the daemon is no end of its pods."""
    looks += [{"rows": [row("a")]}, {"rows": [row("a")]}, None, {"rows": [row("b")], "verdict": "NOT READY: x"}]
    lines = watch(capsys, 4)
    assert lines[0] == "daemon      vpc-ipamd 0.1.0 answers, serving"
    assert lines[1] == "verdict     ready: 1 address can be given"
    assert lines[2].startswith("pool        1 address: 1 assigned")
    assert lines[3:] == [
        "attachment  + 10.0.0.5 default/a a/eth0",
        "daemon      vpc-ipamd does not answer",
        "daemon      vpc-ipamd 0.1.0 answers, serving",
        "verdict     NOT READY: x",
        "attachment  + 10.0.0.5 default/b b/eth0",
        "attachment  - 10.0.0.5 default/a a/eth0",
    ]


def test_programs_get_one_object_a_line(looks: list[Answer | None], capsys: pytest.CaptureFixture[str]) -> None:
    """With -o json; a terminal obeys no pod's name."""
    looks += [{"rows": [row(NASTY)]}, {"rows": [row(NASTY)]}]
    assert ipamctl.main(["watch", "--count", "1", "-o", "json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["kind"] for line in lines] == ["daemon", "verdict", "pool", "attachment"]
    assert all(line.isprintable() for line in watch(capsys, 1))


@pytest.mark.parametrize("interval", ["0", "-1", "nan", "x", "1e9"])
def test_a_look_costs_little(interval: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody polls without pause by mistake."""
    with pytest.raises(SystemExit) as end:
        ipamctl.main(["watch", "--interval", interval])
    assert end.value.code == 2
    assert "is not a number of seconds" in capsys.readouterr().err


def test_ctrl_c_is_no_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """That is how it ends; of other verbs it is status 130."""

    def interrupted(*_: object) -> Answer:
        raise KeyboardInterrupt

    monkeypatch.setattr(ipamctl, "_ask_daemon", interrupted)
    assert ipamctl.main(["watch"]) == 0
    assert ipamctl.main(["status"]) == 130
    assert capsys.readouterr().err == ""
