"""SIGTERM at any instant: the daemon must hear it, whatever its main thread is doing."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

from ipamd import daemon
from ipamd.model.errors import SettingsError
from tests.patience import PATIENCE_S

ROUNDS = 20_000
STORM = f"""
import os, random, signal, sys, time
from ipamd.daemon import Signals

reader, writer = os.pipe()
parent = os.getpid()
signals = Signals()
if os.fork() == 0:
    os.close(writer)
    while os.read(reader, 1):  # one SIGTERM a round, at a random instant around the beginning of the wait
        at_ns = time.perf_counter_ns() + random.randrange(30_000)
        while time.perf_counter_ns() < at_ns:
            pass
        os.kill(parent, signal.SIGTERM)
    os._exit(0)
os.close(reader)
for _ in range({ROUNDS}):
    os.write(writer, b"x")
    assert signals.wait(reload=int) == "SIGTERM"
os.close(writer)
os.wait()
"""


def test_a_signal_during_the_wait_is_heard() -> None:
    """With an Event in place of the pipe the handler waits for the lock that the main thread holds, or nobody wakes the thread."""
    subprocess.run([sys.executable, "-c", STORM], check=True, timeout=PATIENCE_S)


def test_the_second_request_hurries_and_a_failure_is_both() -> None:
    """The first request drains, the second ends at once; a failure of our own counts as both and changes the exit status."""
    script = (
        "from ipamd.daemon import EXIT_FAILED, Signals\n"
        "import os, signal\n"
        "signals = Signals()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "assert signals.wait(reload=int) == 'SIGINT'\n"
        "assert not signals.wait_again(0.01)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "assert signals.wait_again(0.01)\n"
        "assert signals.exit_status == 0\n"
        "signals.fail('the datastore is gone')\n"
        "assert signals.wait(reload=int) == 'the datastore is gone'\n"
        "assert signals.wait_again(0.01)\n"
        "assert signals.exit_status == EXIT_FAILED\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=PATIENCE_S)


def test_sighup_before_the_settings_are_read_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The settings are read after it, so nothing is lost either."""
    seen: list[object] = []

    def load() -> None:
        seen.append(signal.getsignal(signal.SIGHUP))
        raise SettingsError("wrong")

    monkeypatch.setattr(daemon, "load", load)
    monkeypatch.setattr(sys, "argv", ["ipamd"])
    before = signal.getsignal(signal.SIGHUP)
    try:
        assert daemon.main() == daemon.EXIT_SETTINGS
    finally:
        signal.signal(signal.SIGHUP, before)
    assert seen == [signal.SIG_IGN]
    assert capsys.readouterr().err == "vpc-ipamd: wrong\n"


def test_sighup_is_no_request_to_end() -> None:
    """One that comes while the lock is awaited is answered as soon as the daemon serves, and every later one too."""
    code = (
        "from ipamd.daemon import Signals\n"
        "import os, signal\n"
        "signals, asked = Signals(), []\n"
        "os.kill(os.getpid(), signal.SIGHUP)\n"
        "assert not signals.wait_again(0.01)\n"
        "def reload():\n"
        "    asked.append(1)\n"
        "    os.kill(os.getpid(), signal.SIGHUP if len(asked) < 3 else signal.SIGTERM)\n"
        "assert signals.wait(reload=reload) == 'SIGTERM'\n"
        "assert len(asked) == 3\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)


def test_a_check_is_made_while_no_signal_comes() -> None:
    """It may be what ends the daemon."""
    code = (
        "from ipamd.daemon import Signals\n"
        "signals, checked = Signals(), []\n"
        "def check():\n"
        "    checked.append(1)\n"
        "    if len(checked) == 3:\n"
        "        signals.fail('a thread is stuck')\n"
        "assert signals.wait(reload=int, check=check, check_s=0.01) == 'a thread is stuck'\n"
        "assert len(checked) == 3\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=PATIENCE_S)
