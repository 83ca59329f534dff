"""What services may ask of amazon-vpc-cni-k8s's remains on this node: its file of allocations, its conflist, its listener."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from ipamd.model.aws_node import Allocation, ImportResult, Sign
from ipamd.model.kernel import HostVeth, KernelSurvey
from ipamd.model.sandbox import Sandbox


class AwsNode(Protocol):
    """The other software that gives out this node's addresses, before us and after us. Never both at once."""

    def listener(self) -> str:
        """Where its daemon accepts connections now; "" if it is away. A process of ours that listens there is not it."""
        ...

    def last_sign(self, *, pod: str = "") -> Sign | None:
        """The last sign of its daemon in this boot, also one that an earlier process of ours saw; None if it left none.

        Args:
            pod: of its daemon, while the runtime has its sandbox ready; "" else.
        Raises: ForeignStateError, TakeoverError if nobody can tell.
        """
        ...

    def allocations(self) -> tuple[Allocation, ...]:
        """What its file says; nothing without a file. Raises: ForeignStateError if the file cannot be used."""
        ...

    def has_run_since(self) -> bool:
        """Whether its daemon wrote its file since we last read or wrote it: then our rows are not to be believed.

        Raises: ForeignStateError if nobody can tell.
        """
        ...

    def settle(self) -> None:
        """Note that its file, as it is, has been read. Raises: ForeignStateError, TakeoverError."""
        ...

    @property
    def is_exporting(self) -> bool:
        """Whether an export was begun and not taken back, in whatever boot: this node is, or is to be, the other's."""
        ...

    def begin_export(self) -> None:
        """Note that the node goes to the other: no restart of ours gives an address. Raises: TakeoverError."""
        ...

    def end_export(self) -> None:
        """Take the note back. Raises: TakeoverError."""
        ...

    def write(self, allocations: Iterable[Allocation]) -> str:
        """Replace its file. Returns: its path. Raises: TakeoverError."""
        ...

    def has_conflist(self) -> bool:
        """Whether its conflist is where runtimes find it: it sorts before ours."""
        ...

    def save_conflist(self) -> str:
        """Rename its conflist so that runtimes do not load it. Returns: what was done, "" if there is none. Raises: TakeoverError."""
        ...

    def restore_conflist(self) -> str:
        """Undo `save_conflist`. Returns: what was done, "" if it is in place or was never saved. Raises: TakeoverError."""
        ...

    def remove_our_conflist(self) -> str:
        """Remove ours. Returns: what was done, "" if there was none. Raises: TakeoverError."""
        ...


class Import(Protocol):
    """Takes over the sandboxes that it wired: stamps those of its host veths whose sandbox can be named. Neither method raises."""

    def take_over(self, survey: KernelSurvey, listed: Mapping[str, Sandbox] | None) -> ImportResult:
        """Stamp every host veth without our alias whose sandbox can be named."""
        ...

    def look_again(self, listed: Mapping[str, Sandbox]) -> list[HostVeth]:
        """Stamp what the start could not name and can be named now. Returns: those that carry our alias now."""
        ...
