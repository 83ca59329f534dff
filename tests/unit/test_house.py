"""What the house is made of, counted: each figure has a ceiling, which is what has been reached, and only goes down.

Size is counted in tokens, because formatting and comments do not change them. What is counted besides is memory outside the
datastore, and who keeps time: a feature belongs to a record, a row of a table, or a loop that is there already.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = [path for folder in ("ipamd", "cni_plugin") for path in sorted((ROOT / folder).rglob("*.py")) if "pb" not in path.parts]
DAEMON = [path for path in SHIPPED if path.is_relative_to(ROOT / "ipamd")]
ROOMS_OF_EC2 = [path for path in DAEMON if path.relative_to(ROOT / "ipamd").parts[0] in ("eni", "pool", "host")]

LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
STRING_TOKEN_CHARACTERS = 60
"""A string is one token, and one more for each so many characters: a table in a text is no smaller than one in code."""

STORE = re.compile(
    r"self\._?\w+: (?:dict|set|frozenset|Counter|OrderedDict)\[(?:EniId|MacAddress|IPv4Address|IpAddress|Place|CloudKey)\b"
)
PRIMITIVE = re.compile(r"\bthreading\.(?:R?Lock|Event|Condition|(?:Bounded)?Semaphore)\(")
THREAD = re.compile(r"\bthreading\.(?:Thread|Timer)\(|\bLoop\(")
"""Where one is made; the class `Loop`, which makes a thread for each of its own, is not one itself, nor is a pool of requests."""
SCHEDULE = re.compile(r"^\w*FIRST_S\b.* = |\bSchedule\(", re.M)
SETTER = re.compile(r"def use_\w+\(")

POOLS = 1
"""Of requests, which make their own threads: `ipamd/rpc/server.py`."""

CEILINGS = {
    "code tokens of ipamd and cni_plugin": 283_000,
    "files of ipamd": 188,
    "maps and sets of ENIs, places and addresses outside the datastore": 1,
    "mutable fields of the classes in eni, pool and host": 47,
    "locks, events, conditions and semaphores": 34,
    "threads beside main": 15,
    "doubling schedules": 6,
    "setters in the composition": 0,
}


@pytest.mark.parametrize("what", CEILINGS)
def test_the_house_does_not_grow(what: str) -> None:
    """No figure is above what was reached; one that is lower becomes the ceiling."""
    found = FIGURES[what]()
    assert found <= CEILINGS[what], f"{what}: {found}, the ceiling is {CEILINGS[what]}"


def _tokens(path: Path) -> int:
    source = path.read_text()
    docstrings = {
        (node.value.lineno, node.value.col_offset)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
    }
    tokens = [one for one in tokenize.generate_tokens(io.StringIO(source).readline) if one.type not in LAYOUT]
    strings = [one for one in tokens if one.type == tokenize.STRING]
    return (
        len(tokens)
        - sum(one.start in docstrings for one in strings)
        + sum(len(one.string) // STRING_TOKEN_CHARACTERS for one in strings if one.start not in docstrings)
    )


def _matches(pattern: re.Pattern[str], paths: list[Path]) -> int:
    return sum(len(pattern.findall(path.read_text())) for path in paths)


def _mutable_fields(path: Path) -> Iterator[str]:
    """Fields that a class assigns again after its constructor, or makes as a plain value or an empty container."""
    for cls in (node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef)):
        methods = [node for node in cls.body if isinstance(node, ast.FunctionDef)]
        for method in methods:
            if not any(one.name == "__init__" for one in methods):
                continue
            for node in ast.walk(method):
                if isinstance(node, ast.Assign | ast.AugAssign | ast.AnnAssign):
                    value = node.value
                    is_state = isinstance(value, ast.Constant | ast.Dict | ast.Set | ast.List | ast.Tuple) or (
                        isinstance(value, ast.Call)
                        and ast.unparse(value.func)
                        in ("set", "dict", "list", "deque", "Counter", "frozenset", "threading.Event", "float")
                    )
                    if method.name != "__init__" or is_state:
                        yield from (f"{cls.name}.{name}" for name in _fields(node))


def _fields(node: ast.Assign | ast.AugAssign | ast.AnnAssign) -> Iterator[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for one in [one for each in targets for one in (each.elts if isinstance(each, ast.Tuple) else [each])]:
        inner = one.value if isinstance(one, ast.Subscript) else one
        if isinstance(inner, ast.Attribute) and isinstance(inner.value, ast.Name) and inner.value.id == "self":
            yield inner.attr


FIGURES = {
    "code tokens of ipamd and cni_plugin": lambda: sum(map(_tokens, SHIPPED)),
    "files of ipamd": lambda: len(DAEMON),
    "maps and sets of ENIs, places and addresses outside the datastore": lambda: _matches(STORE, ROOMS_OF_EC2),
    "mutable fields of the classes in eni, pool and host": lambda: sum(len(set(_mutable_fields(path))) for path in ROOMS_OF_EC2),
    "locks, events, conditions and semaphores": lambda: _matches(PRIMITIVE, DAEMON),
    "threads beside main": lambda: _matches(THREAD, [path for path in DAEMON if path.name != "loop.py"]) - POOLS,
    "doubling schedules": lambda: _matches(SCHEDULE, DAEMON),
    "setters in the composition": lambda: _matches(SETTER, DAEMON),
}
