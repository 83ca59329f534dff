"""The reference: a node that follows the rules of amazon-vpc-cni-k8s on the same model of EC2, with its loop, calls and random
choices.

Every 5 s it makes one increase, or at most every 30 s one decrease; and it releases at most one ENI. An increase by an ENI makes the
calls Create, DescribeInstances, Attach and Modify, with DescribeSubnets before and after. A release makes Describe, Detach, a pause of
2 s, and Delete (amazon-vpc-cni-k8s pkg/awsutils/awsutils.go, AllocENI and FreeENI). A failed call is tried three times, as the Go SDK
does by default, and then by the next pass. A minute after the last change the node's data are compared with the instance, so that the
effect of a call whose answer was lost is found. An ADD that finds no address fails, and the kubelet makes a new sandbox ten seconds
later. Left out are tags, the refresh of security groups, and leaked ENIs; this makes the reference better than the original. A pass
that has nothing to do is skipped, because it makes no call.

A node is a generator that yields the seconds for which it waits, because a thread for each of millions of calls would cost too
much."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator
from random import Random
from typing import Any

from bench.fleet.ec2 import Ec2Model, ModelEni
from bench.fleet.measure import Measure
from bench.fleet.reference_calls import ReferenceCalls, Steps
from bench.fleet.reference_rules import (
    ENI_MIN_AGE_S,
    EniStats,
    Stats,
    Targets,
    deletable,
    is_high,
    is_low,
    looks_for_extra_eni,
    short_and_over,
    wanted,
)
from bench.fleet.reference_store import Cidr, KnownEni
from bench.fleet.traces import NodeTrace, Pod
from ipamd.settings import Settings

LOOP_S = 5.0
DECREASE_S = 30.0
NO_ROOM_S = 120.0
RECONCILE_S = 60.0
RECONCILE_COOLDOWN_S = 60.0
"""Time for which a released address is not found again by a comparison. Source: amazon-vpc-cni-k8s pkg/ipamd/ipamd.go."""

KUBELET_RETRY_S = 10.0
"""The kubelet's pause after a sandbox that could not be made. Source: kubernetes pkg/kubelet, backOffPeriod."""

SLOTS_CODE = "PrivateIpAddressLimitExceeded"


