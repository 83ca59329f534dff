"""The seams between use cases and the outside world: what `service` may ask of disk, kernel, cloud and runtime.

Services take these Protocols as arguments; only `bootstrap.py` knows who implements them. Fakes in `tests/fakes` implement
the same Protocols and pass the same contract tests as the adapters. All implementations are safe to call from any thread.
Over 300 lines because it is one list of promises, read as a whole; there is no code in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from datetime import datetime, timedelta
from ipaddress import IPv4Address, IPv4Network
from typing import Protocol

from ipamd.model.absence import Doubts
from ipamd.model.address import Address, AddressState
from ipamd.model.attachment import Attachment, NetnsIdentity, Wired, WiringSpec
from ipamd.model.cloud import CallUnderWay, DescribedEni, EniRequest, InstanceIdentity, MetadataEni
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.ids import AttachmentKey, EniId, InstanceId, MacAddress, SubnetId
from ipamd.model.intent import Intent
from ipamd.model.kernel import KernelSurvey, LinkEvent, RoutingDifference
from ipamd.model.ledger import LedgerEntry, LedgerEvent
from ipamd.model.sandbox import RuntimeInfo, Sandbox, SandboxEvent
from ipamd.model.snapshot import Snapshot
from ipamd.model.stock import PoolCounts, Stock

Failpoint = Callable[[str], None]
"""Called with a name between two effects; tests kill or pause the process there (`ipamd.failpoints`)."""


def no_failpoint(_name: str) -> None:
    """Do nothing: in production no failpoint is armed."""


class Clock(Protocol):
    """Wall clock and monotonic clock, a port so that tests control time. The two are never mixed."""

    def now(self) -> datetime:
        """Aware UTC wall time: for records."""
        ...

    def monotonic(self) -> float:
        """Seconds that never go back: for deadlines and ages within one process."""
        ...


class UnitOfWork(Protocol):
    """Changes that become true together, on disk and in memory, or not at all.

    Every change writes its ledger row in the same transaction. All changes of one unit have one time, the clock's when it was
    opened; `cooldown` counts from then. Nothing outside SQLite may be called while one is open (I10).
    All methods raise InvariantError when a constraint refuses, IllegalTransitionError for a wrong address state; either rolls
    the whole unit back.
    """

    def put_eni(self, eni: Eni) -> None:
        """Add an ENI, or replace what is known of it."""
        ...

    def remove_eni(self, eni_id: EniId, *, reason: str) -> None:
        """Forget an ENI and its unassigned addresses. InvariantError if one is assigned or reserved."""
        ...

    def add_addresses(
        self,
        eni_id: EniId,
        addresses: Iterable[IPv4Address],
        *,
        prefix: IPv4Network | None = None,
        cooldown: timedelta | None = None,
    ) -> None:
        """Add addresses which EC2 confirmed: free, or cooling where a lost datastore cannot tell when they were last used (I8).

        An address that is known on the same ENI is left as it is; if it is lost, `heal` says that it is there again.
        """
        ...

    def remove_addresses(self, addresses: Iterable[IPv4Address], *, reason: str) -> None:
        """Forget addresses which are neither assigned nor reserved. InvariantError otherwise (I2)."""
        ...

    def confirm(self, attachment: Attachment) -> None:
        """reserved -> assigned, with the attachment. InvariantError if the reservation is not this key's."""
        ...

    def adopt(self, attachment: Attachment) -> None:
        """free, cooling or quarantined -> assigned for a wired sandbox that the datastore did not know."""
        ...

    def move_table(self, key: AttachmentKey, *, route_table: int) -> Attachment:
        """Record that an attached sandbox uses another route table now: its ENI was attached again at another device index.

        Returns: the attachment as it is now. UnknownAttachmentError if there is none; it changes nothing.
        """
        ...

    def unassign(
        self, key: AttachmentKey, *, cooldown: timedelta, reason: str, event: LedgerEvent = LedgerEvent.UNASSIGNED
    ) -> Attachment:
        """assigned -> cooling; the attachment row goes. UnknownAttachmentError if there is none.

        `event` is what the ledger says: `unassigned` when the runtime asked, `reaped` when we concluded it.
        """
        ...

    def abort(self, address: IPv4Address, *, cooldown: timedelta, reason: str) -> None:
        """reserved -> cooling: an ADD failed after its reservation."""
        ...

    def free(self, address: IPv4Address, *, reason: str) -> None:
        """cooling -> free: its cooldown is over. A lost address is removed instead."""
        ...

    def lose(self, address: IPv4Address, *, reason: str) -> None:
        """EC2 does not show an address any more: a free one is removed, any other is lost from now on. It is never given again (I7).

        A lost address keeps its state and its sandbox (I2), and is removed where it would become free. Repeatable; an unknown
        address is fine.
        """
        ...

    def heal(self, address: IPv4Address, *, reason: str) -> None:
        """EC2 shows a lost address again. Repeatable; an unknown address, or one that is not lost, is fine."""
        ...

    def put_doubts(self, doubts: Doubts) -> None:
        """Replace what is recorded of ENIs and addresses that EC2 did not show lately."""
        ...

    def quarantine(self, address: IPv4Address, *, reason: str) -> None:
        """free, reserved or cooling -> quarantined: the sources disagree on who has it."""
        ...

    def resolve(self, address: IPv4Address, *, cooldown: timedelta, reason: str) -> None:
        """quarantined -> cooling: nothing claims the address any more."""
        ...

    def put_tombstone(self, key: AttachmentKey) -> None:
        """Remember that DEL was done for a key: a late ADD is refused (I4)."""
        ...

    def drop_tombstones(self, *, older_than: timedelta) -> int:
        """Forget tombstones older than an age on the monotonic clock; returns how many. One of unknown age is dated now."""
        ...

    def open_intent(self, intent: Intent) -> None:
        """Record what we are about to ask of EC2, before asking (I9)."""
        ...

    def update_intent(self, intent: Intent) -> None:
        """Replace the payload of an open intent (an ENI ID learnt on the way, say)."""
        ...

    def close_intent(self, intent_id: str, *, outcome: str) -> None:
        """Close an intent, with its outcome for the ledger."""
        ...

    def mark_restored(self, *, detail: str) -> None:
        """Record that kernel and runtime were read completely: from now on this datastore knows every sandbox."""
        ...

    def note(
        self,
        event: LedgerEvent,
        *,
        address: IPv4Address | None = None,
        key: AttachmentKey | None = None,
        eni_id: EniId | None = None,
        detail: str = "",
    ) -> None:
        """Append a ledger row that no other change writes (a refusal, a repair, a verdict)."""
        ...


