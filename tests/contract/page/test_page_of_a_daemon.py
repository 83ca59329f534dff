"""`ipamctl page` beside a real daemon: it shows what the daemon has, outlives its restart, and ends with Ctrl-C."""

from __future__ import annotations

import json
import signal
import sys
from typing import Any

import pytest

from lab.node.node import REPOSITORY
from tests.patience import PATIENCE_S
from tests.rig import Rig, rig, wait_until

pytestmark = pytest.mark.privileged


def ask(made: Rig, path: str) -> str:
    """What the page answers inside the node; the status of a refusal, 0 if nobody answers."""
    status, text = made.page(f"http://127.0.0.1:61676{path}")
    return text.strip() if status == 200 else str(status)


def test_a_daemon_shows_its_sandboxes() -> None:
    """Two pods, their addresses and their events are there; while the daemon is away the page says so."""
    with rig() as made:
        addresses = {made.add(name).address for name in ("a", "b")}
        program = [sys.executable, "-m", "ipamd.ipamctl.main", "page"]
        served = made.node.spawn(program, cwd=str(REPOSITORY))
        try:
            wait_until(lambda: ask(made, "/") != "0", what="the page is served")
            state: Any = json.loads(ask(made, "/state.json"))
            assert {one["address"] for one in state["attachments"]} == {str(address) for address in addresses}
            assert state["status"]["verdict"].startswith("ready")
            assert {"assigned"} <= {one["event"] for one in state["events"]}
            assert " - vpc-ipamd</title>" in ask(made, "/")
            assert made.driver.end(signal.SIGTERM, timeout_s=PATIENCE_S) == 0
            wait_until(lambda: ask(made, "/state.json") == "503", what="the daemon is away")
            made.start()
            wait_until(lambda: ask(made, "/state.json").startswith("{"), what="it is back")
            served.send_signal(signal.SIGINT)
            assert served.wait(PATIENCE_S) == 0
        finally:
            served.kill()
            served.wait()
        made.assert_sound(expected=2)
