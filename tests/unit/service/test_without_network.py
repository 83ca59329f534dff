"""A living sandbox without network, by each cause: the verdict, the page, the metric and the audit say the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ipamd.ipamctl.main import VERBS
from ipamd.model.errors import CloudError
from ipamd.model.finding_codes import FindingCode, Severity
from ipamd.model.ids import EniId
from ipamd.model.legs.finding_codes import LegFindingCode
from ipamd.pb import introspection_pb2 as pb
from ipamd.report.audit import audit
from ipamd.report.verdict import ADVICE, LINE_MAX, NO_POD_ON_ENI, condition_reports, facts, verdict
from tests.fakes.cloud import IDENTITY, PRIMARY
from tests.fakes.node import FakeNode
from tests.stories.external_changes import detach_by_hand, settle
from tests.unit.service.branches import attach, branch_eni, node_with_trunk
from tests.unit.service.metric_values import value
from tests.unit.service.test_further_interfaces import add_further


@dataclass(frozen=True)
class Cause:
    """What happens to a node of one or two ENIs, and how many of its living sandboxes have no network after it."""

    play: Callable[[FakeNode], int]
    says: str
    make: Callable[[Path], FakeNode] = FakeNode


def _node(path: Path) -> FakeNode:
    made = FakeNode(path)
    made.bring_up()
    return made


def _on_second_eni(node: FakeNode) -> tuple[EniId, int]:
    """Fill the primary ENI and go on. Returns: the second ENI, and how many sandboxes it has."""
    number = 0
    while all(one.eni_id == PRIMARY for one in node.datastore.attachments()):
        node.add(f"s{number}")
        node.pool.cycle()
        number += 1
    for more in range(2):
        node.add(f"more-{more}")
    on_it = [one.eni_id for one in node.datastore.attachments() if one.eni_id != PRIMARY]
    return on_it[0], len(on_it)


def _two(node: FakeNode) -> None:
    for name in ("a", "b"):
        node.add(name)


def _eni_frozen(node: FakeNode) -> int:
    eni_id, count = _on_second_eni(node)
    node.enis.routing.freeze(eni_id)
    return count


def _eni_detached(node: FakeNode) -> int:
    eni_id, count = _on_second_eni(node)
    settle(node)
    detach_by_hand(node, eni_id)
    node.look_twice()
    return count


def _eni_detached_while_away(node: FakeNode) -> int:
    eni_id, count = _on_second_eni(node)
    detach_by_hand(node, eni_id)
    node.crash(keep_datastore=False)
    node.bring_up()
    node.runtime_reconciler.reconcile_once()
    return count


def _take_from_a(node: FakeNode) -> None:
    _two(node)
    taken, eni = node.datastore.attachments()[0].address, node.ec2.enis[PRIMARY]
    node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses - {taken})


def _address_taken(node: FakeNode) -> int:
    _take_from_a(node)
    node.look_twice()
    return 1


def _address_missing_within_the_grace(node: FakeNode) -> int:
    _take_from_a(node)
    node.enis.sync_with_ec2(node.metadata.told)
    return 0


def _address_taken_and_quarantined(node: FakeNode) -> int:
    _two(node)
    taken, eni = node.datastore.attachments()[0].address, node.ec2.enis[PRIMARY]
    node.runtime.is_down = True
    node.crash(keep_datastore=False)
    node.bring_up()
    node.ec2.enis[PRIMARY] = replace(eni, secondary_addresses=eni.secondary_addresses - {taken})
    node.look_twice()
    return 1


def _cannot_be_repaired(node: FakeNode) -> int:
    _two(node)
    node.host_reconciler.failed_sandboxes.report(str(node.datastore.attachments()[0].key), CloudError("no way"))
    return 1


def _branch_contradicted(node: FakeNode) -> int:
    one = attach(node, 5)
    with node.datastore.transaction() as uow:
        uow.record_contradiction(one.key, contradiction="its VLAN is another")
    return 1


def _unplaced_branch(node: FakeNode) -> None:
    attach(node, 5)
    node.ec2.enis[branch_eni(5).eni_id] = branch_eni(5)
    node.runtime.is_down = True


def _branch_lost_its_link(node: FakeNode) -> int:
    _unplaced_branch(node)
    node.wiring.vlans.clear()
    node.crash(keep_datastore=False)
    node.bring_up()
    node.quarantine.resolve(None)
    return 1


def _branch_not_adopted(node: FakeNode) -> int:
    _unplaced_branch(node)
    node.crash(keep_datastore=False)
    node.bring_up()
    node.quarantine.resolve(None)
    return 0


def _not_adopted(node: FakeNode) -> int:
    _two(node)
    node.runtime.is_down = True
    node.crash(keep_datastore=False)
    node.bring_up()
    return 0


LOST, UNPLACED = "no network (I7)", "EC2 shows the address on no ENI of this node"
CAUSES = {
    "its ENI is frozen": Cause(_eni_frozen, "the ENI is frozen", _node),
    "its ENI was detached": Cause(_eni_detached, "no network", _node),
    "its ENI was detached and the datastore lost while the daemon was away": Cause(_eni_detached_while_away, UNPLACED, _node),
    "its address was taken": Cause(_address_taken, LOST, _node),
    "one answer minutes after our own call lacks its address": Cause(_address_missing_within_the_grace, "", _node),
    "its address was taken, and it is not adopted": Cause(_address_taken_and_quarantined, "does not show the address", _node),
    "it is not adopted, and has its address": Cause(_not_adopted, "", _node),
    "its wiring cannot be repaired": Cause(_cannot_be_repaired, "packets do not reach", _node),
    "EC2 contradicts its branch ENI": Cause(_branch_contradicted, "cut off", node_with_trunk),
    "its row and its VLAN link are gone": Cause(_branch_lost_its_link, "its VLAN link is gone", node_with_trunk),
    "its row is gone, its branch ENI is there": Cause(_branch_not_adopted, "", node_with_trunk),
}


@pytest.fixture
def made() -> Iterator[list[FakeNode]]:
    """Nodes, closed at the end."""
    nodes: list[FakeNode] = []
    yield nodes
    for one in nodes:
        one.datastore.close()


@pytest.mark.parametrize("name", CAUSES)
def test_every_place_tells_it(name: str, made: list[FakeNode], tmp_path: Path) -> None:
    """The verdict counts it in 120 characters; the page is red by the same count; the metric of the alert and the audit's violation
    and exit status go with it; where there is a network none of them says otherwise."""
    cause = CAUSES[name]
    node = cause.make(tmp_path)
    made.append(node)
    count = cause.play(node)
    node.health.mark_ready()
    sources = node.app.introspection.sources
    line = verdict(facts(sources))
    said = f"ready, but {count} pod{'' if count == 1 else 's'} without network"
    assert line.startswith(said) if count else "without network" not in line
    assert len(line) <= LINE_MAX
    assert node.app.introspection.GetStatus(pb.GetStatusRequest()).cut_off_count == count
    assert value(node, "ipamd_cut_off_sandboxes") == count
    found = [one for one in audit(sources).findings if one.severity is Severity.VIOLATION]
    assert bool(found) == bool(count)
    assert cause.says in "\n".join(f"{one.text}" for one in found)
    answer = {"findings": [{"severity": str(one.severity)} for one in found]}
    assert VERBS["audit"].needs_attention(answer) == bool(count)
    assert all(one.next for one in found)


def _two_pods_of_which_one_has_two_interfaces(node: FakeNode) -> None:
    _two(node)
    add_further(node)
    node.health.mark_ready()


def _counts(node: FakeNode) -> dict[FindingCode | LegFindingCode, str]:
    """The field `count` of the audit's findings, by code."""
    found = audit(node.app.introspection.sources).findings
    return {one.code: one.fields["count"] for one in found if "count" in one.fields}


