"""What services may ask of the kernel: the wiring of sandboxes, and the host's routing."""

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Mapping
from ipaddress import IPv4Address
from typing import Protocol

from ipamd.model.attachment import NetnsIdentity, Wired, WiringSpec
from ipamd.model.cloud import InstanceIdentity
from ipamd.model.eni import Eni
from ipamd.model.ids import AttachmentKey, MacAddress
from ipamd.model.kernel import HostChange, HostVeth, KernelSurvey, LinkEvent, RepairedObject, RoutingDifference


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

    def mark_for_deletion(
        self, *, host_veth: str, address: IPv4Address, route_table: int, is_source_checked: bool = False
    ) -> None:
        """Drop route and rules, take the link down and put it into the dying group (DEL). Absent parts are fine.

        `is_source_checked`: the host drops what comes from a source that is not routed back (`HostNetwork.is_source_checked`), so
        the link may stay up until the sweep, if no route of the address is left.
        """
        ...

    def veth(self, name: str) -> HostVeth | None:
        """Look at one link of the host; None if there is none of this name. WiringError if it is no veth."""
        ...

    def rename_veth(self, *, host_veth: str, to: str, address: IPv4Address) -> None:
        """Rename a sandbox's link, with its route. Idempotent; a link of that name whose alias has another address stays.

        It may be down for a moment: older kernels rename only a link that is down. Raises: WiringError.
        """
        ...

    def stamp(self, veth: HostVeth, *, key: AttachmentKey, address: IPv4Address) -> HostVeth:
        """Write our alias on a host veth that amazon-vpc-cni-k8s made; nothing that carries packets changes.

        Returns: the veth as it is now. Raises: WiringError, also if it is another link by now, or has an identity already.
        """
        ...

    def sweep(self) -> None:
        """Delete every dying link in one kernel call; returns when they are gone. None dying is fine."""
        ...

    def check(self, spec: WiringSpec) -> list[str]:
        """Compare the kernel, both sides, with a spec; one sentence per difference (CHECK; may dump the host's tables)."""
        ...

    def check_inside(self, spec: WiringSpec) -> list[str]:
        """Compare a sandbox's own side with a spec; one sentence per difference. Bounded in memory, whatever is there (I16).

        Raises: NetnsError if its namespace is gone; WiringError.
        """
        ...

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
        ...

    def survey(self, *, may_be_torn: bool = False) -> KernelSurvey:
        """Look at all our wiring in the host namespace. KernelDumpError if every try was interrupted (I11).

        `may_be_torn`: return what was seen then, with `is_whole` false: what it shows was there, what it lacks may be there.
        """
        ...

    def remove_leftover(self, *, host_veth: str | None, address: IPv4Address | None) -> None:
        """Remove wiring that nobody owns: link by name, and every route and rule of an address, in any table.

        Without `address` it is the one that the link's alias names, unless it is routed through another link.
        """
        ...


class HostNetwork(Protocol):
    """Routing of the node and its ENIs: sysctls, ENI tables, mark rules, the nftables table. Repaired at once, and on a clock."""

    def setup_node(self, identity: InstanceIdentity) -> None:
        """Set up the node's own part: sysctls, mark rules, nftables table. Idempotent. Raises: WiringError."""
        ...

    def confine_sandboxes(self, *, is_silent: bool = False) -> list[str]:
        """Put in place what drops a sandbox's packets with a source that is not its own, redirects and IPv6. Idempotent.

        Needs no identity of the node and no ENI. `is_silent`: as in `reconcile`. Returns: one sentence per repair, and one with
        NOT_REPAIRED per refusal.
        """
        ...

    def confinement_differences(self) -> list[RoutingDifference]:
        """Compare as `confine_sandboxes` does, and change nothing."""
        ...

    def is_drop_in_place(self) -> bool:
        """Whether the drop that the settings ask for was verified once, and is unchanged at this moment. As cheap as the next one."""
        ...

    def is_source_checked(self) -> bool:
        """Whether no sandbox can send with a source that is not routed to it: verified once, and unchanged at this moment.

        Cheap (tens of microseconds, no lock that is held while something outside is waited for). False when in doubt (I11).
        """
        ...

    def dropped_packets(self) -> Mapping[str, int]:
        """How many packets of sandboxes were dropped, by reason, at the last look. From memory."""
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

    def reconcile(
        self,
        *,
        identity: InstanceIdentity,
        enis: Iterable[Eni],
        addresses: Container[IPv4Address] = (),
        held: Collection[RepairedObject] = (),
        is_silent: bool = False,
    ) -> list[str]:
        """Repair what other software on the node removed or changed; one `Repaired` per repair, one sentence per part beyond it.

        Args:
            addresses: all for sandboxes; none of them may be local on the host.
            held: objects to leave as they are.
            is_silent: no link, address, route or rule was announced since the last call without it: what that read may be used again.
        """
        ...

    def reconcile_table(self, *, identity: InstanceIdentity, held: Collection[RepairedObject] = ()) -> list[str]:
        """Repair only the nftables table, as `reconcile` does. Raises: WiringError."""
        ...

    def differences(
        self, *, identity: InstanceIdentity | None, enis: Iterable[Eni], addresses: Container[IPv4Address] = ()
    ) -> list[RoutingDifference]:
        """Compare as `reconcile` does, and change nothing. Without an identity the node's own part is left out.

        Raises: KernelDumpError if every try was interrupted (I11).
        """
        ...

    def remove_left_chains(self) -> str:
        """Remove what amazon-vpc-cni-k8s made with iptables-nft or nftables. The caller knows that nobody needs it any more.

        Returns: what was removed, "" if there was nothing. Raises: WiringError, KernelDumpError; then nothing was.
        """
        ...

    def links(self, macs: Iterable[MacAddress] | None = None) -> frozenset[MacAddress]:
        """MACs of the links that are present now, up or down, from one uninterrupted dump; sandboxes' links are left out.

        Args:
            macs: only these matter. Links that are where they were are then asked for by name, which costs a node with many
                sandboxes far less.
        Raises: KernelDumpError if every try was interrupted (I11); WiringError.
        """
        ...

    def host_events(self) -> Iterator[LinkEvent | HostChange]:
        """Follow the kernel's notifications, blocking: links of ENIs as `LinkEvent`, all else that may need a repair as `HostChange`.

        The first event, OPENED, means that the subscription is open. Changes by this daemon's own wiring are left out, or tell of
        the state that is wanted. Lost notifications are a MISSED of both, never silence (I11).
        Ends after `stop_host_events`. Raises: WiringError if the subscription cannot be opened or breaks. One reader at a time.
        """
        ...

    def stop_host_events(self) -> None:
        """End a running `host_events` iterator from another thread, and every later one at once."""
        ...
