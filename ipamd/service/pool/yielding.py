"""What no ADD waits for yields while EC2 throttles: the account's tokens go to those who wait (I13).

EC2's limits are for an account, so a throttled answer says that others ask too, on other nodes perhaps, where ADDs may wait. What
nobody waits for is put off: addresses on an attached ENI, one call each, for a minute or two; a spare ENI, three calls of the
scarcest kind, for a quarter of an hour or two. Each node draws its own part of that, so that they do not come back together.
"""

from __future__ import annotations

from collections.abc import Callable

from ipamd.model.blocked import Blocked
from ipamd.model.errors import ThrottledError
from ipamd.model.growth import Refusal
from ipamd.ports import Clock
from ipamd.service.backoff import soonest_s
from ipamd.service.pool.lesson import Lesson

YIELD_FIRST_S = 60.0
YIELD_MAX_S = 1800.0
YIELD_SHARE = 2.0
"""Spare addresses: this long, or this multiple of the time for which this node has been throttled; once to twice that by draw;
doubled while such a call is throttled. Ours, from the fleet simulation (docs/fleet.md): 150 nodes that start at once took twice
EC2's time for the ENIs of their pods, because the first of them took half of the tokens for spare ones."""

YIELD_ENI_FIRST_S = 900.0
"""A spare ENI: this long, once to twice by draw, doubled likewise. Ours, from the same: while 5,000 nodes are replaced within 20 min
EC2 accepts six Attach calls for five ENIs that ADDs wait for. With a minute the nodes that were done came back every few minutes, and
the slowest hundredth of the nodes waited 346 s; with a quarter of an hour 49 s. What an ADD waits for is asked for at once."""

REASON = "EC2 has just throttled this node, and no ADD waits: others may need the account's calls now"


class Yielding:
    """Used by the pool's thread. `is_creation`: of a new ENI, else of addresses on an attached one."""

    def __init__(self, *, clock: Clock, throttling: Callable[[], tuple[float, float] | None], draw: Callable[[], float]) -> None:
        """`throttling`: since when EC2 throttles calls of this node and when it last did, whether or not a repetition succeeded; None:
        not for long. `draw`: 0.0 to 1.0, this node's part."""
        self._clock = clock
        self._throttling = throttling
        self._part = 1.0 + draw()
        self._lessons = {
            True: Lesson(YIELD_ENI_FIRST_S * self._part, YIELD_MAX_S * self._part),
            False: Lesson(YIELD_FIRST_S * self._part, YIELD_MAX_S * self._part),
        }

    def learn(self, error: ThrottledError, *, is_creation: bool) -> None:
        """EC2 throttled what no ADD waited for."""
        self._lessons[is_creation].learn(error, now_s=self._clock.monotonic())

    def succeeded(self, *, is_creation: bool) -> None:
        """EC2 did it: the next refusal begins with the shortest pause again."""
        self._lessons[is_creation].forget()

    def refusal(self, *, is_creation: bool) -> Refusal | None:
        """Why what no ADD waits for is not asked for now."""
        now_s = self._clock.monotonic()
        if told := self._lessons[is_creation].refusal(now_s=now_s):
            return told
        left_s = self._ends_s(is_creation=is_creation) - now_s
        return Refusal(REASON, left_s=left_s, kind=Blocked.THROTTLED) if left_s > 0 else None

    def next_retry_s(self) -> float | None:
        """Seconds until one of them may be asked for again; None if both may be now."""
        told = [self.refusal(is_creation=of) for of in (True, False)]
        return soonest_s(one.left_s for one in told if one is not None)

    def _ends_s(self, *, is_creation: bool) -> float:
        """Monotonic point; 0.0 if nothing was throttled."""
        throttling = self._throttling()
        if throttling is None:
            return 0.0
        began_s, last_s = throttling
        least_s = YIELD_ENI_FIRST_S if is_creation else YIELD_FIRST_S
        return last_s + self._part * min(max(YIELD_SHARE * (last_s - began_s), least_s), YIELD_MAX_S)
