"""Taking over and giving back on a node of fakes: who decides, what is left alone, and what a crash between two steps leaves."""

from __future__ import annotations

from dataclasses import replace
from ipaddress import IPv4Address
from pathlib import Path

import pytest

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.core.health import Phase
from ipamd.migration.export import ExportReport, ExportService
from ipamd.migration.importing import CONDITION
from ipamd.model.address import AddressState
from ipamd.model.attachment import WiringSpec, pod_veth_name
from ipamd.model.aws_node import Allocation
from ipamd.model.defects import Defect
from ipamd.model.errors import ForeignStateError, NotServingError, TakeoverError, WiringError
from ipamd.model.family import IPV4, IPV6, IpAddress, LocalRange
from ipamd.model.finding_codes import Severity
from ipamd.model.freeze import FreezeCause
from ipamd.model.history_answer import HistoryQuestion
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.pinned_address import SAME, PinnedRange
from ipamd.model.pod_annotations import ADDRESS
from ipamd.model.pod_snat import PodSnat
from ipamd.model.refusals import RefusalCode
from ipamd.process.served_mark import ServedMark
from ipamd.report.audit import audit
from ipamd.report.explain import explain
from tests.fakes.aws_node import OURS, SAVED, THEIRS, FakeAwsNode
from tests.fakes.node import FakeNode
from tests.families import family_for, in_both, network_of
from tests.refusing import refused_with

pytestmark = in_both("node")

MAC = MacAddress("0a:58:00:00:00:01")


@pytest.fixture
def node(tmp_path: Path, request: pytest.FixtureRequest) -> FakeNode:
    """A node before its first start-up."""
    return FakeNode(tmp_path, network=network_of(family_for(request)))


def egress_of(node: FakeNode) -> LocalRange:
    """What its pods may have of the other family."""
    return (IPV4 if node.network.ipv6 else IPV6).local_range


@pytest.fixture
def theirs(node: FakeNode) -> FakeAwsNode:
    """The other software on it."""
    node.aws_node.conflists = {SAVED, OURS}
    return node.aws_node


def free_address(node: FakeNode, index: int = 0) -> IpAddress:
    """One of the ENI, whoever gives it; of a /80 from the first one on."""
    (eni,) = node.ec2.enis.values()
    for prefix in eni.prefixes:
        return prefix[index]
    return sorted(eni.secondary_addresses)[index]


def wire_theirs(
    node: FakeNode, theirs: FakeAwsNode, name: str, index: int, *, is_told: bool = True, is_listed: bool = True
) -> IpAddress:
    """A pod of the other software: `pod-<name>` with sandbox `name`, as `FakeRuntime.run` names it."""
    address = free_address(node, index)
    veth = pod_veth_name("default", f"pod-{name}", prefix="eni")
    spec = WiringSpec(node.key(name), address, 254, veth, f"/run/netns/{name}", 9001, MAC)
    node.wiring.foreign[veth] = spec
    node.wiring.routes[address] = veth
    node.wiring.rules[address] = 254
    if is_told:
        theirs.told = [*(theirs.told or ()), Allocation(node.key(name), address, "default", f"pod-{name}")]
    if is_listed:
        node.runtime.run(name)
    return address


def rows(node: FakeNode) -> dict[AttachmentKey, IpAddress]:
    """Who is recorded with what."""
    return {one.key: one.address for one in node.datastore.attachments()}


@pytest.fixture
def warm(node: FakeNode) -> FakeNode:
    """The ENI has its addresses at EC2, as the other software left it; our process starts anew without rows."""
    node.bring_up()
    return node


def start_over(node: FakeNode, theirs: FakeAwsNode, *, keep_datastore: bool = False) -> None:
    """Our next process."""
    node.crash(keep_datastore=keep_datastore)
    node.bring_up()


@pytest.mark.parametrize("is_told", [True, False])
def test_a_pod_comes_over_with_its_mac_and_goes_by_our_del(warm: FakeNode, theirs: FakeAwsNode, is_told: bool) -> None:
    """With its file or from kernel and runtime alone; what was wired is not changed, and DEL removes it."""
    address = wire_theirs(warm, theirs, "a", 0, is_told=is_told)
    start_over(warm, theirs)
    assert rows(warm) == {warm.key("a"): address}
    (made,) = warm.datastore.attachments()
    assert (made.host_veth, made.sandbox_name) == (pod_veth_name("default", "pod-a", prefix="eni"), "default/pod-a")
    assert warm.wiring.wired[made.host_veth].others_mac == MAC
    assert CONDITION not in warm.health.conditions_by_subject()
    assert warm.delete("a")
    warm.cool()
    assert (rows(warm), warm.wiring.wired, address in warm.wiring.routes) == ({}, {}, False)


