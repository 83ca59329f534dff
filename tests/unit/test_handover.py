"""When the node changes hands: who may give addresses, whose conflist is found, when chains may go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from ipamd.handover import CONDITION, Handover
from ipamd.model.errors import NotServingError, SettingsError, TakeoverError
from ipamd.model.kernel import NODE, RoutingDifference
from ipamd.service.reconcile.export import ExportService
from tests.fakes.aws_node import OURS, SAVED, THEIRS, FakeAwsNode
from tests.fakes.node import FakeNode


class Hands:
    """A handover over a node of fakes; `ended` has the reasons for which the process was to end."""

    def __init__(self, path: Path, *, is_overtaken: bool = False, backend: object = None) -> None:
        self.node = FakeNode(path)
        self.theirs = FakeAwsNode()
        self.stopped = threading.Event()
        self.ended: list[str] = []
        app = self.node.app
        export = ExportService(app.context, cooldown=app.cooldown, aws_node=self.theirs, prefix="eni")
        app = replace(
            app,
            adapters=replace(app.adapters, aws_node=self.theirs, is_overtaken=is_overtaken),
            reconcile=replace(app.reconcile, export=export),
            cni_backend=backend,  # type: ignore[arg-type]  # what is called of it
        )
        self.handover = Handover(app, stopped=self.stopped, quiesce=lambda: None, end=self.ended.append)


@pytest.fixture
def hands(tmp_path: Path) -> Hands:
    """Nobody else is there."""
    return Hands(tmp_path)


def leave_after_a_look(hands: Hands, monkeypatch: pytest.MonkeyPatch, then: Callable[[], None]) -> list[str]:
    """Between two looks something happens; returns the conditions as they were."""
    seen: list[str] = []

    def wait(_timeout_s: float) -> bool:
        seen.extend(hands.node.health.conditions())
        with pytest.raises(NotServingError, match="remove its DaemonSet aws-node"):  # a refused pod's event says so too (I14)
            hands.node.health.require_add_service()
        then()
        return hands.stopped.is_set()

    monkeypatch.setattr(hands.stopped, "wait", wait)
    return seen


def test_a_start_waits_until_the_other_is_away(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """The condition names the listener and what to remove, and ends with it."""
    hands.theirs.listens = "/run/its.sock"
    seen = leave_after_a_look(hands, monkeypatch, lambda: setattr(hands.theirs, "listens", ""))
    assert hands.handover.begin()
    assert len(seen) == 1
    assert "/run/its.sock: remove its DaemonSet aws-node" in seen[0]
    assert CONDITION not in hands.node.health.conditions_by_subject()


def test_a_stop_ends_the_wait(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM while it waits."""
    hands.theirs.listens = "/run/its.sock"
    leave_after_a_look(hands, monkeypatch, hands.stopped.set)
    with pytest.raises(NotServingError):
        hands.handover.begin()


def test_rows_that_were_opened_before_it_wrote_are_not_used(tmp_path: Path) -> None:
    """It was there while our file was opened, and wrote: the process ends, and the next one sets the rows aside (I1)."""
    hands = Hands(tmp_path)
    hands.theirs.tell()
    assert not hands.handover.begin()
    assert "made anew" in hands.ended[0]
    (tmp_path / "next").mkdir()
    later = Hands(tmp_path / "next", is_overtaken=True)
    later.theirs.tell()
    assert later.handover.begin(), "they were set aside already"
    assert later.ended == []


def test_an_exported_node_is_not_served(hands: Hands) -> None:
    """A restart changes nothing: ADD is refused, the conflist is left alone."""
    hands.theirs.begin_export()
    hands.theirs.conflists = {THEIRS}
    assert not hands.handover.begin()
    with pytest.raises(NotServingError, match="export --undo"):
        hands.node.health.require_add_service()
    assert (hands.handover.take_conflist(), hands.theirs.conflists) == ("", {THEIRS})


def test_its_conflist_is_taken_only_from_one_that_is_away(hands: Hands) -> None:
    """To take it from a daemon that serves would be a fight."""
    hands.theirs.conflists = {THEIRS, OURS}
    hands.theirs.listens = "127.0.0.1:50051"
    with pytest.raises(TakeoverError, match="has come back"):
        hands.handover.take_conflist()
    assert hands.theirs.conflists == {THEIRS, OURS}
    hands.theirs.listens = ""
    assert hands.handover.take_conflist()
    assert hands.theirs.conflists == {SAVED, OURS}
    assert hands.handover.take_conflist() == ""


def test_what_it_gave_while_we_served_is_taken_over_by_the_next_start(hands: Hands) -> None:
    """Both were on the node, and it has gone: our rows call free what its pods have, and every ADD that gets such an address fails."""
    hands.theirs.conflists = {THEIRS, OURS}
    hands.theirs.listens = "/run/its.sock"
    with pytest.raises(TakeoverError, match="remove its DaemonSet"):
        hands.handover.take_conflist()
    hands.theirs.tell()
    hands.theirs.listens = ""
    assert hands.handover.take_conflist() == ""
    assert "made anew" in hands.ended[0]
    hands.theirs.settle()  # as the next start does
    assert hands.handover.take_conflist()


def test_a_conflist_that_an_export_brings_back_is_not_taken(hands: Hands) -> None:
    """The keeper looks for the other's daemon, which takes up to seconds; an export that begins meanwhile wins."""
    hands.theirs.conflists = {THEIRS, OURS}
    hands.theirs.listener = lambda: (hands.theirs.begin_export(), "")[1]  # type: ignore[method-assign]
    assert hands.handover.take_conflist() == ""
    assert hands.theirs.conflists == {THEIRS, OURS}


def test_chains_go_once_ours_are_in_place(hands: Hands) -> None:
    """Not before the node is known, not while it is there, not while our table differs; again after it came back."""
    kernel = hands.node.hostnet
    kernel.left_chains = "AWS-SNAT-CHAIN-0"
    assert hands.handover.tidy() == "", "the node is not known yet"
    hands.node.node_info.learn_identity()
    hands.theirs.listens = "/run/its.sock"
    assert hands.handover.tidy() == ""
    hands.theirs.listens = ""
    kernel.node_differences = [RoutingDifference(NODE, "nftables table was missing")]
    assert hands.handover.tidy() == ""
    kernel.node_differences = [RoutingDifference(NODE, "chain AWS-SNAT-CHAIN-0 ...", is_repaired=False)]
    assert hands.handover.tidy() == "AWS-SNAT-CHAIN-0"
    kernel.left_chains = "more"
    assert hands.handover.tidy() == "", "once"
    hands.theirs.conflists = {THEIRS}
    hands.handover.take_conflist()
    assert hands.handover.tidy() == "more"


def test_its_plugin_is_served_or_a_condition_says_why_not(tmp_path: Path) -> None:
    """The socket becomes ours only if we listen there."""
    backend = SimpleNamespace(path=Path("/run/its.sock"), start=lambda: None)
    hands = Hands(tmp_path, backend=backend)
    assert hands.handover.begin()
    assert hands.theirs.owned == ["/run/its.sock"]

    def refuse() -> None:
        raise SettingsError("somebody listens on /run/its.sock")

    backend.start = refuse
    (tmp_path / "next").mkdir()
    refused = Hands(tmp_path / "next", backend=backend)
    assert refused.handover.begin()
    assert refused.theirs.owned == []
    assert "somebody listens" in refused.node.health.conditions_by_subject()["cni-backend"]
