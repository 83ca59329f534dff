"""What a runtime or an earlier plugin sends as prevResult is judged before anything is committed (I5)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ipamd.model.attachment import Wired, WiringSpec
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.cni_versions import SUPPORTED_VERSIONS
from ipamd.model.cniresult import build_result, convert_result
from ipamd.model.errors import InvalidConfigError
from ipamd.model.failures import FailureCode
from ipamd.model.ids import MacAddress, parse_key
from ipamd.model.prev_result import require_valid
from tests.errors import failed
from tests.fakes.node import FakeNode
from tests.stories.in_process import CONF, ask

INVALID = {
    "an entry without an address": {"ips": [{"interface": 0}]},
    "an address that is a number": {"ips": [{"address": 5}]},
    "an address that is none": {"ips": [{"address": "ten.0.0.1/32"}]},
    "an address without a mask": {"ips": [{"address": "10.9.9.9"}]},
    "an interface without a name": {"interfaces": [{"mac": "02:00:00:00:00:01"}]},
    "a sandbox that is a number": {"interfaces": [{"name": "eth0", "sandbox": 1}]},
    "a route without a destination": {"routes": [{"gw": "169.254.1.1"}]},
    "a list that is none": {"ips": "none"},
    "dns that is a list": {"dns": []},
    "a number that JSON does not have": {"dns": {}, "extra": float("nan")},
    "a number that overflows": {"dns": {}, "extra": 1e999},
}


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node that serves ADD."""
    made = FakeNode(tmp_path)
    made.bring_up()
    made.wiring.make_netns("/run/netns/pod")
    yield made
    made.datastore.close()


def config(version: str, prev_result: dict[str, Any]) -> bytes:
    """A network configuration with a prevResult."""
    return json.dumps({**CONF, "cniVersion": version, "prevResult": prev_result}).encode().replace(b"Infinity", b"1e999")


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
@pytest.mark.parametrize("name", sorted(INVALID))
def test_an_add_that_is_refused_leaves_nothing(node: FakeNode, version: str, name: str) -> None:
    """Code 6 or 7, nothing attached, nothing wired, no address spent (I5)."""
    free = node.datastore.counts()
    reply = ask(node, "ADD", "pod", netns="/run/netns/pod", config=config(version, INVALID[name]))
    assert reply.error.code in (6, 7), reply.error
    assert node.datastore.attachments() == ()
    assert node.wiring.wired == {}
    assert node.datastore.counts() == free


@pytest.mark.parametrize("version", SUPPORTED_VERSIONS)
def test_what_is_valid_is_carried_on(node: FakeNode, version: str) -> None:
    """Entries of earlier plugins, IPv6 and fields that we do not know among them, are in the answer."""
    before = {
        "interfaces": [{"name": "dummy0", "mac": "02:00:00:00:00:01"}, {"name": "net1", "sandbox": "/run/netns/pod"}],
        "ips": [{"address": "fd00::5/64", "gateway": "fd00::1", "interface": 1}],
        "routes": [{"dst": "192.168.0.0/24"}],
        "dns": {"nameservers": ["10.0.0.2"]},
        "unknown": [1.5, None],
    }
    reply = ask(node, "ADD", "pod", netns="/run/netns/pod", config=config(version, before))
    result = json.loads(reply.result)
    assert result["ips"][0]["address"] == "fd00::5/64"
    assert len(result["ips"]) == 2
    assert result["dns"] == before["dns"]
    assert result["unknown"] == before["unknown"]


@pytest.mark.parametrize("name", sorted(INVALID))
def test_a_damaged_prev_result_does_not_stop_a_del(node: FakeNode, name: str) -> None:
    """DEL reads the identity only (I3)."""
    node.add("pod")
    assert not ask(node, "DEL", "pod", config=config("1.0.0", INVALID[name])).HasField("error")
    assert node.datastore.attachments() == ()


KEYS = st.sampled_from(["interfaces", "ips", "routes", "dns", "address", "dst", "name", "sandbox", "gw", "version", "x"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5)
    | st.sampled_from(["10.0.0.1/32", "fd00::1/64", "eth0", "/run/netns/pod"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)  # fmt: skip
SPEC = WiringSpec(parse_key("pod", "eth0"), IPv4Address("10.0.0.5"), 254, "eni1", "/run/netns/pod", 9001)
WIRED = Wired(MacAddress("02:00:00:00:00:01"), MacAddress("02:00:00:00:00:02"), NetnsIdentity(4, 5))


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_what_is_accepted_can_be_answered(prev_result: dict[str, Any]) -> None:
    """No prevResult passes the judge and fails later, in any version (I5)."""
    try:
        require_valid(prev_result)
    except InvalidConfigError:
        return
    stored = build_result(SPEC, WIRED, prev_result=prev_result)
    for version in SUPPORTED_VERSIONS:
        assert json.loads(convert_result(stored, version=version))["cniVersion"] == version


def test_deep_nesting_is_refused() -> None:
    """Copying and printing recurse: what is too deep is refused by name, not by a RecursionError."""
    deep: Any = {}
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(InvalidConfigError, check=failed(FailureCode.PREV_RESULT_NESTED)):
        require_valid({"extra": deep})
