"""Which sandboxes get a rule in a bucket, and what a pass does with a rule that is elsewhere (docs/adr/0088)."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ipamd.host.triggers import PassScope
from ipamd.model.attachment import WiringSpec
from ipamd.model.eni import InstanceLimits
from ipamd.model.kernel import KernelSurvey
from ipamd.model.source_rules import RulePlace, single_priority
from ipamd.process.cloud_loop import CloudLoop
from tests.fakes.cloud import FakeEc2
from tests.fakes.node import SETTINGS, FakeNode

LARGE = InstanceLimits("m5.24xlarge", 15, 50)


def spec_of(node: FakeNode, name: str) -> WiringSpec:
    """What was wired for a sandbox."""
    row = node.datastore.attachment(node.key(name))
    assert row is not None
    return node.wiring.wired[row.host_veth]


def on_secondary(node: FakeNode) -> str:
    """Add sandboxes until one is on a secondary ENI. Returns: its name."""
    for number in range(60):
        node.pool.cycle()
        node.add(name := f"pod{number}")
        if spec_of(node, name).route_table != 254:
            return name
    raise AssertionError("no sandbox is on a secondary ENI")


@pytest.mark.parametrize("is_chosen", [True, False])
def test_an_add_names_the_subnet_where_rules_are_in_buckets(node: FakeNode, is_chosen: bool) -> None:
    """The wiring derives the bucket from it."""
    node.hostnet.source_tree = is_chosen
    spec = spec_of(node, on_secondary(node))
    eni = node.datastore.eni(spec.eni_id)
    assert eni is not None
    assert spec.subnet == (eni.subnet_cidr if is_chosen else None)


@pytest.mark.parametrize(
    ("limits", "has_prefixes", "is_chosen"),
    [
        (LARGE, False, True),
        (LARGE, True, False),
        (InstanceLimits("m5.large", 3, 10), False, False),
        (replace(LARGE, source="default"), False, False),
    ],
)
def test_the_limits_of_the_instance_choose(tmp_path: Path, limits: InstanceLimits, has_prefixes: bool, is_chosen: bool) -> None:
    """Large nodes with single addresses. The choice asks for a pass, which moves rules; none asks for nothing."""
    shipped = replace(SETTINGS, pool=replace(SETTINGS.pool, prefix_delegation=has_prefixes))
    node = FakeNode(tmp_path, shipped=shipped, ec2=FakeEc2(limits=limits))
    node.bring_up()
    node.clock.advance(60.0)
    node.host_reconciler._triggers.take()
    CloudLoop(node.app).turn()
    assert node.hostnet.source_tree is is_chosen
    node.clock.advance(60.0)
    assert (PassScope.EVERYTHING in node.host_reconciler._triggers.take()) is is_chosen


def test_a_pass_moves_rules_that_are_elsewhere(node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sandbox with a rule at 1536, wired before: it is repaired with its subnet, until the rule is in its bucket alone."""
    spec = spec_of(node, on_secondary(node))
    eni = node.datastore.eni(spec.eni_id)
    assert eni is not None
    bucket = single_priority(spec.address, eni.subnet_cidr)
    places: list[int] = [1536]
    repaired: list[WiringSpec] = []
    real_survey, real_repair = node.wiring.survey, node.wiring.repair

    def survey(*, may_be_torn: bool = False) -> KernelSurvey:
        seen = real_survey(may_be_torn=may_be_torn)
        return replace(seen, rule_places={spec.address: tuple(RulePlace(place, spec.route_table) for place in places)})

    def repair(specs: list[WiringSpec], **named: object) -> object:
        repaired.extend(specs)
        return real_repair(specs, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(node.wiring, "survey", survey)
    monkeypatch.setattr(node.wiring, "repair", repair)
    node.host_reconciler.reconcile()
    assert repaired == [], "without buckets the rule is right"
    node.hostnet.source_tree = True
    node.host_reconciler._last_clean_survey = None
    for places[:] in ([1536], [1536, bucket], [bucket]):
        node.host_reconciler.reconcile()
    assert [(one.address, one.subnet) for one in repaired] == [(spec.address, eni.subnet_cidr)] * 2