class Datastore(Protocol):
    """Who owns which address. Reads are from memory and never block on disk; they equal the last committed unit of work."""

    def transaction(self) -> AbstractContextManager[UnitOfWork]:
        """Open the one unit of work: serialised, BEGIN IMMEDIATE. An exception inside rolls back disk and memory."""
        ...

    def reserve(self, key: AttachmentKey) -> Address:
        """Take a free address for a key, in memory only (I5).

        Densest ENI first, densest prefix within it, longest-free first within that; only attached, host-ready, managed ENIs
        (I7). Returns: the address, now reserved. Raises: PoolEmptyError with the counts; InvariantError if the key has one.
        """
        ...

    def hold(self, addresses: frozenset[IPv4Address]) -> None:
        """Replace the set of addresses that `reserve` must not take for now, in memory only: their proof is in doubt (I7).

        It may name addresses that are not free or not known; they are held once they become free.
        """
        ...

    def snapshot(self) -> Snapshot:
        """Copy everything at one moment: for readers to whom two reads must not contradict each other. Costs a full copy."""
        ...

    def attachment(self, key: AttachmentKey) -> Attachment | None:
        """Find one attachment."""
        ...

    def attachments(self) -> tuple[Attachment, ...]:
        """All attachments, by creation."""
        ...

    def address(self, address: IPv4Address) -> Address | None:
        """Find one address."""
        ...

    def addresses(self, *, state: AddressState | None = None) -> tuple[Address, ...]:
        """All addresses, or those in one state (lost ones too), ascending. Cost: the number of addresses; not for every ADD."""
        ...

    def eni(self, eni_id: EniId) -> Eni | None:
        """Find one ENI."""
        ...

    def enis(self) -> tuple[Eni, ...]:
        """All ENIs, by network card and device index."""
        ...

    def counts(self) -> PoolCounts:
        """Addresses by state over managed ENIs. Cost: the number of ENIs."""
        ...

    def stock(self) -> Stock:
        """ENIs with their counters, and the sum, all of one moment. Cost: the number of ENIs, not of addresses."""
        ...

    def is_tombstoned(self, key: AttachmentKey) -> bool:
        """Whether DEL was done for this key."""
        ...

    def open_intents(self) -> tuple[Intent, ...]:
        """Open intents, oldest first: their outcome at EC2 is not known."""
        ...

    def doubts(self) -> Doubts:
        """ENIs and addresses that EC2 did not show lately; an earlier process may have recorded them."""
        ...

    def history(self, subject: str, *, limit: int) -> tuple[LedgerEntry, ...]:
        """Ledger rows of an address or of container IDs that begin with `subject`, oldest first, the last `limit` of them."""
        ...

    def file_problem(self) -> str:
        """Say in one sentence if no change is accepted any more; else "".

        The file was removed or replaced under us, or the disk failed so that nobody knows what it holds: only a restart helps.
        """
        ...

    def audit(self) -> list[str]:
        """Compare memory with disk and check what constraints cannot say; one sentence per difference, empty if clean."""
        ...

    def close(self) -> None:
        """Finish and release the file."""
        ...


