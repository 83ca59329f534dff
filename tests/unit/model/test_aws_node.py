"""The file of amazon-vpc-cni-k8s is read strictly and written as it reads it; whose a host veth is follows from who agrees."""

from __future__ import annotations

import json
from ipaddress import IPv4Address, IPv6Address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.attachment import pod_veth_name
from ipamd.model.aws_node import (
    ENTRIES_MAX,
    FILE_MAX_BYTES,
    Allocation,
    identify,
    parse_checkpoint,
    render_checkpoint,
)
from ipamd.model.errors import ForeignStateError
from ipamd.model.failures import FailureCode
from ipamd.model.family import IPV4, IPV6, Family
from ipamd.model.ids import ContainerId, parse_key
from ipamd.model.legs.aws_node_extra import egress_chain
from ipamd.model.sandbox import Sandbox, SandboxState
from tests.errors import failed

ADDRESS = IPv4Address("10.0.0.9")


def entry(**changes: Any) -> dict[str, Any]:
    """One entry as its daemon writes it; a field that is None is left out."""
    made = {
        "networkName": "aws-cni",
        "containerID": "c" * 64,
        "ifName": "eth0",
        "ipv4": str(ADDRESS),
        "allocationTimestamp": 1_700_000_000_000_000_000,
        "metadata": {"k8sPodNamespace": "default", "k8sPodName": "web", "interfacesCount": 1},
    } | changes
    return {name: value for name, value in made.items() if value is not None}


def document(*entries: Any, **changes: Any) -> bytes:
    """A file."""
    return json.dumps({"version": "vpc-cni-ipam/1", "allocations": list(entries)} | changes).encode()


def test_a_file_is_read_whole() -> None:
    """Every field that counts; what is not known is ignored, and what older releases leave out has a default."""
    bare = entry(containerID="d", ipv4="10.0.0.10", metadata=None, allocationTimestamp=None, future="x")
    six = entry(containerID="e", ipv4=None, ipv6="2001:DB8:0::5")
    first, second, third = parse_checkpoint(document(entry(), bare, six))
    assert first == Allocation(parse_key("c" * 64, "eth0"), ADDRESS, "default", "web", 1_700_000_000_000_000_000, 1)
    assert second == Allocation(parse_key("d", "eth0"), IPv4Address("10.0.0.10"))
    assert third.address == IPv6Address("2001:db8::5")
    assert parse_checkpoint(document(allocations=None)) == ()


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (b"", FailureCode.NODE_FILE_NO_JSON),
        (b"[" * 100_000, FailureCode.NODE_FILE_NO_JSON),
        (b"[]", FailureCode.NODE_FILE_VERSION),
        (document(version="vpc-cni-ipam/2"), FailureCode.NODE_FILE_VERSION),
        (document(allocations={}), FailureCode.NODE_FILE_NO_LIST),
        (document(allocations=[1] * (ENTRIES_MAX + 1)), FailureCode.NODE_FILE_NO_LIST),
        (document(7), FailureCode.ENTRY_NO_OBJECT),
        (document(entry(), entry(containerID="../x", ipv4="10.0.0.8")), FailureCode.ENTRY_KEY),
        (document(entry(containerID=None)), FailureCode.ENTRY_NAME),
        (document(entry(ifName="")), FailureCode.ENTRY_NAME),
        (document(entry(ifName="a/b")), FailureCode.ENTRY_KEY),
        (document(entry(ipv4="10.0.0.256")), FailureCode.ENTRY_ADDRESS),
        (document(entry(ipv4=None)), FailureCode.ENTRY_ADDRESSES),
        (document(entry(ipv4=None, ipv6="10.0.0.1")), FailureCode.ENTRY_ADDRESS),
        (document(entry(ipv4="fd00::1")), FailureCode.ENTRY_ADDRESS),
        (document(entry(ipv4=None, ipv6="fd00::1%eth0")), FailureCode.ENTRY_ADDRESS),
        (document(entry(ipv6="fd00::1")), FailureCode.ENTRY_ADDRESSES),
        (document(entry(metadata=[])), FailureCode.ENTRY_METADATA),
        (document(entry(metadata={"k8sPodName": "x" * 254})), FailureCode.ENTRY_NAME),
        (document(entry(allocationTimestamp=True)), FailureCode.ENTRY_NUMBER),
        (document(entry(allocationTimestamp=-1)), FailureCode.ENTRY_NUMBER),
        (document(entry(), entry(containerID="other")), FailureCode.ADDRESS_GIVEN_TWICE),
        (
            document(entry(ipv4=None, ipv6="fd00::a"), entry(ipv4=None, ipv6="FD00::A", containerID="x")),
            FailureCode.ADDRESS_GIVEN_TWICE,
        ),
        (b" " * (FILE_MAX_BYTES + 1), FailureCode.NODE_FILE_TOO_LARGE),
    ],
)
def test_what_is_not_its_format_is_refused_whole(raw: bytes, code: FailureCode) -> None:
    """A typed error that names the first thing that is wrong; nothing of the file is used."""
    with pytest.raises(ForeignStateError, check=failed(code)):
        parse_checkpoint(raw)


