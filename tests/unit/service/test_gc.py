"""GC frees what is gone everywhere and nothing that is wired, listed or younger than the list."""

from __future__ import annotations

import json

import pytest

from ipamd.model.errors import RuntimeUnreachableError
from tests.fakes.node import FakeNode
from tests.stories.in_process import CONF, ask


def collect(node: FakeNode, *valid: str) -> tuple[int, int]:
    """GC with a list of valid sandboxes; returns how many were freed and kept."""
    outcome = node.collect(*valid)
    return len(outcome.freed), len(outcome.kept)


def test_gc_frees_what_is_not_valid(node: FakeNode) -> None:
    """GC frees our attachments that the runtime does not count as valid and the kernel does not have any more."""
    gone = node.add("a")
    node.add("b")
    del node.wiring.netns[gone.netns], node.wiring.wired[gone.host_veth]
    node.clock.advance(301)
    assert collect(node, "b") == (1, 0)
    assert [a.key.container_id for a in node.datastore.attachments()] == ["b"]


def test_gc_keeps_what_the_runtime_still_lists(node: FakeNode) -> None:
    """A live sandbox's address is untouchable even for a GC that forgot it (I2)."""
    node.add("a")
    node.runtime.run("a")
    node.clock.advance(120)
    assert collect(node) == (0, 1)


def test_gc_does_not_judge_what_is_younger_than_its_list(node: FakeNode) -> None:
    """An ADD that ran while the runtime made its list is not in it, and is kept (I2)."""
    gone = node.add("a")
    del node.wiring.netns[gone.netns], node.wiring.wired[gone.host_veth]
    assert collect(node) == (0, 1)


@pytest.mark.parametrize(
    ("lists", "freed"),
    [
        ({"cni.dev/valid-attachments": ["b"]}, True),
        ({"cni.dev/attachments": ["b"]}, True),
        ({"cni.dev/attachments": ["a", "b"]}, False),
        ({"cni.dev/valid-attachments": ["b"], "cni.dev/attachments": ["b"]}, True),
        ({"cni.dev/valid-attachments": [], "cni.dev/attachments": ["a"]}, False),
        ({"cni.dev/valid-attachments": None, "cni.dev/attachments": ["b"]}, True),
        ({"cni.dev/valid-attachments": None, "cni.dev/attachments": ["a"]}, False),
        ({"cni.dev/valid-attachments": None}, True),
        ({"cni.dev/attachments": None}, True),
    ],
    ids=[
        "key of 1.1",
        "key of earlier texts",
        "it names a",
        "both",
        "they differ",
        "one is null",
        "null and a",
        "null",
        "old null",
    ],
)
def test_gc_reads_both_keys(node: FakeNode, lists: dict[str, list[str] | None], freed: bool) -> None:
    """Runtimes send either key or both; what one of them names is kept (I2). null is empty, as CRI-O says it of an empty node."""
    gone = node.add("a")
    del node.wiring.netns[gone.netns], node.wiring.wired[gone.host_veth]
    node.clock.advance(301)
    entries = {
        key: None if names is None else [{"containerID": name, "ifname": "eth0"} for name in names]
        for key, names in lists.items()
    }
    reply = ask(node, "GC", "", config=json.dumps({**CONF, "cniVersion": "1.1.0", **entries}).encode())
    assert not reply.HasField("error"), reply.error
    assert (node.datastore.attachments() == ()) == freed


@pytest.mark.parametrize("key", ["cni.dev/valid-attachments", "cni.dev/attachments"])
def test_gc_with_a_damaged_list_frees_nothing(node: FakeNode, key: str) -> None:
    """A list that cannot be read is no list (I11)."""
    gone = node.add("a")
    del node.wiring.netns[gone.netns], node.wiring.wired[gone.host_veth]
    node.clock.advance(301)
    for damaged in (3, "a", ["a"], [{"ifname": "eth0"}], {}):
        other = {"cni.dev/valid-attachments": [], key: damaged}
        assert ask(node, "GC", "", config=json.dumps({**CONF, "cniVersion": "1.1.0", **other}).encode()).HasField("error")
    assert len(node.datastore.attachments()) == 1


def test_gc_with_null_frees_nothing_that_is_wired(node: FakeNode) -> None:
    """It is a list like any other: a runtime that knows none of several wired sandboxes is not believed (I2, I11)."""
    node.add("a")
    node.add("b")
    node.clock.advance(301)
    config = json.dumps({**CONF, "cniVersion": "1.1.0", "cni.dev/valid-attachments": None}).encode()
    reply = ask(node, "GC", "", config=config)
    assert "implausible" in reply.error.message
    assert len(node.datastore.attachments()) == 2


def test_gc_without_a_list_frees_nothing(node: FakeNode) -> None:
    """An absent list is not an empty one (I11)."""
    assert ask(node, "GC", "", config=json.dumps({**CONF, "cniVersion": "1.1.0"}).encode()).error.code == 7


def test_gc_frees_nothing_while_the_runtime_is_silent(node: FakeNode) -> None:
    """CRI is on and does not answer: the list alone is no evidence, GC fails and says so (I11)."""
    node.add("a")
    node.clock.advance(120)
    node.runtime.is_down = True
    with pytest.raises(RuntimeUnreachableError):
        collect(node)
    assert len(node.datastore.attachments()) == 1