class Spool(Protocol):
    """DELs that the plugin stored on disk because the daemon did not answer."""

    def pending_count(self) -> int:
        """How many entries wait."""
        ...

    def replay(self) -> AbstractContextManager[Iterator[SpoolEntry]]:
        """Hold the exclusive lock and yield the entries, oldest first. Damaged ones are set aside and not yielded."""
        ...


class SpoolEntry(Protocol):
    """One spooled DEL."""

    @property
    def name(self) -> str:
        """The entry's file name, for messages."""
        ...

    @property
    def key(self) -> AttachmentKey:
        """Which interface of which sandbox is to be detached."""
        ...

    def done(self) -> None:
        """Remove the entry durably: its DEL has been carried out."""
        ...


class Wiring(Protocol):
    """Sandbox wiring in the kernel. No dumps, no fork, no EC2 on the ADD and DEL path; every write is idempotent."""

    def identify_netns(self, path: str) -> NetnsIdentity:
        """Which namespace a path leads to. NetnsError if it is missing or none, WiringError if that could not be found out."""
        ...

    def wire(self, spec: WiringSpec) -> Wired:
        """Create and configure the veth pair, routes and rules. On any error everything is undone before it is raised.

        Raises: NetnsError, WiringError.
        """
        ...

    def unwire(self, spec: WiringSpec) -> None:
        """Remove all wiring of a spec and wait until the link is gone (rollback). Absent parts are fine."""
        ...

    def mark_for_deletion(self, *, host_veth: str, address: IPv4Address, route_table: int) -> None:
        """Drop route and rules, take the link down and put it into the dying group (DEL). Absent parts are fine."""
        ...

    def sweep(self) -> None:
        """Delete every dying link in one kernel call; returns when they are gone. None dying is fine."""
        ...

    def check(self, spec: WiringSpec) -> list[str]:
        """Compare the kernel, both sides, with a spec; one sentence per difference (CHECK; may dump)."""
        ...

    def repair(self, specs: Iterable[WiringSpec]) -> list[str]:
        """Put back route, rules, alias and up state of wired sandboxes; one sentence per repair or per part beyond repair.

        A link that is missing, or a route that leads elsewhere, is reported and not touched (I1).
        """
        ...

    def survey(self) -> KernelSurvey:
        """Look at all our wiring in the host namespace. KernelDumpError if every try was interrupted (I11)."""
        ...

    def remove_leftover(self, *, host_veth: str | None, address: IPv4Address | None) -> None:
        """Remove wiring that nobody owns: link by name, and every route and rule of an address, in any table.

        Without `address` it is the one that the link's alias names, unless it is routed through another link.
        """
        ...


