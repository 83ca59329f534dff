"""The base class of extra legs. The sandbox's record has a field of its own for the address of each kind of extra leg."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar

from ipamd.model.attachment import Attachment, WiringSpec
from ipamd.model.family import IpAddress
from ipamd.model.ids import AttachmentKey
from ipamd.model.legs.leg import Leg
from ipamd.model.record import dataclass


@dataclass(frozen=True, slots=True)
class ExtraLeg(Leg):
    """A leg in addition to the first leg, which has the pod's address. A sandbox has at most one extra leg of each kind."""

    is_first: ClassVar[bool] = False

    is_wired_again: ClassVar[bool] = True

    cools_with_first: ClassVar[bool] = False
    """Whether the row of the pod's address also has this leg's address, so that both cool for the same time."""

    @staticmethod
    @abstractmethod
    def recorded_address(sandbox: Attachment | WiringSpec) -> IpAddress | None:
        """Return the address of a sandbox's leg of this kind; None if the sandbox has no such leg."""

    @staticmethod
    @abstractmethod
    def recorded_with(sandbox: WiringSpec, address: IpAddress | None) -> WiringSpec:
        """Return a copy of the spec with a leg of this kind that has `address`, or without such a leg if `address` is None."""

    @staticmethod
    @abstractmethod
    def veth_name(key: AttachmentKey, *, prefix: str) -> str:
        """Return the name of the leg's host veth. `prefix`: how the name of the sandbox's first host veth begins."""
