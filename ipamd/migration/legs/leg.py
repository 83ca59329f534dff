"""What a pass of the import knows, what it has taken over so far, and what each kind of leg does in it."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Protocol

from ipamd.model.attachment import Attachment
from ipamd.model.aws_node import Allocation
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey
from ipamd.model.kernel import HostVeth, KernelSurvey, VlanLink
from ipamd.model.record import dataclass, field
from ipamd.model.sandbox import Sandbox


@dataclass(slots=True)
class ImportPass:
    """One look at the host veths of amazon-vpc-cni-k8s, and the links that carry our aliases since.

    `listed`: sandboxes by container ID, None if the runtime is silent. `allocations`: of its file. `firsts`, `uplinks`: by name.
    """

    survey: KernelSurvey
    listed: Mapping[str, Sandbox] | None
    allocations: Sequence[Allocation]
    firsts: dict[str, HostVeth] = field(default_factory=dict)
    extra: list[HostVeth] = field(default_factory=list)
    uplinks: dict[str, VlanLink] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Takeover:
    """What became of one host veth: the addresses that it leads to, and why it was not taken over, "" if it was."""

    addresses: tuple[IpAddress, ...]
    why: str


class FirstLegImport(Protocol):
    """Takes over sandboxes with one kind of first leg."""

    def take_over(self, veth: HostVeth, addresses: tuple[IpAddress, ...], look: ImportPass) -> Takeover | None:
        """Take one sandbox over by its first host veth, to which `addresses` are routed; None if it has another kind of leg.

        Raises nothing: a veth that refuses does not stop the others.
        """


class ExtraLegImport(Protocol):
    """Takes over extra legs of one kind."""

    def look(self, foreign: Collection[HostVeth]) -> None:
        """Find such legs of the sandboxes that have these first host veths. Raises nothing."""

    def take_over(self, first: HostVeth, key: AttachmentKey, look: ImportPass) -> None:
        """Take over the leg of one sandbox, if it has one, before its first leg: the sandbox is never recorded without it.

        Raises: IpamError; then its first leg is not taken over either.
        """

    def left_chains(self, attachments: Iterable[Attachment]) -> list[str]:
        """Return the names of the chains that amazon-vpc-cni-k8s made for such legs of these sandboxes; our own rules replace them."""
