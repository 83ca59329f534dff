"""What only extra legs have: the field of a sandbox's record that has their address, and a name of their own for the host veth."""

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
    """A leg beside the one with the pod's address. A sandbox has at most one of a kind."""

    is_first: ClassVar[bool] = False

    is_wired_again: ClassVar[bool] = True

    cools_with_first: ClassVar[bool] = False
    """Whether the row of the pod's address also has this leg's address, so that both cool for the same time."""

    @staticmethod
    @abstractmethod
    def recorded_address(sandbox: Attachment | WiringSpec) -> IpAddress | None:
        """Return the address that a sandbox has by such a leg; None if it has no such leg."""

    @staticmethod
    @abstractmethod
    def recorded_with(sandbox: WiringSpec, address: IpAddress | None) -> WiringSpec:
        """Return a sandbox that has this address by such a leg, or no such leg for None."""

    @staticmethod
    @abstractmethod
    def veth_name(key: AttachmentKey, *, prefix: str) -> str:
        """Return the name of the host's end, which depends on the sandbox alone. `prefix`: the one that its first host veth has."""