@given(
    st.binary(max_size=300)
    | st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: st.lists(x) | st.dictionaries(st.text(), x),
        max_leaves=10,
    ).map(lambda x: document(x))
)
def test_no_content_ends_in_another_error(raw: bytes) -> None:
    """Whatever the bytes are."""
    try:
        parse_checkpoint(raw)
    except ForeignStateError:
        return
    assert json.loads(raw)[FailureCode.NODE_FILE_VERSION] == "vpc-cni-ipam/1"


@pytest.mark.parametrize("address", [ADDRESS, IPv6Address("2001:db8::5")])
def test_what_is_written_is_read_again(address: IPv4Address | IPv6Address) -> None:
    """Its fields by its names; without a pod's name there is no name in the metadata: its daemon keeps such an entry unseen."""
    named = Allocation(parse_key("c" * 64, "eth0"), address, "default", "web", 5)
    bare = Allocation(parse_key("d", "eth0"), address + 1)
    raw = render_checkpoint([named, bare])
    assert parse_checkpoint(raw) == (named, bare)
    written = json.loads(raw)["allocations"]
    assert written[0] == entry(allocationTimestamp=5, **{"ipv4": None, f"ipv{address.version}": str(address)})
    assert "k8sPodName" not in written[1]["metadata"]


@pytest.mark.parametrize(
    ("container_id", "family", "chain"),
    [
        ("containerId-123", IPV4, "CNI-E4-5740307710ebfd5fb24f5"),
        ("e08d329840b3c6812bcd311d57b554ec89a6", IPV4, "CNI-E4-9d8149af0b5754bb7ab3c"),
        ("0" * 64, IPV6, "CNI-E6-a6c9a47d34158a572c7b7"),
    ],
)
def test_chains_for_egress_are_named_as_its_plugin_does(container_id: str, family: Family, chain: str) -> None:
    """By network and sandbox, in as many characters as iptables takes."""
    assert egress_chain("aws-cni", container_id, family=family) == chain


def sandbox(container_id: str, *, name: str = "web", state: SandboxState = SandboxState.READY) -> Sandbox:
    """One that the runtime lists."""
    return Sandbox(ContainerId(container_id), state, "default", name)


def told(container_id: str, *, address: IPv4Address = ADDRESS, name: str = "web", count: int = 1) -> Allocation:
    """One that its file has."""
    return Allocation(parse_key(container_id, "eth0"), address, "default" if name else "", name, interface_count=count)


VETH = pod_veth_name("default", "web", prefix="eni")


@pytest.mark.parametrize(
    ("allocations", "listed", "expected"),
    [
        ([told("a")], [sandbox("a")], "a"),
        ([told("a")], None, "a"),
        ([told("a", name="")], None, "a"),
        ([told("a")], [], "a"),  # nobody lists it: quarantined under its own name, and removed after an hour
        ([], [sandbox("b")], "b"),
        ([told("a")], [sandbox("b")], "b"),  # a recreated pod: the entry is that of its dead sandbox
        ([told("a", name="other")], [sandbox("b")], "b"),
        ([], [sandbox("b", state=SandboxState.NOTREADY), sandbox("c")], "c"),
        ([], [sandbox("b", state=SandboxState.NOTREADY)], "b"),
        ([], [sandbox("b"), sandbox("c")], "2 sandboxes"),
        ([], [sandbox("b", name="other")], "neither"),
        ([], None, "neither"),
        ([told("a", name="other")], None, "neither"),
        ([told("a", address=IPv4Address("10.0.0.8"))], None, "neither"),
        ([told("a", count=2)], [sandbox("a")], "2 interfaces"),
    ],
)
def test_who_agrees_names_the_sandbox(allocations: list[Allocation], listed: list[Sandbox] | None, expected: str) -> None:
    """The kernel's address decides which entry is meant, the runtime which sandbox lives."""
    by_id = None if listed is None else {one.container_id: one for one in listed}
    found = identify(VETH, ADDRESS, allocations=allocations, listed=by_id, prefix="eni")
    if isinstance(found, str):
        assert expected in found
    else:
        assert found[0] == parse_key(expected, "eth0")
