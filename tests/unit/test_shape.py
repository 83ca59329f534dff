"""No function is longer than a screen, a class name exists once, no two modules import each other, and a file has one header.

Ruff counts a function's decisions (C901 in pyproject.toml). A file is as long as its one idea.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("ipamd", "cni_plugin", "kubectl_ipamd", "lab", "bench", "fuzz", "tools")
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


SHIPPED = [path for path in FILES if path.relative_to(ROOT).parts[0] in ("ipamd", "cni_plugin")]


def _module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, modules: set[str]) -> set[str]:
    """Modules of ours that a file imports anywhere, those for type checking only and those within functions included."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                full_name = f"{node.module}.{alias.name}"
                found.add(full_name if full_name in modules else node.module)
        elif isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
    return (found & modules) - {_module_name(path)}


def test_no_modules_import_each_other() -> None:
    """No circle, not even one that only a type checker sees."""
    modules = {_module_name(path) for path in SHIPPED}
    graph = {_module_name(path): _imports(path, modules) for path in SHIPPED}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"modules import each other: {error.args[1]}")


def test_a_class_name_exists_once() -> None:
    """Who greps for a class finds one."""
    places = defaultdict(list)
    for path in SHIPPED:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places[node.name].append(str(path.relative_to(ROOT)))
    assert {name: paths for name, paths in places.items() if len(paths) > 1} == {}


def test_a_file_has_one_header() -> None:
    """A comment of its own, with an empty line behind it, is the header of a second file that was pasted into the first."""
    pasted = []
    for path in SHIPPED:
        lines = path.read_text().splitlines()
        tree = ast.parse("\n".join(lines))
        starts = [node.lineno for node in tree.body if isinstance(node, ast.ClassDef | ast.FunctionDef)]
        first = min(starts, default=len(lines))
        for number in range(first, len(lines) - 1):
            if lines[number].startswith("#") and not lines[number + 1].strip():
                pasted.append(f"{path.relative_to(ROOT)}:{number + 1}")
    assert pasted == []
