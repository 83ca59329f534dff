"""The seams between use cases and the outside world: what `service` may ask of disk, kernel, cloud and runtime.

Services take these Protocols as arguments; only `adapters.py` knows who implements them. Fakes in `tests/fakes` implement
the same Protocols and pass the same contract tests as the adapters. All implementations are safe to call from any thread.
There is no code in here, only promises.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from ipaddress import IPv4Network
from typing import TYPE_CHECKING, Protocol

from ipamd.model.attachment import AttachRequest, NetnsIdentity, Wired, WiringSpec
from ipamd.model.aws_node import Allocation, ImportResult, Led, Sign
from ipamd.model.branch import Branch, PodFacts
from ipamd.model.call_report import CallReport
from ipamd.model.cloud import CallUnderWay, DescribedEni, EniRequest, InstanceIdentity, MetadataEni
from ipamd.model.eni import Eni, InstanceLimits
from ipamd.model.family import Family, IpAddress, IpNetwork
from ipamd.model.freeze import FreezeCause
from ipamd.model.history import HistoryRecord, Recorded
from ipamd.model.ids import AttachmentKey, EniId, InstanceId, MacAddress, PodName, SubnetId
from ipamd.model.kernel import (
    ForeignLink,
    HostChange,
    HostVeth,
    KernelSurvey,
    LinkEvent,
    RepairedObject,
    RoutingDifference,
    VlanLink,
)
from ipamd.model.sandbox import RuntimeInfo, Sandbox, SandboxEvent
from ipamd.model.subnets import DescribedSubnet

if TYPE_CHECKING:
    from ipamd.datastore.spool import Spool as Spool
    from ipamd.datastore.store import Datastore as Datastore
    from ipamd.datastore.unit_of_work import UnitOfWork as UnitOfWork
else:
    # The disk has one implementation and no fake, so its classes say themselves what they promise. Here are their names alone: the
    # rooms are given a datastore, and import neither it nor SQLAlchemy.
    Datastore = Spool = UnitOfWork = object


# What every service needs of the process: its clocks, and the points at which a test stops it.


Failpoint = Callable[[str], None]
"""Called with a name between two effects; tests kill or pause the process there (`ipamd.failpoints`)."""


def no_failpoint(_name: str) -> None:
    """Do nothing: in production no failpoint is armed."""


class Clock(Protocol):
    """Wall clock and monotonic clock, a port so that tests control time. The two are never mixed."""

    def now(self) -> datetime:
        """Aware UTC wall time: for records."""

    def monotonic(self) -> float:
        """Seconds that never go back: for deadlines and ages within one process."""


# EC2 and instance metadata.


class Ec2(Protocol):
    """The EC2 calls the pool makes. Each is one API call plus bounded retries; errors are CloudError and below."""

    def describe_enis(self, instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        """All ENIs attached to the instance (one paginated call), by device index."""

    def describe_eni(self, eni_id: EniId) -> DescribedEni:
        """One ENI. CloudNotFoundError if it does not exist."""

    def find_enis(self, eni_ids: Collection[EniId]) -> tuple[DescribedEni, ...]:
        """Those of these ENIs (at most 200) that EC2 shows, in the node's VPC, by ID, attached or not (one paginated call)."""

    def find_by_token(self, token: str) -> tuple[DescribedEni, ...]:
        """ENIs whose tag `vpc-ipamd/intent` is `token`, by ID: what a creation with this token made (one paginated call).

        Empty is not evidence by itself: a new ENI may not be shown yet (I11).
        """

    def find_detached(self, tags: Mapping[str, str]) -> tuple[DescribedEni, ...]:
        """ENIs of the node's VPC that are attached to nothing (`available`) and carry all these tags, by ID (one paginated call).

        `tags`: at least one; the value "" stands for any. Empty is not evidence by itself (I11).
        """

    def find_address(self, address: IpAddress, *, subnet_id: SubnetId | None = None) -> tuple[DescribedEni, ...]:
        """ENIs of the node's VPC, by ID, that have an address as one of their own; in a subnet also those that have its prefix (one
        paginated call). Empty is not evidence by itself (I11).
        """

    def describe_attached_eni(self, eni_id: EniId) -> DescribedEni:
        """Wait until EC2 shows an ENI as attached, and return its description. CloudError if it does not within a bound."""

    def subnet_cidr(self, subnet_id: SubnetId) -> IPv4Network:
        """A subnet's IPv4 block; cached for the life of the process."""

    def describe_subnets(self, *, vpc_id: str, availability_zone: str) -> tuple[DescribedSubnet, ...]:
        """The subnets of a VPC in one zone, by ID (one paginated call); those that other accounts own are not among them."""

    def describe_subnet(self, subnet_id: SubnetId) -> DescribedSubnet:
        """One subnet, now. CloudNotFoundError if it does not exist."""

    def subnet_free_count(self, subnet_id: SubnetId) -> int:
        """How many addresses of a subnet EC2 says are free, now. Says nothing about whole /28s."""

    def create_eni(self, request: EniRequest) -> DescribedEni:
        """Create an ENI with its addresses or prefixes; the same token gives the same ENI.

        Raises: CloudError; its `may_have_happened` tells whether an ENI may have been created all the same.
        """

    def attach_eni(self, eni_id: EniId, *, instance_id: InstanceId, device_index: int, network_card: int) -> str:
        """Attach, returning the attachment ID. EniLimitError teaches a lower cap, DeviceIndexTakenError another place."""

    def set_delete_on_termination(self, eni_id: EniId, *, attachment_id: str) -> None:
        """Have EC2 delete the ENI together with the instance."""

    def set_security_groups(self, eni_id: EniId, *, security_group_ids: tuple[str, ...]) -> None:
        """Replace the ENI's security groups, at least one. CloudNotFoundError if the ENI does not exist."""

    def detach_eni(self, attachment_id: str) -> None:
        """Detach; an attachment that is gone is fine."""

    def delete_eni(self, eni_id: EniId) -> None:
        """Delete; an ENI that is gone is fine."""

    def assign_addresses(self, eni_id: EniId, *, count: int) -> frozenset[IpAddress]:
        """Allocate `count` more secondary addresses. SubnetExhaustedError, EniLimitError."""

    def assign_prefixes(self, eni_id: EniId, *, count: int) -> frozenset[IpNetwork]:
        """Allocate `count` more /28 prefixes. SubnetExhaustedError, EniLimitError."""

    def unassign(self, eni_id: EniId, *, addresses: Iterable[IpAddress], prefixes: Iterable[IpNetwork]) -> None:
        """Release addresses and prefixes (at least one); what is not there is fine."""

    def instance_limits(self, instance_type: str) -> InstanceLimits:
        """DescribeInstanceTypes, then the built-in table, then a safe default. Never raises for an unknown type."""

    def call_reports(self) -> Mapping[str, CallReport]:
        """What became of the calls since start, by API name; an API that was never called is not in it."""

    def throttling(self) -> tuple[float, float] | None:
        """When EC2 began to throttle this process and when it last did, on the monotonic clock; None: not for minutes."""

    def rest(self, *, is_wanted: bool) -> None:
        """Called now and then: let go of what has not been used for long; if it `is_wanted` soon, have it ready."""

    def calls_under_way(self) -> tuple[CallUnderWay, ...]:
        """The calls that are being made or retried now, oldest first, each with its last refusal."""


