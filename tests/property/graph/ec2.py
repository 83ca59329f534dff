"""EC2 as it can be: slow, late to show a change, with freed addresses that are reused at once, lost answers, refusals, other hands."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from ipaddress import IPv4Address, IPv6Address
from random import Random
from typing import Any, TypeVar

from ipamd.model.cloud import INTENT_TAG, DescribedEni, EniRequest
from ipamd.model.eni import InstanceLimits
from ipamd.model.eni_tags import INSTANCE_TAG
from ipamd.model.errors import CloudDeniedError, CloudError, CloudNotFoundError, SubnetExhaustedError, ThrottledError
from ipamd.model.family import IPV4, Family, IpAddress, IpNetwork
from ipamd.model.ids import EniId, InstanceId, SubnetId
from tests.fakes.cloud import INSTANCE, PRIMARY, SUBNET, FakeEc2
from tests.property.graph.world import World

T = TypeVar("T")

CHANGES = frozenset(
    (
        "create_eni",
        "attach_eni",
        "set_delete_on_termination",
        "set_security_groups",
        "detach_eni",
        "delete_eni",
        "assign_addresses",
        "assign_prefixes",
        "unassign",
    )
)
READS = frozenset(("describe_enis", "describe_eni", "find_by_token", "find_detached", "describe_subnets", "describe_subnet"))
ACTIONS = (*sorted(CHANGES), *sorted(READS), "subnet_free_count")

KEPT_S = 300.0
"""For how long former states are kept, for answers that lag."""

ATTACHED_AFTER_S, DETACHED_AFTER_S = (1.5, 4.0), (2.0, 5.0)
FRESH_S = 30.0
"""For so long the adapter does not believe that what this process made is not there (`ipamd/cloud/calls.py`)."""

ANSWERED_S = 5.0
"""After an answer an ADD that had reserved an address before may still end: the calls between effects take a second each."""

SHOWN_WITHIN_S = 60.0
"""For so long the adapter waits until an ENI is shown as attached (`ipamd/cloud/retries.py`)."""


@dataclass
class Weather:
    """What EC2 is like now. Shares are of calls; `lag_s` is how far Describe is behind; `refused` are denied actions."""

    throttled: float = 0.0
    failed: float = 0.0
    lost: float = 0.0
    partial: float = 0.0
    lag_s: float = 0.0
    refused: frozenset[str] = frozenset()
    is_silent: bool = False
    latency: tuple[float, float] = (0.1, 0.8)


@dataclass
class Call:
    """One call as EC2 sees it."""

    at_s: float
    method: str
    outcome: str = "ok"
    detail: str = ""


class _Noted(dict[EniId, DescribedEni]):
    """A dictionary that tells of each change."""

    changed: Callable[[], None] = staticmethod(lambda: None)

    def __setitem__(self, key: EniId, value: DescribedEni) -> None:
        super().__setitem__(key, value)
        self.changed()

    def pop(self, key: EniId, *default: Any) -> Any:
        found = super().pop(key, *default)
        self.changed()
        return found


@dataclass
class _Freed:
    """Free singles and /28s, what came back last first."""

    singles: deque[IpAddress] = field(default_factory=deque)
    blocks: deque[IpNetwork] = field(default_factory=deque)


class RoughEc2(FakeEc2):
    """Implements `Ec2` for one life after another; `weather` is what it is like. Not a part of any life.

    What it remembers of addresses it remembers of IPv6 by the /80 (`slot`).
    """

    def __init__(
        self,
        world: World,
        *,
        limits: InstanceLimits,
        seed: int,
        address_count: int = 400,
        block_count: int = 40,
        family: Family = IPV4,
    ) -> None:
        self.world = world
        self.weather = Weather()
        self.log: list[Call] = []
        self.taken: dict[IpAddress, float] = {}
        """What other hands took from us, and when; no more once a call of ours got it again."""
        self._got: dict[IpAddress, float] = {}
        """Of these, what the call got that is being answered."""
        self.added: set[IpAddress] = set()
        """What other hands put on ENIs of ours."""
        self.left_at: dict[IpAddress, float] = {}
        """When an address was last taken from an ENI of ours, by whomever."""
        self.random = Random(f"ec2/{seed}")
        self.came_at: dict[IpAddress, float] = {}
        """When an address was last given to anybody."""
        self._left_out: dict[EniId, float] = {}
        """ENIs of which an answer lacked a part, or all, and that no answer since has shown to a process that lived on; since when."""
        self.seized: set[EniId] = set()
        """ENIs of ours that other hands detached."""
        self._freed = _Freed()
        self._made_at: dict[EniId, tuple[int, float]] = {}
        self._past: deque[tuple[float, dict[EniId, DescribedEni]]] = deque()
        self.foreign_count = 0
        super().__init__(limits=limits, pool_size=address_count, family=family)
        self.left_prefix_count = block_count
        self.enis = _Noted(self.enis)
        self.enis.changed = self._keep  # type: ignore[method-assign]
        self._keep()

    # What EC2 is asked.

    def describe_enis(self, instance_id: InstanceId) -> tuple[DescribedEni, ...]:
        self._call("describe_enis")
        shown = [eni for eni in self._view().values() if eni.instance_id == instance_id]
        left_out = self._leave_out_prefixes(shown) if self.family.is_sparse else self._leave_out(shown)
        now_s, life = self.world.monotonic(), self.world.life
        if left_out is not None:
            self._left_out[left_out] = now_s
            self.log[-1].detail = f"partial: {left_out}"
        told = {eni.eni_id for eni in shown} - {left_out}
        self.world.at(now_s + ANSWERED_S, lambda: None if life.is_over else self._shown_to(told, at_s=now_s))
        return tuple(sorted(shown, key=lambda eni: eni.device_index))

    def _shown_to(self, eni_ids: Collection[EniId], *, at_s: float) -> None:
        """The process that was shown these ENIs lived on, so that it has had time to record that. An answer over which it dies is
        none: two without an ENI, before and after it, would be proof.
        """
        for eni_id in eni_ids:
            if self._left_out.get(eni_id, at_s) < at_s:
                del self._left_out[eni_id]

    def _leave_out(self, shown: list[DescribedEni]) -> EniId | None:
        """An answer lacks one ENI, or one of its addresses. Returns: which ENI."""
        if len(shown) < 2 or self.random.random() >= self.weather.partial:
            return None
        one = self.random.choice([eni for eni in shown if eni.eni_id != PRIMARY])
        if one.eni_id in self._left_out:
            return None
        if self.random.random() < 0.5 or not one.secondary_addresses:
            shown.remove(one)
        else:
            kept = frozenset(sorted(one.secondary_addresses)[1:])
            shown[shown.index(one)] = replace(one, secondary_addresses=kept)
        return one.eni_id

    def _leave_out_prefixes(self, shown: list[DescribedEni]) -> EniId | None:
        """An answer lacks the /80s of one ENI. Returns: which."""
        having = [one for one in shown if one.prefixes and one.eni_id not in self._left_out]
        if not having or self.random.random() >= self.weather.partial:
            return None
        one = self.random.choice(having)
        shown[shown.index(one)] = replace(one, prefixes=frozenset())
        return one.eni_id

    def describe_eni(self, eni_id: EniId) -> DescribedEni:
        self._call("describe_eni")
        return self._shown(eni_id)

    def find_by_token(self, token: str) -> tuple[DescribedEni, ...]:
        self._call("find_by_token")
        return tuple(eni for eni in self._view().values() if eni.tags.get(INTENT_TAG) == token)

    def find_detached(self, tags: Mapping[str, str]) -> tuple[DescribedEni, ...]:
        self._call("find_detached")
        found = [eni for eni in self._view().values() if eni.status == "available"]
        return tuple(
            eni
            for eni in found
            if all(key in eni.tags and eni.tags[key] == (value or eni.tags[key]) for key, value in tags.items())
        )

    def describe_attached_eni(self, eni_id: EniId) -> DescribedEni:
        give_up_s = self.world.monotonic() + SHOWN_WITHIN_S
        while True:
            eni = self.describe_eni(eni_id)
            if eni.attachment_status == "attached":
                return eni
            if self.world.monotonic() >= give_up_s:
                raise CloudError(f"ENI {eni_id} is not attached after {SHOWN_WITHIN_S:.0f} s")
            self.world.sleep(2.0)

    def create_eni(self, request: EniRequest) -> DescribedEni:
        before = set(self.enis)
        made = super().create_eni(request)
        if made.eni_id not in before:
            self._made_at[made.eni_id] = (self.world.life.number, self.world.monotonic())
        return made

    def attach_eni(self, eni_id: EniId, *, instance_id: InstanceId, device_index: int, network_card: int) -> str:
        if eni_id in self.enis and self.enis[eni_id].attachment_status == "detaching":
            self._call("attach_eni")
            raise CloudError(f"ENI {eni_id} is busy")
        given = super().attach_eni(eni_id, instance_id=instance_id, device_index=device_index, network_card=network_card)
        self.enis[eni_id] = replace(self.enis[eni_id], attachment_status="attaching")
        self._in(ATTACHED_AFTER_S, lambda: self._attached(eni_id))
        return given

    def detach_eni(self, attachment_id: str) -> None:
        self._call("detach_eni")
        self._begin_detach(attachment_id)
        self._lose("detach_eni")

    def delete_eni(self, eni_id: EniId) -> None:
        give_up_s = self.world.monotonic() + SHOWN_WITHIN_S
        while eni_id in self.enis and self.enis[eni_id].attachment_status == "detaching":
            self.world.sleep(1.0)
            if self.world.monotonic() > give_up_s:
                break
        super().delete_eni(eni_id)
        self._lose("delete_eni")

    def set_delete_on_termination(self, eni_id: EniId, *, attachment_id: str) -> None:
        super().set_delete_on_termination(eni_id, attachment_id=attachment_id)
        self._lose("set_delete_on_termination")

    def unassign(self, eni_id: EniId, *, addresses: Iterable[IpAddress], prefixes: Iterable[IpNetwork]) -> None:
        super().unassign(eni_id, addresses=addresses, prefixes=prefixes)
        self._lose("unassign")

    # What other hands do. No life is needed.

    def seize_addresses(self, addresses: Iterable[IpAddress]) -> None:
        """Somebody unassigns single addresses of ours."""
        for eni in list(self.enis.values()):
            if gone := eni.secondary_addresses & frozenset(addresses):
                self.enis[eni.eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses - gone)
                self.taken |= dict.fromkeys(gone, self.world.monotonic())
                self._give_back(gone, frozenset())

    def seize_prefixes(self, eni_id: EniId) -> None:
        """Somebody unassigns every prefix of an ENI of ours."""
        eni = self.enis[eni_id]
        self.enis[eni_id] = replace(eni, prefixes=frozenset())
        self.taken |= dict.fromkeys(addresses_of(eni), self.world.monotonic())
        self._give_back(frozenset(), eni.prefixes)

    def seize_eni(self, eni_id: EniId, *, is_deleted: bool) -> None:
        """Somebody detaches an ENI, and perhaps deletes it."""
        eni = self.enis[eni_id]
        self.seized.add(eni_id)
        self.taken |= dict.fromkeys(addresses_of(eni), self.world.monotonic())
        self._begin_detach(eni.attachment_id)
        if is_deleted:
            self.world.at(self.world.monotonic() + DETACHED_AFTER_S[1] + 1, lambda: self._delete_seized(eni_id))

    def add_addresses(self, eni_id: EniId, count: int) -> None:
        """Somebody assigns more addresses to an ENI of ours."""
        eni = self.enis[eni_id]
        if self.family.is_sparse:
            given_prefixes = self._take_for_others(self._take_prefixes, 1)
            self.added |= set(map(slot, (prefix[0] for prefix in given_prefixes)))
            self.enis[eni_id] = replace(eni, prefixes=eni.prefixes | given_prefixes, has_ipv6=True)
        elif len(eni.secondary_addresses) + len(eni.prefixes) + count <= self.limits.slots_per_eni and self.left_count >= count:
            given = frozenset(self._take_for_others(self._take, count))
            self.added |= given
            self.enis[eni_id] = replace(eni, secondary_addresses=eni.secondary_addresses | given)

    def attach_foreign(self) -> str:
        """Somebody attaches an ENI of his own, where a place is free. Returns: which, "" if none was."""
        places = {eni.device_index for eni in self.attached()}
        free = sorted(set(range(self.limits.eni_count)) - places)
        if not free or self.left_count < 2:
            return ""
        self.foreign_count += 1
        eni_id = EniId(f"eni-foreign-{self.foreign_count}")
        self.enis[eni_id] = DescribedEni(
            eni_id,
            type(self.enis[PRIMARY].mac)(f"06:00:00:f0:00:{self.foreign_count:02x}"),
            SUBNET,
            self._take_for_others(self._take, 1).pop(),
            status="in-use",
            attachment_id=f"attach-{eni_id}",
            attachment_status="attached",
            instance_id=INSTANCE,
            device_index=free[-1],
            tags={"node.k8s.amazonaws.com/no_manage": "true"} if self.random.random() < 0.5 else {},
        )
        return eni_id

    def give_to_others(self, count: int) -> None:
        """Somebody else in the subnet gets what was freed last."""
        if self.left_count > count:
            self._take_for_others(self._take, count)

    # Answers.

    def ours(self) -> list[DescribedEni]:
        """Every ENI that this node made, wherever it is."""
        return [
            eni
            for eni in self.enis.values()
            if eni.tags.get(INSTANCE_TAG) == INSTANCE and is_of_pool(eni) and eni.eni_id != PRIMARY
        ]

    def address_owner(self) -> dict[IpAddress, EniId]:
        """Where each address of an attached ENI is, the primary ones left out."""
        return {address: eni.eni_id for eni in self.attached() for address in addresses_of(eni)}

    def counts(self, since_s: float, until_s: float) -> Counter[str]:
        """Calls by method."""
        return Counter(call.method for call in self.log if since_s <= call.at_s < until_s)

    # Inside.

    def _call(self, method: str) -> None:
        self.log.append(entry := Call(self.world.monotonic(), method))
        self.calls[method] += 1
        weather, draw = self.weather, self.random.random
        if not self.world.is_in_hub:
            self.world.sleep(self.random.uniform(*weather.latency))
        error: CloudError | None = None
        if weather.is_silent:
            error = CloudError(f"{method}: EC2 does not answer")
            error.may_have_happened = False
        elif method in weather.refused:
            error = CloudDeniedError(f"{method} is not allowed", code="UnauthorizedOperation", next_step="allow it")
        elif draw() < weather.throttled:
            error = ThrottledError(f"{method}: RequestLimitExceeded", code="RequestLimitExceeded")
        elif draw() < weather.failed:
            error = CloudError(f"{method}: InternalError", code="InternalError")
        if error is not None:
            entry.outcome = type(error).__name__
            self.failed[method] += 1
            raise error

    def _lose(self, method: str) -> None:
        # Until its answer has come nobody knows what a call got of that which others took.
        got, self._got = self._got, {}
        self.taken |= got
        if self.random.random() < self.weather.lost:
            self.log[-1].outcome = "lost"
            raise CloudError(f"{method}: the answer was lost")
        if not self.world.is_in_hub:
            self.world.sleep(self.random.uniform(0.0, 0.2))
        self.world.at(self.world.monotonic() + ANSWERED_S, lambda: self._learnt(got))

    def _learnt(self, got: Mapping[IpAddress, float]) -> None:
        """Who asked knows what the call got, and has had time to record it."""
        primary = {eni.primary_address for eni in self.enis.values()}  # that stays lost for whoever has it
        self.taken = {key: at for key, at in self.taken.items() if got.get(key) != at or key in primary}

    def _keep(self) -> None:
        now_s = self.world.monotonic()
        for eni_id in self.seized & self.enis.keys():  # what EC2 still gives it while it is being detached goes with it
            self.taken |= dict.fromkeys(addresses_of(self.enis[eni_id]) - self.taken.keys(), now_s)
        self._past.append((now_s, dict(self.enis)))
        while len(self._past) > 1 and self._past[1][0] < now_s - KEPT_S:
            self._past.popleft()

    def _view(self) -> dict[EniId, DescribedEni]:
        """What Describe shows: an instant within the lag."""
        if not self.weather.lag_s:
            return dict(self.enis)
        then_s = self.world.monotonic() - self.random.uniform(0.5, 1.0) * self.weather.lag_s
        shown = self._past[0][1]
        for at_s, enis in self._past:
            if at_s <= then_s:
                shown = enis
        return shown

    def _shown(self, eni_id: EniId) -> DescribedEni:
        view = self._view()
        if eni_id in view:
            return view[eni_id]
        life, at_s = self._made_at.get(eni_id, (-1, 0.0))
        if life == self.world.life.number and self.world.monotonic() - at_s < FRESH_S:
            raise CloudError(f"ENI {eni_id} is not shown yet")
        raise CloudNotFoundError(f"ENI {eni_id} does not exist", code="InvalidNetworkInterfaceID.NotFound")

    def _begin_detach(self, attachment_id: str) -> None:
        for eni in list(self.enis.values()):
            if attachment_id and eni.attachment_id == attachment_id and eni.attachment_status != "detaching":
                self.enis[eni.eni_id] = replace(eni, attachment_status="detaching")
                self._in(DETACHED_AFTER_S, lambda eni_id=eni.eni_id: self._detached(eni_id))  # type: ignore[misc]

    def _in(self, seconds: tuple[float, float], do: Callable[[], object]) -> None:
        self.world.at(self.world.monotonic() + self.random.uniform(*seconds), do)

    def _attached(self, eni_id: EniId) -> None:
        if eni_id in self.enis and self.enis[eni_id].attachment_status == "attaching":
            self.enis[eni_id] = replace(self.enis[eni_id], attachment_status="attached")

    def _detached(self, eni_id: EniId) -> None:
        eni = self.enis.get(eni_id)
        if eni is not None:
            self.enis[eni_id] = replace(
                eni, status="available", attachment_id="", attachment_status="", instance_id=InstanceId(""), device_index=-1
            )
            self.left_at |= dict.fromkeys(addresses_of(eni), self.world.monotonic())

    def _delete_seized(self, eni_id: EniId) -> None:
        eni = self.enis.get(eni_id)
        if eni is not None and eni.status == "available":
            self.enis.pop(eni_id)
            self._free(eni)

    def _free(self, eni: DescribedEni) -> None:
        primary = frozenset() if eni.primary_address is None else frozenset((eni.primary_address,))
        self._give_back(eni.secondary_addresses | primary, eni.prefixes)

    def _give_back(self, addresses: frozenset[IpAddress], prefixes: frozenset[IpNetwork]) -> None:
        # Freed twice it would be given twice, and the daemon would be blamed.
        has = {*self._freed.singles, *self._freed.blocks}
        for eni in self.enis.values():
            has |= {eni.primary_address, *eni.secondary_addresses, *eni.prefixes}
        if twice := has & {*addresses, *prefixes}:
            self.world.failures.append(f"the EC2 of this run frees what is free or in use: {sorted(map(str, twice))}")
        self._freed.singles.extendleft(sorted(addresses))
        self._freed.blocks.extendleft(sorted(prefixes))
        self.left_count += len(addresses)
        self.left_prefix_count += len(prefixes)
        self.left_at |= dict.fromkeys([*addresses, *_within(prefixes)], self.world.monotonic())

    def _take(self, count: int, subnet_id: SubnetId = SUBNET) -> list[IPv4Address]:
        if self.left_count < count:
            raise SubnetExhaustedError(
                f"subnet {subnet_id} has no {count} free addresses", code="InsufficientFreeAddressesInSubnet"
            )
        self.left_count -= count
        freed = self._freed.singles
        given = [freed.popleft() if freed else next(self._fresh) for _ in range(count)]
        self._came(given)
        return given

    def _take_for_others(self, take: Callable[[int], T], count: int) -> T:
        """Wherever others put them: we have not been told."""
        taken, got = dict(self.taken), self._got
        given = take(count)
        self.taken, self._got = taken, got
        return given

    def _take_prefixes(self, count: int) -> frozenset[IpNetwork]:
        if self.left_prefix_count < count:
            raise SubnetExhaustedError(
                f"subnet {SUBNET} has no {count} free prefixes", details="InsufficientCidrBlocks", code="InsufficientCidrBlocks"
            )
        self.left_prefix_count -= count
        freed = self._freed.blocks
        given = frozenset(freed.popleft() if freed else next(self._fresh_prefixes) for _ in range(count))
        self._came(_within(given))
        return given

    def _came(self, addresses: Iterable[IpAddress]) -> None:
        for address in addresses:
            if address in self.taken:
                self._got = {**self._got, address: self.taken.pop(address)}
            self.came_at[address] = self.world.monotonic()


def is_of_pool(eni: DescribedEni) -> bool:
    """Whether an ENI is neither a trunk nor a branch, which are the control plane's."""
    return eni.interface_type == "interface"


def addresses_of(eni: DescribedEni) -> frozenset[IpAddress]:
    """Secondary addresses, those of prefixes included; of a /80 its slot."""
    return eni.secondary_addresses | frozenset(_within(eni.prefixes))


def slot(address: IpAddress) -> IpAddress:
    """By what an address is remembered: itself, or of IPv6 the last one of its /80."""
    return IPv6Address(int(address) | (1 << 48) - 1) if isinstance(address, IPv6Address) else address


def _within(prefixes: Iterable[IpNetwork]) -> list[IpAddress]:
    return [one for block in prefixes for one in ([slot(block[0])] if block.version == 6 else list(block))]
