"""amazon-vpc-cni-k8s's remains on this node: its file of allocations, its conflist, its listener."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

from ipamd.model.aws_node import Allocation, DaemonSign, ImportResult
from ipamd.model.family import Family, IpAddress
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.sandbox import Sandbox


class AwsNode(Protocol):
    """amazon-vpc-cni-k8s, which assigns this node's addresses before us or after us, never at the same time."""

    def listener(self) -> str:
        """Where its daemon accepts connections now; "" if it is away. A process of ours that listens there does not count."""

    def last_sign(self, *, pod: str = "") -> DaemonSign | None:
        """The last sign of the daemon of amazon-vpc-cni-k8s in this boot, also one that an earlier process of ours saw; None without
        any.

        Args:
            pod: the name of that daemon's pod while the runtime lists it as ready, otherwise "". A running pod is a sign too.
        Raises: ForeignStateError, TakeoverError if that cannot be found out.
        """

    def allocations(self) -> tuple[Allocation, ...]:
        """The allocations in its file; none without a file. Raises: ForeignStateError if the file cannot be used."""

    def has_run_since(self) -> bool:
        """Whether its daemon wrote its file since we last read or wrote it. Then our rows cannot be trusted.

        Raises: ForeignStateError if that cannot be found out.
        """

    def finish(self) -> None:
        """Record that the present file has been read. Raises: ForeignStateError, TakeoverError."""

    @property
    def is_exporting(self) -> bool:
        """Whether an export was begun and not cancelled, in any boot: the node belongs, or will belong, to amazon-vpc-cni-k8s."""

    def begin_export(self) -> None:
        """Record that the node is being exported, so that our daemon assigns no address after a restart. Raises: TakeoverError."""

    def end_export(self) -> None:
        """Remove the record of `begin_export`. Raises: TakeoverError."""

    def extra_addresses(self, family: Family) -> Mapping[str, IpAddress]:
        """The addresses of extra legs in the files of its plugin `egress-cni`, by container ID. A file that cannot be read is left
        out, and logged.
        """

    def write(self, allocations: Iterable[Allocation], *, routed: Container[IpAddress]) -> str:
        """Replace its file of allocations, and its files of the addresses of extra legs.

        A file of an extra leg's address stays if no allocation has that address and the address is in `routed`: another sandbox uses
        it.

        Returns: the path of the file of allocations. Raises: TakeoverError.
        """

    def network_name(self) -> str:
        """The name of its network in its conflist, saved or not; if none can be read, the name that it installs."""

    def has_conflist(self) -> bool:
        """Whether its conflist is in the runtime's directory, where it sorts before ours."""

    def save_conflist(self) -> str:
        """Rename its conflist so that runtimes do not load it. Returns: what was done, "" if there is none. Raises: TakeoverError."""

    def restore_conflist(self) -> str:
        """Undo `save_conflist`. Returns: what was done, "" if it is in place or was never saved. Raises: TakeoverError."""

    def remove_our_conflist(self) -> str:
        """Remove our conflist. Returns: what was done, "" if there was none. Raises: TakeoverError."""


class Import(Protocol):
    """Takes over sandboxes that amazon-vpc-cni-k8s wired, by writing our alias on their host veths. Neither method raises."""

    def take_over(self, survey: KernelSurvey, listed: Mapping[str, Sandbox] | None) -> ImportResult:
        """Write our alias on every host veth without one whose sandbox can be identified."""

    def retry_unnamed(self, listed: Mapping[str, Sandbox]) -> list[HostVeth]:
        """Retry the host veths that the start could not identify. Returns: those that have our alias now."""
