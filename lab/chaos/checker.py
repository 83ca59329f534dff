"""Finds violations in what was observed. Pure: rounds in, violations out. Each invariant with how long a difference may last:

    I1  two wired host veths with one address, on one node or on two, or with one for egress on one node; two rows with one address:
        two rounds. A sandbox's own eth0 has another address than the runtime was told, or its row has: two rounds. (ExpectedState
        checks each creation at once.)
    I2  a living sandbox's host veth is wired with its address: two rounds. Route and rule 512 lead to it: WIRED_S, or REPAIR_S
        after chaos took them and the daemon was ready to repair. Its row is there while the daemon is ready: ROW_S (adoption
        after a lost datastore needs a list), or ROW_AFTER_LIE_S if EC2 hid its address. It answers a ping from the VPC: SILENT_S,
        or REPAIR_S as above.
        If it has an address for egress, or its node's settings give one: the host veth for it, the route to that, and the address
        inside stay what they were, by the same tolerances; an IPv4 host answers it, SILENT_S.
    I3  after its removal was answered and the daemon is ready, no row is left: DONE_S. (The kubelet reports a removal that fails.)
    I4  after the same, no wired veth is left, and nothing answers at the address that nobody has: DONE_S. (The kubelet looks for
        routes and rules when DEL is answered.)
    I5  a wired veth of a sandbox that the runtime did not promise, with no creation under way that is older: STRAY_S. A route or
        rule whose address is on no wired veth: STRAY_S. Excused if the runtime was killed meanwhile: such a sandbox is an orphan.
    I6  a primary address of an ENI is wired: at once.
    I7  a wired address is on no ENI that EC2 has attached to this node: two rounds.
    I8  an address is with EC2 for as long as it cools: two rounds, unless its pod asked for it. (ExpectedState checks early reuse, at
        once.)
    I9  an ENI of ours that nobody detached by hand is attached to nothing: LOOSE_S after the last cloud fault ended, with the
        daemon ready; LEAKED_S, if its intent died with a datastore.
    I19 a sandbox of a pod that must have groups has another address than its branch ENI's (the kubelet looks at once), or a wired
        branch has an address that is no branch's of this node at EC2: two rounds. A host that its groups do not name has reached it,
        or a pod of a pool with such a group: at once. The link to its branch is gone: WIRED_S, or REPAIR_S as above.
    I21 on a node with a policy agent a living sandbox's host veth has no filter, and the agent has not taken it away itself; or it
        has one whose name the agent was told to forget, so that no policy reaches it: two rounds.
    I13 a node calls EC2 more than CALLS_MOST or CALLS_OF_THE_PAIR_MOST times in a minute, and CALLS_A_START more for each further
        start of its daemon: at once.

What other hands took (lab/chaos/book.py) is excused from I1 across nodes, I6, I7, I8 and an answer to ping, for the sandboxes that
had it and for those that got it before the daemon could notice; from a row, if the datastore was lost too. Nothing excuses a living
sandbox's wiring, or two on one node.

A round is checked only for what was expected both before and after it. While the daemon is away, nothing is demanded that is its
work, and the time of such a tolerance starts when it is ready again.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from lab.chaos.book import Takes
from lab.chaos.expected_state import ExpectedSnapshot, PodRecord, Violation
from lab.chaos.observation import NodeObservation
from lab.chaos.plan import PAIR_NODES
from lab.chaos.tolerances import (
    CALLS_A_START,
    CALLS_MOST,
    CALLS_OF_THE_PAIR_MOST,
    COOLDOWN_MARGIN_S,
    DONE_S,
    LEAKED_S,
    LOOSE_S,
    REPAIR_S,
    ROW_AFTER_LIE_S,
    ROW_S,
    SILENT_S,
    STRAY_S,
    WIRED_S,
)
from lab.node.kernel_view import STRICT_PREFIX, VETH_PREFIX, KernelView, Veth
from lab.node.policy_agent import PolicyView


@dataclass(frozen=True)
class NodeState:
    """What the lab did to a node, on the run's clock. `ready_since` None: the daemon is not ready. `has_egress`: its sandboxes are to
    have an address of the other family. `nft_deleted_at`: when its nftables tables were last deleted, without which they reach none.
    """

    ready_since: float | None = None
    damaged: Mapping[str, float] = field(default_factory=dict)
    runtime_killed_at: tuple[float, ...] = ()
    started_at: tuple[float, ...] = ()
    has_egress: bool = False
    nft_deleted_at: float | None = None


class Whereabouts(Protocol):
    """Where EC2 has an address."""

    def get(self, address: str, /) -> str | None:
        """The node to which the address's ENI is attached, "" if it is attached to nothing; None if no ENI has it."""