class Metadata(Protocol):
    """Instance metadata (IMDSv2): a hint, never a reason to remove (I7)."""

    def identity(self) -> InstanceIdentity:
        """Who this node is. CloudError if it cannot be read within its deadline."""

    def list_interfaces(self) -> frozenset[MacAddress]:
        """MACs of the ENIs that metadata shows, at least one. One request, one attempt. CloudError if it is not answered."""

    def interface(self, mac: MacAddress, *, known: Eni | None = None) -> MetadataEni:
        """One ENI: at most four requests, two when it was read before; one attempt each, in one connection.

        `known` is the ENI of this MAC as EC2 has just shown it: its ID and device index need not be read.

        No addresses or no prefixes there (404) are empty sets. Raises: CloudError for everything else, a vanished ENI included.
        """

    def notices(self) -> Mapping[FreezeCause, str]:
        """What EC2 has announced about the end of this instance, in words; empty for none. One attempt each.

        Two requests on a spot instance, none on others, and one more until its life cycle is known. Raises: CloudError; then nothing
        is known.
        """

    def ipv6_address(self) -> str:
        """The primary ENI's own IPv6 address; "" if it has none. One request, one attempt. Raises: CloudError."""

    def request_count(self) -> int:
        """HTTP requests made since the start, unanswered ones included: whoever has a budget of them reads it here."""


