"""A plugin is asked VERSION by running it: whatever it does, the answer comes in time, is short, and nothing of it stays."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ipamd.host.plugin_versions import OUTPUT_BYTES_MAX, SHOWN_MAX, ask_versions
from ipamd.model.errors import PluginLackingError
from ipamd.model.failures import FailureCode
from tests.errors import failed
from tests.patience import PATIENCE_S

ANSWER = '{"cniVersion":"1.1.0","supportedVersions":["0.4.0","1.0.0"]}'


def plugin(folder: Path, script: str) -> Path:
    """A plugin that is a shell script."""
    path = folder / "portmap"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


def test_an_answer(tmp_path: Path) -> None:
    """It gets what libcni gives it, and its answer is returned in its order."""
    path = plugin(tmp_path, f"[ \"$CNI_COMMAND\" = VERSION ] && grep -q cniVersion && echo '{ANSWER}'")
    assert ask_versions(path) == ("0.4.0", "1.0.0")


def test_it_gets_no_secret_of_ours(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon's environment, which may carry credentials, is not the plugin's; nor are its descriptors."""
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "of-ours")
    seen = tmp_path / "seen"
    with (tmp_path / "open").open("w") as kept:
        os.set_inheritable(kept.fileno(), True)
        ask_versions(plugin(tmp_path, f"{{ env; ls -l /proc/self/fd; }} >{seen}; echo '{ANSWER}'"))
    text = seen.read_text()
    assert "CNI_COMMAND=VERSION" in text
    assert "of-ours" not in text
    assert str(tmp_path / "open") not in text


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("exit 3", "ended with 3 when asked VERSION, and said: nothing"),
        ("kill -9 $$", "ended with -9"),
        ('echo \'{"code":3,"msg":"missing containerID"}\'; exit 1', "missing containerID"),
        ("echo hello", "the answer is not JSON; it said: hello"),
        ("printf '\\033[2J\\377'", r"said: \x1b[2J"),
        (f"head -c {OUTPUT_BYTES_MAX} /dev/zero", r"said: \x00\x00"),
        (f"echo '{ANSWER}'; exit 1", "ended with 1"),
    ],
)
def test_a_bad_answer_is_told(tmp_path: Path, script: str, said: str) -> None:
    """With the file, what it answered, printable and short, and what to do."""
    path = plugin(tmp_path, script)
    with pytest.raises(PluginLackingError) as caught:
        ask_versions(path)
    assert str(path) in caught.value.message
    assert said in caught.value.message
    assert caught.value.message.isprintable()
    assert len(caught.value.message) < len(str(path)) + 10 * SHOWN_MAX
    assert "put a plugin there" in caught.value.details


@pytest.mark.parametrize("what", ["missing", "not executable", "a directory", "another machine's", "no interpreter"])
def test_what_cannot_be_run_is_told(tmp_path: Path, what: str) -> None:
    """Whatever exec says."""
    path = tmp_path / "portmap"
    match what:
        case "not executable":
            path.write_text("#!/bin/sh\n")
        case "a directory":
            path.mkdir()
        case "another machine's":
            path.write_bytes(b"\x7fELF\x02\x01\x01\x00nothing")
            path.chmod(0o755)
        case "no interpreter":
            path.write_text("#!/nowhere/sh\n")
            path.chmod(0o755)
    with pytest.raises(PluginLackingError, check=failed(FailureCode.PLUGIN_NOT_RUN)) as caught:
        ask_versions(path)
    assert ("interpreter" in str(caught.value)) == (what == "no interpreter"), "the file itself is there"


@pytest.mark.parametrize(
    "script",
    [
        "exec sleep 600",
        "exec yes",
        f"echo '{ANSWER}'; exec >&-; sleep 600",
        f"sleep 600 & echo '{ANSWER}'",
        "trap '' TERM INT HUP; while :; do sleep 600; done",
    ],
    ids=["silent", "never ends talking", "does not exit", "its child keeps the output", "ignores signals"],
)
def test_it_is_bounded_and_nothing_of_it_stays(tmp_path: Path, script: str) -> None:
    """Time and output have an end, and the whole process group is gone with it."""
    pid_file = tmp_path / "pid"
    path = plugin(tmp_path, f"echo $$ >{pid_file}\n{script}")
    began = time.monotonic()
    with pytest.raises(PluginLackingError, check=failed(FailureCode.PLUGIN_SILENT)):
        ask_versions(path, timeout_s=3.0)
    assert time.monotonic() - began < PATIENCE_S
    with pytest.raises(ProcessLookupError):
        _wait_gone(int(pid_file.read_text()))


def test_what_it_leaves_behind_ends_with_it(tmp_path: Path) -> None:
    """A good answer, and a process in the background that holds nothing of ours: it is ended too."""
    pid_file = tmp_path / "pid"
    path = plugin(tmp_path, f"sleep 600 >/dev/null </dev/null & echo $! >{pid_file}; echo '{ANSWER}'")
    assert ask_versions(path) == ("0.4.0", "1.0.0")
    with pytest.raises(ProcessLookupError):
        _wait_gone(int(pid_file.read_text()))


def _wait_gone(pid: int) -> None:
    """Look until no such process is alive. Raises: ProcessLookupError when it is so."""
    give_up = time.monotonic() + PATIENCE_S
    while time.monotonic() < give_up:
        try:
            os.kill(pid, 0)
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                raise ProcessLookupError  # ended; who adopted it has not reaped it yet
        except FileNotFoundError:
            raise ProcessLookupError from None
        time.sleep(0.02)