def test_the_interfaces_of_a_sandbox_count_once(node: FakeNode) -> None:
    """On a frozen ENI: in status, the metric and the audit's finding about the ENI."""
    _two_pods_of_which_one_has_two_interfaces(node)
    node.enis.routing.freeze(PRIMARY)
    assert facts(node.app.introspection.sources).cut_off_count == value(node, "ipamd_cut_off_sandboxes") == 2
    assert _counts(node)[FindingCode.ENI_FROZEN] == "2 sandboxes"


def test_a_finding_about_routing_counts_and_names_sandboxes(node: FakeNode) -> None:
    """Each once, whatever it has on the ENI."""
    _two_pods_of_which_one_has_two_interfaces(node)
    eni = node.datastore.eni(PRIMARY)
    assert eni is not None
    node.hostnet.unplugged.add(eni.mac)
    (found,) = (one for one in audit(node.app.introspection.sources).findings if one.code is FindingCode.ROUTING_CUT_OFF)
    names = sorted({one.sandbox_name or str(one.key) for one in node.datastore.attachments() if one.key.ifname == "eth0"})
    assert (found.fields["count"], found.fields["sandboxes"]) == ("2 sandboxes", "; ".join(names))


def test_a_finding_without_an_eni_counts_sandboxes_and_names_addresses(node: FakeNode) -> None:
    """Who repairs needs each address, and how many pods suffer."""
    _two_pods_of_which_one_has_two_interfaces(node)
    for one in node.datastore.attachments():
        node.host_reconciler.failed_sandboxes.report(str(one.key), CloudError("no way"))
    (found,) = (one for one in audit(node.app.introspection.sources).findings if one.code is FindingCode.NO_NETWORK_UNREACHED)
    assert found.fields["count"] == "2 sandboxes"
    assert all(str(one.address) in found.fields["sandboxes"] for one in node.datastore.attachments())


