"""The faults that tests and operators of the lab put into the simulated cloud.

One object holds all faults; the EC2 and metadata servers consult it at every call. `apply` takes a JSON-able dict:

    {"apis": {"AssignPrivateIpAddresses": {fields below}, "*": {every EC2 API}, "imds": {instance metadata}},
     "unreachable": {"ec2": "refuse", "imds": "hang"}, "attach": {"vanishes": false, "stuck_s": 30, "count": 1}, ...}

Of one API:

    latency_s         delay before the call takes effect: seconds, {"low", "high"} uniform, {"median", "sigma"} log-normal
    answer_latency_s  delay between effect and answer (a client that gives up meanwhile does not learn that the call took effect)
    throttle          {"rate_per_s", "burst"}: token bucket, RequestLimitExceeded when empty
    error             {"code", "message", "status", "count" | "rate"}: the next `count` calls, or a share `rate` of them
    lost_answers      {"count" | "rate"}: the call takes effect, then the connection is cut
    hang              true: no effect and no answer until the fault is cleared; then the connection is cut
    lag_s             Describe APIs and imds: answer from the state as of that many seconds ago
    frozen            imds only: answer from the state at the moment of this fault, however long it lasts (amazon-vpc-cni-k8s 2497)
    absent            imds only: ["local-ipv4s", ...]: 404 for these categories (Nitro shows only those known at launch)

Of the cloud as a whole; each key replaces what was under it, null clears it:

    attach            {"vanishes", "stuck_s", "count" | "rate"}: accepted attachments that go wrong
    interface_quota   ENIs that the account may have: NetworkInterfaceLimitExceeded
    describe          DescribeNetworkInterfaces that lies (lab/vpc/lies.py has the sources):
        omit              {"enis", "addresses": share or list, "primary", "everything", "steady": flags, "count" | "rate"}: left out
        late_addresses_s  seconds for which an attached ENI is shown without secondary addresses; "late_primary": without any
        stale_s           {API: seconds}: delay after which changes by this API are shown; other changes are shown at once
        also              {ENI: ["10.0.0.5", "10.0.1.0/28"]}: IPv4 addresses and prefixes that the ENI is shown with besides its own
    unseen            {API: calls}: number of calls of this API in which a new ENI or attachment is "not found"
    iam               [{"action", "unless": {condition: value}}]: what the role may not do (lab/vpc/iam.py)
    rules             choices where AWS's rule is unknown or reported in two ways (lab/vpc/rules.py)
    large_account     {"page_size", "sparse", "code"}: DescribeNetworkInterfaces must be paged or filtered (lab/vpc/account.py)
    account_limits    {"scale": 1}: the documented buckets of every API, all callers together, times `scale` (lab/vpc/account.py)
    subnets           {subnet ID or "*": {"leave": 5} | {"fragmented": true} | {"without_ipv6_prefixes": true}}: only 5 addresses are
                      free; no whole /28 is free although addresses are; no /80 is free
    volumes           {instance name or "*": 27}: EBS volumes attached, which share slots with ENIs (lab/vpc/limits.py); default 1

An entry of `apis` or `unreachable` replaces the earlier entry of the same name; null or {} clears it. If there is an entry "*" and one
for the API, both apply. A wrong spec is refused as a whole, and the error names every problem.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random

from lab.vpc.account import Bucket, documented_bucket
from lab.vpc.errors import Ec2Error, request_limit
from lab.vpc.fault_spec import IMDS, AttachFault, Conditions, Reach, parse
from lab.vpc.lies import Omission
from lab.vpc.live_fault import Live, draw
from lab.vpc.rules import Rules
from lab.vpc.spec_reader import Counter, FaultSpecError

__all__ = ["IMDS", "AttachFault", "FaultSpecError", "Faults", "Reach", "Verdict"]


@dataclass(frozen=True)
class Verdict:
    """The decision about one call.

    `latency_s`, `answer_latency_s`: delays before the effect of the call, and between its effect and its answer.
    `error`: the answer instead of an effect; None if the call takes effect.
    `loses_answer`: whether the connection is cut after the effect.
    """

    latency_s: float = 0.0
    answer_latency_s: float = 0.0
    error: Ec2Error | None = None
    loses_answer: bool = False


class Faults:
    """All faults in force. Thread-safe; while it holds its lock it takes no other."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic, seed: int = 0) -> None:
        self._clock = clock
        self._rng = Random(seed)
        self._lock = threading.Lock()
        self._apis: dict[str, Live] = {}
        self._conditions = Conditions()
        self._attach_times: Counter | None = None
        self._omit_times: Counter | None = None
        self._unseen: dict[tuple[str, str], int] = {}
        self._account: dict[str, Bucket] = {}
        self._reach: dict[str, Reach] = {}
        self._specs: dict[str, object] = {}
        self._listeners: list[Callable[[], None]] = []

    def apply(self, spec: Mapping[str, object]) -> None:
        """Put faults in force; faults that the spec does not name stay. Raises: FaultSpecError; then nothing is changed."""
        parsed = parse(spec)
        with self._lock:
            for name, fault in parsed.apis.items():
                self._apis.pop(name, None)
                if fault is not None:
                    self._apis[name] = Live(fault, self._clock())
            self._change(parsed.changes)
            self._reach.update(parsed.unreachable)
            for key, value in spec.items():
                old = self._specs.get(key)
                merged = {**old, **value} if isinstance(old, Mapping) and isinstance(value, Mapping) else value
                self._specs[key] = merged if key in ("apis", "unreachable") else value
        self._tell()

    def clear(self) -> None:
        """Remove every fault."""
        with self._lock:
            self._apis.clear()
            self._change(dict.fromkeys(vars(Conditions())))
            self._reach.clear()
            self._specs.clear()
        self._tell()

    def as_dict(self) -> dict[str, object]:
        """Return the specs that were applied since the last clear, merged, for display."""
        with self._lock:
            return dict(self._specs)

    @property
    def conditions(self) -> Conditions:
        """The faults of the cloud as a whole."""
        with self._lock:
            return self._conditions

    @property
    def rules(self) -> Rules:
        """The choices where the behaviour of AWS is unknown."""
        return self.conditions.rules or Rules()

    def decide(self, api: str, *, is_bare: bool = False) -> Verdict:
        """Decide about one call, and use up counts and tokens. `is_bare`: whether the call is neither filtered nor paged."""
        with self._lock:
            live = self._entries(api)
            latency_s = sum(draw(entry.fault.latency, self._rng) for entry in live)
            answer_latency_s = sum(draw(entry.fault.answer_latency, self._rng) for entry in live)
            error = None if api == IMDS or self._account_admits(api, is_bare=is_bare) else request_limit()
            for entry in live:
                if error is None and not entry.admits(self._clock()):
                    error = request_limit()
                if error is None:
                    error = entry.strike(self._rng)
            loses = any(entry.lost is not None and entry.lost.strikes(self._rng) for entry in live)
            return Verdict(latency_s, answer_latency_s, error, loses)

    def hangs(self, api: str) -> bool:
        """Whether a call of that API is never answered."""
        with self._lock:
            return any(entry.fault.hang for entry in self._entries(api))

    def lag_s(self, api: str) -> float:
        """The age, in seconds, of the state that the answers of an API show."""
        with self._lock:
            return max((entry.fault.lag_s for entry in self._entries(api)), default=0.0)

    def reach(self, server: str) -> Reach:
        """Whether the server `ec2` or `imds` can be reached."""
        with self._lock:
            return self._reach.get(server, Reach.OPEN)

    @property
    def interface_quota(self) -> int | None:
        """Most ENIs of the account; None for no limit."""
        return self.conditions.interface_quota

    def absent(self, api: str = IMDS) -> frozenset[str]:
        """The categories of metadata that are missing."""
        with self._lock:
            return frozenset(name for entry in self._entries(api) for name in entry.fault.absent)

    def is_frozen(self, api: str = IMDS) -> bool:
        """Whether the answers show the state at the moment when the fault was applied."""
        with self._lock:
            return any(entry.fault.frozen for entry in self._entries(api))

    def take_omission(self) -> tuple[Omission, Random] | None:
        """Return the omission for the next answer with its random numbers; None if there is none. Each call uses up a count."""
        with self._lock:
            lies = self._conditions.describe
            if lies is None or lies.omit is None or self._omit_times is None or not self._omit_times.strikes(self._rng):
                return None
            return lies.omit, Random(self._rng.random())

    def born(self, resource_id: str) -> None:
        """Record that an ENI or attachment is new, for `is_unseen`."""
        with self._lock:
            self._unseen.update({(api, resource_id): calls for api, calls in (self._conditions.unseen or {}).items()})

    def is_unseen(self, api: str, resource_id: str) -> bool:
        """Whether a call must not find a new ENI or attachment yet. Each call of this method uses up a count."""
        with self._lock:
            left = self._unseen.get((api, resource_id), 0)
            if left:
                self._unseen[api, resource_id] = left - 1
            return left > 0

    def volume_count(self, instance_name: str) -> int:
        """Number of volumes of an instance; without a fault it has only its root volume."""
        volumes = self.conditions.volumes or {}
        return volumes.get(instance_name, volumes.get("*", 1))

    def take_attach_fault(self) -> AttachFault | None:
        """Return the fault of the attachment that is being accepted; None if it has none. Each call uses up a count."""
        with self._lock:
            if self._attach_times is None or not self._attach_times.strikes(self._rng):
                return None
            return self._conditions.attach

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` after every apply and clear."""
        with self._lock:
            self._listeners.append(listener)

    def off_change(self, listener: Callable[[], None]) -> None:
        """Stop calling `listener`. Nothing happens if it is not registered."""
        with self._lock:
            self._listeners = [kept for kept in self._listeners if kept != listener]

    def _change(self, changes: Mapping[str, object]) -> None:
        """Replace the named conditions, and reset their counts. The caller holds the lock."""
        new = self._conditions = replace(self._conditions, **changes)  # type: ignore[arg-type]  # read by type in fault_spec
        if "attach" in changes:
            self._attach_times = Counter(new.attach.times) if new.attach else None
        if "describe" in changes:
            self._omit_times = Counter(new.describe.omit.times) if new.describe and new.describe.omit else None
        if "unseen" in changes:
            self._unseen.clear()
        if "account_limits" in changes:
            self._account.clear()

    def _account_admits(self, api: str, *, is_bare: bool) -> bool:
        scale = self._conditions.account_limits
        if scale is None:
            return True
        name, fresh = documented_bucket(api, is_bare=is_bare, scale=scale, now=self._clock())
        return self._account.setdefault(name, fresh).admits(self._clock())

    def _tell(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        for listener in listeners:
            listener()

    def _entries(self, api: str) -> list[Live]:
        names = (api,) if api == IMDS else ("*", api)
        return [self._apis[name] for name in names if name in self._apis]