# Network policy.


class PolicyAgent(Protocol):
    """aws-network-policy-agent on this node. It knows pods by name alone, remembers each until it is told to forget it, and attaches
    no filter for a name that it remembers. Both methods raise PolicyAgentSilentError, PolicyAgentRefusedError.
    """

    def enforce(self, pod: PodName, *, mode: str, timeout_s: float) -> None:
        """Have filters attached to the host veth that is named by the pod. Waits for an agent that is away."""

    def forget(self, pod: PodName, *, timeout_s: float, is_patient: bool) -> None:
        """Have a name forgotten; one that it does not know is fine. `is_patient`: wait for an agent that is away."""


# Security groups for pods.


class PodFactsSource(Protocol):
    """Who tells whether a pod must have a branch ENI, and which: the annotations that the runtime hands over, or kubelet."""

    def facts(self, request: AttachRequest, *, timeout_s: float) -> PodFacts:
        """What is known of the pod now. A source that does not answer within `timeout_s` says so (`Wish.UNKNOWN`); it never raises."""

    def wait(self, *, timeout_s: float) -> bool:
        """Wait until the facts may have changed, at most `timeout_s`. Returns: False, at once, if for this sandbox they never will."""

    def close(self) -> None:
        """End what is held open."""


# The kernel: the wiring of sandboxes, and the host's routing.


