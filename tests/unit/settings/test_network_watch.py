"""A mounted file of custom networking that changed under a running daemon is reported, and nothing is applied."""

from __future__ import annotations

from pathlib import Path

import pytest

from ipamd.core.health import Health
from ipamd.model.conditions import ConditionCode
from ipamd.model.network_file import NetworkFile
from ipamd.process.adapters import load_network
from ipamd.process.network_watch import NETWORK_FILE, NetworkFileWatch
from ipamd.report.verdict import ADVICE
from ipamd.settings import SubnetsConfig
from tests.conditions import codes
from tests.fakes.clock import FakeClock

FIRST = '{"zones": {"us-west-2a": {"subnet": "subnet-0a"}}}'


@pytest.fixture
def watched(tmp_path: Path) -> tuple[Path, NetworkFileWatch, Health]:
    """A file that a start has read, and what watches it."""
    path = tmp_path / "network.json"
    path.write_text(FIRST)
    config, health = SubnetsConfig(custom_networking=True, network_file=path), Health(FakeClock(), ())
    return path, NetworkFileWatch(config, in_force=load_network(config), health=health), health


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (FIRST.replace("0a", "0b"), ConditionCode.NETWORK_FILE_DIFFERS),
        (FIRST.replace("}}}", '}}, "primaryEniCarriesPods": true}'), ConditionCode.NETWORK_FILE_DIFFERS),
        ("{}", ConditionCode.NETWORK_FILE_REFUSED),
        (None, ConditionCode.NETWORK_FILE_REFUSED),
    ],
    ids=["other subnet", "primary ENI", "wrong", "gone"],
)
def test_a_difference_is_a_condition_until_it_is_over(
    watched: tuple[Path, NetworkFileWatch, Health], text: str | None, code: ConditionCode
) -> None:
    """The former content ends it; other white space is no difference."""
    path, watch, health = watched
    watch.check()
    assert codes(health, NETWORK_FILE) == set()
    if text is None:
        path.unlink()
    else:
        path.write_text(text)
    watch.check()
    assert codes(health, NETWORK_FILE) == {code}
    assert NETWORK_FILE in ADVICE
    path.write_text(FIRST + "\n")
    watch.check()
    assert codes(health, NETWORK_FILE) == set()


def test_without_custom_networking_no_file_is_read(tmp_path: Path) -> None:
    """It may be there, and be wrong."""
    (tmp_path / "network.json").write_text("{}")
    health = Health(FakeClock(), ())
    NetworkFileWatch(SubnetsConfig(network_file=tmp_path / "network.json"), in_force=NetworkFile(), health=health).check()
    assert codes(health, NETWORK_FILE) == set()
