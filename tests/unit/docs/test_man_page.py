"""The manual page has each verb with its arguments and an example, and man takes it; the README's picture is a screen that is kept."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
from xml.etree import ElementTree

import pytest

from ipamd.ipamctl import verb as verb_module
from ipamd.ipamctl.main import VERBS, make_parser
from tests.task_pages import ROOT
from tools import man_page, screen_picture

SVG = "{http://www.w3.org/2000/svg}"


def plain(text: str) -> str:
    """The page as it is read: without fonts and escapes."""
    return re.sub(r"\\f[BIR]", "", text).replace("\\-", "-").replace("\\(aq", "'").replace("\\(ga", "`").replace("\\e", "\\")


def section(name: str) -> str:
    """What the page says of a verb."""
    return plain(man_page.man_page()).partition(f"\n.SS {name}\n")[2].partition("\n.S")[0]


@pytest.mark.parametrize("name", VERBS)
def test_each_verb_is_there_with_its_arguments_and_examples(name: str) -> None:
    """Sentence, each argument with what it means, each example."""
    (commands,) = [action for action in make_parser()._actions if isinstance(action, argparse._SubParsersAction)]
    text = section(name)
    for sentence in VERBS[name].about.split(". "):
        assert sentence in text
    for action in commands.choices[name]._actions:
        if man_page.COMMON & set(action.option_strings):
            continue
        assert action.help, f"{name} {action.dest} has no help"
        spelt = action.option_strings or [man_page._value(action)]
        assert all(word in text for word in spelt)
    assert all(example in text for example in VERBS[name].examples)


def test_the_exit_statuses_are_those_of_the_verbs() -> None:
    """Each constant, and no other."""
    constants = {value for key, value in vars(verb_module).items() if key.startswith("EXIT_")}
    assert {int(status) for status, _ in man_page.EXIT_STATUSES} == constants | {0}


@pytest.mark.parametrize(
    "command", [["man", "--warnings", "-E", "UTF-8", "-l"], ["mandoc", "-Tlint", "-W", "warning"]], ids=["man", "mandoc"]
)
def test_programs_take_the_page(command: list[str]) -> None:
    """Without a warning."""
    if shutil.which(command[0]) is None:
        pytest.skip(f"{command[0]} is not installed")
    environment = {**os.environ, "MANPAGER": "cat", "MANWIDTH": "100", "LC_ALL": "C.UTF-8", "MANROFFOPT": "-ww"}
    done = subprocess.run(
        [*command, str(man_page.PAGE)], env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    if command[0] == "man":
        assert all(f"ipamctl {name}" in done.stdout for name in VERBS)


def test_the_picture_has_every_line_of_a_screen_that_is_kept() -> None:
    """As text within its frame, and the README shows it."""
    picture = ElementTree.fromstring(screen_picture.screen_picture())
    lines = ["".join(text.itertext()) for text in picture.iter(f"{SVG}text")][1:]
    screen = screen_picture.SCREEN.read_text()
    assert lines == [line for line in screen.splitlines() if line]
    assert screen.startswith("$ ipamctl status")
    assert max(map(len, lines)) <= screen_picture.COLUMNS
    height = float(picture.attrib["height"])
    assert all(float(text.attrib["y"]) < height for text in picture.iter(f"{SVG}text"))
    assert "](docs/picture/screen.svg)" in (ROOT / "README.md").read_text()
    assert "git clone " in (ROOT / "README.md").read_text()


def test_the_screens_command_draws_the_picture() -> None:
    """A new screen and an old picture would contradict each other."""
    recipe = (ROOT / "Makefile").read_text().partition("\nscreens:")[2].partition("\n\n")[0]
    assert "tools/screen_picture.py" in recipe
