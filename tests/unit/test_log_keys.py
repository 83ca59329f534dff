"""Every value in a line of our log has its key, so that an operator can filter by it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from ipamd.logs import KEYS

IPAMD = Path(__file__).resolve().parents[2] / "ipamd"
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
FIELDS = {"at", "level", "logger", "message", "exception"}
"""What each line has already."""


OF_ONE_DICTIONARY = {"request", "address assigned", "address released"}


def calls(source: str) -> Iterator[ast.Call]:
    """Calls of the module's logger."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id="log" | "_log"), attr=attr)) if attr in {*LEVELS, "log"}:
                yield node


def fault(call: ast.Call) -> str:
    """Why a line of this call could not be filtered; empty: it can."""
    assert isinstance(call.func, ast.Attribute)
    message, *values = call.args[1:] if call.func.attr == "log" else call.args
    if not (isinstance(message, ast.Constant) and isinstance(message.value, str)):
        return "its message is no literal"
    keys = [key for key, _ in KEYS.findall(message.value)]
    if "%" in KEYS.sub("", message.value):
        return "a value has no key"
    if message.value in OF_ONE_DICTIONARY:
        return "" if len(values) == 1 else "its one value is a dictionary"
    if len(keys) != len(values):
        return f"{len(keys)} keys and {len(values)} values"
    return "" if len({*keys, *FIELDS}) == len(keys) + len(FIELDS) else "a key is there twice"


def test_every_value_of_a_log_line_has_its_key() -> None:
    """In each module, whose logger has one of two names."""
    sources = {path: path.read_text() for path in IPAMD.rglob("*.py") if "pb" not in path.parts}
    found = {
        f"{path.relative_to(IPAMD)}:{call.lineno}": fault(call) for path, source in sources.items() for call in calls(source)
    }
    assert len(found) > 100
    assert {place: why for place, why in found.items() if why} == {}
    for path, source in sources.items():
        named = [line for line in source.splitlines() if "= logging.getLogger(" in line]
        assert all(line.startswith(("log = ", "_log = ")) for line in named), path


def test_a_value_without_a_key_is_found() -> None:
    """What the test above looks for."""
    faults = {
        'log.info("released eni=%s", eni)': "",
        'log.info("released %s", eni)': "a value has no key",
        'log.log(level, "released eni=%s: %s", eni, error)': "a value has no key",
        'log.error(f"released {eni}")': "its message is no literal",
        'log.info("released eni=%s")': "1 keys and 0 values",
        'log.info("released level=%s", eni)': "a key is there twice",
    }
    assert {source: fault(next(calls(source))) for source in faults} == faults
