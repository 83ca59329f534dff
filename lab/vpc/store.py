"""The one place where the VPC changes.

A transaction collects new ENIs, instances and subnets. Leaving it commits them all; leaving it by an exception changes
nothing. Occupancy of the subnets and the events are derived from the difference between the world before and
after, so that they cannot disagree with it. Delayed changes are kept in a heap and applied, each at its own time,
before anything else is read or written. Guards (for the simulated EC2): one owner per address.
"""

from __future__ import annotations

import heapq
import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from ipaddress import IPv4Address, IPv4Network
from random import Random

from lab.vpc.dispatch import Dispatcher, Listener
from lab.vpc.model import (
    AddressesChanged,
    AdmissionChanged,
    Eni,
    EniAttached,
    EniDetached,
    Instance,
    SecurityGroup,
    Subnet,
    VpcEvent,
)
from lab.vpc.space import AddressChoice, SubnetSpace
from lab.vpc.world import Change, History, World

HELD = "held"  # owner of addresses that the operator took out of circulation


class Transaction:
    """Changes not yet committed, by `api` (empty for none). Valid inside its `with` block only."""

    def __init__(self, world: World, spaces: dict[str, SubnetSpace], api: str = "") -> None:
        self.api = api
        self.before = world
        self.world = world
        self._spaces = spaces
        self.timers: list[tuple[float, Callable[[Transaction], None]]] = []

    def space(self, subnet_id: str) -> SubnetSpace:
        """Return the committed occupancy of a subnet, to choose from."""
        return self._spaces[subnet_id]

    def put_eni(self, eni: Eni) -> None:
        """Add or replace an ENI."""
        self.world = replace(self.world, enis={**self.world.enis, eni.eni_id: eni})

    def drop_eni(self, eni_id: str) -> None:
        """Remove an ENI."""
        self.world = replace(self.world, enis={key: eni for key, eni in self.world.enis.items() if key != eni_id})

    def put_instance(self, instance: Instance) -> None:
        """Add or replace an instance."""
        self.world = replace(self.world, instances={**self.world.instances, instance.instance_id: instance})

    def put_subnet(self, subnet: Subnet) -> None:
        """Add or replace a subnet."""
        self.world = replace(self.world, subnets={**self.world.subnets, subnet.subnet_id: subnet})

    def drop_subnet(self, subnet_id: str) -> None:
        """Remove a subnet."""
        kept = {key: subnet for key, subnet in self.world.subnets.items() if key != subnet_id}
        self.world = replace(self.world, subnets=kept)

    def put_group(self, group: SecurityGroup) -> None:
        """Add or replace a security group."""
        self.world = replace(self.world, groups={**self.world.groups, group.group_id: group})

    def after(self, delay_s: float, action: Callable[[Transaction], None]) -> None:
        """Run `action` in a transaction of its own, `delay_s` from now (at once, but after this one, when 0)."""
        self.timers.append((delay_s, action))


