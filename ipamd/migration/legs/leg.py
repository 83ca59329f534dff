"""The inputs and results of one pass of the import, and the Protocols of the classes that take over one kind of leg."""

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
    """One pass over the host veths of amazon-vpc-cni-k8s.

    `survey`: the survey of the kernel, taken before the pass.
    `listed`: the runtime's sandboxes by container ID, None if it did not answer.
    `allocations`: the content of the file of amazon-vpc-cni-k8s.
    `firsts`: the host veths of first legs that have got our alias in this pass, by name.
    `extra`: the host veths of extra legs that have got our alias.
    `uplinks`: the uplinks that have got our alias, by name.
    """

    survey: KernelSurvey
    listed: Mapping[str, Sandbox] | None
    allocations: Sequence[Allocation]
    firsts: dict[str, HostVeth] = field(default_factory=dict)
    extra: list[HostVeth] = field(default_factory=list)
    uplinks: dict[str, VlanLink] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Takeover:
    """The result for one host veth.

    `addresses`: the addresses that are routed to the veth.
    `reason`: why the veth was not taken over; "" if it was.
    """

    addresses: tuple[IpAddress, ...]
    reason: str


class FirstLegImport(Protocol):
    """Takes over sandboxes with one kind of first leg."""

    def take_over(self, veth: HostVeth, addresses: tuple[IpAddress, ...], import_pass: ImportPass) -> Takeover | None:
        """Take over the sandbox whose first leg has the host veth `veth`, to which `addresses` are routed.

        Returns: None if the sandbox has another kind of first leg. Raises nothing, so that a failure with one veth does not stop the
        takeover of other veths.
        """


class ExtraLegImport(Protocol):
    """Takes over extra legs of one kind."""

    def find_legs(self, foreign: Collection[HostVeth]) -> None:
        """Find the legs of this kind, for later calls of `take_over`. Raises nothing.

        `foreign`: the host veths of the first legs of the sandboxes whose extra legs are searched for.
        """

    def take_over(self, first: HostVeth, key: AttachmentKey, import_pass: ImportPass) -> None:
        """Take over the leg of one sandbox, if the sandbox has such a leg.

        It is called before the first leg is taken over, so that no sandbox is recorded without its extra leg. Raises: IpamError; the
        caller then does not take over the first leg either.
        """

    def left_chains(self, attachments: Iterable[Attachment]) -> list[str]:
        """Return the names of the chains that amazon-vpc-cni-k8s made for such legs of these sandboxes. Our own rules replace them."""
