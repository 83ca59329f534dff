"""Two threads change the list of sandboxes whose address has no row: neither loses what the other has remembered."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

from ipamd.model.kernel import HostVeth, KernelSurvey
from tests.fakes.node import FakeNode
from tests.unit.service.branches import attach, branch_eni, node_with_trunk


def test_a_sandbox_that_was_remembered_during_a_resolve_stays(tmp_path: Path) -> None:
    """The runtime's reconciler finds one after the host's has surveyed the kernel, and before that one has compared its list."""
    node = node_with_trunk(tmp_path)
    _lose_the_row_of_a_wired_sandbox(node)
    (first,) = node.quarantine.unplaced(is_of_pool=False)
    later = _found_later(node, first)
    survey = node.quarantine.survey

    def survey_and_find() -> KernelSurvey | None:
        surveyed = survey()
        node.quarantine.remember_unplaced(later)
        return surveyed

    node.quarantine.survey = survey_and_find  # type: ignore[method-assign]
    node.quarantine.resolve(None)
    assert node.quarantine.unplaced(is_of_pool=False) == {first, later.name}
    assert node.quarantine.judge.unplaced_count == 2
    node.datastore.close()


def test_a_sandbox_whose_veth_is_gone_is_forgotten(tmp_path: Path) -> None:
    """Its veth disappeared: nothing is left to judge, and the condition ends."""
    node = node_with_trunk(tmp_path)
    _lose_the_row_of_a_wired_sandbox(node)
    assert node.quarantine.unplaced(is_of_pool=False)
    node.wiring.wired.clear()
    node.quarantine.resolve(None)
    assert not node.quarantine.unplaced(is_of_pool=False)
    assert node.quarantine.judge.unplaced_count == 0
    node.datastore.close()


def _lose_the_row_of_a_wired_sandbox(node: FakeNode) -> None:
    attach(node, 5)
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    node.runtime.is_down = True
    node.crash(keep_datastore=False)
    node.bring_up()


def _found_later(node: FakeNode, like: str) -> HostVeth:
    veth = next(veth for veth in node.wiring.survey().firsts if veth.name == like)
    return replace(veth, name="eni0123456789a", address=IPv4Address("10.0.9.9"))