class ReferenceNode:
    """One node. `spawn` schedules its start and its pods."""

    def __init__(self, model: Ec2Model, trace: NodeTrace, index: int, *, settings: Settings, measure: Measure) -> None:
        self._model, self._world, self._trace, self._index, self._measure = model, model.world, trace, index, measure
        pool = settings.pool_settings(max_pods=trace.limits.max_pods)
        self._targets = Targets(
            pool.warm_ip_target,
            pool.minimum_ip_target,
            pool.warm_eni_target,
            pool.warm_prefix_target,
            pool.prefix_delegation,
            trace.limits.slots_per_eni,
            trace.limits.max_pods if not pool.prefix_delegation else 110,
        )
        self._cooldown_s = float(settings.pool.cooldown_s)
        self._draw = Random(f"reference/{index}")
        self._enis: list[KnownEni] = [KnownEni(model.add_instance(index, trace.limits), True, 0.0)]
        self._decreased_s = self._acted_s = -math.inf
        self._hot: dict[int, float] = {}
        self._calls = ReferenceCalls(model, index, self._draw)
        self._is_awake = False

    def spawn(self) -> None:
        """Schedule the start of the node, and the arrival of its pods, at the times of the trace."""
        self._world.at(self._trace.starts_s, self._wake)
        for pod in self._trace.pods:
            self._world.at(pod.arrives_s, lambda pod=pod: self._add(pod))  # type: ignore[misc]

    def _add(self, pod: Pod) -> None:
        """Do the ADD of a pod: assign any free address that is not cooling, of any ENI. If there is none, repeat after
        KUBELET_RETRY_S."""
        now_s = self._world.now_s
        picked = self._pick(now_s)
        if picked is None:
            self._measure.unserved(pod)
            self._world.at(now_s + KUBELET_RETRY_S, lambda: self._add(pod))
        else:
            self._measure.addressed(self._index, pod, now_s=now_s)
            if pod.leaves_s < math.inf:
                self._world.at(max(pod.leaves_s, now_s + 1.0), lambda: self._leave(*picked))
        self._wake()

    def _pick(self, now_s: float) -> tuple[KnownEni, Cidr, int] | None:
        some = [(eni, cidr) for eni in self._enis if eni.assigned < eni.total for cidr in eni.cidrs.values()]
        while some:
            place = int(self._draw.random() * len(some))
            eni, cidr = some[place]
            some[place] = some[-1]
            some.pop()
            address = cidr.take(now_s, self._cooldown_s)
            if address is not None:
                eni.assigned += 1
                return eni, cidr, address
        return None

    def _leave(self, eni: KnownEni, cidr: Cidr, address: int) -> None:
        cidr.used.discard(address)
        cidr.released_s[address] = self._world.now_s
        eni.assigned -= 1
        self._measure.left(now_s=self._world.now_s)
        self._wake()

    def _wake(self) -> None:
        """Start the loop if it does not run. Its passes are at multiples of LOOP_S after an offset of the node."""
        if not self._is_awake:
            self._is_awake = True
            offset_s = self._trace.starts_s + self._index % 50 / 10
            passes = math.ceil(max(self._world.now_s - offset_s, 0.0) / LOOP_S)
            self._world.drive(offset_s + passes * LOOP_S, self._run())

    def _run(self) -> Steps:
        while (yield from self._pass()) or self._calls.is_in_doubt:
            yield LOOP_S
            if self._calls.is_in_doubt and self._world.now_s - self._acted_s > RECONCILE_S:
                yield from self._reconcile()
        self._is_awake = False

    def _pass(self) -> Generator[float, None, bool]:
        """Make one pass. Returns: whether another pass may have something to do."""
        stats, now_s = self._stats(), self._world.now_s
        is_busy = False
        if is_low(stats, self._targets):
            is_busy = yield from self._increase(stats)
        elif is_high(stats, self._targets):
            is_busy = True
            if now_s - self._decreased_s > DECREASE_S:
                yield from self._decrease(
                    short_and_over(stats, self._targets)[1] or stats.free_prefixes - self._targets.warm_prefix
                )
                self._decreased_s = self._acted_s = now_s
        if all(eni.is_primary or eni.assigned for eni in self._enis):
            return is_busy
        enis = self._eni_stats()
        if looks_for_extra_eni(self._stats(), self._targets, enis):
            extra = deletable(enis, self._targets)
            if extra:
                yield from self._free_eni(extra)
                return True
            ripening = [eni for eni in enis if not eni.is_primary and not eni.assigned]
            is_busy = is_busy or any(eni.has_cooling or eni.age_s < ENI_MIN_AGE_S for eni in ripening)
        return is_busy

    def _stats(self) -> Stats:
        total, assigned = sum(eni.total for eni in self._enis), sum(eni.assigned for eni in self._enis)
        if not self._targets.by_prefix:
            return Stats(total, assigned)
        prefixes = [cidr for eni in self._enis for cidr in eni.cidrs.values() if cidr.size > 1]
        return Stats(total, assigned, len(prefixes), sum(not cidr.used for cidr in prefixes))

    def _eni_stats(self) -> list[EniStats]:
        stats = [eni.stats(now_s=self._world.now_s, cooldown_s=self._cooldown_s) for eni in self._enis]
        self._draw.shuffle(stats)
        return stats

    def _increase(self, stats: Stats) -> Generator[float, None, bool]:
        """Try to add addresses or prefixes to one ENI, or to add an ENI. Returns: whether the node can grow at all."""
        if self._world.now_s - self._calls.no_room_s <= NO_ROOM_S:
            return True
        want = wanted(stats, self._targets)
        open_enis = [eni for eni in self._enis if len(eni.cidrs) < self._targets.slot_count]
        if open_enis:
            yield from self._fill(self._draw.choice(open_enis), want)
            return True
        if len(self._enis) >= self._trace.limits.eni_count:
            return False
        yield from self._allocate_eni(min(want, self._targets.slot_count))
        return True

    def _fill(self, eni: KnownEni, want: int) -> Steps:
        """Request all wanted addresses for an ENI, and if that fails, one. If EC2 answers that the ENI is full, read its addresses."""
        for count in (min(self._targets.slot_count - len(eni.cidrs), want), 1):
            params = {"NetworkInterfaceId": eni.model.eni_id, **self._counts(count)}
            answer = yield from self._calls.call("AssignPrivateIpAddresses", params)
            if answer is None and self._calls.code == SLOTS_CODE:
                answer = yield from self._calls.call("DescribeNetworkInterfaces", {"NetworkInterfaceIds": [eni.model.eni_id]})
            if answer is not None:
                eni.learn({}, self._world.now_s)
                self._acted_s = self._world.now_s
                return

    def _counts(self, count: int) -> dict[str, int]:
        return {"Ipv4PrefixCount" if self._targets.by_prefix else "SecondaryPrivateIpAddressCount": count}

    def _allocate_eni(self, count: int) -> Steps:
        subnet_id = self._model.subnet(self._enis[0].model.subnet).subnet_id
        yield from self._calls.call("DescribeSubnets", {})  # if it fails, the node's own subnet is used
        token = f"{self._index}/{self._world.now_s}"
        request = {"SubnetId": subnet_id, "ClientToken": token, "Description": "", **self._counts(count)}
        created = yield from self._calls.call("CreateNetworkInterface", request)
        if created is None:
            return
        eni_id = created["NetworkInterface"]["NetworkInterfaceId"]
        if not (yield from self._attach(eni_id)):
            yield from self._calls.persist("DeleteNetworkInterface", {"NetworkInterfaceId": eni_id}, first_s=0.5)
            return
        if (yield from self._calls.call("ModifyNetworkInterfaceAttribute", {"NetworkInterfaceId": eni_id})) is None:
            yield from self._give_back(eni_id)
            return
        model = self._model.enis[eni_id]
        yield max(model.attached_s - self._world.now_s, 0.0)  # the original polls instance metadata until then
        yield from self._calls.call("DescribeSubnets", {})
        self._adopt(model)

    def _attach(self, eni_id: str) -> Generator[float, None, bool]:
        """Attach an ENI at the lowest device index that is free at EC2. Returns: whether that succeeded."""
        if (yield from self._calls.call("DescribeInstances", {})) is None:
            return False
        taken = {eni.device for eni in self._model.enis_of(self._index).values()}
        device = min(set(range(len(taken) + 1)) - taken)
        return (
            yield from self._calls.call("AttachNetworkInterface", {"NetworkInterfaceId": eni_id, "DeviceIndex": device})
        ) is not None

    def _adopt(self, model: ModelEni) -> None:
        eni = KnownEni(model, False, self._world.now_s)
        eni.learn({}, self._world.now_s)
        self._enis.append(eni)
        self._acted_s = self._world.now_s

    def _reconcile(self) -> Steps:
        """Compare the node's data with the instance's metadata, and ask EC2 about differences."""
        now_s = self._world.now_s
        self._hot = {first: until_s for first, until_s in self._hot.items() if until_s > now_s}
        present = {eni.eni_id: eni for eni in self._model.enis_of(self._index).values() if eni.attached_s <= now_s}
        known = {eni.model.eni_id for eni in self._enis}
        is_known = True
        if present.keys() - known:
            is_known = (
                yield from self._calls.call("DescribeNetworkInterfaces", {"Filters": [{"Name": "attachment"}]})
            ) is not None
            for eni_id in sorted(present.keys() - known) if is_known else ():
                self._adopt(present[eni_id])
        for eni in self._enis:
            if (eni.model.addresses | eni.model.prefixes) - eni.cidrs.keys() - self._hot.keys():
                asked = yield from self._calls.call("DescribeNetworkInterfaces", {"NetworkInterfaceIds": [eni.model.eni_id]})
                is_known = is_known and asked is not None
                if asked is not None:
                    eni.learn(self._hot, now_s)
        self._calls.is_in_doubt = not is_known or bool(self._hot)
        self._acted_s = self._world.now_s

    def _decrease(self, over: int) -> Steps:
        for eni in self._draw.sample(self._enis, len(self._enis)):
            free = [cidr for cidr in eni.cidrs.values() if not cidr.used]
            gone = self._draw.sample(free, min(over, len(free)))
            over -= len(gone)
            if not gone:
                continue
            for cidr in gone:
                del eni.cidrs[cidr.first]
                eni.total -= cidr.size
                self._hot[cidr.first] = self._world.now_s + RECONCILE_COOLDOWN_S
            params: dict[str, Any] = {"NetworkInterfaceId": eni.model.eni_id}
            params["PrivateIpAddresses"] = [cidr.first for cidr in gone if cidr.size == 1]
            params["Ipv4Prefixes"] = [(cidr.first, 28) for cidr in gone if cidr.size > 1]
            yield from self._calls.call("UnassignPrivateIpAddresses", params)  # if it fails, the next comparison finds them again

    def _free_eni(self, eni_id: str) -> Steps:
        eni = next(known for known in self._enis if known.model.eni_id == eni_id)
        if (yield from self._calls.call("DescribeNetworkInterfaces", {"NetworkInterfaceIds": [eni_id]})) is None:
            return
        if eni.assigned:
            return  # a pod got an address of this ENI meanwhile
        self._enis.remove(eni)
        yield from self._give_back(eni_id)

    def _give_back(self, eni_id: str) -> Steps:
        if (yield from self._calls.persist("DetachNetworkInterface", {"AttachmentId": f"attach-{eni_id}"}, first_s=0.2)):
            yield 2.0
            yield from self._calls.persist("DeleteNetworkInterface", {"NetworkInterfaceId": eni_id}, first_s=0.5)


def reference(model: Ec2Model, trace: NodeTrace, index: int, settings: Settings, measure: Measure) -> Callable[[], None]:
    """Make a node of the reference. See `bench.fleet.run.shipped`."""
    return ReferenceNode(model, trace, index, settings=settings, measure=measure).spawn
