"""When what failed is due again: six schedules in one table, and one agenda of pauses for the whole daemon.

Whatever is put off is named by a key: what it is, then the object that it is about. What was never put off, or has been cleared, is
due. In memory only: a new process may try everything once. While an ADD waits, a pause ends after the schedule's `urgent_s`: an
idle node asks seldom, and no ADD waits for the hour that was meant for an idle node. Rejected: a back-off in each class, because two
of them about one refusal disagree; a heap, because there are some tens of keys and most pauses are moved before they end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable

from ipamd.model.record import dataclass
from ipamd.ports import Clock

Key = tuple[Hashable, ...]
"""What is put off, as a word, and the object that it is about, if there are several."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """Pauses of `first_s`, twice that, and so on up to `longest_s`; `urgent_s`: the longest while an ADD waits."""

    name: str
    first_s: float
    longest_s: float
    urgent_s: float = float("inf")

    def pause_s(self, failure_count: int) -> float:
        """Seconds to pause after so many failures in a row, the first of which is 1."""
        return min(self.first_s * 2.0 ** min(failure_count - 1, 32), self.longest_s)


NODE = Schedule("node", 0.5, 30.0)
"""A service of this node, or a loop of ours. Ours: containerd restarts in a tenth of a second, and to ask it again costs little."""

EC2 = Schedule("ec2", 1.0, 1800.0, urgent_s=60.0)
"""An EC2 error that says nothing else. Ours: two tries in an idle hour, after a disturbance as long as that; while an ADD waits, a
minute at most, as amazon-vpc-cni-k8s (pkg/ipamd/ipamd.go)."""

REPAIR = Schedule("repair", 10.0, 600.0)
"""An object of this node that something else changes back. Ours: the first is short, because a pod may wait for it."""

ROOM = Schedule("room", 120.0, 3600.0, urgent_s=600.0)
"""A subnet, ENI or device index that is full. The first is amazon-vpc-cni-k8s's after a subnet without addresses (pkg/ipamd/ipamd.go,
insufficientCidrErrorCooldown; issue 1585 about /28s). The others are ours: addresses come free when pods elsewhere end."""

DENIED = Schedule("denied", 600.0, 3600.0)
"""IAM or the account's quota refused. Ours: a person changes it, and then waits for us."""

LIMIT = Schedule("limit", 3600.0, 86400.0, urgent_s=21600.0)
"""The instance takes no further ENI, or an ENI no further slot, though the instance type says so. On most types volumes take the
places of ENIs, and come and go with pods (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/volume_limits.html). Ours: each try
makes and deletes an ENI, six calls."""


OF_EC2 = (EC2, ROOM, DENIED, LIMIT)
"""The schedules of what EC2 refused."""


@dataclass(slots=True)
class _Pause:
    began_s: float
    length_s: float
    urgent_s: float
    failure_count: int = 0
    schedule: Schedule | None = None


class Agenda:
    """The pauses that run. Safe from any thread; its lock is a leaf."""

    def __init__(self, clock: Clock, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """`is_urgent`: whether an ADD waits now."""
        self._clock = clock
        self._is_urgent = is_urgent
        self._lock = threading.Lock()
        self._pauses: dict[Key, _Pause] = {}

    def put_off(self, key: Key, schedule: Schedule) -> float:
        """It failed: it is due after the schedule's next pause. Returns: that pause in seconds."""
        with self._lock:
            before = self._pauses.get(key)
            count = 1 if before is None else before.failure_count + 1
            pause_s = schedule.pause_s(count)
            self._pauses[key] = _Pause(self._clock.monotonic(), pause_s, schedule.urgent_s, count, schedule)
            return pause_s

    def put(self, key: Key, *, in_s: float, schedule: Schedule | None = None) -> None:
        """It is due after so many seconds, whatever was before. A failure then begins with its schedule's first pause.

        `schedule`: the one of what failed, where the time is another.
        """
        with self._lock:
            self._pauses[key] = _Pause(self._clock.monotonic(), in_s, float("inf"), schedule=schedule)

    def is_due(self, key: Key) -> bool:
        """Whether no pause runs."""
        return not self.left_s(key)

    def left_s(self, key: Key) -> float:
        """Seconds left of the pause; 0.0 if none runs."""
        pause, is_urgent = self._pauses.get(key), self._is_urgent()
        if pause is None:
            return 0.0
        length_s = min(pause.length_s, pause.urgent_s) if is_urgent else pause.length_s
        return max(pause.began_s + length_s - self._clock.monotonic(), 0.0)

    def clear(self, *keys: Key) -> None:
        """They succeeded, or are there no more: no pause runs, and the next one is the first again."""
        with self._lock:
            for key in keys:
                self._pauses.pop(key, None)

    def shorten(self, key: Key) -> None:
        """Something of it succeeded: the pause that runs stays, the next one is the first again."""
        with self._lock:
            if key in self._pauses:
                self._pauses[key].failure_count = 0

    def of_ec2(self) -> dict[Key, float]:
        """What is put off because EC2 refused it, and the seconds left."""
        with self._lock:
            found = [key for key, pause in self._pauses.items() if pause.schedule in OF_EC2]
        return {key: left_s for key in found if (left_s := self.left_s(key))}

    def keys(self, *what: Hashable) -> tuple[Key, ...]:
        """What was put off and not cleared, of the keys that begin with these words; a pause may be over."""
        with self._lock:
            return tuple(key for key in self._pauses if key[: len(what)] == what)

    def keep_only(self, what: str, objects: Collection[Hashable]) -> None:
        """Clear what is about an object that is none of these: (`what`, object)."""
        self.clear(*(key for key in self.keys(what) if key[1] not in objects))

    def next_s(self, *what: Hashable) -> float | None:
        """Seconds until the first pause that runs is over, of the keys that begin with these words; None if none runs."""
        return soonest_s(left_s for key in self.keys(*what) if (left_s := self.left_s(key)))


def soonest_s(waits: Iterable[float | None]) -> float | None:
    """The shortest of several waits in seconds; None if nothing is due by itself."""
    return min((wait for wait in waits if wait is not None), default=None)
