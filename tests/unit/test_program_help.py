"""Each program beside `ipamctl` and the kubectl plugin explains itself: a sentence, and an example that it takes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable

import pytest

from ipamd import daemon
from ipamd.inventory import command as inventory
from ipamd.sweeper import command as sweeper

PROGRAMS: dict[str, Callable[[], object]] = {
    "ipamd": daemon.main,
    "ipamd clean-up": daemon.main,
    "ipamd datastore level": daemon.main,
    "ipamd datastore downgrade": daemon.main,
    "vpc-ipamd-sweeper": sweeper.main,
    "vpc-ipamd-inventory": inventory.main,
}


def _help(
    words: list[str], run: Callable[[], object], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> str:
    monkeypatch.setattr(sys, "argv", [*words, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_help_has_a_sentence_and_an_example(
    program: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program takes the example's words and options."""
    words, run = program.split(), PROGRAMS[program]
    shown = _help(words, run, monkeypatch, capsys)
    description = shown.split("\n\n")[1]
    assert (description[0].isupper(), description.rstrip()[-1]) == (True, ".")
    example = shown.partition("xample: ")[2].partition("\n")[0]
    assert example.startswith(program)
    _help(shlex.split(example), run, monkeypatch, capsys)
