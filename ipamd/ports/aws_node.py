"""What amazon-vpc-cni-k8s has on this node: its file of allocations, its conflist, and the address where its daemon listens.

In this module "its" means "of amazon-vpc-cni-k8s".
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Protocol

from ipamd.model.aws_node import Allocation, DaemonSign, ImportResult
from ipamd.model.family import Family, IpAddress
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.sandbox import Sandbox


class AwsNode(Protocol):
    """amazon-vpc-cni-k8s on this node. It assigns the node's addresses before or after our daemon, never at the same time."""

    def listener(self) -> str:
        """Return where its daemon accepts connections now; "" if it does not run, or if VPC_IPAMD_AWS_NODE_SOCKET=off turns this check
        off. A process of ours that listens there is ignored.
        """

    def last_sign(self, *, pod: str = "") -> DaemonSign | None:
        """Return the last sign that its daemon ran in this boot, even if an earlier process of ours saw the sign; None if there was
        none.

        Args:
            pod: `namespace/name` of its daemon's pod while the runtime lists the pod as ready, otherwise "". That the pod is ready
                counts as a sign too, if the check of `listener` is on.
        Raises: ForeignStateError, TakeoverError if the signs cannot be read.
        """

    def allocations(self) -> tuple[Allocation, ...]:
        """Return the allocations in its file; none if there is no file. Raises: ForeignStateError if the file cannot be used."""

    def has_run_since(self) -> bool:
        """Whether its daemon has written its file since we last read or wrote the file. Then our rows cannot be trusted.

        Raises: ForeignStateError if the file cannot be examined.
        """

    def finish(self) -> None:
        """Record that its present file has been read. Raises: ForeignStateError, TakeoverError."""

    @property
    def is_exporting(self) -> bool:
        """Whether an export was begun and not cancelled, in any boot: the node belongs, or will belong, to amazon-vpc-cni-k8s."""

    def begin_export(self) -> None:
        """Record that the node is being exported, so that our daemon assigns no address after a restart. Raises: TakeoverError."""

    def end_export(self) -> None:
        """Remove the record of `begin_export`. Raises: TakeoverError."""

    def extra_addresses(self, family: Family) -> Mapping[str, IpAddress]:
        """Return the addresses of extra legs from the files of its plugin `egress-cni`, by container ID.

        `family`: the family of these addresses. A file that cannot be read is left out, and logged.
        """

    def write(self, allocations: Iterable[Allocation], *, routed: Container[IpAddress]) -> str:
        """Replace its file of allocations, and its files with the addresses of extra legs.

        Args:
            routed: the addresses to which routes of the host lead. A file whose address is in `routed` stays even if no allocation has
                the address, because another sandbox uses the address.

        Returns: the path of the file of allocations. Raises: TakeoverError.
        """

    def network_name(self) -> str:
        """Return the network name in its conflist, even if `save_conflist` renamed the file; its default name if none is readable."""

    def has_conflist(self) -> bool:
        """Whether its conflist is in the runtime's directory. Its name sorts before the name of ours, so the runtime would use it."""

    def save_conflist(self) -> str:
        """Rename its conflist so that runtimes do not load it.

        Returns: what was done, in words; "" if there is no conflist. Raises: TakeoverError.
        """

    def restore_conflist(self) -> str:
        """Undo `save_conflist`.

        Returns: what was done, in words; "" if the conflist is in place or was never renamed. Raises: TakeoverError.
        """

    def remove_our_conflist(self) -> str:
        """Remove our own conflist. Returns: what was done, in words; "" if there was none. Raises: TakeoverError."""


class Import(Protocol):
    """Takes over sandboxes that amazon-vpc-cni-k8s wired, by writing our alias on their host veths. The methods raise no error."""

    def take_over(self, survey: KernelSurvey, listed: Mapping[str, Sandbox] | None) -> ImportResult:
        """Write our alias on every host veth that has none and whose sandbox can be identified.

        Args:
            survey: a survey with all host veths.
            listed: the runtime's sandboxes by container ID; None if it did not answer.
        """

    def retry_unnamed(self, listed: Mapping[str, Sandbox]) -> list[HostVeth]:
        """Retry the host veths whose sandbox `take_over` could not identify. Returns: the veths on which our alias was written now."""
