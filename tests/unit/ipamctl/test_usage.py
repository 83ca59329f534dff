"""What `ipamctl` says to a wrong command line, and in the help of each verb."""

from __future__ import annotations

import re
import shlex

import pytest

from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.verb import EXIT_USAGE


def _refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as ended:
        ipamctl.make_parser().parse_args(words)
    assert ended.value.code == EXIT_USAGE
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    return err


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        (["stauts"], "status"),
        (["attachment"], "attachments"),
        (["histroy", "web"], "history"),
        (["status", "-o", "jsno"], "json"),
        (["audit", "--skip-ecw"], "--skip-ec2"),
        (["completion", "bahs"], "bash"),
    ],
)
def test_a_misspelt_word_names_the_one_that_was_meant(words: list[str], meant: str, capsys: pytest.CaptureFixture[str]) -> None:
    """On one line, without the other twenty choices."""
    line = _refused(words, capsys)
    assert meant in re.findall(r"[\w-]+", line)
    assert "convert-eniconfig" not in line


def test_a_word_like_none_is_refused_without_a_guess(capsys: pytest.CaptureFixture[str]) -> None:
    """Verbs are listed by the help; a short list of choices is named."""
    assert not set(ipamctl.VERBS) & set(re.findall(r"[\w-]+", _refused(["xyzzy"], capsys)))
    assert {"bash", "zsh", "fish"} <= set(re.findall(r"[\w-]+", _refused(["completion", "xyzzy"], capsys)))


@pytest.mark.parametrize("name", ipamctl.VERBS)
def test_each_help_has_a_sentence_and_an_example_that_works(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """An example is a command line of that verb, which the parser takes."""
    verb = ipamctl.VERBS[name]
    assert verb.about.endswith(".")
    assert verb.examples
    for example in verb.examples:
        words = shlex.split(re.sub(r'^eval "\$\((.*)\)"$', r"\1", example).partition(" | ")[0])
        assert words[:2] == ["ipamctl", name]
        assert ipamctl.make_parser().parse_args(words[1:]).verb is verb
    with pytest.raises(SystemExit):
        ipamctl.make_parser().parse_args([name, "--help"])
    shown = capsys.readouterr().out
    assert all(example in shown for example in verb.examples)
