"""Limit how often EC2 is asked again for an address that a pod asks for and EC2 has refused (I13).

The runtime repeats a refused ADD for as long as the pod exists, and each try would cost up to three EC2 calls. So after a refusal EC2
is asked for that address again only after a pause, which grows with each refusal. As the pause is never much longer than the time for
which the address has been refused, a pod that moves waits at most about twice as long as without pauses. All refused addresses also
share one pause (`PACE`), because there may be as many of them as pods. An ADD that comes earlier gets the last refusal again, without
a call.
"""

from __future__ import annotations

from ipamd.core.backoffs import Backoffs, Schedule
from ipamd.model.errors import IpamError, PinnedAddressError
from ipamd.model.family import IpAddress
from ipamd.model.record import dataclass
from ipamd.ports.process import Clock

REFUSED_ADDRESS = Schedule("refused address", 1.0, 30.0)
"""Pauses until EC2 is asked again for the same address. Ours: kubelet repeats an ADD every 10 to 15 s, so once an address is
available, its pod gets it after a few repetitions at most."""

PACE = Schedule("pace of refused addresses", 0.25, 3.0)
"""After each refusal comes a pause, in which EC2 is asked for no address that it has refused before. The pauses grow until the node
obtains such an address. Ours: however many pods ask, with the longest pause EC2 is asked again for 20 addresses a minute. Each takes
at most three calls, so these are 60 calls at most. A single address never waits for this pause, because its own pauses are longer."""

PACE_KEY = ("refused addresses",)

REMEMBERED_S = 600.0
"""A refusal that was not repeated for this long is forgotten. Ours: the pod has gone, as kubelet repeats an ADD within seconds."""


@dataclass(slots=True)
class _Refused:
    """The last refusal of an address. `at_s`: when EC2 was asked, on the monotonic clock."""

    refusal: IpamError
    at_s: float


class RefusedAddresses:
    """The addresses that EC2 refused, each with its last refusal. Only the pool's thread may use it."""

    def __init__(self, backoffs: Backoffs, clock: Clock) -> None:
        self._backoffs = backoffs
        self._clock = clock
        self._refused: dict[IpAddress, _Refused] = {}

    def require_due(self, address: IpAddress) -> None:
        """Check that EC2 may be asked for an address now. Raises: PinnedAddressError, which repeats the last refusal, if not."""
        refused = self._refused.get(address)
        if refused is None:
            return
        left_s = max(self._backoffs.left_s(_key(address)), self._backoffs.left_s(PACE_KEY))
        if left_s:
            raise _repeated(refused.refusal, age_s=self._clock.monotonic() - refused.at_s, left_s=left_s)

    def add(self, address: IpAddress, refusal: IpamError) -> None:
        """Remember a refusal that has cost EC2 calls, and begin the pauses after it."""
        self._forget_old_ones()
        self._refused[address] = _Refused(refusal, self._clock.monotonic())
        self._backoffs.back_off(_key(address), REFUSED_ADDRESS)
        self._backoffs.back_off(PACE_KEY, PACE)

    def discard(self, address: IpAddress) -> None:
        """Forget the refusals of an address that the node has obtained.

        The common pause ends, because other refused addresses may be available now too.
        """
        if self._refused.pop(address, None) is not None:
            self._backoffs.clear(_key(address), PACE_KEY)

    def _forget_old_ones(self) -> None:
        oldest_s = self._clock.monotonic() - REMEMBERED_S
        for address, refused in list(self._refused.items()):
            if refused.at_s < oldest_s:
                del self._refused[address]
                self._backoffs.clear(_key(address))
        if not self._refused:
            self._backoffs.clear(PACE_KEY)


def _key(address: IpAddress) -> tuple[str, IpAddress]:
    """Return the back-off key of an address."""
    return "refused address", address


def _repeated(refusal: IpamError, *, age_s: float, left_s: float) -> PinnedAddressError:
    """Return the last refusal of an address as the answer to another ADD. Its details also say how old EC2's answer is, and when EC2
    is asked again.
    """
    details = f"{refusal.details} (EC2 was asked {age_s:.0f} s ago; the first ADD after {left_s:.0f} s asks it again)"
    repeated = PinnedAddressError(refusal.message, details=details)
    repeated.refusal, repeated.fields = refusal.refusal, refusal.fields
    return repeated
