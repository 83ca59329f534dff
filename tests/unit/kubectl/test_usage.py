"""What a person meets first: wrong words, `--help`, and a terminal that is narrower than a row."""

from __future__ import annotations

import argparse
import shlex

import pytest

from kubectl_ipamd import text
from kubectl_ipamd.command import PROGRAM, main, make_parser
from kubectl_ipamd.errors import CommandLineError

WHY = "no address can be given: subnet-full; conditions: ec2, pool, network file differs"


def _commands() -> dict[str, argparse.ArgumentParser]:
    (action,) = [action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(action.choices)


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        ("stauts", "status"),
        ("bundel", "bundle"),
        ("status --troubeld", "--troubled"),
        ("status --paralel 4", "--parallel"),
        ("-o jsom status", "json"),
        ("top --by zones", "zone"),
        ("where", "--help"),
        ("status --parallel 0", "--help"),
        ("status --short x", "--help"),
        ("xyzzy", "--help"),
        ("", "--help"),
    ],
)
def test_a_wrong_word_is_one_line_with_a_hint(words: str, hint: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No list of all options before the sentence, and the status of a wrong usage."""
    with pytest.raises(SystemExit) as ended:
        main(words.split())
    (line,) = capsys.readouterr().err.splitlines()
    assert (ended.value.code, hint in line) == (CommandLineError.exit_status, True), line
    assert "_positive" not in line


@pytest.mark.parametrize("name", _commands())
def test_each_help_has_a_sentence_and_an_example(name: str) -> None:
    """The example is a command line that the parser takes."""
    parser = _commands()[name]
    assert parser.description
    assert (parser.description[0].isupper(), parser.description[-1]) == (True, ".")
    (example,) = [line for line in parser.format_help().splitlines() if line.startswith(f"  {PROGRAM} {name}")]
    words = shlex.split(example.partition(">")[0].removeprefix(f"  {PROGRAM}"))
    assert make_parser().parse_args(words).run is not None


def test_a_word_for_ipamctl_is_ipamctls() -> None:
    """What stands behind the node's name is not judged here."""
    arguments = make_parser().parse_args(["exec", "node-a", "stauts", "--wide"])
    assert arguments.words == ["stauts", "--wide"]


@pytest.mark.parametrize("width", [60, 80, 132, 300])
def test_a_terminal_shows_the_whole_reason(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last cell goes on in its own column; a pipe has one line for each row."""
    rows = [{"node": "node-b", "state": "empty", "why": WHY}]
    columns = {"NODE": "node", "STATE": "state", "WHY": "why"}
    monkeypatch.setattr(text, "_screen_width", lambda: width)
    lines = text.table(rows, columns).splitlines()
    at = lines[0].index("WHY")
    assert max(map(len, lines)) <= width
    assert " ".join(line[at:].strip() for line in lines[1:]) == WHY
    monkeypatch.setattr(text, "_screen_width", lambda: 0)
    assert len(text.table(rows, columns).splitlines()) == 2


@pytest.mark.parametrize("width", [60, 80, 100])
def test_cells_without_room_are_below_their_row(width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """EKS's names of nodes take half a terminal of 80 columns: what does not fit beside them is not lost, each with its heading."""
    row = {
        "node": "ip-10-0-100-170.us-west-2.compute.internal",
        "state": "crash-loop",
        "most": "27",
        "zone": "us-west-2a",
        "why": WHY,
    }
    columns = {"NODE": "node", "STATE": "state", "CAN GIVE": "zone", "MOST": "most", "ZONE": "zone", "WHY": "why"}
    monkeypatch.setattr(text, "_screen_width", lambda: width)
    lines = text.table([row], columns).splitlines()
    assert max(map(len, lines)) <= width
    words = " ".join(" ".join(lines).split())
    assert WHY in words
    assert all(cell in words for cell in row.values())
    assert all(word in words for word in columns)


def test_a_row_that_leaves_no_room_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a terminal does not wrap it; the next cell is below it."""
    monkeypatch.setattr(text, "_screen_width", lambda: 40)
    shown = text.table([{"node": "n" * 60, "why": WHY}], {"NODE": "node", "WHY": "why"})
    assert max(map(len, shown.splitlines())) == 40
    assert WHY in " ".join(shown.split())