@pytest.mark.parametrize("witness", ["its route", "its file"])
def test_a_pod_comes_over_with_its_link_for_egress(warm: FakeNode, theirs: FakeAwsNode, witness: str) -> None:
    """Recorded from the first moment, so that nobody else is given its address; its plugin may have lost the route to it."""
    address = wire_theirs(warm, theirs, "a", 0)
    wire_theirs(warm, theirs, "b", 1)
    other = egress_of(warm).first + 7
    warm.wiring.seconds = {pod_veth_name("default", "pod-a", prefix="eni"): other if witness == "its route" else None}
    theirs.egress_told = {"a": other}
    start_over(warm, theirs)
    assert {one.key: one.other_address for one in warm.datastore.attachments()} == {warm.key("a"): other, warm.key("b"): None}
    row = warm.datastore.address(address)
    assert row is not None
    assert row.other_address == other
    assert CONDITION not in warm.health.conditions_by_subject()
    assert warm.app.imported.left_chains() == (None, True)
    theirs.finish()
    finish_start(warm)
    assert exporter(warm, theirs).export().problems == []
    assert {one.key: one.other_address for one in theirs.written[-1]} == {warm.key("a"): other, warm.key("b"): None}
    assert other in theirs.routed


@pytest.mark.parametrize("refused", ["adopt_extra", "extra_links"])
def test_a_pod_whose_link_for_egress_refuses_comes_over_whole_later(warm: FakeNode, theirs: FakeAwsNode, refused: str) -> None:
    """Not by halves: nothing of it is changed, a condition names it, and the next list tries again. Meanwhile its chain stays."""
    wire_theirs(warm, theirs, "a", 0)
    veth, other = pod_veth_name("default", "pod-a", prefix="eni"), egress_of(warm).first
    warm.wiring.seconds = {veth: other}
    warm.wiring.fail[refused] = [WiringError("busy")]
    start_over(warm, theirs)
    assert rows(warm) == {}
    assert veth in warm.health.conditions_by_subject()[CONDITION]
    assert warm.app.imported.left_chains() == ([], False)
    warm.runtime_reconciler.reconcile_once()
    assert [one.other_address for one in warm.datastore.attachments()] == [other]
    assert CONDITION not in warm.health.conditions_by_subject()


