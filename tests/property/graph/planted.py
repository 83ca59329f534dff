"""Bugs that the judge has to find. `test_judge.py` says within how many seeds."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest

from ipamd.datastore.memory_state import MemoryState
from ipamd.model import cloud_evidence
from ipamd.model.legs.branch_requirement import AttachMode, Decision
from ipamd.model.pod_facts import GroupRequirement, PodFacts
from ipamd.sandbox.legs import branch as hook
from tests.property.graph.node import GraphNode


def without_intents(monkeypatch: pytest.MonkeyPatch) -> None:
    """A creation is not on disk before EC2 is asked (I9): what is open at a kill is gone. Nor is anything searched for later."""
    crash_now = GraphNode.crash_now

    def forgetful(node: GraphNode, why: str) -> None:
        crash_now(node, why)
        path: Path = node.run_dir / "state.db"
        if path.exists():
            with sqlite3.connect(path) as database:
                database.execute("DELETE FROM intent")
            database.close()

    monkeypatch.setattr(GraphNode, "crash_now", forgetful)
    monkeypatch.setattr(GraphNode, "looks_for_leaks", False)


def one_look_is_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    """What one Describe does not show is gone (I11)."""
    monkeypatch.setattr(cloud_evidence, "MIN_LOOK_COUNT", 1)


def without_cooldown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A released address is given again at once (I8)."""
    monkeypatch.setattr(GraphNode, "cooldown_s", 0)


def silence_means_no(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pod of which nobody tells anything is an ordinary one (I19)."""
    choose = hook.choose_attach_mode
    ordinary = Decision(AttachMode.POOL, "nobody tells")

    def choose_wrongly(facts: PodFacts) -> Decision:
        return ordinary if facts.requirement is GroupRequirement.UNKNOWN else choose(facts)

    monkeypatch.setattr(hook, "choose_attach_mode", choose_wrongly)


def nothing_is_owed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent is told of no end before the next beginning (I21)."""
    monkeypatch.setattr("ipamd.policy.hook._pods_of", lambda _attachments: frozenset())
    monkeypatch.setattr(MemoryState, "policy_pods", lambda _state: {})


WITH_BRANCHES = ("I19", "I21")
"""What only a node with branch ENIs and a policy agent shows."""

PLANTED: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "I9": without_intents,
    "I11": one_look_is_proof,
    "I8": without_cooldown,
    "I19": silence_means_no,
    "I21": nothing_is_owed,
}