class Store:
    """The present world, its past, the occupancy of its subnets and what is still to happen."""

    def __init__(self, *, clock: Callable[[], float], rng: Random, choice: AddressChoice) -> None:
        self._clock = clock
        self._rng = rng
        self._choice = choice
        self._lock = threading.RLock()
        self._world = World()
        self._history = History(clock(), self._world)
        self._spaces: dict[str, SubnetSpace] = {}
        self._timers: list[tuple[float, int, Callable[[Transaction], None]]] = []
        self._sequence = itertools.count()
        self.dispatcher = Dispatcher(seconds_to_due=self._seconds_to_due, settle=self.settle)

    @property
    def world(self) -> World:
        """The present world, due changes applied."""
        with self._lock:
            self.settle()
            return self._world

    def world_at(self, age_s: float) -> World:
        """Return the world as it was `age_s` ago."""
        with self._lock:
            self.settle()
            return self._history.at(self._clock() - age_s) if age_s > 0 else self._world

    def owner_of(self, address: IPv4Address) -> str | None:
        """Say which ENI owns an address; None for nobody, and for an address that is merely held."""
        with self._lock:
            self.settle()
            owners = (space.owner_of(address) for space in self._spaces.values())
            return next((owner for owner in owners if owner is not None and owner != HELD), None)

    def next_number(self) -> int:
        """Return a number that grows with every call; it orders what is created."""
        return next(self._sequence)

    def changes(self) -> tuple[Change, ...]:
        """List what the APIs changed lately, ascending in time."""
        with self._lock:
            self.settle()
            return self._history.changes()

    @contextmanager
    def transaction(self, api: str = "") -> Iterator[Transaction]:
        """Open a transaction; commit on leaving, unless by an exception. `api`: the call whose change it is."""
        with self._lock:
            self.settle()
            tx = Transaction(self._world, self._spaces, api)
            yield tx
            self._commit(tx, self._clock())
            self.settle()

    def settle(self) -> None:
        """Apply every delayed change that is due, each dated at the time it fell due."""
        with self._lock:
            while self._timers and self._timers[0][0] <= self._clock():
                due, _, action = heapq.heappop(self._timers)
                tx = Transaction(self._world, self._spaces)
                action(tx)
                self._commit(tx, due)

    def subscribe(self, listener: Listener) -> None:
        """Add a listener; it gets the present state first, with no event lost or doubled in between."""
        with self._lock:
            self.settle()
            self.dispatcher.subscribe(listener, replay=_events(World(), self._world))

    def hold(self, subnet_id: str, choose: Callable[[SubnetSpace], list[IPv4Address]]) -> list[IPv4Address]:
        """Take the free addresses that `choose` names out of circulation, and return them."""
        with self.transaction() as tx:
            subnet = tx.world.subnet(subnet_id)
            addresses = choose(tx.space(subnet_id))
            tx.space(subnet_id).take(addresses, (), owner=HELD)
            tx.put_subnet(replace(subnet, held_count=subnet.held_count + len(addresses)))
        return addresses

    def unhold(self, subnet_id: str, addresses: list[IPv4Address]) -> None:
        """Bring held addresses back."""
        with self.transaction() as tx:
            subnet = tx.world.subnet(subnet_id)
            tx.space(subnet_id).release(addresses, ())
            tx.put_subnet(replace(subnet, held_count=subnet.held_count - len(addresses)))

    def _commit(self, tx: Transaction, at: float) -> None:
        for subnet_id in tx.world.subnets.keys() - self._spaces.keys():
            cidr = tx.world.subnets[subnet_id].cidr
            self._spaces[subnet_id] = SubnetSpace(cidr, rng=self._rng, choice=self._choice)
        self._move_addresses(tx.before, tx.world)
        if tx.world is not tx.before:
            self._world = tx.world
            self._history.append(at, tx.world, api=tx.api)
            self.dispatcher.post(_events(tx.before, tx.world))
        for delay_s, action in tx.timers:
            heapq.heappush(self._timers, (at + delay_s, self.next_number(), action))
        if tx.timers:
            self.dispatcher.wake()

    def _move_addresses(self, before: World, after: World) -> None:
        """Release first, take second: an address may move between ENIs in one transaction."""
        both = dict.fromkeys([*before.enis, *after.enis])
        changed = [key for key in both if before.enis.get(key) is not after.enis.get(key)]
        taken: list[tuple[Eni, set[IPv4Address], set[IPv4Network]]] = []
        for key in changed:
            old, new = before.enis.get(key), after.enis.get(key)
            had = (set(old.addresses), set(old.prefixes)) if old else (set(), set())
            has = (set(new.addresses), set(new.prefixes)) if new else (set(), set())
            if old:
                gone = (a for a in old.addresses if a not in has[0])
                self._spaces[old.subnet_id].release(gone, (p for p in old.prefixes if p not in has[1]))
            if new:
                taken.append((new, has[0] - had[0], has[1] - had[1]))
        for eni, addresses, prefixes in taken:
            self._spaces[eni.subnet_id].take(addresses, prefixes, owner=eni.eni_id)

    def _seconds_to_due(self) -> float | None:
        with self._lock:
            return max(0.0, self._timers[0][0] - self._clock()) if self._timers else None


def _events(before: World, after: World) -> list[VpcEvent]:
    """Tell the difference between two worlds; from the empty world it is the replay of the present."""
    events: list[VpcEvent] = []
    for key in dict.fromkeys([*before.enis, *after.enis]):
        old, new = before.enis.get(key), after.enis.get(key)
        if old is new and _trunk(before, old) is _trunk(after, new):
            continue
        was = before.plugged_into(old) if old else None
        now = after.plugged_into(new) if new else None
        was_id, now_id = was and was.instance_id, now and now.instance_id
        if was is not None and was_id != now_id:
            events.append(EniDetached(was.instance_id, was.name, key))
        if new is not None and now is not None and was_id != now_id:
            events.append(EniAttached(now.instance_id, now.name, new))
        said = (old.all_addresses, old.all_prefixes, was_id) if old else None
        says = (new.all_addresses, new.all_prefixes, now_id) if new else None
        if said != says:
            addresses, prefixes = (new.all_addresses, new.all_prefixes) if new else ((), ())
            events.append(AddressesChanged(key, now.name if now else None, addresses, prefixes))
    return [*events, *_admissions(before, after)]


def _trunk(world: World, eni: Eni | None) -> Eni | None:
    """The trunk of a branch: what happens to it happens to the branch."""
    return world.enis.get(eni.association.trunk_id) if eni is not None and eni.association is not None else None


def _admissions(before: World, after: World) -> list[AdmissionChanged]:
    """Tell whose groups admit others than before; a group may name another's members, so every ENI is looked at."""
    if all(group.sources is None for world in (before, after) for group in world.groups.values()):
        return []
    said = {key: before.admitted(eni) for key, eni in before.enis.items()}
    says = {key: after.admitted(eni) for key, eni in after.enis.items()}
    return [AdmissionChanged(key, says.get(key)) for key in dict.fromkeys([*said, *says]) if said.get(key) != says.get(key)]
