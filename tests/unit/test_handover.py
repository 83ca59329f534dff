"""When the node changes hands: who may give addresses, whose conflist is found, when chains may go."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ipamd.core.health import STATUS_GRACE_S, Phase
from ipamd.migration.handover import ABSENCE_S, CHECK_INTERVAL_S, CONDITION, Handover, end_soon
from ipamd.model.conditions import ConditionCode
from ipamd.model.difference_codes import DifferenceCode
from ipamd.model.errors import NotServingError, SettingsError
from ipamd.model.refusals import RefusalCode
from ipamd.model.repairs import NODE, TRANSLATION, RepairCode, RepairReport
from ipamd.model.routing_difference import repair_difference, routing_difference
from tests.conditions import codes, failed
from tests.fakes.aws_node import OURS, SAVED, THEIRS
from tests.fakes.node import FakeNode
from tests.refusing import refused_with


class Hands:
    """A handover over a node of fakes; `ended` has the reasons for which the process was to end."""

    def __init__(self, path: Path, *, is_overtaken: bool = False, backend: object = None) -> None:
        self.node = FakeNode(path)
        self.theirs = self.node.aws_node
        self.stopped = threading.Event()
        self.ended: list[str] = []
        self.marked_s: list[float] = []
        self.left_names: tuple[list[str] | None, bool] = None, True
        app = self.node.app
        self.handover = Handover(
            aws_node=app.adapters.aws_node,
            is_overtaken=is_overtaken,
            export=app.export,
            other=app.other_daemon,
            backend=backend,  # type: ignore[arg-type]  # what is called of it
            hostnet=app.adapters.hostnet,
            identity=app.adapters.node_info.identity,
            backend_condition=app.context.health.claim("cni-backend"),
            stopped=self.stopped,
            quiesce=lambda: None,
            leave_mark=lambda: self.marked_s.append(self.node.clock.monotonic()),
            end=self.ended.append,
            left_chains=lambda: self.left_names,
        )


@pytest.fixture
def hands(tmp_path: Path) -> Hands:
    """Nobody else is there."""
    return Hands(tmp_path)


class Waits:
    """What a start's waits saw: one condition each. Each lasts a second; `then` says what happens in the one of a number."""

    def __init__(self, hands: Hands, monkeypatch: pytest.MonkeyPatch, **then: Callable[[], None]) -> None:
        self.seen: list[str] = []
        self._hands, self._then = hands, then
        monkeypatch.setattr(hands.stopped, "wait", self._wait)

    def _wait(self, timeout_s: float) -> bool:
        health = self._hands.node.health
        self.seen.append(health.conditions_by_subject()[CONDITION])
        with pytest.raises(NotServingError) as refused:  # a refused pod's event says so too (I14)
            health.require_add_service()
        assert "remove its DaemonSet aws-node" in refused.value.details
        health.require_status()  # ours may be the only conflist: a restart makes no node NotReady (I17)
        self._then.get(f"after_{len(self.seen)}", lambda: None)()
        self._hands.node.clock.advance(timeout_s)
        return self._hands.stopped.is_set()


