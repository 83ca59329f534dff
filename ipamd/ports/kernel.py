"""The ports to the kernel: `Wiring` and `VlanLinks` make and remove the links of sandboxes, `HostNetwork` keeps the host's routing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ipamd.model.attachment import Wired, WiringSpec
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.cni_request import NetnsIdentity
from ipamd.model.eni import Eni
from ipamd.model.errors import IpamError
from ipamd.model.family import Family, IpAddress, IpNetwork
from ipamd.model.ids import AttachmentKey, EniId, MacAddress
from ipamd.model.kernel import ForeignLink, HostChange, HostVeth, KernelSurvey, LinkEvent
from ipamd.model.repairs import RepairedObject, RepairReport
from ipamd.model.routing_difference import RoutingDifference
from ipamd.model.uplink import Uplink
from ipamd.model.wiring_difference import WiringDifference


class Wiring(Protocol):
    """Sandbox wiring in the kernel. Methods that ADD and DEL call make no dump, start no process, and do not call EC2. Every write is
    idempotent.
    """

    def identify_netns(self, path: str) -> NetnsIdentity:
        """Return the identity of the network namespace at a path.

        Raises: NetnsError if the path is missing or is not a network namespace; WiringError if this cannot be determined.
        """

    def is_netns_gone(self, path: str) -> bool:
        """Whether a sandbox's network namespace is gone for certain: nothing is at its path, and a mount there would be visible.

        False if this cannot be determined, because the directory is missing or the host's mounts do not appear in it (I11).
        """

    def wire(self, spec: WiringSpec) -> Wired:
        """Create and configure the veth pair, routes and rules. After an error everything is undone before the error is raised.

        An uplink replaces any link that has its name or VLAN ID. The caller must have checked that no sandbox needs such a link.
        Raises: NetnsError, WiringError; UplinkPendingError if the link of the trunk ENI is not there.
        """

    def unwire(self, spec: WiringSpec) -> None:
        """Remove all wiring of a sandbox and wait until the links are gone (rollback of an ADD). Missing parts are not errors."""

    def forget_inside(self, *, netns: str, identity: NetnsIdentity | None, ifname: str, address: IpAddress) -> None:
        """Remove the rule of a further interface (`net1`) inside its sandbox, because the sandbox may live on without the interface.

        A namespace that is gone is not an error. Raises: WiringError.

        Args:
            identity: the namespace at the time of the ADD. If another namespace is at the path by now, nothing in it is changed.
                None: the namespace at the path is not compared.
        """

    def mark_for_deletion(
        self, spec: WiringSpec, *, is_source_checked: bool = False, owner: AttachmentKey | None = None
    ) -> HostVeth | None:
        """Remove the routes and rules of all legs, take the links down and put them into the link group that `sweep` deletes (DEL).

        Missing parts are not errors. A link that another sandbox uses by now is not changed.

        Args:
            is_source_checked: whether the host drops packets whose source is not routed back (`HostNetwork.is_source_checked`). Then
                the host veths may stay up until the sweep, if no route to the address is left.
            owner: the first host veth is changed only if its alias names this sandbox; None: only if its alias has the sandbox's
                address.
        Returns: the first host veth as it was before, even if it was not changed because its alias names another address or owner;
            None if there was none. If a link of another kind, such as a bridge, has its name, a veth without key and address.
        """

    def veth(self, name: str) -> HostVeth | None:
        """Return one host veth by its name; None if there is no link of this name. Raises: WiringError if the link is not a veth."""

    def rename_veth(self, spec: WiringSpec, *, to: str) -> None:
        """Rename a sandbox's first host veth, whose present name is in `spec`, and replace rules that contain the name.

        Idempotent. If the link is gone, or its alias has another address, nothing is changed. The link may be down for a moment,
        because older kernels rename only a link that is down. Raises: WiringError.
        """

    def sweep(self) -> None:
        """Delete all links that are marked for deletion, in one kernel call, and return when they are gone.

        It is not an error if there are none.
        """

    def check(self, spec: WiringSpec) -> list[WiringDifference]:
        """Compare a sandbox's wiring, on the host and inside, with its specification (CHECK). It may dump the host's tables.

        If the sandbox's namespace is gone, this is one of the differences.
        """

    def check_inside(self, spec: WiringSpec, *, is_arrival_only: bool = False) -> list[WiringDifference]:
        """Compare the inside of a sandbox with its specification. The memory is bounded, whatever the sandbox contains (I16).

        `is_arrival_only`: return only the differences that keep packets from arriving in the sandbox.
        Raises: NetnsError if the sandbox's namespace is gone; WiringError.
        """

    def repair(
        self, specs: Iterable[WiringSpec], *, seen: KernelSurvey | None = None, backed_off: Collection[RepairedObject] = ()
    ) -> list[RepairReport]:
        """Restore routes, rules, alias, MAC, MTU, name and up state of wired sandboxes. A missing extra leg or uplink is made again.

        A missing host veth of a first leg, a link that may be another sandbox's, and a route to another sandbox's veth are reported
        and not changed (I1).

        Args:
            seen: a survey that the caller has already; it need not be whole. None: a survey is made.
            backed_off: objects that must not be repaired now, because their repair pauses after a repair conflict.
        Returns: one report for each repair, and one for each part that cannot be repaired.
        """

    def cut_off(self, spec: WiringSpec) -> RepairReport:
        """Take the links of a sandbox's first leg down. `repair` brings them up again, and DEL removes them as usual.

        A link whose alias names another sandbox or address is not changed. Returns: a report. Raises: WiringError.
        """

    def survey(self, *, may_be_torn: bool = False) -> KernelSurvey:
        """Read all our wiring in the host's namespace. Raises: KernelDumpError if every try was interrupted (I11).

        `may_be_torn`: if every try was interrupted, return a survey with `is_whole` false instead of the error. The objects in it
        existed; objects that it lacks may exist too.
        """

    def write_former_rules(self, specs: Iterable[WiringSpec]) -> None:
        """Add the rules that amazon-vpc-cni-k8s would make for each sandbox. Then remove our own route table, the rules that look it
        up, and the rules of whole prefixes.

        No packet is lost. Raises: WiringError, KernelDumpError. After an error pods still have their network, and the call can be
        repeated.
        """

    def remove_leftover(
        self,
        *,
        host_veth: str | None,
        address: IpAddress | None,
        key: AttachmentKey | None = None,
        uplink: Uplink | None = None,
    ) -> IpAddress | None:
        """Remove wiring without an owner: a link by its name, and every route and rule of an address, in any table.

        The links of the sandbox's extra legs are removed together with the link.

        Args:
            host_veth: the name of the link; None: no link is removed. A link whose alias has another address than `address` stays.
            address: the address; None: the address in the link's alias, unless this address is routed through another link.
            key: the sandbox, if the alias does not name it.
            uplink: an uplink to remove with its table and the rules that look up the table. If the alias of the uplink's link names
                another address, the uplink is not removed.
        Returns: the address whose routes and rules were removed; None if no address was found.
        """


class VlanLinks(Protocol):
    """Makes and recognises the links that stand for VLAN links in a lab, if the kernel there cannot make VLAN links.

    These links are changed and deleted in the same way as VLAN links.
    """

    kind: str
    """The kernel's name for the kind of these links."""

    def place(self, name: str, *, peer: int) -> tuple[int, int]:
        """Return where a link's frames are sent: the index of the link that carries them, and their VLAN ID.

        `peer`: the index of the link's other end. Returns: (0, 0) if `make` made no link of this name.
        """

    def make(self, name: str, *, vlan: int, parent: int, mac: MacAddress) -> bool:
        """Make a VLAN link that is down, with a name, a MAC and the VLAN ID `vlan`, on the link with index `parent`.

        Returns: False if the parent has a link with this VLAN ID already, or if the name is taken. Raises: WiringError.
        """