def test_interfaces_without_a_row_count_once(node: FakeNode) -> None:
    """After a lost datastore, of a sandbox whose addresses EC2 does not show."""
    eni_id, _ = _on_second_eni(node)
    held = next(one for one in node.datastore.attachments() if one.eni_id == eni_id)
    add_further(node, str(held.key.container_id))
    on_it = [one for one in node.datastore.attachments() if one.eni_id == eni_id]
    detach_by_hand(node, eni_id)
    node.crash(keep_datastore=False)
    node.bring_up()
    node.runtime_reconciler.reconcile_once()
    sandbox_count = len({one.key.container_id for one in on_it})
    assert len(node.app.introspection.sources.without_network()) == len(on_it) == sandbox_count + 1
    assert facts(node.app.introspection.sources).cut_off_count == sandbox_count


def test_a_frozen_eni_without_pods_sends_nobody_to_look_for_pods(tmp_path: Path) -> None:
    """While it has pods the audit names them; after that the next step is about the ENI alone."""
    node = _node(tmp_path)
    eni_id, _ = _on_second_eni(node)
    node.enis.routing.freeze(eni_id)
    subject, sources = f"frozen {eni_id}", node.app.introspection.sources
    with_pods, without_pods = ADVICE["frozen eni"][0], NO_POD_ON_ENI.format(eni=eni_id)
    assert {one.subject: one.next for one in condition_reports(facts(sources))}[subject] == with_pods
    for attachment in node.datastore.attachments():
        if attachment.eni_id == eni_id:
            node.delete(attachment.key.container_id)
    assert {one.subject: one.next for one in condition_reports(facts(sources))}[subject] == without_pods


def test_the_last_comparison_is_the_last_one(tmp_path: Path) -> None:
    """Not that of the start."""
    node = _node(tmp_path)
    node.enis.sync_with_ec2(IDENTITY)
    first, _ = node.enis.last_comparison or (None, None)
    node.clock.advance(5.0)
    node.enis.sync_with_ec2(IDENTITY)
    node.node_info.cloud = True, "at the start"
    last, result = node.enis.last_comparison or (None, None)
    assert first is not None
    assert last is not None
    assert ((last - first).total_seconds(), node.app.introspection.sources.cloud().detail.endswith(str(result))) == (5.0, True)
