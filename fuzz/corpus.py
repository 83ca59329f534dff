"""Cases on paper: the corpus (`fuzz/corpus/TARGET/NAME.txt`) and the findings of a run (`build/fuzz/`), as Python literals.

A file may begin with comment lines that say what the case is for.
"""

from __future__ import annotations

import ast
import pprint
from pathlib import Path

from fuzz.target import Case

CORPUS = Path(__file__).with_name("corpus")
FINDINGS = Path("build/fuzz")


def paths(target: str) -> list[Path]:
    """The corpus of one target, in the order of names."""
    return sorted((CORPUS / target).glob("*.txt"))


def read(path: Path) -> Case:
    """Read a case. Raises: ValueError, SyntaxError if the file is no dict of literals."""
    return parsed(path.read_text())


def parsed(text: str) -> Case:
    """Read a case from text. Raises: as `read`."""
    case = ast.literal_eval(text)
    if not isinstance(case, dict):
        raise ValueError("a case is a dict")
    return case


def write(path: Path, case: Case, *, comment: str) -> None:
    """Write a case with a comment above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"# {ascii(line)[1:-1]}\n" for line in comment.splitlines())
    path.write_text(lines + pprint.pformat(case, width=110, sort_dicts=False) + "\n")
