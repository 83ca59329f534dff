"""aws-network-policy-agent #588 (2026, open): the pod of a stateful set is left without its filter when it is replaced.

The agent remembers pods by name. Told that a name is gone after it had filtered the next sandbox of that name, it drops the programs
and maps of the sandbox that lives, and will not attach them again. Not told of the end at all, it answers the next sandbox with
success and attaches nothing: amazon-vpc-cni-k8s tells it in each DEL, whatever has the name by then, and its DEL tells nobody when the
agent is away.

What prevents it here: a row says which names the agent may know, and what is to be told follows from rows and attachments: nothing
while a sandbox has the name, and that it is gone before a filter is asked for anew (`ipamd/policy/hook.py`; I21).

Bound: 0 s: no sandbox whose ADD was answered is ever without its filter.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.model.ids import PodName
from ipamd.model.sandbox import SandboxState
from ipamd.settings import NetworkConfig
from tests.fakes.node import FakeNode
from tests.stories.branches import add
from tests.stories.mutations import Mutate

WEB = PodName("default", "web-0")


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node with a policy agent."""
    made = FakeNode(tmp_path, network=NetworkConfig(pod_veth_names=True), policy_mode="strict")
    made.bring_up()
    yield made
    made.datastore.close()


def add_next(node: FakeNode, sandbox: str) -> None:
    """A sandbox of the pod; the runtime says of the one before that it is not ready."""
    node.runtime.listed = {one: replace(found, state=SandboxState.NOTREADY) for one, found in node.runtime.listed.items()}
    add(node, sandbox, pod="web-0")


def settle(node: FakeNode) -> None:
    """A turn of maintenance."""
    assert node.app.policy is not None
    node.app.policy.clean_up()


def replaced(node: FakeNode) -> None:
    """The pod has its next sandbox before the DEL of the last one comes."""
    add_next(node, "old")
    add_next(node, "new")
    node.delete("old")
    settle(node)
    assert node.policy_agent.unfiltered == [], "it runs without a filter"
    assert WEB in node.policy_agent.known, "no policy reaches it any more"


def untold(node: FakeNode) -> None:
    """The agent is away when the pod's sandbox goes, and back when the next one comes."""
    add_next(node, "old")
    node.policy_agent.is_silent = True
    node.delete("old")
    settle(node)
    node.policy_agent.is_silent = False
    add_next(node, "new")
    assert node.policy_agent.unfiltered == [], "it runs without a filter"


@pytest.mark.parametrize("play", [replaced, untold])
def test_the_next_sandbox_has_its_filter(node: FakeNode, play: object) -> None:
    """In both orders."""
    play(node)  # type: ignore[operator]


def test_it_is_lost_where_every_del_is_told(node: FakeNode, mutate: Mutate) -> None:
    """As amazon-vpc-cni-k8s does it: the name that has a newer sandbox is told as gone."""
    mutate("every-del-reported")
    with pytest.raises(AssertionError, match="no policy reaches it"):
        replaced(node)


def test_it_is_lost_where_nothing_is_owed(node: FakeNode, mutate: Mutate) -> None:
    """A DEL that was not told leaves nothing behind, and the next ADD asks for a filter alone."""
    mutate("no-pending-cleanups")
    with pytest.raises(AssertionError, match="without a filter"):
        untold(node)
