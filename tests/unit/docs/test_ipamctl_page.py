"""The fields that docs/ipamctl.md names are those that `ipamctl -o json` prints: all of them, and no other."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.verb import Answer, AwayError
from tests.unit.ipamctl.test_verbs import VERBS, Daemon, parsed
from tools.ipamctl_page import ELSEWHERE, sentences

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "ipamctl.md").read_text()


def documented(verb: str) -> set[str]:
    """The paths in the table of a verb: a row has one or several, or names the message of another verb that has the same."""
    section = PAGE.partition(f"\n### {verb}\n")[2].partition("\n### ")[0].partition("| Field |")[2]
    cells = re.findall(r"^\| (`[\w.\[\], `]+`) \|", section, re.M)
    found = {path for cell in cells for path in re.findall(r"`([^`]+)`", cell)}
    for here, there, other in re.findall(r"^\| `([\w.\[\]]+\.)\*` \| as `([\w.\[\]]+\.)\*` of \[(\S+)\]", section, re.M):
        same = {path.replace(there, here, 1) for path in documented(other) if path.startswith(there)}
        assert same, f"{other} has no {there}"
        found |= same
    return found


def printed(answer: Any, before: str = "") -> Iterator[str]:
    """The paths of an answer."""
    for name, value in answer.items():
        path = f"{before}{name}{'[]' if isinstance(value, list) else ''}"
        values = value if isinstance(value, list) else [value]
        if values and isinstance(values[0], dict):
            yield from printed(values[0], f"{path}.")
        else:
            yield path


def shown(found: Answer | Iterator[Answer]) -> Answer:
    """What it prints first."""
    return found if isinstance(found, dict) else next(found)


def answer_of(verb: str, tmp_path: Path) -> Answer:
    """What a verb prints: one of everything."""
    made = VERBS[verb]
    if verb == "completion":
        return shown(made.ask(Daemon(), ipamctl.make_parser().parse_args(["completion", "bash"])))
    if verb == "bundle":
        words = ["bundle", "-f", str(tmp_path / "x"), "--history-dir", str(tmp_path)]

        def away(_rpc: str, **_: object) -> Answer:
            raise AwayError("away")

        return shown(made.ask(away, ipamctl.make_parser().parse_args(words)))
    return shown(made.ask(Daemon(), parsed(verb)))


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in ELSEWHERE])
def test_documented_fields_are_the_printed_ones(verb: str, tmp_path: Path) -> None:
    """No more and no less."""
    assert documented(verb) == set(printed(answer_of(verb, tmp_path)))


def test_every_verb_has_a_section() -> None:
    """In the order of the help; and the fields that the past is told with have a sentence each."""
    assert re.findall(r"^### ([\w-]+)$", PAGE, re.M) == list(VERBS)
    assert all(sentences()["Tenure", name] for name in ("until", "ended_by", "sentence"))