class Wiring(Protocol):
    """Sandbox wiring in the kernel. No dumps, no fork, no EC2 on the ADD and DEL path; every write is idempotent."""

    def identify_netns(self, path: str) -> NetnsIdentity:
        """Which namespace a path leads to. NetnsError if it is missing or none, WiringError if that could not be found out."""

    def wire(self, spec: WiringSpec) -> Wired:
        """Create and configure the veth pair, routes and rules. On any error everything is undone before it is raised.

        With `branch` the VLAN link too, in place of whatever link has its name or ID: the caller knows that no sandbox needs that.
        Raises: NetnsError, WiringError; BranchPendingError if the link of the trunk ENI is not there.
        """

    def unwire(self, spec: WiringSpec) -> None:
        """Remove all wiring of a spec and wait until the link is gone (rollback). Absent parts are fine."""

    def mark_for_deletion(
        self,
        *,
        host_veth: str,
        address: IpAddress,
        route_table: int,
        is_source_checked: bool = False,
        key: AttachmentKey | None = None,
        second: WiringSpec | None = None,
        branch: Branch | None = None,
    ) -> HostVeth | None:
        """Drop route and rules, take the link down and put it into the dying group (DEL). Absent parts are fine.

        Returns: the link of that name as it was, left alone if its alias names another address, or not `key` where that is given;
            None if there was none.
        `is_source_checked`: the host drops what comes from a source that is not routed back (`HostNetwork.is_source_checked`), so
        the link may stay up until the sweep, if no route of the address is left. `second`: that for egress, which goes the same way.
        `branch`: the VLAN link goes the same way too, if its alias has this address, and so do the rules that lead to its table.
        """

    def veth(self, name: str) -> HostVeth | None:
        """Look at one link of the host; None if there is none of this name. WiringError if it is no veth."""

    def rename_veth(self, *, host_veth: str, to: str, address: IpAddress, branch: Branch | None = None) -> None:
        """Rename a sandbox's link, with its route. Idempotent; a link of that name whose alias has another address stays.

        It may be down for a moment: older kernels rename only a link that is down. `branch`: the rules that name the link follow.
        Raises: WiringError.
        """

    def stamp(self, veth: HostVeth, *, key: AttachmentKey, address: IpAddress) -> HostVeth:
        """Write our alias on a host veth that amazon-vpc-cni-k8s made; nothing that carries packets changes.

        Returns: the veth as it is now. Raises: WiringError, also if it is another link by now, or has an identity already.
        """

    def stamp_branch(self, veth: HostVeth, led: Led, *, key: AttachmentKey, eni_id: EniId) -> tuple[HostVeth, VlanLink]:
        """Do the same with a host veth that leads to a branch ENI, and with the VLAN link that it leads through.

        Returns: both as they are now. Raises: WiringError, as `stamp`.
        """

    def second_links(self, firsts: Iterable[HostVeth], *, egress: Family) -> Mapping[str, int]:
        """The links by which amazon-vpc-cni-k8s gives sandboxes egress: index by the name of the sandbox's own host veth.

        Raises: WiringError, KernelDumpError.
        """

    def take_second(self, index: int, *, first: HostVeth, key: AttachmentKey, egress: Family, told: IpAddress | None) -> HostVeth:
        """Make such a link one of ours: fixed neighbours at both ends, alias, name. It is down for a moment; it can be repeated.

        `told`: its address by a file, where no route leads to it.
        Returns: the link as it is now. Raises: WiringError, KernelDumpError.
        """

    def sweep(self) -> None:
        """Delete every dying link in one kernel call; returns when they are gone. None dying is fine."""

    def check(self, spec: WiringSpec) -> list[str]:
        """Compare the kernel, both sides, with a spec; one sentence per difference (CHECK; may dump the host's tables)."""

    def check_inside(self, spec: WiringSpec, *, is_arrival_only: bool = False) -> list[str]:
        """Compare a sandbox's own side with a spec; one sentence per difference. Bounded in memory, whatever is there (I16).

        `is_arrival_only`: tell only what keeps packets from it.
        Raises: NetnsError if its namespace is gone; WiringError.
        """

    def repair(
        self, specs: Iterable[WiringSpec], *, seen: KernelSurvey | None = None, held: Collection[RepairedObject] = ()
    ) -> list[str]:
        """Put back route, rules, alias, MAC, MTU and up state of wired sandboxes; one sentence per repair or part beyond repair.

        A repair is a `Repaired`. A link that is missing or may be another sandbox's, and a route to another sandbox's veth, are
        reported and not touched (I1).

        Args:
            seen: a survey that is at hand; it need not be whole.
            held: objects to leave as they are.
        """

    def cut_off(self, spec: WiringSpec) -> str:
        """Take a sandbox's link and that to its branch ENI down; `repair` brings them back, and DEL ends them as any.

        A link whose alias names another sandbox or address is left alone. Returns: what was done. Raises: WiringError.
        """

    def survey(self, *, may_be_torn: bool = False) -> KernelSurvey:
        """Look at all our wiring in the host namespace. KernelDumpError if every try was interrupted (I11).

        `may_be_torn`: return what was seen then, with `is_whole` false: what it shows was there, what it lacks may be there.
        """

    def write_former_rules(self, specs: Iterable[WiringSpec]) -> None:
        """Give each sandbox the rules that amazon-vpc-cni-k8s gives it, then remove our own table and the rules to it and of prefixes.

        No packet is lost. Raises: WiringError, KernelDumpError; what is there then serves, and it can be repeated.
        """

    def remove_leftover(
        self,
        *,
        host_veth: str | None,
        address: IpAddress | None,
        key: AttachmentKey | None = None,
        branch: Branch | None = None,
    ) -> IpAddress | None:
        """Remove wiring that nobody owns: link by name, and every route and rule of an address, in any table. `branch`: its VLAN link,
        its table and the rules that lead there, if the link's alias has this address, or none.

        Without `address` it is the one that the link's alias names, unless it is routed through another link. Returns: which it was.
        With the link goes the one for egress of its sandbox, which is `key` where it does not say.
        """


