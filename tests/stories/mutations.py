"""Every defect that the stories plant in the daemon and the plugin, in one list.

A story is played twice: with the code as it is, and without what prevents the failure. For the second play it asks the fixture
`mutate` for a mutation of this list by name. A mutation replaces functions or values of the code until the test ends, most of them
private. So when one of them is renamed, its target is corrected here and nowhere else; `tests/unit/test_stories.py` fails with the
names of the mutations whose target is gone.

Stories with real processes plant nothing from this list: they take something away from outside, for example with `plugin_stub.py`.
The defects that the randomised test has to find are in `tests/property/graph/planted.py`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import timedelta
from ipaddress import IPv4Address
from typing import Any

import pytest

from cni_plugin import spool as plugin_spool
from ipamd.cloud import answers
from ipamd.core.deadline import Deadline
from ipamd.core.key_locks import KeyLocks
from ipamd.datastore import schema
from ipamd.datastore.memory_state import MemoryState, View
from ipamd.datastore.spool import SpoolDirectory
from ipamd.datastore.unit_of_work import SqlUnitOfWork
from ipamd.eni import external_changes
from ipamd.eni.book import EniBook
from ipamd.eni.enis import EniService
from ipamd.eni.links import LinkWatch
from ipamd.eni.provisioner import EniProvisioner
from ipamd.eni.resync import EniSyncResult
from ipamd.eni.security_groups import SecurityGroups
from ipamd.eni.steps import OperationRunner
from ipamd.host.maintenance import INTERVAL_S, Maintenance
from ipamd.kernel import messages
from ipamd.model import evidence, plan
from ipamd.model.address import AddressState
from ipamd.model.attachment import Attachment
from ipamd.model.cloud import DescribedEni, InstanceIdentity
from ipamd.model.cloud_evidence import CloudKey
from ipamd.model.errors import IpamError
from ipamd.model.evidence import Evidence, Judgement, Record, SandboxVerdict
from ipamd.model.ids import AttachmentKey, parse_key
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.legs import branch_eni, pool
from ipamd.model.legs.branch_requirement import AttachMode, Decision
from ipamd.model.pool_settings import PoolSettings
from ipamd.model.pool_snapshot import PoolSnapshot
from ipamd.model.repeats import NO_REPEATS
from ipamd.model.sandbox import EventKind, Sandbox, SandboxEvent
from ipamd.model.verdict_reasons import ReasonCode, VerdictReason
from ipamd.node_info import NodeInfo
from ipamd.policy.hook import PolicyHook
from ipamd.sandbox import judge, repeated_adds, veth_names
from ipamd.sandbox.detach import DetachService
from ipamd.sandbox.judge import SandboxJudge
from ipamd.sandbox.legs import branch
from ipamd.sandbox.missed_events import MissedEventDetector
from ipamd.sandbox.quarantine import QuarantineService
from ipamd.sandbox.repeated_adds import RepeatedAdds
from ipamd.sandbox.runtime import RuntimeReconciler
from ipamd.settings import loading
from tests.fakes.cloud import IDENTITY, FakeEc2
from tests.fakes.kernel import FakeWiring
from tests.stories.stale_reads import ec2_tells


@dataclass(frozen=True)
class Patch:
    """One replacement.

    target: the class or module that has the attribute.
    attribute: the name of the replaced function or value.
    replacement: called with what is replaced, and with what the story passes to `mutate`; returns what takes its place.
    """

    target: object
    attribute: str
    replacement: Callable[..., object]

    def name(self) -> str:
        """Class or module, and attribute."""
        return f"{getattr(self.target, '__name__', self.target)}.{self.attribute}"


@dataclass(frozen=True)
class Mutation:
    """One planted defect.

    name: stories ask for the mutation by this name.
    takes_away: one sentence that says how the code behaves without what the mutation takes away.
    patches: what is replaced for that.
    """

    name: str
    takes_away: str
    patches: tuple[Patch, ...]

    def missing(self) -> list[str]:
        """Return the targets that the code does not have any more."""
        return [patch.name() for patch in self.patches if not hasattr(patch.target, patch.attribute)]

    def apply(self, monkeypatch: pytest.MonkeyPatch, **given: object) -> None:
        """Replace its targets until `monkeypatch` restores them.

        `given`: passed on to each replacement. Raises: LookupError with the name of the mutation, if a target does not exist.
        """
        if missing := self.missing():
            raise LookupError(f"the mutation {self.name} needs another target: there is no {', '.join(missing)}")
        for patch in self.patches:
            original = getattr(patch.target, patch.attribute)
            monkeypatch.setattr(patch.target, patch.attribute, patch.replacement(original, **given))


def returning(result: object) -> Callable[[Any], object]:
    """Replace a function with one that does nothing and returns `result`, whatever its arguments are."""
    return lambda _real: lambda *_, **__: result


def constant(value: object) -> Callable[[Any], object]:
    """Replace whatever is there with `value`."""
    return lambda _real: value


def _run_and_return_none(real: Any) -> object:
    return lambda self, key: real(self, key) and None


def _succeed_whatever_happens(real: Any) -> object:
    def detach_sandbox(self: DetachService, key: object, **options: object) -> bool:
        try:
            return bool(real(self, key, **options))
        except IpamError:
            return False

    return detach_sandbox


def _name_after_the_pod(_real: Any) -> object:
    """For sandboxes that a story names POD.NUMBER."""

    def veth_name(key: AttachmentKey, *, prefix: str) -> str:
        return prefix + key.container_id.partition(".")[0]

    return veth_name


def _believe_the_declaration(_real: Any) -> object:
    def judge(evidence: Evidence) -> Judgement:
        is_gone = evidence.is_declared_gone and evidence.runtime == "absent"
        return Judgement(SandboxVerdict.REAP if is_gone else SandboxVerdict.KEEP, (VerdictReason(ReasonCode.NOT_VALID),))

    return judge


def _read_records_after_the_list(real: Any) -> object:
    def record_list(
        self: SandboxJudge, attachments: Iterable[Attachment], listed: Collection[str], *, unrecorded: Iterable[str] | None
    ) -> None:
        real(self, self._datastore.attachments(), listed, unrecorded=unrecorded)

    return record_list


def _count_every_list(real: Any) -> object:
    def record_list(self: SandboxJudge, *arguments: object, **named: object) -> None:
        self._absences._gap_s = 0.0
        real(self, *arguments, **named)

    return record_list


def _trust_the_datastore(_real: Any) -> object:
    def record_of(self: SandboxJudge, veth: HostVeth, *, is_datastore_whole: bool) -> Record:
        return Record.NEVER_PROMISED if is_datastore_whole else Record.MISSING

    return record_of


def _trust_the_datastore_beside_quarantine(_real: Any) -> object:
    def record_of(self: SandboxJudge, veth: HostVeth, *, is_datastore_whole: bool) -> Record:
        row = self._datastore.address(veth.address) if veth.address is not None else None
        is_in_doubt = row is not None and row.state is AddressState.QUARANTINED
        if is_in_doubt:
            return Record.QUARANTINED
        return Record.NEVER_PROMISED if is_datastore_whole else Record.MISSING

    return record_of


def _note_deletions(real: Any) -> object:
    def on_event(self: MissedEventDetector, event: SandboxEvent) -> None:
        if event.kind is EventKind.DELETED:
            vars(self).setdefault("said_to_be_gone", set()).add(event.container_id)
        real(self, event)

    return on_event


def _leave_out_noted_deletions(real: Any) -> object:
    def list_sandboxes(self: RuntimeReconciler, attachments: tuple[Attachment, ...]) -> dict[str, Sandbox] | None:
        listed = real(self, attachments)
        gone = vars(self._stream.missed_events).get("said_to_be_gone", set())
        return None if listed is None else {name: sandbox for name, sandbox in listed.items() if name not in gone}

    return list_sandboxes


def _name_the_application(real: Any) -> object:
    def attachment(*args: Any) -> Attachment:
        made: Attachment = real(*args)
        return replace(made, key=parse_key(f"app-in-{made.key.container_id}", made.key.ifname))

    return attachment


def _write_without_asking_again(real: Any) -> object:
    def spool_or_connect(*arguments: object, **options: object) -> int:
        return int(real(*arguments, **(options | {"try_connect": False})))

    return spool_or_connect


def _all_recorded_pods(_real: Any) -> object:
    return lambda self: self._datastore.policy_pods()


def _give_the_last_one_first(real: Any) -> object:
    """As host-local does: whatever somebody had is the first that is given."""

    def take(self: MemoryState, key: object, family: object) -> object:
        held = next((row.other_address for row in self.rows.addresses.values() if row.other_address and not row.is_in_use), None)
        found = real(self, key, family)
        if held is not None and self._free_extra is not None:
            self._free_extra = deque([found, *self._free_extra])
            return held
        return found

    return take


def _tolerate_a_present_route(real: Any) -> object:
    return lambda *args, **named: replace(real(*args, **named), tolerated=messages.PRESENT)


def _count_cooling_as_available(_real: Any) -> object:
    """The arithmetic of amazon-vpc-cni-k8s: all addresses less those that are assigned."""

    def deficit_count(snapshot: PoolSnapshot, settings: PoolSettings) -> int:
        counts = snapshot.counts
        available = counts.total - counts.assigned
        return max(settings.warm_ip_target - available, settings.minimum_ip_target - counts.total, 0)

    return deficit_count


def _remove_assigned(self: EniService, is_removed: Callable[[Any], bool]) -> None:
    """Take the addresses away from the sandboxes that have them, and out of the pool."""
    for row in self._datastore.addresses():
        if row.owner is not None and is_removed(row):
            with self._datastore.transaction() as uow:
                uow.unassign(row.owner, cooldown=timedelta(0), reason="not in the answer")
                uow.remove_addresses([row.address], reason="not in the answer")


def _remove_sandboxes_of_doubted_enis(real: Any) -> object:
    def withhold(self: EniService, doubted: Collection[CloudKey]) -> None:
        _remove_assigned(self, lambda row: row.eni_id in doubted and row.state is AddressState.ASSIGNED)
        real(self, doubted)

    return withhold


def _remove_sandboxes_of_doubted_addresses(real: Any) -> object:
    def withhold(self: EniService, doubted: Collection[CloudKey]) -> None:
        _remove_assigned(self, lambda row: row.address in doubted)
        real(self, doubted)

    return withhold


def _remove_doubted_addresses(_real: Any) -> object:
    def withhold(self: EniService, doubted: Collection[CloudKey]) -> None:
        with self._datastore.transaction() as uow:
            uow.remove_addresses([key for key in doubted if isinstance(key, IPv4Address)], reason="not in the list")

    return withhold


def _compare_with_metadata(real: Any, *, shown: tuple[DescribedEni, ...]) -> object:
    """`shown`: the ENIs as instance metadata shows them."""

    def sync_with_ec2(self: EniService, identity: InstanceIdentity, **_: object) -> EniSyncResult:
        assert isinstance(self._ec2, FakeEc2)
        with ec2_tells(self._ec2, shown):
            result: EniSyncResult = real(self, identity)
        return result

    return sync_with_ec2


def _require_ipv4(_real: Any) -> object:
    def described_enis(entries: Iterable[Mapping[str, Any]]) -> list[DescribedEni]:
        for entry in entries:
            if "PrivateIpAddress" not in entry:
                raise answers.incomplete(entry["NetworkInterfaceId"], "PrivateIpAddress")
        return [answers.described_eni(entry) for entry in entries]

    return described_enis


def _all_addresses_are_secondary(_real: Any) -> object:
    def addresses(entry: dict[str, Any]) -> tuple[IPv4Address, frozenset[IPv4Address]]:
        listed = frozenset(IPv4Address(item["PrivateIpAddress"]) for item in entry["PrivateIpAddresses"])
        return IPv4Address(entry["PrivateIpAddress"]), listed

    return addresses


KEPT = Judgement(SandboxVerdict.KEEP, (VerdictReason(ReasonCode.LISTED),))

REQUESTS = (
    Mutation(
        "no-sandbox-locks",
        "Requests for one sandbox do not wait for each other.",
        (Patch(KeyLocks, "hold", returning(nullcontext())),),
    ),
    Mutation(
        "no-deadline-check",
        "No request checks whether it is out of time, or whether its caller has left.",
        (Patch(Deadline, "check", returning(None)),),
    ),
    Mutation(
        "del-without-row-does-nothing",
        "A DEL of a sandbox without a row writes no tombstone and removes no links.",
        (Patch(DetachService, "_detach_unrecorded", returning(None)),),
    ),
    Mutation(
        "no-second-look-for-row",
        "A DEL that found no row ignores a row that is written before its own transaction.",
        (Patch(DetachService, "_detach_unrecorded", _run_and_return_none),),
    ),
    Mutation(
        "del-always-succeeds",
        "A DEL that failed returns success.",
        (Patch(DetachService, "detach_sandbox", _succeed_whatever_happens),),
    ),
    Mutation(
        "veths-named-after-pods",
        "Two sandboxes of one pod get the same name for their host veths.",
        (Patch(veth_names, "veth_name", _name_after_the_pod),),
    ),
    Mutation(
        "no-aliases",
        "A host veth does not name its sandbox.",
        (Patch(pool, "encode_alias", returning("")),),
    ),
    Mutation(
        "no-bound-of-sandboxes-per-pod",
        "A pod gets any number of sandboxes, and the pool grows for all of them.",
        (Patch(repeated_adds, "EARLIER_MAX", constant(1000)), Patch(RepeatedAdds, "repeats", returning(NO_REPEATS))),
    ),
    Mutation(
        "groups-not-required",
        "Every pod gets an address of the pool, also one that must have security groups of its own.",
        (Patch(branch, "choose_attach_mode", returning(Decision(AttachMode.POOL, "no annotation"))),),
    ),
    Mutation(
        "no-reserved-tables",
        "A branch ENI may use a route table of the kernel.",
        (Patch(branch_eni, "KERNELS_TABLES", constant(())),),
    ),
    Mutation(
        "branches-not-compared",
        "A branch ENI is wired though another sandbox uses its VLAN ID.",
        (Patch(branch, "branch_conflict", returning("")),),
    ),
)
"""ADD and DEL."""

EXISTENCE = (
    Mutation(
        "no-reaping",
        "No sandbox is ever judged to be gone.",
        (Patch(judge, "judge", returning(KEPT)),),
    ),
    Mutation(
        "gc-list-believed",
        "A sandbox that neither a GC nor the runtime lists is judged to be gone, whatever its age, namespace and links.",
        (Patch(judge, "judge", _believe_the_declaration),),
    ),
    Mutation(
        "proof-waits-for-age",
        "A sandbox is kept until it is five minutes old, also if it is proven gone.",
        (Patch(evidence, "_is_proven_gone", returning(False)),),
    ),
    Mutation(
        "records-read-after-list",
        "A list is compared with sandboxes that were recorded after it was made.",
        (Patch(SandboxJudge, "record_list", _read_records_after_the_list),),
    ),
    Mutation(
        "no-list-interval",
        "Every list counts, however soon after the one before it was made.",
        (Patch(SandboxJudge, "record_list", _count_every_list),),
    ),
    Mutation(
        "events-believed",
        "A sandbox that an event reported as deleted is left out of every later list.",
        (
            Patch(MissedEventDetector, "on_event", _note_deletions),
            Patch(RuntimeReconciler, "_list", _leave_out_noted_deletions),
        ),
    ),
    Mutation(
        "rowless-links-removed",
        "If the datastore is whole, the links of a sandbox without a row are removed, as if its ADD had never been answered.",
        (Patch(SandboxJudge, "_record_of", _trust_the_datastore),),
    ),
    Mutation(
        "rowless-links-removed-unless-quarantined",
        "As rowless-links-removed, but a sandbox keeps its links while its address is quarantined.",
        (Patch(SandboxJudge, "_record_of", _trust_the_datastore_beside_quarantine),),
    ),
    Mutation(
        "quarantine-not-resolved",
        "Quarantined sandboxes are not compared with later lists.",
        (Patch(QuarantineService, "resolve", returning(None)),),
    ),
    Mutation(
        "rows-named-after-applications",
        "A row that is rebuilt has the ID of the application's container, and not that of the sandbox.",
        (Patch(QuarantineService, "_attachment", _name_the_application),),
    ),
    Mutation(
        "kernel-shows-nothing",
        "The survey of the kernel shows no wired sandbox.",
        (Patch(FakeWiring, "survey", lambda _real: lambda *_, **__: KernelSurvey((), {}, frozenset(), {})),),
    ),
    Mutation(
        "wired-addresses-not-known",
        "An address that turns up at EC2 is free, though the kernel has it wired.",
        (Patch(EniService, "wired_addresses", returning(frozenset())),),
    ),
)
"""Who exists, and who has which address after a loss."""

SPOOL = (
    Mutation(
        "no-second-connect",
        "The plugin writes a DEL to disk without asking once more, under the lock, whether the daemon listens.",
        (Patch(plugin_spool, "spool_or_connect", _write_without_asking_again),),
    ),
    Mutation(
        "no-spool-lock",
        "The daemon replays the spool without waiting for plugins that are writing.",
        (Patch(SpoolDirectory, "_lock", returning(None)),),
    ),
    Mutation(
        "spool-read-once",
        "The spool is read at start only.",
        (Patch(Maintenance, "turn", returning(INTERVAL_S)),),
    ),
)
"""DELs that the plugin writes to disk."""

REFUSALS = (
    Mutation(
        "primary-read-as-secondary",
        "The primary address of an ENI is read as one of its secondary addresses.",
        (Patch(answers, "_addresses", _all_addresses_are_secondary),),
    ),
    Mutation(
        "unit-of-work-accepts-primary",
        "A unit of work does not check whether an address of the pool is the primary address of an ENI.",
        (Patch(SqlUnitOfWork, "_require_own_primary", returning(None)), Patch(View, "eni_of_primary", returning(None))),
    ),
    Mutation(
        "tables-accept-primary",
        "The tables have no triggers, so they accept a primary address in the pool.",
        (Patch(schema, "TRIGGERS", constant(())),),
    ),
    Mutation(
        "egress-address-given-at-once",
        "An address for egress is given again while the link of the sandbox that had it is still there.",
        (
            Patch(MemoryState, "_take_extra_address", _give_the_last_one_first),
            # The constraint would refuse such a row (I8): its index is what a datastore without it lacks.
            Patch(schema.address, "indexes", lambda _real: set()),
        ),
    ),
    Mutation(
        "present-route-tolerated",
        "A route that exists already, also one to another sandbox, is taken for the one that was to be added.",
        (Patch(messages, "add_route", _tolerate_a_present_route),),
    ),
)
"""What datastore and kernel refuse."""

POOL = (
    Mutation(
        "cooling-is-available",
        "The pool counts addresses that are cooling as available.",
        (Patch(plan, "deficit_count", _count_cooling_as_available),),
    ),
    Mutation(
        "intents-not-taken-up",
        "An operation at EC2 that was interrupted is not continued.",
        (Patch(EniProvisioner, "has_due_intents", returning(False)),),
    ),
    Mutation(
        "no-adoption-after-refusal",
        "After a refused attach the daemon does not ask EC2 which ENIs are attached, and adopts none.",
        (Patch(OperationRunner, "adopt_enis", returning(False)),),
    ),
    Mutation(
        "eni-not-marked",
        "An ENI whose creation failed is taken into use without the mark that EC2 deletes it with the instance.",
        (Patch(OperationRunner, "_ensure_delete_on_termination", returning(None)),),
    ),
    Mutation(
        "detach-does-nothing",
        "The call that detaches an ENI does nothing.",
        (Patch(FakeEc2, "detach_eni", returning(None)),),
    ),
    Mutation(
        "groups-not-followed",
        "ENIs that exist keep their security groups when those of the primary ENI change.",
        (Patch(SecurityGroups, "follow", returning(0)),),
    ),
    Mutation(
        "identity-read-once",
        "The daemon never reads the node's identity again after its start.",
        (Patch(NodeInfo, "learn_identity", returning(IDENTITY)),),
    ),
)
"""ENIs and the pool."""

ENIS = (
    Mutation(
        "sandboxes-of-absent-enis-removed",
        "If an answer lacks an ENI, the sandboxes on it lose their records.",
        (Patch(EniService, "_withhold", _remove_sandboxes_of_doubted_enis),),
    ),
    Mutation(
        "sandboxes-of-absent-addresses-removed",
        "If an answer lacks an address, the sandbox that has it loses its record.",
        (Patch(EniService, "_withhold", _remove_sandboxes_of_doubted_addresses),),
    ),
    Mutation(
        "absent-addresses-removed",
        "If an answer lacks an address, the daemon removes it from the pool, also while a sandbox has it.",
        (Patch(EniService, "_withhold", _remove_doubted_addresses),),
    ),
    Mutation(
        "metadata-believed",
        "The comparison takes its ENIs from instance metadata, as `shown` by the story, instead of EC2.",
        (Patch(EniService, "sync_with_ec2", _compare_with_metadata),),
    ),
    Mutation(
        "own-changes-forgotten",
        "An answer of EC2 that is older than a change of ours is believed.",
        (Patch(EniBook, "added", lambda _real: lambda *_, **__: {}),),
    ),
    Mutation(
        "ipv4-required",
        "An ENI without IPv4 address makes EC2's whole answer fail.",
        (Patch(answers, "described_enis", _require_ipv4),),
    ),
    Mutation(
        "no-pause-between-questions",
        "A difference between metadata and EC2 costs one call at every turn.",
        (Patch(external_changes, "ask_pause_s", returning(0.0)),),
    ),
    Mutation(
        "links-not-watched",
        "The daemon does not notice that the link of an ENI is gone.",
        (Patch(LinkWatch, "compare", returning(True)),),
    ),
)
"""What EC2, metadata and the kernel show of ENIs."""

POLICY_AND_SETTINGS = (
    Mutation(
        "every-del-reported",
        "The daemon reports a pod as gone to the policy agent while a newer sandbox has its name.",
        (Patch(PolicyHook, "pending_cleanups", _all_recorded_pods),),
    ),
    Mutation(
        "no-pending-cleanups",
        "The daemon forgets a pod whose end it could not report to the policy agent.",
        (Patch(MemoryState, "policy_pods", lambda _real: lambda *_, **__: {}),),
    ),
    Mutation(
        "contradictions-accepted",
        "The daemon starts with settings that contradict each other.",
        (Patch(loading, "contradictions", lambda _real: lambda *_, **__: []),),
    ),
)
"""The policy agent, and the settings at start."""

MUTATIONS = (*REQUESTS, *EXISTENCE, *SPOOL, *REFUSALS, *POOL, *ENIS, *POLICY_AND_SETTINGS)

Mutate = Callable[..., None]
"""The fixture `mutate`: called with the name of a mutation, and with what its replacements need of the story."""

BY_NAME = {mutation.name: mutation for mutation in MUTATIONS}
