"""Pauses after failures: schedules, and one object with the running pauses of the whole daemon.

A key (a *back-off key*) names the work that is postponed: its kind, then its object. Work without a running pause is due.
`Backoffs.put` also sets when regular work is due next. Pauses are in memory only, so a new process may try everything once. If the
schedule of a pause has an `urgent_s`, the pause ends after `urgent_s` while an ADD waits. So an idle node calls EC2 seldom, and yet an
ADD does not wait for the longest of these pauses.

Two alternatives were rejected. With a back-off in each class, two classes would treat the same refusal differently. A heap is not
needed, because there are only some tens of keys, and most pauses are changed before they end.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Hashable, Iterable

from ipamd.model.errors import CloudCredentialsError, CloudDeniedError, is_about_keys
from ipamd.model.metadata_evidence import ASK_AGAIN_S, ASK_PAUSES_S
from ipamd.model.record import dataclass
from ipamd.ports.process import Clock

Key = tuple[Hashable, ...]
"""Names work that is postponed: a word for the kind of work, then the object, if there are several objects of the kind."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """The pauses after failures in a row: `first_s`, then `factor` times as long each time, up to `longest_s`.

    `urgent_s`: the longest pause while an ADD waits; infinite if a waiting ADD does not shorten the pauses.
    """

    name: str
    first_s: float
    longest_s: float
    urgent_s: float = float("inf")
    factor: float = 2.0

    def pause_s(self, failure_count: int) -> float:
        """Return how many seconds to pause after `failure_count` failures in a row. The first failure has the count 1."""
        return min(self.first_s * self.factor ** min(failure_count - 1, 32), self.longest_s)


NODE = Schedule("node", 0.5, 30.0)
"""Pauses after the failure of a service on this node, or of a loop of the daemon. Ours: the first pause is short, because containerd
restarts in a tenth of a second and another call costs little."""

EC2 = Schedule("ec2", 1.0, 1800.0, urgent_s=60.0)
"""Pauses after an EC2 error that has no schedule of its own. Ours: an idle node finally tries only twice an hour. While an ADD
waits, at most a minute passes between two tries, as in amazon-vpc-cni-k8s (pkg/ipamd/ipamd.go)."""

REPAIR = Schedule("repair", 10.0, 600.0)
"""Pauses of the repair of an object on this node that other software changes again and again. Ours: the first pause is short, because
a pod may wait for the repair."""

ROOM = Schedule("room", 120.0, 3600.0, urgent_s=600.0)
"""Pauses after EC2 refused because a subnet is full or a device index is taken, and after other refusals that last for minutes. The
first pause is that of amazon-vpc-cni-k8s after a subnet without addresses (pkg/ipamd/ipamd.go, insufficientCidrErrorCooldown; issue
1585 about /28s). The other pauses are ours: they are long, because addresses become free only when pods on other nodes end."""

DENIED = Schedule("denied", 600.0, 3600.0)
"""Pauses after a refusal that only a person can end: IAM, or a quota of the account, denied a call, or no subnet may have a new ENI.
Ours: tries before the person has changed something are useless, and after the change at most an hour passes until the next try."""

CREDENTIALS = Schedule("credentials", 2.0, 60.0, urgent_s=30.0)
"""Pauses while there are no credentials. EC2 is not called then, so a longer pause would save no call to EC2. Ours: a person who
repairs a trust policy or a clock waits for at most a minute, and 5,000 nodes together call STS only 83 times a second."""

LIMIT = Schedule("limit", 3600.0, 86400.0, urgent_s=21600.0)
"""Pauses after EC2 refused a further ENI for the instance, or a further slot for an ENI, although the instance type allows it. On most
types volumes use places of ENIs, and volumes come and go with pods
(https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/volume_limits.html). Ours: tries are rare, because each try makes and deletes an
ENI, which is six calls."""


CONTRADICTION = Schedule("contradiction", ASK_PAUSES_S[0], ASK_AGAIN_S, factor=4.0)
"""Pauses between the EC2 calls about a lasting contradiction between a row of the datastore and another source. They are the pauses of
ASK_PAUSES_S: a minute, then four times as long each time, up to an hour."""


def schedule_of(error: BaseException) -> Schedule:
    """Return the schedule by which a failed call to EC2 is retried."""
    if isinstance(error, CloudCredentialsError):
        return CREDENTIALS
    if isinstance(error, CloudDeniedError) and not is_about_keys(error):
        return DENIED
    return EC2


OF_EC2 = (EC2, ROOM, DENIED, CREDENTIALS, LIMIT)
"""The schedules after a refusal of EC2."""


@dataclass(slots=True)
class _Pause:
    began_s: float
    length_s: float
    urgent_s: float
    failure_count: int = 0
    schedule: Schedule | None = None


class Backoffs:
    """The running pauses, by key. Safe from any thread. No other lock is taken while its lock is held."""

    def __init__(self, clock: Clock, *, is_urgent: Callable[[], bool] = lambda: False) -> None:
        """`is_urgent`: returns whether an ADD waits now."""
        self._clock = clock
        self._is_urgent = is_urgent
        self._lock = threading.Lock()
        self._pauses: dict[Key, _Pause] = {}

    def back_off(self, key: Key, schedule: Schedule, *, longest_s: float = float("inf")) -> float:
        """Begin a pause after a failure. Returns: its length in seconds: the schedule's next pause, but at most `longest_s`."""
        with self._lock:
            before = self._pauses.get(key)
            count = 1 if before is None else before.failure_count + 1
            pause_s = min(schedule.pause_s(count), longest_s)
            self._pauses[key] = _Pause(self._clock.monotonic(), pause_s, schedule.urgent_s, count, schedule)
            return pause_s

    def put(self, key: Key, *, in_s: float, schedule: Schedule | None = None) -> None:
        """Begin a pause of a given length, which replaces a running one. A waiting ADD does not shorten it.

        The failures so far are forgotten: the next failure is followed by the first pause of its schedule.

        Args:
            in_s: the length of the pause in seconds.
            schedule: the schedule of the failed work, if the pause follows a failure.
        """
        with self._lock:
            self._pauses[key] = _Pause(self._clock.monotonic(), in_s, float("inf"), schedule=schedule)

    def is_due(self, key: Key) -> bool:
        """Whether no pause of this key is running."""
        return not self.left_s(key)

    def left_s(self, key: Key) -> float:
        """Return the seconds that are left of the pause; 0.0 if none is running."""
        pause, is_urgent = self._pauses.get(key), self._is_urgent()
        if pause is None:
            return 0.0
        length_s = pause.length_s
        if is_urgent:
            length_s = min(length_s, pause.urgent_s)
        return max(pause.began_s + length_s - self._clock.monotonic(), 0.0)

    def clear(self, *keys: Key) -> None:
        """End the pauses of these keys, after a success or because the objects are gone.

        The next failure begins with the first pause.
        """
        with self._lock:
            for key in keys:
                self._pauses.pop(key, None)

    def hasten(self, key: Key) -> None:
        """Let the running pause end as early as if an ADD waited, because something new waits for the work. The pauses after later
        failures do not change.
        """
        with self._lock:
            pause = self._pauses.get(key)
            if pause is not None:
                pause.length_s = min(pause.length_s, pause.urgent_s)

    def shorten(self, key: Key) -> None:
        """Reset the count of failures after a partial success: the next failure begins with the first pause.

        A running pause goes on.
        """
        with self._lock:
            if key in self._pauses:
                self._pauses[key].failure_count = 0

    def of_ec2(self) -> dict[Key, float]:
        """Return the keys whose pause is running because EC2 refused the work, each with the seconds that are left."""
        with self._lock:
            keys = [key for key, pause in self._pauses.items() if pause.schedule in OF_EC2]
        return self._running(keys)

    def keys(self, *beginning: Hashable) -> tuple[Key, ...]:
        """Return the keys that begin with `beginning` and have not been cleared. Their pause may be over."""
        with self._lock:
            return tuple(key for key in self._pauses if key[: len(beginning)] == beginning)

    def retain(self, kind: str, objects: Collection[Hashable]) -> None:
        """End the pauses of every key (`kind`, object) whose object is not in `objects`."""
        self.clear(*(key for key in self.keys(kind) if key[1] not in objects))

    def next_s(self, *beginning: Hashable) -> float | None:
        """Return the seconds until the first pause of a key that begins with `beginning` ends; None if no such pause is running."""
        return soonest_s(self._running(self.keys(*beginning)).values())

    def _running(self, keys: Iterable[Key]) -> dict[Key, float]:
        """Return, for each of the keys whose pause is running, the seconds that are left."""
        running = {}
        for key in keys:
            left_s = self.left_s(key)
            if left_s:
                running[key] = left_s
        return running


def soonest_s(waits: Iterable[float | None]) -> float | None:
    """Return the shortest of several waits in seconds. A wait of None, for work that is not due at a certain time, is ignored.

    Returns: None if there is no other wait.
    """
    return min((wait for wait in waits if wait is not None), default=None)
