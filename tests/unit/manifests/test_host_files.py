"""The drop-in files for a node's own network software: they name our links, and the page that explains them names the files."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from ipamd.model.kernel_numbers import LINK_PREFIX, STRICT_VETH_PREFIX
from ipamd.settings import NetworkConfig

ROOT = Path(__file__).parents[3]
HOST = ROOT / "manifests" / "host"
FILES = sorted(path.relative_to(HOST).as_posix() for path in HOST.rglob("*") if path.is_file())


def read(name: str) -> configparser.ConfigParser:
    """A file, as its reader takes it: keys are case sensitive."""
    parser = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # the documented way
    parser.read_string((HOST / name).read_text())
    return parser


@pytest.mark.parametrize("name", FILES)
def test_each_file_says_where_it_goes(name: str) -> None:
    """Its first line is its place on the node, under the same name, and it can be read."""
    first = (HOST / name).read_text().splitlines()[0]
    assert first.startswith("# /etc/")
    assert first.endswith("/" + Path(name).name)
    assert read(name).sections()


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_explained(name: str) -> None:
    """No file without its reason."""
    assert f"manifests/host/{name}" in (ROOT / "docs" / "host.md").read_text()


def test_they_match_our_links() -> None:
    """The default prefix, none but veths, and the links of branch ENIs."""
    pattern, of_branches = NetworkConfig().veth_prefix + "*", f"{STRICT_VETH_PREFIX}*"
    assert LINK_PREFIX.startswith(STRICT_VETH_PREFIX)
    link, network = read("networkd/10-vpc-ipamd.link"), read("networkd/10-vpc-ipamd-veth.network")
    assert (link["Match"]["OriginalName"], link["Match"]["Driver"]) == (f"{pattern} {of_branches}", "veth")
    assert link["Link"]["MACAddressPolicy"] == "none"
    assert (network["Match"]["Name"], network["Match"]["Kind"]) == (f"{pattern} {of_branches}", "veth vlan")
    unmanaged = read("NetworkManager/50-vpc-ipamd.conf")["keyfile"]["unmanaged-devices"]
    assert all(f"interface-name:{one};" in unmanaged for one in (pattern, of_branches))


def test_the_primary_eni_stays_managed() -> None:
    """Or the node would lose its own address: both files except it, by a word that nobody can overlook."""
    secondary = read("networkd/10-vpc-ipamd-secondary.network")
    assert secondary["Match"]["Property"] == "!INTERFACE=PRIMARY"
    assert read("NetworkManager/50-vpc-ipamd.conf")["keyfile"]["unmanaged-devices"].endswith(";except:interface-name:PRIMARY")


def test_networkd_leaves_foreign_routes() -> None:
    """Both switches: routes and rules."""
    assert dict(read("networkd/50-vpc-ipamd.conf")["Network"]) == {
        "ManageForeignRoutes": "no",
        "ManageForeignRoutingPolicyRules": "no",
    }
