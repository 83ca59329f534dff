"""Sizes that keep the code readable: functions fit a screen, constructors take few arguments, long files say why."""

from __future__ import annotations

import ast
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ipamd", "cni_plugin", "lab", "bench", "fuzz", "tools")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "pb" not in path.parts)
TESTS = sorted((ROOT / "tests").rglob("*.py"))

FUNCTION_LINES_MAX = 50
CONSTRUCTOR_PARAMETERS_MAX = 6
MODULE_LINES_MAX = 300
MODULE_LINES_MEDIAN_MAX = 130


def _lines(path: Path) -> int:
    return path.read_text().count("\n")


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_functions_and_constructors_are_small(path: Path) -> None:
    """No function over 50 lines, no constructor over 6 parameters (a value object says it better), no long file without a reason."""
    tree = ast.parse(path.read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    long = {
        f.name: f.end_lineno - f.lineno + 1 for f in functions if f.end_lineno and f.end_lineno - f.lineno >= FUNCTION_LINES_MAX
    }
    assert not long, f"over {FUNCTION_LINES_MAX} lines: {long}"
    wide = [f.lineno for f in functions if f.name == "__init__" and _parameter_count(f) > CONSTRUCTOR_PARAMETERS_MAX]
    assert not wide, f"constructors over {CONSTRUCTOR_PARAMETERS_MAX} parameters, at lines {wide}"
    assert _says_why_it_is_long(path)


def test_long_files_of_tests_say_why() -> None:
    """A file of tests has one subject too: over 300 lines it is split, or its docstring says why not."""
    assert len(TESTS) > 300
    assert [str(path.relative_to(ROOT)) for path in TESTS if not _says_why_it_is_long(path)] == []


def test_the_median_module_is_short() -> None:
    """Half of all modules are read in one sitting."""
    assert statistics.median(map(_lines, FILES)) < MODULE_LINES_MEDIAN_MAX


def _says_why_it_is_long(path: Path) -> bool:
    """Whether it is short, or has the sentence."""
    if _lines(path) <= MODULE_LINES_MAX:
        return True
    return "300 lines because" in " ".join((ast.get_docstring(ast.parse(path.read_text())) or "").split())


def _parameter_count(function: ast.FunctionDef) -> int:
    return len(function.args.posonlyargs) + len(function.args.args) + len(function.args.kwonlyargs) - 1