@dataclass(frozen=True)
class Round:
    """Everything seen in one round. `on_enis`: where EC2 has addresses. `branches`: addresses of branch ENIs -> node/VLAN ID.

    `mute`: sandboxes that reach no host of the other family. `open`: addresses with groups that a stranger has reached. `lied_until`:
    when Describe last left something out; now, if it does.
    """

    at_s: float
    before: ExpectedSnapshot
    after: ExpectedSnapshot
    nodes: Mapping[str, NodeState]
    observations: Mapping[str, NodeObservation]
    on_enis: Whereabouts
    primaries: frozenset[str] = frozenset()
    branches: Mapping[str, str] = field(default_factory=dict)
    silent: frozenset[str] = frozenset()
    mute: frozenset[str] = frozenset()
    open: frozenset[str] = frozenset()
    echoing: frozenset[str] = frozenset()
    loose_enis: frozenset[str] = frozenset()
    faultless_since: float | None = 0.0
    lied_until: float = -1.0
    takes: Takes = field(default_factory=Takes)
    calls_a_minute: Mapping[str, Counter[str]] = field(default_factory=dict)


@dataclass(frozen=True)
class _Claim:
    """One difference seen in this round. `lasted_s`: how long it may last, counted from `not_before` if that is later."""

    invariant: str
    subject: str
    what: str
    lasted_s: float = 0.0
    looks: int = 2
    not_before: float = 0.0


