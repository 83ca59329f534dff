"""The store of the VPC's state, and the only place where it changes.

A transaction collects new ENIs, instances and subnets. Leaving its block commits them all; leaving it by an exception changes nothing.
The taken addresses of the subnets and the events are derived from the difference between the world before and after, so that they
always agree with it. Delayed changes are kept in a heap. Those that are due are applied before anything else is read or written, and
each is dated at the time at which it was due. An address has at most one owner.
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

HELD = "held"  # the owner of addresses that a fault holds (lab/vpc/crowding.py)


class Transaction:
    """Changes that are not committed yet. It is valid only inside its `with` block. `api`: the call that makes them; "" for none."""

    def __init__(self, world: World, spaces: dict[str, SubnetSpace], api: str = "") -> None:
        self.api = api
        self.before = world
        self.world = world
        self._spaces = spaces
        self.timers: list[tuple[float, Callable[[Transaction], None]]] = []

    def space(self, subnet_id: str) -> SubnetSpace:
        """Return the taken addresses of a subnet, to choose free ones. Changes of this transaction are not in it yet."""
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
        """Run `action` in a transaction of its own, `delay_s` after the commit of this one."""
        self.timers.append((delay_s, action))


class Store:
    """The present world, its past, the taken addresses of its subnets, and its delayed changes. Thread-safe."""

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
        """The present world, with all changes that are due."""
        with self._lock:
            self.settle()
            return self._world

    def world_at(self, age_s: float) -> World:
        """Return the world as it was `age_s` seconds ago."""
        with self._lock:
            self.settle()
            return self._history.at(self._clock() - age_s) if age_s > 0 else self._world

    def owner_of(self, address: IPv4Address) -> str | None:
        """Return the ID of the ENI that owns an address; None if no ENI owns it, also if a fault holds it."""
        with self._lock:
            self.settle()
            owners = (space.owner_of(address) for space in self._spaces.values())
            return next((owner for owner in owners if owner is not None and owner != HELD), None)

    def next_number(self) -> int:
        """Return a number that grows with every call. Objects are sorted by it in the order of their creation."""
        return next(self._sequence)

    def changes(self) -> tuple[Change, ...]:
        """List the changes of ENIs by API calls (`History.changes`)."""
        with self._lock:
            self.settle()
            return self._history.changes()

    @contextmanager
    def transaction(self, api: str = "") -> Iterator[Transaction]:
        """Open a transaction, and commit it at the end of the block, unless an exception leaves the block. `api`: the call that makes
        the changes."""
        with self._lock:
            self.settle()
            tx = Transaction(self._world, self._spaces, api)
            yield tx
            self._commit(tx, self._clock())
            self.settle()

    def settle(self) -> None:
        """Apply every delayed change that is due, each dated at the time at which it was due."""
        with self._lock:
            while self._timers and self._timers[0][0] <= self._clock():
                due, _, action = heapq.heappop(self._timers)
                tx = Transaction(self._world, self._spaces)
                action(tx)
                self._commit(tx, due)

    def subscribe(self, listener: Listener) -> None:
        """Add a listener. It gets events of the present state first, and then every later event exactly once."""
        with self._lock:
            self.settle()
            self.dispatcher.subscribe(listener, replay=_events(World(), self._world))

    def hold(self, subnet_id: str, choose: Callable[[SubnetSpace], list[IPv4Address]]) -> list[IPv4Address]:
        """Hold the free addresses that `choose` returns, so that no ENI gets them. Returns: these addresses."""
        with self.transaction() as tx:
            subnet = tx.world.subnet(subnet_id)
            addresses = choose(tx.space(subnet_id))
            tx.space(subnet_id).take(addresses, (), owner=HELD)
            tx.put_subnet(replace(subnet, held_count=subnet.held_count + len(addresses)))
        return addresses

    def unhold(self, subnet_id: str, addresses: list[IPv4Address]) -> None:
        """Make held addresses free again."""
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
        """Record the new owners of addresses. All old owners are removed first, because an address may move between two ENIs in one
        transaction."""
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
    """Return the events that lead from one world to another. From an empty world they describe the whole present state."""
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
    """Return the trunk of a branch ENI, if any. A change of the trunk, such as a detachment, changes the branch too."""
    return world.enis.get(eni.association.trunk_id) if eni is not None and eni.association is not None else None


def _admissions(before: World, after: World) -> list[AdmissionChanged]:
    """Return an event for each ENI to which other networks may send than before. Every ENI is checked, because the groups of one ENI
    may admit the members of another group, whose addresses changed."""
    if all(group.sources is None for world in (before, after) for group in world.groups.values()):
        return []
    said = {key: before.admitted(eni) for key, eni in before.enis.items()}
    says = {key: after.admitted(eni) for key, eni in after.enis.items()}
    return [AdmissionChanged(key, says.get(key)) for key in dict.fromkeys([*said, *says]) if said.get(key) != says.get(key)]