def test_a_start_waits_until_the_other_has_been_away_for_a_minute(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """The condition names the listener and what to remove; a daemon that restarts is away for a moment only (I20)."""
    hands.theirs.listens = "/run/its.sock"
    waits = Waits(
        hands,
        monkeypatch,
        after_2=lambda: setattr(hands.theirs, "listens", ""),
        after_40=lambda: setattr(hands.theirs, "listens", "/run/its.sock"),
        after_41=lambda: setattr(hands.theirs, "listens", ""),
    )
    assert hands.handover.begin()
    assert "it serves /run/its.sock; remove its DaemonSet aws-node" in waits.seen[0]
    assert "38 s ago" in waits.seen[39]
    assert len(waits.seen) == 41 + ABSENCE_S - 1
    assert CONDITION not in hands.node.health.conditions_by_subject()
    hands.node.health.require_adds_allowed()


def test_the_start_after_a_wait_has_the_patience_of_any_start(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been up for longer than STATUS is patient, and its predecessor served longer ago than the plugin is (I17)."""
    hands.node.health.enter(Phase.RESTORING)
    hands.theirs.listens = "/run/its.sock"
    Waits(hands, monkeypatch, after_1=lambda: setattr(hands.theirs, "listens", ""))
    assert hands.handover.begin()
    hands.node.health.require_status()
    assert hands.node.clock.monotonic() - hands.marked_s[-1] <= CHECK_INTERVAL_S
    hands.node.clock.advance(STATUS_GRACE_S + 1)
    with refused_with(RefusalCode.STATUS_NOT_SERVING, phase="restoring"):
        hands.node.health.require_status()


def test_what_it_wrote_while_ours_started_is_a_sign(hands: Hands) -> None:
    """It came after the wait, while EC2 was slow, gave addresses and crashed: to take over its file does not end its minute (I20)."""
    assert hands.handover.begin()
    hands.theirs.tell()
    hands.handover.finish()
    hands.node.health.enter(Phase.SERVING)
    assert not hands.handover.check()
    assert hands.node.health.are_adds_blocked
    hands.node.clock.advance(ABSENCE_S)
    assert hands.handover.check()
    assert not hands.node.health.are_adds_blocked


def test_a_start_without_a_sign_waits_for_nothing(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rolls stay as fast as they are, also where its file of long ago is."""
    hands.theirs.tell()
    hands.theirs.finish()
    waits = Waits(hands, monkeypatch)
    assert hands.handover.begin()
    assert waits.seen == []


def test_a_stop_ends_the_wait(hands: Hands, monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM while it waits."""
    hands.theirs.listens = "/run/its.sock"
    Waits(hands, monkeypatch, after_1=hands.stopped.set)
    with pytest.raises(NotServingError):
        hands.handover.begin()


def test_rows_that_were_opened_before_it_wrote_are_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was there while our file was opened, and wrote: the process ends, and the next one sets the rows aside (I1)."""
    hands = Hands(tmp_path)
    hands.theirs.tell()
    waits = Waits(hands, monkeypatch)
    assert not hands.handover.begin()
    assert len(waits.seen) == ABSENCE_S, "it wrote a moment ago: it may be about to come back"
    assert "rebuilds" in hands.ended[0]
    (tmp_path / "next").mkdir()
    later = Hands(tmp_path / "next", is_overtaken=True)
    later.theirs.tell()
    later.node.clock.advance(ABSENCE_S)
    assert later.handover.begin(), "they were set aside already"
    assert later.ended == []


def test_an_exported_node_is_not_served(hands: Hands) -> None:
    """A restart changes nothing: ADD is refused, the conflist is left alone."""
    hands.theirs.begin_export()
    hands.theirs.conflists = {THEIRS}
    assert not hands.handover.begin()
    with refused_with(RefusalCode.HELD):
        hands.node.health.require_add_service()
    assert (hands.handover.take_conflist(), hands.theirs.conflists) == ("", {THEIRS})


def test_its_conflist_is_taken_only_from_one_that_is_away(hands: Hands) -> None:
    """To take it from a daemon that serves, or is about to serve again, would be a fight."""
    hands.node.health.enter(Phase.SERVING)
    hands.theirs.conflists = {THEIRS, OURS}
    hands.theirs.listens = "127.0.0.1:50051"
    assert hands.handover.take_conflist() == ""
    hands.theirs.listens = ""
    hands.node.clock.advance(ABSENCE_S - 1)
    assert hands.handover.take_conflist() == ""
    assert hands.theirs.conflists == {THEIRS, OURS}
    assert hands.node.health.are_adds_blocked
    hands.node.clock.advance(1)
    assert hands.handover.take_conflist()
    assert hands.theirs.conflists == {SAVED, OURS}
    assert not hands.node.health.are_adds_blocked
    assert hands.handover.take_conflist() == ""


@pytest.mark.parametrize("conflists", [{OURS}, {THEIRS, OURS}])
def test_what_it_gave_while_we_served_is_taken_over_by_the_next_start(hands: Hands, conflists: set[str]) -> None:
    """Both were on the node, and it has gone: our rows call free what its pods have, so ADD stays held until the process ends."""
    hands.node.health.enter(Phase.SERVING)
    hands.theirs.conflists = set(conflists)
    hands.theirs.listens = "/run/its.sock"
    assert not hands.handover.check()
    hands.theirs.tell()
    hands.theirs.listens = ""
    assert not hands.handover.check()
    assert hands.ended == [], "it may come back"
    hands.node.clock.advance(ABSENCE_S)
    assert not hands.handover.check()
    assert "rebuilds" in hands.ended[0]
    assert hands.node.health.are_adds_blocked
    hands.handover.finish()  # as the next start does
    assert hands.handover.check()
    assert not hands.node.health.are_adds_blocked


def test_a_conflist_that_an_export_brings_back_is_not_taken(hands: Hands) -> None:
    """The keeper looks for the other's daemon, which takes up to seconds; an export that begins meanwhile wins."""
    hands.theirs.conflists = {THEIRS, OURS}
    hands.theirs.last_sign = lambda *, pod: hands.theirs.begin_export()  # type: ignore[method-assign]
    assert hands.handover.take_conflist() == ""
    assert hands.theirs.conflists == {THEIRS, OURS}


def test_chains_go_once_ours_are_in_place(hands: Hands) -> None:
    """Not before the node is known, not while it is there, not while our table differs; again after it came back."""
    kernel = hands.node.hostnet
    kernel.left_chains = "AWS-SNAT-CHAIN-0"
    assert hands.handover.remove_left_chains() == "", "the node is not known yet"
    hands.node.node_info.learn_identity()
    hands.theirs.listens = "/run/its.sock"
    assert hands.handover.remove_left_chains() == ""
    hands.theirs.listens = ""
    hands.node.clock.advance(ABSENCE_S)
    kernel.node_differences = [repair_difference(RepairReport(RepairCode.ADDED, TRANSLATION, "nftables table"), NODE)]
    assert hands.handover.remove_left_chains() == ""
    kernel.node_differences = [routing_difference(DifferenceCode.CHAIN_LEFT_SNAT, NODE, chain="AWS-SNAT-CHAIN-0")]
    assert hands.handover.remove_left_chains() == "AWS-SNAT-CHAIN-0"
    kernel.left_chains = "more"
    assert hands.handover.remove_left_chains() == "", "once"
    hands.theirs.conflists = {THEIRS}
    hands.handover.take_conflist()
    assert hands.handover.remove_left_chains() == "more"


def test_chains_of_sandboxes_that_are_not_ours_yet_stay(hands: Hands) -> None:
    """Only the named ones go, and the others are looked at again until all may."""
    kernel = hands.node.hostnet
    hands.node.node_info.learn_identity()
    for left, removed in (([], ""), (["CNI-E4-a"], "CNI-E4-a"), (None, "CNI-E4-b")):
        hands.left_names, kernel.left_chains = (left, left is None), removed
        assert hands.handover.remove_left_chains() == removed
        assert kernel.left_names == left
    kernel.left_names = []
    assert hands.handover.remove_left_chains() == ""
    assert kernel.left_names == [], "once"


def test_its_plugin_is_served_or_a_condition_says_why_not(tmp_path: Path) -> None:
    """Before ADD is, and not where somebody listens."""
    started: list[str] = []
    backend = SimpleNamespace(path=Path("/run/its.sock"), start=lambda: started.append("its socket"))
    hands = Hands(tmp_path, backend=backend)
    assert hands.handover.begin()
    assert started == ["its socket"]

    def refuse() -> None:
        raise SettingsError("somebody listens on /run/its.sock")

    backend.start = refuse
    (tmp_path / "next").mkdir()
    refused = Hands(tmp_path / "next", backend=backend)
    assert refused.handover.begin()
    assert codes(refused.node.health, "cni-backend") == {ConditionCode.BACKEND_REFUSED}


def test_an_undone_export_restarts_without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process ends at once if nothing can end it in a moment: nobody would serve the node that was given back."""

    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    ended: list[str] = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    end_soon(ended.append, "an export was undone")
    assert ended == ["an export was undone"]


def test_the_step_of_the_start_does_not_end_what_holds_adds(hands: Hands) -> None:
    """The start's step had failed, and succeeds: that the other's daemon is there, and ADD is held, is still said."""
    health = hands.node.health
    step = health.claim("aws-node", part="start")
    step.report(failed("its file cannot be read"))
    hands.theirs.listens = "127.0.0.1:50051"
    assert hands.node.app.other_daemon.check()
    step.report(None)
    assert health.are_adds_blocked
    assert "aws-node" in health.conditions_by_subject()