class Checker:
    """Checks rounds and remembers since when it has seen each difference. Used by one thread."""

    def __init__(self, *, cooldown_s: float) -> None:
        self._cooldown_s = cooldown_s
        self._seen: dict[tuple[str, str, str], tuple[float, int]] = {}
        self._told: set[tuple[str, str, str]] = set()
        self._first_wired: dict[str, float] = {}
        self._not_wired_at: dict[str, float] = {}
        self._last_round_s = 0.0
        self._row_seen_at: dict[str, float] = {}
        self._confirmed: set[str] = set()
        self.orphans: set[str] = set()
        self.unplaced: set[str] = set()
        """Sandboxes whose ENI nothing tells since a datastore was lost: nobody demands that they answer."""

    def check(self, round_: Round) -> list[Violation]:
        """Check one round. Returns: new violations; each is returned once."""
        claims = [claim for name, seen in round_.observations.items() for claim in self._node(name, seen, round_)]
        claims += self._across(round_)
        seen: dict[tuple[str, str, str], tuple[float, int]] = {}
        found = []
        for claim in claims:
            key = (claim.invariant, claim.subject, claim.what)
            since, looks = self._seen.get(key, (round_.at_s, 0))
            seen[key] = (since, looks + 1)
            is_over = round_.at_s - max(since, claim.not_before) >= claim.lasted_s
            if is_over and looks + 1 >= claim.looks and key not in self._told:
                self._told.add(key)
                what = f"{claim.what} (seen for {round_.at_s - since:.1f} s)"
                found.append(Violation(claim.invariant, round_.at_s, claim.subject, what))
        self._seen, self._last_round_s = seen, round_.at_s
        return found

    def _node(self, name: str, seen: NodeObservation, round_: Round) -> Iterable[_Claim]:
        state = round_.nodes[name]
        wired = {**seen.kernel.wired, **seen.kernel.wired_to_branches}
        for record in round_.before.pods.values():
            now = round_.after.pods.get(record.sandbox_id, record)
            if record.node != name:
                continue
            if now.is_wanted:
                yield from self._living(record, wired.get(record.sandbox_id), seen, state, round_)
            elif record.removed_at_s is not None and state.ready_since is not None:
                yield from _gone(record, record.removed_at_s, wired, seen, state.ready_since)
        for veth in wired.values():
            yield from self._wired(name, veth, state, round_)
        yield from self._egress_links(name, seen, state)
        if state.ready_since is not None:
            yield from _strays(name, seen.kernel, state.ready_since)
            yield from self._rows(name, seen, wired, round_)

    def _living(
        self, record: PodRecord, veth: Veth | None, seen: NodeObservation, state: NodeState, round_: Round
    ) -> Iterable[_Claim]:
        subject = f"{record.node}/{record.pod} {record.address}"
        if record.address in round_.open and (record.vlan or record.is_guarded):
            yield _Claim("I19", subject, "a host that its groups do not name has reached it", looks=1)
        if record.is_mistold:
            return  # it is cut off as soon as the daemon has heard of the contradiction
        if self._is_unconfirmed(record, seen.kernel):
            return
        if veth is None or veth.address != record.address:
            yield _Claim("I2", subject, f"it lives, and its host veth is {'gone' if veth is None else veth.address}")
            return
        if seen.policy is not None:
            yield from _policed(subject, veth, seen.policy)
        patience = _Patience(state.damaged.get(record.address), state.ready_since)
        is_hit = round_.takes.hit(record.node, record.address, record.created_at_s)
        lost_at = round_.after.lost_at.get(record.node, -1.0)
        # Nothing tells on which ENI its address was: it is quarantined, without a row, and what is taken of its wiring stays away.
        # Of one with a branch the VLAN link tells it, which chaos took since its row was seen.
        row_seen_at = self._row_seen_at.get(record.sandbox_id, -1.0)
        is_nameless = bool(record.vlan) and row_seen_at <= state.damaged.get(record.address, -2.0)
        is_unplaced = (is_hit or is_nameless) and lost_at > record.created_at_s and record.sandbox_id not in (seen.rows or {})
        (self.unplaced.add if is_unplaced else self.unplaced.discard)(record.sandbox_id)
        if not is_unplaced:
            yield from _with_egress(record, seen, patience, is_demanded=state.has_egress)
            yield from _led_to(record, veth, seen.kernel, patience)
        if record.address in round_.silent and not (is_hit or is_unplaced):
            yield from patience.claim("I2", subject, "it does not answer from the VPC", SILENT_S)
        if record.sandbox_id in round_.mute:
            yield from _mute(subject, patience, state)
        inside = seen.inside.get(record.sandbox_id)
        if inside is not None and inside != record.address:
            yield _Claim("I1", subject, f"its own eth0 has {inside}")
        if state.ready_since is not None and seen.rows is not None and not is_unplaced:
            row = seen.rows.get(record.sandbox_id)
            if row is not None:
                self._row_seen_at[record.sandbox_id] = round_.at_s
            is_hidden = self._row_seen_at.get(record.sandbox_id, -1.0) <= lost_at and round_.lied_until > lost_at
            if row is None and is_hidden and lost_at > record.created_at_s:
                since = max(state.ready_since, round_.lied_until)
                lasted_s = max(ROW_AFTER_LIE_S, round_.lied_until - lost_at + ROW_S)
                yield _Claim("I2", subject, "it lives, and the daemon has no row", lasted_s, not_before=since)
            elif row is None:
                yield _Claim("I2", subject, "it lives, and the daemon has no row", ROW_S, not_before=state.ready_since)
            elif row != record.address:
                yield _Claim("I1", subject, f"its row says {row}")

    def _is_unconfirmed(self, record: PodRecord, kernel: KernelView) -> bool:
        """Whether EC2 has not confirmed the branch ENI of a sandbox in standard mode: its veth is there, and was never led to."""
        own = [one for one in kernel.branch_veths if one.container_id == record.sandbox_id and not one.is_dying]
        if not own or own[0].name.startswith(STRICT_PREFIX):
            return False
        if kernel.host_routes.get(record.address) == own[0].name:
            self._confirmed.add(record.sandbox_id)
        return record.sandbox_id not in self._confirmed

    def _wired(self, name: str, veth: Veth, state: NodeState, round_: Round) -> Iterable[_Claim]:
        key = f"{name}/{veth.container_id}"
        first = self._first_wired.setdefault(key, round_.at_s)
        is_hit = round_.takes.hit(name, veth.address, self._not_wired_at.setdefault(key, self._last_round_s))
        subject = f"{name} {veth.address} {veth.container_id[:12]}"
        known = round_.after.pods.get(veth.container_id)
        if known is not None and not known.is_wanted:
            return  # a branch ENI may be gone by then, when its DEL waits for the daemon
        if known is None and veth.has_uplink and self._is_orphan(name, veth.container_id, first, state):
            return  # nobody sends its DEL, and the control plane does not wait for one
        if veth.has_uplink != round_.branches.get(veth.address, "").startswith(f"{name}/"):
            place = round_.branches.get(veth.address, "no branch ENI")
            yield _Claim("I19", subject, f"{'a branch' if veth.has_uplink else 'an address of the pool'}, and EC2 says {place}")
        if veth.address in round_.primaries and not is_hit and not veth.has_uplink:
            yield _Claim("I6", subject, "it is the primary address of an ENI", looks=1)
        is_left = known is None and (name, veth.address) in round_.after.left
        if round_.on_enis.get(veth.address) != name and not (is_hit or is_left):
            where = round_.on_enis.get(veth.address)
            yield _Claim("I7", subject, f"wired, and EC2 has it on {where or 'no ENI that is attached'}")
        if veth.container_id in round_.after.pods:
            return
        if self._is_orphan(name, veth.container_id, first, state):
            return
        is_expected = any(
            began <= first for began in (*round_.before.creating.get(name, ()), *round_.after.creating.get(name, ()))
        )
        if not is_expected and state.ready_since is not None:
            yield _Claim("I5", subject, "wired for a sandbox that was never promised", STRAY_S, not_before=state.ready_since)

    def _is_orphan(self, name: str, container_id: str, first: float, state: NodeState) -> bool:
        """A sandbox that was being created when the runtime was killed: nobody will ever send its DEL."""
        is_one = any(first - 60 <= killed <= first + 300 for killed in state.runtime_killed_at)
        if is_one:
            self.orphans.add(f"{name}/{container_id}")
        return is_one

    def _rows(self, name: str, seen: NodeObservation, wired: Mapping[str, Veth], round_: Round) -> Iterable[_Claim]:
        state = round_.nodes[name]
        holders: dict[str, list[str]] = defaultdict(list)
        for container_id, address in (seen.rows or {}).items():
            holders[address].append(container_id)
            is_known = container_id in round_.after.pods or container_id in wired or state.runtime_killed_at
            if not is_known and not round_.after.creating.get(name) and state.ready_since is not None:
                what = "a row of a sandbox that was never promised and is not wired"
                yield _Claim("I5", f"{name} {address} {container_id[:12]}", what, STRAY_S, not_before=state.ready_since)
        for address, ids in holders.items():
            if len(ids) > 1:
                yield _Claim("I1", f"{name} {address}", f"{len(ids)} rows have it", looks=1)

    def _egress_links(self, name: str, seen: NodeObservation, state: NodeState) -> Iterable[_Claim]:
        """Second links are of sandboxes that have a first one, and each has an address of its own, good on this node alone."""
        holders: dict[str, list[str]] = defaultdict(list)
        for container_id, veth in seen.kernel.wired_for_egress.items():
            holders[veth.address].append(veth.name)
            if container_id not in {**seen.kernel.wired, **seen.kernel.wired_to_branches} and state.ready_since is not None:
                subject = f"{name} {veth.address} {container_id[:12]}"
                yield _Claim("I5", subject, "a link for egress, and no other one", STRAY_S, not_before=state.ready_since)
        for address, names in holders.items():
            if len(names) > 1:
                yield _Claim("I1", f"{name} {address}", f"wired twice: {', '.join(sorted(names))}")

    def _across(self, round_: Round) -> Iterable[_Claim]:
        holders: dict[str, list[str]] = defaultdict(list)
        fenced = round_.after.left | {
            (record.node, record.address) for record in round_.after.pods.values() if record.is_fenced and not record.removed_at_s
        }
        for name, seen in round_.observations.items():
            for veth in (*seen.kernel.veths, *seen.kernel.branch_veths):
                # Whom an orphan's branch ENI went to has the address now: nobody told the node, which leads none of it to the network.
                is_outlived = veth.has_uplink and f"{name}/{veth.container_id}" in self.orphans
                if veth.is_wired and not is_outlived:
                    holders[veth.address].append(f"{name}/{veth.name}")
        for address, names in holders.items():
            nodes = [name.partition("/")[0] for name in names]
            lacking = [node for node in nodes if node != round_.on_enis.get(address) and (node, address) not in fenced]
            unexcused = [node for node in lacking if not round_.takes.was_taken(node, address)]
            if len(names) > 1 and (unexcused or len(set(nodes)) < len(nodes)):
                yield _Claim("I1", address, f"wired twice: {', '.join(sorted(names))}")
        held = {record.address for record in round_.after.pods.values() if record.removed_at_s is None} | set(holders)
        for address in round_.echoing - held - round_.primaries:  # EC2 may make a released address the first of a new ENI
            yield _Claim("I4", address, "it answers, and no sandbox has it", SILENT_S)
        for record in round_.before.pods.values():
            cools = record.removing_at_s is not None and round_.at_s - record.removing_at_s < self._cooldown_s - COOLDOWN_MARGIN_S
            is_hit = round_.takes.hit(record.node, record.address, record.created_at_s)
            if cools and not (is_hit or record.is_pinned) and round_.on_enis.get(record.address) != record.node:
                yield _Claim("I8", f"{record.node} {record.address}", "it cools, and EC2 has it no more")
        for name, counts in round_.calls_a_minute.items():
            starts = [at for at in round_.nodes[name].started_at if round_.at_s - at <= 60.0]
            most = CALLS_OF_THE_PAIR_MOST if name in PAIR_NODES else CALLS_MOST
            most += CALLS_A_START * max(len(starts) - 1, 0)
            if counts.total() > most:
                by_outcome = ", ".join(f"{count} {call}" for call, count in counts.most_common())
                yield _Claim("I13", name, f"more than {most} EC2 calls in a minute: {by_outcome}", looks=1)
        ready = [state.ready_since for state in round_.nodes.values()]
        if round_.faultless_since is not None and None not in ready:
            calm_since = max([round_.faultless_since, *(since for since in ready if since is not None)])
            for eni_id in sorted(set(round_.loose_enis) - round_.takes.detached):
                # The daemon goes by the ENI's creation time, so a clock that was stepped meanwhile puts its deletion off.
                lasted_s = LEAKED_S + round_.takes.stepped_s if eni_id in round_.takes.forgotten else LOOSE_S
                yield _Claim("I9", eni_id, "an ENI of ours is attached to nothing", lasted_s, not_before=calm_since)


