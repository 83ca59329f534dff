"""The kernel: the wiring of sandboxes, and the host's routing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ipamd.model.attachment import Wired, WiringSpec
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.eni import Eni
from ipamd.model.family import Family, IpAddress, IpNetwork
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.kernel import ForeignLink, HostChange, HostVeth, KernelSurvey, LinkEvent
from ipamd.model.repairs import RepairedObject, RepairReport
from ipamd.model.routing_difference import RoutingDifference
from ipamd.model.uplink import Uplink
from ipamd.model.wiring_difference import WiringDifference


class Wiring(Protocol):
    """Sandbox wiring in the kernel. No dumps, no fork, no EC2 on the ADD and DEL path; every write is idempotent."""

    def identify_netns(self, path: str) -> NetnsIdentity:
        """Which namespace a path leads to. NetnsError if it is missing or none, WiringError if that could not be found out."""

    def is_netns_gone(self, path: str) -> bool:
        """Whether nothing is at the path of a sandbox's namespace, and it would be visible if it were there.

        False if that cannot be found out: the directory is missing, or the host's mounts do not appear in it (I11).
        """

    def wire(self, spec: WiringSpec) -> Wired:
        """Create and configure the veth pair, routes and rules. On any error everything is undone before it is raised.

        An uplink is made in place of whatever link has its name or ID: the caller knows that no sandbox needs that.
        Raises: NetnsError, WiringError; UplinkPendingError if the link of the trunk ENI is not there.
        """

    def unwire(self, spec: WiringSpec) -> None:
        """Remove all wiring of a spec and wait until the link is gone (rollback). Absent parts are fine."""

    def forget_inside(self, *, netns: str, identity: NetnsIdentity | None, address: IpAddress) -> None:
        """Remove the rule that a further interface has inside a sandbox which may live on. A namespace that is gone is fine, and one
        that is not `identity` is left alone (None: not compared). Raises: WiringError."""

    def mark_for_deletion(
        self, spec: WiringSpec, *, is_source_checked: bool = False, owner: AttachmentKey | None = None
    ) -> HostVeth | None:
        """Drop the routes and rules of all legs, take the links down and put them into the dying group (DEL). Absent parts are fine.

        Links by which other sandboxes are reached by now stay as they are.

        Args:
            is_source_checked: the host drops what comes from a source that is not routed back (`HostNetwork.is_source_checked`), so
                the host veths may stay up until the sweep, if no route of the address is left.
            owner: the first host veth is left alone if its alias does not name this sandbox; without it, any alias with the address
                counts.
        Returns: the first host veth as it was, also if it was left alone because its alias names another address or owner; None if
            there was none.
        """

    def veth(self, name: str) -> HostVeth | None:
        """Look at one link of the host; None if there is none of this name. WiringError if it is no veth."""

    def rename_veth(self, spec: WiringSpec, *, to: str) -> None:
        """Rename a sandbox's first host veth, whose present name `spec` has, with what goes by its name.

        Idempotent; a link of that name whose alias has another address stays. It may be down for a moment: older kernels rename only a
        link that is down. Raises: WiringError.
        """

    def sweep(self) -> None:
        """Delete every dying link in one kernel call; returns when they are gone. None dying is fine."""

    def check(self, spec: WiringSpec) -> list[WiringDifference]:
        """Compare the kernel, both sides, with a spec (CHECK; may dump the host's tables). A sandbox that is gone is a difference."""

    def check_inside(self, spec: WiringSpec, *, is_arrival_only: bool = False) -> list[WiringDifference]:
        """Compare a sandbox's own side with a spec. Bounded in memory, whatever is there (I16).

        `is_arrival_only`: tell only what keeps packets from it.
        Raises: NetnsError if its namespace is gone; WiringError.
        """

    def repair(
        self, specs: Iterable[WiringSpec], *, seen: KernelSurvey | None = None, backed_off: Collection[RepairedObject] = ()
    ) -> list[RepairReport]:
        """Put back route, rules, alias, MAC, MTU and up state of wired sandboxes; one report per repair or part beyond repair.

        A link that is missing or may be another sandbox's, and a route to another sandbox's veth, are
        reported and not touched (I1).

        Args:
            seen: a survey that is at hand; it need not be whole.
            backed_off: objects to leave as they are.
        """

    def cut_off(self, spec: WiringSpec) -> RepairReport:
        """Take the links of a sandbox's first leg down; `repair` brings them back, and DEL ends them as any.

        A link whose alias names another sandbox or address is left alone. Returns: a report of what was done.
        Raises: WiringError.
        """

    def survey(self, *, may_be_torn: bool = False) -> KernelSurvey:
        """Look at all our wiring in the host namespace. KernelDumpError if every try was interrupted (I11).

        `may_be_torn`: return what was seen then, with `is_whole` false: what it shows was there, what it lacks may be there.
        """

    def write_former_rules(self, specs: Iterable[WiringSpec]) -> None:
        """Give each sandbox the rules that amazon-vpc-cni-k8s gives it, then remove our own table and the rules to it and of prefixes.

        No packet is lost. Raises: WiringError, KernelDumpError; the wiring then serves as it is, and the call can be repeated.
        """

    def remove_leftover(
        self,
        *,
        host_veth: str | None,
        address: IpAddress | None,
        key: AttachmentKey | None = None,
        uplink: Uplink | None = None,
    ) -> IpAddress | None:
        """Remove wiring without an owner: the link by name, and every route and rule of an address, in any table.

        Without `address` it is the one that the link's alias names, unless it is routed through another link. With the link go those
        of extra legs of its sandbox, which is `key` where the alias does not say.

        Args:
            uplink: its link, its table and the rules that lead there go too, if the link's alias has this address, or none.
        Returns: the address.
        """


class VlanLinks(Protocol):
    """Creates VLAN links if the kernel cannot (in a lab), and recognises them. They are changed and deleted like the kernel's."""

    kind: str
    """Of the links that it creates, as the kernel names it."""

    def place(self, name: str, *, peer: int) -> tuple[int, int]:
        """Index of the link that carries a link's frames, and their VLAN ID; twice 0 if it made no link of this name. `peer`: index of
        the link's other end."""

    def make(self, name: str, *, vlan: int, parent: int, mac: MacAddress) -> bool:
        """Make a link, down, with a name and a MAC, on the link with index `parent`; frames there carry the ID `vlan`.

        Returns: False if that has one of this ID, of any name, or the name is taken. Raises: WiringError.
        """


class HostNetwork(Protocol):
    """Routing of the node and its ENIs: sysctls, ENI tables, mark rules, the nftables table. Repaired at once, and on a clock."""

    def setup_node(self, identity: InstanceIdentity) -> None:
        """Set up the node's own part: sysctls, mark rules, nftables table. Idempotent. Raises: WiringError."""

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[RepairReport]:
        """Put in place what drops a sandbox's packets with a source that is not its own, redirects and IPv6, and the one rule that
        leads to sandboxes. Idempotent.

        Needs no identity of the node and no ENI. `is_silent`: as in `reconcile`. Returns: one report per repair, and one
        per refusal.
        """

    def allow_neighbour_discovery(self) -> list[RepairReport]:
        """Let neighbour discovery of sandboxes pass, which those need that amazon-vpc-cni-k8s wires, and answer for no free address;
        `confine_sandboxes` and `reject_free_addresses` end it.

        Returns: what was removed. Raises: WiringError.
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

    def extra_family(self) -> tuple[Family | None, str]:
        """Of which other family a new sandbox gets an address, and a sentence that says why of none although the settings ask for it.

        From memory: by the last look at the node; before the first one by the settings.
        """

    def dropped_packets(self) -> Mapping[str, int]:
        """How many packets of sandboxes were dropped, by reason, at the last look. From memory."""

    def other_software(self) -> Sequence[RoutingDifference]:
        """What other software on the node does to sandboxes' traffic, or may do, at the last look, with the command that mends it.
        No proof that a sandbox has no network. From memory."""

    def foreign_links(self) -> Sequence[ForeignLink]:
        """Links of the host that are not ours and lead into a sandbox's namespace, at the last look. From memory."""

    def await_link(self, mac: MacAddress) -> None:
        """Return when the link of an ENI that is being attached has appeared. WiringError if it does not within a bound."""

    def setup_eni(self, eni: Eni) -> None:
        """Bring a secondary ENI's link up with address, table, routes and rule. WiringError if its link does not appear."""

    def reject_free_addresses(self, prefixes: Iterable[IpNetwork]) -> None:
        """Have packets to the free addresses of prefixes answered as unreachable; idempotent. Raises: WiringError."""

    def remove_prefix_rules(self, is_needless: Callable[[IpNetwork, int], bool]) -> None:
        """Remove the rules 1536 from whole prefixes for which `is_needless` is true, by prefix and table. Raises: WiringError,
        KernelDumpError.
        """

    def teardown_eni(self, eni: Eni, *, remaining: Iterable[Eni] = ()) -> None:
        """Remove an ENI's table and rules, but nothing that an ENI of `remaining` needs. Idempotent.

        A successor at the same place (device index and card) has the same table.
        """

    def reconcile(
        self,
        *,
        identity: InstanceIdentity,
        enis: Iterable[Eni],
        addresses: Container[IpAddress] = (),
        backed_off: Collection[RepairedObject] = (),
        is_silent: bool = False,
    ) -> list[RepairReport]:
        """Repair what other software on the node removed or changed; one report per repair, and one per part beyond repair.

        Args:
            addresses: all for sandboxes; none of them may be local on the host.
            backed_off: objects to leave as they are.
            is_silent: no link, address, route or rule was announced since the last call without it: what that read may be used again.
        """

    def reconcile_table(self, *, identity: InstanceIdentity) -> list[RepairReport]:
        """Repair only the nftables table, as `reconcile` does. Raises: WiringError."""

    def differences(
        self, *, identity: InstanceIdentity | None, enis: Iterable[Eni], addresses: Container[IpAddress] = ()
    ) -> list[RoutingDifference]:
        """Compare as `reconcile` does, and change nothing. Without an identity the node's own part is left out.

        Raises: KernelDumpError if every try was interrupted (I11).
        """

    def reachability_problems(self, specs: Sequence[WiringSpec], *, enis: Collection[Eni]) -> list[RoutingDifference]:
        """Ask the kernel whether packets to and from wired sandboxes would arrive; what keeps them, by the sandbox's address.

        Changes and sends nothing. `is_repaired`: `Wiring.repair` of that sandbox repairs it. Raises: KernelDumpError, WiringError.
        """

    def remove_left_chains(self, names: Collection[str] | None) -> str:
        """Remove what amazon-vpc-cni-k8s created with iptables-nft or nftables. The caller knows that nothing needs it any more.

        Args:
            names: of its chains that serve single sandboxes only these; None: all.
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
