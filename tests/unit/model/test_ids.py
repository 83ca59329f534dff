"""Identities from outside: what the CNI specification and the kernel accept, and nothing else."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ipamd.model.errors import InvalidRequestError
from ipamd.model.ids import CONTAINER_ID_MAX, parse_container_id, parse_ifname, parse_key

FIRST = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
CONTAINER_IDS = st.builds(str.__add__, st.sampled_from(FIRST), st.text(FIRST + "_.-", max_size=CONTAINER_ID_MAX - 1))


@given(CONTAINER_IDS)
def test_container_ids_are_kept(text: str) -> None:
    """A container ID of the specification's alphabet comes back unchanged: it is the key (docs/adr/0001)."""
    assert parse_container_id(text) == text


@pytest.mark.parametrize(
    "text", ["", "-a", ".a", "_a", "a/b", "a b", "a\n", "ä", "a\x00", "a" * (CONTAINER_ID_MAX + 1), "../x", "a%s b"]
)
def test_other_container_ids_are_refused(text: str) -> None:
    """Anything else is refused as an invalid request (CNI code 4), with the rule in the details."""
    with pytest.raises(InvalidRequestError) as refusal:
        parse_container_id(text)
    assert refusal.value.cni_code == 4
    assert "letter or digit" in refusal.value.details


def test_longest_container_id() -> None:
    """The longest ID is accepted whole; a message about a longer one does not repeat it whole."""
    assert len(parse_container_id("a" * CONTAINER_ID_MAX)) == CONTAINER_ID_MAX
    with pytest.raises(InvalidRequestError) as refusal:
        parse_container_id("a" * 100_000)
    assert len(refusal.value.message) < 200


@pytest.mark.parametrize("text", ["eth0", "net1", "a", "x" * 15, "eth0.100", "é" * 7, "veth-a_b"])
def test_interface_names(text: str) -> None:
    """A name that the kernel takes is kept."""
    assert parse_ifname(text) == text


@pytest.mark.parametrize("text", ["", ".", "..", "a/b", "a:b", "a b", "a\tb", "a\x00", "x" * 16, "é" * 8, "e%d"])
def test_other_interface_names_are_refused(text: str) -> None:
    """A name that the kernel would refuse is refused before anything is done; length counts bytes."""
    with pytest.raises(InvalidRequestError):
        parse_ifname(text)


@given(st.text(max_size=20))
def test_interface_names_never_crash(text: str) -> None:
    """Whatever the text, the answer is the text itself or an InvalidRequestError."""
    with contextlib.suppress(InvalidRequestError):
        assert parse_ifname(text) == text


@given(CONTAINER_IDS, CONTAINER_IDS)
def test_keys_are_the_whole_identity(one: str, other: str) -> None:
    """Keys are equal exactly if container ID and ifname are; the ID is never shortened (docs/adr/0001)."""
    key = parse_key(one, "eth0")
    assert (key == parse_key(other, "eth0")) == (one == other)
    assert key != parse_key(one, "eth1")
    assert str(key) == f"{one}/eth0"
