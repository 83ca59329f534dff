"""What libraries log about input that they cannot read: a line with the cause, never a traceback for each."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from ipamd import logs


@pytest.fixture
def lines(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Log as the daemon does; read what was written."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    out = io.StringIO()
    monkeypatch.setattr("sys.stderr", out)
    logs.set_up("info")
    try:
        yield lambda: [json.loads(line) for line in out.getvalue().splitlines()]
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def fail(name: str) -> None:
    """Log an exception as libraries do."""
    try:
        raise ValueError("no protobuf")
    except ValueError:
        logging.getLogger(name).exception("Exception deserializing message!")


@pytest.mark.parametrize("name", ["grpc._common", "grpc._cython.cygrpc", "urllib3.connection"])
def test_unreadable_input_is_one_line(lines: Any, name: str) -> None:
    """Whoever sends damaged messages cannot fill the log with tracebacks; the cause stays readable."""
    fail(name)
    (line,) = lines()
    assert (line["level"], line["logger"]) == ("WARNING", name)
    assert line["message"] == "Exception deserializing message! ValueError: no protobuf"
    assert "exception" not in line


@pytest.mark.parametrize("name", ["grpc._server", "ipamd.rpc"])
def test_our_own_defects_keep_their_traceback(lines: Any, name: str) -> None:
    """What is a defect of ours is logged as an error with its traceback."""
    fail(name)
    (line,) = lines()
    assert line["level"] == "ERROR"
    assert "Traceback" in line["exception"]


def test_a_message_that_looks_like_json_is_a_message(lines: Any) -> None:
    """A line of `ipamd.rpc` that begins with what a caller sent, a brace, is logged as text."""
    logging.getLogger("ipamd.rpc").error("%s of %s met an unexpected error", "{", "a")
    logging.getLogger("ipamd.rpc").info('{"verb":"ADD"}')
    told, merged = lines()
    assert told["message"] == "{ of a met an unexpected error"
    assert merged["verb"] == "ADD"