class VlanLinks(Protocol):
    """Makes VLAN links where the kernel does not (a lab); whoever deletes or changes one does it as with the kernel's own."""

    def make(self, name: str, *, vlan: int, parent: int, mac: MacAddress) -> bool:
        """Make a link, down, with a name and a MAC, on the link with index `parent`; frames there carry the ID `vlan`.

        Returns: False if that has one of this ID, of any name, or the name is taken. Raises: WiringError.
        """


class HostNetwork(Protocol):
    """Routing of the node and its ENIs: sysctls, ENI tables, mark rules, the nftables table. Repaired at once, and on a clock."""

    def setup_node(self, identity: InstanceIdentity) -> None:
        """Set up the node's own part: sysctls, mark rules, nftables table. Idempotent. Raises: WiringError."""

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[str]:
        """Put in place what drops a sandbox's packets with a source that is not its own, redirects and IPv6, and the one rule that
        leads to sandboxes. Idempotent.

        Needs no identity of the node and no ENI. `is_silent`: as in `reconcile`. Returns: one sentence per repair, and one with
        NOT_REPAIRED per refusal.
        """

    def release(self) -> str:
        """Let neighbour discovery of sandboxes pass, which those need that amazon-vpc-cni-k8s wires, and answer for no free address;
        `confine_sandboxes` and `answer_for` end it.

        Returns: what was done, "" if nothing stood against it. Raises: WiringError.
        """

    def confinement_differences(self) -> list[RoutingDifference]:
        """Compare as `confine_sandboxes` does, and change nothing."""

    def are_tables_in_place(self) -> bool | None:
        """Whether no nftables table of ours has changed since it was compared; None if it is unknown.

        A fraction of a millisecond, whatever others have in nftables; much less if only our own changes were made since.
        """

    def is_source_checked(self) -> bool:
        """Whether no sandbox can send with a source that is not routed to it: verified once, and unchanged at this moment.

        Cheap (tens of microseconds, no lock that is held while something outside is waited for). False when in doubt (I11).
        """

    def egress(self) -> tuple[Family | None, str]:
        """Of which other family a new sandbox gets an address, and a sentence that says why of none although the settings ask for it.

        From memory: by the last look at the node; before the first one by the settings.
        """

    def dropped_packets(self) -> Mapping[str, int]:
        """How many packets of sandboxes were dropped, by reason, at the last look. From memory."""

    def filtered(self) -> frozenset[str]:
        """Whose packets other software on the node drops, at the last look: addresses, host veths, NODE for all that is forwarded.
        From memory."""

    def foreign_links(self) -> Sequence[ForeignLink]:
        """Links of the host that are not ours and lead into a sandbox's namespace, at the last look. From memory."""

    def await_link(self, mac: MacAddress) -> None:
        """Return when the link of an ENI that is being attached has appeared. WiringError if it does not within a bound."""

    def setup_eni(self, eni: Eni) -> None:
        """Bring a secondary ENI's link up with address, table, routes and rule. WiringError if its link does not appear."""

    def answer_for(self, prefixes: Iterable[IpNetwork]) -> None:
        """Have packets to the free addresses of prefixes answered as unreachable; idempotent. Raises: WiringError."""

    def remove_prefix_rules(self, is_needless: Callable[[IpNetwork, int], bool]) -> None:
        """Remove the rules 1536 from whole prefixes of which `is_needless` says so, by prefix and table. Raises: WiringError,
        KernelDumpError.
        """

    def teardown_eni(self, eni: Eni, *, keep: Iterable[Eni] = ()) -> None:
        """Remove an ENI's table and rules, but nothing that an ENI of `keep` needs. Idempotent.

        A successor at the same place (device index and card) has the same table.
        """

    def reconcile(
        self,
        *,
        identity: InstanceIdentity,
        enis: Iterable[Eni],
        addresses: Container[IpAddress] = (),
        held: Collection[RepairedObject] = (),
        is_silent: bool = False,
    ) -> list[str]:
        """Repair what other software on the node removed or changed; one `Repaired` per repair, one sentence per part beyond it.

        Args:
            addresses: all for sandboxes; none of them may be local on the host.
            held: objects to leave as they are.
            is_silent: no link, address, route or rule was announced since the last call without it: what that read may be used again.
        """

    def reconcile_table(self, *, identity: InstanceIdentity) -> list[str]:
        """Repair only the nftables table, as `reconcile` does. Raises: WiringError."""

    def differences(
        self, *, identity: InstanceIdentity | None, enis: Iterable[Eni], addresses: Container[IpAddress] = ()
    ) -> list[RoutingDifference]:
        """Compare as `reconcile` does, and change nothing. Without an identity the node's own part is left out.

        Raises: KernelDumpError if every try was interrupted (I11).
        """

    def way_differences(self, specs: Sequence[WiringSpec], *, enis: Collection[Eni]) -> list[RoutingDifference]:
        """Ask the kernel whether packets to and from wired sandboxes would arrive; what keeps them, by the sandbox's address.

        Changes and sends nothing. `is_repaired`: `Wiring.repair` of that sandbox puts it right. Raises: KernelDumpError, WiringError.
        """

    def remove_left_chains(self, *, egress: Collection[str] | None) -> str:
        """Remove what amazon-vpc-cni-k8s made with iptables-nft or nftables. The caller knows that nobody needs it any more.

        Args:
            egress: of its chains for the egress of one sandbox each only these; None: all.
        Returns: what was removed, "" if there was nothing. Raises: WiringError, KernelDumpError; then nothing was.
        """

    def links(self, macs: Iterable[MacAddress] | None = None) -> frozenset[MacAddress]:
        """MACs of the links that are present now, up or down, from one uninterrupted dump; sandboxes' links are left out.

        Args:
            macs: only these matter. Links that are where they were are then asked for by name, which costs a node with many
                sandboxes far less.
        Raises: KernelDumpError if every try was interrupted (I11); WiringError.
        """

    def host_events(self) -> Iterator[LinkEvent | HostChange]:
        """Follow the kernel's notifications, blocking: links of ENIs as `LinkEvent`, all else that may need a repair as `HostChange`.

        The first event, OPENED, means that the subscription is open. Changes by this daemon's own wiring are left out, or tell of
        the state that is wanted. Lost notifications are a MISSED of both, never silence (I11).
        Ends after `stop_host_events`. Raises: WiringError if the subscription cannot be opened or breaks. One reader at a time.
        """

    def stop_host_events(self) -> None:
        """End a running `host_events` iterator from another thread, and every later one at once."""


