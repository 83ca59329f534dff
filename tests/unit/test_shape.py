"""No function is longer than a screen; ruff counts its decisions (C901 in pyproject.toml). A file is as long as its one idea."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDERS = ("ipamd", "cni_plugin", "lab", "bench", "fuzz", "tools")
FILES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py") if "pb" not in path.parts)

FUNCTION_LINES_MAX = 50


def test_functions_are_small() -> None:
    """No function of any file has more lines than the ceiling."""
    assert len(FILES) > 300
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}: {node.end_lineno - node.lineno + 1} lines"
        for path in FILES
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.FunctionDef) and node.end_lineno and node.end_lineno - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert not long, f"over {FUNCTION_LINES_MAX} lines: {long}"
