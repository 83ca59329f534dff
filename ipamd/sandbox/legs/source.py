"""Where the first leg of a new sandbox comes from.

ADD asks its sources in turn, and wires what the first one offers. A source decides before the sandbox's lock is taken, because it may
have to call another program (kubelet); it claims what the leg needs (address, name) under the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import WiringSpec
from ipamd.model.cni_request import AttachRequest


class LegOffer(Protocol):
    """The first leg that one ADD gets."""

    @property
    def pending(self) -> str:
        """Why the ADD must wait before it can have the leg, for people; "" if it can be claimed."""

    def claimed(self, deadline: Deadline, steps: StepTimer) -> AbstractContextManager[WiringSpec]:
        """Claim what the leg needs. During the block no other ADD gets any of it; the caller has the sandbox's lock.

        Yields: what to wire. If the block raises, the caller undoes the wiring and releases the address (`Cooldown.roll_back`).
        Raises: IpamError; then nothing is claimed any more.
        """


class LegSource(Protocol):
    """Decides which ADDs get a first leg of one kind, for example a branch ENI."""

    @property
    def step(self) -> str:
        """Name under which the time for deciding and waiting is measured as a step of an ADD."""

    def ask(self, request: AttachRequest, deadline: Deadline) -> LegOffer | None:
        """Decide about one ADD. The caller holds no lock. None: its leg comes from the next source. Raises: IpamError."""

    def waiting(self, request: AttachRequest, deadline: Deadline) -> AbstractContextManager[Callable[[str], None]]:
        """Occupy one of the few places for ADDs whose offer is pending.

        Yields: a function that waits once, until the source may have news; its argument is `LegOffer.pending`.
        """
