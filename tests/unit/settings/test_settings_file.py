"""The settings file: lines, what wins, and what is wrong with it."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.settings import describe, load
from ipamd.settings.settings_file import SIZE_MAX, parse, read
from tests.errors import failed
from tests.patience import PATIENCE_S

TEXT = """\
# targets
WARM_IP_TARGET = 5

  MINIMUM_IP_TARGET=12\t
ADDITIONAL_ENI_TAGS={"a": "x=y # z", "b": "\\"q\\""}
"""


def made(folder: Path, text: str) -> dict[str, str]:
    """An environment that names a file with this text."""
    path = folder / "settings"
    path.write_text(text)
    return {"VPC_IPAMD_SETTINGS_FILE": str(path)}


def test_lines() -> None:
    """Comments and empty lines are skipped; a value goes to the end of its line and means itself."""
    found, problems = parse(TEXT, source="file")
    assert problems == []
    assert found == {
        "WARM_IP_TARGET": "5",
        "MINIMUM_IP_TARGET": "12",
        "ADDITIONAL_ENI_TAGS": '{"a": "x=y # z", "b": "\\"q\\""}',
    }


@pytest.mark.parametrize("line", ["WARM_IP_TARGET", "export A=1", "=1", "A B=1", "[pool]", "{", "é=1", "9=1", "A" * 200 + "=1"])
def test_wrong_lines(line: str) -> None:
    """Each is named with its number."""
    assert parse(f"\n{line}\n", source="file")[1] == ["file, line 2: must be NAME=VALUE, empty, or a comment that begins with #"]


def test_twice_and_elsewhere() -> None:
    """A name stands once; what only the environment can say is no line."""
    text = "A=1\nA=2\nVPC_IPAMD_SETTINGS_FILE=/x\n"
    text += "AWS_REGION=us-west-2\nVPC_IPAMD_FAILPOINT=x\nAWS_VPC_ENI_MTU=1500\nVPC_IPAMD_RUN_DIR=/x\n"
    found, problems = parse(text, source="file")
    assert found == {"A": "1", "AWS_VPC_ENI_MTU": "1500"}
    assert problems == [
        "file, line 2: A stands twice",
        *(
            f"file, line {number}: {name} can only be set in the environment"
            for number, name in enumerate(
                ("VPC_IPAMD_SETTINGS_FILE", "AWS_REGION", "VPC_IPAMD_FAILPOINT", "", "VPC_IPAMD_RUN_DIR"), 3
            )
            if name
        ),
    ]


def test_a_file_of_another_kind_is_told_shortly() -> None:
    """Twenty lines are named, the others counted."""
    problems = parse("<xml>\n" * 1000, source="file")[1]
    assert len(problems) == 21
    assert problems[-1] == "file: 980 more lines are wrong"


def test_the_file_wins_over_the_environment(tmp_path: Path) -> None:
    """A line wins, an empty one means the default, and origins are told."""
    environment = made(tmp_path, "WARM_IP_TARGET=5\nMAX_ENI=\n") | {
        "WARM_IP_TARGET": "2",
        "MAX_ENI": "3",
        "VPC_IPAMD_MAX_PODS": "9",
    }
    settings = load(environment)
    assert (settings.pool.warm_ip_target, settings.pool.max_eni, settings.pool.max_pods) == (5, 0, 9)
    origins = {line.env: line.origin for line in describe(settings, environment)}
    names = ("WARM_IP_TARGET", "MAX_ENI", "VPC_IPAMD_MAX_PODS", "WARM_ENI_TARGET")
    assert [origins[name] for name in names] == ["file", "default", "environment", "default"]


def test_origins_are_those_of_what_is_in_force(tmp_path: Path) -> None:
    """A file that changed and is not taken over, being wrong or waiting for a restart, is nobody's origin."""
    environment = made(tmp_path, "WARM_IP_TARGET=5\nMAX_ENI=2\n") | {"VPC_IPAMD_MAX_PODS": "9"}
    settings = load(environment)
    made(tmp_path, "WARM_IP_TARGET=lots\nVPC_IPAMD_CRI_SOCKET=off\nVPC_IPAMD_MAX_PODS=9\n")
    origins = {line.env: line.origin for line in describe(settings, environment)}
    names = ("WARM_IP_TARGET", "MAX_ENI", "VPC_IPAMD_CRI_SOCKET", "VPC_IPAMD_MAX_PODS")
    assert [origins[name] for name in names] == ["earlier file", "earlier file", "default", "file"]


def test_a_wrong_value_in_the_environment_may_be_hidden_by_the_file(tmp_path: Path) -> None:
    """What counts is what is in force."""
    assert load(made(tmp_path, "WARM_IP_TARGET=5\n") | {"WARM_IP_TARGET": "lots"}).pool.warm_ip_target == 5


def test_unknown_names_in_the_file(tmp_path: Path) -> None:
    """There is nothing but settings in it, so every other name is one problem."""
    with pytest.raises(SettingsError) as refusal:
        load(made(tmp_path, "FOO=1\nWARM_IP_TARGETS=3\nENABLE_IPv6=true\nENABLE_IPv4=true\n"))
    assert refusal.value.message == "wrong settings (3)"
    assert "WARM_IP_TARGETS: there is no such setting; did you mean WARM_IP_TARGET?" in refusal.value.details
    assert "FOO: there is no such setting; did you mean" in refusal.value.details


def test_a_large_file_of_another_kind_is_told_shortly_and_soon(tmp_path: Path) -> None:
    """The nearest name to each of 20,000 would take minutes, and fill status: twenty are named, the others counted."""
    environment = made(tmp_path, "".join(f"NAME_OF_ANOTHER_KIND_{number}=1\n" for number in range(20_000)))
    began = time.monotonic()
    with pytest.raises(SettingsError) as refusal:
        load(environment)
    assert time.monotonic() - began < PATIENCE_S
    assert refusal.value.details.count("there is no such setting") == 20
    assert "19980 more names in the file" in refusal.value.details
    assert len(refusal.value.details) < 5000


@pytest.mark.parametrize("kind", ["missing", "directory", "fifo", "no text", "too large", "too large and cut within a character"])
def test_files_that_cannot_be_read(tmp_path: Path, kind: str) -> None:
    """Named, without blocking: settings must not be guessed."""
    path = tmp_path / "settings"
    if kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "no text":
        path.write_bytes(b"A=\xff\n")
    elif kind == "too large":
        path.write_bytes(b"#" * (SIZE_MAX + 1))
    elif kind == "too large and cut within a character":
        path.write_text("#" * SIZE_MAX + "\u00fc")
    found, problems = read(str(path))
    assert found == {}
    assert len(problems) == 1
    assert problems[0].startswith(str(path))
    assert ("is larger than" in problems[0]) == kind.startswith("too large")
    with pytest.raises(SettingsError, check=failed(FailureCode.SETTINGS_WRONG, count=1)):
        load({"VPC_IPAMD_SETTINGS_FILE": str(path)})
