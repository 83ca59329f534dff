"""Each program names what a misspelt command, option or choice meant. The kubectl plugin, a wheel of its own, has its own tests."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from typing import NamedTuple

import pytest

from ipamd import daemon
from ipamd.command_line import EXIT_USAGE, Parser, WrongUsageError, nearest
from ipamd.inventory import command as inventory
from ipamd.ipamctl import main as ipamctl
from ipamd.sweeper import command as sweeper
from lab.cli import main as lab

PROGRAMS: dict[str, Callable[[], object]] = {
    "ipamd": daemon.main,
    "ipamctl": ipamctl.main,
    "vpc-ipamd-sweeper": sweeper.main,
    "vpc-ipamd-inventory": inventory.main,
    "vpc-lab": lab.main,
}


class Wrong(NamedTuple):
    """A command line that is wrong, and what the program says of it."""

    line: str
    word: str
    suggestion: str


WRONG = [
    Wrong("ipamd claen-up", "claen-up", "clean-up"),
    Wrong("ipamd datastroe level", "datastroe", "datastore"),
    Wrong("ipamd datastore levle", "levle", "level"),
    Wrong("ipamd datastore --flie x level", "--flie", "--file"),
    Wrong("ipamd datastore downgrade --ot 3", "--ot", "--to"),
    Wrong("ipamd --verison", "--verison", "--version"),
    Wrong("ipamd clean-up --dryrun", "--dryrun", "--dry-run"),
    Wrong("ipamctl stauts", "stauts", "status"),
    Wrong("ipamctl audit --skip-ecw", "--skip-ecw", "--skip-ec2"),
    Wrong("ipamctl -o jsno status", "jsno", "json"),
    Wrong("vpc-ipamd-sweeper --clutser=blue", "--clutser", "--cluster"),
    Wrong("vpc-ipamd-sweeper --cluster blue --delte", "--delte", "--delete"),
    Wrong("vpc-ipamd-sweeper -o jsno", "jsno", "json"),
    Wrong("vpc-ipamd-inventory srve", "srve", "serve"),
    Wrong("vpc-ipamd-inventory run --max-call-count 3", "--max-call-count", "--max-calls"),
    Wrong("vpc-ipamd-inventory show -o mpa", "mpa", "map"),
    Wrong("vpc-lab dwon", "dwon", "down"),
    Wrong("vpc-lab hand detahc eni-1", "detahc", "detach"),
    Wrong("vpc-lab up --ndoes 3", "--ndoes", "--nodes"),
    # a word like none of them
    Wrong("ipamd xyzzy", "xyzzy", ""),
    Wrong("ipamctl xyzzy", "xyzzy", ""),
    Wrong("vpc-ipamd-sweeper --xyzzy", "--xyzzy", ""),
    Wrong("vpc-ipamd-inventory xyzzy", "xyzzy", ""),
    Wrong("vpc-lab xyzzy", "xyzzy", ""),
    # one word too many, and one too few
    Wrong("vpc-ipamd-sweeper blue", "blue", ""),
    Wrong("vpc-lab down node-a", "node-a", ""),
    Wrong("ipamd datastore downgrade", "", ""),
    Wrong("vpc-lab", "", ""),
]


@pytest.mark.parametrize("wrong", WRONG, ids=[wrong.line for wrong in WRONG])
def test_a_wrong_command_line_is_one_line_with_what_was_meant(
    wrong: Wrong, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The program ends with the status of a wrong usage, and has done nothing."""
    monkeypatch.setattr(sys, "argv", shlex.split(wrong.line))
    program = sys.argv[0]
    with pytest.raises(WrongUsageError) as ended:
        PROGRAMS[program]()
    assert (ended.value.code, ended.value.word, ended.value.suggestion) == (EXIT_USAGE, wrong.word, wrong.suggestion)
    out, err = capsys.readouterr()
    (line,) = err.splitlines()
    assert (out, line.partition(": ")[0]) == ("", program)
    assert wrong.suggestion in line


def test_the_value_of_an_option_is_no_misspelt_option() -> None:
    """Nor is an option that is shortened, or what stands behind `--`."""
    parser = Parser(prog="program")
    parser.add_argument("--subject")
    parser.add_argument("words", nargs="*")
    arguments = parser.parse_args(["--subj=--x", "--", "--subjct"])
    assert (arguments.subject, arguments.words) == ("--x", ["--subjct"])


def test_a_word_that_a_terminal_would_execute_is_printed_as_text(capsys: pytest.CaptureFixture[str]) -> None:
    """Somebody may have pasted it."""
    with pytest.raises(WrongUsageError):
        Parser(prog="program").parse_args(["--\x1b[31m" + "x" * 1000])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.isprintable()
    assert len(line) < 200


def test_nothing_is_near_to_no_word() -> None:
    """A missing word gets no suggestion."""
    assert (nearest("", ["a"]), nearest("statsu", ["status", "state"]), nearest("q", [])) == ("", "status", "")