# The container runtime.


class Runtime(Protocol):
    """The container runtime over CRI, read side only."""

    def info(self) -> RuntimeInfo:
        """Find the socket and ask who answers. RuntimeUnreachableError otherwise."""

    def sandboxes(self) -> tuple[Sandbox, ...]:
        """Every sandbox in any state: a complete answer, or RuntimeUnreachableError (I11)."""

    def events(self) -> Iterator[SandboxEvent]:
        """Follow the event stream. Its first event, SUBSCRIBED, means that the stream is open. It ends only with an error.

        Raises: EventsUnsupportedError if the runtime has no events; RuntimeUnreachableError when the stream broke.
        """

    def cancel_events(self) -> None:
        """End a running `events` iterator from another thread."""


# The history on the host's disk.


class History(Protocol):
    """Keeps records beyond a boot. Safe from any thread."""

    def enqueue(self, records: Sequence[HistoryRecord]) -> None:
        """Take records to be written later. Touches no disk, never waits and never fails: it is called by ADD and DEL."""

    def read(self, subject: str) -> Recorded:
        """Read what is kept about a subject, with what is not written yet. A file that cannot be read is a `problem`."""

    def read_since(self, since: datetime) -> Recorded:
        """Read what was written since an instant, for the start: what waits to be written is not in it."""


