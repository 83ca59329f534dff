"""The Protocols of the sources from which a new sandbox gets its first leg.

ADD asks its sources in turn, and wires the first leg that one of them offers. A source decides before the sandbox's lock is taken,
because it may have to call another program (kubelet). It claims the address and the name of the leg under the lock.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from ipamd.core.deadline import Deadline, StepTimer
from ipamd.model.attachment import WiringSpec
from ipamd.model.cni_request import AttachRequest


class LegOffer(Protocol):
    """A first leg that a source offers to one ADD."""

    @property
    def pending(self) -> str:
        """Why the ADD must wait before it can claim the leg, for people; "" if it need not wait."""

    def claimed(self, deadline: Deadline, steps: StepTimer) -> AbstractContextManager[WiringSpec]:
        """Claim the address and the name of the leg, so that no other ADD gets them during the block.

        The caller has the sandbox's lock.

        Yields: the spec to wire. If the block raises, the caller undoes the wiring and releases the address (`Cooldown.roll_back`).
        Raises: IpamError; nothing is claimed then.
        """


class LegSource(Protocol):
    """Decides which ADDs get a first leg of one kind, for example a branch ENI."""

    @property
    def step(self) -> str:
        """Name under which the time for deciding and waiting is measured as a step of an ADD."""

    def ask(self, request: AttachRequest, deadline: Deadline) -> LegOffer | None:
        """Decide about one ADD. The caller holds no lock. Returns None if the next source has to be asked. Raises: IpamError."""

    def waiting(self, request: AttachRequest, deadline: Deadline) -> AbstractContextManager[Callable[[str], None]]:
        """Occupy one of the few places for ADDs that wait because their offer is pending.

        Yields: a function that waits once, until the answer of the source may have changed. Its argument is `LegOffer.pending`.
        """
