"""Completion knows every verb and every option, because it is made from the parser."""

from __future__ import annotations

import argparse
import shutil
import subprocess

import pytest

from ipamd.ipamctl import main as ipamctl


def script_of(shell: str, capsys: pytest.CaptureFixture[str]) -> str:
    """What the verb prints."""
    assert ipamctl.main(["completion", shell]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_verb_and_option_is_in_the_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    """For each shell; a shell that is installed accepts the script's grammar."""
    script = script_of(shell, capsys)
    top = ipamctl.make_parser()
    (verbs,) = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    assert all(name in script for name in ipamctl.VERBS)
    for parser in (top, *verbs.choices.values()):
        for name in (name for action in parser._actions for name in action.option_strings):
            assert (f"-l {name[2:]}" if shell == "fish" and name.startswith("--") else name.lstrip("-")) in script
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, timeout=120, check=False)
        assert (checked.returncode, checked.stderr) == (0, "")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("ipamctl sta", {"status"}),
        ("ipamctl -o js", {"json"}),
        ("ipamctl -o json hist", {"history"}),
        ("ipamctl history --si", {"--since"}),
        ("ipamctl history -o y", {"yaml"}),
        ("ipamctl completion z", {"zsh"}),
        ("ipamctl --socket /x aud", {"audit"}),
        ("ipamctl history --since ", set()),
        ("ipamctl probe ", {"aws"}),
        ("ipamctl probe --r", {"--report", "--run"}),
    ],
)
def test_bash_completes(line: str, expected: set[str], capsys: pytest.CaptureFixture[str]) -> None:
    """As bash itself does it: verbs, options of the verb, choices, before and after the verb."""
    words = line.split(" ")
    program = f"""{script_of("bash", capsys)}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
$(complete -p ipamctl | sed 's/.* -F \\([^ ]*\\) .*/\\1/') ipamctl; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", program], text=True, capture_output=True, timeout=120, check=True)
    assert set(done.stdout.split()) == expected, done.stderr