class HostNetwork(Protocol):
    """Routing of the node and its ENIs: sysctls, ENI tables, mark rules, the nftables table. Repaired every 30 s."""

    def setup_node(self, identity: InstanceIdentity) -> None:
        """Set up the node's own part: sysctls, mark rules, nftables table. Idempotent. Raises: WiringError."""
        ...

    def await_link(self, mac: MacAddress) -> None:
        """Return when the link of an ENI that is being attached has appeared. WiringError if it does not within a bound."""
        ...

    def setup_eni(self, eni: Eni) -> None:
        """Bring a secondary ENI's link up with address, table, routes and rule. WiringError if its link does not appear."""
        ...

    def teardown_eni(self, eni: Eni, *, keep: Iterable[Eni] = ()) -> None:
        """Remove an ENI's table and rules, but nothing that an ENI of `keep` needs. Idempotent.

        A successor at the same place (device index and card) has the same table.
        """
        ...

    def reconcile(self, *, identity: InstanceIdentity, enis: Iterable[Eni]) -> list[str]:
        """Repair what other software on the node removed or changed; one sentence per repair."""
        ...

    def differences(self, *, identity: InstanceIdentity | None, enis: Iterable[Eni]) -> list[RoutingDifference]:
        """Compare as `reconcile` does, and change nothing. Without an identity the node's own part is left out.

        Raises: KernelDumpError if every try was interrupted (I11).
        """
        ...

    def links(self) -> frozenset[MacAddress]:
        """MACs of the links that are present now, up or down, from one uninterrupted dump; sandboxes' links are left out.

        Raises: KernelDumpError if every try was interrupted (I11); WiringError.
        """
        ...

    def link_events(self) -> Iterator[LinkEvent]:
        """Follow the kernel's link notifications, blocking; sandboxes' links are left out.

        The first event, OPENED, means that the subscription is open. A lost notification is a MISSED event, never silence (I11).
        Ends after `stop_link_events`. Raises: WiringError if the subscription cannot be opened or breaks. One reader at a time.
        """
        ...

    def stop_link_events(self) -> None:
        """End a running `link_events` iterator from another thread, and every later one at once."""
        ...