@dataclass(frozen=True)
class _Patience:
    """How long a difference in a living sandbox's wiring may last: short, or until the daemon has had time to repair damage."""

    damaged_at: float | None
    ready_since: float | None

    def claim(self, invariant: str, subject: str, what: str, lasted_s: float) -> Iterable[_Claim]:
        if self.damaged_at is None:
            yield _Claim(invariant, subject, what, lasted_s)
        elif self.ready_since is not None:
            since = max(self.damaged_at, self.ready_since)
            yield _Claim(invariant, subject, f"{what} (chaos took it)", REPAIR_S, not_before=since)


def _led_to(record: PodRecord, veth: Veth, kernel: KernelView, patience: _Patience) -> Iterable[_Claim]:
    """Route and rule lead to a sandbox; to one in strict mode its branch's own table alone does, by its link."""
    subject = f"{record.node}/{record.pod} {record.address}"
    if record.vlan and record.vlan not in {link.vlan for link in kernel.vlans if not link.is_dying}:
        yield from patience.claim("I19", subject, f"the link to its branch, ID {record.vlan}, is gone", WIRED_S)
    if record.vlan and veth.name.startswith(STRICT_PREFIX):
        return  # that it answers says the rest
    if kernel.host_routes.get(record.address) != veth.name:
        yield from patience.claim("I2", subject, "its route does not lead to its veth", WIRED_S)
    if record.address not in kernel.to_rules:
        yield from patience.claim("I2", subject, "no rule leads to it", WIRED_S)


