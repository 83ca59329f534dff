"""Keep the screens of tickets, as a person sees them on a terminal of 80 and of 200 columns, for a reviewer to read.

`make screens` writes them to docs/screens/. No test compares them: words may change. Times and IDs differ in each run, so fixed ones
of the same length replace them.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping
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
    target = folder()
    if target is None:
        return
    arguments = [words.get(word, word) for word in shlex.split(command)]
    line = shlex.join([sys.executable, "-m", MODULES[arguments[0]], *arguments[1:]])
    slug = screen_slug(heading)
    target.mkdir(parents=True, exist_ok=True)
    for width in WIDTHS:
        on_terminal = ["script", "-qec", f"stty cols {width}; {line}", "/dev/null"]
        env = made.driver.environment | {"NO_COLOR": "1", "TERM": "xterm"}
        done = made.node.run(on_terminal, cwd=str(REPOSITORY), env=env, check=False, timeout_s=120)
        shown = ID.sub(lambda match: f"{match[1]}-{FIXED_ID}", TIME.sub(FIXED_TIME, done.stdout.replace("\r", "")))
        (target / f"{slug}.{width}.txt").write_text(f"$ {command}\n{shown.rstrip()}\n")