class Ec2(Protocol):
    """The EC2 calls the pool makes. Each is one API call plus bounded retries; errors are CloudError and below."""

    def describe_enis(self, instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        """All ENIs attached to the instance (one paginated call), by device index."""
        ...

    def describe_eni(self, eni_id: EniId) -> DescribedEni:
        """One ENI. CloudNotFoundError if it does not exist."""
        ...

    def find_by_token(self, token: str) -> tuple[DescribedEni, ...]:
        """ENIs whose tag `vpc-ipamd/intent` is `token`, by ID: what a creation with this token made (one paginated call).

        Empty is not evidence by itself: a new ENI may not be shown yet (I11).
        """
        ...

    def describe_attached_eni(self, eni_id: EniId) -> DescribedEni:
        """Wait until EC2 shows an ENI as attached, and return its description. CloudError if it does not within a bound."""
        ...

    def subnet_cidr(self, subnet_id: SubnetId) -> IPv4Network:
        """A subnet's IPv4 block; cached for the life of the process."""
        ...

    def subnet_free_count(self, subnet_id: SubnetId) -> int:
        """How many addresses of a subnet EC2 says are free, now. Says nothing about whole /28s."""
        ...

    def create_eni(self, request: EniRequest) -> DescribedEni:
        """Create an ENI with its addresses or prefixes; the same token gives the same ENI.

        Raises: CloudError; its `may_have_happened` tells whether an ENI may have been created all the same.
        """
        ...

    def attach_eni(self, eni_id: EniId, *, instance_id: InstanceId, device_index: int, network_card: int) -> str:
        """Attach, returning the attachment ID. EniLimitError teaches a lower cap."""
        ...

    def set_delete_on_termination(self, eni_id: EniId, *, attachment_id: str) -> None:
        """Have EC2 delete the ENI together with the instance."""
        ...

    def set_security_groups(self, eni_id: EniId, *, security_group_ids: tuple[str, ...]) -> None:
        """Replace the ENI's security groups, at least one. CloudNotFoundError if the ENI does not exist."""
        ...

    def detach_eni(self, attachment_id: str) -> None:
        """Detach; an attachment that is gone is fine."""
        ...

    def delete_eni(self, eni_id: EniId) -> None:
        """Delete; an ENI that is gone is fine."""
        ...

    def assign_addresses(self, eni_id: EniId, *, count: int) -> frozenset[IPv4Address]:
        """Allocate `count` more secondary addresses. SubnetExhaustedError, EniLimitError."""
        ...

    def assign_prefixes(self, eni_id: EniId, *, count: int) -> frozenset[IPv4Network]:
        """Allocate `count` more /28 prefixes. SubnetExhaustedError, EniLimitError."""
        ...

    def unassign(self, eni_id: EniId, *, addresses: Iterable[IPv4Address], prefixes: Iterable[IPv4Network]) -> None:
        """Release addresses and prefixes (at least one); what is not there is fine."""
        ...

    def instance_limits(self, instance_type: str) -> InstanceLimits:
        """DescribeInstanceTypes, then the built-in table, then a safe default. Never raises for an unknown type."""
        ...

    def call_counts(self) -> Mapping[str, int]:
        """Calls since start, retries included, by API name."""
        ...

    def calls_under_way(self) -> tuple[CallUnderWay, ...]:
        """The calls that are being made or retried now, oldest first, each with its last refusal."""
        ...


class Metadata(Protocol):
    """Instance metadata (IMDSv2): a hint, never a reason to remove (I7)."""

    def identity(self) -> InstanceIdentity:
        """Who this node is. CloudError if it cannot be read within its deadline."""
        ...

    def list_interfaces(self) -> frozenset[MacAddress]:
        """MACs of the ENIs that metadata shows, at least one. One request, one attempt. CloudError if it is not answered."""
        ...

    def interface(self, mac: MacAddress) -> MetadataEni:
        """One ENI: at most four requests, fewer when it was read before; one attempt each, in one connection.

        No addresses or no prefixes there (404) are empty sets. Raises: CloudError for everything else, a vanished ENI included.
        """
        ...

    def request_count(self) -> int:
        """HTTP requests made since the start, unanswered ones included: whoever has a budget of them reads it here."""
        ...


class Runtime(Protocol):
    """The container runtime over CRI, read side only."""

    def info(self) -> RuntimeInfo:
        """Find the socket and ask who answers. RuntimeUnreachableError otherwise."""
        ...

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """Every sandbox in any state: a complete answer, or RuntimeUnreachableError (I11)."""
        ...

    def events(self) -> Iterator[SandboxEvent]:
        """Follow the event stream. Its first event, SUBSCRIBED, means that the stream is open. It ends only with an error.

        Raises: EventsUnsupportedError if the runtime has no events; RuntimeUnreachableError when the stream broke.
        """
        ...

    def cancel_events(self) -> None:
        """End a running `events` iterator from another thread."""
        ...
