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
        """Find which namespace a path leads to.

        Raises: NetnsError if the path is missing or is no namespace; WiringError if that cannot be found out.
        """

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

    def forget_inside(self, *, netns: str, identity: NetnsIdentity | None, ifname: str, address: IpAddress) -> None:
        """Remove the rule that a further interface (`net1`) has inside its sandbox, which may live on without this interface.

        A namespace that is gone is fine. If another namespace than `identity` is at the path by now, nothing in it changes; with
        None they are not compared. Raises: WiringError.
        """

    def mark_for_deletion(
        self, spec: WiringSpec, *, is_source_checked: bool = False, owner: AttachmentKey | None = None
    ) -> HostVeth | None:
        """Remove the routes and rules of all legs, take the links down and put them into the dying group (DEL). Absent parts are fine.

        A link that another sandbox uses by now stays as it is.

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
        """Rename a sandbox's first host veth, whose present name is in `spec`, and whatever contains the link's name.

        Idempotent. A link of the present name whose alias has another address is not renamed. The renamed link may be down for a
        moment, because older kernels rename only a link that is down. Raises: WiringError.
        """

    def sweep(self) -> None:
        """Delete every dying link in one kernel call, and return when they are gone. It is fine if no link is dying."""

    def check(self, spec: WiringSpec) -> list[WiringDifference]:
        """Compare the kernel, both sides, with a spec (CHECK; may dump the host's tables). A sandbox that is gone is a difference."""

    def check_inside(self, spec: WiringSpec, *, is_arrival_only: bool = False) -> list[WiringDifference]:
        """Compare a sandbox's own side with a spec. Bounded in memory, whatever is there (I16).

        `is_arrival_only`: return only the differences that keep packets from arriving in the sandbox.
        Raises: NetnsError if its namespace is gone; WiringError.
        """

    def repair(
        self, specs: Iterable[WiringSpec], *, seen: KernelSurvey | None = None, backed_off: Collection[RepairedObject] = ()
    ) -> list[RepairReport]:
        """Restore route, rules, alias, MAC, MTU and up state of wired sandboxes.

        Returns: one report for each repair, and one for each part that cannot be repaired. A link that is missing or may be another
        sandbox's, and a route to another sandbox's veth, are reported and not touched (I1).

        Args:
            seen: a survey that the caller has already; it need not be whole. Without it a survey is made.
            backed_off: objects that must not be repaired now, because repairs of them pause.
        """

    def cut_off(self, spec: WiringSpec) -> RepairReport:
        """Take the links of a sandbox's first leg down; `repair` brings them up again, and DEL removes them as usual.

        A link whose alias names another sandbox or address is left alone. Returns: a report of what was done.
        Raises: WiringError.
        """

    def survey(self, *, may_be_torn: bool = False) -> KernelSurvey:
        """Look at all our wiring in the host namespace. KernelDumpError if every try was interrupted (I11).

        `may_be_torn`: if every try was interrupted, return what was seen, with `is_whole` false. Objects in such a survey existed;
        objects that are missing from it may exist too.
        """

    def write_former_rules(self, specs: Iterable[WiringSpec]) -> None:
        """Give each sandbox the rules that amazon-vpc-cni-k8s would give it. Then remove our own route table, the rules that lead to
        it, and the rules of whole prefixes.

        No packet is lost. Raises: WiringError, KernelDumpError; pods then still have their network, and the call can be repeated.
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

        Without `address` the address is the one that the link's alias names, unless that is routed through another link. The links of
        the sandbox's extra legs are removed with the link.

        Args:
            key: the sandbox, if the alias does not name it.
            uplink: its link, its table and the rules that lead to the table are removed too, if the alias of the uplink's link names
                this address or none.
        Returns: the address.
        """


class VlanLinks(Protocol):
    """Creates VLAN links if the kernel cannot (in a lab), and recognises them. They are changed and deleted like the kernel's."""

    kind: str
    """The kernel's name of the kind of links that it creates."""

    def place(self, name: str, *, peer: int) -> tuple[int, int]:
        """Find where a link's frames are sent: the index of the link that carries them, and their VLAN ID.

        `peer`: index of the link's other end. Returns: (0, 0) if no link of this name was made here.
        """

    def make(self, name: str, *, vlan: int, parent: int, mac: MacAddress) -> bool:
        """Make a link that is down, with a name and a MAC, on the link with index `parent`. There its frames carry the ID `vlan`.

        Returns: False if the parent has a link of this ID already, or if the name is taken. Raises: WiringError.
        """


class HostNetwork(Protocol):
    """Routing of the node and its ENIs: sysctls, ENI tables, mark rules, the nftables table. Repaired at once, and on a clock."""

    def setup_node(self, identity: InstanceIdentity) -> None:
        """Set up the node's own part: sysctls, mark rules, nftables table. Idempotent. Raises: WiringError."""

    def choose_source_tree(self, is_chosen: bool) -> bool:
        """Set whether the node may have so many single addresses that the rules from them are in buckets (`source_rules`).

        The next `setup_eni` or `reconcile` acts on it. Until the first call nothing is changed. A pool of IPv6 has no buckets.
        Returns: whether `has_source_tree` has changed by it.
        """

    def has_source_tree(self) -> bool:
        """Whether the rules of new sandboxes go into buckets. Read from memory."""

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[RepairReport]:
        """Set up the tables that drop a sandbox's packets if their source is not its own, redirects, and packets of the family that
        pods do not have; and the one rule that leads to sandboxes. Idempotent.

        Needs no identity of the node and no ENI. `is_silent`: as in `reconcile`. Returns: one report for each repair, and one for
        each refusal of the kernel.
        """

    def allow_neighbour_discovery(self) -> list[RepairReport]:
        """Prepare an export: sandboxes that amazon-vpc-cni-k8s wires need neighbour discovery, so no table drops it any more, and
        packets to free addresses are not rejected any more. `confine_sandboxes` and `reject_free_addresses` undo this.

        Returns: what was removed. Raises: WiringError.
        """

    def confinement_differences(self) -> list[RoutingDifference]:
        """Compare as `confine_sandboxes` does, and change nothing."""

    def are_tables_in_place(self) -> bool | None:
        """Whether no nftables table of ours has changed since it was compared; None if it is unknown.

        A fraction of a millisecond, whatever others have in nftables; much less if only our own changes were made since.
        """

    def is_source_checked(self) -> bool:
        """Whether the kernel drops every packet of a sandbox whose source is not routed to it: the filter was verified once, and has
        not changed since.

        Cheap: tens of microseconds, and no lock whose holder may wait for something outside the process. False when in doubt (I11).
        """

    def extra_family(self) -> tuple[Family | None, str]:
        """The second family of which a new sandbox gets an address, None if it gets one family only.

        If the settings ask for a second family that the node cannot have, the text says why; otherwise it is "". Read from memory: the
        node as it was last looked at, or the settings before the first look.
        """

    def dropped_packets(self) -> Mapping[str, int]:
        """How many packets of sandboxes had been dropped when the counters were last read, by reason. Read from memory."""

    def other_software(self) -> Sequence[RoutingDifference]:
        """What other software on the node did, or may have done, to sandboxes' traffic when the node was last looked at, each with the
        command that ends it.

        It does not prove that a sandbox has no network. Read from memory.
        """

    def foreign_links(self) -> Sequence[ForeignLink]:
        """The links of others that led from the host into a sandbox's namespace when the node was last looked at. Read from memory."""

    def await_link(self, mac: MacAddress) -> None:
        """Return when the link of an ENI that is being attached has appeared. WiringError if it does not within a bound."""

    def setup_eni(self, eni: Eni) -> None:
        """Bring a secondary ENI's link up with address, table, routes and rule. WiringError if its link does not appear."""

    def reject_free_addresses(self, prefixes: Iterable[IpNetwork]) -> None:
        """Let the kernel answer packets to the free addresses of prefixes as unreachable. Idempotent. Raises: WiringError."""

    def remove_prefix_rules(self, is_needless: Callable[[IpNetwork, int], bool]) -> None:
        """Remove rules that select packets from a whole delegated prefix (FROM_SANDBOX_PRIORITY).

        Args:
            is_needless: called with prefix and table of a rule; whether the rule is to be removed.
        Raises: WiringError, KernelDumpError.
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
            addresses: all addresses for sandboxes; none of them may be local on the host.
            backed_off: objects that must not be repaired now, because repairs of them pause.
            is_silent: the kernel announced no change of a link, address, route or rule since the last call with False. Then what that
                call read of the kernel may be used again.
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
        """Ask the kernel whether packets to and from wired sandboxes would arrive.

        Returns: what keeps packets from arriving, with the sandbox's address. If `will_be_repaired` is true, `Wiring.repair` of that
        sandbox ends it. Changes and sends nothing. Raises: KernelDumpError, WiringError.
        """

    def remove_left_chains(self, names: Collection[str] | None) -> str:
        """Remove what amazon-vpc-cni-k8s created with iptables-nft or nftables. The caller knows that nothing needs it any more.

        Args:
            names: the chains to remove among those that serve single sandboxes; None for all of them.
        Returns: what was removed, "" if there was nothing. Raises: WiringError, KernelDumpError; then nothing was removed.
        """

    def links(self, macs: Iterable[MacAddress] | None = None) -> frozenset[MacAddress]:
        """MACs of the links that are present now, up or down, from one uninterrupted dump; sandboxes' links are left out.

        Args:
            macs: only these matter. Links that were found before are then looked up by name first, without a dump. On a node with many
                sandboxes that is far cheaper.
        Raises: KernelDumpError if every try was interrupted (I11); WiringError.
        """

    def host_events(self) -> Iterator[LinkEvent | HostChange]:
        """Follow the kernel's notifications, blocking: links of ENIs as `LinkEvent`, all else that may need a repair as `HostChange`.

        The first event, OPENED, means that the subscription is open. Changes by this daemon's own wiring are left out, or the event
        has the state that the daemon wants. After lost notifications a MISSED of each type is yielded: no loss is silent (I11).
        Ends after `stop_host_events`. Raises: WiringError if the subscription cannot be opened or breaks. One reader at a time.
        """

    def stop_host_events(self) -> None:
        """End a running `host_events` iterator from another thread, and every later one at once."""
