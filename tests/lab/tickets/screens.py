"""Keep the screens of tickets, as a person sees them on a terminal of 80 and of 200 columns, for a reviewer to read.

`make screens` writes them to docs/screens/. No test compares them: words may change. Times and IDs differ in each run, so fixed ones
of the same length replace them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from lab.node.node import REPOSITORY
from tests.rig import Rig

WIDTHS = (80, 200)
MODULES = {"ipamctl": "ipamd.ipamctl.main", "ipamd": "ipamd.daemon"}

TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?=(\.\d{3})?Z)")
ID = re.compile(r"\b(eni|i|subnet|sg)-[0-9a-f]{17}\b")
FIXED_TIME = "2026-01-02T03:04:05"
FIXED_ID = "0123456789abcdef0"


def folder() -> Path | None:
    """Where screens are kept; None if nobody asked for them."""
    name = os.environ.get("VPC_IPAMD_SCREENS")
    return REPOSITORY / name if name else None


def screen_slug(heading: str) -> str:
    """Return the beginning of a file's name, for a heading of the page."""
    return re.sub(r"[^a-z0-9]+", "-", heading.lower()).strip("-")


def keep_screens(made: Rig, heading: str, command: str, words: Mapping[str, str]) -> None:
    """Run a page's command once more on a terminal of each width, and write what it shows, if somebody asked for screens."""
    arguments = [words.get(word, word) for word in shlex.split(command)]
    env = made.driver.environment | {"NO_COLOR": "1", "TERM": "xterm"}

    def run(argv: Sequence[str]) -> str:
        return made.node.run(list(argv), cwd=str(REPOSITORY), env=env, check=False, timeout_s=120).stdout

    write_screens(heading, command, [sys.executable, "-m", MODULES[arguments[0]], *arguments[1:]], run=run, is_fixed=True)


def write_screens(
    heading: str, command: str, argv: Sequence[str], *, run: Callable[[Sequence[str]], str], is_fixed: bool
) -> None:
    """Write what a program shows on a terminal of each width, if somebody asked for screens.

    Args:
        heading: the page's, and what tells this screen from others of it.
        command: as the page has it; the first line of the screen.
        run: runs a command line, and returns what it printed.
        is_fixed: whether times and IDs are replaced; not where the test makes them.
    """
    target = folder()
    if target is None:
        return
    target.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        shown = run(["script", "-qec", f"stty cols {width}; {shlex.join(argv)}", "/dev/null"]).replace("\r", "")
        if is_fixed:
            shown = ID.sub(lambda match: f"{match[1]}-{FIXED_ID}", TIME.sub(FIXED_TIME, shown))
        (target / f"{screen_slug(heading)}.{width}.txt").write_text(f"$ {command}\n{shown.rstrip()}\n")
