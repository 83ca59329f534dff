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


def test_a_message_of_ours_has_its_keys_as_fields(lines: Any) -> None:
    """Whatever a caller sent stays the value of its key; the line of a request is its dictionary; others' messages stay whole."""
    logging.getLogger("ipamd.rpc").error("an unexpected error verb=%s took_s=%.2f", '{"message":"%s"}', 1.234)
    logging.getLogger("ipamd.rpc").info("request", {"verb": "ADD", "code": 0})
    logging.getLogger("ipamd").info("exiting, 100 %")
    logging.getLogger("grpc").info("said x=%s and %s", 1, 2)
    told, request, plain, others = lines()
    assert (told["message"], told["verb"], told["took_s"]) == ("an unexpected error", '{"message":"%s"}', "1.23")
    assert (request["message"], request["verb"], request["code"]) == ("request", "ADD", 0)
    assert plain["message"] == "exiting, 100 %"
    assert (others["message"], "x" in others) == ("said x=1 and 2", False)