class HostNetwork(Protocol):
    """The networking of the node and its ENIs: sysctls, ENI tables, mark rules, our nftables tables."""

    def setup_node(self, identity: InstanceIdentity) -> None:
        """Set up the node's own part: sysctls, mark rules, and the nftables table for SNAT. Idempotent.

        Raises: WiringError, after all parts were tried; KernelDumpError.
        """

    def choose_source_tree(self, is_chosen: bool) -> bool:
        """Set whether the rules from single addresses are put into buckets, because the node may have many of them
        (`source_rules.py`).

        The next `setup_eni` or `reconcile` changes the `goto` rules; `Wiring.repair` moves the rules of present sandboxes into the
        buckets, but not out of them. Before the first call the rules stay as they are. An IPv6 pool has no buckets.

        Returns: whether this changed `has_source_tree`.
        """

    def has_source_tree(self) -> bool:
        """Whether the rules of new sandboxes are made in buckets. Read from memory."""

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[RepairReport]:
        """Set up the nftables tables that confine sandboxes, and the rule to the route table with the routes to sandboxes. Idempotent.

        The tables drop packets of sandboxes for the reasons in `DROP_REASONS`, for example because their source is not an address of
        the sandbox. The settings of the sandboxes' host links are restored too. Before a process makes its first tables, the call adds
        the routes that the tables need for sandboxes in strict mode that amazon-vpc-cni-k8s wired. The call needs no identity of the
        node and no ENI.

        `is_silent`: as in `reconcile`. Returns: one report for each repair, and one for each part that the kernel refused. Of the
            links' settings only a repair of forwarding is reported.
        Raises: WiringError, KernelDumpError.
        """

    def allow_neighbour_discovery(self) -> list[RepairReport]:
        """Prepare an export of an IPv6 node: remove the rejection of packets to free addresses, our second default route, and
        our IPv6 nftables table, because it drops neighbour discovery. On an IPv4 node nothing is removed.

        Sandboxes that amazon-vpc-cni-k8s wires need neighbour discovery. `confine_sandboxes` and `reject_free_addresses` undo this
        call.

        Returns: reports of what was removed. Raises: WiringError.
        """

    def confinement_differences(self) -> list[RoutingDifference]:
        """Return what `confine_sandboxes` would repair in the nftables tables, and what it would report as refused. Change nothing.

        Neither the settings of links nor the rule is compared.
        """

    def are_tables_in_place(self) -> bool | None:
        """Whether no nftables table of ours has changed since it was last compared; None if this is not known.

        The call takes a fraction of a millisecond, however much other software has in nftables, and much less after only our own
        changes.
        """

    def is_source_checked(self) -> bool:
        """Whether the kernel drops every packet that a sandbox sends from a source address which is not routed to this sandbox.

        The result is true if our nftables tables that drop these packets were verified once and have not changed since; it is False
        when in doubt (I11). The call takes tens of microseconds, and takes no lock whose holder may wait for something outside the
        process.
        """

    def extra_family(self) -> tuple[Family | None, str]:
        """Return the second IP family of which a new sandbox gets an address, and a text.

        The family is None if a sandbox gets an address of one family only. The text says why the node cannot have the second family
        that the settings ask for; otherwise it is "". Read from memory: the answer is that of the node's last
        inspection. Before the first inspection it is what the settings say.
        """

    def dropped_packets(self) -> Mapping[str, int]:
        """Return the number of dropped packets of sandboxes by reason (DROP_REASONS).

        The numbers are those of the last read of the counters; this call takes them from memory.
        """

    def other_software(self) -> Sequence[RoutingDifference]:
        """Return what other software on the node changes, or may change, in sandboxes' traffic, as the node's last inspection found
        it.

        Each difference says how an operator ends it (`mend`). A difference does not prove that a sandbox has no network. Read from
        memory.
        """

    def inspect_other_software(self, addresses: Container[IpAddress]) -> None:
        """Inspect the filters of other software now, so that `other_software` returns the present findings.

        If nftables cannot be read, the last findings stay. `addresses`: the addresses of sandboxes.
        """

    def foreign_links(self) -> Sequence[ForeignLink]:
        """Return the links of other software that led from the host into a sandbox's namespace at the last inspection. From memory."""

    def await_link(self, mac: MacAddress) -> None:
        """Wait until the link of an ENI that is being attached appears. Raises: WiringError if this takes too long."""

    def setup_eni(self, eni: Eni) -> None:
        """Bring a secondary ENI's link up, with address, table, routes and rule. Idempotent.

        With an IPv6 pool the link gets no address and no rule, and an ENI that neither has the /80 nor was created by us is left
        alone.
        Raises: WiringError if its link does not appear, if it has no table of its own, or if the kernel refuses; KernelDumpError.
        """

    def setup_enis(self, enis: Collection[Eni]) -> Mapping[EniId, IpamError]:
        """Set up several ENIs as `setup_eni` does. Returns: the error of each ENI that could not be set up; the others are set up.

        Raises: KernelDumpError, WiringError if the links of the node cannot be read.
        """

    def reject_free_addresses(self, prefixes: Iterable[IpNetwork]) -> None:
        """Have the kernel reject packets to the free addresses of prefixes (unreachable). Idempotent. Raises: WiringError."""

    def remove_prefix_rules(self, is_needless: Callable[[IpNetwork, int], bool]) -> None:
        """Remove rules that select packets from a whole delegated prefix (FROM_SANDBOX_PRIORITY).

        Args:
            is_needless: called with the prefix and the table of a rule; returns whether the rule is to be removed.
        Raises: WiringError, KernelDumpError.
        """

    def teardown_eni(self, eni: Eni, *, remaining: Iterable[Eni] = ()) -> None:
        """Remove an ENI's table and rules, but nothing that an ENI in `remaining` needs. Idempotent.

        Raises: WiringError, also for an ENI without a table of its own; KernelDumpError.
        An ENI in `remaining` that was attached later at the same place (device index and card) has the same table number, so this
        table stays.
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
        """Repair what other software on the node removed or changed in the networking of the node and its ENIs.

        Args:
            addresses: all addresses for sandboxes; none of them may be local on the host.
            backed_off: objects that must not be repaired now, because their repair pauses after a repair conflict.
            is_silent: whether the kernel has announced no change of a link, address, route or rule since the last call with
                `is_silent=False`. If so, the objects that were read in that last call may be used again.
        Returns: one report for each repair, and one for each part that could not be repaired. Raises: KernelDumpError; WiringError if
            the primary ENI's link is missing.
        """

    def reconcile_table(self, *, identity: InstanceIdentity) -> list[RepairReport]:
        """Repair only the nftables table for SNAT and marks, as `reconcile` does; nothing before the first `setup_node` or
        `reconcile`.

        Raises: WiringError.
        """

    def differences(
        self, *, identity: InstanceIdentity | None, enis: Iterable[Eni], addresses: Container[IpAddress] = ()
    ) -> list[RoutingDifference]:
        """Return what `reconcile` would repair or report, and change nothing. Without an identity the node's own part is left out.

        Raises: KernelDumpError if every try was interrupted (I11).
        """

    def reachability_problems(self, specs: Sequence[WiringSpec], *, enis: Collection[Eni]) -> list[RoutingDifference]:
        """Ask the kernel whether packets to and from wired sandboxes would arrive. Nothing is sent or changed.

        Returns: the differences that keep packets from arriving, each with the sandbox's address. If `will_be_repaired` of a
        difference is true, `Wiring.repair` of the sandbox ends it. Raises: KernelDumpError, WiringError.
        """

    def remove_left_chains(self, names: Collection[str] | None) -> str:
        """Remove the rules, the chains and the table that amazon-vpc-cni-k8s created with iptables-nft or nftables.

        The caller must have checked that nothing needs them any more.

        Args:
            names: which of the chains for single sandboxes to remove; None: all of them.
        Returns: what was removed, in words; "" if there was nothing. Raises: WiringError, KernelDumpError; then nothing was removed.
        """

    def links(self, macs: Iterable[MacAddress] | None = None) -> frozenset[MacAddress]:
        """Return the MACs of the links that are present now, up or down. Sandboxes' links are left out.

        Args:
            macs: return only links with these MACs. Links that were found before are looked up by name first, which is far cheaper
                than a dump on a node with many sandboxes. Only the others are read from a dump. None: all links, from one dump.
        Raises: KernelDumpError if every try was interrupted (I11); WiringError.
        """

    def host_events(self) -> Iterator[LinkEvent | HostChange]:
        """Yield the kernel's notifications, and block while there are none.

        Changes of ENIs' links are yielded as `LinkEvent`, all other changes that may need a repair as `HostChange`. The first event,
        OPENED, means that the subscription is open. A change that this daemon's own wiring makes is left out if it can be recognised;
        otherwise its event shows the state that the daemon wants. After notifications were lost, one `LinkEvent` and one `HostChange`
        of kind MISSED are yielded, so that no loss stays unnoticed (I11). The iterator ends after `stop_host_events`. Only one thread
        may read at a time.

        Raises: WiringError if the subscription cannot be opened or breaks.
        """

    def stop_host_events(self) -> None:
        """End a running `host_events` iterator, from another thread. Every later iterator ends after OPENED."""