def test_a_silent_runtime_quarantines_and_a_later_list_adopts(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Its file and the kernel are no proof that the sandbox lives; nobody else gets the address meanwhile (I2)."""
    address = wire_theirs(warm, theirs, "a", 0)
    warm.runtime.is_down = True
    start_over(warm, theirs)
    row = warm.datastore.address(address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    assert address not in {warm.add(f"s{number}").address for number in range(3)}
    warm.runtime.is_down = False
    warm.quarantine.resolve(warm.listed())
    assert rows(warm)[warm.key("a")] == address


def test_a_whole_datastore_takes_none_of_its_pods_for_a_dead_add(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Its plugin ran beside our rows: without a list its pod is kept, not unwired as an ADD that never replied."""
    address = wire_theirs(warm, theirs, "a", 0)
    warm.runtime.is_down = True
    start_over(warm, theirs, keep_datastore=True)
    assert address in warm.wiring.routes
    warm.crash()  # stamped already, and still not adopted
    warm.bring_up()
    assert address in warm.wiring.routes


@pytest.mark.parametrize(("point", "left_count"), [("import.second", 2), ("import.stamped", 1)])
def test_a_crash_between_stamp_and_record_is_repeated(warm: FakeNode, theirs: FakeAwsNode, point: str, left_count: int) -> None:
    """The alias is there, the row is not: the next start adopts both pods, also without the file, and with their links for egress."""
    wanted = {warm.key(name): wire_theirs(warm, theirs, name, index) for index, name in enumerate("ab")}
    others = {veth: egress_of(warm).first + number for number, veth in enumerate(sorted(warm.wiring.foreign))}
    warm.wiring.seconds = dict(others)
    warm.crash(keep_datastore=False)

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    warm.failpoint = die
    with pytest.raises(KeyboardInterrupt):
        warm.bring_up()
    assert (len(warm.wiring.foreign), rows(warm)) == (left_count, {})
    theirs.told = None
    start_over(warm, theirs, keep_datastore=True)
    assert rows(warm) == wanted
    assert {one.host_veth: one.other_address for one in warm.datastore.attachments()} == others


@pytest.mark.parametrize("refused", ["stamp", "file"])
def test_what_refuses_is_named_and_its_address_given_to_nobody(warm: FakeNode, theirs: FakeAwsNode, refused: str) -> None:
    """A veth that the kernel would not let us name, or that nobody can name without the file: a condition, no pod cut."""
    address = wire_theirs(warm, theirs, "a", 0, is_listed=refused == "stamp")
    other = wire_theirs(warm, theirs, "b", 1)
    if refused == "stamp":
        warm.wiring.fail["stamp"] = [WiringError("busy")]
    else:
        theirs.refusal = ForeignStateError("cannot be used")
    start_over(warm, theirs)
    assert rows(warm) == {warm.key("b"): other}
    row = warm.datastore.address(address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    assert pod_veth_name("default", "pod-a", prefix="eni") in warm.health.conditions_by_subject()[CONDITION]
    assert address in warm.wiring.routes


@pytest.mark.parametrize("end", ["it is listed", "it is deleted"])
def test_what_nobody_could_name_is_looked_at_again(warm: FakeNode, theirs: FakeAwsNode, end: str) -> None:
    """Without its file while the runtime was silent: the next list names the sandbox, or the condition ends with the link."""
    address = wire_theirs(warm, theirs, "a", 0, is_told=False)
    warm.runtime.run("other")
    warm.runtime.is_down = True
    start_over(warm, theirs)
    assert CONDITION in warm.health.conditions_by_subject()
    warm.runtime.is_down = False
    if end == "it is deleted":
        (veth,) = warm.wiring.foreign
        del warm.wiring.foreign[veth], warm.wiring.routes[address]
        del warm.runtime.listed["a"]
    warm.runtime_reconciler.reconcile_once()
    assert CONDITION not in warm.health.conditions_by_subject()
    assert rows(warm) == ({warm.key("a"): address} if end == "it is listed" else {})
    row = warm.datastore.address(address)
    assert row is not None
    assert row.state is (AddressState.ASSIGNED if end == "it is listed" else AddressState.COOLING)


def test_what_is_named_later_and_is_on_no_eni_is_said(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """EC2 does not show its address: it is kept, and the condition goes on under the name that says so."""
    wire_theirs(warm, theirs, "a", 0, is_told=False)
    elsewhere, (veth,) = IPv4Address("10.0.200.9"), warm.wiring.foreign
    warm.wiring.foreign[veth] = replace(warm.wiring.foreign[veth], address=elsewhere)
    warm.wiring.routes = {elsewhere: veth}
    warm.runtime.run("other")
    warm.runtime.is_down = True
    start_over(warm, theirs)
    warm.runtime.is_down = False
    warm.runtime_reconciler.reconcile_once()
    conditions = warm.health.conditions_by_subject()
    assert CONDITION not in conditions
    assert f"{elsewhere} of a/eth0" in conditions["unrecorded sandboxes"]
    assert rows(warm) == {}


def test_what_it_gives_while_we_serve_is_neither_given_nor_taken_back(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Its daemon came back beside ours, and its plugin wires pods with addresses that our rows call free (I1, I2)."""
    address = wire_theirs(warm, theirs, "a", 0)
    warm.host_reconciler.reconcile()
    row = warm.datastore.address(address)
    assert row is not None
    assert row.state is AddressState.QUARANTINED
    (veth,) = warm.wiring.foreign
    assert f"{veth} has it" in row.reason
    assert address not in {warm.add(f"s{number}").address for number in range(3)}
    warm.host_reconciler.reconcile()
    assert address in warm.wiring.routes
    del warm.wiring.foreign[veth], warm.wiring.routes[address]
    warm.host_reconciler.reconcile()
    warm.cool()
    row = warm.datastore.address(address)
    assert row is not None
    assert row.state is AddressState.FREE


def test_an_address_that_both_gave_is_named_after_our_restart_too(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Its pod has the address, and the route that ours puts back leads to our pod: audit and explain name both, nobody else gets it
    (I1, I20)."""
    ours = warm.add("ours")
    warm.runtime.run("ours")
    free = wire_theirs(warm, theirs, "theirs", 5, is_told=False)
    del warm.wiring.routes[free]  # ours has the route to the address that both have
    theirs.tell(Allocation(warm.key("theirs"), ours.address, "default", "pod-theirs"))
    start_over(warm, theirs)
    theirs.finish()
    violations = [one for one in audit(warm.app.introspection.sources).findings if one.severity is Severity.VIOLATION]
    assert [one.subject for one in violations] == [str(ours.address)]
    assert all(
        name in violations[0].fields["links"] for name in (ours.host_veth, pod_veth_name("default", "pod-theirs", prefix="eni"))
    )
    told = explain(warm.app.introspection.sources, HistoryQuestion(str(ours.address), 50)).sentences
    assert any("theirs/eth0 has the address too" in one for one in told)
    assert warm.health.defects[Defect.DUPLICATE] == 1
    assert rows(warm)[ours.key] == ours.address


def exporter(node: FakeNode, theirs: FakeAwsNode) -> ExportService:
    """The service as bootstrap makes it."""
    return ExportService(node.app.context, cooldown=node.cooldown, aws_node=theirs, prefix="eni")


def finish_start(node: FakeNode) -> None:
    """The end of a start."""
    node.health.mark_ready()


def test_an_export_freezes_writes_and_changes_the_conflists(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """ADD is refused as retryable with the cause; every wired address is in the file, recorded or not."""
    mine = warm.add("mine").address
    wire_theirs(warm, theirs, "lost", 5, is_listed=False)
    theirs.finish()
    service = exporter(warm, theirs)
    early = service.export()
    assert "not ready" in early.problems[0]
    finish_start(warm)
    report = service.export()
    assert report.problems == []
    (written,) = theirs.written
    assert {one.address: (one.key.container_id, one.pod_name) for one in written} == {
        mine: ("mine", "mine"),
        free_address(warm, 5): ("lost", "pod-lost"),
    }
    assert theirs.conflists == {THEIRS}
    assert pod_veth_name("default", "mine", prefix="eni") in warm.wiring.wired
    assert {one.cause for one in warm.app.context.freeze.in_force()} == {FreezeCause.EXPORT}
    assert not warm.health.is_ready
    with refused_with(RefusalCode.HELD) as refused:
        warm.add("late")
    assert refused.value.retryable
    assert warm.delete("mine"), "DEL is served"
    assert service.export().exported_count == 1


def test_an_export_is_refused_while_sandboxes_have_snat_by_pod(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Its daemon would change the address with which they are seen: nothing is begun until these pods are deleted."""
    if warm.network.ipv6:
        pytest.skip("pods of IPv6 have no SNAT")
    warm.network = replace(warm.network, snat_exempt_pods=("default",))
    start_over(warm, theirs)
    warm.add("chosen")
    finish_start(warm)
    report = exporter(warm, theirs).export()
    assert report.problems, report
    assert (theirs.is_exporting, theirs.written) == (False, [])
    assert warm.add("still").snat is PodSnat.NONE
    assert warm.delete("chosen")
    assert warm.delete("still")
    assert exporter(warm, theirs).export().problems == []


def test_an_export_is_refused_while_pods_asked_for_their_addresses(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Its daemon would keep none for them: nothing is begun until these pods are deleted."""
    if warm.network.ipv6:
        pytest.skip("pods of IPv6 cannot ask")
    warm.network = replace(warm.network, pinned_ranges=(PinnedRange("default"),))
    start_over(warm, theirs)
    finish_start(warm)
    asked = replace(warm.request("pinned"), annotations={ADDRESS: SAME})
    made = warm.attacher.attach_sandbox(asked, deadline=Deadline.after(warm.clock, 60.0), steps=StepTimer(warm.clock))
    assert made.kept_s
    assert exporter(warm, theirs).export().problems
    assert (theirs.is_exporting, theirs.written) == (False, [])
    assert warm.delete("pinned")
    assert exporter(warm, theirs).export().problems == []


def test_an_export_is_refused_while_an_eni_is_of_a_pool(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Its daemon would give the addresses of that ENI to any pod: nothing is begun until the ENI is gone."""
    if warm.network.ipv6:
        pytest.skip("a node of IPv6 has no pools")
    finish_start(warm)
    eni = warm.datastore.enis()[0]
    with warm.datastore.transaction() as unit:
        unit.put_eni(replace(eni, pool="cards"))
    report = exporter(warm, theirs).export()
    assert report.problems, report
    assert (theirs.is_exporting, theirs.written) == (False, [])
    with warm.datastore.transaction() as unit:
        unit.put_eni(eni)
    assert exporter(warm, theirs).export().problems == []


def test_an_export_before_its_daemon_only(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """It would overwrite what is written, or take what it has not read."""
    finish_start(warm)
    theirs.listens = "/run/its.sock"
    assert "/run/its.sock" in exporter(warm, theirs).export().problems[0]
    assert (theirs.is_exporting, theirs.written) == (False, [])
    assert warm.add("still").address


def test_a_second_export_does_not_overwrite_what_its_daemon_wrote(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """It came, gave addresses and went: our rows are older than its file, and a name of before may be another pod's (I1, I2)."""
    warm.add("mine")
    finish_start(warm)
    service = exporter(warm, theirs)
    assert service.export().problems == []
    theirs.tell(Allocation(warm.key("new"), free_address(warm, 7), "default", "mine"))
    kernel = (dict(warm.wiring.wired), dict(warm.wiring.routes))
    (problem,) = service.export().problems
    assert "has run here since" in problem
    assert theirs.told == [Allocation(warm.key("new"), free_address(warm, 7), "default", "mine")]
    assert (warm.wiring.wired, warm.wiring.routes) == kernel


def test_what_was_not_taken_over_goes_back_as_its_daemon_had_it(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """A pod on several network cards: under another key its DEL would find nothing, and the address would be taken for ever."""
    address = wire_theirs(warm, theirs, "multi", 0)
    stale = wire_theirs(warm, theirs, "other", 1, is_told=False, is_listed=False)
    entry = replace(theirs.told[0], interface_count=2, made_at_ns=5) if theirs.told else None
    assert entry is not None
    theirs.tell(entry, Allocation(warm.key("dead"), stale, "default", "pod-dead"))
    start_over(warm, theirs)
    theirs.finish()
    finish_start(warm)
    assert CONDITION in warm.health.conditions_by_subject()
    assert exporter(warm, theirs).export().problems == []
    found = {one.address: one for one in theirs.written[-1]}
    assert found[address] == entry
    assert found[stale].key.container_id.startswith("unknown-"), "the name of its entry is not the link's"


def test_what_its_plugin_is_about_to_wire_is_exported(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Between our reply and its plugin's wiring there is no link yet, and the address is not free (I1)."""
    request = replace(warm.request("soon"), is_wired_by_caller=True)
    made = warm.attacher.attach_sandbox(request, deadline=Deadline.after(warm.clock, 5.0), steps=StepTimer(warm.clock))
    gone = warm.add("gone")
    warm.wiring.remove_leftover(host_veth=gone.host_veth, address=gone.address)  # its namespace went before its DEL
    finish_start(warm)
    assert exporter(warm, theirs).export().problems == []
    assert [(one.address, one.pod_name) for one in theirs.written[-1]] == [(made.address, "soon")]


def test_a_link_of_nobody_whose_route_is_missing_is_exported(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Its alias says which address is inside the sandbox; that its route is away for a moment frees nothing (I11)."""
    address = warm.add("a").address
    warm.crash(keep_datastore=False)
    warm.bring_up()  # the runtime does not list it: quarantined
    del warm.wiring.routes[address]
    finish_start(warm)
    assert exporter(warm, theirs).export().problems == []
    assert [(one.key, one.address) for one in theirs.written[-1]] == [(warm.key("a"), address)]


def test_an_export_whose_begin_is_cut_short_holds_add_if_it_was_noted(
    warm: FakeNode, theirs: FakeAwsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The note is there, and the file beside the conflist is not: the next process is held, so this one is."""
    finish_start(warm)
    begin = theirs.begin_export

    def begin_half() -> None:
        begin()
        raise TakeoverError("10-vpc-ipamd.conflist.vpc-ipamd-exported cannot be written")

    monkeypatch.setattr(theirs, "begin_export", begin_half)
    assert "repeat the export" in exporter(warm, theirs).export().problems[0]
    with refused_with(RefusalCode.HELD):
        warm.add("b")


def test_an_exported_node_answers_status_after_a_restart_as_before(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Ours may be the only conflist still: a restart in between makes no node NotReady (I17), and the first line says why no ADD is
    served."""
    finish_start(warm)
    exporter(warm, theirs).export()
    warm.crash()
    exporter(warm, theirs).hold()
    warm.clock.advance(3600.0)
    warm.health.require_status()
    assert not warm.health.is_starting
    warm.health.enter(Phase.DRAINING)
    assert warm.health.is_starting, "its successor answers"


def test_without_a_saved_conflist_ours_stays(warm: FakeNode, theirs: FakeAwsNode, tmp_path: Path) -> None:
    """There is never none: a runtime without one cannot delete. A node that its daemon never ran on is exported all the same, and
    STATUS is bridged until that daemon is there (I17)."""
    finish_start(warm)
    theirs.conflists = {OURS}
    service = exporter(warm, theirs)
    report = service.export()
    assert report.problems == [], "a repetition would mend nothing: once its daemon has written one it listens"
    assert "ours stays" in report.steps[-1]
    assert theirs.conflists == {OURS}
    ServedMark(tmp_path, boot_id="boot", health=warm.health).leave()
    assert (tmp_path / "served").exists()
    theirs.conflists.add(THEIRS)
    assert service.export().problems == []
    assert theirs.conflists == {THEIRS}


@pytest.mark.parametrize("point", ["export.begun", "export.renamed", "export.written", "export.restored"])
def test_a_crash_between_two_steps_is_continued(warm: FakeNode, theirs: FakeAwsNode, point: str) -> None:
    """kill -9 anywhere: the next process gives no address, and the next export ends with the same file."""
    expected = {warm.add("a").address, warm.add("b").address}
    finish_start(warm)

    def die(name: str) -> None:
        if name == point:
            raise KeyboardInterrupt

    warm.failpoint = die
    with pytest.raises(KeyboardInterrupt):
        exporter(warm, theirs).export()
    warm.crash()
    assert theirs.is_exporting
    service = exporter(warm, theirs)
    service.hold()
    warm.health.enter(Phase.SERVING)
    with pytest.raises(NotServingError):
        warm.add("late")
    report = service.export()
    assert (report.problems, report.exported_count) == ([], 2)
    assert {one.address for one in theirs.written[-1]} == expected
    assert all(one.pod_name for one in theirs.written[-1])
    assert theirs.conflists == {THEIRS}


def test_a_name_that_is_taken_leaves_the_entry_unseen(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Two sandboxes of one pod: one has the name, the other an entry that its daemon keeps without looking for a link."""
    first, second = warm.add("a"), warm.add("b")
    with warm.datastore.transaction() as uow:  # "b" is named as if it were of the pod of "a"
        name = pod_veth_name("default", "a", prefix="eni")
        uow.rename_veth(second.key, host_veth=name)
    warm.wiring.rename_veth(second.wiring, to=name)
    warm.wiring.wired[pod_veth_name("default", "b", prefix="eni")] = replace(
        warm.wiring.wired[name], address=free_address(warm, 8)
    )
    finish_start(warm)
    exporter(warm, theirs).export()
    named = {one.key: one.pod_name for one in theirs.written[-1]}
    assert named[first.key] == named[second.key] == ""


def test_an_undone_export_restarts_the_process(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """Its daemon must be away; what was not begun is not undone."""
    finish_start(warm)
    service, ended = exporter(warm, theirs), []
    quiesced: list[str] = []
    service.follow(quiesce=lambda: quiesced.append("loops"), restart=ended.append, release=lambda: "")
    assert service.undo() == ExportReport(steps=["no export was begun"])
    service.export()
    assert quiesced == ["loops"]
    theirs.listens = "127.0.0.1:50051"
    assert "127.0.0.1:50051" in service.undo().problems[0]
    assert theirs.is_exporting
    theirs.listens = ""
    assert service.undo().problems == []
    assert (theirs.is_exporting, ended) == (False, ["an export was undone"])


def test_an_export_that_is_at_work_is_not_undone(warm: FakeNode, theirs: FakeAwsNode) -> None:
    """It would change the conflists after the note was taken back."""
    finish_start(warm)
    service, told = exporter(warm, theirs), []

    def undo(name: str) -> None:
        if name == "export.written":
            told.append(service.undo())

    warm.failpoint = undo
    assert service.export().problems == []
    assert [report.problems for report in told] == [["an export is at work: let it end first"]]
    assert theirs.is_exporting


def test_adds_under_way_are_awaited_and_wiring_must_be_complete(
    warm: FakeNode, theirs: FakeAwsNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is written while an ADD works, or while a route leads elsewhere."""
    made = warm.add("a")
    finish_start(warm)
    monkeypatch.setattr("ipamd.migration.export.ADDS_WAIT_S", 0.05)
    service = exporter(warm, theirs)
    with warm.locks.hold(warm.key("b"), "ADD", Deadline.after(warm.clock, 5.0)):
        assert "an ADD is still at work" in service.export().problems[0]
    monkeypatch.setattr(warm.wiring, "repair", lambda specs: [])
    del warm.wiring.rules[made.address]
    assert "rule 513 lookup 113213 is missing" in service.export().problems[0]
    assert theirs.written == []
