"""Custom networking's file at the start: read if it is asked for, and an error that says what to do if it cannot be."""

from __future__ import annotations

import json
import os
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.model.errors import SettingsError
from ipamd.model.failures import FailureCode
from ipamd.model.network_file import NetworkFile
from ipamd.model.pinned_address import LIST_MAX
from ipamd.model.pod_pools import NO_POOLS
from ipamd.process.adapters import load_network as load
from ipamd.settings import SubnetsConfig
from ipamd.settings.settings_file import SIZE_MAX
from tests.errors import failed

GOOD = '{"zones": {"us-west-2a": {"subnet": "subnet-0a"}}}'


def config(path: Path) -> SubnetsConfig:
    """Custom networking with the file at this path."""
    return SubnetsConfig(custom_networking=True, network_file=path)


def test_without_custom_networking_nothing_is_read(tmp_path: Path) -> None:
    """The file need not be there, and may be wrong."""
    assert load(SubnetsConfig(network_file=tmp_path / "none")) == NetworkFile()


def test_a_good_file_is_read(tmp_path: Path) -> None:
    """With its zones."""
    (tmp_path / "network.json").write_text(GOOD)
    network = load(config(tmp_path / "network.json")).custom
    assert network is not None
    assert network.zones["us-west-2a"].subnet_id == "subnet-0a"


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (None, FailureCode.NETWORK_FILE_UNREADABLE),
        (b"\xff\xfe", FailureCode.NETWORK_FILE_UNREADABLE),
        (b" " * (SIZE_MAX + 1), FailureCode.FILE_TOO_LARGE),
        (b" " * SIZE_MAX + "\u00fc".encode(), FailureCode.FILE_TOO_LARGE),
        (b"{}", FailureCode.NETWORK_FILE_WRONG),
    ],
    ids=["missing", "no text", "too large", "too large and cut within a character", "wrong"],
)
def test_a_bad_file_is_an_error_of_settings(tmp_path: Path, content: bytes | None, code: FailureCode) -> None:
    """The daemon does not start with a guess about subnets."""
    path = tmp_path / "network.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(SettingsError, check=failed(code)):
        load(config(path))


def test_pools_that_no_setting_chooses_do_nothing(tmp_path: Path) -> None:
    """Custom networking uses the same file: no ENI is made for them, and none is reserved. What is wrong in them is still named."""
    path = tmp_path / "network.json"
    file: dict[str, object] = {
        "zones": {"us-west-2a": {"subnet": "subnet-0b"}},
        "pools": {"cards": {"subnets": ["subnet-0a"], "warmIpTarget": 9}},
    }
    path.write_text(json.dumps(file))
    network = load(SubnetsConfig(custom_networking=True, network_file=path))
    assert (network.custom is None, network.pools) == (False, NO_POOLS)
    path.write_text(json.dumps(file | {"pools": {"cards": {}}}))
    with pytest.raises(SettingsError):
        load(SubnetsConfig(custom_networking=True, network_file=path))


def test_pools_are_read_without_custom_networking(tmp_path: Path) -> None:
    """The zones of the file have no effect then; a pool that only a setting names is a fault."""
    path = tmp_path / "network.json"
    pools = {"cards": {"subnets": ["subnet-0a"]}}
    path.write_text(json.dumps({"zones": {"us-west-2a": {"subnet": "subnet-0b"}}, "pools": pools}))
    network = load(SubnetsConfig(network_file=path, pod_pools=("web=cards",)))
    assert (network.custom, network.pools.names) == (None, ("", "cards"))
    for settings in ({"pod_pools": ("web=batch",)}, {"pool_annotations": ("web=cards", "web=batch")}):
        with pytest.raises(SettingsError, check=failed(FailureCode.NETWORK_FILE_WRONG, count="1 problem")):
            load(SubnetsConfig(network_file=path, **settings))  # type: ignore[arg-type]


LISTED = {"db/db-0": "10.0.12.5", "db/db-1": "10.0.12.6"}


def test_a_list_of_addresses_is_read_if_it_is_on(tmp_path: Path) -> None:
    """Alone, or beside pools and zones; without the setting it has no effect."""
    path = tmp_path / "network.json"
    path.write_text(json.dumps({"addresses": LISTED}))
    network = load(SubnetsConfig(network_file=path, pinned_list=True))
    assert (network.custom, network.pools) == (None, NO_POOLS)
    assert network.addresses == {"db/db-0": IPv4Address("10.0.12.5"), "db/db-1": IPv4Address("10.0.12.6")}
    path.write_text(json.dumps({"addresses": LISTED, "pools": {"cards": {"subnets": ["subnet-0a"]}}}))
    assert load(SubnetsConfig(network_file=path, pod_pools=("web=cards",))).addresses == {}


@pytest.mark.parametrize(
    ("entries", "count"),
    [
        ({"db-0": "10.0.12.5"}, "1 problem"),
        ({"db/db-0": "10.0.12.5/32", "db/db-1": 5, "db/db-2": "fd00::1"}, "3 problems"),
        ({"db/db-0": "10.0.12.5", "db/db-1": "10.0.12.5"}, "1 problem"),
        ({"DB/db-0": "10.0.12.5"}, "1 problem"),
        ({f"db/db-{number}": "10.0.12.5" for number in range(LIST_MAX + 1)}, "1 problem"),
        (None, "1 problem"),
    ],
    ids=["no namespace", "no IPv4 address", "one address twice", "no name of a namespace", "too many", "missing"],
)
def test_a_bad_list_of_addresses_is_an_error_of_settings(tmp_path: Path, entries: object, count: str) -> None:
    """Every fault is counted, also while the list is off."""
    path = tmp_path / "network.json"
    path.write_text(json.dumps({} if entries is None else {"addresses": entries}))
    with pytest.raises(SettingsError, check=failed(FailureCode.NETWORK_FILE_WRONG, count=count)):
        load(SubnetsConfig(network_file=path, pinned_list=True))


def test_a_fifo_does_not_hold_up_the_start(tmp_path: Path) -> None:
    """Nobody may ever write into it."""
    os.mkfifo(tmp_path / "network.json")
    with pytest.raises(SettingsError, check=failed(FailureCode.NETWORK_FILE_UNREADABLE)):
        load(config(tmp_path / "network.json"))
