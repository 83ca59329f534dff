"""Completion knows every verb and every option, because it is made from the parser."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from ipamd.ipamctl import main as ipamctl
from ipamd.ipamctl.completion import SHELLS, bash, commands_of

VERBS = ipamctl.find_verbs()


@pytest.mark.parametrize("shell", SHELLS)
def test_every_verb_and_option_is_in_the_script(shell: str) -> None:
    """For each shell; a shell that is installed accepts the script's grammar."""
    script = SHELLS[shell](ipamctl.make_parser())
    top, commands = commands_of(ipamctl.make_parser())
    assert [command.name for command in commands] == list(VERBS)
    for option in (*top, *(option for command in commands for option in command.options)):
        for name in option.names:
            assert (f"-l {name[2:]}" if shell == "fish" and name.startswith("--") else name.lstrip("-")) in script
    assert all(command.name in script for command in commands)
    if shutil.which(shell):
        checked = subprocess.run([shell, "-n"], input=script, text=True, capture_output=True, timeout=30, check=False)
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
        ("ipamctl probe ", {"aws", "--help", "--report", "--run"}),
    ],
)
def test_bash_completes(line: str, expected: set[str]) -> None:
    """As bash itself does it: verbs, options of the verb, choices, before and after the verb."""
    words = line.split(" ")
    program = f"""{bash(ipamctl.make_parser())}
COMP_WORDS=({" ".join(f"'{word}'" for word in words)}); COMP_CWORD={len(words) - 1}
_ipamctl; printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", program], text=True, capture_output=True, timeout=30, check=True)
    found = set(done.stdout.split())
    assert found == expected or expected < found, done.stderr
    assert bool(found) == bool(expected)


def test_the_verb_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    """On standard output, as it is."""
    assert ipamctl.main(["completion", "bash"]) == 0
    assert capsys.readouterr().out == bash(ipamctl.make_parser())