class NoHistory:
    """VPC_IPAMD_HISTORY_DIR=off: nothing is kept beyond the datastore."""

    def enqueue(self, records: Sequence[HistoryRecord]) -> None:
        """Drop them."""

    def read(self, subject: str) -> Recorded:  # noqa: ARG002  # the port's signature
        """Say why there is nothing."""
        return self._nothing()

    def read_since(self, since: datetime) -> Recorded:  # noqa: ARG002  # the port's signature
        """Say why there is nothing."""
        return self._nothing()

    @staticmethod
    def _nothing() -> Recorded:
        return Recorded(problem="no history is kept on disk (VPC_IPAMD_HISTORY_DIR=off): only this boot's ledger is told")


# amazon-vpc-cni-k8s's remains on this node: its file of allocations, its conflist, its listener.


class AwsNode(Protocol):
    """The other software that gives out this node's addresses, before us and after us. Never both at once."""

    def listener(self) -> str:
        """Where its daemon accepts connections now; "" if it is away. A process of ours that listens there is not it."""

    def last_sign(self, *, pod: str = "") -> Sign | None:
        """The last sign of its daemon in this boot, also one that an earlier process of ours saw; None if it left none.

        Args:
            pod: of its daemon, while the runtime has its sandbox ready; "" else.
        Raises: ForeignStateError, TakeoverError if nobody can tell.
        """

    def allocations(self) -> tuple[Allocation, ...]:
        """What its file says; nothing without a file. Raises: ForeignStateError if the file cannot be used."""

    def has_run_since(self) -> bool:
        """Whether its daemon wrote its file since we last read or wrote it: then our rows are not to be believed.

        Raises: ForeignStateError if nobody can tell.
        """

    def finish(self) -> None:
        """Note that its file, as it is, has been read. Raises: ForeignStateError, TakeoverError."""

    @property
    def is_exporting(self) -> bool:
        """Whether an export was begun and not taken back, in whatever boot: this node is, or is to be, the other's."""

    def begin_export(self) -> None:
        """Note that the node goes to the other: no restart of ours gives an address. Raises: TakeoverError."""

    def end_export(self) -> None:
        """Take the note back. Raises: TakeoverError."""

    def egress_addresses(self, family: Family) -> Mapping[str, IpAddress]:
        """What its plugin for egress says it gave, by container ID. A file that cannot be read is left out, and logged."""

    def write(self, allocations: Iterable[Allocation], *, routed: Container[IpAddress]) -> str:
        """Replace its file, and its files of addresses for egress, but for those of other sandboxes' that are routed.

        Returns: the first one's path. Raises: TakeoverError.
        """

    def network_name(self) -> str:
        """The name of its network, by its conflist wherever that is now; what it installs if none can be read."""

    def has_conflist(self) -> bool:
        """Whether its conflist is where runtimes find it: it sorts before ours."""

    def save_conflist(self) -> str:
        """Rename its conflist so that runtimes do not load it. Returns: what was done, "" if there is none. Raises: TakeoverError."""

    def restore_conflist(self) -> str:
        """Undo `save_conflist`. Returns: what was done, "" if it is in place or was never saved. Raises: TakeoverError."""

    def remove_our_conflist(self) -> str:
        """Remove ours. Returns: what was done, "" if there was none. Raises: TakeoverError."""


class Import(Protocol):
    """Takes over the sandboxes that it wired: stamps those of its host veths whose sandbox can be named. Neither method raises."""

    def take_over(self, survey: KernelSurvey, listed: Mapping[str, Sandbox] | None) -> ImportResult:
        """Stamp every host veth without our alias whose sandbox can be named."""

    def look_again(self, listed: Mapping[str, Sandbox]) -> list[HostVeth]:
        """Stamp what the start could not name and can be named now. Returns: those that carry our alias now."""
