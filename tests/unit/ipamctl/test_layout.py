"""What a screen of `ipamctl` keeps to: its width, short IDs, and colour on a terminal only."""

from __future__ import annotations

import os
import pty
import termios
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

import pytest

from ipamd.ipamctl.layout import SHORT_ID, WHOLE, Colour, Layout, layout_of
from ipamd.ipamctl.main import VERBS
from ipamd.ipamctl.tables import filled, table
from tests.unit.ipamctl.test_verbs import ASKING, Daemon, parsed

CONTAINER_ID = "0123456789abcdef" * 4
LONG_WORDS = " ".join(["EC2 refuses this call"] * 20)
SERVING = {"page"}
"""Verbs without a screen of their own."""

TEXTS = {"words": f"{LONG_WORDS} {CONTAINER_ID}", "a name": "n" * 253, "a time": "2026-11-29T00:40:23.123Z", "nothing": ""}
"""What each text of an answer is, in turn."""


def _answer(name: str, text: str = TEXTS["words"]) -> Mapping[str, Any]:
    """An answer with one of everything, in which every text is the same; of a stream the first answer."""
    answer = VERBS[name].ask(Daemon(), parsed(name))
    if not isinstance(answer, dict):
        answer = next(iter(answer))
    written = _written(answer, text)
    assert isinstance(written, dict)
    return written


def _written(value: Any, text: str) -> Any:
    if isinstance(value, dict):
        return {key: _written(part, text) for key, part in value.items()}
    if isinstance(value, list):
        return [_written(part, text) for part in value]
    if isinstance(value, str):
        return text
    return value


@pytest.mark.parametrize("text", TEXTS.values(), ids=TEXTS)
@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("name", sorted(set(ASKING) - SERVING - {"convert-values"}))
def test_no_line_is_wider_than_the_screen(name: str, width: int, text: str) -> None:
    """Whatever the daemon answers, no row is pushed apart by a terminal's own wrapping."""
    shown = VERBS[name].render(dict(_answer(name, text)), Layout(width))
    assert max(map(len, shown.splitlines())) <= width


def test_a_change_names_its_sandbox_as_a_table_does() -> None:
    """With the beginning of the container ID, and with the whole of it on a wide screen."""
    change = {"at": "2026-11-29T00:40:23Z", "kind": "attachment", "text": f"+ 10.0.0.9 default/web {CONTAINER_ID}/eth0"}
    assert f"{CONTAINER_ID[:SHORT_ID]}/eth0" in VERBS["watch"].render(change, Layout())
    assert f"{CONTAINER_ID}/eth0" in VERBS["watch"].render(change, WHOLE)


def test_a_row_goes_on_within_its_columns() -> None:
    """Every character of a cell is shown, in the cell's own column."""
    rows = [{"pod": "default/" + "p" * 60, "detail": LONG_WORDS}]
    text = table(rows, {"POD": "{pod}", "DETAIL": "{detail}"}, Layout(60), is_shortened=False)
    at = text.splitlines()[0].index("DETAIL")
    assert "".join(line[:at].strip() for line in text.splitlines()[1:]) == rows[0]["pod"]
    assert " ".join(line[at:].strip() for line in text.splitlines()[1:]) == LONG_WORDS


def test_words_are_broken_last() -> None:
    """A time or an ID stays whole while a column of sentences can be narrower."""
    rows = [{"at": "2026-11-29T00:40:23Z", "detail": LONG_WORDS}]
    for width in (60, 40):
        lines = table(rows, {"AT": "{at}", "DETAIL": "{detail}"}, Layout(width), is_shortened=False).splitlines()
        assert lines[1].split()[0] == rows[0]["at"]
        assert max(map(len, lines)) <= width


def test_a_pipe_gets_one_line_for_each_row() -> None:
    """So that grep finds a pod with its address; nothing is wrapped or painted."""
    rows = [{"pod": f"default/pod-{number}", "detail": LONG_WORDS} for number in range(3)]
    text = table(rows, {"POD": "{pod}", "DETAIL": "{detail}"}, Layout(), colour_of=lambda _: Colour.BAD)
    assert len(text.splitlines()) == 4
    assert "\x1b" not in text


def test_only_a_wide_screen_has_all_columns_and_whole_ids() -> None:
    """The pod is first on both."""
    answer = dict(_answer("attachments", ""))
    answer["attachments"][0] |= {"container_id": CONTAINER_ID, "sandbox_name": "default/web"}
    narrow, wide = (VERBS["attachments"].render(answer, layout) for layout in (Layout(), WHOLE))
    assert narrow.splitlines()[0].split()[0] == wide.splitlines()[0].split()[0] == "POD"
    assert CONTAINER_ID not in narrow
    assert CONTAINER_ID[:SHORT_ID] in narrow
    assert CONTAINER_ID in wide
    assert "HOST VETH" in wide
    assert "HOST VETH" not in narrow


def test_the_stages_of_a_start_are_shown_until_it_is_over() -> None:
    """They are no news on a ready node; a wide screen has them always."""
    answer = dict(_answer("status"))
    answer["stages"][0]["name"] = "datastore"
    shown = {ready: VERBS["status"].render(answer | {"ready": ready}, Layout()) for ready in (True, False)}
    assert "STAGE" not in shown[True]
    assert "datastore" in shown[False]
    assert "datastore" in VERBS["status"].render(answer | {"ready": True}, WHOLE)


def test_the_audit_shows_every_name() -> None:
    """A cell of an audit is never shortened: somebody has to go through all of its pods."""
    names = "; ".join(f"10.0.0.{number} (default/pod-{number})" for number in range(200))
    answer = dict(_answer("audit"))
    answer["findings"][0]["text"] = names
    shown = VERBS["audit"].render(answer, Layout())
    assert names in shown


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[TextIO]:
    """A terminal of 100 columns."""
    leader, follower = pty.openpty()
    termios.tcsetwinsize(follower, (24, 100))
    for name in ("COLUMNS", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    with os.fdopen(follower, "w") as stream:
        yield stream
    os.close(leader)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, Layout(100, has_colour=True)),
        ({"NO_COLOR": "1"}, Layout(100)),
        ({"TERM": "dumb"}, Layout(100)),
        ({"COLUMNS": "132"}, Layout(132, has_colour=True)),
        ({"COLUMNS": "1"}, Layout(40, has_colour=True)),
    ],
)
def test_a_terminal_has_its_width_and_colour(
    env: Mapping[str, str], expected: Layout, terminal: TextIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unless the environment says otherwise."""
    for name, text in env.items():
        monkeypatch.setenv(name, text)
    assert layout_of("table", terminal) == expected


def test_a_file_has_neither(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Not even if a shell exports its width."""
    monkeypatch.setenv("COLUMNS", "80")
    with (tmp_path / "out").open("w") as stream:
        assert layout_of("table", stream) == Layout()
        assert layout_of("wide", stream) == WHOLE


def test_a_long_line_goes_on_behind_its_topic() -> None:
    """So that the topics of a status stay a column."""
    text = filled(f"loop     {LONG_WORDS}", Layout(60), indent=9)
    assert [line[:9].strip() for line in text.splitlines()][1:] == [""] * (len(text.splitlines()) - 1)
    assert " ".join(text.split()) == f"loop {LONG_WORDS}"