def _mute(subject: str, patience: _Patience, state: NodeState) -> Iterable[_Claim]:
    """It reaches nobody of the other family: at once a fault, but for a moment after the tables were deleted and a daemon is ready."""
    what = "it reaches nobody of the other family"
    if patience.damaged_at is not None or state.nft_deleted_at is None:
        yield from patience.claim("I2", subject, what, SILENT_S)
    elif state.ready_since is not None:
        since = max(state.nft_deleted_at, state.ready_since)
        yield _Claim("I2", subject, what, SILENT_S, not_before=since)


def _gone(
    record: PodRecord, removed_at_s: float, wired: Mapping[str, Veth], seen: NodeObservation, ready_since: float
) -> Iterable[_Claim]:
    subject, since = f"{record.node}/{record.pod} {record.address}", max(removed_at_s, ready_since)
    if record.sandbox_id in wired:
        yield _Claim("I4", subject, "removed, and its veth is still wired", DONE_S, not_before=since)
    if seen.rows is not None and record.sandbox_id in seen.rows:
        yield _Claim("I3", subject, "removed, and its row is still there", DONE_S, not_before=since)


def _with_egress(record: PodRecord, seen: NodeObservation, patience: _Patience, *, is_demanded: bool) -> Iterable[_Claim]:
    """What a living sandbox has for egress: the address that it was given, on a link of its own, to which the node's route leads."""
    subject = f"{record.node}/{record.pod} {record.address}, {record.egress or 'no egress'}"
    if not record.egress:
        if is_demanded:
            yield _Claim("I2", subject, "it was given no address for egress")
        return
    inside, veth = seen.inside_egress.get(record.sandbox_id), seen.kernel.wired_for_egress.get(record.sandbox_id)
    if inside is not None and inside != record.egress:
        yield _Claim("I1", subject, f"its link for egress has {inside or 'no address'} inside")
    if veth is None or veth.address != record.egress:
        yield _Claim("I2", subject, f"it lives, and its host veth for egress is {'gone' if veth is None else veth.address}")
    elif seen.kernel.host_routes.get(record.egress) != veth.name:
        yield from patience.claim("I2", subject, "its route for egress does not lead to its veth", WIRED_S)


def _policed(subject: str, veth: Veth, view: PolicyView) -> Iterable[_Claim]:
    """Its ADD was answered with success, so that its filter was attached: by the agent's own record, and by the kernel."""
    found = view.links.get(veth.name)
    if found is None or found.ifindex in view.removed:
        return  # the link goes just now; or the agent has forgotten it
    if not found.is_whole:
        yield _Claim("I21", subject, f"it lives, and nothing filters {veth.name}")
    elif found.ifindex in view.stale:
        yield _Claim("I21", subject, f"it lives, and the policy agent was told to forget what filters {veth.name}")


def _strays(name: str, kernel: KernelView, ready_since: float) -> Iterable[_Claim]:
    wired = (kernel.wired, kernel.wired_for_egress, kernel.wired_to_branches)
    carried = {veth.address for each in wired for veth in each.values()}
    routed = {address for address, device in kernel.host_routes.items() if device.startswith(VETH_PREFIX)}
    for what, addresses in (("rule to it", kernel.to_rules), ("rule from it", kernel.from_rules), ("route", routed)):
        for address in sorted(set(addresses) - carried):
            yield _Claim("I5", f"{name} {address}", f"it has a {what}, and no veth", STRAY_S, not_before=ready_since)
